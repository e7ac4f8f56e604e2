# SPDX-License-Identifier: Apache-2.0
"""Marks replayed records in the quarantine, in Spark's tasks.

A mark is the time of the replay and its target topic. Files with marked rows are rewritten, with the same rows in the
same order (``Operation.UPDATE``). A replay names its rows by file and row number in the version that it has read. If
such a file has been replaced since, by compaction or another replay, its rows are found by their identities.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own documents call it so

from consumerd.spark.quarantine_rows import IDENTITY, MARKS, REPLAYED, REPLAYED_TO, add_marks, count_replayed, mark_rows
from consumerd.spark.table.commit import DataFile, Operation, files_of, rows_of
from consumerd.spark.table.errors import TableError
from consumerd.spark.table.files import REPLACED, encode_replaced, parse_replaced
from consumerd.spark.table.parquet_files import FileSettings, PartitionedWriter
from consumerd.spark.table.reading import read_files
from consumerd.spark.table.rewriting import write_part
from consumerd.spark.table.task_rows import read_row_groups
from consumerd.spark.table.transaction import Table, Transaction, retry_conflicts
from consumerd.spark.tasks import find_task, max_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOB: Final = "replay"
"""Name of the job in the table's commits."""
_MAX_ATTEMPTS: Final = 5
"""Attempts to commit while other jobs change the same files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Mark of replayed records: the time of the replay and its target topic.

    ``at`` is the time when the brokers had acknowledged all of the records.
    """

    at: datetime
    target: str


def with_marks(frame: DataFrame) -> DataFrame:
    """Return the quarantine's rows with the columns ``replayed`` and ``replayed_to``.

    They are null if the table does not have them yet.
    """
    missing = [name for name in MARKS.names if name not in frame.columns]
    kinds = {REPLAYED: "timestamp", REPLAYED_TO: "string"}
    return reduce(lambda rows, name: rows.withColumn(name, F.lit(None).cast(kinds[name])), missing, frame)


def find_places(rows: DataFrame) -> DataFrame:
    """Return identity, file and row number of rows read from the quarantine's files.

    An identity is incarnation, broker, partition, offset and index. :func:`mark_replayed` finds the rows again by file
    and row number, or by identity if the file has been replaced.
    """
    return rows.select(
        *IDENTITY, F.col("_metadata.file_path").alias("_file"), F.col("_metadata.row_index").alias("_row")
    )


def mark_replayed(session: SparkSession, table: Table, places: DataFrame, *, topic: str, plan: str, mark: Mark) -> int:
    """Mark quarantined rows as replayed, in one commit; return their number.

    Rows that no longer exist are not counted.

    Args:
        places: rows of a version of the table, from :func:`find_places`.
        plan: unique name of the replay.

    Raises TableConflict if other jobs keep changing the same files, TableError, OSError, and Spark's exceptions.
    """
    return retry_conflicts(
        lambda: _try_to_mark(session, table, places, topic, plan, mark),
        most=_MAX_ATTEMPTS,
    )


def _try_to_mark(session: SparkSession, table: Table, places: DataFrame, topic: str, plan: str, mark: Mark) -> int:
    with table.begin(plan=plan, job=JOB, operation=Operation.UPDATE) as transaction:
        if (done := transaction.find_done()) is not None:
            return done.counts["replayed"]
        files = {file.path: file for file in files_of(transaction.base.files.values(), topic)}
        read_from = _distinct_files(places, table.path)
        # another job has replaced a file that the replay has read: find the rows in the present files by identity
        if not files.keys() >= set(read_from.values()):
            schema = table.schema(transaction.base)
            places = _join(find_places(read_files(session, table, files.values(), schema)), places, "left_semi")
            read_from = _distinct_files(places, table.path)
        marks = places.withColumns({REPLAYED: F.lit(mark.at).cast("timestamp"), REPLAYED_TO: F.lit(mark.target)})
        sources = {uri: files[path] for uri, path in read_from.items()}
        changed = _rewrite(session, transaction, table.path, marks, sources)
        if not changed.marked:
            return 0
        transaction.remove(file.path for file in changed.replaced)
        transaction.add(changed.written)
        before, after = rows_of(changed.replaced), rows_of(changed.written)
        if before != after:
            raise TableError(f"{table.path}: {before} rows were to be marked or kept, {after} were written")
        wider = add_marks(table.schema(transaction.base), table.record.partition_by)
        return transaction.commit(counts={"replayed": changed.marked}, schema=wider).counts["replayed"]


def copy_marks(
    spark: Callable[[], SparkSession], transaction: Transaction, topic: str, decoded: list[DataFile]
) -> list[DataFile]:
    """Copy the marks of replayed records to a rebuild's new files; return these.

    A rebuild decodes all records of a topic again, so its bad records have no marks at first.

    Args:
        decoded: new files with the topic's bad records, not committed yet.

    Raises TableError, OSError, and Spark's exceptions.
    """
    table, before = transaction.table, files_of(transaction.base.files.values(), topic)
    if not decoded or not count_replayed(table, before):
        return decoded
    session = spark()
    schema = table.schema(transaction.base)
    marked = read_files(session, table, before, schema).where(F.col(REPLAYED).isNotNull())
    staged = find_places(_read_staged(session, transaction, decoded, schema))
    marks = _join(staged, marked.select(*IDENTITY, *MARKS.names), "inner")
    by_path = {file.path: file for file in decoded}
    sources = {uri: by_path[path] for uri, path in _distinct_files(marks, transaction.staging).items()}
    changed = _rewrite(session, transaction, transaction.staging, marks, sources)
    replaced = {file.path for file in changed.replaced}
    return [*(file for file in decoded if file.path not in replaced), *changed.written]


