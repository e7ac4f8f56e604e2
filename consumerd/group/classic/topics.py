# SPDX-License-Identifier: Apache-2.0
"""Port through which a broker-coordinated member reads topics, and its implementation over ZooKeeper.

The coordinator knows members and assignments, but no topics. The member needs the names to match patterns, the
partitions to assign them as leader, and the incarnations for its claims. :class:`FollowedZooKeeperTopics` reads all of
them from ``/brokers/topics``. ``metadata_topics`` asks the brokers of a cluster without ZooKeeper.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from consumerd.aio.parallel import map_bounded
from consumerd.model import Incarnation
from consumerd.zk.layout import BROKER_TOPICS
from consumerd.zk.port import Watch, WatchKind, ZkClient, list_names
from consumerd.zk.registry_layout import RegistryLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownTopic:
    """A topic that exists, with its number of partitions.

    Attributes:
        incarnation: identity of the topic; a topic that is created again under the same name has another one.
        partitions: number of partitions; 0 if it is unknown.
        problem: why the number of partitions is unknown; None if it is known.
    """

    incarnation: Incarnation
    partitions: int
    problem: str | None = None


class GroupTopics(Protocol):
    """Port to the cluster's topics, for a member that a broker coordinates."""

    async def list_names(self) -> frozenset[str]:
        """Return the names of all topics. Raises CoordinationError."""

    async def find(self, topics: Collection[str]) -> Mapping[str, KnownTopic | None]:
        """Return each of these topics; None for one that does not exist. Raises CoordinationError."""

    def follow(self, topics: Collection[str], *, names: bool, changed: Callable[[], None]) -> None:
        """Call ``changed`` after each change of these topics, from now on.

        Topics of an earlier call are followed no longer.

        Args:
            names: True to call ``changed`` also when any topic is created or deleted in the cluster.
            changed: Returns at once. Spurious calls are possible, missed ones are not.
        """

    def close(self) -> None:
        """Stop calling the function that was given to :meth:`follow`. Idempotent."""


class FollowedZooKeeperTopics:
    """The topics that are registered in ZooKeeper, followed by watches."""

    def __init__(self, zk: ZkClient, layout: RegistryLayout) -> None:
        self._zk = zk
        self._layout = layout
        self._watches: dict[tuple[str, WatchKind], Watch] = {}

    async def list_names(self) -> frozenset[str]:
        """Return the names of all topics. Raises CoordinationError."""
        return frozenset(await list_names(self._zk, BROKER_TOPICS))

    async def find(self, topics: Collection[str]) -> Mapping[str, KnownTopic | None]:
        """Return each of these topics; None for one that does not exist. Raises CoordinationError.

        Sends one request for each topic.
        """
        return await map_bounded(sorted(topics), self._find)

    async def _find(self, topic: str) -> KnownTopic | None:
        node = await self._layout.read_topic(self._zk, topic)
        if node is None:
            return None
        return KnownTopic(incarnation=node.incarnation, partitions=len(node.replicas), problem=node.problem)

    def follow(self, topics: Collection[str], *, names: bool, changed: Callable[[], None]) -> None:
        """Call ``changed`` after each change of these topics, from now on.

        Topics of an earlier call are followed no longer.

        Args:
            names: True to call ``changed`` also when any topic is created or deleted in the cluster.
            changed: Returns at once. Spurious calls are possible, missed ones are not.
        """
        wanted = {(path, kind) for topic in topics for path, kind in self._layout.topic_watches(topic).items()}
        if names:
            wanted.add((BROKER_TOPICS, WatchKind.CHILDREN))
        for key in self._watches.keys() - wanted:
            self._watches.pop(key).close()
        for path, kind in sorted(wanted - self._watches.keys(), key=str):
            self._watches[path, kind] = self._zk.watch(path, kind, changed)

    def close(self) -> None:
        """Close all watches: no change is reported any more."""
        for watch in self._watches.values():
            watch.close()
        self._watches.clear()
