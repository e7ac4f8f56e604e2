# SPDX-License-Identifier: Apache-2.0
"""The command ``consumerd-spark``: runs one job of the pipeline, or a command over its tables.

Spark runs on this machine, or on the cluster that ``spark-submit`` or ``--master`` names. Progress and errors go to
stderr, the result to stdout. Exit codes: 0 done; 1 failed, or with findings; 2 configuration; 128 plus the number of
the signal that stopped it. A stopped job leaves nothing visible half-done, and the next run continues.

Jobs and their results are in ``job``, the text of results in ``report``.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from time import monotonic, time
from typing import TYPE_CHECKING, Final

from consumerd import __version__
from consumerd.config.job import JobSettings
from consumerd.config.load import load_job_settings
from consumerd.config.pipeline import JobMetrics
from consumerd.errors import ConfigError, ConsumerdError
from consumerd.mirror.positions import DEFAULT_GROUP, DEFAULT_TOPIC
from consumerd.sinks.option_types import read_milliseconds
from consumerd.spark import register
from consumerd.spark.failures import find_cause
from consumerd.spark.job import (
    COMMANDS,
    JOBS,
    JobName,
    Progress,
    Silent,
    Summary,
    TableRequest,
    load_commands,
    load_job,
)
from consumerd.spark.progress import Reporter
from consumerd.spark.report import Status, encode_failure, encode_summary, render_summary
from consumerd.spark.session import explain_jvm_exit, find_session, job_session, stop_session
from consumerd.telemetry.logs import configure_logging

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DONE: Final = 0
FAILED: Final = 1
CONFIGURATION: Final = 2

STOP_TIMEOUT_S: Final = 20.0
"""Longest time that a finished or interrupted job waits for Spark to stop, in seconds."""

_EPILOG: Final = """\
in the order of the pipeline, with the daemons' own settings file:
  consumerd-spark audit   --config config.yaml                is everything there that should be
  consumerd-spark bronze  --config config.yaml                take over what is new
  consumerd-spark silver  --config config.yaml                decode what is new in bronze
  consumerd-spark compact --config config.yaml                now and then
and to look at what came of it (without Spark):
  consumerd-spark describe --path /data/lake
  consumerd-spark history bronze --path /data/lake
without a file:
  consumerd-spark audit   --landing /data/landing
  consumerd-spark bronze  --landing /data/landing --path /data/lake

on a cluster: spark-submit ... consumerd_job.py bronze --config config.yaml (see deploy/spark)

