# SPDX-License-Identifier: Apache-2.0
"""Exact map between the offsets of a source and of a target partition.

A position of a group is the offset of the next record that it reads. It is translated to the target offset of that same
record: the first mirrored record at or after the position. Translating back gives the source position of the first
record at or after a target offset.

| position | translation |
|---|---|
| below the first record of the map | the first record: what lay before is not in the target |
| from there to the mirror's own position | the record; behind the last record, the target offset behind it |
| above the mirror's position | an error: it is not known yet |

Both directions are exact: translating a position and back gives the source position of the record that it stands for.

Segments are kept encoded, and decoded when a position is in them.
"""

from __future__ import annotations

import enum
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from consumerd.errors import ConsumerdError
from consumerd.mirror.runs import Run
from consumerd.mirror.segment import MOST_RUNS, MapSegment, SegmentBuilder, decode_segment, read_starts

_MOST_DECODED: Final = 1024
"""Number of segments of a map that are kept decoded; each takes some 20 KB.

So a map of 1,000,000 runs is decoded once, also for positions in random order.
"""


class NotMirrored(ConsumerdError):
    """Raised for a position that the mirror has not reached."""


class MapPlace(enum.Enum):
    """Place of a translated position in the map."""

    RECORD = "record"
    """There is a record at or after it."""
    END = "end"
    """It is behind the last record that was mirrored, and not above the mirror's position."""
    BEFORE = "before"
    """It is below the first record of the map."""


class Translation(NamedTuple):
    """A translated position."""

    offset: int
    place: MapPlace


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorPosition:
    """Positions of a mirror in one partition.

    Attributes:
        source: source offset from which the mirror goes on.
        target: target offset behind the last record that it wrote, or from which it began.
    """

    source: int
    target: int


class OffsetMap:
    """Map of one partition.

    Args:
        segments: encoded segments, in their order; none if nothing was mirrored yet.
        position: positions up to which the map is complete.

    Raises CorruptMessageError for a segment whose head cannot be read.
    """

    def __init__(self, segments: Sequence[bytes], position: MirrorPosition) -> None:
        self._segments: Final = tuple(segments)
        starts = [read_starts(segment) for segment in segments]
        self._source_starts: Final = [source for source, _ in starts]
        self._target_starts: Final = [target for _, target in starts]
        self._position: Final = position
        self._decoded: OrderedDict[int, MapSegment] = OrderedDict()

    def translate(self, position: int) -> Translation:
        """Return the target offset of the first mirrored record at or after a source position.

        Raises NotMirrored for a position above the mirror's; CorruptMessageError for a damaged segment.
        """
        if position > self._position.source:
            raise NotMirrored(
                f"position {position} is above {self._position.source}, up to which the mirror has come: wait for it"
            )
        number = bisect_right(self._source_starts, position) - 1
        if number < 0:
            first = self._target_starts[0] if self._segments else self._position.target
            return Translation(first, MapPlace.BEFORE if self._segments else MapPlace.END)
        found = self._segment(number).find_target(position)
        if found is None and number + 1 < len(self._segments):
            found = self._target_starts[number + 1]
        return (
            Translation(self._position.target, MapPlace.END) if found is None else Translation(found, MapPlace.RECORD)
        )

    def translate_back(self, offset: int) -> Translation:
        """Return the source position of the first mirrored record at or after a target offset.

        Behind the last mirrored record it is the mirror's own position: there, the target has only markers of
        transactions, and records that others wrote. Raises CorruptMessageError for a damaged segment.
        """
        number = bisect_right(self._target_starts, offset) - 1
        if number < 0:
            first = self._source_starts[0] if self._segments else self._position.source
            return Translation(first, MapPlace.BEFORE if self._segments else MapPlace.END)
        found = self._segment(number).find_source(offset)
        if found is None and number + 1 < len(self._segments):
            found = self._source_starts[number + 1]
        return (
            Translation(self._position.source, MapPlace.END) if found is None else Translation(found, MapPlace.RECORD)
        )

    def _segment(self, number: int) -> MapSegment:
        segment = self._decoded.get(number)
        if segment is None:
            segment = self._decoded[number] = decode_segment(self._segments[number])
            if len(self._decoded) > _MOST_DECODED:
                self._decoded.popitem(last=False)
        return segment

    def count_removable(self, log_start: int) -> int:
        """Return how many of the first segments hold no record that the target still has.

        Args:
            log_start: log start offset of the target partition.
        """
        return count_removable(self._target_starts, log_start)


def count_removable(target_starts: Sequence[int], log_start: int) -> int:
    """Return how many of the first segments hold no record that the target still has.

    Args:
        target_starts: First target offset of each segment, ascending.
        log_start: log start offset of the target partition.
    """
    # the last one stays: the mirror goes on in it
    return max(0, min(bisect_right(target_starts, log_start), len(target_starts)) - 1)


class MapWriter:
    """Adds runs to the map of one partition, and tells which segments to write.

    Args:
        counts_bytes: True if source offsets count bytes (Kafka 0.6 and 0.7).
        number: number of the last segment that was written; 0 before the first one.
        last: that segment, encoded; None before the first one.
        most_runs: number of runs of a full segment.

    Raises CorruptMessageError for a damaged segment.
    """

    def __init__(
        self, *, counts_bytes: bool, number: int = 0, last: bytes | None = None, most_runs: int = MOST_RUNS
    ) -> None:
        self._counts_bytes: Final = counts_bytes
        self._most_runs: Final = most_runs
        self._number = number
        self._builder = SegmentBuilder(counts_bytes=counts_bytes, data=last)
        self._full: dict[int, bytes] = {}
        self._has_changed = False

    def add(self, runs: Iterable[Run]) -> None:
        """Add runs that lie behind all others.

        A run that continues the last one becomes one with it. Raises ValueError for a run that does not lie behind.
        """
        for run in runs:
            builder = self._builder
            self._has_changed = True
            if self._is_continued(run):
                builder.extend(run)
                continue
            if len(builder) >= self._most_runs:
                if run.source_start < builder.source_end or run.target_start < builder.target_end:
                    raise ValueError("each run must lie behind the run before it")
                self._full[self._number] = builder.encode()
                self._number += 1
                builder = self._builder = SegmentBuilder(counts_bytes=self._counts_bytes)
            builder.add(run)

    def _is_continued(self, run: Run) -> bool:
        builder = self._builder
        if self._counts_bytes or not len(builder):
            return False
        return (builder.source_end, builder.target_end) == (run.source_start, run.target_start)

    def take_changed(self) -> dict[int, bytes]:
        """Return the encoded segments, by number, that differ from what an earlier call returned."""
        changed = self._full
        if self._has_changed:
            changed = {**changed, self._number: self._builder.encode()}
        self._full, self._has_changed = {}, False
        return changed
