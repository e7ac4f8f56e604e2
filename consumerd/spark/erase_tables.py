# SPDX-License-Identifier: Apache-2.0
"""Searches a table's files for records, and removes records from them, in Spark's tasks.

Tasks read the files with pyarrow: the columns of identities, and the key if it is searched for. A file with wanted
records is replaced by a new file without them. Each commit replaces a limited number of files. If a run dies, its
commits stay, and the next run finds the remaining records.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from consumerd.spark.identities import COLUMNS, DDL, SCHEMA, Identities, Mask
from consumerd.spark.table.commit import DataFile, Operation, cut_files, files_of, rows_of
from consumerd.spark.table.errors import TableError
from consumerd.spark.table.files import REPLACED, encode_replaced, parse_replaced
from consumerd.spark.table.parquet_files import FileSettings
from consumerd.spark.table.rewriting import RowNumbers, rewrite_without
from consumerd.spark.table.snapshot import Snapshot
from consumerd.spark.table.task_rows import read_row_groups
from consumerd.spark.table.transaction import Table, Transaction, retry_conflicts
from consumerd.spark.tasks import deal, find_task, run_shares

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NO_IDENTITIES: Final = Identities({})
"""Empty set of record identities."""
_KEY: Final = "key"
JOB: Final = "erase"
"""Name of the job in the table's commits."""
UNREADABLE: Final = -1
"""Replaces the number of wanted rows, for a file that cannot be searched."""
_MAX_FILES_PER_COMMIT: Final = 256
"""Limit of the files that one commit replaces."""
_MAX_BYTES_PER_COMMIT: Final = 4 << 30
"""Limit of the bytes of files that one commit replaces.

A larger file has a commit of its own.
"""
_COUNTED: Final = "path string, rows bigint"
"""Schema of the rows that counting tasks return."""
_REWRITTEN: Final = f"{REPLACED}, rows bigint"
"""Schema of the rows that rewriting tasks return; ``rows`` is the number of removed rows."""

Task = Callable[[Sequence[Path]], Iterator[pa.RecordBatch]]
"""Function of a Spark task that works on some of the files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """Result of removing records from a table.

    Attributes:
        rows: number of rows removed.
        files: number of files replaced.
        restored: number of rows put back into the table ``latest``, which has one row for each key: an older record of
            the key takes the place of the removed one. 0 for other tables.
        versions: versions of the commits, ascending.
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
    """Return the files of a table that may have a topic's records.

    These are all files if the table has one topic only.
    """
    files = snapshot.files.values()
    return files_of(files, topic) if table.record.partition_by[:1] == ("topic",) else tuple(files)


def find_identities(spark: SparkSession, paths: Sequence[Path], wanted: SoughtRecords, *, limit: int) -> pa.Table:
    """Return the identities of wanted records in Parquet files.

    An identity is incarnation, broker, partition, offset and index. One may occur more than once.

    Args:
        paths: Parquet files.
        limit: largest number of returned rows.
    """
    rows = _run_tasks(spark, paths, functools.partial(_find, wanted), DDL)
    return rows.limit(limit).toArrow().cast(SCHEMA)


def count_wanted(spark: SparkSession, paths: Sequence[Path], wanted: SoughtRecords) -> Mapping[str, int]:
    """Return the number of wanted rows by path, for files that have any.

    It is -1 (``UNREADABLE``) for a damaged file and for a file without the searched columns.
    """
    rows = _run_tasks(spark, paths, functools.partial(_count, wanted), _COUNTED)
    return {row["path"]: row["rows"] for row in rows.collect()}


