# SPDX-License-Identifier: Apache-2.0
"""A DataFrame's columns as records to be written: which columns count, and what each may hold.

The columns and their types are those of Spark's own Kafka sink ("Structured Streaming + Kafka Integration Guide",
Writing Data to Kafka): ``value`` (needed), ``key``, ``topic``, ``partition``, ``headers``. Others are passed over, as
there; so is
``timestamp``, unless it is asked for. Knows Arrow, and of pyspark no more than how a schema is asked for its columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Final, Protocol

from consumerd.errors import ConfigError, ProduceError
from consumerd.model import find_topic_fault
from consumerd.wire.records import Headers

if TYPE_CHECKING:
    import pyarrow as pa

_HEADERS: Final = "array<struct<key:string,value:binary>>"

_EXPECTED: Final[Mapping[str, tuple[str, ...]]] = {
    "value": ("binary", "string"),
    "key": ("binary", "string"),
    "topic": ("string",),
    "partition": ("int",),
    "headers": (_HEADERS,),
    "timestamp": ("timestamp",),
}
"""A column's name to the types that it may have, as ``DataType.simpleString`` says them."""

OutgoingRecord = tuple[str, bytes | None, bytes | None, int | None, int | None, Headers]
"""Topic, key, value, partition, timestamp in ms, headers; None for what the producer is to choose."""


class ColumnType(Protocol):
    """``pyspark.sql.types.DataType`` as it is needed here."""

    def simpleString(self) -> str:  # noqa: N802 - pyspark's name
        """Return the type as SQL has it."""


class Column(Protocol):
    """``pyspark.sql.types.StructField`` as it is needed here."""

    name: str

    @property
    def dataType(self) -> ColumnType:  # noqa: N802 - pyspark's name
        """The type of the column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutgoingColumns:
    """Where a record's parts stand among a DataFrame's columns: places from 0 on, None for what it does not have.

    ``fixed_topic`` is for all records, whatever the column ``topic`` says.
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

        ``first_row`` is how many rows of the task came before, for messages. Raises ProduceError for a row that cannot be
        written, before any of the batch is given out where the column shows it.
        """
        return zip(
            self._topics(batch, first_row),
            _binaries(batch, self.key),
            _binaries(batch, self.value),
            _plain(batch, self.partition),
            _milliseconds(batch, self.timestamp),
            self._headers(batch, first_row),
            strict=False,  # what the DataFrame does not have repeats without end
        )

    def _topics(self, batch: pa.RecordBatch, first_row: int) -> Iterable[str]:
        if self.fixed_topic is not None or self.topic is None:
            assert self.fixed_topic is not None, "a DataFrame without a column topic was refused"
            return repeat(self.fixed_topic, batch.num_rows)
        column = batch.column(self.topic)
        topics: list[str] = column.to_pylist()
        if column.null_count:
            raise ProduceError(
                f"row {first_row + topics.index(None)} of the task: the column topic is null; fill it, or name one topic "  # type: ignore[arg-type]  # there is one, which the list's type leaves out
                "for all rows with the option topic"
            )
        return topics

    def _headers(self, batch: pa.RecordBatch, first_row: int) -> Iterable[Headers]:
        if self.headers is None:
            return repeat(())
        return (
            _read_headers(row, first_row + number) for number, row in enumerate(batch.column(self.headers).to_pylist())
        )


def plan_columns(
    schema: Iterable[Column], *, topic: str | None = None, keep_timestamps: bool = False
) -> OutgoingColumns:
    """Return where records' parts stand in a DataFrame. ``topic`` is the option, for all rows.

    Raises ConfigError for columns that are missing or of another type, and for a topic that none can have.
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
    """A column's cells as bytes; text as UTF-8."""
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
    """A column of timestamps as ms since the epoch; what is finer is cut off, since records have no finer time."""
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
