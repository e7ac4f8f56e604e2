# SPDX-License-Identifier: Apache-2.0
"""The table ``latest`` of a topic: one row per key, with its newest value.

Order of two records with the same key
    1. By the creation of their topic. Keys of a topic that was deleted and re-created are removed with it.
    2. In one partition: by truncation, offset and index.
    3. In different partitions: by timestamp, or by landing time for records without one (Kafka 0.8 and 0.9). A key is in two
       partitions only if the number of partitions or the partitioner has changed.

Records without a key are ignored. A null value deletes its key. Its row stays, with ``deleted`` set, because older
records of the key may still arrive (another root, a chain found late) and must not restore it. :func:`read_latest`
leaves these rows out.

Refresh
    Of the records decoded since the last run, the newest of each key is compared with the table's row. Files that have
    rows of changed keys are rewritten without them, and the new rows are appended in files of their own. Up to 500,000
    changed rows are merged file by file with Arrow (:mod:`consumerd.spark.latest_files`), more by Spark.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own documents call it so
from pyspark.sql.types import BooleanType, StructField, StructType

from consumerd.errors import ConfigError
from consumerd.spark.erase_tables import Removal, remove_in_parts, rewrite_files
from consumerd.spark.identities import Identities
from consumerd.spark.job import Sessions
from consumerd.spark.latest_files import MERGED, make_merger, read_changed
from consumerd.spark.table.commit import DataFile, Operation, encode_file, rows_of
from consumerd.spark.table.errors import VersionVacuumed
from consumerd.spark.table.files import WRITTEN, make_writer, parse_written
from consumerd.spark.table.parquet_files import FileSettings
from consumerd.spark.table.reading import read_files, read_increment, read_table
from consumerd.spark.table.rewriting import RowNumbers, rewrite_without
from consumerd.spark.table.transaction import Table, Transaction, create_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOB: Final = "latest"
COLUMNS: Final = (
    *("key", "value", "event_time", "timestamp", "incarnation", "broker", "partition", "offset", "index", "landed"),
)

_IDENTITY: Final = ("incarnation", "broker", "partition", "offset", "index")
_PLACE: Final = (*_IDENTITY, "timestamp", "landed")
"""Columns that identify a record and decide which of two is newer."""
_SETTINGS: Final = FileSettings(bounds=("partition", "offset"))
_REWRITTEN: Final = "replaced string, file string"
_BROADCAST: Final = 500_000
"""Limit of changed keys that are broadcast to all tasks. Above it, the table is sorted by key."""
_ROWS_A_FILE: Final = 250_000
_TASKS_A_CORE: Final = 2


def read_latest(spark: SparkSession, path: str | Path) -> DataFrame:
    """Return the existing keys with their latest values. Raises TableError, OSError."""
    frame = read_table(spark, path)
    return frame.where(~frame["deleted"]).drop("deleted")


def refresh(spark: Sessions, silver: Table, path: str | Path, *, topic: str) -> int:
    """Update a topic's table of latest values from its decoded table; return the number of rows.

    Raises ConfigError for keys that cannot be compared, TableError, TableConflict, OSError, and what Spark raises.
    """
    columns = _columns(silver, topic)
    table = create_table(path, name=f"latest of {topic}", schema=columns.json(), partition_by=())
    source = f"silver:{silver.record.id}"
    newest = silver.snapshot()
    base = table.snapshot()
    after = base.progress.get(source, 0)
    if newest.last_replace > after:
        after = 0
    if after == newest.version:
        return base.rows
    plan = f"latest:{silver.record.id}:{after}-{newest.version}"
    with table.begin(plan=plan, job=JOB, operation=Operation.REPLACE) as transaction:
        if transaction.find_done() is None:
            merge = _Merge(spark(), transaction, columns)
            new = None if after == 0 else _read_new(merge.session, silver, after, newest.version)
            if new is None:
                merge.replace_all(_select(read_table(merge.session, silver.path, newest.version)))
            else:
                merge.add(_select(new))
            # columns may have been added, which the table learns by this commit
            old = table.schema(transaction.base)
            transaction.commit(
                progress={source: newest.version}, schema=None if columns.json() == old else columns.json()
            )
    return table.snapshot().rows


def remove(spark: SparkSession, table: Table, silver: Table | None, topic: str, identities: Identities) -> Removal:
    """Remove records from a table of latest values.

    The newest record that is left of a key takes the place of a removed one. Silver's other rows are not looked at: retention may have removed those of keys that the table still has.

    Raises TableConflict if other jobs keep changing the same files, TableError, OSError, and what Spark raises.
    """

    def rewrite(transaction: Transaction, part: Sequence[DataFile]) -> Removal:
        columns = StructType.fromJson(json.loads(table.schema(transaction.base)))
        merge = _Merge(spark, transaction, columns)
        removal = rewrite_files(spark, transaction, part, identities, _SETTINGS)
        if not removal.rows:
            return removal
        erased = spark.createDataFrame(identities.to_table())
        files = read_files(spark, table, part, columns.json())
        keys = files.join(erased, _same(files, erased), "left_semi").select("key").distinct()
        restored = 0 if silver is None else merge.restore(_select(read_table(spark, silver.path)), keys, erased)
        commit = transaction.commit(counts={"erased": removal.rows, "restored": restored})
        return replace(removal, restored=restored, versions=(commit.version,))

    return remove_in_parts(table, topic, identities, Operation.REPLACE, rewrite)


def _same(left: DataFrame, right: DataFrame) -> list[Column]:
    return [left[name].eqNullSafe(right[name]) for name in _IDENTITY]


class _Merge:
    """Changes of a table of latest values, within one transaction."""

    def __init__(self, session: SparkSession, transaction: Transaction, columns: StructType) -> None:
        self.session = session
        self._transaction = transaction
        self._columns = columns
        self._table = transaction.table
        self._files = {PurePosixPath(path).name: file for path, file in transaction.base.files.items()}

    def replace_all(self, rows: DataFrame) -> None:
        """Replace the table by the latest of these rows."""
        self._transaction.remove(self._transaction.base.files)
        self._write(find_latest(rows))

    def add(self, rows: DataFrame) -> None:
        """Add rows: the table then has the latest of these and of its own."""
        new = _number(rows).persist()
        try:
            made, count = new.agg(F.max("_made"), F.count(F.lit(1))).collect()[0]
            there = self._made()
            if made is None or (there is not None and made < there):
                return  # no key, or a topic that has been made again since
            if there is None or made > there or len(self._files) != len(self._transaction.base.files):
                before = [] if there is None or made > there else [self._read()]
                self.replace_all(functools.reduce(DataFrame.unionByName, before, rows.select(*self._columns.names)))
                return
            candidates = _of_partitions(new.where(F.col("_made") == made))
            if count > _BROADCAST or not self._merge_files(candidates, count):
                self._merge(candidates)
        finally:
            new.unpersist()

    def restore(self, rows: DataFrame, keys: DataFrame, erased: DataFrame) -> int:
        """Add the latest rows of some keys that are not erased; return the number added."""
        made = self._made()
        numbered = _number(rows).where(F.col("_made") == F.lit(made)).join(keys, "key", "left_semi")
        return self._write(_of_keys(_of_partitions(numbered.join(erased, _same(numbered, erased), "left_anti"))))

    def _merge(self, candidates: DataFrame) -> None:
        """Merge candidates of the topic's current incarnation: at most one per key and partition, numbered by ``_number``."""
        with ExitStack() as kept:

            def keep(frame: DataFrame) -> DataFrame:
                kept.callback(frame.unpersist)
                return frame.persist()

            new = keep(candidates)
            count = new.count()
            keys = new.select("key").distinct()
            # of the table, the rows whose keys are among the new ones, and where they are; values are not read for it
            place = (F.col("_metadata.file_name").alias("_file"), F.col("_metadata.row_index").alias("_row"))
            there = _number(self._read().select("key", *_PLACE, *place))
            known = keep(there.join(F.broadcast(keys) if count <= _BROADCAST else keys, "key", "left_semi"))
            nowhere = (F.lit(None).cast("string").alias("_file"), F.lit(None).cast("bigint").alias("_row"))
            compared = known.unionByName(new.select("key", *_PLACE, "_made", "_cut", *nowhere))
            later = keep(_of_keys(_of_partitions(compared)).where(F.col("_file").isNull()))
            same = [new[name].eqNullSafe(later[name]) for name in ("key", *_IDENTITY)]
            self._write(new.join(later, same, "left_semi").coalesce(1 + count // _ROWS_A_FILE))
            gone = known.join(later.select("key"), "key", "left_semi")
            self._rewrite(gone.groupBy("_file").agg(F.sort_array(F.collect_list("_row")).alias("rows")))

    def _merge_files(self, candidates: DataFrame, count: int) -> bool:
        """Merge candidates as :meth:`_merge` does, file by file; return False where their keys do not allow it."""
        transaction = self._transaction
        written = self._stage(candidates.coalesce(1 + count // _ROWS_A_FILE))
        paths = [transaction.staging / file.path for file in written]
        if read_changed(paths) is None:
            for path in paths:
                path.unlink()
            return False
        merge = make_merger(
            self._table.path, paths, staging=transaction.staging, attempt=transaction.attempt, settings=_SETTINGS
        )
        lost = []
        names = self.session.createDataFrame([(file.path,) for file in self._files.values()], "path string")
        for row in names.repartition(self._tasks).mapInArrow(merge, MERGED).collect():
            lost += row["lost"]
            if row["replaced"] is not None:
                transaction.remove([row["replaced"]])
            if row["file"] is not None:
                transaction.add([parse_written(row["file"])])
        self._add_without(written, np.sort(np.array(lost, np.int64)))
        return True

    def _add_without(self, files: Sequence[DataFile], rows: RowNumbers) -> None:
        """Add staged files without some rows, which are numbered through all files, ascending."""
        first = 0
        for number, file in enumerate(files):
            here = rows[np.searchsorted(rows, first) : np.searchsorted(rows, first + file.rows)] - first
            first += file.rows
            if not len(here):
                self._transaction.add([file])
                continue
            source = self._transaction.staging / file.path
            prefix = f"{self._transaction.attempt}-won-{number:05d}"
            self._transaction.add(
                rewrite_without(source, here, staging=self._transaction.staging, prefix=prefix, settings=_SETTINGS)
            )
            source.unlink()

    @property
    def _tasks(self) -> int:
        return max(1, min(len(self._files), _TASKS_A_CORE * self.session.sparkContext.defaultParallelism))

    def _made(self) -> int | None:
        """Return the czxid of the topic whose keys the table has, None for an empty table."""
        first = _number(self._read().select("key", "incarnation")).select("_made").head()
        return None if first is None else int(first[0])

    def _read(self) -> DataFrame:
        return read_files(self.session, self._table, self._transaction.base.files.values(), self._columns.json())

    def _write(self, rows: DataFrame) -> int:
        files = self._stage(rows)
        self._transaction.add(files)
        return rows_of(files)

    def _stage(self, rows: DataFrame) -> list[DataFile]:
        write = make_writer(self._transaction, _SETTINGS)
        written = rows.select(*(f"`{name}`" for name in self._columns.names)).mapInArrow(write, WRITTEN).collect()
        return [parse_written(row["file"]) for row in written]

    def _rewrite(self, gone: DataFrame) -> None:
        """Rewrite files without some rows: ``gone`` has file names and ascending row numbers."""
        write = _make_rewriter(self._transaction)
        for row in gone.repartition(self._tasks, "_file").mapInArrow(write, _REWRITTEN).collect():
            self._transaction.remove([self._files[row["replaced"]].path])
            if row["file"] is not None:
                self._transaction.add([parse_written(row["file"])])


def _make_rewriter(transaction: Transaction) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function for ``mapInArrow`` that rewrites files without some rows, and yields ``_REWRITTEN``.

    Files keep their columns and the order of their rows.
    """
    table, staging, attempt = str(transaction.table.path), str(transaction.staging), transaction.attempt

    def rewrite(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        task = 0 if context is None else context.taskAttemptId()
        for number, (name, rows) in enumerate(
            (name, rows)
            for batch in batches
            for name, rows in zip(batch["_file"].to_pylist(), batch["rows"], strict=True)
        ):
            files = rewrite_without(
                Path(table) / name,
                rows.values.to_numpy(zero_copy_only=False),
                staging=Path(staging),
                prefix=f"{attempt}-{task:05d}-{number:05d}",
                settings=_SETTINGS,
            )
            texts: list[str | None] = [json.dumps(encode_file(file)) for file in files]
            texts = texts or [None]  # no row is left
            yield pa.RecordBatch.from_arrays(
                [pa.array([name] * len(texts), pa.string()), pa.array(texts, pa.string())], names=["replaced", "file"]
            )

    return rewrite


def find_latest(rows: DataFrame) -> DataFrame:
    """Return the latest row of each key."""
    of_keys = _of_keys(_of_partitions(_number(rows)))
    made = _number(rows).agg(F.max("_made").alias("_newest"))
    return of_keys.join(F.broadcast(made), of_keys["_made"] == made["_newest"]).drop("_made", "_cut", "_newest")


def _number(rows: DataFrame) -> DataFrame:
    """Return the rows with a key, and their incarnation as ``_made`` (czxid) and ``_cut`` (truncation)."""
    parts = F.split(F.col("incarnation"), r"\.")
    return rows.where(F.col("key").isNotNull()).select(
        "*",
        parts[0].cast("bigint").alias("_made"),
        F.coalesce(F.try_element_at(parts, F.lit(2)).cast("int"), F.lit(0)).alias("_cut"),
    )


def _of_partitions(numbered: DataFrame) -> DataFrame:
    """Return the latest row of each key and partition."""
    within = F.struct("_made", "_cut", "offset", "index")
    return numbered.groupBy("key", "broker", "partition").agg(_last(numbered, within)).select("row.*")


def _of_keys(of_partitions: DataFrame) -> DataFrame:
    """Return the latest row of each key, given one row per key and partition."""
    moment = F.coalesce("timestamp", "landed")
    among = F.struct("_made", moment, "_cut", "offset", "partition")
    return of_partitions.groupBy("key").agg(_last(of_partitions, among)).select("row.*")


def _last(rows: DataFrame, order: Column) -> Column:
    everything = F.struct(*(F.col(f"`{name}`") for name in rows.columns))
    return F.max_by(everything, order).alias("row")


def _read_new(session: SparkSession, silver: Table, after: int, until: int) -> DataFrame | None:
    """Return the rows decoded between two versions, None if files or commits have been vacuumed."""
    try:
        return read_increment(session, silver.path, after=after, until=until).frame
    except VersionVacuumed:
        return None


def _select(silver: DataFrame) -> DataFrame:
    return silver.select(*COLUMNS, F.col("value").isNull().alias("deleted"))


def _columns(silver: Table, topic: str) -> StructType:
    schema = StructType.fromJson(json.loads(silver.schema(silver.snapshot())))
    if "map<" in schema["key"].dataType.simpleString():
        raise ConfigError(
            f"pipeline.silver.topics.{topic}.latest: keys with a map in them cannot be compared; decode the key without it"
        )
    return StructType([*(schema[name] for name in COLUMNS), StructField("deleted", BooleanType())])
