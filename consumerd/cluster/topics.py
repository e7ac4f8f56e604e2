# SPDX-License-Identifier: Apache-2.0
"""Topics of a cluster: their names, partitions and incarnations, read once per call.

Topics are read from ZooKeeper if the settings name a ZooKeeper, otherwise from a broker by Metadata. ZooKeeper
identifies a topic by the transaction that created its node, a broker by its topic id. Neither can be derived from the
other.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from consumerd.aio.parallel import map_bounded
from consumerd.cluster.view import ClusterSource
from consumerd.model import UNKNOWN_INCARNATION, Incarnation, TopicPartition
from consumerd.zk.layout import BROKER_TOPICS, topic_path
from consumerd.zk.port import ZkClient, list_names
from consumerd.zk.registry_layout import RegistryLayout


class TopicRegistry(Protocol):
    """Source of a cluster's topics: ZooKeeper, or the brokers.

    If the source does not answer, all methods raise: CoordinationError (ZooKeeper) or ConnectionLost (brokers).
    """

    async def list_topics(self) -> set[str]:
        """Return the names of all topics."""

    async def list_partitions(self, topics: Collection[str]) -> list[TopicPartition]:
        """Return the partitions of these topics; a topic that does not exist has none."""

    async def find_incarnations(self, topics: Collection[str]) -> dict[str, Incarnation | None]:
        """Return the present identity of each topic; None for one that does not exist.

        A topic that is created again under the same name has another identity.
        """


class ZooKeeperTopics:
    """Topics as they are registered in ZooKeeper."""

    def __init__(self, zk: ZkClient, layout: RegistryLayout) -> None:
        self._zk = zk
        self._layout = layout

    async def list_topics(self) -> set[str]:
        """Return the names of all topics. Raises CoordinationError."""
        return set(await list_names(self._zk, BROKER_TOPICS))

    async def list_partitions(self, topics: Collection[str]) -> list[TopicPartition]:
        """Return the partitions of these topics; a topic that does not exist has none.

        Raises CoordinationError.
        """
        found = await map_bounded(sorted(topics), lambda topic: self._layout.read_topic(self._zk, topic))
        return [
            TopicPartition(topic, key) for topic, node in found.items() if node is not None for key in node.replicas
        ]

    async def find_incarnations(self, topics: Collection[str]) -> dict[str, Incarnation | None]:
        """Return the present identity (``czxid``) of each topic; None for one that does not exist.

        Raises CoordinationError.
        """
        stats = await map_bounded(sorted(topics), lambda topic: self._zk.exists(topic_path(topic)))
        return {topic: None if stat is None else Incarnation(stat.czxid) for topic, stat in stats.items()}


class BrokerTopics:
    """Topics as brokers tell them, by Metadata.

    Args:
        source: Reads Metadata, with the ids of topics as their incarnations.
    """

    def __init__(self, source: ClusterSource) -> None:
        self._source = source

    async def list_topics(self) -> set[str]:
        """Return the names of all topics. Raises ConnectionLost."""
        return set((await self._source.read(None)).topics)

    async def list_partitions(self, topics: Collection[str]) -> list[TopicPartition]:
        """Return the partitions of these topics; a topic that does not exist has none.

        Raises ConnectionLost.
        """
        view = await self._source.read(topics)
        return [TopicPartition(name, key) for name, topic in view.topics.items() for key in topic.partitions]

    async def find_incarnations(self, topics: Collection[str]) -> dict[str, Incarnation | None]:
        """Return the present topic id of each topic; None for one that does not exist.

        Brokers before 2.8 have no topic ids; the value is then :data:`~consumerd.model.UNKNOWN_INCARNATION`. Raises
        ConnectionLost.
        """
        known = (await self._source.read(topics)).topics if topics else {}
        return {
            topic: (known[topic].incarnation or UNKNOWN_INCARNATION) if topic in known else None
            for topic in sorted(topics)
        }
