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

from pathlib import Path
from typing import TYPE_CHECKING

from consumerd.spark.session import local_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["local_session", "read_table", "register"]


def register(spark: SparkSession) -> None:
    """Make ``consumerd`` a format of this session, to read and to write."""
    from consumerd.spark.datasource.source import ConsumerdSource

    spark.dataSource.register(ConsumerdSource)


def read_table(spark: SparkSession, path: str | Path, version: int | None = None) -> DataFrame:
    """Return a table that a job has written, as it is now or was at a version. Raises TableError and OSError."""
    from consumerd.spark.table.reading import read_table as read

    return read(spark, path, version)
