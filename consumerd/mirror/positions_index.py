# SPDX-License-Identifier: Apache-2.0
"""Positions, offset maps and assignments of a positions topic, in memory. Pure.

:class:`PositionsIndex` takes committed records in the order of the log, and keeps the last value of each key. Records
behind the last stable offset are in its *tail*: those of a transaction that has committed there count as well, though
an older transaction of another producer is still open. The tail is built anew by each read.

Memory: keys and encoded values. With ``whole_maps=False`` only the last segment of each map is kept, and the first
target offset of the others: 1,000 logs take some 10 MB then.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from consumerd.errors import CorruptMessageError
from consumerd.mirror.offset_map import NotMirrored, OffsetMap
from consumerd.mirror.records import (
    AssignmentKey,
    Key,
    PositionKey,
    SegmentKey,
    SourceLog,
    SourcePartition,
    StoredAssignment,
    StoredPosition,
    decode_assignment,
    decode_key,
    decode_position,
)
from consumerd.mirror.segment import read_starts

_REMOVED: Final = -1
"""Start of a segment that is not there."""

Change = tuple[Key, bytes | None]
"""A record of the topic: its key, and its value; None removes the key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorState:
    """Stored position and map of one source log.

    Attributes:
        partition: partition of the positions topic that has it.
        segments: encoded segments of the map by number; only the last one if the index does not keep whole maps.
        lowest_segment: number of the lowest segment in the topic. Below ``stored.first_segment`` they are not needed
            any more, and are removed by and by.
        target_starts: first target offset of each segment from ``lowest_segment`` on; -1 for one that is not there.
    """

    log: SourceLog
    stored: StoredPosition
    partition: int
    segments: Mapping[int, bytes]
    lowest_segment: int
    target_starts: Sequence[int]

    def offset_map(self) -> OffsetMap:
        """Return the map of the log.

        Raises CorruptMessageError if a segment is not there: the topic has lost records, or the index keeps no whole
        maps. Raises NotMirrored if records were distributed by their keys, so that there is no map.
        """
        if not self.stored.is_mapped:
            raise NotMirrored(f"{self.log.source}: records were distributed by their keys, so there is no offset map")
        numbers = range(self.stored.first_segment, self.stored.last_segment + 1)
        missing = [number for number in numbers if number not in self.segments]
        if missing:
            raise CorruptMessageError(f"{self.log}: segment {missing[0]} of the offset map is missing")
        return OffsetMap([self.segments[number] for number in numbers], self.stored.position)


@dataclass(slots=True)
class _Entry:
    """Values of one log."""

    partition: int
    position: bytes | None = None
    segments: dict[int, bytes] = field(default_factory=dict)
    lowest: int = 0
    starts: array[int] = field(default_factory=lambda: array("q"))

    def copy(self) -> _Entry:
        return _Entry(self.partition, self.position, dict(self.segments), self.lowest, self.starts[:])

    def take(self, key: PositionKey | SegmentKey, value: bytes | None, *, whole: bool) -> None:
        if isinstance(key, PositionKey):
            self.position = value
            if value is not None:
                stored = decode_position(value)
                first = stored.first_segment if whole else max(stored.first_segment, stored.last_segment)
                for number in [one for one in self.segments if one < first]:
                    del self.segments[number]
        elif value is None:
            self.segments.pop(key.number, None)
            self._note_start(key.number, _REMOVED)
        else:
            self.segments[key.number] = value
            self._note_start(key.number, read_starts(value)[1])

    def _note_start(self, number: int, start: int) -> None:
        starts = self.starts
        if not starts:
            self.lowest = number
        if number < self.lowest:
            starts[:0] = array("q", [_REMOVED]) * (self.lowest - number)
            self.lowest = number
        place = number - self.lowest
        if place >= len(starts):
            starts.extend([_REMOVED] * (place + 1 - len(starts)))
        starts[place] = start
        removed = 0
        while removed < len(starts) and starts[removed] == _REMOVED:
            removed += 1
        del starts[:removed]
        self.lowest += removed


class PositionsTail:
    """Committed records behind the last stable offset of one partition of the topic.

    Args:
        partition: partition of the positions topic.
    """

    def __init__(self, partition: int) -> None:
        self.partition: Final = partition
        self._open: dict[int, list[Change]] = defaultdict(list)
        self._committed: dict[SourceLog, list[Change]] = defaultdict(list)
        self._logs: dict[SourcePartition, set[SourceLog]] = defaultdict(set)
        self._assignments: dict[AssignmentKey, bytes | None] = {}

    def add(self, producer_id: int | None, records: Iterable[tuple[bytes | None, bytes | None]]) -> None:
        """Add the keys and values of a batch.

        Args:
            producer_id: producer of the transaction that has them; None outside of transactions.

        Raises CorruptMessageError for a key that cannot be read.
        """
        changes = list(_read_keys(records))
        if producer_id is None:
            self._commit(changes)
        else:
            self._open[producer_id] += changes

    def end(self, producer_id: int, *, commits: bool) -> None:
        """Note the marker that ends a producer's transaction."""
        changes = self._open.pop(producer_id, [])
        if commits:
            self._commit(changes)

    def _commit(self, changes: Iterable[Change]) -> None:
        for key, value in changes:
            if isinstance(key, AssignmentKey):
                self._assignments[key] = value
            else:
                self._committed[key.log].append((key, value))
                self._logs[key.log.source].add(key.log)

    def changes_of(self, log: SourceLog) -> Sequence[Change]:
        """Return the committed records of a log, in their order."""
        return self._committed.get(log, ())

    @property
    def logs(self) -> Mapping[SourcePartition, Collection[SourceLog]]:
        """Logs with committed records, by source partition."""
        return self._logs

    @property
    def assignments(self) -> Mapping[AssignmentKey, bytes | None]:
        """Committed assignments, encoded; None for one that is removed."""
        return self._assignments


