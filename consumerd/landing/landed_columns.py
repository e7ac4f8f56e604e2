# SPDX-License-Identifier: Apache-2.0
"""Columns of landed Parquet files: a record's origin, and the columns of ``wire.arrow``.

``topic``, ``partition`` and ``broker`` are constant within a file. ``broker`` is null except for partitions of Kafka
0.7, which belong to a broker: partition 3 of broker 0 is ``partition=0-3`` in the path, and ``broker`` 0, ``partition``
3 in the rows.

The Parquet writer gets the topic as a dictionary of one value, so that no string is hashed row by row. Readers see a
plain string (the writer stores no Arrow schema).
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from consumerd.model import TopicPartition
from consumerd.wire.arrow import SCHEMA

PLACE_COLUMNS: Final = ("topic", "partition", "broker")
"""Columns that have one value in all rows of a file: topic, partition, broker."""

_INDEX: Final = pa.int8()

_SAMPLE_ROWS: Final = 2000
"""Number of a column's first rows by which its encoding is chosen."""
_MAX_DISTINCT_SHARE: Final = 0.25
"""Share of distinct values in the sample up to which a column gets a dictionary."""

LANDED_SCHEMA: Final = pa.schema(
    [
        pa.field("topic", pa.dictionary(_INDEX, pa.string()), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("broker", pa.int32()),
        *SCHEMA,
    ]
)
"""Arrow schema of the tables that are given to the Parquet writer."""


def with_place(records: pa.Table, partition: TopicPartition) -> pa.Table:
    """Return the records with columns for topic, partition and broker before their own.

    The result has LANDED_SCHEMA. All records are of the one ``partition``.
    """
    count, key = len(records), partition.partition
    first = pa.Array.from_buffers(_INDEX, count, [None, pa.py_buffer(bytes(count))])
    columns = [
        pa.DictionaryArray.from_arrays(first, pa.array([partition.topic], pa.string())),
        pa.repeat(pa.scalar(key.number, pa.int32()), count),
        pa.nulls(count, pa.int32()) if key.broker is None else pa.repeat(pa.scalar(key.broker, pa.int32()), count),
    ]
    return pa.Table.from_arrays([*columns, *records.columns], schema=LANDED_SCHEMA)


def repeats(column: pa.ChunkedArray) -> bool:
    """Return True if a column's values repeat enough for a dictionary encoding.

    Only the first rows are examined: at most a quarter of their values may be distinct. False for an empty column.
    """
    sample = column.slice(0, _SAMPLE_ROWS)
    return len(sample) > 0 and pc.count_distinct(sample, mode="all").as_py() <= len(sample) * _MAX_DISTINCT_SHARE
