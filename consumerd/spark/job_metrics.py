# SPDX-License-Identifier: Apache-2.0
"""Metrics of jobs: a text file for Prometheus's node_exporter, or a Pushgateway, after each run.

A job is no server that could be scraped. Each run writes the same series, with the time of the last success among them,
so that an alert can tell a job that fails from one that nobody starts any more.
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
from consumerd.spark.job import JobName, Summary
from consumerd.spark.landing_lag import find_landing_lag
from consumerd.spark.quarantine_rows import count_replayed
from consumerd.spark.silver_progress import bronze_source, rows_behind
from consumerd.spark.table.commit import LOG_FOLDER
from consumerd.spark.table.snapshot import Snapshot
from consumerd.spark.table.transaction import Table, find_table

PUSH_JOB: Final = "consumerd-spark"
"""The Pushgateway's group of all our series; ``job_name`` and ``group`` divide it."""
_LAST_SUCCESS: Final = "consumerd_job_last_success_timestamp_seconds"
_PUSH_TIMEOUT_S: Final = 10.0

_TABLES: Final[Mapping[str, tuple[TableName, ...]]] = {
    "bronze": ("bronze",),
    "silver": ("silver", "latest", "quarantine"),
    "stats": ("stats",),
}
"""Tables that each job fills."""
LABELS: Final = ("job_name", "group")
"""Labels of all series: the job, and the daemons' group whose files it works on."""
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
    """How a run ended. ``summary`` is None if it failed. Times in seconds, ``at_s`` since the epoch."""

    job: JobName
    exit_code: int
    seconds: float
    at_s: float
    summary: Summary | None


def report_metrics(settings: JobSettings, end: JobEnd) -> None:
    """Write and push the metrics of a run, as the settings say. Raises ConsumerdError, OSError."""
    metrics = settings.pipeline.metrics
    if metrics.folder is None and metrics.push_gateway is None:
        return
    group = "" if settings.group is None else settings.group.id
    registry, gauges = _make_gauges(end.job, group)
    _note_run(gauges, end)
    for name, table in _tables_of(settings, end.job):
        _note_table(gauges, settings, name, table)
        if name == "bronze":
            _note_landing(gauges, settings, table)
    if metrics.folder is not None:
        _write(metrics.folder, registry, gauges, end.job, group)
    if metrics.push_gateway is not None:
        _push(metrics.push_gateway, registry, end.job, group)


class _Gauges:
    """Gauges of one run: ``set(name, value, label values...)``. Series without a value are absent."""

    def __init__(self, registry: CollectorRegistry, job: JobName, group: str) -> None:
        self._registry = registry
        self._own = (job, group)
        self._made: dict[str, Gauge] = {}

    def set(self, name: str, value: float, *labels: str) -> None:
        if name not in self._made:
            text, names = SERIES[name]
            self._made[name] = Gauge(name, text, (*LABELS, *names), registry=self._registry)
        self._made[name].labels(*self._own, *labels).set(value)


def _make_gauges(job: JobName, group: str) -> tuple[CollectorRegistry, _Gauges]:
    registry = CollectorRegistry()
    return registry, _Gauges(registry, job, group)


def _note_run(gauges: _Gauges, end: JobEnd) -> None:
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


def _tables_of(settings: JobSettings, job: JobName) -> Iterator[tuple[str, Table]]:
    """Yield the tables that a job writes to. Others would be in two files, which node_exporter refuses."""
    try:
        folders = settings.tables(_TABLES.get(job, ()))
    except ConfigError:
        return  # the job has failed for that reason
    for name, folder in folders.items():
        if (table := find_table(folder)) is not None:
            yield name, table


def _note_table(gauges: _Gauges, settings: JobSettings, name: str, table: Table) -> None:
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
    bronze, quarantine = find_table(settings.folder("bronze")), find_table(settings.folder("quarantine"))
    if bronze is None or quarantine is None:
        return None
    source = bronze_source(bronze.record.id)
    return max(0, rows_behind(topic, source, bronze.snapshot(), silver, quarantine.snapshot()))


def _note_landing(gauges: _Gauges, settings: JobSettings, bronze: Table) -> None:
    """Set the series of landed files.

    They are absent if the files cannot be listed: the job itself has failed for that reason.
    """
    try:
        lag = find_landing_lag(settings.landing_roots(), bronze.snapshot().covered, topics=settings.landing_topics())
    except (ConsumerdError, OSError):
        return
    gauges.set("consumerd_table_files_behind", lag.files, "bronze")
    if lag.oldest_ms is not None:
        gauges.set("consumerd_table_oldest_file_behind_timestamp_seconds", lag.oldest_ms / 1000, "bronze")


def _write(folder: Path, registry: CollectorRegistry, gauges: _Gauges, job: JobName, group: str) -> None:
    path = folder / (f"consumerd_{group}_{job}.prom" if group else f"consumerd_{job}.prom")
    if registry.get_sample_value(_LAST_SUCCESS, {"job_name": job, "group": group}) is None:
        before = _find_last_success(path)
        if before is not None:
            gauges.set(_LAST_SUCCESS, before)
    write_to_textfile(str(path), registry)


def _find_last_success(path: Path) -> float | None:
    """Return the time of the last success that an earlier run has written. Raises OSError."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return None
    try:
        families = list(text_string_to_metric_families(text))
    except ValueError:
        return None  # somebody else's file, or one that was cut: it is replaced
    return next((one.value for family in families for one in family.samples if one.name == _LAST_SUCCESS), None)


def _push(url: str, registry: CollectorRegistry, job: JobName, group: str) -> None:
    """Push with POST, which keeps series that this run does not have (the last success, where it failed)."""
    keys = dict(zip(LABELS, (job, group), strict=True))
    try:
        pushadd_to_gateway(url, job=PUSH_JOB, grouping_key=keys, registry=registry, timeout=_PUSH_TIMEOUT_S)
    except (URLError, TimeoutError, ValueError) as error:
        raise ConsumerdError(f"pipeline.metrics.push_gateway {url}: {error}") from error
