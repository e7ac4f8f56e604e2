# SPDX-License-Identifier: Apache-2.0
"""Builder of the columns of a :class:`RecordBatch`, filled unit by unit.

A *unit* is the smallest independently readable piece of a record set: a plain message, a compressed wrapper message, or
a record batch.

Offsets
    A decoder appends to the columns directly, except for offsets. Those are passed to :meth:`ColumnBuilder.commit` as
    *segments*: ascending ranges ``(first, end)`` of consecutive offsets. Offsets between segments become gaps with
    reason COMPACTION. The offsets of a wrapper's inner messages are relative to the last one; only its segments need to
    be shifted once that is known. :meth:`ColumnBuilder.roll_back` removes the rows of a unit that turns out to be
    corrupt.

    Example: position 100 was asked for. A batch with base offset 98 has records 98, 99, 100 and 103, and ends with
    offset 104. Its segments are (98, 101) and (103, 104), its end is 105. After the commit, offsets are 98, 99, 100,
    103, gaps are [101, 103) and [104, 105), and the position is 105. :meth:`ColumnBuilder.finish` drops 98 and 99.

Buffer
    Spans refer to the buffer that :meth:`ColumnBuilder.finish` returns. Without compression that is the fetched data
    itself. Otherwise it is a sequence of blocks: decompressed units, and *stretches*, runs of uncompressed units
    between them.

    Example: uncompressed bytes [0, 300), a batch at 300 that decompresses to 1000 bytes, uncompressed bytes from 400
    on. The buffer is 300 + 1000 + the rest. The shift, to be added to positions, is 0 for the first stretch, 300 for
    positions in the decompressed block, and 1300 - 400 = 900 for the second stretch.
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
from consumerd.wire.record_fields import NULL_SPAN
from consumerd.wire.records import RecordBatch

Segment = tuple[int, int]
"""Range ``[first, end)`` of consecutive offsets."""

NO_TYPE: Final = bytes((TimestampType.NONE + 1,))
"""Byte in the column of timestamp types, for a record without timestamp."""
CREATE_TIME: Final = bytes((TimestampType.CREATE_TIME + 1,))
"""Byte in the column of timestamp types, for a timestamp set by the producer."""
LOG_APPEND_TIME: Final = bytes((TimestampType.LOG_APPEND_TIME + 1,))
"""Byte in the column of timestamp types, for a timestamp set by the broker."""


_MOST_OFFSET: Final = (1 << 63) - 1


def in_place(data: Buffer) -> Buffer:
    """Return ``data`` itself if it is immutable and readable in place, otherwise a copy."""
    if isinstance(data, bytes):
        return data
    is_readable = isinstance(data, memoryview) and data.readonly and data.c_contiguous and data.format == "B"
    return data if is_readable and reads_views() else bytes(data)


def reads_views() -> bool:
    """Return whether memoryviews are decoded without a copy: by the kernel only."""
    return kernel.records is not None and kernel.messages is not None


class SpanBuffer:
    """Buffer of a decoded record set, to which spans of keys and values refer.

    It is the fetched data, or a copy with the decompressed data in place of the compressed units.

    Attributes:
        decompressed_bytes: size of all decompressed data, in bytes.

    Args:
        data: the fetched bytes.
        make_room: returns writable memory for the buffer; called once, before the first decompression. If the memory is
            too small, other memory is allocated, as it is with None.
    """

    def __init__(self, data: Buffer, make_room: Callable[[], memoryview] | None = None) -> None:
        self.decompressed_bytes = 0
        self._data = data
        self._blocks: list[Buffer] = []
        self._blocks_bytes = 0
        self._make_room = make_room
        self._room: memoryview | None = None  # None as soon as a block had to be stored elsewhere
        self._stretch: int | None = None  # start, in the data, of the current stretch of uncompressed units

    def plain_shift(self, at: int) -> int:
        """Begin or continue uncompressed data at ``at``; return its shift.

        The fetched bytes from ``at`` to the next compressed unit become part of the buffer. For each of them: position
        in the buffer = position in the fetched data + shift.
        """
        shift = self.peek_shift(at)
        self._stretch = self._blocks_bytes - shift
        return shift

    def peek_shift(self, at: int) -> int:
        """Return the shift that :meth:`plain_shift` would return, without changing the buffer.

        Position in the buffer = position in the fetched data + shift.
        """
        if self._stretch is None:
            return self._blocks_bytes - at if self._blocks else 0
        return self._blocks_bytes - self._stretch

    def free_room(self, at: int) -> memoryview | None:
        """Return free memory for the decompressed data of the unit at ``at``.

        Data decompressed to its beginning is not copied again when it is passed to :meth:`add_block`. ``at`` is the
        position of the unit in the fetched data; uncompressed bytes before it are added to the buffer first. Returns
        None if there is no memory reserved, or the reserved memory was too small.
        """
        self._open_room()
        self._end_stretch(at)
        return None if self._room is None else self._room[self._blocks_bytes :]

    def peek_room(self, at: int) -> tuple[memoryview | None, int]:
        """Return free memory for the decompressed unit at ``at``, and the shift of the data.

        Position in the buffer = position in the decompressed data + shift. ``at`` is the position of the unit in the
        fetched data. The memory is None if none is reserved, or the reserved memory was too small. Unlike
        :meth:`free_room`, this adds nothing to the buffer.
        """
        self._open_room()
        shift = self._blocks_bytes if self._stretch is None else self._blocks_bytes + at - self._stretch
        return None if self._room is None else self._room[shift:], shift

    def _open_room(self) -> None:
        if self._make_room is not None and not self._blocks:
            self._room = self._make_room()
        self._make_room = None

    def add_block(self, at: int, block: Buffer) -> int:
        """Append the decompressed bytes of the unit at ``at`` to the buffer; return their shift.

        ``at`` is the position of the unit in the fetched data. Position in the buffer = position in ``block`` + shift.
        """
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
                self._room = None  # too small: close() joins the blocks instead
            elif not (isinstance(block, memoryview) and block.obj is self._room.obj):
                # not decompressed into the room: an uncompressed stretch, or a codec that returns bytes
                place[:] = block
                block = place
        self._blocks.append(block)
        self._blocks_bytes += len(block)

    def close(self, stop: int) -> tuple[Buffer, int]:
        """Return the buffer, and the bytes of memory that it holds.

        Args:
            stop: position in the data after the last unit.
        """
        if not self._blocks:
            return self._data, len(self._data)
        self._end_stretch(stop)
        if self._room is not None and self._blocks_bytes * _LEAST_FILLED >= len(self._room):
            return self._room[: self._blocks_bytes].toreadonly(), len(self._room)
        is_alone = len(self._blocks) == 1 and isinstance(self._blocks[0], bytes)
        return self._blocks[0] if is_alone else b"".join(self._blocks), self._blocks_bytes


_LEAST_FILLED: Final = 2
"""Smallest part of the room, as 1/n, that must be in use for the room to be kept as the buffer."""


class ColumnBuilder(SpanBuffer):
    """Collects the records of one fetched record set as columns, unit by unit.

    A unit is a plain message, a compressed wrapper message, or a record batch.

    Attributes:
        start: position that was asked for.
        position: first offset not covered by a record or gap yet.
        end: offset after the last unit; below ``position`` while units end before ``start``.
        unattested: beginning of a gap before the last unit. Only the offset of that unit, which no checksum covers,
            says that there is a gap. None if there is no such gap.
        left_out: True if the native kernel skipped records below ``start``.
        header_starts: with ``header_ends``, header spans up to the last record that has headers; later records have
            none.

    Args:
        data: the fetched bytes.
        make_room: returns writable memory for the buffer; called once, before the first decompression. If the memory is
            too small, the builder allocates its own. None: the builder always does.
    """

    def __init__(
        self,
        data: Buffer,
        partition: TopicPartition,
        start: int,
        make_room: Callable[[], memoryview] | None = None,
    ) -> None:
        super().__init__(data, make_room)
        self.start = start
        self.position = start
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
        self._partition = partition
        self.end = 0
        self.unattested: int | None = None
        self._gaps: list[Gap] = []

    def __len__(self) -> int:
        return len(self.timestamps)

    def begins_before(self, offset: int) -> bool:
        """Return True if a record below ``offset`` was read, including records that were left out.

        ``offset`` must be ``start`` or more.
        """
        return self.left_out or (bool(self.offsets) and self.offsets[0] < offset)

    def add_headers(self, start: int, end: int) -> None:
        """Set the range ``[start, end)`` of the buffer with the next record's headers.

        The range has the headers in their encoded form. Call only for a record with headers, before the record's
        timestamp is appended.
        """
        missing = len(self.timestamps) - len(self.header_starts)  # earlier rows without headers
        self.header_starts.extend(_NULLS * missing)
        self.header_ends.extend(_NULLS * missing)
        self.header_starts.append(start)
        self.header_ends.append(end)

    def commit_messages(self, segments: Sequence[Segment], end: int) -> None:
        """Add a run of uncompressed messages, whose other columns are appended already, with offsets.

        Each message is a unit of its own, so :attr:`unattested` is set only for a gap before the last one.

        Args:
            segments: the messages' offsets, as ranges ``(first, end)`` in ascending order.
            end: offset after the last message.

        Raises CorruptMessageError, without any change, if offsets do not ascend.
        """
        before = self.position
        self.commit(segments, end)
        first, stop = segments[-1]
        # Only a gap before the very last message is unattested. Two consecutive offsets confirm each other, and an
        # earlier gap is confirmed by the messages after it.
        alone = stop - first == 1
        due = max(before, segments[-2][1]) if len(segments) > 1 else before
        self.unattested = due if alone and first > due else None

    def commit(self, segments: Iterable[Segment], end: int, *, first_offset: int | None = None) -> None:
        """Set the offsets of a wrapper's or batch's records.

        Call it after the records were appended to the other columns.

        Offsets between two ranges, and before the first one, become gaps.

        Args:
            segments: the records' offsets, as ranges ``(first, end)`` in ascending order.
            end: offset after the wrapper or batch. Offsets from the last record to it become a gap.
            first_offset: first offset according to the batch's header; None for a wrapper, whose header lacks it.

        Raises CorruptMessageError, without any change, if offsets do not ascend.
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
            first_offset = segments[0][0]  # a wrapper whose inner messages lead up to its own offset
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
        """Add a gap for a batch without records for consumers, such as a control batch.

        Its offsets are ``first`` to before ``end``. Raises CorruptMessageError, without any change, if offsets do not
        ascend.
        """
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
        """Remove the rows that were appended but not committed."""
        count = len(self.offsets)
        for column in (self.timestamps, self.key_starts, self.key_ends, self.value_starts, self.value_ends):
            del column[count:]
        del self.timestamp_types[count:]
        rows = min(count, len(self.header_starts))
        # restore the invariant that the last entry is a row with headers
        while rows and self.header_starts[rows - 1] == NULL_SPAN:
            rows -= 1
        del self.header_starts[rows:], self.header_ends[rows:]

    def finish(self, stop: int) -> RecordBatch:
        """Return the committed records as a batch.

        Rows below ``start`` are dropped: brokers return compressed units as a whole.

        Args:
            stop: position in the data after the last unit.
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
        buffer, held_bytes = self.close(stop) if count > below else (b"", 0)
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


_NULLS: Final = array("q", [NULL_SPAN])
_FIRST_WAIT: Final = 8
"""Rows before a reader that failed once is tried again."""


def agreement(column: bytes, expected: bytes) -> int:
    """Return the number of leading bytes that two equally long columns share."""
    if column == expected:
        return len(column)
    # the lowest set bit of the XOR lies in the first byte that differs
    difference = int.from_bytes(column, "little") ^ int.from_bytes(expected, "little")
    return ((difference & -difference).bit_length() - 1) >> 3


def extend_spans(starts: array[int], ends: array[int], first: int, length: int, stride: int, count: int) -> None:
    """Append the spans of ``count`` keys or values of equal length and distance.

    Example: ``first`` 10, ``length`` 4, ``stride`` 20 and ``count`` 3 append 10, 30, 50 to ``starts`` and 14, 34, 54 to
    ``ends``.

    Args:
        first: position of the first one in the buffer.
        length: length of each in bytes; negative for null, which appends -1 to both columns.
        stride: distance between two starts in bytes.
    """
    if length < 0:
        starts.extend(_NULLS * count)
        ends.extend(_NULLS * count)
    else:
        extend_steps(starts, first, stride, count)
        extend_steps(ends, first + length, stride, count)


def extend_values(column: array[int], values: list[int], shift: int) -> None:
    """Append ``values`` to a column, each plus ``shift``."""
    if shift:
        values = [value + shift for value in values]
    column.extend(array("q", values))


def extend_steps(column: array[int], first: int, step: int, count: int) -> None:
    """Append ``first``, ``first + step``... to a column.

    It takes a third of the time of ``array.extend``.
    """
    if (native := kernel.records) is not None:
        native.extend_steps(column, first, step, count)
        return
    column.frombytes(struct.pack(f"{count}q", *range(first, first + count * step, step)))


class Patience:
    """Exponential backoff for a fast reader of records that cannot read the current ones.

    It counts in records. After each try that read nothing, the distance to the next try doubles.
    """

    def __init__(self) -> None:
        self._due = 0
        self._wait = _FIRST_WAIT

    def left(self, done: int) -> int:
        """Return the number of records until the fast reader is tried again.

        0 or less means that it can be tried now.

        Args:
            done: Number of records read so far.
        """
        return self._due - done

    def note(self, done: int, *, gained: bool) -> None:
        """Note the result of a try of the fast reader.

        Args:
            done: Number of records read before the try.
            gained: True if the try has read any record.
        """
        if gained:
            self._wait = _FIRST_WAIT
        else:
            self._due = done + self._wait
            self._wait *= 2
