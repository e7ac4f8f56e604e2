# SPDX-License-Identifier: Apache-2.0
"""The job ``audit``: is everything there that should be?

From names and footers alone, which takes no Spark, and with ``pipeline.audit.proof`` from the data, read by Spark's
tasks: for each log its chains, gaps, overlaps, counts and times, against the group's committed position. What must be
acted upon is a finding of the summary (exit code 1); what explains itself is a note. All of it is in the JSON file and
on the page.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from consumerd.config.job import JobSettings
from consumerd.errors import ConfigError
from consumerd.landing.examine import Positions, examine
from consumerd.landing.findings import Finding, Severity
from consumerd.landing.footers import read_all, read_ends
from consumerd.landing.report import AuditReport, LogReport
from consumerd.landing.scan import read_roots, scan_landing
from consumerd.landing.values import LandingRoot
from consumerd.spark.audit_page import render_audit
from consumerd.spark.job import PrintedTable, Progress, Sessions, Summary
from consumerd.spark.positions import read_positions
from consumerd.telemetry.wording import format_time

if TYPE_CHECKING:
    from consumerd.landing.ranges import RangeSet

_NOTES_TOLD: Final = 20

_HEADS: Final = ("log", "from", "to", "records", "files", "gaps", "missing", "repeated", "behind", "newest record")


def run(spark: Sessions, settings: JobSettings, progress: Progress) -> Summary:
    """Audit the landing zone. Raises ConfigError, CoordinationError (ZooKeeper), OSError (a page that cannot be written)."""
    options = settings.pipeline.audit
    paths = settings.landing_roots()
    roots = read_roots(paths)
    group, positions = _read_positions(settings, roots, progress)
    progress.step("reading names")
    landing = scan_landing(paths, topics=settings.landing_topics())
    progress.step(
        f"reading what {landing.file_count if options.footers else len(landing.chains)} files say of themselves"
    )
    landing = read_all(landing) if options.footers or options.proof else read_ends(landing)
    proven: int | None = None
    more: tuple[Finding, ...] = ()
    if options.proof:
        from consumerd.spark.proof import prove

        proven, more = prove(spark(), landing, progress)
    depth = "data" if options.proof else "footers" if options.footers else "names"
    landed_topics = {chain.partition.topic for chain in landing.chains}
    known = None if positions is None else {one: at for one, at in positions.items() if one.topic in landed_topics}
    report = examine(landing, depth=depth, positions=known, group=group, more=more)
    if options.json_file is not None:
        write_whole(options.json_file, json.dumps(report.encode(), indent=1) + "\n")
    if options.html is not None:
        write_whole(options.html, render_audit(report, made=datetime.now(tz=UTC)))
    summary = summarize(report, proven=proven)
    return replace(summary, notes=(*landing.name_absent(settings.landing_topics()), *summary.notes))


def summarize(report: AuditReport, *, proven: int | None = None) -> Summary:
    """Return what a report comes to; ``proven`` is how many records were read."""
    logs = report.logs
    numbers: dict[str, object] = {
        "depth": report.depth,
        "roots": len(report.roots),
        "logs": len(logs),
        "chains": sum(len(log.chains) for log in logs),
        "files": sum(log.files for log in logs),
        "records": _add(log.records for log in logs),
        "bytes": _add(log.size for log in logs),
        "gap_offsets": sum(_gap_offsets(log) for log in logs),
        "missing_offsets": sum(log.missing.size + log.jumped.size for log in logs),
        "repeated_offsets": sum(log.repeated.size for log in logs),
        "errors": len(report.errors),
        "warnings": sum(finding.severity is Severity.WARNING for finding in report.notes),
    }
    if proven is not None:
        numbers["records_read"] = proven
    if report.positions_of is not None:
        numbers["group"] = report.positions_of
    notes = [str(finding) for finding in report.notes]
    if len(notes) > _NOTES_TOLD:
        notes = [*notes[:_NOTES_TOLD], f"{len(notes) - _NOTES_TOLD} notes more: see them with --json-file or --html"]
    rows = tuple(tuple(_row(log)) for log in logs)
    return Summary(
        numbers={name: value for name, value in numbers.items() if value is not None},  # what names do not tell
        findings=tuple(map(str, report.errors)),
        notes=tuple(notes),
        tables=(PrintedTable(title="what has been landed", heads=_HEADS, rows=rows),),
    )


def write_whole(path: Path, text: str) -> None:
    """Write a file so that nobody sees half of it. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        hidden.write_text(text, encoding="utf-8")
        hidden.replace(path)
    finally:
        hidden.unlink(missing_ok=True)


def _read_positions(
    settings: JobSettings, roots: Sequence[LandingRoot], progress: Progress
) -> tuple[str | None, Positions | None]:
    """Read the group's positions, where the settings name a cluster and a group; before any name is read (see examine)."""
    cluster, group = settings.cluster, settings.group
    if not settings.pipeline.audit.positions or cluster is None or group is None:
        return None, None
    groups = {root.record.group for root in roots}
    if group.id not in groups:
        raise ConfigError(
            f"group.id: {group.id!r}, and what has been landed is of group {' and '.join(sorted(groups))}"
        )
    progress.step(f"reading positions of group {group.id}")
    return group.id, read_positions(cluster, group.id, cluster_id=roots[0].record.cluster)


def _row(log: LogReport) -> Iterable[object]:
    yield log.log
    yield log.start
    yield log.end
    yield "-" if log.records is None else log.records
    yield log.files
    yield _gap_offsets(log)
    yield log.missing.size + log.jumped.size
    yield log.repeated.size
    yield "-" if log.committed is None else log.end - log.committed
    yield _time(log.max_timestamp)


def _gap_offsets(log: LogReport) -> int:
    ranges: Iterable[RangeSet] = log.gaps.values()
    return sum(one.size for one in ranges)


def _time(timestamp_ms: int | None) -> str:
    if timestamp_ms is None:
        return "-"
    return format_time(timestamp_ms)


def _add(numbers: Iterable[int | None]) -> int | None:
    total = 0
    for number in numbers:
        if number is None:
            return None
        total += number
    return total