def _read_staged(session: SparkSession, transaction: Transaction, files: Iterable[DataFile], schema: str) -> DataFrame:
    """Return the identities of staged rows, with Spark's metadata columns."""
    staging = transaction.staging
    reader = session.read.schema(_identities_of(schema)).option("__globPaths__", "false")
    return reader.parquet(*(f"file://{staging / file.path}" for file in files))


def _identities_of(schema: str) -> str:
    """Return the identity columns of a table's schema in Spark's notation."""
    kinds = {"integer": "int", "long": "bigint"}
    fields = {field["name"]: field["type"] for field in json.loads(schema)["fields"]}
    return ", ".join(f"`{name}` {kinds.get(fields[name], fields[name])}" for name in IDENTITY)


def _join(rows: DataFrame, others: DataFrame, how: str) -> DataFrame:
    """Join two sets of rows by identity; the result has the identity columns once."""
    right = others.alias("other")
    same = [rows[name].eqNullSafe(F.col(f"other.{name}")) for name in IDENTITY]
    joined = rows.join(right, same, how)
    return joined if how == "left_semi" else joined.select(*(rows[name] for name in rows.columns), *MARKS.names)


def _distinct_files(places: DataFrame, root: Path) -> dict[str, str]:
    """Return the files of these rows: paths relative to ``root`` by Spark's URIs.

    Raises TableError if a file is not below ``root``.
    """
    found: dict[str, str] = {}
    for row in places.select("_file").distinct().collect():
        path = Path("/" + unquote(row[0]).removeprefix("file:").lstrip("/"))
        if not path.is_relative_to(root):
            raise TableError(f"{path} does not lie below {root}")
        found[row[0]] = str(path.relative_to(root))
    return found


# -- rewriting


@dataclass(frozen=True, slots=True, kw_only=True)
class _Changed:
    """Replaced files, the new files in their place, and the number of marked rows."""

    replaced: list[DataFile]
    written: list[DataFile]
    marked: int


def _rewrite(
    session: SparkSession, transaction: Transaction, root: Path, marks: DataFrame, sources: Mapping[str, DataFile]
) -> _Changed:
    """Rewrite files with marks.

    Args:
        root: folder that the files' paths are relative to.
        marks: columns ``_file``, ``_row`` and those of ``MARKS``.
        sources: files by ``_file``.
    """
    if not sources:
        return _Changed(replaced=[], written=[], marked=0)
    one = F.struct("_row", *MARKS.names)
    by_file = marks.groupBy("_file").agg(F.sort_array(F.collect_list(one)).alias("marks"))
    tasks = min(len(sources), max_tasks(session))
    write = _make_rewriter(transaction, root, sources)
    rows = by_file.repartition(tasks, "_file").mapInArrow(write, f"{REPLACED}, marked bigint").collect()
    replaced, written = parse_replaced(rows)
    marked = sum(row["marked"] or 0 for row in rows)
    return _Changed(replaced=[sources[uri] for uri in replaced], written=written, marked=marked)


def _make_rewriter(
    transaction: Transaction, root: Path, sources: Mapping[str, DataFile]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function for ``mapInArrow`` that rewrites files with marks."""
    folder, staging, attempt = str(root), str(transaction.staging), transaction.attempt
    partition_by = transaction.table.record.partition_by

    def rewrite(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = find_task()
        pairs = (pair for batch in batches for pair in zip(batch["_file"].to_pylist(), batch["marks"], strict=True))
        for number, (uri, marks) in enumerate(pairs):
            file = sources[uri]
            writer = PartitionedWriter(
                Path(staging),
                prefix=f"{attempt}-m{task:05d}-{number:05d}",
                partition_by=partition_by,
                settings=FileSettings(bounds=tuple(sorted(file.bounds))),
            )
            marked = _marked(Path(folder) / file.path, marks.values)
            batches = (batch for rows in marked for batch in rows.combine_chunks().to_batches())
            files = write_part(writer, file.values, batches)
            yield encode_replaced(uri, files, marked=pa.scalar(len(marks.values), pa.int64()))

    return rewrite


def _marked(path: Path, marks: pa.StructArray) -> Iterator[pa.Table]:
    """Yield a file's rows with their marks, row group by row group.

    Args:
        marks: marks sorted by row number.
    """
    numbers = marks.field("_row").to_numpy(zero_copy_only=False)
    first = 0
    for rows in read_row_groups(path):
        begin, end = np.searchsorted(numbers, first), np.searchsorted(numbers, first + len(rows))
        yield mark_rows(rows, pa.array(numbers[begin:end] - first), marks.slice(begin, end - begin))
        first += len(rows)
