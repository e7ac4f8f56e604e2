# SPDX-License-Identifier: Apache-2.0
"""Metrics of jobs, written after each run for Prometheus.

They go to a text file for node_exporter, to a Pushgateway, or to both: a job does not live long enough to be scraped.
Each run writes the same series. The time of the last success is kept over failed runs, so that an alert can tell a job
that fails from one that is no longer started.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.error import URLError

from prometheus_client import CollectorRegistry, Gauge, pushadd_to_gateway, write_to_textfile
from prometheus_client.parser import text_string_to_metric_families

from consumerd.config.job import QUARANTINE, JobSettings, TableName
from consumerd.errors import ConfigError, ConsumerdError
from consumerd.landing.coverage import Coverage
from consumerd.landing.footers import read_new
from consumerd.landing.plan import plan_landing
from consumerd.landing.ranges import EMPTY
from consumerd.landing.scan import scan_landing
from consumerd.spark.job import JobName, Summary
from consumerd.spark.quarantine_rows import count_replayed
from consumerd.spark.silver_progress import bronze_source, rows_behind
from consumerd.spark.table.commit import LOG_FOLDER
from consumerd.spark.table.snapshot import Snapshot
from consumerd.spark.table.transaction import Table, find_table

PUSH_JOB: Final = "consumerd-spark"
"""Name of the Pushgateway job of all series. ``LABELS`` are its grouping key."""
_LAST_SUCCESS: Final = "consumerd_job_last_success_timestamp_seconds"
_PUSH_TIMEOUT_S: Final = 10.0
"""Time limit of a push, in seconds."""

_TABLES: Final[Mapping[str, tuple[TableName, ...]]] = {
    "bronze": ("bronze",),
    "silver": ("silver", "latest", "quarantine"),
    "stats": ("stats",),
}
"""Tables that each job writes."""
LABELS: Final = ("job_name", "group")
"""Labels of all series: the job, and the consumer group whose landed files it reads."""
SERIES: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "consumerd_job_last_run_timestamp_seconds": ("When the job ended last, in seconds since the epoch.", ()),
    _LAST_SUCCESS: ("When it last ended with exit code 0 or with findings; absent until it did.", ()),
    "consumerd_job_exit_code": ("0 done, 1 failed or found something, 2 settings, 128 and a signal's number.", ()),
    "consumerd_job_findings": ("Findings of the last run that did not fail.", ()),
    "consumerd_job_duration_seconds": ("Duration of the last run.", ()),
    "consumerd_job_result": ("Numbers of the JSON summary of the last run that did not fail, by key.", ("key",)),
    "consumerd_table_version": ("Newest version of the table.", ("table",)),
    "consumerd_table_rows": ("Rows of the table.", ("table",)),
    "consumerd_table_files": ("Files of the table's newest version.", ("table",)),
    "consumerd_table_size_bytes": ("Bytes of these files.", ("table",)),
    "consumerd_table_log_size_bytes": ("Bytes of the table's log.", ("table",)),
    "consumerd_table_last_commit_timestamp_seconds": ("When the table was committed to last.", ("table",)),
    "consumerd_table_rows_behind": ("Rows of bronze that the topic's table and the quarantine lack.", ("table",)),
    "consumerd_table_rows_not_replayed": ("Rows of the quarantine that have not been replayed.", ("table",)),
    "consumerd_table_files_behind": ("Landed files that bronze has not taken over, damaged ones included.", ("table",)),
    "consumerd_table_oldest_file_behind_timestamp_seconds": (
        "When the oldest of these files was landed; absent if there is none.",
        ("table",),
    ),
}
"""Help text of each gauge, and its labels besides ``LABELS``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnd:
    """End of a job's run: duration, time, result.

    Attributes:
        seconds: duration of the run.
        at_s: wall clock at the end, in seconds since the epoch.
        summary: result; None if the run failed.
    """

    job: JobName
    exit_code: int
    seconds: float
    at_s: float
    summary: Summary | None


def report_metrics(settings: JobSettings, end: JobEnd) -> None:
    """Write and push the metrics of a job's run, as the settings say.

    Raises ConsumerdError, OSError.
    """
    metrics = settings.pipeline.metrics
    if metrics.folder is None and metrics.push_gateway is None:
        return
    group = "" if settings.group is None else settings.group.id
    registry = CollectorRegistry()
    gauges = _Gauges(registry, end.job, group)
    _set_run_gauges(gauges, end)
    for name, table in _find_written_tables(settings, end.job):
        _set_table_gauges(gauges, settings, name, table)
        if name == "bronze":
            _set_landing_gauges(gauges, settings, table)
    if metrics.folder is not None:
        _write(metrics.folder, registry, gauges, end.job, group)
    if metrics.push_gateway is not None:
        _push(metrics.push_gateway, registry, end.job, group)


class _Gauges:
    """Gauges of one run. A series without a value is absent."""

    def __init__(self, registry: CollectorRegistry, job: JobName, group: str) -> None:
        self._registry = registry
        self._own = (job, group)
        self._made: dict[str, Gauge] = {}

    def set(self, name: str, value: float, *labels: str) -> None:
        """Set a gauge.

        Args:
            labels: values of its own labels, besides ``LABELS``.
        """
        if name not in self._made:
            text, names = SERIES[name]
            self._made[name] = Gauge(name, text, (*LABELS, *names), registry=self._registry)
        self._made[name].labels(*self._own, *labels).set(value)


