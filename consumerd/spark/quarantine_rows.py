# SPDX-License-Identifier: Apache-2.0
"""Rows of the quarantine's files: identities, marks, and filters. Needs no Spark.

A replayed record is marked in two columns: ``replayed``, the time when the brokers had acknowledged it, and
``replayed_to``, the topic. Files written before the first replay do not have them; they read as null.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from consumerd.spark.table.commit import DataFile
from consumerd.spark.table.errors import TableError, VersionVacuumed
from consumerd.spark.table.transaction import Table

IDENTITY: Final = ("incarnation", "broker", "partition", "offset", "index")
"""Columns that identify a record of a topic."""
REPLAYED: Final = "replayed"
REPLAYED_TO: Final = "replayed_to"
MARKS: Final = pa.schema([(REPLAYED, pa.timestamp("us", "UTC")), (REPLAYED_TO, pa.string())])
"""Columns by which a record is marked as replayed; null for a record that was not."""

_FIELDS: Final = [
    {"name": name, "type": kind, "nullable": True, "metadata": {}}
    for name, kind in ((REPLAYED, "timestamp"), (REPLAYED_TO, "string"))
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Conditions for the quarantine's rows that a command counts or removes. None is no condition.

    Attributes:
        before: rows that landed earlier. Rows without a landing time are then not chosen.
        replayed: True for rows marked as replayed only.
    """

    topic: str | None = None
    cause: str | None = None
    before: datetime | None = None
    replayed: bool = False

    def find(self, rows: pa.Table) -> pa.ChunkedArray:
        """Return a mask of rows: True for each that meets the conditions.

        Args:
            rows: rows of the chosen topic, with the columns ``cause``, ``landed`` and ``replayed``.
        """
        conditions = [pa.chunked_array([pa.array(np.ones(len(rows), dtype=bool))])]
        if self.cause is not None:
            conditions.append(pc.equal(rows["cause"], self.cause))
        if self.before is not None:
            landed = rows["landed"].cast(pa.timestamp("us", "UTC"), safe=False)
            conditions.append(pc.less(landed, pa.scalar(self.before, pa.timestamp("us", "UTC"))))
        if self.replayed:
            conditions.append(pc.is_valid(rows[REPLAYED]))
        chosen = conditions[0]
        for one in conditions[1:]:
            chosen = pc.and_(chosen, pc.fill_null(one, False))  # noqa: FBT003 - Arrow's signature
        return chosen


def add_marks(schema: str, partition_by: Sequence[str]) -> str | None:
    """Return a table's columns with those of replay marks; None if it has them.

    Columns are Spark's JSON of a StructType. The partition columns remain last.
    """
    kind = json.loads(schema)
    there = {field["name"] for field in kind["fields"]}
    missing = [field for field in _FIELDS if field["name"] not in there]
    if not missing:
        return None
    at = sum(field["name"] not in partition_by for field in kind["fields"])
    return json.dumps({**kind, "fields": [*kind["fields"][:at], *missing, *kind["fields"][at:]]})


def mark_rows(rows: pa.Table, numbers: pa.Array, marks: pa.StructArray) -> pa.Table:
    """Return rows of a file, some of them marked as replayed.

    Args:
        numbers: ascending numbers of the rows to mark, counted from 0 in ``rows``.
        marks: marks of these rows, with the fields of ``MARKS``.
    """
    is_marked = np.zeros(len(rows), dtype=bool)
    is_marked[numbers.to_numpy(zero_copy_only=False)] = True
    for field in MARKS:
        there = rows.column_names.index(field.name) if field.name in rows.column_names else None
        before = pa.nulls(len(rows), field.type) if there is None else rows[field.name].cast(field.type)
        column = pc.replace_with_mask(before, pa.array(is_marked), marks.field(field.name).cast(field.type))
        rows = rows.append_column(field, column) if there is None else rows.set_column(there, field, column)
    return rows


def read_columns(table: Table, file: DataFile, names: Iterable[str]) -> Iterator[pa.Table]:
    """Yield columns of a file of the quarantine by row groups.

    Columns of replay marks that the file lacks are null. Raises VersionVacuumed if the file was removed, OSError,
    ArrowException.
    """
    wanted = tuple(names)
    try:
        parquet = pq.ParquetFile(table.path / file.path)
    except FileNotFoundError as error:
        raise VersionVacuumed(f"{table.path / file.path} has been removed; read a newer version") from error
    with parquet:
        stored = [name for name in wanted if name not in MARKS.names or name in parquet.schema_arrow.names]
        for number in range(parquet.num_row_groups):
            rows = parquet.read_row_group(number, columns=stored, use_threads=False)
            for name in wanted:
                if name not in stored:
                    rows = rows.append_column(name, pa.nulls(len(rows), MARKS.field(name).type))
            yield rows


def count_replayed(table: Table, files: Iterable[DataFile]) -> int:
    """Return the number of rows marked as replayed in files of the quarantine.

    It is taken from the files' footers if their statistics suffice. Raises VersionVacuumed if a file was removed,
    TableError if one is damaged, OSError.
    """
    total = 0
    for file in files:
        try:
            total += _count_replayed(table, file)
        except pa.ArrowException as error:
            raise TableError(f"{table.path / file.path} cannot be read: {error}") from error
    return total


def _count_replayed(table: Table, file: DataFile) -> int:
    try:
        footer = pq.read_metadata(table.path / file.path)
    except FileNotFoundError as error:
        raise VersionVacuumed(f"{table.path / file.path} has been removed; read a newer version") from error
    names = [footer.schema.column(number).path for number in range(footer.num_columns)]
    if REPLAYED not in names:
        return 0
    columns = [
        footer.row_group(number).column(names.index(REPLAYED)).statistics for number in range(footer.num_row_groups)
    ]
    if all(one is not None and one.has_null_count for one in columns):
        return int(footer.num_rows) - sum(int(one.null_count) for one in columns)
    return sum(len(rows) - rows[REPLAYED].null_count for rows in read_columns(table, file, [REPLAYED]))
