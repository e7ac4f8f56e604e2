# SPDX-License-Identifier: Apache-2.0
"""Spark tasks: their number, the division of work among them, and their ids."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

import pyarrow as pa
from pyspark import TaskContext

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")

_TASKS_PER_CORE: Final = 2


def max_tasks(session: SparkSession) -> int:
    """Return the number of tasks to divide work into: twice Spark's default parallelism."""
    return _TASKS_PER_CORE * session.sparkContext.defaultParallelism


def deal(session: SparkSession, items: Sequence[T]) -> list[Sequence[T]]:
    """Divide items among at most :func:`max_tasks` groups, one per task, each item in turn.

    Example: five items for two tasks are divided into items 0, 2, 4 and items 1, 3.
    """
    count = min(len(items), max_tasks(session))
    return [items[place::count] for place in range(count)]


def run_shares(
    session: SparkSession, shares: Sequence[T], work: Callable[[T], Iterator[pa.RecordBatch]], schema: str
) -> DataFrame:
    """Return the results of ``work``, called in one Spark task for each share.

    Args:
        shares: arguments for ``work``, at least one. They are sent to the tasks, as ``work`` is.
        schema: columns of the results, in Spark's notation.
    """

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:  # the numbers of `range`: they have no meaning
            pass
        context = TaskContext.get()
        assert context is not None  # this runs in tasks only
        yield from work(shares[context.partitionId()])

    return session.range(0, len(shares), 1, len(shares)).mapInArrow(run, schema)


def find_task() -> int:
    """Return the id of the running Spark task's attempt, unique in the application.

    0 outside of tasks.
    """
    context = TaskContext.get()
    return 0 if context is None else int(context.taskAttemptId())
