"""What a job of the pipeline is to whoever runs it: a function of a session, the settings and somewhere to tell progress.

Each job is a module of this package with a function ``run`` of the type :data:`Run`. It asks for the session only when it
has something for Spark to do: a session takes five seconds to start, and an audit of names needs none. It raises
``ConfigError`` for what the settings get wrong (exit code 2) and another ``ConsumerdError`` for what fails (exit code 1); what it
*finds* (gaps, bad records) are findings of its summary, not errors.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NewType, Protocol, cast

from consumerd.config.job import JobSettings
from consumerd.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JobName = NewType("JobName", str)

JOBS: Final[Mapping[JobName, str]] = {
    JobName("audit"): "compare what has landed with what should have: gaps, overlaps, damage",
    JobName("bronze"): "take over what has landed since the last run, each record once",
    JobName("silver"): "decode what is new in bronze; bad and late records go to quarantine",
    JobName("compact"): "make large sorted files of small ones, and remove what they replaced a while ago",
    JobName("stats"): "count records, bytes, lag and keys by topic and hour",
    JobName("replay"): "send a range of bronze, or the quarantine, back into a topic",
}
"""Every job, and what it does in a line. Each is the module of that name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Something to print: a heading and rows of what ``str`` makes readable."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What came of a run.

    ``numbers`` are printed in their order and are the JSON summary's keys: counts, seconds (``_s``), bytes (``_bytes``), and what
    else JSON holds. ``findings`` are complete sentences that name topic, partition, offset or file; any makes the exit code 1.
    ``notes`` are as complete, and nothing to act upon. ``tables`` are for people, and not in the JSON summary.
    """

    numbers: Mapping[str, object]
    findings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    tables: tuple[Table, ...] = field(default=())


class Progress(Protocol):
    """Is told how far a job is. Calls are cheap, and made from the thread that runs the job."""

    def step(self, what: str) -> None:
        """Say what begins now, such as ``reading the footers of 120 files``."""

    def done(self, count: int, of: int, what: str) -> None:
        """Say how much of the step is done, such as 40 of 120 ``files``; as often as you like."""


class Silent:
    """Progress that nobody looks at."""

    def step(self, what: str) -> None:
        """Do nothing."""

    def done(self, count: int, of: int, what: str) -> None:
        """Do nothing."""


Sessions = Callable[[], "SparkSession"]
"""Gives the session, and starts it when it is asked for the first time. Raises ConfigError (no pyspark, no Java)."""

Run = Callable[[Sessions, JobSettings, Progress], Summary]
"""A job: ``run(spark, settings, progress)``; ``spark()`` is the session."""


def load_job(name: JobName) -> Run:
    """Return the function of a job; loads what it needs. Raises ConfigError where that is not installed."""
    try:
        return cast("Run", importlib.import_module(f"consumerd.spark.{name}").run)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in {"", "consumerd"}:
            raise
        raise ConfigError(f"{name} needs {missing}, which is not installed: pip install 'consumerd[spark]'") from error
