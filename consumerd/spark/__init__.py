# SPDX-License-Identifier: Apache-2.0
"""The data pipeline on Spark: a data source for brokers, and the jobs that take over what daemons have landed.

    from consumerd import spark as consumerd_spark

    spark = consumerd_spark.local_session()                       # or the session that there is
    consumerd_spark.register(spark)
    spark.read.format("consumerd").option("zookeeper", "zk1:2181/kafka").option("subscribe", "orders").load()
    consumerd_spark.read_table(spark, "/data/lake/bronze")

Without pyspark the rest of consumerd works, and so do the modules here that only plan and name things (``landing``,
``datasource.options``, the log of ``table``, ...), which never import it. Nothing below this layer imports this package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

__all__ = ["append_batches", "local_session", "read_table", "register"]

# Each process that Spark starts for Python imports this package, and most need one module of it: so these load theirs when called.


def local_session(
    name: str = "consumerd",
    *,
    master: str = "local[*]",
    driver_memory: str = "1g",
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start a session on this machine, or return the process's if it has one. Blocks for about five seconds.

    ``settings`` are Spark's own, and win over ours; with a session that is there already nothing of this counts. Raises
    ConfigError where pyspark or a Java is missing, or the JVM does not start.
    """
    from consumerd.spark.session import local_session as start

    return start(name, master=master, driver_memory=driver_memory, settings=settings)


def register(spark: SparkSession) -> None:
    """Make ``consumerd`` a format of this session, to read and to write. Raises ConfigError if its Spark is too old.

    Lets Python data sources of the session see the filters of queries (``spark.sql.python.filterPushdown.enabled``), so that
    a batch fetches only partitions and offsets that can be wanted.
    """
    from consumerd.spark.datasource.source import ConsumerdSource
    from consumerd.spark.session import check_spark_version

    check_spark_version(spark.version)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(ConsumerdSource)


def read_table(spark: SparkSession, path: str | Path, version: int | None = None) -> DataFrame:
    """Return a table that a job has written, as it is now or was at a version. Raises TableError and OSError."""
    from consumerd.spark.table.reading import read_table as read

    return read(spark, path, version)


def append_batches(
    path: str | Path, *, name: str, partition_by: Sequence[str] = (), bounds: Sequence[str] = ()
) -> Callable[[DataFrame, int], None]:
    """Return a function for ``foreachBatch`` that appends each micro-batch of a stream to a table, once.

    A batch that Spark repeats after a crash is in the table once. Two queries may append to the same table.

    Args:
        path: folder of the table, which is created by the first batch with the columns of the stream.
        name: of the table, kept in its log.
        partition_by: columns of texts, days or whole numbers, which become folders.
        bounds: columns of which the log keeps the smallest and the largest value of each file.

    The function raises ConfigError outside of a stream, TableError if the columns are not those of the table, OSError.
    """
    from consumerd.spark.batches import append_batches as make

    return make(path, name=name, partition_by=partition_by, bounds=bounds)
