"""Parquet files written by Spark's tasks, with statistics, into a transaction's staging."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame

from consumerd.spark.table.commit import DataFile
from consumerd.spark.table.transaction import Transaction


def write_frame(transaction: Transaction, frame: DataFrame, *, bounds: Sequence[str] = ()) -> list[DataFile]:
    """Write a frame's rows into new files, staged; give them to ``transaction.add`` to have them committed.

    The frame has the table's columns, in any order. Each task writes a file for each combination of the values of the
    partition columns that it meets, rows in their order: ``repartition`` and ``sortWithinPartitions`` say how many files there are, and how
    they are sorted. ``bounds`` names columns (whole numbers, timestamps, days, texts) of which the log is to keep the smallest and the
    largest value. An empty frame gives no files.

    Raises TableError for columns that the table does not have, and what Spark raises where a task fails.
    """
    raise NotImplementedError
