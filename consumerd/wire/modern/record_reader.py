# SPDX-License-Identifier: Apache-2.0
"""Records inside of a batch, magic 2, after decompression. Layout: Kafka's DefaultRecord, KIP-98::

    length varint, attributes int8, timestamp delta varlong, offset delta varint,
    key length varint, key, value length varint, value, header count varint, headers

Example: key ``k``, value ``hello``, 3 ms and one offset after the batch's first record, no headers::

    18      00          06               02            02          6b   0a            68656c6c6f  00
    length  attributes  timestamp delta  offset delta  key length  key  value length  value       header count

Performance: producers write long runs of similar records. Four readers take turns, the most specialized first:

- :meth:`RecordReader._read_rows`: runs of records of one size. Verifies one byte column at a time for many records. In
  the example's run of 13-byte records, bytes 0, 13, 26... are all 18, and bytes 3, 16, 29... are 02, 04, 06...
- :meth:`RecordReader._read_similar`: runs that differ only in their values. Unpacks the fields before the value with
  one struct.
- :meth:`RecordReader._read_short`: varints of one or two bytes, no headers, consecutive offsets. Reads field by field.
- :meth:`RecordReader._read_any`: all other records. Only this one raises errors.

The native kernel, if present, replaces the first three.
"""

from __future__ import annotations

import functools
import struct
from array import array
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any, Final

from consumerd.errors import CorruptMessageError
from consumerd.wire import kernel
from consumerd.wire.columns import ColumnBuilder, Patience, Segment, agreement, extend_spans, extend_values
from consumerd.wire.kernel import Buffer, RecordsKernel
from consumerd.wire.record_fields import NULL_SPAN, header_spans, read_span
from consumerd.wire.varint import encode_varint, read_varint, read_varlong

LEAST_RECORD_BYTES: Final = 7
"""Size of a record without key, value and headers."""

_LEAST_ROWS: Final = 6
"""Smallest number of records for which :meth:`RecordReader._read_rows` pays off."""

_DELTAS: Final = tuple(encode_varint(delta) for delta in range(8192))
"""Encoded offset deltas of one and two bytes."""
_ONE_BYTE: Final = 64
"""First offset delta that needs more than one byte."""
_TWO_BYTES: Final = 8192
"""First offset delta that needs more than two bytes."""
_THREE_BYTES: Final = 8192 * 128
"""First offset delta that needs more than three bytes."""
_SINGLE: Final = bytes(delta[0] for delta in _DELTAS[:_ONE_BYTE])
"""Byte column of the offset deltas of one byte."""
_LOW: Final = bytes(delta << 1 & 0x7F | 0x80 for delta in range(_TWO_BYTES))
"""Byte column of the first bytes of consecutive longer deltas; repeats every 8192 deltas."""
_HIGH: Final = bytes(delta >> 6 for delta in range(_TWO_BYTES))
"""Byte column of the second and last bytes of deltas of two bytes."""
_MIDDLE: Final = bytes(delta >> 6 | 0x80 for delta in range(_TWO_BYTES))
"""Byte column of the second bytes of deltas of three bytes."""
_SEVEN_BITS: Final = bytes(range(0x80))
_DELTA_FIELDS: Final = tuple(int.from_bytes(delta, "big") for delta in _DELTAS)
"""Encoded offset deltas as big-endian numbers, the form in which ``_similar_head`` unpacks them."""


def _sizes_of_two() -> list[int]:
    """Return the length encoded by each pair of bytes, read as a big-endian number.

    _NO_SIZE stands for pairs that are no varint of two bytes, or that are negative.
    """
    sizes = [_NO_SIZE] * (1 << 16)
    for first in range(0x80, 0x100, 2):
        sizes[first << 8 : (first << 8) + 0x80] = range(first >> 1 & 0x3F, _TWO_BYTES, _ONE_BYTE)
    return sizes


_NO_SIZE: Final = -(1 << 20)
"""Marks bytes that are no length; so negative that no sum or difference with it looks valid."""
_SIZES_OF_ONE: Final = [value >> 1 if value < 0x80 and not value & 1 else _NO_SIZE for value in range(256)]
_SIZES_OF_TWO: Final = _sizes_of_two()
_UNZIGZAG: Final = tuple(value >> 1 ^ -(value & 1) for value in range(1 << 14))


