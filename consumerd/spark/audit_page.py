# SPDX-License-Identifier: Apache-2.0
"""Renders an audit as one self-contained HTML page. Pure.

The page loads nothing from elsewhere, so it can be mailed or archived. All text from outside (topics, paths, details of
findings) is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Final

from consumerd import __version__
from consumerd.landing.findings import AUDIT_WORDS, Finding, Severity
from consumerd.landing.report import AuditReport, LogReport
from consumerd.spark.audit_plots import (
    LOGS_DRAWN,
    LOST,
    draw_arrival,
    draw_coverage,
    draw_delay,
    join_keys,
    largest_topics,
)
from consumerd.spark.audit_style import STYLE

FINDINGS_SHOWN: Final = 200
"""Largest number of errors, and of notes, on the page. The JSON file has all."""

_DEPTHS: Final = {
    "names": "by names, and by the last file of each chain",
    "footers": "by what every file says of itself",
    "data": "by every landed record",
}
_COLUMNS: Final = (
    ("log", "s"),
    ("from", "n"),
    ("to", "n"),
    ("records", "n"),
    ("files", "n"),
    ("MiB", "n"),
    ("gaps", "n"),
    ("missing", "n"),
    ("repeated", "n"),
    ("not committed", "n"),
    ("first record", "s"),
    ("last record", "s"),
)
_STYLES: Final = {Severity.CRITICAL: "bad", Severity.WARNING: "busy", Severity.NOTICE: "dim"}


def render_audit(report: AuditReport, *, made: datetime) -> str:
    """Return an audit as an HTML page.

    Args:
        made: time of the audit, shown in the heading.
    """
    return "".join(_document(report, made))


def _document(report: AuditReport, made: datetime) -> Iterator[str]:
    whose = escape(" and ".join(report.groups))
    yield '<!doctype html><html lang="en"><head><meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width,initial-scale=1"><link rel="icon" href="data:,">'
    yield f"<title>{whose}: audit &middot; consumerd</title><style>{STYLE}</style></head><body>"
    yield f"<header><h1>consumerd audit<small>group {whose}, {_time(made)}</small></h1>{_badges(report)}</header><main>"
    yield from _errors(report.errors)
    yield from _facts(report)
    yield from _coverage(report.logs)
    yield from _arrival(report.logs)
    yield "<h2>Logs <small>a partition of one making of its topic each</small></h2>"
    yield _table(_COLUMNS, map(_log_row, report.logs))
    if report.notes:
        yield "<h2>Notes <small>explained, or nothing that is lost</small></h2>"
        yield _table((("", "s"), ("kind", "s"), ("what", "")), map(_finding_row, report.notes[:FINDINGS_SHOWN]))
        yield _rest(len(report.notes))
    yield f"</main><footer>cluster {escape(report.cluster)} &middot; {escape(', '.join(report.roots))} &middot; "
    yield f"consumerd {escape(__version__)}</footer></body></html>"


def _badges(report: AuditReport) -> str:
    errors = len(report.errors)
    warnings = sum(finding.severity is Severity.WARNING for finding in report.notes)
    shown = (
        f'<span class="badge bad">{errors} to act upon</span>' if errors else '<span class="badge ok">complete</span>'
    )
    return shown + (f'<span class="badge busy">{_counted(warnings, "warning")}</span>' if warnings else "")


def _errors(errors: Sequence[Finding]) -> Iterator[str]:
    if errors:
        items = "".join(
            f"<li><b>{escape(str(finding.kind))}</b>: {escape(finding.detail)}</li>"
            for finding in errors[:FINDINGS_SHOWN]
        )
        yield f'<div class="note"><strong>To act upon</strong><ul>{items}</ul>{_rest(len(errors))}</div>'


def _rest(count: int) -> str:
    return f'<p class="dim">{count - FINDINGS_SHOWN:,} more are in the JSON file</p>' if count > FINDINGS_SHOWN else ""


def _facts(report: AuditReport) -> Iterator[str]:
    logs = report.logs
    records = [log.records for log in logs]
    sizes = [log.size for log in logs]
    gaps = sum(ranges.size for log in logs for ranges in log.gaps.values())
    lost = sum(ranges.size for log in logs for reason, ranges in log.gaps.items() if reason in LOST)
    missing = sum(log.missing.size + log.jumped.size for log in logs)
    behind = [log.end - log.committed for log in logs if log.committed is not None]
    files = sum(log.files for log in logs)
    known = None not in records
    yield '<dl class="facts">'
    yield _fact("records", f"{sum(filter(None, records)):,}" if known else "&ndash;", _DEPTHS[report.depth])
    size = f"{sum(filter(None, sizes)) / 1048576:,.1f} MiB" if None not in sizes else "sizes were not read"
    yield _fact("files", f"{files:,}", size)
    topics = len({log.log.topic for log in logs})
    yield _fact("logs", f"{len(logs):,}", f"of {_counted(topics, 'topic')}, {_counted(len(report.roots), 'root')}")
    yield _fact("in recorded gaps", f"{gaps:,}", f"offsets, {lost:,} of them lost" if gaps else "offsets")
    yield _fact("missing", f"{missing:,}", "offsets that nothing explains" if missing else "offsets")
    if report.positions_of is not None:
        yield _fact("not committed", f"{sum(behind):,}", f"landed offsets, group {escape(report.positions_of)}")
    yield "</dl>"


def _fact(name: str, value: str, more: str) -> str:
    return f'<div><dt>{name}</dt><dd class="main">{value}</dd><dd class="more">{more}</dd></div>'


def _coverage(logs: Sequence[LogReport]) -> Iterator[str]:
    if not logs:
        return
    drawn = sorted(logs, key=lambda log: not (log.missing or log.jumped))[:LOGS_DRAWN]
    more = f", {len(logs) - len(drawn):,} more are in the table" if len(logs) > len(drawn) else ""
    drawn.sort(key=lambda log: log.log)
    keys = [("landed", "landed"), ("quiet", "gap, explained"), ("lost", "gap, records lost"), ("missing", "missing")]
    keys.append(("again", "in several chains"))
    mark = " &#9474; <span>committed</span>" if any(log.committed is not None for log in drawn) else ""
    yield f"<h2>Coverage by partition <small>first to last offset of each log{more}</small></h2>"
    yield f"<figure><figcaption>{join_keys(keys)}{mark}</figcaption>{draw_coverage(drawn)}</figure>"


def _arrival(logs: Sequence[LogReport]) -> Iterator[str]:
    topics = largest_topics(logs)
    plot = draw_arrival(logs, topics)
    if not plot:
        return
    keys = [(f"t{place}", topic) for place, topic in enumerate(topics)]
    if len({log.log.topic for log in logs}) > len(topics):
        keys.append((f"t{len(topics)}", "others"))
    yield "<h2>Arrival over time <small>when files were finished, UTC</small></h2>"
    yield f"<figure><figcaption><b>records landed</b>{join_keys(keys)}</figcaption>{plot}</figure>"
    delay = draw_delay(logs)
    if delay:
        yield "<figure><figcaption><b>how long after its own time the newest record of a file landed</b>"
        yield f"<span>median, and from least to most</span></figcaption>{delay}</figure>"


def _log_row(log: LogReport) -> str:
    missing = log.missing.size + log.jumped.size
    gaps = sum(ranges.size for ranges in log.gaps.values())
    lost = any(reason in LOST for reason in log.gaps)
    cells = (
        ("s", escape(str(log.log))),
        ("n", f"{log.start:,}"),
        ("n", f"{log.end:,}"),
        ("n", _number(log.records)),
        ("n", f"{log.files:,}"),
        ("n", "&ndash;" if log.size is None else f"{log.size / 1048576:,.1f}"),
        ("n busy" if lost else "n", f"{gaps:,}"),
        ("n bad" if missing else "n", f"{missing:,}"),
        ("n", f"{log.repeated.size:,}"),
        ("n", _number(None if log.committed is None else log.end - log.committed)),
        ("s", _moment(log.min_timestamp)),
        ("s", _moment(log.max_timestamp)),
    )
    return "<tr>" + "".join(f'<td class="{style}">{cell}</td>' for style, cell in cells) + "</tr>"


def _finding_row(finding: Finding) -> str:
    style = _STYLES[finding.severity]
    kind, word = escape(str(finding.kind)), AUDIT_WORDS[finding.severity]
    return f'<tr><td class="s {style}">{word}</td><td class="s">{kind}</td><td>{escape(finding.detail)}</td></tr>'


def _table(columns: Sequence[tuple[str, str]], rows: Iterable[str]) -> str:
    heads = "".join(f'<th scope="col" class="{style}">{name}</th>' for name, style in columns)
    body = "".join(rows)
    if not body:
        return '<p class="dim">none</p>'
    return f'<div class="scroll"><table><tr>{heads}</tr>{body}</table></div>'


def _number(value: int | None) -> str:
    return "&ndash;" if value is None else f"{value:,}"


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def _moment(timestamp_ms: int | None) -> str:
    return "&ndash;" if timestamp_ms is None else _time(datetime.fromtimestamp(timestamp_ms / 1000, tz=UTC))[:-3]


def _time(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")
