# SPDX-License-Identifier: Apache-2.0
"""The table ``latest`` of a topic: one row per key, with its newest value.

Order of two records with the same key
    1. A record of a later incarnation of the topic is newer. Keys of a topic that was deleted and re-created are
       removed with it.
    2. In one partition: by truncation, offset and index. A truncation is an unclean leader election that cut the log,
       after which offsets are assigned again.
    3. In different partitions: by timestamp, or by landing time for records without one (Kafka 0.8 and 0.9). A key is
       in two partitions only if the number of partitions or the partitioner has changed.

Example: the table has key ``ann`` at offset 10 of partition 0, with timestamp 12:00. A new record at offset 50 of
partition 0 is newer, even with timestamp 11:59. A new record in partition 3 is newer only if its timestamp is after
12:00.

Records without a key are ignored. A null value deletes its key. The key's row stays, with ``deleted`` set, because
older records of the key may still arrive (another landing folder, a chain that was found late) and must not bring it
back. :func:`read_latest` leaves these rows out.

Refresh
    Of the records decoded since the last run, the newest of each key is compared with the table's row. Files that have
    rows of changed keys are rewritten without them, and the new rows are added in files of their own. Up to about
    500,000 changed keys are merged file by file with Arrow (:mod:`consumerd.spark.latest_files`), more with Spark.
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
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own documents call it so
from pyspark.sql.types import BooleanType, StructField, StructType

from consumerd.errors import ConfigError
from consumerd.spark.erase_tables import Removal, remove_in_parts, rewrite_files
from consumerd.spark.identities import Identities
from consumerd.spark.job import Sessions
from consumerd.spark.latest_files import MERGED, make_merger, read_changed
from consumerd.spark.table.commit import DataFile, Operation, rows_of
from consumerd.spark.table.errors import VersionVacuumed
from consumerd.spark.table.files import (
    REPLACED,
    WRITTEN,
    encode_replaced,
    make_writer,
    parse_replaced,
    parse_written,
)
from consumerd.spark.table.parquet_files import FileSettings
from consumerd.spark.table.reading import read_files, read_increment, read_table
from consumerd.spark.table.rewriting import RowNumbers, rewrite_without
from consumerd.spark.table.transaction import Table, Transaction, create_table
from consumerd.spark.tasks import find_task, max_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOB: Final = "latest"
"""Name of the job in the table's commits."""
COLUMNS: Final = (
    *("key", "value", "event_time", "timestamp", "incarnation", "broker", "partition", "offset", "index", "landed"),
)
"""Columns that the table takes from silver; ``deleted`` is added."""

_IDENTITY: Final = ("incarnation", "broker", "partition", "offset", "index")
"""Columns that identify a record."""
_ORDER_COLUMNS: Final = (*_IDENTITY, "timestamp", "landed")
"""Columns that identify a record and decide which of two is newer."""
_SETTINGS: Final = FileSettings(bounds=("partition", "offset"))
_MAX_BROADCAST_KEYS: Final = 500_000
"""Limit of the changed keys, about, that every task holds in memory.

Above it, Spark sorts the whole table by key.
"""
_ROWS_PER_FILE: Final = 250_000
"""Approximate rows in a file of new rows."""


def read_latest(spark: SparkSession, path: str | Path) -> DataFrame:
    """Return a table ``latest`` without deleted keys: each key with its newest value.

    Raises TableError, OSError.
    """
    frame = read_table(spark, path)
    return frame.where(~frame["deleted"]).drop("deleted")


def refresh(spark: Sessions, silver: Table, path: str | Path, *, topic: str) -> int:
    """Update a topic's table of latest values from silver; return its number of rows.

    Raises ConfigError for keys that cannot be compared, TableError, TableConflict, OSError, and Spark's exceptions.
    """
    columns = _columns(silver, topic)
    table = create_table(path, name=f"latest of {topic}", schema=columns.json(), partition_by=())
    source = f"silver:{silver.record.id}"
    newest = silver.snapshot()
    base = table.snapshot()
    after = base.progress.get(source, 0)
    if newest.last_replace > after:
        after = 0  # silver was rebuilt since
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
            # silver may have new columns, which this commit adds to the table
            old = table.schema(transaction.base)
            transaction.commit(
                progress={source: newest.version}, schema=None if columns.json() == old else columns.json()
            )
    return table.snapshot().rows


