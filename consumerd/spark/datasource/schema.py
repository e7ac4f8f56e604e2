# SPDX-License-Identifier: Apache-2.0
"""The columns of a reader, those of Spark's own Kafka source, as Spark's types and as Arrow's.

::

    key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int
    headers array<struct<key: string, value: binary>>     (with includeHeaders)

As in Spark's source, a record without a time (messages up to 0.9, say) has the timestamp -1 ms and the type -1, and one
without headers null instead of an empty array. A time that Spark cannot hold is null.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from consumerd.wire.records import RecordBatch

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS: Final = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
)
HEADERS: Final = "headers array<struct<key: string, value: binary>>"

_MICROSECONDS: Final = 1000
_MOST_MS: Final = (2**63 - 1) // _MICROSECONDS
"""Beyond it, in the year 294247, is nothing that Spark could hold: what says it counted nanoseconds, say."""
_LEAST_ROWS: Final = 1024


def ddl(*, include_headers: bool) -> str:
    """Return the columns as DDL."""
    return f"{COLUMNS}, {HEADERS}" if include_headers else COLUMNS


def arrow_schema(*, include_headers: bool) -> pa.Schema:
    """Return the columns as Arrow has them where Spark takes them: exactly these types, or it refuses the first batch."""
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
    if include_headers:
        header = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
        fields.append(pa.field("headers", pa.list_(header)))
    return pa.schema(fields)


class RowMaker:
    """Makes Spark's rows of record batches of one partition. Needs pyarrow.

    Columns that are the same in every row are made once, as long as the largest batch so far.
    """

    def __init__(self, topic: str, partition: int, *, include_headers: bool) -> None:
        self._topic = topic
        self._partition = partition
        self._include_headers = include_headers
        self._schema = arrow_schema(include_headers=include_headers)
        self._topics: pa.Array | None = None
        self._partitions: pa.Array | None = None

    def make(self, batch: RecordBatch) -> pa.RecordBatch:
        """Return the records as rows. Raises CorruptMessageError where headers cannot be read."""
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
        if self._include_headers:
            columns.append(self._headers(records.column("headers"), count))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _constants(self, count: int) -> tuple[pa.Array, pa.Array]:
        import pyarrow as pa

        if self._topics is None or self._partitions is None or len(self._topics) < count:
            most = max(count, _LEAST_ROWS)
            self._topics = pa.repeat(pa.scalar(self._topic, pa.string()), most)
            self._partitions = pa.repeat(pa.scalar(self._partition, pa.int32()), most)
        return self._topics[:count], self._partitions[:count]

    def _headers(self, headers: pa.ListArray, count: int) -> pa.Array:
        """Return headers under the schema's type, null where there are none."""
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
