# SPDX-License-Identifier: Apache-2.0
"""The bronze table, its columns, and the commits that copy landed records into it.

A plan (``landing.plan``) says which offsets to take from which landed file. :class:`BronzeTable` executes it in one
transaction, and refuses it if another run has committed since the plan was made.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DateType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from consumerd.landing.coverage import NOTHING, Coverage
from consumerd.landing.plan import LandingPlan
from consumerd.spark.bronze_tasks import copy_rows
from consumerd.spark.job import Sessions
from consumerd.spark.table.commit import DataFile, Operation, TableCommit
from consumerd.spark.table.errors import TableConflict
from consumerd.spark.table.parquet_files import FileSettings
from consumerd.spark.table.transaction import Table, Transaction

JOB: Final = "bronze"
"""Name of the job in the table's commits, and of the table."""
BOUNDS: Final = ("incarnation", "partition", "offset", "timestamp", "landed")
"""Columns whose smallest and largest value the log stores for each file."""

SCHEMA: Final = StructType(
    [
        StructField("incarnation", StringType()),
        StructField("broker", IntegerType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("next_offset", LongType()),
        StructField("index", IntegerType()),
        StructField("timestamp", TimestampType()),
        StructField("timestamp_type", IntegerType()),
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField(
            "headers", ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
        ),
        StructField("landed", TimestampType()),
        StructField("topic", StringType()),
        StructField("day", DateType()),
    ]
)
"""Columns of bronze.

``incarnation`` says which creation of the topic a record is of: the czxid of its ZooKeeper node, and after a dot the
number of truncations of the partition (``7``, ``7.1``). ``landed`` is the time when the record's landed file was
written. ``broker`` is null except for partitions of Kafka 0.7. ``index`` counts records that share an offset (0.7).
``timestamp_type`` is null for JSON lines of releases that did not write it.
"""

RowCopier = Callable[[Sessions, Transaction, LandingPlan, FileSettings], list[DataFile]]
"""Function that copies the rows of a plan into staged files of a transaction. Raises FilesDamaged, OSError."""


class BronzeTable:
    """The table with every landed record, which the job ``bronze`` fills.

    Args:
        copy: function that copies rows from landed files; by default in Spark's tasks.
    """

    def __init__(self, table: Table, settings: FileSettings, *, copy: RowCopier = copy_rows) -> None:
        self.table = table
        self._settings = settings
        self._copy = copy
        self._planned_from = NOTHING

    @property
    def place(self) -> str:
        """Path of the table's folder."""
        return str(self.table.path)

    def covered(self) -> Coverage:
        """Return the landed offsets that the table has taken, by partition. Raises TableError, OSError.

        Offsets whose rows were removed later, by retention or ``erase``, are included.
        """
        self._planned_from = self.table.snapshot().covered
        return self._planned_from

    def take(self, spark: Sessions, plan: LandingPlan) -> TableCommit:
        """Copy the rows of a plan into the table, in one commit; return the commit.

        A plan says which offsets to take from which landed file. It must be made from the last result of
        :meth:`covered`. Raises FilesDamaged, TableConflict if another run has committed since, and Spark's exceptions
        if a task fails.
        """
        with self.table.begin(plan=_name(plan), job=JOB, operation=Operation.APPEND) as transaction:
            if transaction.base.covered != self._planned_from:
                raise TableConflict(
                    f"{self.place}: version {transaction.base.version} was committed while this run made its plan"
                )
            if plan.files:
                transaction.add(self._copy(spark, transaction, plan, self._settings))
            counts = {"files_taken": len(plan.files), "files_passed": len(plan.passed)}
            commit = transaction.commit(covered=plan.adds, counts=counts)
        self._planned_from |= plan.adds
        return commit


def _name(plan: LandingPlan) -> str:
    """Return the plan's name: a digest of the offsets that it adds.

    No two plans add the same offsets.
    """
    return hashlib.sha256(json.dumps(plan.adds.encode(), sort_keys=True).encode()).hexdigest()[:32]