def remove(spark: SparkSession, table: Table, silver: Table | None, topic: str, identities: Identities) -> Removal:
    """Remove records from a table of latest values.

    If a key has other records in silver (the topic's decoded table), the newest of them takes the place of the removed
    row. All other rows of the table stay, even if silver no longer has them: retention may have removed them there.

    Args:
        silver: the topic's decoded table; None if there is none.
        identities: records to remove.

    Raises TableConflict if other jobs keep changing the same files, TableError, OSError, and Spark's exceptions.
    """

    def rewrite(transaction: Transaction, part: Sequence[DataFile]) -> Removal:
        columns = StructType.fromJson(json.loads(table.schema(transaction.base)))
        merge = _Merge(spark, transaction, columns)
        removal = rewrite_files(spark, transaction, part, identities, _SETTINGS)
        if not removal.rows:
            return removal
        erased = spark.createDataFrame(identities.to_table())
        files = read_files(spark, table, part, columns.json())
        keys = files.join(erased, _same_record(files, erased), "left_semi").select("key").distinct()
        restored = 0 if silver is None else merge.restore(_select(read_table(spark, silver.path)), keys, erased)
        commit = transaction.commit(counts={"erased": removal.rows, "restored": restored})
        return replace(removal, restored=restored, versions=(commit.version,))

    return remove_in_parts(table, topic, identities, Operation.REPLACE, rewrite)


