"""Bronze as a Delta table, for paths that have no ``link`` (object stores), and for who queries Delta.

What is new is first committed to a table of ours, the *outbox*, on a file system that driver and executors share; each of its
commits is then appended to the Delta table under its number as a Delta transaction of the application that the outbox's id
names. Delta passes over a number that it has seen, so a run that dies anywhere in between and is run again appends each
commit once. Files of the outbox that have been appended are taken out of it, and removed by its vacuum.
"""

from __future__ import annotations

import time
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from consumerd.errors import ConfigError
from consumerd.spark.bronze_parquet import ParquetTarget
from consumerd.spark.bronze_rows import FOLDERS
from consumerd.spark.bronze_target import Taken
from consumerd.spark.job import Sessions
from consumerd.spark.landing.coverage import Coverage
from consumerd.spark.landing.plan import LandingPlan
from consumerd.spark.table.commit import Operation
from consumerd.spark.table.errors import TableError
from consumerd.spark.table.reading import read_files
from consumerd.spark.table.vacuum import vacuum

PROGRESS: Final = "delta"
"""The name under which the outbox's commits say up to which of its versions the Delta table has them."""


class DeltaTarget:
    """See Target. ``place`` is what Delta calls the table's path, ``outbox`` the table between."""

    def __init__(self, place: str, outbox: ParquetTarget) -> None:
        self.place = place
        self._outbox = outbox

    def recover(self, spark: Sessions) -> None:
        """See Target: append what an earlier run has left in the outbox."""
        if self._outbox.table.snapshot().files:
            self._forward(spark())

    def covered(self) -> Coverage:
        """See Target."""
        return self._outbox.covered()

    def take(self, spark: Sessions, plan: LandingPlan) -> Taken:
        """See Target."""
        contested = [planned.path for planned in plan.files if planned.contested]
        if contested:
            raise TableError(
                f"{contested[0]} does not list its gaps and shares offsets with another chain: which of its rows are new "
                "can only be looked up in a table of format: parquet"
            )
        taken = self._outbox.take(spark, plan)
        if taken.rows:
            self._forward(spark())
        return taken

    def _forward(self, spark: SparkSession) -> None:
        """Append each commit of the outbox to the Delta table, and take its files out of the outbox."""
        snapshot = self._outbox.table.snapshot()
        for commit in self._outbox.table.log.read_after(snapshot.progress.get(PROGRESS, 0), snapshot.version):
            if commit.operation is not Operation.APPEND or not commit.added:
                continue
            rows = read_files(spark, self._outbox.table, commit.added, self._outbox.table.schema(snapshot))
            writer = rows.write.format("delta").mode("append").partitionBy(*FOLDERS)
            try:
                writer.option("txnAppId", self._outbox.table.record.id).option("txnVersion", commit.version).save(
                    self.place
                )
            except PySparkException as error:
                if "delta" in str(error) and "DATA_SOURCE_NOT_FOUND" in str(error):
                    raise ConfigError(
                        "pipeline.bronze.format: delta needs Delta's jars: pip install 'consumerd[delta]' and see "
                        "docs/spark.md for the settings of the session"
                    ) from error
                raise
            name = f"appended {commit.version} to {self.place}"
            with self._outbox.table.begin(plan=name, job="bronze", operation=Operation.REPLACE) as transaction:
                transaction.remove(file.path for file in commit.added)
                transaction.commit(progress={PROGRESS: commit.version})
        vacuum(self._outbox.table, keep_ms=0, now_ms=time.time_ns() // 1_000_000)