exit codes: 0 done, 1 failed or found something, 2 configuration
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one job and return the exit code."""
    args = make_parser().parse_args(arguments)
    configure_logging("warning")
    reporter = Reporter(args.job, sys.stderr, monotonic)
    runner = _Runner(args, Silent() if args.quiet else reporter)
    outcome = runner.run()
    reporter.clear()
    if (problem := runner.report_metrics(outcome.code)) is not None:
        sys.stderr.write(f"consumerd-spark: metrics were not written: {problem}\n")
    if outcome.error is not None:
        for line in outcome.error.splitlines():
            sys.stderr.write(f"consumerd-spark: {line}\n")
    try:
        sys.stdout.write(outcome.output)
        sys.stdout.flush()
    except BrokenPipeError:
        # the reader of our output (head, less) has ended; keep the interpreter from flushing into the closed pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return outcome.code


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of all jobs and commands."""
    parser = argparse.ArgumentParser(
        prog="consumerd-spark",
        description="The data pipeline over what consumerd's daemons have landed, on Spark.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"consumerd {__version__}")
    jobs = parser.add_subparsers(title="jobs, and commands over tables", metavar="JOB", dest="job", required=True)
    for name, what in JOBS.items():
        job = jobs.add_parser(name, help=what, description=f"{what[0].upper()}{what[1:]}.")
        _add_common_options(job)
        for option in _OPTIONS[name]:
            option.add_to(job)
        _MASTER.add_to(job)
    for name, what in COMMANDS.items():
        command = jobs.add_parser(name, help=what, description=f"{what[0].upper()}{what[1:]}.")
        _add_common_options(command)
        _PATH.add_to(command)
        _add_table_options(command, name)
    return parser


@dataclass(frozen=True, slots=True, kw_only=True)
class _Option:
    """A command-line option that sets one setting of the configuration.

    Attributes:
        key: path of the setting, such as ``pipeline.audit.proof``.
        kind: parser of the value; None for a flag without a value, which sets ``value``.
    """

    flag: str
    key: str
    text: str
    kind: Callable[[str], object] | None = str
    metavar: str | None = None
    choices: tuple[str, ...] | None = None
    value: object = True

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        """Add the option to a parser."""
        if self.kind is None:
            parser.add_argument(self.flag, dest=self.key, action="store_const", const=self.value, help=self.text)
            return
        # a repeated option with names adds to them; if the last one won, folders would be left out silently
        action = "extend" if self.kind is _parse_names else "store"
        parser.add_argument(
            self.flag,
            dest=self.key,
            action=action,
            type=self.kind,
            metavar=self.metavar,
            choices=self.choices,
            help=self.text,
        )


def _parse_names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


_PATH: Final = _Option(
    flag="--path", key="pipeline.path", metavar="FOLDER", text="the folder of the tables (pipeline.path)"
)
_MASTER: Final = _Option(
    flag="--master",
    key="pipeline.spark.master",
    metavar="URL",
    text="where Spark runs (local[*], or spark-submit's word)",
)
_TOPICS: Final = _Option(
    flag="--topics", key="pipeline.landing.topics", kind=_parse_names, metavar="A,B", text="only these topics"
)
_LANDING: Final = _Option(
    flag="--landing",
    key="pipeline.landing.roots",
    kind=_parse_names,
    metavar="FOLDER[,FOLDER]",
    text="landing folders, instead of the sinks' paths",
)
_ZOOKEEPER: Final = _Option(flag="--zookeeper", key="cluster.zookeeper", metavar="CONNECT", text="the cluster")

_TABLE_OPTIONAL: Final = ("describe", "vacuum")
"""Commands that work on all tables if none is named."""
_VERSION_TEXT: Final = {"restore": "the version to go back to", "history": "down from this version"}

_OPTIONS: Final[dict[str, tuple[_Option, ...]]] = {
    "audit": (
        _LANDING,
        _TOPICS,
        _PATH,
        _ZOOKEEPER,
        _Option(flag="--group", key="group.id", metavar="ID", text="compare with where this group stands"),
        _Option(
            flag="--names",
            key="pipeline.audit.footers",
            kind=None,
            value=False,
            text="open no files but the last of each chain: seconds for 100,000 files",
        ),
        _Option(flag="--proof", key="pipeline.audit.proof", kind=None, text="read all landed records, too"),
        _Option(
            flag="--no-positions",
            key="pipeline.audit.positions",
            kind=None,
            value=False,
            text="do not ask where the group stands",
        ),
        _Option(flag="--html", key="pipeline.audit.html", metavar="FILE", text="write a page with plots"),
        _Option(flag="--json-file", key="pipeline.audit.json_file", metavar="FILE", text="write all that was found"),
    ),
    "bronze": (
        _LANDING,
        _TOPICS,
        _PATH,
    ),
    "silver": (
        _PATH,
        _TOPICS,
        _Option(
            flag="--rebuild",
            key="pipeline.silver.rebuild",
            kind=None,
            text="decode all of bronze anew, in place of what was decoded before",
        ),
    ),
    "compact": (_PATH,),
    "stats": (_PATH, _TOPICS),
    "retention": (
        _LANDING,
        _TOPICS,
        _PATH,
        _Option(
            flag="--dry-run",
            key="pipeline.retention.dry_run",
            kind=None,
            text="say what would be removed, and remove nothing",
        ),
    ),
    "erase": (
        _LANDING,
        _PATH,
        _Option(flag="--topic", key="pipeline.erase.topic", metavar="TOPIC", text="whose records are erased"),
        _Option(flag="--key", key="pipeline.erase.key", metavar="TEXT", text="records with this key"),
        _Option(flag="--key-hex", key="pipeline.erase.key_hex", metavar="HEX", text="the same as hexadecimal digits"),
        _Option(
            flag="--keys-file",
            key="pipeline.erase.keys_file",
            metavar="FILE",
            text="records with one of these keys, one a line; unlike --key, no other user sees them in the list of "
            "processes",
        ),
        _Option(
            flag="--keys-are-hex", key="pipeline.erase.keys_are_hex", kind=None, text="the file has hexadecimal digits"
        ),
        _Option(
            flag="--where",
            key="pipeline.erase.where",
            metavar="SQL",
            text="records for which this is true, such as value.customer = 17",
        ),
        _Option(
            flag="--in",
            key="pipeline.erase.where_in",
            choices=("bronze", "silver"),
            text="the table with the predicate's columns; else silver if the topic is declared there, else bronze",
        ),
        _Option(flag="--report", key="pipeline.erase.report", metavar="FILE", text="write the proof as JSON"),
        _Option(
            flag="--dry-run",
            key="pipeline.erase.dry_run",
            kind=None,
            text="say what would be erased, and change nothing",
        ),
    ),
    "replay": (
        _PATH,
        _Option(
            flag="--source",
            key="pipeline.replay.source",
            choices=("bronze", "quarantine"),
            text="where records are from",
        ),
        _Option(flag="--topic", key="pipeline.replay.topic", metavar="TOPIC", text="whose records are sent"),
        _Option(
            flag="--partition", key="pipeline.replay.partition", kind=int, metavar="N", text="only this partition's"
        ),
        _Option(flag="--start-offset", key="pipeline.replay.start_offset", kind=int, metavar="N", text="from here on"),
        _Option(
            flag="--end-offset", key="pipeline.replay.end_offset", kind=int, metavar="N", text="before this offset"
        ),
        _Option(
            flag="--incarnation",
            key="pipeline.replay.incarnation",
            metavar="ID",
            text="whose offsets they are, as bronze has it (7, 7.1), or all; else the newest's where offsets are given",
        ),
        _Option(
            flag="--start-time",
            key="pipeline.replay.start_time",
            metavar="TIME",
            text="from this moment on, such as 2026-03-01T12:00:00Z",
        ),
        _Option(flag="--end-time", key="pipeline.replay.end_time", metavar="TIME", text="before this moment"),
        _Option(
            flag="--reason",
            key="pipeline.replay.reason",
            metavar="REASON",
            text="of the quarantine, only with this reason",
        ),
        _Option(
            flag="--again",
            key="pipeline.replay.again",
            kind=None,
            text="of the quarantine, also records that were replayed before",
        ),
        _Option(flag="--target", key="pipeline.replay.target", metavar="TOPIC", text="the topic to send to"),
        _Option(
            flag="--zookeeper",
            key="pipeline.replay.zookeeper",
            metavar="CONNECT",
            text="the target's cluster, if another one",
        ),
        _Option(
            flag="--bootstrap-servers",
            key="pipeline.replay.bootstrap_servers",
            metavar="HOST:PORT,...",
            text="the same by its brokers",
        ),
        _Option(
            flag="--keep-partition",
            key="pipeline.replay.keep_partition",
            kind=None,
            text="each record to the partition of the same number, not by key",
        ),
        _Option(
            flag="--map",
            key="pipeline.replay.map",
            kind=None,
            text="restore all of the topic: each record once, with the positions and the map of offsets of a mirror",
        ),
        _Option(
            flag="--group",
            key="pipeline.replay.group",
            metavar="ID",
            text=f"with --map: the mirror's group ({DEFAULT_GROUP})",
        ),
        _Option(
            flag="--positions-topic",
            key="pipeline.replay.positions_topic",
            metavar="TOPIC",
            text=f"with --map: where positions and maps are stored ({DEFAULT_TOPIC})",
        ),
        _Option(
            flag="--sink",
            key="pipeline.replay.sink",
            metavar="NAME",
            text="with --map: reach the target as this sink of type kafka of the settings file",
        ),
        _Option(
            flag="--dry-run", key="pipeline.replay.dry_run", kind=None, text="say what would be sent, and send nothing"
        ),
    ),
}


def _add_common_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-c", "--config", type=Path, metavar="FILE", help="YAML settings, the daemons' own; see its section pipeline"
    )
    parser.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE",
        help="one setting, such as pipeline.bronze.commit_bytes=1000000; wins over file and environment; may be "
        "repeated",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="what came of it as one JSON object, instead of text")
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")


