"""The job ``stats``: how much came, when, how late and of how many keys, by topic and hour of bronze.

An hour is that of the record's timestamp, in UTC, and where it has none that of its landing. The table holds one row a topic and
hour and is replaced as a whole; a reader of an older version reads on.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own documents call it so

from consumerd.config.job import JobSettings
from consumerd.spark.job import Progress, Sessions, Summary, Table
from consumerd.spark.table.commit import Operation
from consumerd.spark.table.files import write_frame
from consumerd.spark.table.reading import read_table
from consumerd.spark.table.transaction import create_table, open_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOB: Final = "stats"
FOLDERS: Final = ("topic",)
_ACCURACY: Final = 10_000
_HOUR_S: Final = 3600
_SHOWN: Final = 48
"""Rows that the summary shows, the newest ones."""

_COLUMNS: Final = {
    "hour": "timestamp",
    "records": "bigint",
    "null_keys": "bigint",
    "null_values": "bigint",
    "bytes": "bigint",
    "value_bytes_p50": "int",
    "value_bytes_p90": "int",
    "value_bytes_p99": "int",
    "value_bytes_max": "int",
    "lag_ms_p50": "bigint",
    "lag_ms_p90": "bigint",
    "lag_ms_p99": "bigint",
    "lag_ms_max": "bigint",
    "distinct_keys": "bigint",
    "topic": "string",
}
"""Columns of the table. ``bytes`` are those of keys and values; lag is the time from a record's timestamp to its landing;
quantiles are approximate, to one in ten thousand, and so is the number of keys, to ``pipeline.stats.distinct_error``.
"""


def run(spark: Sessions, settings: JobSettings, progress: Progress) -> Summary:
    """Make the table anew from bronze. See ``job.Run``."""
    started = time.monotonic()
    bronze = open_table(settings.bronze_to_read())
    version = bronze.snapshot().version
    error = settings.pipeline.stats.distinct_error
    progress.step(f"counting version {version} of {bronze.path}")
    session = spark()
    rows = hourly_stats(read_table(session, bronze.path, version), distinct_error=error)
    if (topics := settings.landing_topics()) is not None:
        rows = rows.where(F.col("topic").isin(sorted(topics)))
    table = create_table(
        settings.location("stats"), name=JOB, schema=_schema(session).schema.json(), partition_by=FOLDERS
    )
    plan = f"stats:{bronze.record.id}:{version}:{time.time_ns()}"  # what topics are wanted may differ from run to run
    with table.begin(plan=plan, job=JOB, operation=Operation.REPLACE) as transaction:
        transaction.remove(transaction.base.files)
        ordered = rows.select(*_COLUMNS).repartition("topic").sortWithinPartitions("topic", "hour")
        transaction.add(write_frame(transaction, ordered, bounds=("hour",)))
        commit = transaction.commit(progress={f"bronze:{bronze.record.id}": version})
    written = read_table(session, table.path, commit.version)
    total = written.agg(F.sum("records").alias("records"), F.sum("bytes").alias("bytes")).collect()[0]
    return Summary(
        numbers={
            "table": str(table.path),
            "version": commit.version,
            "bronze_version": version,
            "hours": commit.rows,
            "records": total["records"] or 0,
            "bytes": total["bytes"] or 0,
            "elapsed_s": round(time.monotonic() - started, 3),
        },
        tables=(_show(written),),
    )


def hourly_stats(bronze: DataFrame, *, distinct_error: float = 0.05) -> DataFrame:
    """Return figures by topic and hour of a frame with bronze's columns; see ``_COLUMNS``."""
    value_bytes = F.length("value")
    lag_ms = F.unix_millis("landed") - F.unix_millis("timestamp")
    size = F.coalesce(F.length("key"), F.lit(0)) + F.coalesce(value_bytes, F.lit(0))
    seconds = F.unix_seconds(F.coalesce("timestamp", "landed"))
    hour = F.timestamp_seconds(F.floor(seconds / _HOUR_S) * _HOUR_S)
    found = bronze.groupBy("topic", hour.alias("hour")).agg(
        F.count("*").alias("records"),
        F.count_if(F.col("key").isNull()).alias("null_keys"),
        F.count_if(F.col("value").isNull()).alias("null_values"),
        F.sum(size.cast("bigint")).alias("bytes"),
        F.percentile_approx(value_bytes, [0.5, 0.9, 0.99], _ACCURACY).alias("sizes"),
        F.max(value_bytes).alias("value_bytes_max"),
        F.percentile_approx(lag_ms, [0.5, 0.9, 0.99], _ACCURACY).alias("lags"),
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


def _schema(session: SparkSession) -> DataFrame:
    return session.createDataFrame([], ", ".join(f"{name} {kind}" for name, kind in _COLUMNS.items()))


def _show(stats: DataFrame) -> Table:
    heads = ("topic", "hour", "records", "bytes", "value_bytes_p50", "lag_ms_p50", "lag_ms_p99", "distinct_keys")
    shown = stats.select("topic", F.date_format("hour", "yyyy-MM-dd HH:mm").alias("hour"), *heads[2:])
    newest = shown.orderBy(F.desc("hour"), "topic").limit(_SHOWN).collect()
    return Table(title="By topic and hour", heads=heads, rows=tuple(tuple(row) for row in newest))
