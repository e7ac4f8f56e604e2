# SPDX-License-Identifier: Apache-2.0
"""Reader of a group's stored positions, and judge of their validity.

A position outlives its topic: deleting a topic leaves ``/consumers/G/offsets/T`` alone. A topic created again under the
same name starts at offset 0, so the old position would skip its first records.

Example: the group commits 1000 (transaction 14), the topic is deleted and created again (``czxid`` 64) and gets 1500
records. The position 1000 was written before 64, so it is of another incarnation. The group's lag is 1500, not 500.

:func:`consumerd.offsets.store.judge` alone decides this. Other modules ask for a :class:`Position`, or for its verdict.
If a group has positions in ZooKeeper and in Kafka, :meth:`KeptPositions.find_counting` says from which of the two a
consumer goes on.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from consumerd.model import Incarnation, TopicPartition
from consumerd.offsets.commit_metadata import parse_metadata
from consumerd.offsets.store import (
    ZOOKEEPER_ONLY,
    Place,
    PositionToken,
    StoredOffset,
    Validity,
    is_believed,
    is_larger,
    judge,
)
from consumerd.zk.port import Stat
from consumerd.zk.znodes import MalformedZnode, parse_offset

if TYPE_CHECKING:
    from consumerd.offsets.kafka import KafkaOffset

_OF_UNKNOWN_AGE: Final = "position of unknown age: it may be of a deleted topic of the same name"


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """One partition's stored position, with the verdict whether it can be used.

    Attributes:
        value: The number as it is stored, valid or not. None if no number is stored.
        validity: The verdict about ``value``.
        place: The store that holds it, ZooKeeper or Kafka.
        when_ms: When it was written, in ms since the epoch. None without a position, and in Kafka, which does not tell.
        token: The store's identity of the write. None without a position.
        incarnation: The topic's present identity. None if the topic does not exist.
        text: The stored text if it is no number; else empty.
        metadata: The text that was committed with the position, in Kafka.
    """

    value: int | None
    validity: Validity
    place: Place = Place.ZOOKEEPER
    when_ms: int | None = None
    token: PositionToken | None = None
    incarnation: Incarnation | None = None
    text: str = ""
    metadata: str = ""

    @property
    def valid(self) -> int | None:
        """The position if it certainly belongs to the present topic, else None."""
        return self.value if self.validity is Validity.VALID else None

    @property
    def believed(self) -> int | None:
        """The offset from which a consumer goes on; None if no position can be used.

        It is :attr:`valid`, or a position in Kafka that another client committed: Kafka does not tell if such a
        position is older than the topic.
        """
        return self.value if is_believed(self.validity, self.incarnation) else None

    @property
    def malformed(self) -> bool:
        """True if the topic exists and its stored position is not a number."""
        return self.validity is Validity.MALFORMED

    def explain(self) -> str:
        """Return why the position cannot be used; empty if it can."""
        match self.validity:
            case Validity.VALID:
                return ""
            case Validity.ANOTHER_INCARNATION:
                held = repr(self.text)[:60] if self.value is None else self.value
                return f"position {held} is of a deleted topic of the same name: written before this one was created"
            case Validity.UNKNOWN_AGE:
                return "topic deleted" if self.incarnation is None else _OF_UNKNOWN_AGE
            case Validity.MALFORMED:
                return f"offset: expected a number from 0 on, got {self.text!r:.60}"
            case Validity.ABSENT:
                return "no position yet"


NO_POSITION: Final = Position(value=None, validity=Validity.ABSENT)
"""The position of a partition that the group has never committed."""
_NONE_IN_KAFKA: Final = Position(value=None, validity=Validity.ABSENT, place=Place.KAFKA)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEntry:
    """One stored position, and the ZooKeeper node or Kafka record that holds it.

    Attributes:
        path: Place of the position, as operators are told: the path of the node.
        partition: The partition; None if the node's name is no partition number.
        session_id: The ZooKeeper session with which the node ends; 0 if the node is persistent.
    """

    path: str
    topic: str
    partition: TopicPartition | None
    session_id: int
    position: Position


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetNodeToken:
    """Identity of one write of an offset node in ZooKeeper.

    Args:
        mzxid: The ZooKeeper transaction that wrote the node.
        version: The node's version after that write.
    """

    mzxid: int
    version: int

    @property
    def mark(self) -> int:
        """Id of the ZooKeeper transaction that wrote the position.

        If an unclean leader election cuts the log below the position, the record of that truncation names the position
        by this number.
        """
        return self.mzxid

    def is_newer_than(self, incarnation: Incarnation) -> bool:
        """Return True if the position was written after the topic's node was created.

        The transactions of both are compared: ``mzxid`` of the offset node, and the ``czxid`` in ``incarnation``.
        """
        return incarnation.precedes(self.mzxid)


def node_version(position: Position) -> int | None:
    """Return the version of the ZooKeeper node that holds the position.

    None if no node does.
    """
    return position.token.version if isinstance(position.token, OffsetNodeToken) else None


def parse_stored(data: bytes, stat: Stat) -> StoredOffset:
    """Return the position in an offset node of ZooKeeper.

    Content other than a number of 0 or more makes it a malformed position.
    """
    try:
        position = parse_offset(data)
    except MalformedZnode:
        position = -1
    malformed = data.decode(errors="replace") if position < 0 else None
    token = OffsetNodeToken(mzxid=stat.mzxid, version=stat.version)
    return StoredOffset(position=max(position, -1), token=token, malformed=malformed)


def read_position(node: tuple[bytes, Stat] | None, incarnation: Incarnation | None) -> Position:
    """Return the position in an offset node of ZooKeeper, with its validity.

    Args:
        node: The node's data and stat; None if there is no node.
        incarnation: The topic's present incarnation; None if the topic does not exist.
    """
    if node is None:
        return Position(value=None, validity=Validity.ABSENT, incarnation=incarnation)
    data, stat = node
    stored = parse_stored(data, stat)
    return Position(
        value=None if stored.malformed is not None else stored.position,
        validity=judge(stored, incarnation),
        when_ms=stat.mtime_ms,
        token=stored.token,
        incarnation=incarnation,
        text=stored.malformed or "",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaOffsetToken:
    """Identity of one commit of a position to Kafka: its offset and its metadata."""

    offset: int
    metadata: str

    @property
    def mark(self) -> int:
        """Number that identifies this commit in the record of a truncated log.

        If an unclean leader election cuts the log below the position, the record of that truncation names the position
        by this number. Commits of one offset with equal metadata have equal numbers; consumerd's own commits always
        differ in their metadata.
        """
        return zlib.crc32(f"{self.offset} {self.metadata}".encode()) + 1

    def is_newer_than(self, incarnation: Incarnation) -> bool | None:
        """Return True if the position was committed for this incarnation of the topic.

        The metadata of the commit name an incarnation, which is compared for equality; positions in ZooKeeper are
        compared by transaction ids, hence the method's name. False if it was committed for another incarnation. None if
        that is unknown: another client has committed the position, or the commit identifies the topic by its czxid and
        ``incarnation`` by its topic id, or the other way round.
        """
        text = parse_metadata(self.metadata)
        if text is None or not incarnation.is_known or not text.incarnation.is_known:
            return None
        if bool(text.incarnation.topic_id) is not bool(incarnation.topic_id):
            return None
        return text.incarnation.is_same_topic(incarnation)


def parse_kafka_offset(found: KafkaOffset) -> StoredOffset:
    """Return a position in Kafka as a :class:`~consumerd.offsets.store.StoredOffset`, with its identity."""
    return StoredOffset(position=found.offset, token=KafkaOffsetToken(offset=found.offset, metadata=found.metadata))


def read_kafka_position(found: KafkaOffset, incarnation: Incarnation | None) -> Position:
    """Return a position in Kafka, with its validity.

    Args:
        incarnation: The topic's present incarnation; None if the topic does not exist.
    """
    stored = parse_kafka_offset(found)
    return Position(
        value=stored.position,
        validity=judge(stored, incarnation),
        place=Place.KAFKA,
        token=stored.token,
        incarnation=incarnation,
        metadata=found.metadata,
    )


_FOR_WHOM: Final = (
    "members with offsets.storage: zookeeper go on at those in ZooKeeper; with kafka, at the larger of both; with dual "
    "commits off, at those in Kafka"
)
IN_BOTH: Final = f"the group has positions in ZooKeeper and in Kafka: {_FOR_WHOM}"
"""Text for operators that says which members use positions in ZooKeeper, and which those in Kafka."""
IN_KAFKA: Final = f"the group has positions in Kafka only: {_FOR_WHOM}"
IN_ZOOKEEPER: Final = f"the group has positions in ZooKeeper only: {_FOR_WHOM}"


def describe_places(places: Collection[Place]) -> str:
    """Return a text that says which stored positions consumerd uses, and by which settings.

    Args:
        places: The stores that the settings name: ZooKeeper, Kafka, or both.
    """
    if Place.KAFKA not in places:
        return "those in ZooKeeper (offsets.storage: zookeeper)"
    if Place.ZOOKEEPER in places:
        return "the larger of both (offsets.storage: kafka)"
    return "those in Kafka (offsets.storage: kafka, offsets.dual_commit: false)"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptPositions:
    """Positions of a group in ZooKeeper and in Kafka.

    Example: ZooKeeper holds 200 for ``orders/0``, and 300 is committed to Kafka. Members that read both go on at 300.
    Members that read only ZooKeeper go on at 200, and would deliver 200 to 299 again. :meth:`find_ahead` names the
    partition.

    Attributes:
        zookeeper: Positions in ZooKeeper, as :class:`consumerd.offsets.group_positions.GroupPositions` returns them.
        kafka: Positions in Kafka; a partition without a position is missing.
        unknown: The reason why some or all positions in Kafka are unknown; empty if all are known.
        refused: Partitions whose positions the coordinator did not tell, while it told those of other partitions.
    """

    zookeeper: Mapping[TopicPartition, Position]
    kafka: Mapping[TopicPartition, Position] = field(default_factory=dict)
    unknown: str = ""
    refused: Collection[TopicPartition] = frozenset()

    def find_counting(self, partition: TopicPartition, places: Collection[Place] = ZOOKEEPER_ONLY) -> Position:
        """Return the position from which members that read these stores go on.

        If members read both ZooKeeper and Kafka, it is the larger position of those that belong to the present topic.
        """
        zookeeper = self.zookeeper.get(partition, NO_POSITION)
        kafka = self.kafka.get(partition, _NONE_IN_KAFKA)
        if Place.KAFKA not in places:
            return zookeeper
        if Place.ZOOKEEPER not in places:
            return kafka
        is_absent = zookeeper.validity is Validity.ABSENT and kafka.validity is not Validity.ABSENT
        return kafka if is_absent or is_ahead(kafka, zookeeper) else zookeeper

    def find_token(self, partition: TopicPartition, places: Collection[Place] = ZOOKEEPER_ONLY) -> PositionToken | None:
        """Return the identity of the position from which members go on; None without a position.

        Args:
            places: The stores that the members read: ZooKeeper, Kafka, or both.
        """
        return self.find_counting(partition, places).token

    def is_unknown(self, partition: TopicPartition, places: Collection[Place]) -> bool:
        """Return True if members may have to go on from a position that is unknown.

        That is so if all three are true: the members read Kafka, Kafka has not told this partition's position, and
        ZooKeeper has no position that they can use.

        Args:
            places: The stores that the members read: ZooKeeper, Kafka, or both.
        """
        is_told = Place.KAFKA not in places or self.is_told(partition)
        return not is_told and self.find_counting(partition, places).believed is None

    def is_told(self, partition: TopicPartition) -> bool:
        """Return True if Kafka has told this partition's position, or that there is none."""
        return partition not in self.refused and not (self.unknown and not self.refused)

    def find_ahead(self) -> dict[TopicPartition, Position]:
        """Return the positions in Kafka that are larger than those in ZooKeeper.

        Included are positions in Kafka of partitions without a valid position in ZooKeeper.
        """
        return {
            partition: position
            for partition, position in sorted(self.kafka.items())
            if position.believed is not None and is_ahead(position, self.zookeeper.get(partition, NO_POSITION))
        }

    def find_behind(self) -> dict[TopicPartition, Position]:
        """Return the positions in ZooKeeper that are larger than those in Kafka.

        Included are positions in ZooKeeper of partitions without a valid position in Kafka. Partitions whose positions
        in Kafka are unknown are left out.
        """
        return {
            partition: position
            for partition, position in sorted(self.zookeeper.items())
            if self.is_told(partition) and is_larger(position.valid, self.kafka.get(partition, _NONE_IN_KAFKA).believed)
        }

    def explain_places(self, places: Collection[Place] = ZOOKEEPER_ONLY) -> str:
        """Return a text for operators: which members use which stored positions.

        Empty if Kafka has no positions of the group, and the members do not read it.

        Args:
            places: The stores that the settings name: ZooKeeper, Kafka, or both.
        """
        in_zookeeper = any(one.value is not None for one in self.zookeeper.values())
        if self.kafka:
            kept = IN_BOTH if in_zookeeper else IN_KAFKA
        elif in_zookeeper and Place.KAFKA in places and not self.unknown:
            kept = IN_ZOOKEEPER
        else:
            return ""
        return f"{kept}. Here count {describe_places(places)}"