class PositionsIndex:
    """Last committed values of a mirror's positions topic.

    Args:
        keeps: returns True for logs to keep; None for all.
        whole_maps: True to keep all segments of the maps.
    """

    def __init__(self, *, keeps: Callable[[SourceLog], bool] | None = None, whole_maps: bool = True) -> None:
        self._keeps = keeps
        self._whole = whole_maps
        self._entries: dict[SourceLog, _Entry] = {}
        self._logs: dict[SourcePartition, set[SourceLog]] = defaultdict(set)
        self._assignments: dict[AssignmentKey, tuple[int, bytes]] = {}
        self._tails: dict[int, PositionsTail] = {}

    def add(self, partition: int, records: Iterable[tuple[bytes | None, bytes | None]]) -> None:
        """Add keys and values of committed records, in the order of the log.

        Args:
            partition: partition of the positions topic.

        Raises CorruptMessageError for a key or value that cannot be read.
        """
        for key, value in _read_keys(records):
            if isinstance(key, AssignmentKey):
                self._assignments.pop(key, None)
                if value is not None:
                    self._assignments[key] = (partition, value)
            elif self._keeps is None or self._keeps(key.log):
                self._logs[key.log.source].add(key.log)
                self._take(self._entries, key, value, partition)

    def _take(
        self, entries: dict[SourceLog, _Entry], key: PositionKey | SegmentKey, value: bytes | None, partition: int
    ) -> None:
        entry = entries.get(key.log)
        if entry is None:
            entry = entries[key.log] = _Entry(partition)
        entry.partition = partition
        entry.take(key, value, whole=self._whole)
        if entry.position is None and not entry.segments and not entry.starts:
            del entries[key.log]

    def set_tail(self, tail: PositionsTail) -> None:
        """Replace the tail of a partition."""
        self._tails[tail.partition] = tail

    def forget(self, partition: int) -> None:
        """Forget all of one partition, which is read again from its beginning."""
        self._tails.pop(partition, None)
        self._entries = {log: entry for log, entry in self._entries.items() if entry.partition != partition}
        self._assignments = {key: one for key, one in self._assignments.items() if one[0] != partition}

    def find(self, log: SourceLog) -> MirrorState | None:
        """Return what is stored for a log; None if no position is.

        Raises CorruptMessageError for a value that cannot be read.
        """
        entry = self._find_entry(log)
        if entry is None or entry.position is None:
            return None
        return MirrorState(
            log=log,
            stored=decode_position(entry.position),
            partition=entry.partition,
            segments=entry.segments,
            lowest_segment=entry.lowest,
            target_starts=entry.starts,
        )

    def _find_entry(self, log: SourceLog) -> _Entry | None:
        entry = self._entries.get(log)
        if self._keeps is not None and not self._keeps(log):
            return None
        for tail in self._tails.values():
            if changes := tail.changes_of(log):
                entries = {} if entry is None else {log: entry.copy()}
                for key, value in changes:
                    if not isinstance(key, AssignmentKey):
                        self._take(entries, key, value, tail.partition)
                entry = entries.get(log)
        return entry

    def list(self) -> list[SourceLog]:
        """Return the logs that have a position, sorted."""
        logs = {*self._entries, *(log for tail in self._tails.values() for logs in tail.logs.values() for log in logs)}
        found = ((log, self._find_entry(log)) for log in logs)
        return sorted(log for log, entry in found if entry is not None and entry.position is not None)

    def find_all(self, source: SourcePartition) -> Sequence[MirrorState]:
        """Return what is stored for all logs of a source partition. Raises CorruptMessageError."""
        logs = self._logs.get(source, set()).union(*(tail.logs.get(source, ()) for tail in self._tails.values()))
        return [state for log in sorted(logs) if (state := self.find(log)) is not None]

    def assignments(self) -> dict[AssignmentKey, StoredAssignment]:
        """Return the target partitions of all partitions of Kafka 0.6 and 0.7.

        Raises CorruptMessageError for a value that cannot be read.
        """
        values: dict[AssignmentKey, bytes | None] = {key: value for key, (_, value) in self._assignments.items()}
        for tail in self._tails.values():
            values |= tail.assignments
        return {key: decode_assignment(value) for key, value in values.items() if value is not None}


def _read_keys(records: Iterable[tuple[bytes | None, bytes | None]]) -> Iterable[Change]:
    """Yield the records whose kind is known."""
    for data, value in records:
        if (key := decode_key(data)) is not None:
            yield key, value
