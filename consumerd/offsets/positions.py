# SPDX-License-Identifier: Apache-2.0
"""Reads a group's positions, and says which of them belong to today's topics.

A position outlives its topic: deleting a topic leaves ``/consumers/G/offsets/T`` alone. A topic created again under the same
name starts at offset 0, so the old position would skip its first records. Example: the group commits 1000 (transaction
14), the topic is deleted and created again (``czxid`` 64) and gets 1500 records. The position 1000 was written before
64, so it is of another incarnation; the group's lag is 1500, not 500.

:func:`consumerd.offsets.store.judge` alone decides this. Other modules ask for a :class:`Position`, or for its verdict.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from consumerd.aio.parallel import map_bounded
from consumerd.model import Incarnation, PartitionKey, TopicPartition
from consumerd.offsets.store import StoredOffset, Validity, judge
from consumerd.zk.layout import offset_path, offsets_path, offsets_root, topic_path
from consumerd.zk.listing import list_names
from consumerd.zk.port import Stat, ZkClient
from consumerd.zk.znodes import MalformedZnode, parse_offset


class Place(enum.Enum):
    """Where a position is stored; the values are shown."""

    ZOOKEEPER = "zookeeper"


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """One partition's stored position.

    Attributes:
        value: The number as it is stored, valid or not. None where there is no number.
        validity: Whether ``value`` can be used.
        place: Where it is stored.
        when_ms: When it was written, in ms since the epoch. None where it is absent.
        version: The node's version, for a conditional write. None where it is absent.
        incarnation: Today's incarnation of the topic. None where the topic does not exist.
        text: The node's text where it is malformed.
    """

    value: int | None
    validity: Validity
    place: Place = Place.ZOOKEEPER
    when_ms: int | None = None
    version: int | None = None
    incarnation: Incarnation | None = None
    text: str = ""

    @property
    def valid(self) -> int | None:
        """The position if it can be used, else None."""
        return self.value if self.validity is Validity.VALID else None

    @property
    def malformed(self) -> bool:
        """True if today's topic has a position that is no number."""
        return self.validity is Validity.MALFORMED

    def explain(self) -> str:
        """Say why the position cannot be used; empty where it can."""
        match self.validity:
            case Validity.VALID:
                return ""
            case Validity.ANOTHER_INCARNATION:
                held = repr(self.text)[:60] if self.value is None else self.value
                return f"position {held} is of a deleted topic of the same name: written before this one was created"
            case Validity.UNKNOWN_AGE:
                return "topic deleted"
            case Validity.MALFORMED:
                return f"offset: expected a number from 0 on, got {self.text!r:.60}"
            case Validity.ABSENT:
                return "no position yet"


NO_POSITION: Final = Position(value=None, validity=Validity.ABSENT)
"""The position of a partition that the group has never committed."""


def parse_stored(data: bytes, stat: Stat) -> StoredOffset:
    """Read an offset node. One without a number from 0 on is malformed."""
    try:
        position = parse_offset(data)
    except MalformedZnode:
        position = -1
    malformed = data.decode(errors="replace") if position < 0 else None
    return StoredOffset(position=max(position, -1), mzxid=stat.mzxid, version=stat.version, malformed=malformed)


def read_position(node: tuple[bytes, Stat] | None, incarnation: Incarnation | None) -> Position:
    """Return the position that an offset node holds, judged by the topic's incarnation."""
    if node is None:
        return Position(value=None, validity=Validity.ABSENT, incarnation=incarnation)
    data, stat = node
    stored = parse_stored(data, stat)
    return Position(
        value=None if stored.malformed is not None else stored.position,
        validity=judge(stored, incarnation),
        when_ms=stat.mtime_ms,
        version=stat.version,
        incarnation=incarnation,
        text=stored.malformed or "",
    )


class GroupPositions:
    """The stored positions of one group, read once per call."""

    def __init__(self, zk: ZkClient, group: str) -> None:
        self._zk = zk
        self._group = group

    async def read(self, topics: Iterable[str] | None = None) -> dict[TopicPartition, Position]:
        """Return every stored position of these topics, or of all topics. Raises CoordinationError."""
        if topics is None:
            topics = await list_names(self._zk, offsets_root(self._group))
        named = await map_bounded(sorted(set(topics)), self._list_partitions)
        return await self.find([partition for partitions in named.values() for partition in partitions])

    async def find(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Position]:
        """Return the position of each of these partitions, absent ones too. Raises CoordinationError."""
        nodes = await map_bounded(
            sorted(partitions), lambda partition: self._zk.find(offset_path(self._group, partition))
        )
        # topics after positions: a topic created again in between makes an old position invalid, never a valid one old
        stats = await map_bounded(
            sorted({partition.topic for partition in nodes}), lambda topic: self._zk.exists(topic_path(topic))
        )
        made = {topic: None if stat is None else Incarnation(stat.czxid) for topic, stat in stats.items()}
        return {partition: read_position(node, made[partition.topic]) for partition, node in nodes.items()}

    async def _list_partitions(self, topic: str) -> list[TopicPartition]:
        partitions = []
        for name in await list_names(self._zk, offsets_path(self._group, topic)):
            try:
                partitions.append(TopicPartition(topic, PartitionKey.parse(name)))
            except ValueError:
                continue  # the name is no partition's
        return partitions
