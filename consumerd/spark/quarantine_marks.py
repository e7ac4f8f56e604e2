# SPDX-License-Identifier: Apache-2.0
"""Marks of replayed records in the quarantine, by Spark's tasks.

A mark rewrites the files that have marked rows, with the same rows in the same order: ``Operation.UPDATE``. Rows are
named by file and row number of the version that was replayed. If a file has been rewritten since (compaction, another
replay), its rows are found by their identities.
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
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own documents call it so

from consumerd.spark.quarantine_rows import IDENTITY, MARKS, REPLAYED, REPLAYED_TO, add_marks, count_replayed, mark_rows
from consumerd.spark.table.commit import DataFile, Operation, encode_file, files_of
from consumerd.spark.table.errors import TableConflict, TableError
from consumerd.spark.table.files import parse_written
from consumerd.spark.table.parquet_files import FileSettings, PartitionedWriter
from consumerd.spark.table.reading import read_files
from consumerd.spark.table.rewriting import write_part
from consumerd.spark.table.transaction import Table, Transaction

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOB: Final = "replay"
_TRIES: Final = 5
_TASKS_A_CORE: Final = 2
_REWRITTEN: Final = "replaced string, file string"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A mark: when the brokers had acknowledged a record, and into which topic it went."""

    at: datetime
    target: str


def with_marks(frame: DataFrame) -> DataFrame:
    """Return the quarantine's rows with the columns of marks, null if the table lacks them."""
    missing = [name for name in MARKS.names if name not in frame.columns]
    kinds = {REPLAYED: "timestamp", REPLAYED_TO: "string"}
    return reduce(lambda rows, name: rows.withColumn(name, F.lit(None).cast(kinds[name])), missing, frame)


def find_places(rows: DataFrame) -> DataFrame:
    """Return identities, file and row number of rows that were read from the quarantine's files."""
    return rows.select(
        *IDENTITY, F.col("_metadata.file_path").alias("_file"), F.col("_metadata.row_index").alias("_row")
    )


def mark_replayed(session: SparkSession, table: Table, places: DataFrame, *, topic: str, plan: str, mark: Mark) -> int:
    """Mark rows as replayed, in one commit; return how many of them were still there.

    Args:
        places: rows of a version of the table, from :func:`find_places`.
        plan: unique name of the replay.

    Raises TableConflict if other jobs keep changing the same files, TableError, OSError, and what Spark raises.
    """
    for attempt in range(_TRIES):
        try:
            return _try_to_mark(session, table, places, topic, plan, mark)
        except TableConflict:
            if attempt == _TRIES - 1:
                raise
    raise AssertionError("unreachable")


def _try_to_mark(session: SparkSession, table: Table, places: DataFrame, topic: str, plan: str, mark: Mark) -> int:
    with table.begin(plan=plan, job=JOB, operation=Operation.UPDATE) as transaction:
        if (done := transaction.find_done()) is not None:
            return done.counts["replayed"]
        files = {file.path: file for file in files_of(transaction.base.files.values(), topic)}
        read_from = _distinct_files(places, table.path)
        if not files.keys() >= set(read_from.values()):
            schema = table.schema(transaction.base)
            places = _join(find_places(read_files(session, table, files.values(), schema)), places, "left_semi")
            read_from = _distinct_files(places, table.path)
        marks = places.withColumns({REPLAYED: _moment(mark.at), REPLAYED_TO: F.lit(mark.target)})
        sources = {uri: files[path] for uri, path in read_from.items()}
        changed = _rewrite(session, transaction, table.path, marks, sources)
        if not changed.marked:
            return 0
        transaction.remove(file.path for file in changed.replaced)
        transaction.add(changed.written)
        before, after = (sum(file.rows for file in part) for part in (changed.replaced, changed.written))
        if before != after:
            raise TableError(f"{table.path}: {before} rows were to be marked or kept, {after} were written")
        wider = add_marks(table.schema(transaction.base), table.record.partition_by)
        return transaction.commit(counts={"replayed": changed.marked}, schema=wider).counts["replayed"]


def carry_over(
    spark: Callable[[], SparkSession], transaction: Transaction, topic: str, decoded: list[DataFile]
) -> list[DataFile]:
    """Carry marks over into the staged files of a rebuild; return the files.

    Args:
        decoded: staged files of the topic's bad records.

    Raises TableError, OSError, and what Spark raises.
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
    """Return the identities of staged rows, with Spark's metadata."""
    staging = transaction.staging
    reader = session.read.schema(_identities_of(schema)).option("__globPaths__", "false")
    return reader.parquet(*(f"file://{staging / file.path}" for file in files))


def _identities_of(schema: str) -> str:
    kinds = {"integer": "int", "long": "bigint"}
    fields = {field["name"]: field["type"] for field in json.loads(schema)["fields"]}
    return ", ".join(f"`{name}` {kinds.get(fields[name], fields[name])}" for name in IDENTITY)


def _join(rows: DataFrame, others: DataFrame, how: str) -> DataFrame:
    """Join rows and others with the same identity; the result has identities once."""
    right = others.alias("other")
    same = [rows[name].eqNullSafe(F.col(f"other.{name}")) for name in IDENTITY]
    joined = rows.join(right, same, how)
    return joined if how == "left_semi" else joined.select(*(rows[name] for name in rows.columns), *MARKS.names)


def _moment(at: datetime) -> Column:
    return F.lit(at).cast("timestamp")


def _distinct_files(places: DataFrame, root: Path) -> dict[str, str]:
    """Return files with rows: paths below ``root`` by Spark's URIs. Raises TableError."""
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
    """Replaced files, the files in their place, and the number of rows that got marks."""

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
    tasks = min(len(sources), _TASKS_A_CORE * session.sparkContext.defaultParallelism)
    write = _make_rewriter(transaction, root, sources)
    replaced: dict[str, DataFile] = {}
    written: list[DataFile] = []
    marked = 0
    rows = by_file.repartition(tasks, "_file").mapInArrow(write, f"{_REWRITTEN}, marked bigint").collect()
    for row in rows:
        replaced[row["replaced"]] = sources[row["replaced"]]
        written.append(parse_written(row["file"]))
        marked += row["marked"]
    return _Changed(replaced=list(replaced.values()), written=written, marked=marked)


def _make_rewriter(
    transaction: Transaction, root: Path, sources: Mapping[str, DataFile]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function for ``mapInArrow`` that rewrites files with marks."""
    folder, staging, attempt = str(root), str(transaction.staging), transaction.attempt
    partition_by = transaction.table.record.partition_by

    def rewrite(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        task = 0 if context is None else context.taskAttemptId()
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
            counts = [len(marks.values), *([0] * (len(files) - 1))]
            texts = [json.dumps(encode_file(one)) for one in files]
            columns = [pa.array([uri] * len(files), pa.string()), pa.array(texts), pa.array(counts, pa.int64())]
            yield pa.RecordBatch.from_arrays(columns, names=["replaced", "file", "marked"])

    return rewrite


def _marked(path: Path, marks: pa.StructArray) -> Iterator[pa.Table]:
    """Yield a file's rows, row group by row group; ``marks`` is sorted by row number."""
    numbers = marks.field("_row").to_numpy(zero_copy_only=False)
    first = 0
    with pq.ParquetFile(path) as parquet:
        for group in range(parquet.num_row_groups):
            rows = parquet.read_row_group(group, use_threads=False)
            begin, end = np.searchsorted(numbers, first), np.searchsorted(numbers, first + len(rows))
            yield mark_rows(rows, pa.array(numbers[begin:end] - first), marks.slice(begin, end - begin))
            first += len(rows)
