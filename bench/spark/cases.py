# SPDX-License-Identifier: Apache-2.0
"""What is measured of the pipeline, by whom, and what is aimed at: declarations.

A case is a piece of work that everybody named does in turns. ``targets`` hold one of them against another (``times`` as fast, at
least; ``cpu`` times its processor time, at most) or against a number.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final


class Worker(enum.StrEnum):
    """Who does it."""

    OURS = "consumerd"
    """The data source ``consumerd``, on the pyspark that is installed."""
    BESIDE = "consumerd, on Spark's"
    """The same in the very session in which Spark's own source is measured."""
    THEIRS = "Spark's Kafka source"
    """On the pyspark that its jars are of."""
    BRONZE = "consumerd-spark bronze"
    """The job, on a table that is empty."""
    COPY = "plain copy"
    """``spark.read.parquet(...).write.parquet(...)`` of the same files, with bronze's compression."""
    AUDIT = "consumerd-spark audit"
    """Names alone."""
    LONG = "long log"
    SHORT = "log of 1,000 commits"
    LATEST = "refresh of latest"
    """By what is new."""
    ANEW = "latest made anew"
    """From all that was ever decoded."""
    DRIVER = "driver of bronze"
    """Its plans, without Spark."""


class Work(enum.StrEnum):
    """Pieces of work: functions of ``bench.spark.works``.

    AUDIT, LOG and MEMORY need no session, and are functions of ``bench.spark.measuring``.
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
    """An aim, of which exactly one is set.

    Attributes:
        worker: whose figure it is.
        peer: who it is compared with, for ``times`` and ``cpu``.
        times: as fast as the peer, at least.
        cpu: times the peer's processor time, at most.
        rows_per_s: at least.
        seconds: at most.
        size: bytes at most, of memory or disk.
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
    """A piece of work, who does it, and what is aimed at."""

    name: str
    what: str
    work: Work
    workers: tuple[Worker, ...]
    targets: tuple[Target, ...]
    payload: str = "repeated"
    """Of landed files; topics hold 100 bytes, repeated."""

    @property
    def of_a_topic(self) -> bool:
        """Whether it reads a topic."""
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
        what="opening a table after 30,000 commits, of which 10,000 or 11,000 are left",
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
    """Return the cases whose names match one of the patterns. Raises ValueError for a pattern that matches none."""
    patterns = tuple(patterns)
    for pattern in patterns:
        if not any(fnmatchcase(case.name, pattern) for case in CASES):
            raise ValueError(f"no case is named {pattern}; there are {', '.join(case.name for case in CASES)}")
    return tuple(case for case in CASES if any(fnmatchcase(case.name, pattern) for pattern in patterns))
