"""The status page: one HTML document, rendered from the status, that a person can read without any other tool."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from consumerd.daemon.status import DaemonStatus
from consumerd.telemetry.wording import counted
from consumerd.zk.port import LeasePhase

_STYLE = """
body{font:14px/1.45 system-ui,sans-serif;margin:1.5rem auto;max-width:72rem;padding:0 1rem;color:#1c2733;background:#fbfcfd}
h1{font-size:1.25rem;margin:0 0 .25rem}h2{font-size:1rem;margin:1.6rem 0 .4rem}
table{border-collapse:collapse;width:100%}th,td{text-align:left;padding:.25rem .6rem;border-bottom:1px solid #e3e8ee;vertical-align:top}
th{font-weight:600;color:#5a6b7c;font-size:.85rem}td.n{text-align:right;font-variant-numeric:tabular-nums}
.ok{color:#0a7d3c}.bad{color:#b3261e}.dim{color:#7a8896}.badge{font-weight:600}
"""

_PHASES: Final = {
    LeasePhase.NONE.value: "waiting for one",
    LeasePhase.FRESH.value: "ZooKeeper answers in time",
    LeasePhase.PAUSED.value: "no answer for half its timeout, delivery pauses",
    LeasePhase.SUSPENDED.value: "no answer for two thirds of its timeout, others may soon own the partitions",
}
"""What each phase of the session means."""


def render_page(status: DaemonStatus) -> str:
    """Return the document; everything that comes from outside is escaped."""
    ready = '<span class="badge ok">ready</span>' if status.ready else '<span class="badge bad">not ready</span>'
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="5">',
        f"<title>consumerd {escape(status.group)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>consumerd &middot; group {escape(status.group)} &middot; {ready}</h1>",
        f'<p class="dim">{_summary(status)}</p>',
    ]
    if status.not_ready:
        parts.append(
            '<ul class="bad">' + "".join(f"<li>{escape(reason)}</li>" for reason in status.not_ready) + "</ul>"
        )
    if status.missing_topics:
        names = escape(", ".join(status.missing_topics))
        parts.append(f'<p class="bad">subscribed, and not in the cluster or not readable: {names}</p>')
    if status.disagreements:
        items = "".join(f"<li>{escape(text)}</li>" for text in status.disagreements)
        parts.append(f'<h2>Members disagree</h2><ul class="bad">{items}</ul>')
    parts.append(f"<h2>Partitions ({status.owned} owned, {status.desired} assigned)</h2>")
    parts.append(
        _table(
            ("topic", "partition", "sink", "state", "position", "acknowledged", "committed", "lag", "records/s"),
            (
                (
                    escape(one.topic),
                    escape(one.partition),
                    escape(one.sink),
                    escape(one.state) + (f' <span class="bad">{escape(one.reason)}</span>' if one.reason else ""),
                    _number(one.position),
                    _number(one.acknowledged),
                    _number(one.committed),
                    _number(one.lag),
                    f"{one.records_per_second:,.0f}",
                )
                for one in status.partitions
            ),
            numeric=range(4, 9),
        )
    )
    if status.conflicts:
        parts.append("<h2>Held by others</h2>")
        parts.append(
            _table(("partition", "holder"), ((escape(p), escape(h)) for p, h in sorted(status.conflicts.items())))
        )
    parts.append("<h2>Last rebalances</h2>")
    parts.append(
        _table(
            ("when", "cause", "took", "phases", "gained", "lost"),
            (
                (
                    f"{_duration(one.ago_s)} ago",
                    escape(one.cause),
                    f"{one.seconds:.2f} s",
                    escape(", ".join(f"{name} {seconds:.2f} s" for name, seconds in one.phases.items())),
                    str(one.gained),
                    str(one.lost),
                )
                for one in status.rebalances
            ),
            numeric=(4, 5),
        )
    )
    parts.append("<h2>Last events</h2>")
    parts.append(
        _table(
            ("when", "what", ""),
            ((f"{_duration(one.ago_s)} ago", escape(one.kind), escape(one.what)) for one in status.events),
        )
    )
    parts.append(
        '<p class="dim"><a href="/metrics">metrics</a> &middot; <a href="/api/v1/status">JSON</a></p></body></html>'
    )
    return "".join(parts)


def _summary(status: DaemonStatus) -> str:
    session = f"ZooKeeper session {status.session_epoch} ({status.session_id}) is {status.session_phase}"
    session += f": {_PHASES[status.session_phase]}"
    memory = f"{_bytes(sum(status.buffered_bytes.values()))} of {_bytes(status.memory_budget_bytes)} held"
    if kinds := ", ".join(f"{_bytes(size)} {kind}" for kind, size in status.buffered_bytes.items() if size):
        memory += f" ({kinds})"
    facts = [status.consumer_id or "not registered", status.state, session, counted(status.members, "member")]
    facts += [f"up {_duration(status.uptime_s)}", memory, status.version]
    return " &middot; ".join(escape(fact) for fact in facts)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], numeric: Iterable[int] = ()) -> str:
    right = frozenset(numeric)
    head = "".join(f"<th>{name}</th>" for name in heads)
    body = "".join(
        "<tr>"
        + "".join(f'<td class="n">{cell}</td>' if at in right else f"<td>{cell}</td>" for at, cell in enumerate(row))
        + "</tr>"
        for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>" if body else '<p class="dim">none</p>'


def _number(value: int | None) -> str:
    return "&ndash;" if value is None else f"{value:,}"


def _bytes(value: int) -> str:
    return f"{value / 1048576:,.1f} MiB"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes, _ = divmod(int(seconds), 60)
    if minutes < 120:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h" if hours < 48 else f"{hours // 24} d"
