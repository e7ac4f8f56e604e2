# SPDX-License-Identifier: Apache-2.0
"""Makes records of a DataFrame's rows: the columns that are used, and their types.

They are those of Spark's own Kafka sink ("Structured Streaming + Kafka Integration Guide", Writing Data to Kafka):
``value`` (required), ``key``, ``topic``, ``partition``, ``headers``. Other columns are ignored, as there; ``timestamp``
is used only with the option ``keepTimestamps``. Needs Arrow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Final

from consumerd.errors import ConfigError, ProduceError
from consumerd.model import find_topic_fault
from consumerd.wire.record_fields import Headers

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructField

_HEADERS: Final = "array<struct<key:string,value:binary>>"

_EXPECTED: Final[Mapping[str, tuple[str, ...]]] = {
    "value": ("binary", "string"),
    "key": ("binary", "string"),
    "topic": ("string",),
    "partition": ("int",),
    "headers": (_HEADERS,),
    "timestamp": ("timestamp",),
}
"""Columns with their allowed types, in the notation of ``DataType.simpleString``."""

OutgoingRecord = tuple[str, bytes | None, bytes | None, int | None, int | None, Headers]
"""Topic, key, value, partition, timestamp in ms, headers; the producer chooses a partition or time of None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutgoingColumns:
    """Indexes of the DataFrame columns that become parts of records; None without such a column.

    ``fixed_topic`` is the topic of all records; the column ``topic`` is then ignored. None uses that column.
    """

    value: int
    key: int | None = None
    topic: int | None = None
    partition: int | None = None
    headers: int | None = None
    timestamp: int | None = None
    fixed_topic: str | None = None

    def records(self, batch: pa.RecordBatch, *, first_row: int = 0) -> Iterator[OutgoingRecord]:
        """Iterate over a batch's rows as records, in order.

        Args:
            first_row: number of the task's rows before this batch, for errors.

        Raises ProduceError for a row that cannot be written; for one without a topic before the first record.
        """
        return zip(
            self._topics(batch, first_row),
            _binaries(batch, self.key),
            _binaries(batch, self.value),
            _plain(batch, self.partition),
            _milliseconds(batch, self.timestamp),
            self._headers(batch, first_row),
            strict=False,  # parts without a column are endless repetitions of None
        )

    def _topics(self, batch: pa.RecordBatch, first_row: int) -> Iterable[str]:
        if self.fixed_topic is not None or self.topic is None:
            assert self.fixed_topic is not None, "a DataFrame without a column topic was refused"
            return repeat(self.fixed_topic, batch.num_rows)
        column = batch.column(self.topic)
        topics: list[str] = column.to_pylist()
        if column.null_count:
            raise ProduceError(
                f"row {first_row + topics.index(None)} of the task: "  # type: ignore[arg-type]  # there is a None
                "the column topic is null; fill it, or name one topic for all rows with the option topic"
            )
        return topics

    def _headers(self, batch: pa.RecordBatch, first_row: int) -> Iterable[Headers]:
        if self.headers is None:
            return repeat(())
        return (
            _read_headers(row, first_row + number) for number, row in enumerate(batch.column(self.headers).to_pylist())
        )


def plan_columns(
    schema: Iterable[StructField], *, topic: str | None = None, keep_timestamps: bool = False
) -> OutgoingColumns:
    """Return the DataFrame columns that become the parts of records.

    Args:
        topic: The option ``topic``, which applies to all rows; None to take the column ``topic``.

    Raises ConfigError for missing columns, columns of other types, and an invalid topic name.
    """
    wanted = _EXPECTED if keep_timestamps else {name: _EXPECTED[name] for name in _EXPECTED if name != "timestamp"}
    places: dict[str, int] = {}
    names: list[str] = []
    for place, column in enumerate(schema):
        names.append(column.name)
        if (expected := wanted.get(column.name)) is None:
            continue
        if column.name in places:
            raise ConfigError(f"the DataFrame has two columns {column.name}; leave one of them out")
        if (found := column.dataType.simpleString()) not in expected:
            raise ConfigError(
                f"column {column.name}: expected {' or '.join(expected)}, got {found}; cast it before writing"
            )
        places[column.name] = place
    if "value" not in places:
        raise ConfigError(
            f"the DataFrame has no column value, which is what is written; it has {', '.join(names) or 'none'}"
        )
    if topic is None and "topic" not in places:
        raise ConfigError("where to write to is not said: set the option topic, or give the DataFrame a column topic")
    if topic is not None and (fault := find_topic_fault(topic)):
        raise ConfigError(f"option topic: no topic can have this name: {fault}")
    if keep_timestamps and "timestamp" not in places:
        raise ConfigError("option keepTimestamps: the DataFrame has no column timestamp")
    return OutgoingColumns(fixed_topic=topic, **places)


def _binaries(batch: pa.RecordBatch, place: int | None) -> Iterable[bytes | None]:
    """Return a column's cells as bytes; text as UTF-8."""
    if place is None:
        return repeat(None)
    import pyarrow as pa

    column = batch.column(place)
    if pa.types.is_string(column.type):
        column = column.cast(pa.binary())
    elif pa.types.is_large_string(column.type):
        column = column.cast(pa.large_binary())
    cells: list[bytes | None] = column.to_pylist()
    return cells


def _plain(batch: pa.RecordBatch, place: int | None) -> Iterable[int | None]:
    if place is None:
        return repeat(None)
    cells: list[int | None] = batch.column(place).to_pylist()
    return cells


def _milliseconds(batch: pa.RecordBatch, place: int | None) -> Iterable[int | None]:
    """Return a column of timestamps as ms since the epoch, Kafka's unit; rounded down."""
    if place is None:
        return repeat(None)
    import pyarrow as pa

    column = batch.column(place)
    cells: list[int | None] = column.cast(pa.timestamp("ms", column.type.tz), safe=False).cast(pa.int64()).to_pylist()
    return cells


def _read_headers(row: list[Mapping[str, object] | None] | None, number: int) -> Headers:
    headers: list[tuple[str, bytes | None]] = []
    for place, header in enumerate(row or ()):
        name = None if header is None else header["key"]
        value = None if header is None else header["value"]
        if not isinstance(name, str) or not (value is None or isinstance(value, bytes)):
            raise ProduceError(f"row {number} of the task: header {place} has no key; headers need one")
        headers.append((name, value))
    return tuple(headers)
