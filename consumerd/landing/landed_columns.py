# SPDX-License-Identifier: Apache-2.0
"""Columns of landed Parquet files: where a record is from, and those of ``wire.arrow``.

``topic``, ``partition`` and ``broker`` are constant within a file. ``broker`` is null but for partitions of Kafka 0.7, which
live on a broker: partition 3 of broker 0 is ``partition=0-3`` in the path, and ``broker`` 0, ``partition`` 3 in the rows.

The topic is handed to the Parquet writer as a dictionary of one value, so that no string is hashed row by row. Readers
see a plain string (the writer stores no Arrow schema).
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from consumerd.model import TopicPartition
from consumerd.wire.arrow import SCHEMA

PLACE_COLUMNS: Final = ("topic", "partition", "broker")
"""The constant columns."""

_INDEX: Final = pa.int8()

LANDED_SCHEMA: Final = pa.schema(
    [
        pa.field("topic", pa.dictionary(_INDEX, pa.string()), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("broker", pa.int32()),
        *SCHEMA,
    ]
)
"""The columns as they are given to the Parquet writer."""


def with_place(records: pa.Table, partition: TopicPartition) -> pa.Table:
    """Return a table of records under LANDED_SCHEMA, all of one partition."""
    count, key = len(records), partition.partition
    first = pa.Array.from_buffers(_INDEX, count, [None, pa.py_buffer(bytes(count))])
    columns = [
        pa.DictionaryArray.from_arrays(first, pa.array([partition.topic], pa.string())),
        pa.repeat(pa.scalar(key.number, pa.int32()), count),
        pa.nulls(count, pa.int32()) if key.broker is None else pa.repeat(pa.scalar(key.broker, pa.int32()), count),
    ]
    return pa.Table.from_arrays([*columns, *records.columns], schema=LANDED_SCHEMA)
