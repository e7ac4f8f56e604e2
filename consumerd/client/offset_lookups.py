# SPDX-License-Identifier: Apache-2.0
"""Choice of the lookup of offsets for a cluster, by the generation of its brokers."""

from __future__ import annotations

from consumerd.client.leaders import Connections
from consumerd.client.legacy_offsets import LegacyOffsetLookup
from consumerd.client.log_range import ModernOffsetLookup
from consumerd.client.offset_lookup import OffsetLookup
from consumerd.model import Generation


def choose_offset_lookup(generation: Generation, connections: Connections, *, request_timeout_s: float) -> OffsetLookup:
    """Return the lookup of offsets at a cluster's brokers, which uses these connections.

    Args:
        generation: Generation of the brokers.
        connections: Pool of connections to brokers.
        request_timeout_s: Time limit of each request, in seconds.
    """
    if generation is Generation.LEGACY:
        return LegacyOffsetLookup(connections, request_timeout_s=request_timeout_s)
    return ModernOffsetLookup(connections, request_timeout_s=request_timeout_s)
