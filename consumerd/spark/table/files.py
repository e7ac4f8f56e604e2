# SPDX-License-Identifier: Apache-2.0
"""Writes a DataFrame's rows into Parquet files, by Spark's tasks, in a transaction's staging folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, Row
from pyspark.sql.types import StructType

from consumerd.spark.table.commit import DataFile, encode_file, parse_file
from consumerd.spark.table.errors import TableError
from consumerd.spark.table.parquet_files import FileSettings, PartitionedWriter, to_utc
from consumerd.spark.table.transaction import Transaction
from consumerd.spark.tasks import find_task

WRITTEN: Final = "file string"
"""Schema of the rows that writing tasks return: a data file as JSON."""

REPLACED: Final = "replaced string, file string"
"""Schema of the rows that rewriting tasks return: path of an old file, and a new file as JSON."""

Batches = Iterable[pa.RecordBatch]


def write_frame(
    transaction: Transaction,
    frame: DataFrame,
    *,
    bounds: Sequence[str] = (),
    settings: FileSettings | None = None,
) -> list[DataFile]:
    """Write a DataFrame's rows into staged files; give them to ``transaction.add``.

    Each task writes one file for each combination of partition values that it meets, and keeps the order of rows. Use
    ``repartition`` and ``sortWithinPartitions`` to choose the number of files and their order. An empty DataFrame gives
    no files.

    Args:
        frame: has the table's columns, in any order.
        bounds: columns of which the log keeps the smallest and the largest value of each file (whole numbers,
            timestamps, days, texts).

    Raises TableError for other columns than the table's, and Spark's exception if a task fails.
    """
    columns = check_columns(transaction, frame)
    chosen = replace(settings or FileSettings(), bounds=tuple(bounds))
    write = make_writer(transaction, chosen)
    rows = frame.select(*(frame[f"`{name}`"] for name in columns)).mapInArrow(write, WRITTEN).collect()
    return [parse_written(row["file"]) for row in rows]


def make_writer(transaction: Transaction, settings: FileSettings) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    """Return a function for ``mapInArrow`` that writes rows to new files of a transaction.

    It yields the descriptions of the files, with the columns ``WRITTEN``.
    """
    staging, attempt = transaction.staging, transaction.attempt
    partition_by = transaction.table.record.partition_by

    def write(batches: Batches) -> Iterator[pa.RecordBatch]:
        prefix = f"{attempt}-{find_task():05d}"
        with closing(PartitionedWriter(staging, prefix=prefix, partition_by=partition_by, settings=settings)) as writer:
            for batch in batches:
                writer.append(to_utc(batch))
            files = writer.finish()
        yield from encode_written(files)

    return write


def encode_written(files: Sequence[DataFile]) -> Iterator[pa.RecordBatch]:
    """Yield the result of a writing task: the descriptions of its files, as one batch.

    The batch has the columns ``WRITTEN``. Nothing is yielded without files.
    """
    if files:
        texts = pa.array([json.dumps(encode_file(file)) for file in files], pa.string())
        yield pa.RecordBatch.from_arrays([texts], names=["file"])


def encode_replaced(replaced: str | None, files: Sequence[DataFile], **counts: pa.Scalar) -> pa.RecordBatch:
    """Return the result of rewriting one old file, as a batch with the columns ``REPLACED``.

    It has one row for each new file, or one row with a null if there are none.

    Args:
        replaced: path of the old file; None if it stays, and only ``counts`` are returned.
        counts: values of further columns, in the first row. The other rows have nulls.
    """
    texts: list[str | None] = [json.dumps(encode_file(file)) for file in files]
    texts = texts or [None]
    columns = {"replaced": pa.array([replaced] * len(texts), pa.string()), "file": pa.array(texts, pa.string())}
    for name, value in counts.items():
        columns[name] = pa.array([value.as_py(), *([None] * (len(texts) - 1))], value.type)
    return pa.RecordBatch.from_pydict(columns)


def parse_replaced(rows: Iterable[Row]) -> tuple[list[str], list[DataFile]]:
    """Return the distinct old paths and the new files that rewriting tasks have returned.

    ``rows`` have the columns ``REPLACED``.
    """
    replaced: dict[str, None] = {}
    files = []
    for row in rows:
        if row["replaced"] is not None:
            replaced[row["replaced"]] = None
        if row["file"] is not None:
            files.append(parse_written(row["file"]))
    return list(replaced), files


def parse_written(text: str) -> DataFile:
    """Parse the description of a data file from a task's result."""
    return parse_file(json.loads(text))


def check_columns(transaction: Transaction, frame: DataFrame) -> list[str]:
    """Return the table's columns in their order, if the DataFrame has the same.

    Raises TableError if the DataFrame has other columns, or columns of other types.
    """
    table = transaction.table
    wanted = StructType.fromJson(json.loads(table.schema(transaction.base)))
    found = {field.name: field.dataType for field in frame.schema.fields}
    for field in wanted.fields:
        kind = found.pop(field.name, None)
        if kind is None:
            raise TableError(f"{table.path}: the column {field.name} is missing")
        if kind.simpleString() != field.dataType.simpleString():
            raise TableError(
                f"{table.path}: the column {field.name} is {kind.simpleString()}, the table's is "
                f"{field.dataType.simpleString()}"
            )
    if found:
        raise TableError(f"{table.path} has no column {', '.join(found)}")
    return [field.name for field in wanted.fields]
