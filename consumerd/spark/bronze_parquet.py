"""Bronze as a transactional table of Parquet files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

from consumerd.spark.bronze_target import JOB, Taken
from consumerd.spark.bronze_tasks import copy_rows
from consumerd.spark.job import Sessions
from consumerd.spark.landing.coverage import NOTHING, Coverage
from consumerd.spark.landing.plan import LandingPlan
from consumerd.spark.table.commit import Operation
from consumerd.spark.table.errors import TableConflict
from consumerd.spark.table.parquet_files import FileSettings
from consumerd.spark.table.transaction import Table


class ParquetTarget:
    """See Target: a transactional table of Parquet files."""

    def __init__(self, table: Table, settings: FileSettings) -> None:
        self.table = table
        self._settings = settings
        self._planned_from = NOTHING

    @property
    def place(self) -> str:
        """See Target."""
        return str(self.table.path)

    def recover(self, spark: Sessions) -> None:
        """See Target: a commit is whole or not at all."""

    def covered(self) -> Coverage:
        """See Target."""
        self._planned_from = self.table.snapshot().covered
        return self._planned_from

    def take(self, spark: Sessions, plan: LandingPlan) -> Taken:
        """See Target."""
        with self.table.begin(plan=_name(plan), job=JOB, operation=Operation.APPEND) as transaction:
            if transaction.base.covered != self._planned_from:
                raise TableConflict(
                    f"{self.place}: version {transaction.base.version} was committed while this run made its plan"
                )
            if plan.files:
                transaction.add(copy_rows(spark(), transaction, plan, self._settings))
            counts = {"files_taken": len(plan.files), "files_passed": sum(map(_size, plan.passed.taken.values()))}
            commit = transaction.commit(covered=plan.adds, counts=counts)
        self._planned_from |= plan.adds
        return Taken(version=commit.version, rows=commit.rows, files=len(plan.files))


def _name(plan: LandingPlan) -> str:
    """Return a plan's name, by what the table covers after it: a table covers nothing twice, so no two have the same."""
    return hashlib.sha256(json.dumps(plan.adds.encode(), sort_keys=True).encode()).hexdigest()[:32]


def _size(ranges: Iterable[object]) -> int:
    return sum(1 for _ in ranges)
