# SPDX-License-Identifier: Apache-2.0
"""What the client pieces need to know of the cluster: who leads a partition, and how to ask again."""

from __future__ import annotations

from typing import Protocol

from consumerd.cluster.view import Broker, ClusterView
from consumerd.model import TopicPartition
from consumerd.net.connection import BrokerConnection
from consumerd.net.pool import PooledBroker, Purpose


class Leaders(Protocol):
    """``cluster.directory.ClusterDirectory`` as clients see it."""

    def find_leader(self, partition: TopicPartition) -> Broker | None:
        """Return the broker to ask for a partition, as believed now."""

    async def refresh(self, reason: str) -> ClusterView:
        """Have the cluster read again, and return when that has happened."""


class Connections(Protocol):
    """``net.pool.ConnectionPool`` as clients see it."""

    async def get(self, broker: PooledBroker, purpose: Purpose) -> BrokerConnection:
        """Return a usable connection. Raises ConnectionLost."""
