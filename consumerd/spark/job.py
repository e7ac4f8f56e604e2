# SPDX-License-Identifier: Apache-2.0
"""The interface of the pipeline's jobs: names, arguments, results.

Each job is a module of this package with a function ``run`` of the type :data:`Run`. It gets a function that returns
the Spark session, and calls it only when needed: starting a session takes five seconds, and some runs need none. A job
raises ``ConfigError`` for wrong settings (exit code 2), and another ``ConsumerdError`` for failures (exit code 1).
Problems of the data, such as gaps or bad records, are not errors but findings of its summary.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Final, Literal, NewType, Protocol, cast

from consumerd.config.job import JobSettings
from consumerd.errors import ConfigError
from consumerd.installation import install_command

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JobName = NewType("JobName", str)

JOBS: Final[Mapping[JobName, str]] = {
    JobName("audit"): "compare what has landed with what should have: gaps, overlaps, damage",
    JobName("bronze"): "take over what has landed since the last run, each record once",
    JobName("silver"): "decode what is new in bronze; bad and late records go to quarantine",
    JobName("compact"): "make large sorted files of small ones, and remove what they replaced a while ago",
    JobName("stats"): "count records, bytes, lag and keys by topic and hour",
    JobName("retention"): "remove landed files that bronze has, and rows of tables, when they are old enough",
    JobName("erase"): "remove the records of a key or a predicate from all tables and landed files, and prove it",
    JobName("replay"): "send a range of bronze, or the quarantine, back into a topic",
}
"""Help text of every job. A job is the module of that name."""

COMMANDS: Final[Mapping[JobName, str]] = {
    JobName("describe"): "say what the tables have: versions, rows, files, columns",
    JobName("history"): "list a table's newest versions, and what made them",
    JobName("files"): "list the files that a table has at a version",
    JobName("quarantine"): "count quarantined records by topic and cause, with an example of each; or purge them",
    JobName("vacuum"): "remove files and commits that no version of the last while needs, without compacting",
    JobName("restore"): "go back to an earlier version of a table, by a commit like others",
}
"""Help text of every command over tables. All are in ``table_commands``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrintedTable:
    """A table for people: a title, column names and rows. Values are printed with ``str``."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Result of a job or command: numbers, findings, notes, tables.

    Attributes:
        numbers: keys of the JSON summary, printed in their order: counts, seconds (``_s``), bytes (``_bytes``), texts.
        findings: problems, each a sentence that names topic, partition, offset or file. Any finding makes the exit code
            1.
        notes: sentences that need no action.
        tables: printed for people only.
        details: further keys of the JSON summary.
    """

    numbers: Mapping[str, object]
    findings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    tables: tuple[PrintedTable, ...] = ()
    details: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRequest:
    """Arguments of a command over tables, such as ``vacuum``.

    Attributes:
        table: name or folder; None for all tables.
        version: version of the table; None for the newest.
        limit: number of versions to list.
        dry_run: True to change nothing.
        purge: records to remove from the quarantine: replayed ones, or all; None for none.
        topic: only this topic's records of the quarantine; None for all topics.
        cause: only records of the quarantine with this cause; None for all causes.
        before: only records of the quarantine that landed before this time; None for all.
        older_than_ms: only records of the quarantine that landed at least this number of ms ago; None for all.
    """

    table: str | None = None
    version: int | None = None
    limit: int = 20
    dry_run: bool = False
    purge: Literal["replayed", "all"] | None = None
    topic: str | None = None
    cause: str | None = None
    before: datetime | None = None
    older_than_ms: int | None = None


class Progress(Protocol):
    """Receives a job's progress.

    Calls are cheap, and made from the thread that runs the job.
    """

    def step(self, what: str) -> None:
        """Report the step that begins now, such as ``reading the footers of 120 files``."""

    def done(self, count: int, of: int, what: str) -> None:
        """Report the finished part of a step, such as 40 of 120 ``files``."""


class Silent:
    """Receiver of a job's progress that shows nothing."""

    def step(self, what: str) -> None:
        """Do nothing with the name of a step."""

    def done(self, count: int, of: int, what: str) -> None:
        """Do nothing with the finished part of a step."""


Sessions = Callable[[], "SparkSession"]
"""Function that returns the Spark session, and starts it at the first call.

Raises ConfigError (no pyspark, no Java).
"""

Run = Callable[[Sessions, JobSettings, Progress], Summary]
"""A job: ``run(spark, settings, progress)``, where ``spark()`` is the session."""


Command = Callable[[JobName, JobSettings, TableRequest], Summary]
"""A command over tables: ``run(name, settings, request)``."""


def load_job(name: JobName) -> Run:
    """Import a job's module and return the function that runs it.

    Raises ConfigError if a package it needs is missing.
    """
    return cast("Run", _load(name, name))


def load_commands(name: JobName) -> Command:
    """Import the commands over tables, such as ``vacuum``; return the function that runs them.

    Raises ConfigError, which names the command, if a package it needs is missing.
    """
    return cast("Command", _load("table_commands", name))


def _load(module: str, who: str) -> object:
    try:
        return importlib.import_module(f"consumerd.spark.{module}").run
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in {"", "consumerd"}:
            raise
        raise ConfigError(f"{who} needs {missing}, which is not installed: {install_command('spark')}") from error
