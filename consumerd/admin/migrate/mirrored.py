# SPDX-License-Identifier: Apache-2.0
"""Positions and offset maps of a mirror, by source partition."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from consumerd.errors import ConfigError
from consumerd.mirror.offset_map import OffsetMap
from consumerd.mirror.partition_map import MirroredLog, PartitionMap
from consumerd.mirror.records import SourceLog, StoredPosition
from consumerd.model import Incarnation, TopicPartition
from consumerd.telemetry.wording import join_shown

_SHOWN = 5


class StoredLog(Protocol):
    """State of one source log, as a mirror has stored it."""

    @property
    def stored(self) -> StoredPosition:
        """Its position, and where the records are in the target."""
        ...

    def offset_map(self) -> OffsetMap:
        """Return its offset map. Raises CorruptMessageError."""
        ...


class MirrorReader(Protocol):
    """Reads what mirrors have stored in a target cluster."""

    async def refresh(self) -> None:
        """Read what was added. Raises NotFound, BrokerError, ConnectionLost, ProtocolError, CorruptMessageError."""
        ...

    def list(self) -> Sequence[SourceLog]:
        """Return the logs that have a position."""
        ...

    def find(self, log: SourceLog) -> StoredLog | None:
        """Return what is stored of a log; None if nothing is. Raises CorruptMessageError."""
        ...


@dataclass(frozen=True, slots=True)
class MirrorId:
    """The mirror whose positions are read: its source cluster, and the group that mirrors."""

    cluster: str
    group: str


class MirroredPartitions:
    """Offset maps of one mirror, as last read.

    The groups that read a partition share its map, so a segment is decoded once for all of them.

    Args:
        reader: what mirrors have stored.
    """

    def __init__(self, reader: MirrorReader, mirror: MirrorId) -> None:
        self._reader = reader
        self._mirror = mirror
        self._logs = self._list()
        self._maps: dict[tuple[TopicPartition, Incarnation], PartitionMap | None] = {}

    def _list(self) -> Mapping[tuple[str, str], list[SourceLog]]:
        found = defaultdict[tuple[str, str], list[SourceLog]](list)
        for log in self._reader.list():
            if (log.cluster, log.group) == (self._mirror.cluster, self._mirror.group):
                found[log.topic, log.partition].append(log)
        return found

    @property
    def topics(self) -> frozenset[str]:
        """Source topics that are mirrored."""
        return frozenset(topic for topic, _ in self._logs)

    @property
    def partitions(self) -> list[tuple[str, str]]:
        """Topic and partition, as texts, of each source partition that is mirrored."""
        return sorted(self._logs)

    async def refresh(self) -> None:
        """Read what the mirror has stored meanwhile."""
        await self._reader.refresh()
        self._logs = self._list()
        self._maps.clear()

    def require(self) -> None:
        """Raise ConfigError, with the mirrors that are there, if the mirror has stored nothing."""
        if self._logs:
            return
        others = sorted({f"{log.group} of cluster {log.cluster}" for log in self._reader.list()})
        there = f"; those that have: {join_shown(others, _SHOWN)}" if others else ""
        raise ConfigError(
            f"mirror {self._mirror.group} of cluster {self._mirror.cluster} has stored no position in the target{there}"
            ". Start it, or name another one by --mirror-group"
        )

    def find_goal(self, partition: TopicPartition, offsets: PartitionMap | None) -> TopicPartition | None:
        """Return the target partition of a partition; None if its topic is not mirrored.

        A partition that the mirror has not opened yet has no position. The other partitions of its topic name the
        target's topic.

        Args:
            offsets: the partition's offset map; None if it has none.
        """
        if offsets is not None:
            return TopicPartition.modern(offsets.stored.target_topic, offsets.stored.target_partition)
        if partition.is_legacy:
            return None
        for (topic, _), logs in self._logs.items():
            if topic == partition.topic and (state := self._reader.find(logs[-1])) is not None:
                return TopicPartition.modern(state.stored.target_topic, partition.partition.number)
        return None

    def find(self, partition: TopicPartition, incarnation: Incarnation | None) -> PartitionMap | None:
        """Return the offset map of a partition; None without a stored position.

        Logs of a deleted topic of the same name are left out.

        Args:
            incarnation: the topic's present one; None if it does not exist.

        Raises CorruptMessageError.
        """
        if incarnation is None:
            return None
        key = (partition, incarnation)
        if key not in self._maps:
            self._maps[key] = self._join_logs(partition, incarnation)
        return self._maps[key]

    def _join_logs(self, partition: TopicPartition, incarnation: Incarnation) -> PartitionMap | None:
        found = list[tuple[int, MirroredLog]]()
        for log in self._logs.get((partition.topic, str(partition.partition)), ()):
            of_log = Incarnation.parse(log.incarnation)
            if of_log.is_same_topic(incarnation) and (state := self._reader.find(log)) is not None:
                found.append((of_log.truncation, MirroredLog(log, state.stored, state.offset_map())))
        if not found:
            return None
        logs = [log for _, log in sorted(found, key=lambda one: one[0])]
        # a mirror that was given another topic of the target has begun anew there
        newest = logs[-1].stored
        place = (newest.target_topic, newest.target_partition)
        here = [one for one in logs if (one.stored.target_topic, one.stored.target_partition) == place]
        return PartitionMap(_carry_ends(here))


def _carry_ends(logs: Sequence[MirroredLog]) -> list[MirroredLog]:
    """Return logs whose target ends never lie before that of the log before.

    A log that was begun by an operator's request may have none of its own yet.
    """
    carried, end = list[MirroredLog](), 0
    for log in logs:
        stored = log.stored
        if not log.has_records and stored.target < end:
            stored = replace(stored, target=end)
            carried.append(MirroredLog(log.log, stored, OffsetMap([], stored.position)))
        else:
            carried.append(log)
        end = stored.target
    return carried
