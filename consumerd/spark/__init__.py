# SPDX-License-Identifier: Apache-2.0
"""Data pipeline on Spark: a data source for Kafka brokers, and jobs over landed files.

    from consumerd import spark as consumerd_spark

    spark = consumerd_spark.local_session()  # or a session that exists, as in a notebook
    consumerd_spark.register(spark)
    spark.read.format("consumerd").option("zookeeper", "zk1:2181/kafka").option("subscribe", "orders").load()
    consumerd_spark.read_table(spark, "/data/lake/bronze")

Words of this package:

- Landed file: a file of records that a daemon has published. A chain is a run of landed files of a partition, each of
  which begins at the offset where the one before ends.
- Bronze: the table with every landed record, once. Silver: a table of decoded records per topic. Quarantine: the table
  of records that could not be decoded, of all topics. Latest: a table per topic with the newest value of each key.
- Incarnation: one creation of a topic. A topic that was deleted and re-created has other records at the same offsets.
- Identity of a record: topic, incarnation, broker (Kafka 0.7 only), partition, offset, and index among records that
  share an offset (Kafka 0.7 only).
- Plan: the work of one commit, such as which offsets to copy from which file. Its name is in the commit, so that a
  repeated run finds that it is done.
- Coverage: the offsets that bronze has taken from landed files. Progress: numbers that a table stores with each commit,
  such as the version of bronze up to which a topic is decoded.

The rest of consumerd works without pyspark, and so do the modules here that only plan (``datasource.options``, the log
of ``table``). No layer below imports this package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

__all__ = ["append_batches", "local_session", "read_table", "register"]

# Every Python worker of Spark imports this package, and most need one module of it. So each function imports on call.


def local_session(
    name: str = "consumerd",
    *,
    master: str = "local[*]",
    driver_memory: str = "1g",
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start a Spark session on this machine, or return the one that exists.

    Starting blocks for about five seconds. If this process has a session, it is returned as it is, and the arguments
    are ignored.

    Args:
        name: application name.
        settings: Spark properties; they override the defaults of consumerd.

    Raises ConfigError if pyspark or Java is missing, or the JVM does not start.
    """
    from consumerd.spark.session import local_session as start

    return start(name, master=master, driver_memory=driver_memory, settings=settings)


def register(spark: SparkSession) -> None:
    """Make ``consumerd`` a format of this session, for reading and writing.

    Also enables filter pushdown for the session's Python data sources (``spark.sql.python.filterPushdown.enabled``), so
    that a batch read fetches only the partitions and offsets that its filters allow.

    Raises ConfigError if the session's Spark is too old.
    """
    from consumerd.spark.datasource.source import ConsumerdSource
    from consumerd.spark.session import check_spark_version

    check_spark_version(spark.version)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(ConsumerdSource)


def read_table(spark: SparkSession, path: str | Path, version: int | None = None) -> DataFrame:
    """Return a table that a job has written, as a DataFrame.

    Args:
        path: folder of the table.
        version: version of the table; None for the newest.

    Raises TableError, OSError.
    """
    from consumerd.spark.table.reading import read_table as read

    return read(spark, path, version)


def append_batches(
    path: str | Path, *, name: str, partition_by: Sequence[str] = (), bounds: Sequence[str] = ()
) -> Callable[[DataFrame, int], None]:
    """Return a function for ``foreachBatch`` that appends micro-batches to a table exactly once.

    Spark repeats a batch after a crash; its rows are still in the table once. Several queries may append to one table.

    Args:
        path: folder of the table. The first batch creates it, with the columns of the stream.
        name: name of the table, stored in its log.
        partition_by: partition columns: texts, days or whole numbers.
        bounds: columns whose smallest and largest value the log stores for each file.

    The returned function raises ConfigError outside of a stream, TableError if the table has other columns, OSError.
    """
    from consumerd.spark.batches import append_batches as make

    return make(path, name=name, partition_by=partition_by, bounds=bounds)
