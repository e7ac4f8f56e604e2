# SPDX-License-Identifier: Apache-2.0
"""The port to whoever can tell what a cluster is made of."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from consumerd.cluster.view import ClusterView


class ClusterSource(Protocol):
    """ZooKeeper, or the brokers."""

    async def read(self, topics: Collection[str] | None) -> ClusterView:
        """Read the brokers, and the topics named, or all of them for None. A topic that is not there is left out.

        Bounded. Raises CoordinationError (ZooKeeper) or ConnectionLost (brokers) when nothing could be read.
        """


class RegistrySource(ClusterSource, Protocol):
    """ZooKeeper, where who leads a partition costs a read each."""

    async def read(self, topics: Collection[str] | None, *, leaders: bool = True) -> ClusterView:
        """As of any source; without ``leaders``, partitions are told with nothing known of who leads them."""