def _add_table_options(parser: argparse.ArgumentParser, name: str) -> None:
    """Add a command's options: the table, its version and what to do with it."""
    text = "bronze, silver/TOPIC, latest/TOPIC, quarantine, stats, or a folder (/path, ./path)"
    if name == "quarantine":
        parser.set_defaults(table=None)
        _add_quarantine_options(parser)
    elif name in _TABLE_OPTIONAL:
        parser.add_argument("table", nargs="?", metavar="TABLE", help=f"{text}; all if it is left out")
    else:
        parser.add_argument("table", metavar="TABLE", help=text)
    if name != "vacuum":
        parser.add_argument(
            "--version",
            type=_parse_number,
            metavar="N",
            required=name == "restore",
            help=_VERSION_TEXT.get(name, "as of this version"),
        )
    if name == "history":
        parser.add_argument("--limit", type=_parse_number, default=20, metavar="N", help="so many versions (20)")
    if name in ("vacuum", "restore", "quarantine"):
        parser.add_argument("--dry-run", action="store_true", help="say what would be done, and do nothing")


def _add_quarantine_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--topic", metavar="TOPIC", help="only this topic's records")
    parser.add_argument("--cause", metavar="CAUSE", help="only records with this cause, such as 'bad value'")
    age = parser.add_mutually_exclusive_group()
    age.add_argument(
        "--before", type=_parse_time, metavar="TIME", help="only records that landed before it: 2026-03-01T12:00:00Z"
    )
    age.add_argument(
        "--older-than",
        dest="older_than_ms",
        type=_parse_age,
        metavar="DURATION",
        help="only records that landed longer ago than this, such as 12h or 7d",
    )
    age.add_argument("--older-than-ms", type=_parse_milliseconds, metavar="MS", help="the same in milliseconds")
    parser.add_argument(
        "--purge",
        choices=("replayed", "all"),
        help="remove the chosen records: those that were replayed, or all of them",
    )