NOTHING_KEPT: Final = KeptPositions(zookeeper={})
"""The positions of a group that has none in ZooKeeper and none in Kafka."""


def is_ahead(kafka: Position, zookeeper: Position) -> bool:
    """Return True if Kafka's position is larger than ZooKeeper's, or ZooKeeper has no valid one.

    False if Kafka has no position that can be used.
    """
    return is_larger(kafka.believed, zookeeper.valid)


def find_outrun(kept: KeptPositions, places: Collection[Place]) -> Mapping[TopicPartition, Position]:
    """Return the positions of the store that members do not read, if larger.

    Example: members read ZooKeeper, which holds 200; Kafka holds 300. The result has 300.

    Args:
        places: The stores that the members read. If they read both, the result is empty.
    """
    if len(places) > 1:
        return {}
    return kept.find_behind() if Place.KAFKA in places else kept.find_ahead()


def describe_ahead(partition: TopicPartition, counting: Position, other: Position) -> str:
    """Return a text with both positions, as ``orders/0 (300 in Kafka, 200 in ZooKeeper)``.

    Args:
        counting: The position that members read.
        other: The larger position, in the store that members do not read.
    """
    place = counting.place.label
    if counting.believed is not None:
        there = f"{counting.believed} in {place}"
    elif counting.validity is Validity.ABSENT:
        there = f"none in {place}"
    else:
        there = f"none that counts in {place}: {counting.explain()}"
    return f"{partition} ({other.value} in {other.place.label}, {there})"
