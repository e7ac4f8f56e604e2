# SPDX-License-Identifier: Apache-2.0
"""The bronze table, and the execution of plans on it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable

from consumerd.landing.coverage import NOTHING, Coverage
from consumerd.landing.plan import LandingPlan
from consumerd.spark.bronze_schema import JOB, CommittedRows
from consumerd.spark.bronze_tasks import copy_rows
from consumerd.spark.job import Sessions
from consumerd.spark.table.commit import DataFile, Operation
from consumerd.spark.table.errors import TableConflict
from consumerd.spark.table.parquet_files import FileSettings
from consumerd.spark.table.transaction import Table, Transaction

RowCopier = Callable[[Sessions, Transaction, LandingPlan, FileSettings], list[DataFile]]
"""Copies a plan's rows into staged files of a transaction. Raises FilesDamaged, OSError."""


class BronzeTable:
    """The table that the job ``bronze`` fills.

    Args:
        copy: executes a plan, in Spark's tasks by default.
    """

    def __init__(self, table: Table, settings: FileSettings, *, copy: RowCopier = copy_rows) -> None:
        self.table = table
        self._settings = settings
        self._copy = copy
        self._planned_from = NOTHING

    @property
    def place(self) -> str:
        """Path of the table."""
        return str(self.table.path)

    def covered(self) -> Coverage:
        """Return the landed offsets that the table holds. Raises TableError, OSError."""
        self._planned_from = self.table.snapshot().covered
        return self._planned_from

    def take(self, spark: Sessions, plan: LandingPlan) -> CommittedRows:
        """Execute a plan, made from the last result of :meth:`covered`, in one commit.

        Raises FilesDamaged, TableConflict, and what Spark raises where a task fails.
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
        return CommittedRows(version=commit.version, rows=commit.rows, files=len(plan.files))


def _name(plan: LandingPlan) -> str:
    """Return the plan's name: a digest of the offsets that it adds. No two plans add the same offsets."""
    return hashlib.sha256(json.dumps(plan.adds.encode(), sort_keys=True).encode()).hexdigest()[:32]
