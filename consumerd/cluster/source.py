# SPDX-License-Identifier: Apache-2.0
"""The port of sources of the cluster's view."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from consumerd.cluster.view import ClusterView


class ClusterSource(Protocol):
    """A source of the cluster's view: ZooKeeper, or the brokers."""

    async def read(self, topics: Collection[str] | None) -> ClusterView:
        """Read the brokers and the named topics, or with None all topics.

        Topics that do not exist are left out. Bounded. Raises CoordinationError (ZooKeeper) or ConnectionLost (brokers)
        if nothing could be read.
        """


class RegistrySource(ClusterSource, Protocol):
    """ZooKeeper as a source, where each partition's leader costs one read."""

    async def read(self, topics: Collection[str] | None, *, leaders: bool = True) -> ClusterView:
        """Read as any source; without ``leaders``, partitions come without leaders."""
