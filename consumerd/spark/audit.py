# SPDX-License-Identifier: Apache-2.0
"""The job ``audit``: checks that every offset which should have landed is there, once.

It works from the names and the metadata of landed files and needs no Spark. With ``pipeline.audit.proof``, Spark's
tasks also read every record. The report has, for each partition: chains, gaps, overlaps, counts, times, and the
distance to the group's committed position. It is written to the JSON file and the HTML page.

Problems that need action are findings of the summary and make the exit code 1. Everything else is a note.

This module reads files and writes reports; ``landing.examine`` decides what is a problem.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from consumerd.config.job import JobSettings
from consumerd.errors import ConfigError
from consumerd.landing.examine import examine
from consumerd.landing.findings import Finding, Severity
from consumerd.landing.footers import read_all, read_ends
from consumerd.landing.report import AuditReport, LogReport
from consumerd.landing.scan import read_roots, scan_landing
from consumerd.landing.values import LandingRoot
from consumerd.offsets.positions import KeptPositions, describe_ahead, find_outrun
from consumerd.offsets.store import Place, Validity
from consumerd.spark.audit_page import render_audit
from consumerd.spark.job import PrintedTable, Progress, Sessions, Summary
from consumerd.spark.positions import read_positions
from consumerd.telemetry.wording import format_time, join_shown

if TYPE_CHECKING:
    from consumerd.landing.ranges import RangeSet

_MAX_PRINTED_NOTES: Final = 20
"""Limit of the notes that are printed. The JSON file and the page have all."""

_HEADS: Final = ("log", "from", "to", "records", "files", "gaps", "missing", "repeated", "behind", "newest record")


def run(spark: Sessions, settings: JobSettings, progress: Progress) -> Summary:
    """Audit the landed files: every offset must be in a file or a gap.

    Writes the JSON file and the HTML page, and returns the summary. Raises ConfigError, CoordinationError if ZooKeeper
    fails, OSError if a report cannot be written.
    """
    options = settings.pipeline.audit
    paths = settings.landing_roots()
    roots = read_roots(paths)
    # Before the names are read: what is committed has landed. So a position beyond all files that are listed later
    # is a loss, and not a file that landed in between.
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
    known = None
    if positions is not None:
        places = settings.places
        known = {
            one: positions.find_counting(one, places)
            for one in sorted(positions.zookeeper.keys() | positions.kafka.keys())
            if one.topic in landed_topics
            # a partition that only the other place has a position of is not compared
            and positions.find_counting(one, places).validity is not Validity.ABSENT
        }
    report = examine(landing, depth=depth, positions=known, group=group, more=more)
    if options.json_file is not None:
        write_whole(options.json_file, json.dumps(report.encode(), indent=1) + "\n")
    if options.html is not None:
        write_whole(options.html, render_audit(report, made=datetime.now(tz=UTC)))
    summary = summarize(report, proven=proven)
    notes = list(landing.name_absent(settings.landing_topics()))
    if positions is not None:
        notes += explain_kafka(positions, settings.places)
    return replace(summary, notes=(*notes, *summary.notes))


def explain_kafka(positions: KeptPositions, places: Collection[Place]) -> list[str]:
    """Return notes on a group's positions in ZooKeeper and Kafka: those that the audit uses.

    Args:
        positions: The group's positions in both stores.
        places: The stores that members read: ZooKeeper, Kafka, or both.
    """
    notes = [text for text in (positions.explain_places(places),) if text]
    if larger := find_outrun(positions, places):
        other = Place.ZOOKEEPER if Place.KAFKA in places else Place.KAFKA
        shown = [
            describe_ahead(one, positions.find_counting(one, places), position) for one, position in larger.items()
        ]
        notes.append(
            f"committed to {other.label} and not compared with what has landed: {join_shown(shown, _MAX_PRINTED_NOTES)}"
        )
    if positions.unknown:
        notes.append(f"positions in Kafka are unknown: {positions.unknown}")
    return notes


def summarize(report: AuditReport, *, proven: int | None = None) -> Summary:
    """Return the job's summary of an audit: numbers, findings, notes.

    Args:
        proven: number of records that were read; None without ``pipeline.audit.proof``.
    """
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
    if len(notes) > _MAX_PRINTED_NOTES:
        notes = [
            *notes[:_MAX_PRINTED_NOTES],
            f"{len(notes) - _MAX_PRINTED_NOTES} notes more: see them with --json-file or --html",
        ]
    rows = tuple(tuple(_row(log)) for log in logs)
    return Summary(
        numbers={name: value for name, value in numbers.items() if value is not None},  # None: not known from names
        findings=tuple(map(str, report.errors)),
        notes=tuple(notes),
        tables=(PrintedTable(title="what has been landed", heads=_HEADS, rows=rows),),
    )


def write_whole(path: Path, text: str) -> None:
    """Write a file atomically: readers see the old text or the new one. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        hidden.write_text(text, encoding="utf-8")
        hidden.replace(path)
    finally:
        hidden.unlink(missing_ok=True)


def _read_positions(
    settings: JobSettings, roots: Sequence[LandingRoot], progress: Progress
) -> tuple[str | None, KeptPositions | None]:
    """Read the group and its committed positions.

    Returns (None, None) if the settings name no cluster or group, or do not want positions. Raises ConfigError if the
    landed files are of other groups.
    """
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
    yield "-" if log.max_timestamp is None else format_time(log.max_timestamp)


def _gap_offsets(log: LogReport) -> int:
    ranges: Iterable[RangeSet] = log.gaps.values()
    return sum(one.size for one in ranges)


def _add(numbers: Iterable[int | None]) -> int | None:
    total = 0
    for number in numbers:
        if number is None:
            return None
        total += number
    return total
