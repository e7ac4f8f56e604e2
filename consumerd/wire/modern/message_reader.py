# SPDX-License-Identifier: Apache-2.0
"""Plain messages of magic 0 and 1. Layout: Kafka protocol guide ("Message sets"), KIP-32::

    offset int64, size int32, CRC-32 uint32 (of all that follows), magic int8, attributes int8,
    [timestamp int64, magic 1 only], key length int32, key, value length int32, value

Example: in magic 1, a message with null key and a value of 8 bytes has 12 + 22 + 8 = 42 bytes, and a size field of 30.
In a row of them, bytes 8-11, 50-53, 92-95... are all ``00 00 00 1e``.

Performance: messages of a set mostly differ only in their values, or not even in their sizes. Three readers take turns,
the most specialized first:

- :meth:`MessageReader._read_rows`: runs of messages of one size. Verifies one byte column at a time for many messages.
- :meth:`MessageReader._read_similar`: runs that differ only in their values. Unpacks the fields before the value with
  one struct.
- :meth:`MessageReader._read_each`: all other messages. Only this one raises errors.

The first two verify the checksums of many messages in one pass (see :func:`_rows_intact`). The native kernel, if
present, replaces them.
"""

from __future__ import annotations

import functools
import struct
import sys
from array import array
from collections.abc import Callable
from typing import Any, Final

from consumerd.errors import CorruptMessageError
from consumerd.wire import kernel
from consumerd.wire.checksum import crc32, span_crc32
from consumerd.wire.columns import (
    CREATE_TIME,
    LOG_APPEND_TIME,
    NO_TYPE,
    ColumnBuilder,
    Patience,
    Segment,
    agreement,
    extend_spans,
    extend_values,
)
from consumerd.wire.kernel import Buffer
from consumerd.wire.modern.entry import ENTRY_BYTES, INT32, LOG_APPEND_TIME_FLAG, MAGIC_AT
from consumerd.wire.record_fields import NO_TIMESTAMP, NULL_SPAN

CHECKED_FROM: Final = 16
"""Position in a message of the first byte that its checksum covers."""
HEADS: Final = (struct.Struct(">qiIBBii"), struct.Struct(">qiIBBqii"))
"""Structs of a message from its offset to its value length, by magic, for a null key."""
KEY_LENGTH_AT: Final = tuple(head.size - 8 for head in HEADS)
"""Position of the key length in a message, by magic."""

_MOST_OFFSET: Final = (1 << 63) - 1
_NULLS: Final = array("q", [NO_TIMESTAMP])
_TYPES: Final = (CREATE_TIME, LOG_APPEND_TIME)

_LEAST_ROWS: Final = 6
"""Smallest number of messages for which :meth:`MessageReader._read_rows` pays off."""
_FIRST_ROWS: Final = 512
"""Messages tried as rows at first; 8 times as many after each success."""
_SIMILAR_BYTES: Final = 1 << 16
"""Bytes that :meth:`MessageReader._read_similar` verifies in one pass."""

CYCLE: Final = 1 << 16
"""Number of consecutive offsets after which the two lowest bytes repeat."""
LOW: Final = bytes(range(256)) * 256
"""Byte column of the lowest bytes of CYCLE consecutive offsets."""
HIGH: Final = b"".join(bytes((value,)) * 256 for value in range(256))
"""Byte column of the second-lowest bytes of CYCLE consecutive offsets."""


