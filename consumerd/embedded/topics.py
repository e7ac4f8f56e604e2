# SPDX-License-Identifier: Apache-2.0
"""The topics of the embedded broker: those in ZooKeeper, with their open logs.

ZooKeeper is authoritative; this is the broker's copy. The logs of a topic are open from the moment its ``state`` nodes
are written until it is deleted. Look-ups do not wait.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from consumerd.errors import ConsumerdError
from consumerd.model import BrokerId, TopicPartition

if TYPE_CHECKING:
    from consumerd.embedded.log.partition_log import PartitionLog


class InvalidTopic(ConsumerdError):
    """The name is not legal in Kafka (error 17)."""


class TopicExists(ConsumerdError):
    """A topic with this name exists already (error 36)."""


class InvalidPartitions(ConsumerdError):
    """A topic needs at least one partition (error 37)."""


class NoSuchTopic(ConsumerdError):
    """There is no topic with this name (error 3)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic as stored in ZooKeeper: replicas by partition, and its own settings."""

    name: str
    replicas: Mapping[int, tuple[BrokerId, ...]]
    config: Mapping[str, str] = field(default_factory=dict)
    czxid: int = 0
    """The transaction that created it; a re-created topic has another one."""

    @property
    def partitions(self) -> tuple[int, ...]:
        """Partition numbers, sorted."""
        return tuple(sorted(self.replicas))


class Topics(Protocol):
    """The topics, as handlers and the coordinator see them.

    Implemented by ``catalogue.LogCatalogue``.
    """

    def names(self) -> Sequence[str]:
        """Return the names of all topics, sorted."""

    def find(self, topic: str) -> Topic | None:
        """Return a topic, or None."""

    def partitions(self, topic: str) -> Sequence[int] | None:
        """Return a topic's partition numbers, sorted; None if it does not exist."""

    def logs(self) -> Collection[PartitionLog]:
        """Return the open logs."""

    def find_log(self, partition: TopicPartition) -> PartitionLog | None:
        """Return a partition's log; None if it does not exist or is not served here."""

    async def create(self, topic: str, partitions: int, config: Mapping[str, str] | None = None) -> None:
        """Create a topic; return when its logs are open.

        Raises InvalidTopic, InvalidPartitions, TopicExists, CoordinationError. Bounded by the session's calls.
        """

    async def delete(self, topic: str) -> None:
        """Delete a topic with its records. Raises NoSuchTopic, CoordinationError."""

    def subscribe(self, changed: Callable[[frozenset[str]], None]) -> Callable[[], None]:
        """Call ``changed`` with the names of topics that are created, deleted or extended.

        ``changed`` must neither raise nor block. Returns a function that ends the subscription.
        """
