# SPDX-License-Identifier: Apache-2.0
"""The job ``stats``: records, bytes, lag, sizes and keys of bronze, by topic and hour.

The table has one row per topic and hour (UTC) of the records' timestamps; records without one count by their landing
time. A run computes whole hours again if they have new records, and all hours if rows of bronze were changed.

Example: the last run has computed version 10 of bronze. Versions 11 and 12 have appended records of ``orders`` from
13:50 to 14:10. The run reads the files whose bounds include these two hours, and replaces the two rows.
"""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own documents call it so
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType, TimestampType

from consumerd.config.job import JobSettings
from consumerd.spark.job import PrintedTable, Progress, Sessions, Summary
from consumerd.spark.table.commit import DataFile, Operation
from consumerd.spark.table.errors import VersionVacuumed
from consumerd.spark.table.files import write_frame
from consumerd.spark.table.folder_values import escape_value, unescape_value
from consumerd.spark.table.reading import read_files, read_increment, read_table
from consumerd.spark.table.snapshot import Snapshot
from consumerd.spark.table.transaction import Table as DeltaTable
from consumerd.spark.table.transaction import Transaction, create_table, open_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOB: Final = "stats"
"""Name of the job in the table's commits, and of the table."""
FOLDERS: Final = ("topic",)
"""Partition columns of the table."""
_QUANTILE_ACCURACY: Final = 10_000
"""Accuracy of approximate quantiles: the error is 1 / 10,000 of the rank."""
_HOUR_S: Final = 3600
_MAX_PRINTED_ROWS: Final = 48
"""Rows of the newest hours that the summary prints."""

_COLUMNS: Final = {
    "hour": TimestampType(),
    "records": LongType(),
    "null_keys": LongType(),
    "null_values": LongType(),
    "bytes": LongType(),
    "value_bytes_p50": IntegerType(),
    "value_bytes_p90": IntegerType(),
    "value_bytes_p99": IntegerType(),
    "value_bytes_max": IntegerType(),
    "lag_ms_p50": LongType(),
    "lag_ms_p90": LongType(),
    "lag_ms_p99": LongType(),
    "lag_ms_max": LongType(),
    "distinct_keys": LongType(),
    "topic": StringType(),
}
"""Columns of the table.

``bytes`` counts keys and values. Lag is the time from a record's timestamp to its landing. Quantiles are approximate
(``_QUANTILE_ACCURACY``). ``distinct_keys`` has the relative error ``pipeline.stats.distinct_error``.
"""
_SCHEMA: Final = StructType([StructField(name, kind) for name, kind in _COLUMNS.items()])
_SETTINGS_DIGEST: Final = "asked"
"""Key in the table's progress: a digest of the settings used.

They are the bronze table, the topics and the error.
"""
_MAX_RECOUNTED_HOURS: Final = 10_000
"""Limit of the hours that are computed again one by one. Above it, all are."""
_US_PER_S: Final = 1_000_000