class RecordReader:
    """Decodes the records of one batch into the columns.

    Args:
        data: the decompressed records: ``bytes``, or any buffer if the native kernel is present.
        shift: position in the columns' buffer minus position in ``data``.

    Attributes:
        segments: offset deltas (offset minus base offset) of the records read, as ranges ``(first, end)``.
    """

    def __init__(self, data: Buffer, end: int, shift: int, columns: ColumnBuilder, base_timestamp: int) -> None:
        self.segments: list[Segment] = []
        self._data: bytes = data  # type: ignore[assignment]  # any other buffer is read as bytes are, only not as fast
        self._end = end
        self._shift = shift
        self._columns = columns
        self._base_timestamp = base_timestamp
        self._first = self._delta = 0  # the current segment; _delta is the next consecutive offset delta
        self._shape = (0, 0, 0)  # the last record: encoded size of its timestamp delta, lengths of its key and value

    def read(self, at: int, count: int) -> int:
        """Read ``count`` records from position ``at`` on; return the position after them.

        Raises CorruptMessageError.
        """
        native = kernel.records
        try:
            at = self._read_pure(at, count) if native is None else self._read_native(native, at, count)
        except OverflowError as error:
            raise CorruptMessageError("a timestamp of more than 64 bits") from error
        self._close_segment(self._delta)
        return at

    def _read_native(self, native: RecordsKernel, at: int, count: int) -> int:
        while True:
            got, at, self._first, self._delta = native.read_records(
                self._data,
                at,
                self._end,
                count,
                self._shift,
                self._base_timestamp,
                self._columns,
                self.segments,
                self._first,
                self._delta,
            )
            if got == count:
                return at
            at = self._read_any(at)
            count -= got + 1

    def _read_pure(self, at: int, count: int) -> int:
        rows, similar = Patience(), Patience()
        done = 0
        while done < count:
            got, at = self._read_on(at, done, count - done, rows, similar) if done else (0, at)
            if not got:
                got, at = 1, self._read_any(at)
            done += got
        return at

    def _read_on(self, at: int, done: int, left: int, rows: Patience, similar: Patience) -> tuple[int, int]:
        """Read with the fastest reader that accepts the following records.

        Returns their number and the position after them.
        """
        got = 0
        if rows.left(done) <= 0:
            got, at = self._read_rows(at, left)
            rows.note(done, gained=got > 0)
        if not got and similar.left(done) <= 0:
            got, at = self._read_similar(at, left)
            similar.note(done, gained=got > 0)
        if not got:
            got, at = self._read_short(at, min(left, max(similar.left(done), 1)))
        return got, at

    def _close_segment(self, following: int) -> None:
        if self._delta > self._first:
            self.segments.append((self._first, self._delta))
        self._first = following

    def _read_any(self, at: int) -> int:
        """Read one record of any form. Raises CorruptMessageError."""
        data, end, shift, columns = self._data, self._end, self._shift, self._columns
        length, at = read_varint(data, at, end)
        stop = at + length
        if not 0 < length <= end - at:
            raise CorruptMessageError(f"a record of {length} bytes where {end - at} are left")
        timestamp_at = at + 1
        timestamp_delta, delta_at = read_varlong(data, timestamp_at, stop)
        delta, at = read_varint(data, delta_at, stop)
        key_start, key_end, at = read_span(data, at, stop, "a key or value")
        value_start, value_end, headers_at = read_span(data, at, stop, "a key or value")
        if headers_at + 1 != stop or data[headers_at]:
            header_spans(data, headers_at, stop)
            columns.add_headers(headers_at + shift, stop + shift)
        if delta < 0:
            raise CorruptMessageError(f"a record with offset delta {delta}")
        if delta != self._delta:
            self._close_segment(delta)
        self._delta = delta + 1
        columns.timestamps.append(self._base_timestamp + timestamp_delta)
        columns.key_starts.append(NULL_SPAN if key_start < 0 else key_start + shift)
        columns.key_ends.append(NULL_SPAN if key_start < 0 else key_end + shift)
        columns.value_starts.append(NULL_SPAN if value_start < 0 else value_start + shift)
        columns.value_ends.append(NULL_SPAN if value_start < 0 else value_end + shift)
        self._shape = (
            delta_at - timestamp_at,
            NULL_SPAN if key_start < 0 else key_end - key_start,
            NULL_SPAN if value_start < 0 else value_end - value_start,
        )
        return stop

    def _read_short(self, at: int, left: int) -> tuple[int, int]:
        """Read records with varints of one or two bytes and without headers.

        Returns their number and the position after them.
        """
        data, end, shift = self._data, self._end, self._shift
        base_timestamp = self._base_timestamp
        timestamps: list[int] = []
        key_starts: list[int] = []
        key_ends: list[int] = []
        value_starts: list[int] = []
        value_ends: list[int] = []
        add_timestamp, add_key_start, add_key_end = timestamps.append, key_starts.append, key_ends.append
        add_value_start, add_value_end = value_starts.append, value_ends.append
        startswith = data.startswith
        unzigzag = _UNZIGZAG
        # Each break leaves ``at`` before a record that another reader has to read. The low bit of a zigzag varint is
        # its sign, 0x80 says that another byte follows, and -1 (null) is encoded as 1.
        try:
            for delta in _DELTAS[self._delta : self._delta + left]:
                length = data[at]
                if length < 0x80:
                    stop = at + 1 + (length >> 1)
                    place = at + 3
                else:
                    high = data[at + 1]
                    if high >= 0x80:
                        break
                    stop = at + 2 + (length + (high << 7) - 0x80 >> 1)
                    place = at + 4
                timestamp = data[place - 1]
                if timestamp >= 0x80:
                    high = data[place]
                    if high >= 0x80:
                        break
                    timestamp += (high << 7) - 0x80
                    place += 1
                if stop > end or length & 1 or not startswith(delta, place):
                    break
                place += len(delta)
                length = data[place]
                place += 1
                if length == 1:
                    key_start = key_end = NULL_SPAN
                elif length & 0x81:
                    break
                else:
                    key_start = place + shift
                    place += length >> 1
                    key_end = place + shift
                length = data[place]
                place += 1
                if length >= 0x80:
                    high = data[place]
                    if high >= 0x80:
                        break
                    length += (high << 7) - 0x80
                    place += 1
                value_end = place + (length >> 1)
                if length & 1 or value_end + 1 != stop or data[value_end]:
                    break
                add_timestamp(base_timestamp + unzigzag[timestamp])
                add_key_start(key_start)
                add_key_end(key_end)
                add_value_start(place + shift)
                add_value_end(value_end + shift)
                at = stop
        except IndexError:  # truncated: _read_any raises the error
            pass
        count = len(timestamps)
        if count:
            columns = self._columns
            columns.timestamps.extend(array("q", timestamps))
            columns.key_starts.extend(array("q", key_starts))
            columns.key_ends.extend(array("q", key_ends))
            columns.value_starts.extend(array("q", value_starts))
            columns.value_ends.extend(array("q", value_ends))
            self._delta += count
            key_length = NULL_SPAN if key_starts[-1] < 0 else key_ends[-1] - key_starts[-1]
            self._shape = (self._shape[0], key_length, value_ends[-1] - value_starts[-1])
        return count, at

    def _read_similar(self, at: int, left: int) -> tuple[int, int]:
        """Read following records that differ in field sizes only by their values.

        They are compared with the last record read. Returns their number and the position after them.
        """
        timestamp_size, key_length, value_length = self._shape
        if timestamp_size > 2 or key_length >= _ONE_BYTE or not 0 <= value_length < _TWO_BYTES:
            return 0, at
        data, end, shift, delta = self._data, self._end, self._shift, self._delta
        delta_fields = _DELTA_FIELDS[delta : min(delta + left, _ONE_BYTE if delta < _ONE_BYTE else _TWO_BYTES)]
        length_size, sizes = (1, _SIZES_OF_ONE) if value_length < _ONE_BYTE else (2, _SIZES_OF_TWO)
        head, head_size = _similar_head(timestamp_size, 1 if delta < _ONE_BYTE else 2, max(key_length, 0), length_size)
        overhead = head_size - length_size + 1
        key_field = 1 if key_length < 0 else key_length << 1
        timestamps: list[bytes] = []
        starts: list[int] = []
        ends: list[int] = []
        add_timestamp, add_start, add_end = timestamps.append, starts.append, ends.append
        start = at + head_size
        try:
            for delta_field in delta_fields:
                length, timestamp, its_delta, its_key, value = head(data, start - head_size)
                value_length = sizes[value]
                if its_delta != delta_field or its_key != key_field or sizes[length] - value_length != overhead:
                    break
                stop = start + value_length
                if data[stop]:
                    break
                add_timestamp(timestamp)
                add_start(start)
                add_end(stop)
                start = stop + 1 + head_size
        except (struct.error, IndexError):  # truncated: _read_any raises the error
            pass
        joined = b"".join(timestamps)
        column = self._timestamps([joined[byte::timestamp_size] for byte in range(timestamp_size)])
        count = min(len(column), bisect_left(ends, end))
        if not count:
            return 0, at
        columns = self._columns
        columns.timestamps.extend(column[:count])
        extend_values(columns.value_starts, starts[:count], shift)
        extend_values(columns.value_ends, ends[:count], shift)
        if key_length < 0:
            extend_spans(columns.key_starts, columns.key_ends, 0, key_length, 0, count)
        else:
            extend_values(columns.key_starts, starts[:count], shift - length_size - key_length)
            extend_values(columns.key_ends, starts[:count], shift - length_size)
        self._delta += count
        self._shape = (timestamp_size, key_length, ends[count - 1] - starts[count - 1])
        return count, ends[count - 1] + 1

    def _read_rows(self, at: int, left: int) -> tuple[int, int]:
        """Read following records whose fields all have the sizes of the last record read.

        Returns their number and the position after them.
        """
        data, delta = self._data, self._delta
        timestamp_size, key_length, value_length = self._shape
        deltas = _delta_columns(delta, left)
        if left < _LEAST_ROWS or deltas is None or timestamp_size > 2:
            return 0, at
        key_field = encode_varint(key_length)
        value_field = encode_varint(value_length)
        key_at = 1 + timestamp_size + len(deltas) + len(key_field)
        value_at = key_at + max(key_length, 0) + len(value_field)
        length = value_at + max(value_length, 0) + 1
        length_field = encode_varint(length)
        body = at + len(length_field)
        stride = length + len(length_field)
        count = min(left, len(deltas[0]), (self._end - at) // stride)
        # Fields that are equal in all rows: each byte column must be constant. ``count`` shrinks to the rows for which
        # that holds.
        for place, field in (
            (at, length_field),
            (body + value_at - len(value_field), value_field),
            (body + key_at - len(key_field), key_field),
            (body + length - 1, b"\0"),
        ):
            for column_at, byte in enumerate(field, place):
                if count < _LEAST_ROWS:
                    return 0, at
                column = data[column_at : at + count * stride : stride]
                count = agreement(column, bytes((byte,)) * len(column))
        # Offset deltas: consecutive numbers.
        for column_at, expected in enumerate(deltas, body + 1 + timestamp_size):
            column = data[column_at : at + count * stride : stride]
            count = agreement(column, expected[: len(column)])
        fields = [data[body + 1 + byte : at + count * stride : stride] for byte in range(timestamp_size)]
        timestamps = self._timestamps(fields)
        count = len(timestamps)
        if count < _LEAST_ROWS:
            return 0, at
        body += self._shift
        columns = self._columns
        columns.timestamps.extend(timestamps)
        extend_spans(columns.key_starts, columns.key_ends, body + key_at, key_length, stride, count)
        extend_spans(columns.value_starts, columns.value_ends, body + value_at, value_length, stride, count)
        self._delta += count
        return count, at + count * stride

    def _timestamps(self, fields: Sequence[bytes]) -> array[int]:
        """Return the timestamps of the leading records whose timestamp deltas have the given size.

        Args:
            fields: byte columns of the encoded timestamp deltas, one or two.
        """
        base = self._base_timestamp
        first, last = fields[0], fields[-1]
        if not last.isascii():
            # up to the first delta that has more bytes
            last = last[: len(last) - len(last.lstrip(_SEVEN_BITS))]
        if len(fields) == 1:
            if last == last[:1] * len(last):  # all alike
                return array("q", (base + _UNZIGZAG[last[0]],) if last else ()) * len(last)
            return array("q", [base + _UNZIGZAG[value] for value in last])
        if first.translate(None, _SEVEN_BITS) != first:
            # up to the first delta that has only one byte
            first = first[: next(row for row, value in enumerate(first) if value < 0x80)]
        return array("q", [base + _UNZIGZAG[low + (high << 7) - 0x80] for low, high in zip(first, last, strict=False)])


@functools.lru_cache(maxsize=1024)
def _similar_head(
    timestamp_size: int, delta_size: int, key_bytes: int, length_size: int
) -> tuple[Callable[[bytes, int], tuple[Any, ...]], int]:
    """Return the unpacker of the fields before a record's value, and their size.

    For a run of records whose fields have the given sizes. It unpacks the record's length, the bytes of its timestamp
    delta, its offset delta, and the lengths of key and value.
    """
    size, delta = "BH"[length_size - 1], "BH"[delta_size - 1]
    head = struct.Struct(f">{size}x{timestamp_size}s{delta}B{key_bytes}x{size}")
    return head.unpack_from, head.size


def _delta_columns(delta: int, left: int) -> tuple[bytes, ...] | None:
    """Return the byte columns of consecutive offset deltas.

    They end where the deltas need more bytes.
    """
    if delta < _ONE_BYTE:
        return (_SINGLE[delta : delta + left],)
    at = delta % _TWO_BYTES
    if delta < _TWO_BYTES:
        return _LOW[at : at + left], _HIGH[at : at + left]
    if delta < _THREE_BYTES:
        low = _LOW[at : at + left]
        return low, _MIDDLE[at : at + left], bytes((delta // _TWO_BYTES,)) * len(low)
    return None