def remove_rows(
    spark: SparkSession, table: Table, topic: str, identities: Identities, *, counted_by: str, settings: FileSettings
) -> Removal:
    """Remove records of a topic from a table.

    Args:
        identities: the records to remove.
        counted_by: key under which the table's log counts the removed rows.
        settings: settings of the new files, except for bounds, which they take from the replaced files.

    Raises TableConflict if other jobs keep replacing the same files, TableError, OSError, and Spark's exceptions.
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
    """Call ``rewrite`` for groups of files, each in a transaction of its own.

    The files are those that may have some of the records ``identities``. Returns the sum of the results.

    Raises TableConflict if other jobs keep replacing the same files, and the exceptions of ``rewrite``.
    """
    done: list[Removal] = []

    def remove() -> None:
        files = [file for file in files_of_topic(table, table.snapshot(), topic) if identities.may_be_in(file)]
        for part in cut_files(files, _MAX_BYTES_PER_COMMIT, most_files=_MAX_FILES_PER_COMMIT):
            with table.begin(plan=f"{JOB}:{uuid.uuid4().hex}", job=JOB, operation=operation) as transaction:
                transaction.expect(part)
                done.append(rewrite(transaction, part))

    retry_conflicts(remove)
    return sum(done, Removal())


def rewrite_files(
    spark: SparkSession,
    transaction: Transaction,
    files: Sequence[DataFile],
    identities: Identities,
    settings: FileSettings,
) -> Removal:
    """Replace the files that have some of these records by files without them.

    The transaction is not committed.
    """
    by_path = {file.path: file for file in files}
    table = transaction.table
    task = _make_rewriter(transaction, by_path, identities, settings)
    rows = _run_tasks(spark, [Path(path) for path in by_path], task, _REWRITTEN).collect()
    paths, new = parse_replaced(rows)
    replaced = [by_path[path] for path in paths]
    removed = sum(row["rows"] or 0 for row in rows)
    if rows_of(replaced) - rows_of(new) != removed:
        raise TableError(
            f"{table.path}: {len(replaced)} files have {rows_of(replaced)} rows by the log, of which {removed} were to "
            f"be removed, and {rows_of(new)} are left; nothing was changed"
        )
    transaction.remove(file.path for file in replaced)
    transaction.add(new)
    return Removal(rows=removed, files=len(replaced))


# -- search


@dataclass(frozen=True, slots=True, kw_only=True)
class SoughtRecords:
    """Records to find: those with some identities, and those with one of some keys.

    An identity is incarnation, broker, partition, offset and index of a record.

    Attributes:
        identities: identities of the topic's records.
        keys: keys with the type of the searched column ``key``: bytes, or decoded values. None to search by identity
            only.
    """

    identities: Identities = NO_IDENTITIES
    keys: pa.Array | None = None

    @property
    def columns(self) -> list[str]:
        """Columns that the search reads."""
        return [*COLUMNS] if self.keys is None else [*COLUMNS, _KEY]

    def find(self, rows: pa.Table) -> Mask:
        """Return a mask of rows: True for each of these records."""
        found = self.identities.find(rows)
        return found if self.keys is None else found | find_keys(rows[_KEY], self.keys)


def find_keys(column: pa.Array | pa.ChunkedArray, keys: pa.Array) -> Mask:
    """Return a mask of a column's keys that are among ``keys``. Null matches no key."""
    if pa.types.is_nested(column.type):
        # Arrow's is_in does not support structs
        known = {repr(key) for key in keys.to_pylist() if key is not None}
        return np.fromiter((repr(key) in known for key in column.to_pylist()), np.bool_, len(column))
    return np.asarray(pc.is_in(column, value_set=keys.drop_null().cast(column.type)))


def read_wanted(path: Path, wanted: SoughtRecords) -> Iterator[tuple[pa.Table, RowNumbers]]:
    """Yield the identities and row numbers of a file's wanted rows, by row groups.

    Row numbers count from 0 in the file. Raises OSError, ArrowException.
    """
    first = 0
    for rows in read_row_groups(path, wanted.columns):
        found = np.flatnonzero(wanted.find(rows))
        if len(found):
            yield rows.select(COLUMNS).take(pa.array(found)), found + first
        first += len(rows)


# -- tasks


def _run_tasks(spark: SparkSession, paths: Sequence[Path], task: Task, schema: str) -> DataFrame:
    """Return the DataFrame of a task's results over files."""
    return run_shares(spark, deal(spark, paths), task, schema) if paths else spark.createDataFrame([], schema)


def _find(wanted: SoughtRecords, paths: Sequence[Path]) -> Iterator[pa.RecordBatch]:
    """Yield the identities of wanted rows."""
    for path in paths:
        for rows, _ in read_wanted(path, wanted):
            yield from rows.cast(SCHEMA).combine_chunks().to_batches()


def _count(wanted: SoughtRecords, paths: Sequence[Path]) -> Iterator[pa.RecordBatch]:
    """Yield path and number of wanted rows, or ``UNREADABLE``, of files with any."""
    for path in paths:
        if rows := _count_rows(path, wanted):
            yield pa.RecordBatch.from_pydict({"path": [str(path)], "rows": [rows]})


def _count_rows(path: Path, wanted: SoughtRecords) -> int:
    """Return the number of wanted rows in a file, or ``UNREADABLE``.

    A file that has been removed has none.
    """
    try:
        return sum(len(numbers) for _, numbers in read_wanted(path, wanted))
    except FileNotFoundError:
        return 0
    except (OSError, pa.ArrowException, KeyError):
        return UNREADABLE


def _make_rewriter(
    transaction: Transaction, files: Mapping[str, DataFile], identities: Identities, settings: FileSettings
) -> Task:
    """Return the task that rewrites files, given by their paths in the table."""
    home, staging, attempt = transaction.table.path, transaction.staging, transaction.attempt
    partition_by = transaction.table.record.partition_by
    wanted = SoughtRecords(identities=identities)

    def rewrite(paths: Sequence[Path]) -> Iterator[pa.RecordBatch]:
        task = find_task()
        for number, path in enumerate(paths):
            source, file = home / path, files[str(path)]
            found = [numbers for _, numbers in read_wanted(source, wanted)]
            if not found:
                continue
            rows = np.concatenate(found)
            new = rewrite_without(
                source,
                rows,
                staging=staging,
                prefix=f"{attempt}-{task:05d}-{number:05d}",
                partition_by=partition_by,
                values=file.values,
                settings=replace(settings, bounds=tuple(sorted(file.bounds))),
            )
            yield encode_replaced(file.path, new, rows=pa.scalar(len(rows), pa.int64()))

    return rewrite
