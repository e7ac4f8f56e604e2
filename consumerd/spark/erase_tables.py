# SPDX-License-Identifier: Apache-2.0
"""Search for records in a table's files, and removal of them, in Spark's tasks.

Files are read with pyarrow: identities, and the key where it is searched for. A file that holds wanted records is
written anew without them. A commit replaces a bounded number of files: a run that dies has done a part, and the next
run finds what is left.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from consumerd.spark.identities import DDL, SCHEMA, Identities
from consumerd.spark.table.commit import DataFile, Operation, encode_file, files_of, rows_of
from consumerd.spark.table.errors import TableConflict, TableError
from consumerd.spark.table.files import parse_written
from consumerd.spark.table.parquet_files import FileSettings
from consumerd.spark.table.rewriting import rewrite_without
from consumerd.spark.table.snapshot import Snapshot
from consumerd.spark.table.transaction import Table, Transaction
from consumerd.spark.wanted import SoughtRecords, read_wanted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

JOB: Final = "erase"
UNREADABLE: Final = -1
_TRIES: Final = 3
_FILES_A_COMMIT: Final = 256
_BYTES_A_COMMIT: Final = 4 << 30
_TASKS_A_CORE: Final = 2
_COUNTED: Final = "path string, rows bigint"
_REWRITTEN: Final = "replaced string, file string, rows bigint"

Task = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
TaskMaker = Callable[[list[list[str]]], Task]
"""Makes a task of the paths of each of Spark's partitions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """Result of removing records from a table.

    Attributes:
        rows: number of rows removed.
        files: number of files that were replaced.
        restored: rows that took the place of removed ones (``latest``).
        versions: commits, in their order.
    """

    rows: int = 0
    files: int = 0
    restored: int = 0
    versions: tuple[int, ...] = ()

    def __add__(self, other: Removal) -> Removal:
        return Removal(
            rows=self.rows + other.rows,
            files=self.files + other.files,
            restored=self.restored + other.restored,
            versions=(*self.versions, *other.versions),
        )


def files_of_topic(table: Table, snapshot: Snapshot, topic: str) -> tuple[DataFile, ...]:
    """Return a topic's files; all files of a table that is one topic's own."""
    files = snapshot.files.values()
    return files_of(files, topic) if table.record.partition_by[:1] == ("topic",) else tuple(files)


def find_identities(spark: SparkSession, paths: Sequence[Path], wanted: SoughtRecords, *, limit: int) -> pa.Table:
    """Return the identities of wanted rows, maybe some more than once.

    Args:
        paths: Parquet files.
        limit: of the rows returned.
    """
    rows = _run(spark, paths, _make_finder(wanted), DDL)
    return SCHEMA.empty_table() if rows is None else rows.limit(limit).toArrow().cast(SCHEMA)


def count_wanted(spark: SparkSession, paths: Sequence[Path], wanted: SoughtRecords) -> Mapping[str, int]:
    """Return the number of wanted rows by path, of the files that have any.

    It is ``UNREADABLE`` for damaged files and those without the columns.
    """
    rows = _run(spark, paths, _make_counter(wanted), _COUNTED)
    return {} if rows is None else {row["path"]: row["rows"] for row in rows.collect()}


def remove_rows(
    spark: SparkSession, table: Table, topic: str, identities: Identities, *, counted_by: str, settings: FileSettings
) -> Removal:
    """Remove records of a topic from a table.

    Args:
        counted_by: key of the table's progress that counts removed rows.
        settings: of the new files; their bounds are those of the replaced ones.

    Raises TableConflict if other jobs keep replacing the same files, TableError, OSError, and what Spark raises.
    """

    def rewrite(transaction: Transaction, part: Sequence[DataFile]) -> Removal:
        removal = rewrite_files(spark, transaction, part, identities, settings)
        if not removal.rows:
            return removal
        counts = {counted_by: transaction.base.progress.get(counted_by, 0) + removal.rows}
        commit = transaction.commit(progress=counts, counts={"erased": removal.rows})
        return replace(removal, versions=(commit.version,))

    return remove_in_parts(table, topic, identities, Operation.DELETE, rewrite)


def remove_in_parts(
    table: Table,
    topic: str,
    identities: Identities,
    operation: Operation,
    rewrite: Callable[[Transaction, Sequence[DataFile]], Removal],
) -> Removal:
    """Call ``rewrite`` with parts of the files that may hold identities, each in a transaction.

    Raises TableConflict if other jobs keep replacing the same files, and what ``rewrite`` raises.
    """
    done = Removal()
    conflicts = 0
    while True:
        files = files_of_topic(table, table.snapshot(), topic)
        try:
            for part in _parts([file for file in files if identities.may_be_in(file)]):
                with table.begin(plan=f"{JOB}:{uuid.uuid4().hex}", job=JOB, operation=operation) as transaction:
                    _check_base(transaction, part)
                    done += rewrite(transaction, part)
        except TableConflict:
            conflicts += 1
            if conflicts == _TRIES:
                raise
            continue
        return done


def _check_base(transaction: Transaction, files: Iterable[DataFile]) -> None:
    """Raise TableConflict if another job has replaced files since they were chosen."""
    gone = [file.path for file in files if file.path not in transaction.base.files]
    if gone:
        raise TableConflict(f"{transaction.table.path / gone[0]} was replaced by another job meanwhile; run it again")


def rewrite_files(
    spark: SparkSession,
    transaction: Transaction,
    files: Sequence[DataFile],
    identities: Identities,
    settings: FileSettings,
) -> Removal:
    """Write files anew without some records, and have the transaction replace those that had any."""
    by_path = {file.path: file for file in files}
    table = transaction.table
    task = _make_rewriter(transaction, by_path, identities, settings)
    found = _run(spark, [Path(path) for path in by_path], task, _REWRITTEN)
    rows = [] if found is None else found.collect()
    replaced = [by_path[path] for path in {row["replaced"] for row in rows}]
    new = [parse_written(row["file"]) for row in rows if row["file"] is not None]
    removed = sum(row["rows"] for row in rows)
    if rows_of(replaced) - rows_of(new) != removed:
        raise TableError(
            f"{table.path}: {len(replaced)} files have {rows_of(replaced)} rows by the log, of which {removed} were to "
            f"be removed, and {rows_of(new)} are left; nothing was changed"
        )
    transaction.remove(file.path for file in replaced)
    transaction.add(new)
    return Removal(rows=removed, files=len(replaced))


def _parts(files: Sequence[DataFile]) -> Iterator[list[DataFile]]:
    part: list[DataFile] = []
    size = 0
    for file in files:
        if part and (len(part) == _FILES_A_COMMIT or size + file.size > _BYTES_A_COMMIT):
            yield part
            part, size = [], 0
        part.append(file)
        size += file.size
    if part:
        yield part


# -- tasks


def _run(spark: SparkSession, paths: Sequence[Path], task: TaskMaker, schema: str) -> DataFrame | None:
    """Return the frame of a task's results over files, None without files."""
    if not paths:
        return None
    count = min(len(paths), _TASKS_A_CORE * spark.sparkContext.defaultParallelism)
    groups = [[str(path) for path in paths[place::count]] for place in range(count)]
    return spark.range(0, count, 1, count).mapInArrow(task(groups), schema)


