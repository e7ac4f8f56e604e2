# SPDX-License-Identifier: Apache-2.0
"""Reader of one group's stored positions in ZooKeeper and in Kafka."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from consumerd.access.principal import OUR_PRINCIPAL, Principal
from consumerd.aio.parallel import map_bounded
from consumerd.cluster.topics import TopicRegistry, ZooKeeperTopics
from consumerd.errors import BrokerError, ConnectionLost, ProtocolError
from consumerd.model import Incarnation, PartitionKey, TopicPartition
from consumerd.offsets.kafka_errors import explain_kafka_error
from consumerd.offsets.positions import KeptPositions, Position, StoredEntry, read_kafka_position, read_position
from consumerd.telemetry.wording import join_shown
from consumerd.zk.layout import group_path, offset_path, offsets_path, offsets_root
from consumerd.zk.layout_modern import MODERN
from consumerd.zk.port import Stat, ZkClient, list_names

if TYPE_CHECKING:
    from consumerd.offsets.kafka import KafkaOffset, KafkaOffsets, KafkaPositions

    _Answer = tuple[Mapping[TopicPartition, KafkaOffset], str, frozenset[TopicPartition]]

_SHOWN: Final = 3
"""Partitions with unknown positions that a text names."""
_OWN_MARK: Final = "."
"""Prefix of names that are no partitions' and exist for a moment only."""


