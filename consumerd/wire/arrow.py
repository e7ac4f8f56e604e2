# SPDX-License-Identifier: Apache-2.0
"""Conversion of a :class:`RecordBatch` to an Arrow record batch, without a Python object per record.

Owns the columns of files and data frames. Offsets, timestamps and types reuse the batch's arrays without a copy. Keys
and values are scattered over the batch's buffer, with record headers between them, and Arrow needs them contiguous:

- The native kernel copies them into memory allocated by Arrow.
- Without it, Arrow's ``filter`` does. The starts and ends of the spans, interleaved, are the offsets of an array over
  the whole buffer. Its elements are alternately a value and the bytes between two values; every second one is kept.

Example: the spans (3, 5) and (9, 12) become the offsets 3, 5, 9, 12, 12. These are the elements [3, 5), [5, 9), [9, 12)
and [12, 12), of which the first and the third are kept.

Importing this module needs pyarrow. ``RecordBatch.to_arrow`` imports it on first use.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from consumerd.wire import kernel
from consumerd.wire.record_fields import NO_TIMESTAMP, decode_headers

_HEADER: Final = pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())])

SCHEMA: Final = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("next_offset", pa.int64(), nullable=False),
        pa.field("index", pa.int32(), nullable=False),
        pa.field("timestamp", pa.timestamp("ms", "UTC")),
        pa.field("timestamp_type", pa.int8(), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", pa.list_(_HEADER), nullable=False),
    ]
)
"""Arrow columns that :func:`to_arrow` returns."""


def _scalar(kind: pa.DataType, value: int | None) -> pa.Scalar:
    """Return a scalar of a signed integer type, without ``pa.scalar``.

    That and ``pa.array`` import pandas on their first call, if pandas is installed. That takes up to seconds, in which
    the event loop of a consumer would stand still.
    """
    size = kind.bit_width // 8
    validity = pa.py_buffer(b"\x00" if value is None else b"\x01")
    data = pa.py_buffer((value or 0).to_bytes(size, sys.byteorder, signed=True))
    return pa.Array.from_buffers(kind, 1, [validity, data])[0]


_ZERO: Final = _scalar(pa.int64(), 0)
_ONE: Final = _scalar(pa.int64(), 1)
_NO_TIMESTAMP: Final = _scalar(pa.int64(), NO_TIMESTAMP)
_NULL: Final = _scalar(pa.int64(), None)
_ONE_INDEX: Final = _scalar(pa.int32(), 1)
_NULL_INDEX: Final = _scalar(pa.int32(), None)

_TYPE_VALUES: Final = bytes.maketrans(b"\x00\x01\x02", b"\xff\x00\x01")
"""Translation from a batch's type column, ``TimestampType`` + 1, to int8."""


class RecordColumns(Protocol):
    """Interface of a batch of records as columns, which ``RecordBatch`` implements.

    Columns have one element per record. Keys, values and headers are columns of start and end positions in one buffer.
    """

    # Properties, because the columns of a frozen batch cannot be assigned.
    @property
    def buffer(self) -> bytes | bytearray | memoryview:
        """Bytes that the columns of starts and ends point into."""

    @property
    def offsets(self) -> array[int]:
        """Offset of each record."""

    @property
    def indexes(self) -> array[int]:
        """Index of each record among those with its offset, from 0; may be empty.

        Empty if all are 0. Only Kafka 0.7 has others, since it gives all records of a compressed message one offset.
        """

    @property
    def next_offsets(self) -> array[int]:
        """Offset after each record; empty if that is each record's offset plus one."""

    @property
    def timestamps(self) -> array[int]:
        """Timestamp of each record, in ms since the epoch; -1 without one."""

    @property
    def timestamp_types(self) -> bytes:
        """``TimestampType`` + 1 of each record, one byte each; may be empty.

        0 is a record without a timestamp, 1 the producer's time, 2 the broker's time. Empty if no record has a
        timestamp.
        """

    @property
    def key_starts(self) -> array[int]:
        """Position in :attr:`buffer` at which each key starts; -1 for a null key."""

    @property
    def key_ends(self) -> array[int]:
        """Position in :attr:`buffer` after each key; -1 for a null key."""

    @property
    def value_starts(self) -> array[int]:
        """Position in :attr:`buffer` at which each value starts; -1 for a null value."""

    @property
    def value_ends(self) -> array[int]:
        """Position in :attr:`buffer` after each value; -1 for a null value."""

    @property
    def header_starts(self) -> array[int]:
        """Position in :attr:`buffer` at which each record's encoded headers start; -1 without headers.

        The column is empty if no record of the batch has headers.
        """

    @property
    def header_ends(self) -> array[int]:
        """Position in :attr:`buffer` after each record's encoded headers; -1 without headers.

        The column is empty if no record of the batch has headers.
        """

    def __len__(self) -> int: ...