def _own(groups: list[list[str]], batches: Iterable[pa.RecordBatch]) -> list[str]:
    """Return the paths of this task. Its input rows have no meaning."""
    for _ in batches:
        pass
    context = TaskContext.get()
    assert context is not None  # this runs in tasks only
    return groups[context.partitionId()]


def _make_finder(wanted: SoughtRecords) -> TaskMaker:
    def of(groups: list[list[str]]) -> Task:
        def find(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for path in _own(groups, batches):
                for rows, _ in read_wanted(Path(path), wanted):
                    yield from rows.cast(SCHEMA).combine_chunks().to_batches()

        return find

    return of


def _make_counter(wanted: SoughtRecords) -> TaskMaker:
    def of(groups: list[list[str]]) -> Task:
        def count(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for path in _own(groups, batches):
                rows = _count(Path(path), wanted)
                if rows:
                    yield pa.RecordBatch.from_arrays([pa.array([path]), pa.array([rows])], names=["path", "rows"])

        return count

    return of


def _count(path: Path, wanted: SoughtRecords) -> int:
    """Return the number of wanted rows in a file, 0 if it has gone, or ``UNREADABLE``."""
    try:
        return sum(len(numbers) for _, numbers in read_wanted(path, wanted))
    except FileNotFoundError:
        return 0
    except (OSError, pa.ArrowException, KeyError):
        return UNREADABLE


def _make_rewriter(
    transaction: Transaction, files: Mapping[str, DataFile], identities: Identities, settings: FileSettings
) -> TaskMaker:
    home, staging, attempt = str(transaction.table.path), str(transaction.staging), transaction.attempt
    partition_by = transaction.table.record.partition_by
    wanted = SoughtRecords(identities=identities)

    def of(groups: list[list[str]]) -> Task:
        def rewrite(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            own = _own(groups, batches)
            context = TaskContext.get()
            task = 0 if context is None else context.taskAttemptId()
            for number, path in enumerate(own):
                source, file = Path(home) / path, files[path]
                found = [numbers for _, numbers in read_wanted(source, wanted)]
                if not found:
                    continue
                rows = np.concatenate(found)
                new = rewrite_without(
                    source,
                    rows,
                    staging=Path(staging),
                    prefix=f"{attempt}-{task:05d}-{number:05d}",
                    partition_by=partition_by,
                    values=file.values,
                    settings=replace(settings, bounds=tuple(sorted(file.bounds))),
                )
                texts: list[str | None] = [json.dumps(encode_file(one)) for one in new]
                texts = texts or [None]  # no row is left
                counts = [len(rows), *([0] * (len(texts) - 1))]
                yield pa.RecordBatch.from_arrays(
                    [pa.array([path] * len(texts)), pa.array(texts, pa.string()), pa.array(counts)],
                    names=["replaced", "file", "rows"],
                )

        return rewrite

    return of