class MessageReader:
    """Decodes plain messages of one magic and with equal attributes into the columns.

    Args:
        data: the messages, fetched or decompressed.
        at: position of the first message in ``data``.
        end: position in ``data`` at which to stop.
        shift: position in the columns' buffer minus position in ``data``.
        following: smallest acceptable offset of the first message.

    Attributes:
        segments: offsets of the messages read, as ranges ``(first, end)``.
        following: smallest acceptable offset of the next message.
    """

    def __init__(self, data: Buffer, at: int, end: int, shift: int, columns: ColumnBuilder, following: int) -> None:
        self.segments: list[Segment] = []
        self.following = following
        self._data = data
        self._end = end
        self._shift = shift
        self._columns = columns
        self._magic = data[at + MAGIC_AT]
        self._attributes = data[at + MAGIC_AT + 1]
        self._type = _TYPES[bool(self._attributes & LOG_APPEND_TIME_FLAG)] if self._magic else NO_TYPE
        self._first = following  # first offset of the current segment
        self._shape = (0, 0, 0)  # the last message: its size, the lengths of its key and value
        self._repeats = False  # whether the last two messages have the same size

    def read(self, at: int) -> int:
        """Read messages from position ``at`` on; return the position after the last one read.

        Stops before a message of another kind, and before one that cannot be read. Raises CorruptMessageError if that
        is the first one.
        """
        native = kernel.messages
        at = self._read_all(at) if native is None else self._read_natively(native, at)
        self._close_segment(self.following)
        return at

    def _read_natively(self, native: kernel.MessagesKernel, at: int) -> int:
        """Read with the kernel, and read one message in Python each time that it stops."""
        columns, begun = self._columns, at
        while True:
            rows = len(columns)
            at, self._first, self.following = native.read_messages(
                self._data, at, self._end, self._shift, columns, self.segments, self._first, self.following
            )
            columns.timestamp_types += self._type * (len(columns) - rows)
            if at == self._end:
                return at
            stop = self._read_each(at, 1, first=at == begun)
            if stop == at or self.following > _MOST_OFFSET:  # the kernel cannot be called with more than an int64
                return stop
            at = stop

    def _read_all(self, at: int) -> int:
        columns = self._columns
        rows, similar = Patience(), Patience()
        most = _FIRST_ROWS
        stop = self._read_each(at, 2, first=True)
        while stop > at:
            at = stop
            if at == self._end:
                break
            done = len(columns)
            if self._repeats and rows.left(done) <= 0:
                stop = self._read_rows(at, most)
                rows.note(done, gained=stop > at)
                most = most * 8 if stop > at else _FIRST_ROWS
            if stop == at and similar.left(done) <= 0:
                stop = self._read_similar(at)
                similar.note(done, gained=stop > at)
            if stop == at:
                stop = self._read_each(at, similar.left(done), first=False)
        return at

    def _close_segment(self, following: int) -> None:
        if self.following > self._first:
            self.segments.append((self._first, self.following))
        self._first = following

    def _read_each(self, at: int, most: int, *, first: bool) -> int:
        """Read up to ``most`` messages one by one.

        Returns the position after them. Stops before a message that cannot be read. If that is the first one and
        ``first`` is set, CorruptMessageError is raised.
        """
        data, end, shift, columns = self._data, self._end, self._shift, self._columns
        magic, attributes, following = self._magic, self._attributes, self.following
        head = HEADS[magic]
        unpack, head_size, unpack_int32 = head.unpack_from, head.size, INT32.unpack_from
        size = last_size = key_length = value_length = 0
        timestamp = NO_TIMESTAMP
        rows = len(columns)
        add_timestamp = columns.timestamps.append
        add_key_start, add_key_end = columns.key_starts.append, columns.key_ends.append
        add_value_start, add_value_end = columns.value_starts.append, columns.value_ends.append
        begun = at
        fault = ""
        for _ in range(most):
            if end - at < head_size:
                break
            last_size = size
            if magic:
                offset, size, checksum, its_magic, its_attributes, timestamp, key_length, value_length = unpack(
                    data, at
                )
            else:
                offset, size, checksum, its_magic, its_attributes, key_length, value_length = unpack(data, at)
            stop = at + 12 + size
            if its_magic != magic or its_attributes != attributes or stop > end:
                break
            if crc32(data[at + 16 : stop]) != checksum:
                fault = crc_fault(data, at, stop, checksum)
                break
            value_start = at + head_size
            if key_length == NULL_SPAN:
                key_start = key_end = NULL_SPAN
            else:
                key_start = value_start - 4
                key_end = key_start + key_length
                value_start = key_end + 4
                if key_length < 0 or value_start > stop:
                    fault = f"a key of {key_length} bytes in a message of {size}"
                    break
                (value_length,) = unpack_int32(data, key_end)
                key_start += shift
                key_end += shift
            value_end = value_start + value_length
            if value_length == NULL_SPAN:
                value_end = value_start
            if value_end != stop or value_length < NULL_SPAN:
                fault = f"a value of {value_length} bytes in a message of {size}"
                break
            if offset != following:
                if offset < following:
                    fault = f"offset {offset} where at least {following} is due"
                    break
                self.following = following
                self._close_segment(offset)
            add_timestamp(timestamp)
            add_key_start(key_start)
            add_key_end(key_end)
            if value_length >= 0:
                add_value_start(value_start + shift)
                add_value_end(value_end + shift)
            else:
                add_value_start(NULL_SPAN)
                add_value_end(NULL_SPAN)
            following = offset + 1
            at = stop
        if first and at == begun:
            raise CorruptMessageError(fault or f"a message of {size} bytes")
        self.following = following
        self._shape = (size, key_length, value_length)
        self._repeats = size == last_size
        columns.timestamp_types += self._type * (len(columns) - rows)
        return at

    def _read_similar(self, at: int) -> int:
        """Read messages that differ in field sizes only by their values.

        They are compared with the last message read. Returns the position after them. All of them are verified in one
        pass, as in :func:`_rows_intact`. If that fails, none is read.
        """
        data, columns = self._data, self._columns
        key_length = self._shape[1]
        unpack, head_size = _similar_head(self._magic, max(key_length, 0))
        kind = self._magic << 8 | self._attributes
        overhead = head_size - ENTRY_BYTES
        region = data[at : min(at + _SIMILAR_BYTES, self._end)]
        # a copy, in which each checksum is moved behind the message that it covers: see _rows_intact
        image = bytearray(region)
        image += bytes(CHECKED_FROM)
        seal = _SEAL.pack_into
        timestamps: list[int] = []
        starts: list[int] = []
        ends: list[int] = []
        add_timestamp, add_start, add_end = timestamps.append, starts.append, ends.append
        following = self.following
        place = 0
        most = len(region)
        try:
            while True:
                offset, size, checksum, its_kind, timestamp, its_key_length, value_length = unpack(region, place)
                if (
                    offset != following
                    or size - value_length != overhead
                    or its_key_length != key_length
                    or its_kind != kind
                    or value_length < 0
                ):
                    break
                stop = place + 12 + size
                if stop > most:
                    break
                seal(image, stop, checksum, _RESET)
                add_timestamp(timestamp)
                add_start(stop - value_length)
                add_end(stop)
                following += 1
                place = stop
        except struct.error:  # the rest of the region is shorter than the head of a message
            pass
        count = len(starts)
        if count < 2 or crc32(memoryview(image)[CHECKED_FROM : place + 4]) != _RESIDUE:
            return at
        columns.timestamps.extend(array("q", timestamps) if self._magic else _NULLS * count)
        columns.timestamp_types += self._type * count
        shift = at + self._shift
        extend_values(columns.value_starts, starts, shift)
        extend_values(columns.value_ends, ends, shift)
        if key_length < 0:
            extend_spans(columns.key_starts, columns.key_ends, 0, key_length, 0, count)
        else:
            extend_values(columns.key_starts, starts, shift - 4 - key_length)
            extend_values(columns.key_ends, starts, shift - 4)
        self.following = following
        self._shape = (ends[-1] - ends[-2] - ENTRY_BYTES, key_length, ends[-1] - starts[-1])
        self._repeats = ends[-1] - starts[-1] == ends[-2] - starts[-2]
        return at + place

    def _read_rows(self, at: int, most: int) -> int:
        """Read messages whose fields all have the sizes of the last message read.

        At most ``most`` of them. Returns the position after them.
        """
        data, following, shift, columns = self._data, self.following, self._shift, self._columns
        size, key_length, value_length = self._shape
        stride = ENTRY_BYTES + size
        low = following % CYCLE
        count = min((self._end - at) // stride, CYCLE - low, most)
        if count < _LEAST_ROWS or following > _MOST_OFFSET:
            return at
        key_field = HEADS[self._magic].size - 8
        value_field = key_field + 4 + max(key_length, 0)
        high = (following >> 16).to_bytes(6, "big", signed=True)
        # Fields that are equal in all rows: each byte column must be constant. ``count`` shrinks to the rows for which
        # that holds.
        for place, field in (
            (8, INT32.pack(size)),
            (MAGIC_AT, bytes((self._magic, self._attributes))),
            (key_field, INT32.pack(key_length)),
            (value_field, INT32.pack(value_length)),
            (0, high),
        ):
            for column_at, byte in enumerate(field, at + place):
                if count < _LEAST_ROWS:
                    return at
                column = bytes(data[column_at : at + count * stride : stride])
                count = agreement(column, bytes((byte,)) * count)
        # The two lowest bytes of the offsets: consecutive numbers.
        for column_at, cycle in ((at + 6, HIGH), (at + 7, LOW)):
            column = bytes(data[column_at : at + count * stride : stride])
            count = agreement(column, cycle[low : low + count])
        if count < _LEAST_ROWS or not _rows_intact(data, at, stride, count):
            return at
        stop = at + count * stride
        columns.timestamps.extend(
            _int64_column(data, at + MAGIC_AT + 2, stop, stride) if self._magic else _NULLS * count
        )
        columns.timestamp_types += self._type * count
        at += shift
        extend_spans(columns.key_starts, columns.key_ends, at + key_field + 4, key_length, stride, count)
        extend_spans(columns.value_starts, columns.value_ends, at + value_field + 4, value_length, stride, count)
        self.following += count
        return stop


@functools.lru_cache(maxsize=256)
def _similar_head(magic: int, key_bytes: int) -> tuple[Callable[[Buffer, int], tuple[Any, ...]], int]:
    """Return the unpacker of an entry up to its value, and its size in bytes.

    Applies to keys of ``key_bytes``. It unpacks offset, size, checksum, magic and attributes as one number, timestamp
    (empty in magic 0), and the lengths of key and value.
    """
    head = struct.Struct(f">qiIH{'q' if magic else '0s'}i{key_bytes}xi")
    return head.unpack_from, head.size


def _int64_column(data: Buffer, at: int, end: int, stride: int) -> array[int]:
    """Return the big-endian int64 at ``at``, ``at + stride``... as a column."""
    rows = len(range(at, end, stride))
    image = bytearray(8 * rows)
    for byte in range(8):
        image[byte::8] = data[at + byte : end : stride][:rows]
    column = array("q", bytes(image))
    if sys.byteorder == "little":
        column.byteswap()
    return column


_SEAL: Final = struct.Struct("<I8x4s")
"""Checksum, zero bytes and _RESET, written behind each message in the copy that :func:`_rows_intact` describes."""
_RESET: Final = bytes.fromhex("f2cc0c16")
"""Bytes that reset the CRC-32 register to its initial value, after a message, its checksum and eight zero bytes."""
_RESIDUE: Final = 0x2144DF1C
"""CRC-32 of any data followed by its own CRC-32, lowest byte first."""


def _rows_intact(data: Buffer, at: int, stride: int, count: int) -> bool:
    """Return whether ``count`` messages at distance ``stride`` match their checksums, in one CRC pass.

    A CRC register that has read a message and then the message's own checksum has a constant value. In a copy of the
    messages, each checksum is therefore moved behind its message, over the next entry's offset. The rest of the next
    entry's header is replaced by bytes that reset the register. One CRC over the whole copy then has a known value if
    all messages are intact::

        as received   [offset size crc | body] [offset size crc | body] ...
        copy                            [body   crc 0 0 reset | body   crc ...

    A single message that does not match always changes the result, because equal bytes map different registers to
    different ones. Faults of several messages cancel each other with probability 2**-32: as often as the CRC-32 over a
    whole batch, as in magic 2, misses a fault.
    """
    image = bytearray(data[at : at + count * stride])
    image += bytes(4)
    for byte in range(4):
        image[stride + byte :: stride] = data[at + 15 - byte : at + count * stride : stride]
        image[stride + 12 + byte :: stride] = _RESET[byte : byte + 1] * (count - 1)
    zeros = bytes(count - 1)
    for byte in range(4, 12):
        image[stride + byte :: stride] = zeros
    return crc32(memoryview(image)[CHECKED_FROM:]) == _RESIDUE


def crc_fault(data: Buffer, at: int, stop: int, checksum: int) -> str:
    """Return the error text for the message ``data[at:stop]``, whose checksum is wrong."""
    return f"CRC-32 is {span_crc32(data, at + CHECKED_FROM, stop):#010x}, the message says {checksum:#010x}"
