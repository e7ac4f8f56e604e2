# SPDX-License-Identifier: Apache-2.0
"""The topics of the embedded broker: what ZooKeeper says there is, as open logs.

ZooKeeper is the truth; this is what the broker has made of it. The logs of a topic are open from the moment its
``state`` nodes are written until it is deleted. Callers look things up without waiting.
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
    """A name that Kafka does not allow (error 17)."""


class TopicExists(ConsumerdError):
    """There is a topic of this name already (error 36)."""


class InvalidPartitions(ConsumerdError):
    """A topic needs one partition at least (error 37)."""


class NoSuchTopic(ConsumerdError):
    """There is no topic of this name (error 3)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic as ZooKeeper has it: replicas by partition, and its own settings, in Kafka's words."""

    name: str
    replicas: Mapping[int, tuple[BrokerId, ...]]
    config: Mapping[str, str] = field(default_factory=dict)
    czxid: int = 0
    """The transaction that made it: a topic that is deleted and made again has another one."""

    @property
    def partitions(self) -> tuple[int, ...]:
        """Partitions in numerical order."""
        return tuple(sorted(self.replicas))


class Topics(Protocol):
    """What handlers and the coordinator see; the implementation is ``catalogue.LogCatalogue``."""

    def names(self) -> Sequence[str]:
        """Return the names of the topics, sorted."""

    def find(self, topic: str) -> Topic | None:
        """Return a topic."""

    def partitions(self, topic: str) -> Sequence[int] | None:
        """Return a topic's partitions, sorted; None where there is no such topic."""

    def logs(self) -> Collection[PartitionLog]:
        """Return the logs that are open now."""

    def find_log(self, partition: TopicPartition) -> PartitionLog | None:
        """Return a partition's log; None where there is no such partition, or it is not (yet, or any more) served here."""

    async def create(self, topic: str, partitions: int, config: Mapping[str, str] | None = None) -> None:
        """Create a topic, and return when its logs are open.

        Raises InvalidTopic, InvalidPartitions, TopicExists, CoordinationError. Bounded by the session's calls.
        """

    async def delete(self, topic: str) -> None:
        """Delete a topic with its records, and return when it is gone. Raises NoSuchTopic, CoordinationError."""

    def subscribe(self, changed: Callable[[frozenset[str]], None]) -> Callable[[], None]:
        """Call back with the names of topics that came, went or grew; return what ends it. Must not raise nor block."""
