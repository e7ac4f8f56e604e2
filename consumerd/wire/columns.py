# SPDX-License-Identifier: Apache-2.0
"""The columns of a :class:`RecordBatch` while they are filled, unit by unit.

A *unit* is the smallest piece of a record set that can be told apart: a message, a compressed wrapper or a record
batch. Decoders append to the arrays directly and give offsets as ascending ``(first, end)`` segments of consecutive
ones to :meth:`ColumnBuilder.commit`, which books the holes between them as gaps; so the offsets of a wrapper's inner
messages can be shifted at no cost once the last is known. A unit that turns out to be corrupt is taken back with
:meth:`ColumnBuilder.roll_back`.

Spans refer to the buffer that :meth:`ColumnBuilder.finish` puts together. While nothing is compressed that is the
fetched bytes themselves; else it is what was decompressed, joined with the uncompressed stretches between.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from consumerd.errors import CorruptMessageError
from consumerd.model import Gap, GapReason, TimestampType, TopicPartition
from consumerd.wire import kernel
from consumerd.wire.kernel import Buffer
from consumerd.wire.records import NULL_SPAN, RecordBatch

Segment = tuple[int, int]
"""Consecutive offsets ``[first, end)``."""

NO_TYPE: Final = bytes((TimestampType.NONE + 1,))
CREATE_TIME: Final = bytes((TimestampType.CREATE_TIME + 1,))
LOG_APPEND_TIME: Final = bytes((TimestampType.LOG_APPEND_TIME + 1,))
"""How a timestamp's type stands in the column of types."""


_MOST_OFFSET: Final = (1 << 63) - 1


