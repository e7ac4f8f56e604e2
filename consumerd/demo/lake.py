# SPDX-License-Identifier: Apache-2.0
"""The last part of the demo: the pipeline's jobs on the landed files.

Runs as its own process (``python -m consumerd.demo.lake SETTINGS``) with a member's settings file: audit, bronze and
silver in one Spark session. It prints one JSON object per line: each job's summary, and last the contents of the
tables.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from consumerd.config.load import load_job_settings
from consumerd.demo.stream import CLICKS, ORDERS
from consumerd.errors import ConsumerdError
from consumerd.spark import read_table
from consumerd.spark.job import JobName, Silent, load_job
from consumerd.spark.report import encode_failure, encode_summary
from consumerd.spark.session import job_session, stop_session
from consumerd.telemetry.logs import configure_logging
from consumerd.telemetry.wording import counted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LAKE: Final = "lake"
JOBS: Final = (JobName("audit"), JobName("bronze"), JobName("silver"))
_ROWS: Final = 5
_WIDEST: Final = 24
_BROKER: Final = "broker"
"""Column that only records of Kafka 0.6 and 0.7 have."""
_DECODED: Final = (_BROKER, "partition", "offset", "event_time", "key")
_RECORD: Final = ("topic", _BROKER, "partition", "offset", "timestamp", "key", "value")


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """Contents of a table: the number of rows of each topic, and the first rows.

    ``rows`` is by topic. ``heads`` are the names of the shown columns, ``first`` the first rows as texts, in these
    columns.
    """

    rows: Mapping[str, int]
    heads: Sequence[str]
    first: Sequence[Sequence[str]]

    @property
    def total(self) -> int:
        """Number of rows of all topics in the table."""
        return sum(self.rows.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Lake:
    """Results of the Spark jobs at the end of the demo.

    ``summaries`` has the JSON summary that each finished job has printed, by job. ``tables`` has the contents of each
    table, by name. ``settings`` is the settings file of the jobs.
    """

    summaries: Mapping[str, Mapping[str, Any]]
    tables: Mapping[str, Contents]
    settings: Path

    @property
    def findings(self) -> tuple[str, ...]:
        """Problems found by the jobs, and errors of failed jobs; empty without any.

        Each text begins with the name of the job.
        """
        found = [(job, finding) for job, one in self.summaries.items() for finding in one.get("findings", ())]
        found += [(job, one["error"]) for job, one in self.summaries.items() if "error" in one]
        return tuple(f"{job}: {text}" for job, text in found)

    @property
    def complete(self) -> bool:
        """True if the jobs' process has printed the tables, or a job's error.

        False if the process has died before.
        """
        return bool(self.tables) or any("error" in one for one in self.summaries.values())

    def disagreements(self, landed: Mapping[str, int]) -> tuple[str, ...]:
        """Return lines about the topics whose landed records are not in the tables exactly once.

        Each landed record must be in bronze, and either in silver or in silver's quarantine table. Empty if that is so.

        Args:
            landed: Number of landed records by topic.
        """
        return tuple(
            f"{topic}: {count} landed, {held} in {what}"
            for topic, count in landed.items()
            for what, names in (("bronze", ("bronze",)), ("silver and quarantine", (f"silver/{topic}", "quarantine")))
            if (held := sum(self.tables[name].rows.get(topic, 0) for name in names if name in self.tables)) != count
        )


def pipeline_settings(lake: Path) -> dict[str, Any]:
    """Return the section ``pipeline`` of the demo's settings file."""
    price = "array<struct<article:int,quantity:int,cents:int>>"
    return {
        "path": str(lake),
        # the cluster is stopped when the jobs run
        "audit": {"positions": False, "html": str(lake.with_name("audit.html"))},
        "silver": {
            "topics": {
                ORDERS: {
                    "key": {"format": "utf8"},
                    "value": {
                        "format": "json",
                        "fields": {
                            "order": "bigint not null",
                            "customer": "int",
                            "placed_ms": "epoch_ms",
                            "channel": "string",
                            "total_cents": "bigint",
                            "lines": price,
                        },
                    },
                    "event_time": "value.placed_ms",
                },
                CLICKS: {
                    "key": {"format": "utf8"},
                    "value": {
                        "format": "json",
                        "fields": {
                            "click": "bigint not null",
                            "at_ms": "epoch_ms",
                            "channel": "string",
                            "page": "string",
                            "took_ms": "int",
                        },
                    },
                    "event_time": "value.at_ms",
                },
            }
        },
    }