def to_arrow(batch: RecordColumns) -> pa.RecordBatch:
    """Return the records of a batch as an Arrow record batch with :data:`SCHEMA`.

    Raises CorruptMessageError for headers that cannot be decoded.
    """
    count = len(batch)
    offsets = _int64(batch.offsets)
    types = batch.timestamp_types.translate(_TYPE_VALUES) or b"\xff" * count
    indexes = _int64(batch.indexes).cast(pa.int32()) if batch.indexes else None
    buffer = pa.py_buffer(batch.buffer)
    columns = [
        offsets,
        _int64(batch.next_offsets) if batch.next_offsets else pc.add(offsets, _ONE),
        pa.Array.from_buffers(pa.int32(), count, [None, pa.py_buffer(bytes(4 * count))])
        if indexes is None
        else indexes,
        _timestamps(batch.timestamps).cast(SCHEMA.field("timestamp").type),
        pa.Array.from_buffers(pa.int8(), count, [None, pa.py_buffer(types)]),
        _gather(buffer, batch.key_starts, batch.key_ends),
        _gather(buffer, batch.value_starts, batch.value_ends),
        _headers(batch, SCHEMA.field("headers").type),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _int64(column: array[int]) -> pa.Int64Array:
    return pa.Array.from_buffers(pa.int64(), len(column), [None, pa.py_buffer(column)])


def _timestamps(column: array[int]) -> pa.Int64Array:
    values = _int64(column)
    missing = pc.equal(values, _NO_TIMESTAMP)
    return pc.if_else(missing, _NULL, values) if missing.true_count else values


def _gather(buffer: pa.Buffer, starts: array[int], ends: array[int]) -> pa.BinaryArray:
    """Return the bytes of the spans as an Arrow array; null for null spans."""
    if kernel.gather is not None:
        gathered = kernel.gather.gather(buffer, starts, ends, pa.allocate_buffer)
        if gathered is not None:
            offsets, data, validity, nulls = gathered
            return pa.Array.from_buffers(pa.binary(), len(starts), [validity, offsets, data], null_count=nulls)
    present = pc.greater_equal(_int64(starts), _ZERO)
    count = present.true_count
    if count == len(starts):
        return _gather_present(buffer, starts, ends)
    if count == 0:
        return pa.nulls(len(starts), pa.binary())
    some_starts, some_ends = (
        array("q", bytes(_int64(c).filter(present).buffers()[1])[: 8 * count]) for c in (starts, ends)
    )
    # the non-null spans are gathered alone, and then each row takes its element of them, or null
    rows = pc.subtract(pc.cumulative_sum(present.cast(pa.int32())), _ONE_INDEX)
    return _gather_present(buffer, some_starts, some_ends).take(pc.if_else(present, rows, _NULL_INDEX))


def _gather_present(buffer: pa.Buffer, starts: array[int], ends: array[int]) -> pa.BinaryArray:
    """Return the bytes of spans of which none is null, by Arrow's ``filter``."""
    pieces = 2 * len(starts)
    bounds = array("q", bytes(8 * (pieces + 1)))
    bounds[0:pieces:2] = starts
    bounds[1:pieces:2] = ends
    bounds[pieces:] = ends[-1:] or array("q", [0])
    everything = pa.Array.from_buffers(pa.large_binary(), pieces, [None, pa.py_buffer(bounds), buffer])
    # bits 0, 2, 4... set: the values, not the bytes between them
    wanted = pa.Array.from_buffers(pa.bool_(), pieces, [None, pa.py_buffer(b"\x55" * ((pieces + 7) // 8))])
    return everything.filter(wanted).cast(pa.binary())


def _headers(batch: RecordColumns, kind: pa.ListType) -> pa.ListArray:
    count = len(batch)
    headers: list[tuple[str, bytes | None]] = []
    ends = array("i", bytes(4 * (count + 1)))
    if batch.header_starts:
        for row, (start, end) in enumerate(zip(batch.header_starts, batch.header_ends, strict=True), 1):
            headers += decode_headers(batch.buffer, start, end) if start >= 0 else ()
            ends[row] = len(headers)
    key, value = (kind.value_type.field(name) for name in ("key", "value"))
    columns = [
        _join(key.type, [name.encode() for name, _ in headers]),
        _join(value.type, [content for _, content in headers]),
    ]
    structs = pa.Array.from_buffers(kind.value_type, len(headers), [None], children=columns)
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(ends)], children=[structs])


def _join(kind: pa.DataType, values: Sequence[bytes | None]) -> pa.Array:
    """Return values as an Arrow array of strings or bytes; null for None."""
    offsets = array("i", [0, *accumulate(0 if value is None else len(value) for value in values)])
    present = pa.py_buffer(bytes(value is not None for value in values))
    flags = pa.Array.from_buffers(pa.uint8(), len(values), [None, present]).cast(pa.bool_())
    data = pa.py_buffer(b"".join(value for value in values if value is not None))
    return pa.Array.from_buffers(kind, len(values), [flags.buffers()[1], pa.py_buffer(offsets), data])