class ColumnBuilder:
    """Collects the columns of one fetched record set.

    ``position`` is the first offset that is not accounted for yet, ``end`` the one behind the last unit, which may lie below.
    ``unattested`` is where a hole begins that only the last unit's own offset speaks for; None where there is none.
    ``decompressed_bytes`` counts what codecs gave. ``left_out`` is whether there were rows below ``start`` that are not here.
    ``header_starts`` and ``header_ends`` end with the last row that has headers. ``make_room`` is called once, where there is
    something to be decompressed, for memory that is used for that as far as it goes.
    """

    def __init__(
        self,
        data: Buffer,
        partition: TopicPartition,
        start: int,
        make_room: Callable[[], memoryview] | None = None,
    ) -> None:
        self.start = start
        self.position = start
        self.decompressed_bytes = 0
        self.offsets = array("q")
        self.timestamps = array("q")
        self.timestamp_types = bytearray()
        self.key_starts = array("q")
        self.key_ends = array("q")
        self.value_starts = array("q")
        self.value_ends = array("q")
        self.header_starts = array("q")
        self.header_ends = array("q")
        self.left_out = False
        self._data = data
        self._partition = partition
        self.end = 0
        self.unattested: int | None = None
        self._gaps: list[Gap] = []
        self._blocks: list[Buffer] = []
        self._blocks_bytes = 0
        self._make_room = make_room
        self._room: memoryview | None = None  # while all blocks stand in it, one behind the other
        self._stretch: int | None = None  # where in the data the uncompressed stretch began that goes on now

    # -- the buffer

    def plain_shift(self, at: int) -> int:
        """Return what to add to positions in the fetched data, from ``at`` on, to make them positions in the buffer."""
        shift = self.peek_shift(at)
        self._stretch = self._blocks_bytes - shift
        return shift

    def peek_shift(self, at: int) -> int:
        """Return what :meth:`plain_shift` would, without taking the bytes at ``at`` into the buffer."""
        if self._stretch is None:
            return self._blocks_bytes - at if self._blocks else 0
        return self._blocks_bytes - self._stretch

    def free_room(self, at: int) -> memoryview | None:
        """Return where the unit at ``at`` is best decompressed to, at the beginning of that: nothing is copied then."""
        self._open_room()
        self._end_stretch(at)
        return None if self._room is None else self._room[self._blocks_bytes :]

    def peek_room(self, at: int) -> tuple[memoryview | None, int]:
        """Return what :meth:`free_room` would, without taking what stands before ``at`` into the buffer, and the shift for
        positions in it.
        """
        self._open_room()
        shift = self._blocks_bytes if self._stretch is None else self._blocks_bytes + at - self._stretch
        return None if self._room is None else self._room[shift:], shift

    def _open_room(self) -> None:
        if self._make_room is not None and not self._blocks:
            self._room = self._make_room()
        self._make_room = None

    def add_block(self, at: int, block: Buffer) -> int:
        """Take decompressed bytes of the unit at ``at``; returns the shift for positions in them."""
        self._end_stretch(at)
        shift = self._blocks_bytes
        self._append(block)
        self.decompressed_bytes += len(block)
        return shift

    def _end_stretch(self, at: int) -> None:
        if self._stretch is not None:
            self._append(memoryview(self._data)[self._stretch : at])
            self._stretch = None

    def _append(self, block: Buffer) -> None:
        if self._room is not None:
            place = self._room[self._blocks_bytes : self._blocks_bytes + len(block)]
            if len(place) < len(block):
                self._room = None  # what stands in it is joined with the rest in the end
            elif not (isinstance(block, memoryview) and block.obj is self._room.obj):
                place[:] = block
                block = place
        self._blocks.append(block)
        self._blocks_bytes += len(block)

    # -- units

    def __len__(self) -> int:
        return len(self.timestamps)

    def begins_before(self, offset: int) -> bool:
        """Tell whether the first row is one below ``offset``, which is ``start`` or more."""
        return self.left_out or (bool(self.offsets) and self.offsets[0] < offset)

    def add_headers(self, start: int, end: int) -> None:
        """Give headers to the row that comes next."""
        missing = len(self.timestamps) - len(self.header_starts)
        self.header_starts.extend(_NULLS * missing)
        self.header_ends.extend(_NULLS * missing)
        self.header_starts.append(start)
        self.header_ends.append(end)

    def commit_messages(self, segments: Sequence[Segment], end: int) -> None:
        """Book messages, each a unit of its own. Raises as :meth:`commit`."""
        before = self.position
        self.commit(segments, end)
        first, stop = segments[-1]
        alone = stop - first == 1
        due = max(before, segments[-2][1]) if len(segments) > 1 else before
        self.unattested = due if alone and first > due else None

    def commit(self, segments: Iterable[Segment], end: int, *, first_offset: int | None = None) -> None:
        """Book a unit's records, whose columns are filled already; it accounts for everything below ``end``, and from
        ``first_offset`` on where its head says so.

        Raises CorruptMessageError, with nothing booked, when offsets do not ascend.
        """
        segments = list(segments)
        last = self.end
        for first, stop in segments:
            if first < last:
                raise CorruptMessageError(f"offset {first} where at least {last} is due")
            last = stop
        if not last <= end <= _MOST_OFFSET:
            raise CorruptMessageError(f"offset {last - 1} in a unit that ends before {end}")
        before = self.position
        if first_offset is None and segments and segments[-1][1] == end:
            first_offset = segments[0][0]
        for first, stop in segments:
            if first > self.position:
                self._gap(first, GapReason.COMPACTION)
            extend_steps(self.offsets, first, 1, stop - first)
            self.position = max(self.position, stop)
        self.end = end
        if end > self.position:
            self._gap(end, GapReason.COMPACTION)
        claims_more = first_offset > before if first_offset is not None else end > before
        self.unattested = before if claims_more else None

    def skip_unit(self, first: int, end: int, reason: GapReason) -> None:
        """Book a unit ``[first, end)`` whose records, if any, are not for consumers. Raises as :meth:`commit`."""
        if end > _MOST_OFFSET:
            raise CorruptMessageError(f"a unit that ends before {end}")
        self.commit((), first)
        self.end = end
        if end > self.position:
            self._gap(end, reason)

    def _gap(self, end: int, reason: GapReason) -> None:
        if self._gaps and self._gaps[-1].end == self.position and self._gaps[-1].reason is reason:
            self._gaps[-1] = Gap(self._gaps[-1].start, end, reason)
        else:
            self._gaps.append(Gap(self.position, end, reason))
        self.position = end

    def roll_back(self) -> None:
        """Take back the rows that were appended but not committed."""
        count = len(self.offsets)
        for column in (self.timestamps, self.key_starts, self.key_ends, self.value_starts, self.value_ends):
            del column[count:]
        del self.timestamp_types[count:]
        rows = min(count, len(self.header_starts))
        while rows and self.header_starts[rows - 1] == NULL_SPAN:
            rows -= 1
        del self.header_starts[rows:], self.header_ends[rows:]

    def finish(self, stop: int) -> RecordBatch:
        """Return what was committed; ``stop`` is where in the data the last unit ended.

        Rows below the position that was asked for are dropped: a compressed unit is always fetched as a whole.
        """
        below = bisect_left(self.offsets, self.start)
        count = len(self.offsets)
        if below:
            for column in (
                self.offsets,
                self.timestamps,
                self.key_starts,
                self.key_ends,
                self.value_starts,
                self.value_ends,
            ):
                del column[:below]
            del self.timestamp_types[:below]
        header_starts, header_ends = self._header_columns(below, count)
        if (native := kernel.records) is not None:
            native.trim(self)
        types = bytes(self.timestamp_types)
        buffer, held_bytes = self._buffer(stop) if count > below else (b"", 0)
        columns = 6 + (2 if header_starts else 0)
        return RecordBatch(
            partition=self._partition,
            start=self.start,
            next_offset=self.position,
            buffer=buffer,
            offsets=self.offsets,
            timestamps=self.timestamps,
            timestamp_types=b"" if types.count(NO_TYPE) == len(types) else types,
            key_starts=self.key_starts,
            key_ends=self.key_ends,
            value_starts=self.value_starts,
            value_ends=self.value_ends,
            header_starts=header_starts,
            header_ends=header_ends,
            gaps=tuple(self._gaps),
            size_bytes=held_bytes + (count - below) * (8 * columns + 1),
        )

    def _header_columns(self, below: int, count: int) -> tuple[array[int], array[int]]:
        if len(self.header_starts) <= below:
            return array("q"), array("q")
        for column in (self.header_starts, self.header_ends):
            del column[:below]
            column.extend(_NULLS * (count - below - len(column)))
        return self.header_starts, self.header_ends

    def _buffer(self, stop: int) -> tuple[Buffer, int]:
        """Return the buffer, and how many bytes of memory are held by it."""
        if not self._blocks:
            return self._data, len(self._data)
        self._end_stretch(stop)
        if self._room is not None and self._blocks_bytes * _LEAST_FILLED >= len(self._room):
            return self._room[: self._blocks_bytes].toreadonly(), len(self._room)
        is_alone = len(self._blocks) == 1 and isinstance(self._blocks[0], bytes)
        return self._blocks[0] if is_alone else b"".join(self._blocks), self._blocks_bytes


