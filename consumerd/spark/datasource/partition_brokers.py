# SPDX-License-Identifier: Apache-2.0
"""Directory of the brokers of partitions of Kafka 0.6 and 0.7, for driver and tasks.

Partition ``B-P`` is on broker B only. The driver reads the addresses of brokers in ZooKeeper, and sends each task that
of its partition's broker, since tasks have no ZooKeeper. A broker that restarts at the same address is found again; one
with another address is found when the driver plans the next read.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from consumerd.aio.cell import Cell
from consumerd.cluster.view import Broker, ClusterView, PartitionView, TopicView
from consumerd.model import TopicPartition


class PartitionBrokers:
    """Directory of partitions of Kafka 0.6 and 0.7 and their brokers.

    Implements ``client.leaders.Leaders`` and ``fetch.ports.LeaderDirectory``.

    Args:
        view: Brokers and topics as they are known.
        read: Reads them again; None if they cannot be read, as in a task.
    """

    def __init__(self, view: ClusterView, read: Callable[[], Awaitable[ClusterView]] | None = None) -> None:
        self.views = Cell(view)
        self._read = read

    @classmethod
    def of_task(cls, partition: TopicPartition, broker: Broker) -> PartitionBrokers:
        """Return the directory of a task, with one partition and its broker."""
        placed = PartitionView(leader=broker.id, replicas=(broker.id,), isr=(broker.id,))
        topic = TopicView(name=partition.topic, partitions={partition.partition: placed})
        return cls(ClusterView(brokers={broker.id: broker}, topics={partition.topic: topic}))

    def find_leader(self, partition: TopicPartition) -> Broker | None:
        """Return the broker of a partition; None if it is not registered."""
        return self.views.value.find_leader(partition)

    def request_refresh(self, reason: str) -> None:
        """Do nothing: where fetching asks for a refresh, in tasks, brokers cannot be read again."""

    async def refresh(self, reason: str) -> ClusterView:  # noqa: ARG002 - the interface
        """Read brokers and topics again, unless in a task; return the view.

        Raises CoordinationError.
        """
        if self._read is not None:
            self.views.set(await self._read())
        return self.views.value
