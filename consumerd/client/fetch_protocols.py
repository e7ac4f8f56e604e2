# SPDX-License-Identifier: Apache-2.0
"""Choice of the fetch protocol for a cluster, by the generation of its brokers."""

from __future__ import annotations

from consumerd.aio.clock import monotonic
from consumerd.client.fetch_protocol import FetchProtocol
from consumerd.client.legacy_fetch import LegacyFetchProtocol
from consumerd.client.modern_fetch import ModernFetchProtocol
from consumerd.model import Generation
from consumerd.net.pool import ConnectionPool, PoolShare


def choose_fetch_protocol(generation: Generation, connections: ConnectionPool | PoolShare) -> FetchProtocol:
    """Return the fetch protocol for a cluster's brokers, which uses these connections.

    Args:
        generation: Generation of the brokers.
        connections: Pool of connections to brokers.
    """
    if generation is Generation.LEGACY:
        return LegacyFetchProtocol(connections)
    return ModernFetchProtocol(connections, now=monotonic)