def _same_record(left: DataFrame, right: DataFrame) -> list[Column]:
    """Return the join conditions for rows of the same record."""
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
        """Replace all rows of the table by the latest of these rows."""
        self._transaction.remove(self._transaction.base.files)
        self._write(find_latest(rows))

    def add(self, rows: DataFrame) -> None:
        """Add rows. The table then has the latest row of each key."""
        new = _with_incarnation(rows).persist()
        try:
            created, count = new.agg(F.max("_created"), F.approx_count_distinct("key")).collect()[0]
            present = self._find_creation()
            if created is None or (present is not None and created < present):
                return  # no row has a key, or all are of an earlier incarnation of the topic
            # A later incarnation replaces the table's rows. All rows are merged at once if two files have one name,
            # since Spark's metadata column has no folder.
            if present is None or created > present or len(self._files) != len(self._transaction.base.files):
                before = [] if present is None or created > present else [self._read()]
                self.replace_all(functools.reduce(DataFrame.unionByName, before, rows.select(*self._columns.names)))
                return
            candidates = _latest_per_partition(new.where(F.col("_created") == created))
            if count > _MAX_BROADCAST_KEYS or not self._merge_files(candidates, count):
                self._merge(candidates)
        finally:
            new.unpersist()

    def restore(self, rows: DataFrame, keys: DataFrame, erased: DataFrame) -> int:
        """Add the newest remaining record of keys whose rows were erased; return their number.

        Args:
            rows: all rows of silver.
            keys: the keys.
            erased: identities of erased records, which silver may still have.
        """
        created = self._find_creation()
        numbered = _with_incarnation(rows).where(F.col("_created") == F.lit(created)).join(keys, "key", "left_semi")
        return self._write(
            _latest_per_key(_latest_per_partition(numbered.join(erased, _same_record(numbered, erased), "left_anti")))
        )

    def _merge(self, candidates: DataFrame) -> None:
        """Merge new rows with Spark.

        Args:
            candidates: rows of the topic's current incarnation, from ``_with_incarnation``: at most one per key and
                partition.
        """
        with ExitStack() as kept:

            def keep(frame: DataFrame) -> DataFrame:
                kept.callback(frame.unpersist)
                return frame.persist()

            new = keep(candidates)
            count = new.count()
            keys = new.select("key").distinct()
            # the table's rows of these keys, with file and row number; their values are not read
            place = (F.col("_metadata.file_name").alias("_file"), F.col("_metadata.row_index").alias("_row"))
            present = _with_incarnation(self._read().select("key", *_ORDER_COLUMNS, *place))
            known = keep(present.join(F.broadcast(keys) if count <= _MAX_BROADCAST_KEYS else keys, "key", "left_semi"))
            no_place = (F.lit(None).cast("string").alias("_file"), F.lit(None).cast("bigint").alias("_row"))
            compared = known.unionByName(new.select("key", *_ORDER_COLUMNS, "_created", "_truncations", *no_place))
            # keys whose latest row is a new one
            later = keep(_latest_per_key(_latest_per_partition(compared)).where(F.col("_file").isNull()))
            same = [new[name].eqNullSafe(later[name]) for name in ("key", *_IDENTITY)]
            self._write(new.join(later, same, "left_semi").coalesce(1 + count // _ROWS_PER_FILE))
            # rows of the table that these replace
            gone = known.join(later.select("key"), "key", "left_semi")
            self._rewrite(gone.groupBy("_file").agg(F.sort_array(F.collect_list("_row")).alias("rows")))

    def _merge_files(self, candidates: DataFrame, count: int) -> bool:
        """Merge new rows file by file with Arrow.

        Returns False, with nothing changed, if the keys do not allow it. Arguments are as in :meth:`_merge`; ``count``
        is the approximate number of keys.
        """
        transaction = self._transaction
        written = self._stage(candidates.coalesce(1 + count // _ROWS_PER_FILE))
        paths = [transaction.staging / file.path for file in written]
        if read_changed(paths) is None:
            for path in paths:
                path.unlink()
            return False
        merge = make_merger(
            self._table.path, paths, staging=transaction.staging, attempt=transaction.attempt, settings=_SETTINGS
        )
        names = self.session.createDataFrame([(file.path,) for file in self._files.values()], "path string")
        rows = names.repartition(self._tasks).mapInArrow(merge, MERGED).collect()
        replaced, new = parse_replaced(rows)
        transaction.remove(replaced)
        transaction.add(new)
        dropped = [number for row in rows for number in row["dropped"] or ()]
        self._add_without(written, np.sort(np.array(dropped, np.int64)))
        return True

    def _add_without(self, files: Sequence[DataFile], rows: RowNumbers) -> None:
        """Add staged files without some of their rows.

        Args:
            rows: ascending row numbers, counted through all files in their order.
        """
        first = 0
        for number, file in enumerate(files):
            here = rows[np.searchsorted(rows, first) : np.searchsorted(rows, first + file.rows)] - first
            first += file.rows
            if not len(here):
                self._transaction.add([file])
                continue
            source = self._transaction.staging / file.path
            prefix = f"{self._transaction.attempt}-kept-{number:05d}"
            self._transaction.add(
                rewrite_without(source, here, staging=self._transaction.staging, prefix=prefix, settings=_SETTINGS)
            )
            source.unlink()

    @property
    def _tasks(self) -> int:
        return max(1, min(len(self._files), max_tasks(self.session)))

    def _find_creation(self) -> int | None:
        """Return the czxid of the topic whose keys the table has.

        None for an empty table.
        """
        first = _with_incarnation(self._read().select("key", "incarnation")).select("_created").head()
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
        """Rewrite files without some of their rows.

        Args:
            gone: file names with ascending row numbers.
        """
        write = _make_rewriter(self._transaction)
        rows = gone.repartition(self._tasks, "_file").mapInArrow(write, REPLACED).collect()
        replaced, new = parse_replaced(rows)
        self._transaction.remove(self._files[name].path for name in replaced)
        self._transaction.add(new)


def _make_rewriter(transaction: Transaction) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function for ``mapInArrow`` that removes rows from files and yields ``REPLACED``.

    The remaining rows keep their order and columns.
    """
    table, staging, attempt = str(transaction.table.path), str(transaction.staging), transaction.attempt

    def rewrite(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = find_task()
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
            yield encode_replaced(name, files)

    return rewrite


def find_latest(rows: DataFrame) -> DataFrame:
    """Return the newest row of each key of a topic.

    Keys that only earlier incarnations of the topic have are left out. The module's docstring has the order of records.
    """
    of_keys = _latest_per_key(_latest_per_partition(_with_incarnation(rows)))
    newest = _with_incarnation(rows).agg(F.max("_created").alias("_newest"))
    return of_keys.join(F.broadcast(newest), of_keys["_created"] == newest["_newest"]).drop(
        "_created", "_truncations", "_newest"
    )


def _with_incarnation(rows: DataFrame) -> DataFrame:
    """Return the rows with a key, with their incarnation as two numbers.

    They are ``_created``, the czxid of the topic's creation, and ``_truncations``, the number of truncations.
    """
    parts = F.split(F.col("incarnation"), r"\.")
    return rows.where(F.col("key").isNotNull()).select(
        "*",
        parts[0].cast("bigint").alias("_created"),
        F.coalesce(F.try_element_at(parts, F.lit(2)).cast("int"), F.lit(0)).alias("_truncations"),
    )


def _latest_per_partition(numbered: DataFrame) -> DataFrame:
    """Return the latest row of each key in each partition."""
    within = F.struct("_created", "_truncations", "offset", "index")
    return numbered.groupBy("key", "broker", "partition").agg(_pick_latest(numbered, within)).select("row.*")


def _latest_per_key(of_partitions: DataFrame) -> DataFrame:
    """Return the latest row of each key, given one row per key and partition."""
    moment = F.coalesce("timestamp", "landed")
    among = F.struct("_created", moment, "_truncations", "offset", "partition")
    return of_partitions.groupBy("key").agg(_pick_latest(of_partitions, among)).select("row.*")


def _pick_latest(rows: DataFrame, order: Column) -> Column:
    everything = F.struct(*(F.col(f"`{name}`") for name in rows.columns))
    return F.max_by(everything, order).alias("row")


def _read_new(session: SparkSession, silver: Table, after: int, until: int) -> DataFrame | None:
    """Return the rows decoded between two versions; None if vacuum has removed them."""
    try:
        return read_increment(session, silver.path, after=after, until=until)
    except VersionVacuumed:
        return None


def _select(silver: DataFrame) -> DataFrame:
    return silver.select(*COLUMNS, F.col("value").isNull().alias("deleted"))


def _columns(silver: Table, topic: str) -> StructType:
    schema = StructType.fromJson(json.loads(silver.schema(silver.snapshot())))
    if "map<" in schema["key"].dataType.simpleString():
        raise ConfigError(
            f"pipeline.silver.topics.{topic}.latest: keys with a map in them cannot be compared; decode the key "
            "without it"
        )
    return StructType([*(schema[name] for name in COLUMNS), StructField("deleted", BooleanType())])
