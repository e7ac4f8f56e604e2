# SPDX-License-Identifier: Apache-2.0
"""The topics of the embedded broker: those in ZooKeeper, with their open logs.

ZooKeeper is authoritative; this is the broker's copy. The logs of a topic are open from the moment its ``state`` nodes
are written until it is deleted. Look-ups do not wait.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from consumerd.errors import ConsumerdError
from consumerd.model import BrokerId, TopicPartition

if TYPE_CHECKING:
    from consumerd.embedded.log.partition_log import PartitionLog
    from consumerd.zk.znodes import PartitionStateNode

OFFSETS_TOPIC: Final = "__consumer_offsets"
"""The topic in which the coordinator stores groups and their positions."""

TRANSACTIONS_TOPIC: Final = "__transaction_state"
"""The topic in which the coordinator stores transactional ids and their transactions."""

INTERNAL_TOPICS: Final = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC})
"""The brokers' own topics; clients may read but not write them."""


def find_collision(name: str, others: Iterable[str]) -> str | None:
    """Return a topic among ``others`` with which ``name`` collides; None without one.

    Names collide if they differ only in ``.`` and ``_``, such as ``a.b`` and ``a_b``: their metrics would have one
    name. Kafka refuses to create the second of such topics (``Topic.java``).
    """
    folded = name.replace(".", "_")
    return next((other for other in others if other != name and other.replace(".", "_") == folded), None)


class InvalidTopic(ConsumerdError):
    """Raised for a topic name that is not legal in Kafka (error 17)."""


class TopicExists(ConsumerdError):
    """Raised when a topic is created whose name exists already (error 36)."""


class InvalidPartitions(ConsumerdError):
    """Raised for a topic with less than one partition (error 37).

    Also raised if a partition is to be led by a broker that has no replica of it.
    """


class NoSuchTopic(ConsumerdError):
    """Raised when a topic is named that does not exist (error 3)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic as stored in ZooKeeper: the replicas of each partition, and its settings."""

    name: str
    replicas: Mapping[int, tuple[BrokerId, ...]]
    config: Mapping[str, str] = field(default_factory=dict)
    topic_id: uuid.UUID | None = None
    """The topic's id; a re-created topic has another one. None in releases without topic ids."""
    czxid: int = 0
    """The ZooKeeper transaction that created the topic; a re-created topic has another one."""

    @property
    def partitions(self) -> tuple[int, ...]:
        """Numbers of the topic's partitions, sorted."""
        return tuple(sorted(self.replicas))


class Topics(Protocol):
    """Interface to the topics of the embedded broker and their logs.

    Request handlers and the coordinator use it. Implemented by ``catalogue.LogCatalogue`` and
    ``node_topics.NodeTopics``.
    """

    def names(self) -> Sequence[str]:
        """Return the names of all topics, sorted."""

    def find(self, topic: str) -> Topic | None:
        """Return a topic, or None if it does not exist."""

    def logs(self) -> Collection[PartitionLog]:
        """Return the open logs of all partitions that this broker serves."""

    def find_log(self, partition: TopicPartition) -> PartitionLog | None:
        """Return a partition's open log.

        None if the partition does not exist, or this broker does not serve it.
        """

    def find_state(self, partition: TopicPartition) -> PartitionStateNode | None:
        """Return leader and in-sync replicas of a partition; None before the first leader is elected."""

    def is_follower(self, partition: TopicPartition) -> bool:
        """Return True if this broker has a replica, and does not lead the partition."""

    async def create(self, topic: str, partitions: int, config: Mapping[str, str] | None = None) -> None:
        """Create a topic; return when its logs are open.

        Raises InvalidTopic, InvalidPartitions, TopicExists, CoordinationError.
        """

    async def extend(self, topic: str, partitions: int) -> None:
        """Give a topic more partitions, ``partitions`` in all; return when their logs are open.

        Raises NoSuchTopic, InvalidPartitions, CoordinationError.
        """

    async def delete(self, topic: str) -> None:
        """Delete a topic with its records. Raises NoSuchTopic, CoordinationError."""

    def subscribe(self, changed: Callable[[frozenset[str]], None]) -> Callable[[], None]:
        """Call ``changed`` with the names of topics that are created, deleted or extended.

        ``changed`` must neither raise nor block. Returns a function that ends the subscription.
        """
