# SPDX-License-Identifier: Apache-2.0
"""A segment of an offset map, and its encoding.

The map of a partition is a list of segments, each with the runs of a stretch of the source. The last segment grows and
is written anew with each transaction; once it is full, the next one begins. A full segment never changes.

Encoding, version 1, all numbers big-endian and not negative:

| bytes | meaning |
|---|---|
| 1 | version: 1 |
| 1 | 1 if source offsets count bytes (Kafka 0.6 and 0.7), else 0 |
| 4 | number of runs |
| 8, 8 | source and target offset of the first record |
| | four columns of one number a run: source holes, target holes, counts, lengths |

A hole is the distance from the end of the run before; the first run has none. A count is a number of records, a length
the run's bytes in the source. A column is one byte with the width of its numbers (0, 1, 2, 4 or 8 bytes), then the
numbers; of width 0, all are 0. Lengths have width 0 if source offsets do not count bytes: they equal the counts.

A run of later releases takes 3 or 4 bytes, a message of Kafka 0.6 or 0.7 takes 4, unless holes are large.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from operator import add
from typing import Final

from consumerd.errors import CorruptMessageError
from consumerd.mirror.runs import Run

MOST_RUNS: Final = 1024
"""Number of runs of a full segment. The last segment is written with each transaction, so it is small."""

_VERSION: Final = 1
_HEAD: Final = struct.Struct(">BBIQQ")
_TYPES: Final = {1: "B", 2: "H", 4: "I", 8: "Q"}
_COLUMNS: Final = 4
_MOST_OFFSET: Final = 2**63 - 1


class MapSegment:
    """Consecutive runs of one partition, for lookups. Made by :func:`decode_segment`."""

    __slots__ = ("_counts", "_counts_bytes", "_lengths", "_source_ends", "_target_ends")

    def __init__(
        self,
        *,
        counts_bytes: bool,
        source_ends: Sequence[int],
        target_ends: Sequence[int],
        lengths: Sequence[int],
        counts: Sequence[int],
    ) -> None:
        self._counts_bytes = counts_bytes
        self._source_ends = source_ends
        self._target_ends = target_ends
        # starts follow from these columns, which take less memory
        self._lengths = lengths
        self._counts = counts

    @property
    def runs(self) -> list[Run]:
        """The runs, ascending on both sides; at least one."""
        return [
            Run(end - length, end, behind - count, count)
            for end, length, behind, count in zip(
                self._source_ends, self._lengths, self._target_ends, self._counts, strict=True
            )
        ]

    @property
    def ends(self) -> tuple[int, int]:
        """Source and target offset behind the last run."""
        return self._source_ends[-1], self._target_ends[-1]

    def find_target(self, position: int) -> int | None:
        """Return the target offset of the first record at or after a source position.

        None if no run of the segment has one.
        """
        number = bisect_right(self._source_ends, position)
        if number == len(self._source_ends):
            return None
        inside = max(0, position - (self._source_ends[number] - self._lengths[number]))
        if self._counts_bytes and inside:
            # in the middle of a message: the next one is read, whose first record lies behind this run's last
            number, inside = number + 1, 0
            if number == len(self._source_ends):
                return None
        return self._target_ends[number] - self._counts[number] + inside

    def find_source(self, offset: int) -> int | None:
        """Return the source position of the first record at or after a target offset.

        None if no run of the segment has one. For Kafka 0.6 and 0.7 it is the begin of the message that contains the
        record: nothing begins inside of one.
        """
        number = bisect_right(self._target_ends, offset)
        if number == len(self._target_ends):
            return None
        start = self._source_ends[number] - self._lengths[number]
        if self._counts_bytes:
            return start
        return start + max(0, offset - (self._target_ends[number] - self._counts[number]))


class SegmentBuilder:
    """A segment that grows run by run, and is encoded anew after each transaction.

    Its columns are kept as they are encoded, so that encoding copies them and does nothing for each run. A thousand
    mirrored partitions take some megabytes.

    Args:
        counts_bytes: True if source offsets count bytes (Kafka 0.6 and 0.7).
        data: encoded segment to go on with; None for one without runs.

    Raises CorruptMessageError for data that is damaged.
    """

    def __init__(self, *, counts_bytes: bool, data: bytes | None = None) -> None:
        self._counts_bytes: Final = counts_bytes
        self._starts = (0, 0)
        self._columns = [array("B") for _ in range(_COLUMNS)]
        self.source_end = 0
        """Source offset behind the last run."""
        self.target_end = 0
        """Target offset behind the last run."""
        if data is not None:
            self._load(data)

    def _load(self, data: bytes) -> None:
        segment = decode_segment(data)  # which finds all damage
        _, counts_bytes, count, *starts = _read_head(data)
        if bool(counts_bytes) != self._counts_bytes:
            raise _damage("has offsets of another kind than its partition")
        self._starts = (starts[0], starts[1])
        at = _HEAD.size
        for number in range(_COLUMNS):
            column, at = _decode_column(data, at, count)
            self._columns[number] = column if isinstance(column, array) else array("B", column)
        self.source_end, self.target_end = segment.ends

    def __len__(self) -> int:
        return len(self._columns[0])

    def add(self, run: Run) -> None:
        """Add a run.

        Raises ValueError for one that does not lie behind the last one on both sides, and for one whose count does not
        fit its offsets.
        """
        if not self._columns[0]:
            self._starts = (run.source_start, run.target_start)
            self.source_end, self.target_end = self._starts
        length = run.source_end - run.source_start
        numbers = (run.source_start - self.source_end, run.target_start - self.target_end, run.records, length)
        if min(numbers[:2]) < 0 or min(numbers[2:]) < 1:
            raise ValueError("each run must have records, and lie behind the run before it")
        if not self._counts_bytes and run.records != length:
            raise ValueError("a run has another number of records than of offsets")
        for number, value in enumerate(numbers):
            self._append(number, value if number < _COLUMNS - 1 or self._counts_bytes else 0)
        self.source_end, self.target_end = run.source_end, run.target_end

    def extend(self, run: Run) -> None:
        """Add a run that continues the last one, with which it becomes one.

        Only for offsets that count records.
        """
        counts = self._columns[2]
        self._append(2, counts.pop() + run.records)
        self.source_end, self.target_end = run.source_end, run.target_end

    def _append(self, number: int, value: int) -> None:
        column = self._columns[number]
        if value >= 1 << 8 * column.itemsize:
            width = next(width for width in _TYPES if value < 1 << 8 * width)
            column = self._columns[number] = array(_TYPES[width], column)
        column.append(value)

    def encode(self) -> bytes:
        """Return the encoded segment. Raises ValueError without runs."""
        if not self._columns[0]:
            raise ValueError("a segment has at least one run")
        head = _HEAD.pack(_VERSION, self._counts_bytes, len(self), *self._starts)
        return b"".join((head, *map(_encode_column, self._columns)))


def encode_segment(runs: Sequence[Run], *, counts_bytes: bool) -> bytes:
    """Return the encoded segment.

    Raises ValueError for no runs, for runs of which one does not lie behind the one before it on both sides, and for a
    run whose count does not fit its offsets.
    """
    builder = SegmentBuilder(counts_bytes=counts_bytes)
    for run in runs:
        builder.add(run)
    return builder.encode()


def _encode_column(column: array[int]) -> bytes:
    data = column.tobytes()
    if not data.strip(b"\0"):
        return b"\0"
    if sys.byteorder == "little" and column.itemsize > 1:
        column = column[:]
        column.byteswap()
        data = column.tobytes()
    return bytes([column.itemsize]) + data


def read_starts(data: bytes) -> tuple[int, int]:
    """Return source and target offset of the first record of an encoded segment.

    Raises CorruptMessageError.
    """
    _, _, _, source, target = _read_head(data)
    return source, target


def _read_head(data: bytes) -> tuple[int, int, int, int, int]:
    if len(data) < _HEAD.size + _COLUMNS:
        raise _damage(f"has {len(data)} bytes")
    version, counts_bytes, count, source, target = _HEAD.unpack_from(data)
    if version != _VERSION:
        raise _damage(f"has version {version}; only {_VERSION} is known")
    return version, counts_bytes, count, source, target


def decode_segment(data: bytes) -> MapSegment:
    """Return the segment that :func:`encode_segment` has encoded.

    Raises CorruptMessageError for any other bytes.
    """
    _, counts_bytes, count, source, target = _read_head(data)
    columns, at = [], _HEAD.size
    for _ in range(_COLUMNS):
        column, at = _decode_column(data, at, count)
        columns.append(column)
    if at != len(data) or not count or counts_bytes > 1:
        raise _damage("has a head that does not fit its columns")
    holes, target_holes, counts, lengths = columns
    if not counts_bytes and not any(lengths):
        lengths = counts
    if not min(counts) or not min(lengths) or (not counts_bytes and lengths is not counts):
        raise _damage("has a run without records")
    source_ends = list(accumulate(map(add, holes, lengths), initial=source))[1:]
    target_ends = list(accumulate(map(add, target_holes, counts), initial=target))[1:]
    if max(source_ends[-1], target_ends[-1]) > _MOST_OFFSET or holes[0] or target_holes[0]:
        raise _damage("has offsets that none can be")
    # arrays take a fifth of the lists' memory
    return MapSegment(
        counts_bytes=bool(counts_bytes),
        source_ends=array("q", source_ends),
        target_ends=array("q", target_ends),
        lengths=lengths,
        counts=counts,
    )


def _decode_column(data: bytes, at: int, count: int) -> tuple[Sequence[int], int]:
    """Return a column and the position after it."""
    width = data[at] if at < len(data) else -1
    end = at + 1 + width * count
    if width == 0 and count <= MOST_RUNS:
        return bytes(count), end
    if width not in _TYPES or end > len(data):
        raise _damage(f"has a column of width {width} that is not all there")
    column = array(_TYPES[width], data[at + 1 : end])
    if sys.byteorder == "little":
        column.byteswap()
    return column, end


def _damage(what: str) -> CorruptMessageError:
    return CorruptMessageError(f"a segment of an offset map {what}: it is damaged, or of a later release")