def run(spark: Sessions, settings: JobSettings, progress: Progress) -> Summary:
    """Compute statistics again for the hours that have new records; return the summary.

    Raises ConfigError, TableError, OSError, and Spark's exceptions.
    """
    started = time.monotonic()
    bronze = open_table(settings.location("bronze"))
    topics, error = settings.landing_topics(), settings.pipeline.stats.distinct_error
    table = create_table(settings.location("stats"), name=JOB, schema=_SCHEMA.json(), partition_by=FOLDERS)
    snapshot = bronze.snapshot()
    asked = _digest(bronze.record.id, error, *sorted(topics or ()))
    source = f"bronze:{bronze.record.id}"
    # unique, since a run with other settings counts the same version, too
    plan = f"stats:{bronze.record.id}:{snapshot.version}:{uuid.uuid4().hex}"
    counted: int | None = 0
    done = {source: snapshot.version, _SETTINGS_DIGEST: asked}
    if not table.snapshot().progress.items() >= done.items():
        progress.step(f"counting version {snapshot.version} of {bronze.path}")
        with table.begin(plan=plan, job=JOB, operation=Operation.REPLACE) as transaction:
            base = transaction.base
            after = base.progress.get(source, 0) if base.progress.get(_SETTINGS_DIGEST) == asked else 0
            counted = _count(spark(), bronze, snapshot, after, transaction, topics, error)
            transaction.commit(progress=done)
    rows = _read_all(table)
    return Summary(
        numbers={
            "table": str(table.path),
            "version": table.log.latest(),
            "bronze_version": snapshot.version,
            "hours": len(rows),
            "hours_counted": len(rows) if counted is None else counted,
            "records": pc.sum(rows["records"]).as_py() or 0,
            "bytes": pc.sum(rows["bytes"]).as_py() or 0,
            "elapsed_s": round(time.monotonic() - started, 3),
        },
        notes=("bronze has nothing new",) if counted == 0 else (),
        tables=(_show(rows),),
    )


def _count(
    session: SparkSession,
    bronze: DeltaTable,
    snapshot: Snapshot,
    after: int,
    transaction: Transaction,
    topics: frozenset[str] | None,
    error: float,
) -> int | None:
    """Replace the rows of hours with new records; return their number, None for all hours."""
    hours = None if after == 0 else _new_hours(session, bronze, after, snapshot.version, topics)
    if hours is None:
        transaction.remove(transaction.base.files)
        rows = hourly_stats(
            _of_topics(read_table(session, bronze.path, snapshot.version), topics), distinct_error=error
        )
    elif hours:
        rows = _recount(session, bronze, snapshot, hours, error, transaction)
    else:
        return 0
    ordered = rows.select(*_COLUMNS).repartition("topic").sortWithinPartitions("topic", "hour")
    transaction.add(write_frame(transaction, ordered, bounds=("hour",)))
    return None if hours is None else len(hours)


Hour = tuple[str, int]
"""A topic and the beginning of an hour, in seconds since the epoch."""


def _new_hours(
    session: SparkSession, bronze: DeltaTable, after: int, until: int, topics: frozenset[str] | None
) -> list[Hour] | None:
    """Return the hours of rows appended between two versions; None to compute all hours."""
    if bronze.snapshot(until).last_replace > after:
        return None
    try:
        new = read_increment(session, bronze.path, after=after, until=until)
    except VersionVacuumed:
        return None
    hours = _of_topics(new, topics).select("topic", _hour_begin().alias("begin")).distinct()
    found = hours.limit(_MAX_RECOUNTED_HOURS + 1).collect()
    return None if len(found) > _MAX_RECOUNTED_HOURS else [(row["topic"], row["begin"]) for row in found]


def _recount(
    session: SparkSession,
    bronze: DeltaTable,
    snapshot: Snapshot,
    hours: Sequence[Hour],
    error: float,
    transaction: Transaction,
) -> DataFrame:
    """Return the rows of these hours' topics, with these hours computed again.

    The topics' old files are removed from the table.
    """
    topics = {escape_value(topic) for topic, _ in hours}
    old = [file for file in transaction.base.files.values() if file.values[0] in topics]
    transaction.remove(file.path for file in old)
    wanted = F.broadcast(session.createDataFrame(hours, "topic string, begin bigint"))
    files = [file for file in snapshot.files.values() if _may_have(file, hours)]
    read = read_files(session, bronze, files, bronze.schema(snapshot)).withColumn("begin", _hour_begin())
    counted = hourly_stats(read.join(wanted, ["topic", "begin"], "left_semi").drop("begin"), distinct_error=error)
    before = read_files(session, transaction.table, old, _SCHEMA.json()).withColumn("begin", F.unix_seconds("hour"))
    return before.join(wanted, ["topic", "begin"], "left_anti").drop("begin").unionByName(counted)


