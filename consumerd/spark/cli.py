"""``consumerd-spark``: runs one job of the pipeline, on this machine or where ``spark-submit`` says.

Progress and errors go to stderr, what came of it to stdout. Exit codes: 0 done, 1 failed or found something, 2 configuration,
128 and the signal's number where one ended it. A job that is ended leaves nothing half-written: the next run goes on.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Final

from consumerd import __version__
from consumerd.config.job import JobSettings
from consumerd.config.load import load_job_settings
from consumerd.errors import ConfigError, ConsumerdError
from consumerd.spark import register
from consumerd.spark.failures import find_cause
from consumerd.spark.job import JOBS, JobName, Progress, Silent, Summary, load_job
from consumerd.spark.progress import Reporter
from consumerd.spark.report import Status, encode_failure, encode_summary, render_summary
from consumerd.spark.session import job_session, stop_session
from consumerd.telemetry.logs import configure_logging

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DONE: Final = 0
FAILED: Final = 1
CONFIGURATION: Final = 2

_STOP_TIMEOUT_S: Final = 20.0

_EPILOG: Final = """\
in the order of the pipeline, with the daemons' own settings file:
  consumerd-spark audit   --config config.yaml                is everything there that should be
  consumerd-spark bronze  --config config.yaml                take over what is new
  consumerd-spark silver  --config config.yaml                decode what is new in bronze
  consumerd-spark compact --config config.yaml                now and then
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
    outcome = _Runner(args, Silent() if args.quiet else reporter).run()
    reporter.clear()
    if outcome.error is not None:
        for line in outcome.error.splitlines():
            sys.stderr.write(f"consumerd-spark: {line}\n")
    try:
        sys.stdout.write(outcome.output)
        sys.stdout.flush()
    except BrokenPipeError:
        # the reader of our output (head, less) has gone; keep the interpreter from flushing into the closed pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return outcome.code


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of all jobs."""
    parser = argparse.ArgumentParser(
        prog="consumerd-spark",
        description="The data pipeline over what consumerd's daemons have landed, on Spark.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"consumerd {__version__}")
    jobs = parser.add_subparsers(title="jobs", metavar="JOB", dest="job", required=True)
    for name, what in JOBS.items():
        job = jobs.add_parser(name, help=what, description=f"{what[0].upper()}{what[1:]}.")
        _add_common_options(job)
        for option in _OPTIONS[name]:
            option.add_to(job)
    return parser


@dataclass(frozen=True, slots=True, kw_only=True)
class _Option:
    """An option that is short for a setting; ``kind`` None is a flag, which sets ``value``."""

    flag: str
    key: str
    text: str
    kind: Callable[[str], object] | None = str
    metavar: str | None = None
    choices: tuple[str, ...] | None = None
    value: object = True

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        """Make the parser know it."""
        if self.kind is None:
            parser.add_argument(self.flag, dest=self.key, action="store_const", const=self.value, help=self.text)
            return
        parser.add_argument(
            self.flag, dest=self.key, type=self.kind, metavar=self.metavar, choices=self.choices, help=self.text
        )


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


_PATH: Final = _Option(
    flag="--path", key="pipeline.path", metavar="FOLDER", text="the folder of the tables (pipeline.path)"
)
_TOPICS: Final = _Option(
    flag="--topics", key="pipeline.landing.topics", kind=_names, metavar="A,B", text="only these topics"
)
_LANDING: Final = _Option(
    flag="--landing",
    key="pipeline.landing.roots",
    kind=_names,
    metavar="FOLDER[,FOLDER]",
    text="landing folders, instead of the sinks' paths",
)
_ZOOKEEPER: Final = _Option(flag="--zookeeper", key="cluster.zookeeper", metavar="CONNECT", text="the cluster")

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
        _Option(flag="--format", key="pipeline.bronze.format", choices=("parquet", "delta"), text="the table's format"),
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
        help="one setting, such as pipeline.bronze.commit_bytes=1000000; wins over file and environment; may be repeated",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="what came of it as one JSON object, instead of text")
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")
    _Option(
        flag="--master",
        key="pipeline.spark.master",
        metavar="URL",
        text="where Spark runs (local[*], or spark-submit's word)",
    ).add_to(parser)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    """How a run ended: exit code, what goes to stdout, and an error for people."""

    code: int
    output: str
    error: str | None = None


class _Runner:
    """Runs the job that the arguments name, and stops the session that it has started."""

    def __init__(self, args: argparse.Namespace, progress: Progress) -> None:
        self._job = JobName(args.job)
        self._args = args
        self._progress = progress
        self._session: SparkSession | None = None
        self._began = monotonic()

    def run(self) -> _Outcome:
        try:
            outcome = self._attempt()
        except KeyboardInterrupt:
            outcome = self._interrupted(signal.SIGINT)
        except SystemExit as end:  # SIGTERM's handler
            outcome = self._interrupted(int(str(end.code)) - 128)
        if self._session is not None:
            self._progress.step("stopping Spark")
            # in a thread, which has a connection of its own: an interrupted call may have left half an answer on this one's
            stopping = threading.Thread(target=stop_session, args=(self._session,), name="stop-spark", daemon=True)
            stopping.start()
            stopping.join(_STOP_TIMEOUT_S)  # the JVM ends with this process in any case
        return outcome

    def _attempt(self) -> _Outcome:
        try:
            settings = load_job_settings(
                config=self._args.config, overrides=self._args.overrides, extra=_nest(self._args)
            )
            summary = self._run_job(settings)
        except ConfigError as error:
            return self._failed("configuration", str(error))
        except (ConsumerdError, OSError) as error:
            return self._failed("failed", str(error))
        except Exception as error:
            # what Spark raises: its classes come from a package that may not be there, and py4j's are no children of them
            if not type(error).__module__.startswith(("pyspark.", "py4j.")):
                raise
            message, configuration = find_cause(str(error))
            return self._failed("configuration" if configuration else "failed", message)
        seconds = monotonic() - self._began
        render = encode_summary if self._args.json else render_summary
        return _Outcome(code=FAILED if summary.findings else DONE, output=render(self._job, summary, seconds))

    def _run_job(self, settings: JobSettings) -> Summary:
        def session() -> SparkSession:
            if self._session is None:
                self._progress.step("starting Spark")
                self._session = job_session(settings.pipeline.spark, f"consumerd {self._job}")
                # pyspark's own handler asks the JVM to cancel over the connection that the job is waiting on, and waits, too
                signal.signal(signal.SIGINT, signal.default_int_handler)
                register(self._session)
            return self._session

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
    """Return the settings that options are short for, as nested values."""
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
