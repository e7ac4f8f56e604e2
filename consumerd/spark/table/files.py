# SPDX-License-Identifier: Apache-2.0
"""Parquet files of a DataFrame's rows, written by Spark's tasks into a transaction's staging folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from consumerd.spark.table.commit import DataFile, encode_file, parse_file
from consumerd.spark.table.errors import TableError
from consumerd.spark.table.parquet_files import FileSettings, PartitionedWriter, to_utc
from consumerd.spark.table.transaction import Transaction

WRITTEN: Final = "file string"
"""Schema of the rows that tasks return: a data file as JSON."""

Batches = Iterable[pa.RecordBatch]


def write_frame(
    transaction: Transaction,
    frame: DataFrame,
    *,
    bounds: Sequence[str] = (),
    settings: FileSettings | None = None,
) -> list[DataFile]:
    """Write a DataFrame's rows into staged files, to be given to ``transaction.add``.

    The DataFrame has the table's columns, in any order. Each task writes one file for each combination of partition
    values that it meets, and keeps the order of rows. Use ``repartition`` and ``sortWithinPartitions`` to choose how
    many files there are, and how they are sorted. An empty DataFrame gives no files.

    Args:
        bounds: columns (whole numbers, timestamps, days, texts) of which the log keeps the smallest and the largest value.

    Raises TableError for columns that are not the table's, and what Spark raises where a task fails.
    """
    columns = check_columns(transaction, frame)
    chosen = replace(settings or FileSettings(), bounds=tuple(bounds))
    write = make_writer(transaction, chosen)
    rows = frame.select(*(frame[f"`{name}`"] for name in columns)).mapInArrow(write, WRITTEN).collect()
    return [parse_written(row["file"]) for row in rows]


def make_writer(transaction: Transaction, settings: FileSettings) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    """Return the function for ``mapInArrow`` that writes batches and yields their files as ``WRITTEN``."""
    staging, attempt = str(transaction.staging), transaction.attempt
    partition_by = transaction.table.record.partition_by

    def write(batches: Batches) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        task = 0 if context is None else context.taskAttemptId()
        writer = PartitionedWriter(
            Path(staging), prefix=f"{attempt}-{task:05d}", partition_by=partition_by, settings=settings
        )
        try:
            for batch in batches:
                writer.append(to_utc(batch))
            files = writer.finish()
        except BaseException:
            writer.abort()
            raise
        yield from encode_written(files)

    return write


def encode_written(files: Sequence[DataFile]) -> Iterator[pa.RecordBatch]:
    """Yield a batch of ``WRITTEN``, or nothing if there are no files."""
    if files:
        texts = pa.array([json.dumps(encode_file(file)) for file in files], pa.string())
        yield pa.RecordBatch.from_arrays([texts], names=["file"])


def parse_written(text: str) -> DataFile:
    """Read a file off what a task returned."""
    return parse_file(json.loads(text))


def check_columns(transaction: Transaction, frame: DataFrame) -> list[str]:
    """Return the table's columns in their order. Raises TableError where the frame has others, or of other types."""
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