def _may_have(file: DataFile, hours: Iterable[Hour]) -> bool:
    """Return False if a file's bounds exclude all of these hours."""
    times = [file.bounds.get(name) for name in ("timestamp", "landed")]
    if None in times:
        return any(file.values[0] == escape_value(topic) for topic, _ in hours)
    return any(
        int(held.low) < (begin + _HOUR_S) * _US_PER_S and int(held.high) >= begin * _US_PER_S
        for topic, begin in hours
        if file.values[0] == escape_value(topic)
        for held in times
        if held is not None
    )


def _of_topics(bronze: DataFrame, topics: frozenset[str] | None) -> DataFrame:
    return bronze if topics is None else bronze.where(F.col("topic").isin(sorted(topics)))


def _hour_begin() -> Column:
    """Return a column: the beginning of a row's hour, in seconds since the epoch."""
    seconds = F.unix_seconds(F.coalesce("timestamp", "landed"))
    return (F.floor(seconds / _HOUR_S) * _HOUR_S).cast("bigint")


def _digest(*asked: object) -> int:
    """Return a digest as a number: a table's progress has numbers only."""
    return int.from_bytes(hashlib.sha256(repr(asked).encode()).digest()[:6])


def hourly_stats(bronze: DataFrame, *, distinct_error: float = 0.05) -> DataFrame:
    """Return the statistics (``_COLUMNS``) of a DataFrame with bronze's columns, by topic and hour."""
    value_bytes = F.length("value")
    lag_ms = F.unix_millis("landed") - F.unix_millis("timestamp")
    size = F.coalesce(F.length("key"), F.lit(0)) + F.coalesce(value_bytes, F.lit(0))
    found = bronze.groupBy("topic", F.timestamp_seconds(_hour_begin()).alias("hour")).agg(
        F.count("*").alias("records"),
        F.count_if(F.col("key").isNull()).alias("null_keys"),
        F.count_if(F.col("value").isNull()).alias("null_values"),
        F.sum(size.cast("bigint")).alias("bytes"),
        F.percentile_approx(value_bytes, [0.5, 0.9, 0.99], _QUANTILE_ACCURACY).alias("sizes"),
        F.max(value_bytes).alias("value_bytes_max"),
        F.percentile_approx(lag_ms, [0.5, 0.9, 0.99], _QUANTILE_ACCURACY).alias("lags"),
        F.max(lag_ms).alias("lag_ms_max"),
        F.approx_count_distinct("key", distinct_error).alias("distinct_keys"),
    )
    names = ("p50", "p90", "p99")
    quantiles = [
        F.col(column)[place].alias(f"{name}_{quantile}")
        for column, name in (("sizes", "value_bytes"), ("lags", "lag_ms"))
        for place, quantile in enumerate(names)
    ]
    return found.select("*", *quantiles).select(*(F.col(name).cast(kind) for name, kind in _COLUMNS.items()))


def _read_all(table: DeltaTable) -> pa.Table:
    """Read the whole table, which is small; newest hours first."""
    parts = [
        pq.read_table(table.path / file.path, partitioning=None).append_column(
            "topic", pa.repeat(unescape_value(file.values[0]), file.rows)
        )
        for file in table.snapshot().files.values()
    ]
    if not parts:
        return pa.table({name: [] for name in _COLUMNS})
    return pa.concat_tables(parts, promote_options="default").sort_by([("hour", "descending"), ("topic", "ascending")])


def _show(rows: pa.Table) -> PrintedTable:
    heads = ("topic", "hour", "records", "bytes", "value_bytes_p50", "lag_ms_p50", "lag_ms_p99", "distinct_keys")
    newest = rows.select(heads).slice(0, _MAX_PRINTED_ROWS).to_pylist()
    shown = tuple(
        (row["topic"], row["hour"].strftime("%Y-%m-%d %H:%M"), *(row[name] for name in heads[2:])) for row in newest
    )
    return PrintedTable(title="By topic and hour", heads=heads, rows=shown)
