# SPDX-License-Identifier: Apache-2.0
"""A :class:`RecordBatch` as an Arrow record batch, with no Python object a record.

Owns the columns that files and data frames have. Offsets, timestamps and types are the batch's own arrays, not copied.
Keys and values lie scattered in the batch's buffer, between record heads; Arrow wants them in a row. The native kernel
copies them into memory of Arrow's. Without it Arrow's own filter gathers them: over the buffer as it is, an array is laid whose elements are by turns a value and what stands between
two values (the spans' starts and ends, interleaved, are its offsets), and every other element is filtered out.

Needs pyarrow: whoever imports this module has it. :meth:`RecordBatch.to_arrow` imports it when the first batch is converted.
"""

from __future__ import annotations

from array import array
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from consumerd.wire import kernel
from consumerd.wire.records import NO_TIMESTAMP, RecordBatch, decode_headers

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
"""The columns of :func:`to_arrow`."""

_TYPE_VALUES: Final = bytes.maketrans(b"\x00\x01\x02", b"\xff\x00\x01")
"""From a batch's type column, ``TimestampType`` + 1, to int8."""


def to_arrow(batch: RecordBatch) -> pa.RecordBatch:
    """Return the records of ``batch`` under :data:`SCHEMA`. Raises CorruptMessageError where headers cannot be read."""
    count = len(batch)
    offsets = _int64(batch.offsets)
    types = batch.timestamp_types.translate(_TYPE_VALUES) or b"\xff" * count
    indexes = _int64(batch.indexes).cast(pa.int32()) if batch.indexes else None
    buffer = pa.py_buffer(batch.buffer)
    columns = [
        offsets,
        pc.add(offsets, 1),
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
    missing = pc.equal(values, NO_TIMESTAMP)
    return pc.if_else(missing, pa.scalar(None, pa.int64()), values) if missing.true_count else values


def _gather(buffer: pa.Buffer, starts: array[int], ends: array[int]) -> pa.BinaryArray:
    """Return the bytes of the spans, null where a span is."""
    if kernel.gather is not None:
        gathered = kernel.gather.gather(buffer, starts, ends, pa.allocate_buffer)
        if gathered is not None:
            offsets, data, validity, nulls = gathered
            return pa.Array.from_buffers(pa.binary(), len(starts), [validity, offsets, data], null_count=nulls)
    present = pc.greater_equal(_int64(starts), 0)
    count = present.true_count
    if count == len(starts):
        return _gather_present(buffer, starts, ends)
    if count == 0:
        return pa.nulls(len(starts), pa.binary())
    some_starts, some_ends = (
        array("q", bytes(_int64(c).filter(present).buffers()[1])[: 8 * count]) for c in (starts, ends)
    )
    rows = pc.subtract(pc.cumulative_sum(present.cast(pa.int32())), 1)
    return _gather_present(buffer, some_starts, some_ends).take(pc.if_else(present, rows, pa.scalar(None, pa.int32())))


def _gather_present(buffer: pa.Buffer, starts: array[int], ends: array[int]) -> pa.BinaryArray:
    pieces = 2 * len(starts)
    bounds = array("q", bytes(8 * (pieces + 1)))
    bounds[0:pieces:2] = starts
    bounds[1:pieces:2] = ends
    bounds[pieces:] = ends[-1:] or array("q", [0])
    everything = pa.Array.from_buffers(pa.large_binary(), pieces, [None, pa.py_buffer(bounds), buffer])
    wanted = pa.Array.from_buffers(pa.bool_(), pieces, [None, pa.py_buffer(b"\x55" * ((pieces + 7) // 8))])
    return everything.filter(wanted).cast(pa.binary())


def _headers(batch: RecordBatch, kind: pa.ListType) -> pa.ListArray:
    if not batch.header_starts:
        nothing = pa.array([], kind.value_type)
        return pa.Array.from_buffers(
            kind, len(batch), [None, pa.py_buffer(bytes(4 * (len(batch) + 1)))], children=[nothing]
        )
    spans = zip(batch.header_starts, batch.header_ends, strict=True)
    rows = [decode_headers(batch.buffer, start, end) if start >= 0 else () for start, end in spans]
    return pa.array([[{"key": key, "value": value} for key, value in row] for row in rows], kind)