def _set_run_gauges(gauges: _Gauges, end: JobEnd) -> None:
    gauges.set("consumerd_job_last_run_timestamp_seconds", end.at_s)
    gauges.set("consumerd_job_exit_code", end.exit_code)
    gauges.set("consumerd_job_duration_seconds", end.seconds)
    if end.summary is None:
        return
    gauges.set(_LAST_SUCCESS, end.at_s)
    gauges.set("consumerd_job_findings", len(end.summary.findings))
    for key, value in end.summary.numbers.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            gauges.set("consumerd_job_result", value, key)


def _find_written_tables(settings: JobSettings, job: JobName) -> Iterator[tuple[str, Table]]:
    """Yield the tables that a job writes.

    Tables of other jobs are in those jobs' files: node_exporter refuses a series that is in two files.
    """
    try:
        folders = settings.tables(_TABLES.get(job, ()))
    except ConfigError:
        return  # settings without a place for tables: the job itself has failed for that reason
    for name, folder in folders.items():
        if (table := find_table(folder)) is not None:
            yield name, table


def _set_table_gauges(gauges: _Gauges, settings: JobSettings, name: str, table: Table) -> None:
    snapshot = table.snapshot()
    log = table.path / LOG_FOLDER
    gauges.set("consumerd_table_version", snapshot.version, name)
    gauges.set("consumerd_table_rows", snapshot.rows, name)
    gauges.set("consumerd_table_files", len(snapshot.files), name)
    gauges.set("consumerd_table_size_bytes", snapshot.size, name)
    gauges.set("consumerd_table_log_size_bytes", sum(file.stat().st_size for file in log.iterdir()), name)
    if snapshot.version:
        gauges.set("consumerd_table_last_commit_timestamp_seconds", snapshot.time_ms / 1000, name)
    kind, _, topic = name.partition("/")
    if kind == "silver" and (behind := _count_behind(settings, topic, snapshot)) is not None:
        gauges.set("consumerd_table_rows_behind", behind, name)
    if name == QUARANTINE:
        left = snapshot.rows - count_replayed(table, snapshot.files.values())
        gauges.set("consumerd_table_rows_not_replayed", left, name)


def _count_behind(settings: JobSettings, topic: str, silver: Snapshot) -> int | None:
    """Count the rows of bronze that silver has not decoded; None without tables."""
    bronze, quarantine = find_table(settings.folder("bronze")), find_table(settings.folder("quarantine"))
    if bronze is None or quarantine is None:
        return None
    source = bronze_source(bronze.record.id)
    return max(0, rows_behind(topic, source, bronze.snapshot(), silver, quarantine.snapshot()))


def _set_landing_gauges(gauges: _Gauges, settings: JobSettings, bronze: Table) -> None:
    """Set the gauges of landed files.

    They are absent if the files cannot be listed. The job itself has failed then, for the same reason.
    """
    try:
        files, times_ms = _find_waiting(settings, bronze.snapshot().covered)
    except (ConsumerdError, OSError):
        return
    gauges.set("consumerd_table_files_behind", files, "bronze")
    if times_ms:
        gauges.set("consumerd_table_oldest_file_behind_timestamp_seconds", min(times_ms) / 1000, "bronze")


def _find_waiting(settings: JobSettings, covered: Coverage) -> tuple[int, list[int]]:
    """Return the number of landed files that bronze lacks, and their times in ms.

    The files are those of a plan from this coverage: those with rows to copy, and damaged ones, which may lack a time.
    Raises ConfigError, OSError.
    """
    landing = read_new(scan_landing(settings.landing_roots(), topics=settings.landing_topics()), covered)
    plan = plan_landing(landing, covered)
    planned = {one.file.path for one in plan.files}
    times_ms = [
        file.landed_ms
        for chain in landing.chains
        for file in chain.files
        if file.landed_ms is not None
        and (
            file.path in planned or (file.metadata is None and file.position not in covered.taken.get(chain.ref, EMPTY))
        )
    ]
    return len(plan.files) + len(plan.damaged), times_ms


def _write(folder: Path, registry: CollectorRegistry, gauges: _Gauges, job: JobName, group: str) -> None:
    """Write the file for node_exporter.

    If this run failed, the time of the last success is copied from the file of an earlier run.
    """
    path = folder / (f"consumerd_{group}_{job}.prom" if group else f"consumerd_{job}.prom")
    # the file is replaced as a whole, so the last success is read from it first
    if registry.get_sample_value(_LAST_SUCCESS, {"job_name": job, "group": group}) is None:
        before = _find_last_success(path)
        if before is not None:
            gauges.set(_LAST_SUCCESS, before)
    write_to_textfile(str(path), registry)


def _find_last_success(path: Path) -> float | None:
    """Return the time of the last success from an earlier run's file. Raises OSError."""
    try:
        families = list(text_string_to_metric_families(path.read_text()))
    except (FileNotFoundError, ValueError):
        return None  # a foreign or truncated file is replaced
    return next((one.value for family in families for one in family.samples if one.name == _LAST_SUCCESS), None)


def _push(url: str, registry: CollectorRegistry, job: JobName, group: str) -> None:
    """Push to the Pushgateway. Raises ConsumerdError.

    With POST, which keeps series that this run does not have, such as the last success if it failed.
    """
    keys = dict(zip(LABELS, (job, group), strict=True))
    try:
        pushadd_to_gateway(url, job=PUSH_JOB, grouping_key=keys, registry=registry, timeout=_PUSH_TIMEOUT_S)
    except (URLError, TimeoutError, ValueError) as error:
        raise ConsumerdError(f"pipeline.metrics.push_gateway {url}: {error}") from error