class GroupPositions:
    """Reader of one group's stored positions; each call reads them anew.

    :func:`consumerd.offsets.opening.open_positions` makes readers for an open cluster. Methods whose names and texts do
    not mention Kafka read ZooKeeper only.

    Args:
        zk: None if the cluster is used without ZooKeeper; no positions are found in ZooKeeper then.
        kafka: Reads positions in Kafka; None without brokers.
        topics: Source of the present identities of topics; None to read them from ZooKeeper.
        principal: Our identity at brokers, for advice.
    """

    def __init__(
        self,
        zk: ZkClient | None,
        group: str,
        kafka: KafkaPositions | None = None,
        *,
        topics: TopicRegistry | None = None,
        principal: Principal = OUR_PRINCIPAL,
    ) -> None:
        self._principal = principal
        self._zk = zk
        self._group = group
        self._kafka = kafka
        if topics is None:
            assert zk is not None, "without ZooKeeper, brokers tell the topics"
            topics = ZooKeeperTopics(zk, MODERN)
        self._topics = topics

    @property
    def group(self) -> str:
        """The group's id."""
        return self._group

    async def explain_absence(self) -> str | None:
        """Return a text that there is no such group; None if it exists.

        A group exists if ZooKeeper or Kafka knows it. So a misspelt name can be told from a group without positions.
        Raises CoordinationError.
        """
        if self._zk is not None and await self._zk.exists(group_path(self._group)) is not None:
            return None
        place = "Kafka has no positions of group {0!r}" if self._zk is None else "there is no group {0!r} in ZooKeeper"
        absence = place.format(self._group)
        found, unknown, _ = await self._ask_kafka(lambda kafka: kafka.find_all())
        if found:
            return None
        return f"{absence}, and it is not known if Kafka has positions of it ({unknown})" if unknown else absence

    async def list_topics(self) -> Sequence[str]:
        """Return the names of topics for which ZooKeeper holds positions. Raises CoordinationError."""
        return [] if self._zk is None else await list_names(self._zk, offsets_root(self._group))

    async def list_kafka_topics(self) -> set[str]:
        """Return the names of topics for which Kafka holds positions of the group.

        Empty if Kafka does not answer. Raises CoordinationError.
        """
        found, _, _ = await self._ask_kafka(lambda kafka: kafka.find_all())
        return {partition.topic for partition in found}

    async def list_entries(self) -> tuple[StoredEntry, ...]:
        """Return every position node in ZooKeeper.

        Nodes whose names are no partition numbers are included. Raises CoordinationError.
        """
        zk = self._zk
        if zk is None:
            return ()
        places = [
            (topic, name)
            for topic, names in (await map_bounded(await self.list_topics(), self._list_names)).items()
            for name in names
            if not name.startswith(_OWN_MARK)
        ]
        nodes = await map_bounded(places, lambda place: zk.find(f"{offsets_path(self._group, place[0])}/{place[1]}"))
        made = await self.find_incarnations({topic for topic, _ in places})
        return tuple(
            StoredEntry(
                path=f"{offsets_path(self._group, topic)}/{name}",
                topic=topic,
                partition=_parse_partition(topic, name),
                session_id=node[1].ephemeral_owner,
                position=read_position(node, made[topic]),
            )
            for (topic, name), node in nodes.items()
            if node is not None
        )

    async def read(self, topics: Iterable[str] | None = None) -> dict[TopicPartition, Position]:
        """Return every position of these topics in ZooKeeper, by default of all topics.

        Raises CoordinationError.
        """
        return await self.find(await self.list_partitions(await self.list_topics() if topics is None else topics))

    async def list_partitions(self, topics: Iterable[str]) -> list[TopicPartition]:
        """Return the partitions of these topics that have a position in ZooKeeper.

        Takes one request for each topic. Raises CoordinationError.
        """
        named = await map_bounded(sorted(set(topics)), self._list_names)
        found = [_parse_partition(topic, name) for topic, names in named.items() for name in names]
        return [partition for partition in found if partition is not None]

    async def read_kept(self, topics: Iterable[str] | None = None) -> KeptPositions:
        """Return every position of these topics in ZooKeeper and in Kafka.

        By default of all topics. If Kafka cannot be read, the result says why. Raises CoordinationError.
        """
        if topics is None:
            answer = await self._ask_kafka(lambda kafka: kafka.find_all())
            return await self._keep(answer, self.read())
        topics = sorted(set(topics))
        answer = await self._ask_kafka(lambda kafka: kafka.find_of_topics(topics))
        return await self._keep(answer, self.read(topics))

    async def may_be_in_kafka(self) -> bool:
        """Return False if the cluster has no topic ``__consumer_offsets``, so Kafka keeps no positions.

        Raises CoordinationError.
        """
        return self._kafka is not None and await self._kafka.may_have()

    async def read_in_kafka(self, topics: Collection[str]) -> KeptPositions:
        """Return every position of these topics in Kafka.

        For the partitions with a position in Kafka, the result has the positions in ZooKeeper, too. Raises
        CoordinationError.
        """
        answer = await self._ask_kafka(lambda kafka: kafka.find_of_topics(topics))
        return await self._keep(answer, self.find(answer[0].keys()))

    async def find_kept(self, partitions: Collection[TopicPartition]) -> KeptPositions:
        """Return the positions of these partitions in ZooKeeper and in Kafka.

        A partition without a position has ``Validity.ABSENT`` in ZooKeeper's positions, and is missing in Kafka's. If
        Kafka cannot be read, the result says why. Raises CoordinationError.
        """
        answer = await self._ask_kafka(lambda kafka: kafka.find(partitions))
        return await self._keep(answer, self.find(partitions))

    async def _ask_kafka(self, ask: Callable[[KafkaPositions], Awaitable[KafkaOffsets]]) -> _Answer:
        """Return positions in Kafka, why some are unknown, and the partitions refused."""
        if self._kafka is None:
            return {}, "", frozenset()
        try:
            answer = await ask(self._kafka)
        except (BrokerError, ConnectionLost, ProtocolError) as error:
            return {}, explain_kafka_error(error, self._group, self._principal), frozenset()
        failures = [
            explain_kafka_error(error, self._group, self._principal, partition.topic)
            for partition, error in answer.failures.items()
        ]
        unknown = join_shown(failures, _SHOWN)
        return answer.offsets, unknown, frozenset(answer.failures)

    async def _keep(
        self, answer: _Answer, reading: Coroutine[None, None, dict[TopicPartition, Position]]
    ) -> KeptPositions:
        """Read ZooKeeper after Kafka.

        A Java member that commits to both writes to Kafka first. So its commit between the reads is not taken for one
        to Kafka alone.
        """
        found, unknown, refused = answer
        zookeeper = await reading
        made = await self.find_incarnations({partition.topic for partition in found})
        kafka = {partition: read_kafka_position(one, made[partition.topic]) for partition, one in found.items()}
        return KeptPositions(zookeeper=zookeeper, kafka=kafka, unknown=unknown, refused=refused)

    async def find(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Position]:
        """Return the position in ZooKeeper of each of these partitions.

        A partition without a position has ``Validity.ABSENT``. Raises CoordinationError.
        """
        zk = self._zk
        nodes: Mapping[TopicPartition, tuple[bytes, Stat] | None] = (
            dict.fromkeys(sorted(partitions))
            if zk is None
            else await map_bounded(sorted(partitions), lambda partition: zk.find(offset_path(self._group, partition)))
        )
        made = await self.find_incarnations({partition.topic for partition in nodes})
        return {partition: read_position(node, made[partition.topic]) for partition, node in nodes.items()}

    async def find_incarnations(self, topics: Collection[str]) -> dict[str, Incarnation | None]:
        """Return the present incarnation of each topic, None for one that does not exist.

        Call it after the positions are read. If a topic is re-created between the two reads, its old positions then
        count as invalid; in the other order they would count as valid. Raises CoordinationError.
        """
        return await self._topics.find_incarnations(topics)

    async def _list_names(self, topic: str) -> Sequence[str]:
        return [] if self._zk is None else await list_names(self._zk, offsets_path(self._group, topic))


def _parse_partition(topic: str, name: str) -> TopicPartition | None:
    try:
        return TopicPartition(topic, PartitionKey.parse(name))
    except ValueError:
        return None  # the name is no partition's