_LEAST_FILLED: Final = 2
"""Room that is more than so many times as large as what stands in it is not kept for that."""

_NULLS: Final = array("q", [NULL_SPAN])
_FIRST_WAIT: Final = 8


def agreement(column: bytes, expected: bytes) -> int:
    """Return how many bytes agree before the first that differs; ``expected`` is as long as ``column``."""
    if column == expected:
        return len(column)
    difference = int.from_bytes(column, "little") ^ int.from_bytes(expected, "little")
    return ((difference & -difference).bit_length() - 1) >> 3


def extend_spans(starts: array[int], ends: array[int], first: int, length: int, stride: int, count: int) -> None:
    """Append the spans of ``count`` rows: of ``length`` bytes, the first at ``first``."""
    if length < 0:
        starts.extend(_NULLS * count)
        ends.extend(_NULLS * count)
    else:
        extend_steps(starts, first, stride, count)
        extend_steps(ends, first + length, stride, count)


def extend_values(column: array[int], values: list[int], shift: int) -> None:
    """Append ``values``, each with ``shift`` added."""
    if shift:
        values = [value + shift for value in values]
    column.extend(array("q", values))


def extend_steps(column: array[int], first: int, step: int, count: int) -> None:
    """Append ``first``, ``first + step``... (``array.extend`` takes three times as long)."""
    if (native := kernel.records) is not None:
        native.extend_steps(column, first, step, count)
        return
    column.frombytes(struct.pack(f"{count}q", *range(first, first + count * step, step)))


class Patience:
    """When to try again a reader that has failed: twice as many rows later each time."""

    def __init__(self) -> None:
        self._due = 0
        self._wait = _FIRST_WAIT

    def left(self, done: int) -> int:
        """Return how many rows are to go by first, when ``done`` have."""
        return self._due - done

    def note(self, done: int, *, gained: bool) -> None:
        """Note how a try went that was made when ``done`` rows had gone by."""
        if gained:
            self._wait = _FIRST_WAIT
        else:
            self._due = done + self._wait
            self._wait *= 2
