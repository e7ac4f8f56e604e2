# SPDX-License-Identifier: Apache-2.0
"""Columns of a reader, as Spark's and Arrow's types: those of Spark's own Kafka source.

::

    key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int
    headers array<struct<key: string, value: binary>>     (with includeHeaders)
    broker int, index int, next_offset bigint             (with includeBroker)

As in Spark's source, a record without a timestamp (such as a message of Kafka 0.9) has timestamp -1 ms and type -1, and
a record without headers has null instead of an empty array. A timestamp that Spark cannot hold is null.

With ``includeBroker``, topic, broker, partition, offset and index identify a record in all releases. ``broker`` is null
from 0.8 on, and ``index`` is 0 there. In Kafka 0.6 and 0.7 partition 3 of broker 0 is ``0-3``, and records of one
compressed message have one offset. ``next_offset`` is behind the record, or behind that message.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from consumerd.model import TopicPartition
from consumerd.wire.records import RecordBatch

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS: Final = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
)
HEADERS: Final = "headers array<struct<key: string, value: binary>>"
BROKER: Final = "broker int, index int, next_offset bigint"

_MICROSECONDS: Final = 1000
_MOST_MS: Final = (2**63 - 1) // _MICROSECONDS
"""Largest timestamp that Spark can hold, in the year 294247. Larger ones may be in nanoseconds by mistake."""
_LEAST_ROWS: Final = 1024
"""Least length of the columns that are made once and sliced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderColumns:
    """Optional columns of a reader, by the options of the same names."""

    include_headers: bool = False
    include_broker: bool = False


def ddl(columns: ReaderColumns) -> str:
    """Return the columns of a reader as DDL, such as ``key binary, value binary, ...``."""
    return ", ".join(
        (COLUMNS, *((HEADERS,) if columns.include_headers else ()), *((BROKER,) if columns.include_broker else ()))
    )


def arrow_schema(columns: ReaderColumns) -> pa.Schema:
    """Return the columns of a reader as Arrow types; Spark refuses batches with any others."""
    import pyarrow as pa

    fields = [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", "UTC")),
        pa.field("timestampType", pa.int32()),
    ]
    if columns.include_headers:
        header = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
        fields.append(pa.field("headers", pa.list_(header)))
    if columns.include_broker:
        fields += [
            pa.field("broker", pa.int32()),
            pa.field("index", pa.int32()),
            pa.field("next_offset", pa.int64()),
        ]
    return pa.schema(fields)


class RowMaker:
    """Converts record batches of one partition into rows for Spark. Needs pyarrow."""

    def __init__(self, partition: TopicPartition, columns: ReaderColumns = ReaderColumns()) -> None:
        self._partition = partition
        self._columns = columns
        self._schema = arrow_schema(columns)
        self._topics: pa.Array | None = None
        self._partitions: pa.Array | None = None

    def make(self, batch: RecordBatch) -> pa.RecordBatch:
        """Return the records as rows. Raises CorruptMessageError for unreadable headers."""
        import pyarrow as pa
        import pyarrow.compute as pc

        records = batch.to_arrow()
        count = len(batch)
        topics, partitions = self._constants(count)
        times = pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(batch.timestamps)])
        extent = pc.min_max(times)
        if count and not -_MOST_MS <= extent["min"].as_py() <= extent["max"].as_py() <= _MOST_MS:
            fits = pc.and_(pc.greater_equal(times, -_MOST_MS), pc.less_equal(times, _MOST_MS))
            times = pc.if_else(fits, times, None)
        timestamps = pc.multiply(times, _MICROSECONDS)
        columns = [
            records.column("key"),
            records.column("value"),
            topics,
            partitions,
            records.column("offset"),
            pc.cast(timestamps, self._schema.field("timestamp").type),
            pc.cast(records.column("timestamp_type"), pa.int32()),
        ]
        if self._columns.include_headers:
            columns.append(self._headers(records.column("headers"), count))
        if self._columns.include_broker:
            broker = pa.scalar(self._partition.partition.broker, pa.int32())
            columns += [pa.repeat(broker, count), records.column("index"), records.column("next_offset")]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _constants(self, count: int) -> tuple[pa.Array, pa.Array]:
        """Return the columns ``topic`` and ``partition``, slices of arrays that later batches share."""
        import pyarrow as pa

        if self._topics is None or self._partitions is None or len(self._topics) < count:
            most = max(count, _LEAST_ROWS)
            self._topics = pa.repeat(pa.scalar(self._partition.topic, pa.string()), most)
            self._partitions = pa.repeat(pa.scalar(self._partition.partition.number, pa.int32()), most)
        return self._topics[:count], self._partitions[:count]

    def _headers(self, headers: pa.ListArray, count: int) -> pa.Array:
        """Return headers in the schema's type, null for records without headers."""
        import pyarrow as pa
        import pyarrow.compute as pc

        kind = self._schema.field("headers").type
        if len(headers.values) == 0:
            return pa.nulls(count, kind)
        pairs = headers.values
        pairs = pa.StructArray.from_arrays([pairs.field("key"), pairs.field("value")], fields=list(kind.value_type))
        return pa.ListArray.from_arrays(
            headers.offsets, pairs, type=kind, mask=pc.equal(pc.list_value_length(headers), 0)
        )