def _parse_time(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise argparse.ArgumentTypeError(f"expected a time with its zone, such as 2026-03-01T12:00:00Z, not {text!r}")
    return moment


def _parse_number(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"expected a whole number, not {text!r}")
    return int(text)


def _parse_milliseconds(text: str) -> int:
    """Read a duration as settings do: a number is milliseconds. Raises ArgumentTypeError."""
    try:
        value = read_milliseconds(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if not isinstance(value, int) or value < 0:
        raise argparse.ArgumentTypeError(f"expected a duration such as 12h or 7d, not {text!r}")
    return value


def _parse_age(text: str) -> int:
    """Read a duration with a unit. Raises ArgumentTypeError."""
    if text.strip().isdigit():
        raise argparse.ArgumentTypeError(f"expected a duration with its unit, such as 12h or 7d, not {text!r}")
    return _parse_milliseconds(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    """End of a run: exit code, text for stdout, and an error message for people."""

    code: int
    output: str
    error: str | None = None


class _Runner:
    """Runs the chosen job, and stops the Spark session that it has started."""

    def __init__(self, args: argparse.Namespace, progress: Progress) -> None:
        self._job = JobName(args.job)
        self._args = args
        self._progress = progress
        self._session: SparkSession | None = None
        self._has_started = False
        self._settings: JobSettings | None = None
        self._summary: Summary | None = None
        self._began = monotonic()

    def report_metrics(self, code: int) -> str | None:
        """Write the metrics of a finished job; return an error message if that fails.

        Does nothing if the settings name no place for metrics. A failure does not change the exit code, which is the
        job's.
        """
        if self._settings is None or self._job in COMMANDS or self._settings.pipeline.metrics == JobMetrics():
            return None
        from consumerd.spark.job_metrics import JobEnd, report_metrics  # needs the tables' library

        end = JobEnd(
            job=self._job,
            exit_code=code,
            seconds=monotonic() - self._began,
            at_s=time(),
            summary=self._summary,
        )
        try:
            report_metrics(self._settings, end)
        except (ConsumerdError, OSError) as error:
            return str(error)
        return None

    def run(self) -> _Outcome:
        """Run the job, and stop its session. SIGINT and SIGTERM end it early."""
        try:
            outcome = self._attempt()
        except KeyboardInterrupt:
            outcome = self._interrupted(signal.SIGINT)
        except SystemExit as end:  # SIGTERM's handler
            outcome = self._interrupted(int(str(end.code)) - 128)
        if self._has_started and self._session is not None:
            self._progress.step("stopping Spark")
            # A new thread has its own connection to the JVM. This thread's may hold half of a
            # response that an interrupted call did not read.
            stopping = threading.Thread(target=stop_session, args=(self._session,), name="stop-spark", daemon=True)
            stopping.start()
            stopping.join(STOP_TIMEOUT_S)  # the JVM ends with this process in any case
        return outcome

    def _attempt(self) -> _Outcome:
        try:
            settings = load_job_settings(
                config=self._args.config, overrides=self._args.overrides, extra=_nest(self._args)
            )
            self._settings = settings
            summary = self._summary = self._run_job(settings)
        except ConfigError as error:
            return self._failed("configuration", str(error))
        except ConsumerdError as error:
            return self._failed("failed", str(error))
        except Exception as error:
            # Spark's exceptions are recognized by module: pyspark may not be installed, and py4j's are not subclasses
            # of pyspark's. Anything else is a bug and is raised.
            if not isinstance(error, OSError) and not type(error).__module__.startswith(("pyspark.", "py4j.")):
                raise
            # if the JVM has ended, that is the cause of any error
            ended = None if self._session is None else explain_jvm_exit(error, settings.pipeline.spark.driver_memory)
            if ended is not None:
                return self._failed("failed", ended)
            if isinstance(error, OSError):
                return self._failed("failed", str(error))
            message, configuration = find_cause(str(error))
            return self._failed("configuration" if configuration else "failed", message)
        seconds = monotonic() - self._began
        if self._args.json:
            output = encode_summary(self._job, summary, seconds)
        else:
            output = render_summary(self._job, summary, seconds, verdict=self._job not in COMMANDS)
        return _Outcome(code=FAILED if summary.findings else DONE, output=output)

    def _run_job(self, settings: JobSettings) -> Summary:
        def session() -> SparkSession:
            if self._session is None:
                self._progress.step("starting Spark")
                self._has_started = find_session() is None
                self._session = job_session(settings.pipeline.spark, f"consumerd {self._job}")
                # pyspark's handler would cancel over the connection that the job waits on, and block there as well
                signal.signal(signal.SIGINT, signal.default_int_handler)
                register(self._session)
            return self._session

        if self._job in COMMANDS:
            given = vars(self._args)
            names = (name for name in TableRequest.__dataclass_fields__ if name in given)
            return load_commands(self._job)(self._job, settings, TableRequest(**{name: given[name] for name in names}))
        return load_job(self._job)(session, settings, self._progress)

    def _failed(self, status: Status, message: str) -> _Outcome:
        code = CONFIGURATION if status == "configuration" else FAILED
        return _Outcome(code=code, output=self._json(status, message), error=message)

    def _interrupted(self, number: int) -> _Outcome:
        message = "interrupted; nothing half-written is visible, and the next run goes on from here"
        return _Outcome(code=128 + number, output=self._json("failed", message), error=message)

    def _json(self, status: Status, message: str) -> str:
        return encode_failure(self._job, status, message, monotonic() - self._began) if self._args.json else ""


def _nest(args: argparse.Namespace) -> dict[str, object]:
    """Return the settings given by options as nested mappings.

    Example: ``{"pipeline.audit.proof": True}`` becomes ``{"pipeline": {"audit": {"proof": True}}}``.
    """
    nested: dict[str, object] = {}
    for key, value in vars(args).items():
        if "." not in key or value is None:
            continue
        *parts, last = key.split(".")
        at = nested
        for part in parts:
            inner = at.setdefault(part, {})
            assert isinstance(inner, dict)
            at = inner
        at[last] = value
    return nested
