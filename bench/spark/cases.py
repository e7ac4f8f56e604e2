# SPDX-License-Identifier: Apache-2.0
"""Benchmark cases of the pipeline: pieces of work, their workers and their targets.

A case is a piece of work that each of its workers does, in turns. A target holds the figure of a worker against that of
another worker, or against a number.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final


class Worker(enum.StrEnum):
    """Workers that a case can compare. The value is the worker's name in the tables."""

    OURS = "consumerd"
    """The data source ``consumerd``, on the installed pyspark."""
    BESIDE = "consumerd, on Spark's"
    """The data source ``consumerd``, in the session in which Spark's own source is measured."""
    THEIRS = "Spark's Kafka source"
    """Spark's own source, on the version of pyspark that its jars belong to."""
    BRONZE = "consumerd-spark bronze"
    """The job ``bronze``, on an empty table."""
    COPY = "plain copy"
    """``spark.read.parquet(...).write.parquet(...)`` of the same files, with bronze's compression."""
    AUDIT = "consumerd-spark audit"
    """The job ``audit``, on file names alone."""
    LONG = "long log"
    SHORT = "log of 1,000 commits"
    LATEST = "refresh of latest"
    """Latest values brought up to date from the new rows."""
    ANEW = "latest made anew"
    """Latest values computed from all rows that were ever decoded."""
    DRIVER = "driver of bronze"
    """The plans that bronze makes in its driver, without Spark."""


class Work(enum.StrEnum):
    """Kinds of work: functions of ``bench.spark.works``.

    AUDIT, LOG and MEMORY need no session. They are functions of ``bench.spark.measuring``.
    """

    HASH = "hash"
    PARQUET = "parquet"
    STREAM = "stream"
    LANDED = "landed"
    AUDIT = "audit"
    LOG = "log"
    LATEST = "latest"
    MEMORY = "memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Performance target; exactly one limit is set.

    Attributes:
        worker: worker that must reach the target.
        peer: worker to compare it with, for ``times`` and ``cpu``.
        times: least ratio of the worker's rate to the peer's.
        cpu: highest ratio of the worker's CPU time to the peer's, for the same number of rows.
        rows_per_s: least rate.
        seconds: longest time.
        size: most bytes, of memory or of disk.
    """

    worker: Worker
    peer: Worker | None = None
    times: float | None = None
    cpu: float | None = None
    rows_per_s: float | None = None
    seconds: float | None = None
    size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A piece of work, its workers and their targets."""

    name: str
    what: str
    work: Work
    workers: tuple[Worker, ...]
    targets: tuple[Target, ...]
    payload: str = "repeated"
    """Values of landed files, as in ``bench.sinks``. Topics always hold 100 bytes, repeated."""

    @property
    def of_a_topic(self) -> bool:
        """True if the work reads a topic."""
        return self.work in (Work.HASH, Work.PARQUET, Work.STREAM)


_SOURCES: Final = (Worker.OURS, Worker.THEIRS, Worker.BESIDE)


def _source(work: Work, what: str, times: float) -> Case:
    return Case(
        name=work,
        what=what,
        work=work,
        workers=_SOURCES,
        targets=tuple(Target(worker=one, peer=Worker.THEIRS, times=times) for one in (Worker.OURS, Worker.BESIDE)),
    )


def _landed(payload: str, what: str) -> Case:
    return Case(
        name=f"bronze-{payload}",
        what=f"landed Parquet files, {what}, into a table",
        work=Work.LANDED,
        workers=(Worker.BRONZE, Worker.COPY),
        targets=(
            Target(worker=Worker.BRONZE, rows_per_s=1e6),
            Target(worker=Worker.BRONZE, peer=Worker.COPY, cpu=1.3),
        ),
        payload=payload,
    )


CASES: Final = (
    _source(Work.HASH, "a topic of 4 partitions: sum(length(value)) and a hash of each partition", 1.5),
    _source(Work.PARQUET, "the same topic into Parquet", 1.2),
    _source(Work.STREAM, "the same topic as a stream, availableNow, in 4 triggers into Parquet", 1.5),
    _landed("repeated", "values of 100 bytes, repeated"),
    _landed("random", "random JSON of 100 to 400 bytes"),
    Case(
        name="audit",
        what="names of 100,000 landed files",
        work=Work.AUDIT,
        workers=(Worker.AUDIT,),
        targets=(Target(worker=Worker.AUDIT, seconds=5.0),),
    ),
    Case(
        name="log",
        what="opening a table after 1,000,000 commits, of which at most 11,000 are left",
        work=Work.LOG,
        workers=(Worker.LONG, Worker.SHORT),
        targets=(Target(worker=Worker.LONG, peer=Worker.SHORT, cpu=3.0), Target(worker=Worker.LONG, size=50_000_000)),
    ),
    Case(
        name="latest",
        what="latest values of a table of which 1 % of all keys have changed",
        work=Work.LATEST,
        workers=(Worker.LATEST, Worker.ANEW),
        targets=(Target(worker=Worker.LATEST, peer=Worker.ANEW, times=10.0),),
    ),
    Case(
        name="memory",
        what="plans of 100,000 landed files and of a compacted topic with 1,000,000 holes",
        work=Work.MEMORY,
        workers=(Worker.DRIVER,),
        targets=(Target(worker=Worker.DRIVER, size=1 << 30),),
    ),
)


def select(patterns: Iterable[str]) -> tuple[Case, ...]:
    """Return the cases whose names match one of the patterns.

    ``*`` and ``?`` mean the same as in a shell. Raises ValueError for a pattern that matches no name.
    """
    patterns = tuple(patterns)
    for pattern in patterns:
        if not any(fnmatchcase(case.name, pattern) for case in CASES):
            raise ValueError(f"no case is named {pattern}; there are {', '.join(case.name for case in CASES)}")
    return tuple(case for case in CASES if any(fnmatchcase(case.name, pattern) for pattern in patterns))