def parse_lake(lines: Iterable[str], settings: Path) -> Lake:
    """Parse the output lines of the process that runs the jobs.

    Raises ValueError for a line that is not one of its JSON objects.

    Args:
        lines: The output lines.
        settings: The settings file that the process used.
    """
    objects = [json.loads(line) for line in lines]
    summaries = {one["job"]: one for one in objects if "job" in one}
    tables: Mapping[str, Any] = next((one["tables"] for one in objects if "tables" in one), {})
    return Lake(
        summaries=summaries,
        tables={name: Contents(**contents) for name, contents in tables.items()},
        settings=settings,
    )


def describe_line(line: str) -> str:
    """Return a sentence about one output line of the jobs' process.

    ``line`` is a JSON object; the sentence is for the demo's display.
    """
    one = json.loads(line)
    if "job" not in one:
        return "tables: " + ", ".join(
            f"{name} {sum(held['rows'].values()):,} rows" for name, held in one["tables"].items()
        )
    said = one.get("error") or f"{counted(len(one['findings']), 'finding')}"
    return f"{one['job']}: {said} ({one['seconds']:.1f} s)"


def main(config: str) -> int:
    """Run the jobs, and print their results; return the exit code.

    ``config`` is the path of the settings file. After a failed job, no more are run.
    """
    configure_logging("warning", "json")
    settings = load_job_settings(config=Path(config))
    session: SparkSession | None = None

    def start() -> SparkSession:
        nonlocal session
        if session is None:
            session = job_session(settings.pipeline.spark, "consumerd demo")
        return session

    try:
        for name in JOBS:
            began = monotonic()
            try:
                summary = load_job(name)(start, settings, Silent())
            except (ConsumerdError, OSError) as error:
                _print(encode_failure(name, "failed", str(error), monotonic() - began))
                return 1
            _print(encode_summary(name, summary, monotonic() - began))
        tables = {"bronze": _look(read_table(start(), settings.folder("bronze")), _RECORD)}
        for topic in settings.pipeline.silver.topics:
            decoded = read_table(start(), settings.folder("silver", topic))
            tables[f"silver/{topic}"] = _look(decoded, (*_DECODED, "value.*"), topic)
        tables["quarantine"] = _look(read_table(start(), settings.folder("quarantine")), (*_RECORD, "reason"))
        _print(json.dumps({"tables": tables}) + "\n")
    finally:
        if session is not None:
            stop_session(session)
    return 0


def _print(line: str) -> None:
    sys.stdout.write(line)
    sys.stdout.flush()


def _look(table: DataFrame, columns: Sequence[str], topic: str | None = None) -> dict[str, object]:
    """Return a table's rows by topic, and some columns of its first rows."""
    if topic is None:
        rows = {row["topic"]: row["count"] for row in table.groupBy("topic").count().collect()}
    else:
        rows = {topic: table.count()}
    order = [name for name in ("topic", _BROKER, "partition", "offset") if name in table.columns]
    shown = table.orderBy(*order).select(*columns).limit(_ROWS)
    shown = shown.selectExpr(*(_as_text(name, kind) for name, kind in shown.dtypes))
    first = [row.asDict() for row in shown.collect()]
    heads = [name for name in shown.columns if name != _BROKER or any(row[name] is not None for row in first)]
    return {"rows": rows, "heads": heads, "first": [[_cut(row[name]) for name in heads] for row in first]}


def _as_text(name: str, kind: str) -> str:
    """Return SQL that converts a column to readable text."""
    if kind == "timestamp":
        text = f"date_format(`{name}`, 'yyyy-MM-dd HH:mm:ss.SSS')"
    elif kind.startswith(("array", "map", "struct")):
        text = f"to_json(`{name}`)"
    else:
        text = f"CAST(`{name}` AS STRING)"
    return f"{text} AS `{name}`"


def _cut(text: str | None) -> str:
    if text is None:
        return "-"
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 3]}..."


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
