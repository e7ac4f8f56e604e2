# SPDX-License-Identifier: Apache-2.0
"""The topics as one of several brokers of a process sees them.

All brokers of the process share the :class:`~consumerd.embedded.catalogue.LogCatalogue`, and so the logs. A broker
serves only the partitions that it leads; for other partitions, it answers clients that it is not the leader.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from consumerd.embedded.catalogue import LogCatalogue
from consumerd.embedded.log.partition_log import PartitionLog
from consumerd.embedded.topics import Topic
from consumerd.model import BrokerId, TopicPartition
from consumerd.zk.znodes import PartitionStateNode


class NodeTopics:
    """The topics of ``catalogue``, as the broker ``broker_id`` serves them.

    Logs of partitions that another broker leads are hidden. Implements :class:`~consumerd.embedded.topics.Topics`.
    """

    def __init__(self, catalogue: LogCatalogue, broker_id: BrokerId) -> None:
        self._catalogue = catalogue
        self._broker_id = broker_id

    def names(self) -> Sequence[str]:
        """Return the names of all topics, sorted."""
        return self._catalogue.names()

    def find(self, topic: str) -> Topic | None:
        """Return a topic, or None if it does not exist."""
        return self._catalogue.find(topic)

    def find_log(self, partition: TopicPartition) -> PartitionLog | None:
        """Return the log of a partition if this broker leads the partition, else None."""
        state = self._catalogue.find_state(partition)
        if state is None or state.leader != self._broker_id:
            return None
        return self._catalogue.find_log(partition)

    def find_state(self, partition: TopicPartition) -> PartitionStateNode | None:
        """Return leader and in-sync replicas of a partition; None before the first leader is elected."""
        return self._catalogue.find_state(partition)

    def is_follower(self, partition: TopicPartition) -> bool:
        """Return True if this broker has a replica, and does not lead the partition."""
        state, topic = self._catalogue.find_state(partition), self._catalogue.find(partition.topic)
        if state is None or topic is None:
            return False
        return state.leader != self._broker_id and self._broker_id in topic.replicas.get(partition.partition.number, ())

    def logs(self) -> Collection[PartitionLog]:
        """Return the open logs of the partitions that this broker leads."""
        return tuple(log for log in self._catalogue.logs() if self.find_log(log.partition) is log)

    def subscribe(self, changed: Callable[[frozenset[str]], None]) -> Callable[[], None]:
        """Call ``changed`` with the names of topics that are created, deleted or extended.

        ``changed`` must neither raise nor block. Returns a function that ends the subscription.
        """
        return self._catalogue.subscribe(changed)

    async def create(self, topic: str, partitions: int, config: Mapping[str, str] | None = None) -> None:
        """Create a topic; return when its logs are open.

        Raises InvalidTopic, InvalidPartitions, TopicExists, CoordinationError.
        """
        await self._catalogue.create(topic, partitions, config)

    async def extend(self, topic: str, partitions: int) -> None:
        """Give a topic more partitions, ``partitions`` in all; return when their logs are open.

        Raises NoSuchTopic, InvalidPartitions, CoordinationError.
        """
        await self._catalogue.extend(topic, partitions)

    async def delete(self, topic: str) -> None:
        """Delete a topic with its records. Raises NoSuchTopic, CoordinationError."""
        await self._catalogue.delete(topic)
