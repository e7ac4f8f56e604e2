# SPDX-License-Identifier: Apache-2.0
"""Interfaces that the client library needs: directory of partition leaders, and connections to brokers."""

from __future__ import annotations

from typing import Protocol

from consumerd.cluster.view import Broker, ClusterView
from consumerd.model import TopicPartition
from consumerd.net.connection import BrokerConnection
from consumerd.net.pool import PooledBroker, Purpose


class Leaders(Protocol):
    """Directory of the leaders of partitions.

    Implemented by ``cluster.directory.ClusterDirectory`` and ``client.topics.MetadataDirectory``.
    """

    def find_leader(self, partition: TopicPartition) -> Broker | None:
        """Return the last known leader of a partition; None if none is known."""

    async def refresh(self, reason: str) -> ClusterView:
        """Read brokers, topics and leaders again; return them as they are known then.

        Args:
            reason: Text for the log.
        """


class Connections(Protocol):
    """Pool of connections to brokers, such as ``net.pool.ConnectionPool``."""

    async def get(self, broker: PooledBroker, purpose: Purpose) -> BrokerConnection:
        """Return a usable connection to a broker. Raises ConnectionLost.

        Args:
            purpose: Use of the connection. A broker has separate connections for long polls and for short requests, so
                that short requests need not wait.
        """
