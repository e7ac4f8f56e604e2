# SPDX-License-Identifier: Apache-2.0
"""The status page: one HTML document, rendered from the status, that a person can read without any other tool.

It asks for nothing else: no script, no font, no picture. On a narrow screen each row of a table becomes a block whose
cells carry the names of their columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from consumerd.daemon.page_style import STYLE
from consumerd.daemon.status import DaemonStatus, Moment, PartitionReport, RequestStatus, SinkStatus
from consumerd.delivery.status import DeliveryState
from consumerd.group.transitions import MemberState
from consumerd.telemetry.wording import counted
from consumerd.zk.port import LeasePhase

_PHASES: Final = {
    LeasePhase.NONE.value: "waiting for one",
    LeasePhase.FRESH.value: "ZooKeeper answers in time",
    LeasePhase.PAUSED.value: "no answer for half its timeout, delivery pauses",
    LeasePhase.SUSPENDED.value: "no answer for two thirds of its timeout, others may soon own the partitions",
}
"""What each phase of the session means."""

_STATES: Final = {
    MemberState.DETACHED.value: "no session",
    MemberState.JOINING.value: "registers",
    MemberState.SETTLING.value: "the group has changed, waits for more changes",
    MemberState.READING.value: "the group has changed, reads it",
    MemberState.FOLLOWING.value: "owns, or claims, what the group's newest view gives to it",
    MemberState.SUSPENDED.value: "ZooKeeper does not answer, positions are kept",
    MemberState.LEAVING.value: "flushes, commits and releases",
    MemberState.STOPPED.value: "has left",
}
"""What this member does in each of its states."""

_UNSETTLED: Final = frozenset({MemberState.SETTLING.value, MemberState.READING.value})
"""States in which the group has changed and is looked at anew."""

_COLOURS: Final = {
    DeliveryState.STOPPED.value: "bad",
    DeliveryState.FAILING.value: "bad",
    DeliveryState.STARTING.value: "busy",
    DeliveryState.PAUSED.value: "busy",
    DeliveryState.DRAINING.value: "busy",
}
"""States of a partition in which it does not simply flow."""


@dataclass(frozen=True, slots=True)
class _Column:
    """A column: its name, and how its cells are set.

    ``n`` numbers, ``s`` short; on a narrow screen ``wide`` has a line of its own, ``title`` stands above the others.
    """

    name: str
    style: str = ""


_PARTITIONS: Final = (
    _Column("partition", "title"),
    _Column("state", "s"),
    _Column("since", "n"),
    _Column("sink"),
    _Column("position", "n"),
    _Column("acknowledged", "n"),
    _Column("committed", "n"),
    _Column("lag", "n"),
    _Column("behind", "n"),
    _Column("records/s", "n"),
    _Column("moved", "n"),
    _Column("commit", "n"),
)
_SINKS: Final = (
    _Column("sink", "title"),
    _Column("partitions", "n"),
    _Column("not landed", "n"),
    _Column("memory", "n"),
    _Column("files", "n"),
    _Column("records", "n"),
    _Column("MiB", "n"),
    _Column("open", "n"),
    _Column("delay", "n"),
    _Column("last file", "wide"),
)
_HOLDERS: Final = (_Column("partition", "title"), _Column("holder", "wide"))
_REQUESTS: Final = (
    _Column("partition", "title"),
    _Column("position", "n"),
    _Column("how"),
    _Column("asked by"),
    _Column("asked", "wide"),
)
_REBALANCES: Final = (
    _Column("when", "s"),
    _Column("took", "s"),
    _Column("gained", "n"),
    _Column("lost", "n"),
    _Column("cause", "wide"),
    _Column("phases", "wide"),
)
_EVENTS: Final = (_Column("when", "s"), _Column("event", "s"), _Column("what", "wide"))


def render_page(status: DaemonStatus) -> str:
    """Return the document; everything that comes from outside is escaped."""
    return "".join(_document(status))


def _document(status: DaemonStatus) -> Iterator[str]:
    group = escape(status.group)
    yield '<!doctype html><html lang="en"><head><meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width,initial-scale=1"><meta http-equiv="refresh" content="5">'
    yield f'<link rel="icon" href="data:,"><title>{group}: {_readiness(status)} &middot; consumerd</title>'
    yield f"<style>{STYLE}</style></head><body><header><h1>consumerd<small>group {group}</small></h1>"
    yield f'<span class="badge {"ok" if status.ready else "bad"}">{_readiness(status)}</span>'
    if status.owned < status.desired or status.state in _UNSETTLED:
        yield '<span class="badge busy">rebalancing</span>'
    yield "</header><main>"
    yield from _notes(status)
    yield from _facts(status)
    yield f"<h2>Partitions <small>{status.owned} owned, {status.desired} assigned</small></h2>"
    yield _table(_PARTITIONS, (row for one in status.partitions for row in _partition_rows(one)))
    yield "<h2>Sinks <small>files since the start of this process</small></h2>"
    yield _table(_SINKS, map(_sink_row, status.sinks))
    if status.conflicts:
        yield "<h2>Held by others</h2>"
        yield _table(_HOLDERS, (_row(_HOLDERS, (escape(p), escape(h))) for p, h in sorted(status.conflicts.items())))
    if status.requests:
        yield "<h2>Operators' requests that wait</h2>"
        yield _table(_REQUESTS, map(_request_row, status.requests))
    yield "<h2>Last rebalances</h2>"
    yield _table(_REBALANCES, _rebalance_rows(status))
    yield "<h2>Last events</h2>"
    yield _table(_EVENTS, _event_rows(status))
    yield '</main><footer><a href="/metrics">metrics</a> &middot; <a href="/api/v1/status">JSON</a>'
    yield f" &middot; kernel: {escape(status.kernel)} &middot; loop: {escape(status.loop)}</footer></body></html>"


def _readiness(status: DaemonStatus) -> str:
    return "ready" if status.ready else "not ready"


def _notes(status: DaemonStatus) -> Iterator[str]:
    """Yield what somebody should know before anything else."""
    topics = (", ".join(status.missing_topics),) if status.missing_topics else ()
    for title, lines in (
        ("Not ready", status.not_ready),
        ("Partitions in trouble", status.problems),
        ("Subscribed, and not in the cluster or not readable", topics),
        (
            "Not consumed, since ZooKeeper's ACLs deny it",
            tuple(f"{t}: {why}" for t, why in status.denied_topics.items()),
        ),
        ("Members disagree", status.disagreements),
    ):
        if lines:
            items = "".join(f"<li>{escape(line)}</li>" for line in lines)
            yield f'<div class="note"><strong>{title}</strong><ul>{items}</ul></div>'


def _facts(status: DaemonStatus) -> Iterator[str]:
    ages = [one.lag_seconds for one in status.partitions if one.lag_seconds is not None]
    lags = [one.lag for one in status.partitions if one.lag is not None]
    unknown = len(status.partitions) - len(lags)
    held, budget = sum(status.buffered_bytes.values()), status.memory_budget_bytes
    kinds = ", ".join(f"{_mebibytes(size)} {kind}" for kind, size in status.buffered_bytes.items() if size)
    bar = f'<div class="bar"><i style="width:{min(100, 100 * held // budget)}%"></i></div>'
    session = f"session {status.session_epoch} ({status.session_id}) is {status.session_phase}"
    yield '<dl class="facts">'
    yield _fact("records/s", f"{sum(one.records_per_second for one in status.partitions):,.0f}", "delivered")
    yield _fact("lag", f"{sum(lags):,}" if lags else "&ndash;", f"records, {unknown} unknown" if unknown else "records")
    yield _fact("behind", _duration(max(ages)) if ages else "&ndash;", "age of the oldest record not landed")
    yield _fact("group", counted(status.members, "member"), _share(status))
    yield _fact("up", _duration(status.uptime_s), f"version {escape(status.version)}")
    yield '</dl><dl class="facts">'
    yield _fact(
        "memory",
        f"{_mebibytes(held)} of {_mebibytes(budget)} MiB",
        bar + (f"MiB: {escape(kinds)}" if kinds else "nothing is held"),
        long=True,
    )
    state = f"{status.state}: {_STATES[status.state]}" if status.state in _STATES else status.state
    yield _fact("member", escape(status.consumer_id or "not registered"), escape(state), long=True)
    yield _fact("ZooKeeper", escape(session), escape(_PHASES[status.session_phase]), long=True)
    yield "</dl>"


def _fact(name: str, value: str, more: str, *, long: bool = False) -> str:
    style = ' class="long"' if long else ""
    return f'<div{style}><dt>{name}</dt><dd class="main">{value}</dd><dd class="more">{more}</dd></div>'


def _partition_rows(one: PartitionReport) -> Iterator[str]:
    yield _row(
        _PARTITIONS,
        (
            escape(f"{one.topic}/{one.partition}"),
            f'<span class="{_COLOURS.get(one.state, "")}">{escape(one.state)}</span>',
            _ago(one.since),
            escape(one.sink),
            _number(one.position),
            _number(one.acknowledged),
            _number(one.committed),
            _number(one.lag),
            "&ndash;" if one.lag_seconds is None else _duration(one.lag_seconds),
            f"{one.records_per_second:,.0f}",
            _ago(one.last_progress),
            _ago(one.last_commit),
        ),
    )
    if one.reason:
        yield f'<tr class="why"><td colspan="{len(_PARTITIONS)}">{escape(one.reason)}</td></tr>'


def _sink_row(one: SinkStatus) -> str:
    last = "&ndash;"
    if one.last_file is not None:
        last = f"{_ago(one.last_file)}, {escape(one.last_file.at)}<br>{escape(one.last_name or '')}"
    waits = ", fetching waits" if one.held_up else ""
    memory = f"{_mebibytes(one.buffered_bytes)} of {_mebibytes(one.memory_budget_bytes)}{waits}"
    cells = (
        escape(one.sink),
        *map(_number, (one.partitions, one.unacknowledged)),
        memory,
        *map(_number, (one.files, one.records)),
        _mebibytes(one.bytes),
        _number(one.open_files),
        "&ndash;" if one.landing_delay_s is None else _duration(one.landing_delay_s),
        last,
    )
    return _row(_SINKS, cells)


def _request_row(one: RequestStatus) -> str:
    chain = "in a new chain" if one.new_chain else ""
    cells = (f"{one.topic}/{one.partition}", f"{one.position:,}", chain, one.author, one.asked)
    return _row(_REQUESTS, [escape(cell) for cell in cells])


def _rebalance_rows(status: DaemonStatus) -> Iterator[str]:
    for one in status.rebalances:
        phases = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in one.phases.items())
        yield _row(
            _REBALANCES,
            (
                f"{_duration(one.ago_s)} ago",
                f"{one.seconds:.2f} s",
                str(one.gained),
                str(one.lost),
                escape(one.cause),
                escape(phases),
            ),
        )


def _event_rows(status: DaemonStatus) -> Iterator[str]:
    for one in status.events:
        times = f" ({one.count} times in {_duration(one.first_ago_s - one.ago_s)})" if one.count > 1 else ""
        yield _row(_EVENTS, (f"{_duration(one.ago_s)} ago", escape(one.kind), escape(one.what) + times))


def _table(columns: Sequence[_Column], rows: Iterable[str]) -> str:
    body = "".join(rows)
    heads = "".join(f'<th scope="col" class="{one.style}">{one.name}</th>' for one in columns)
    return f'<table class="rows"><tr class="heads">{heads}</tr>{body}</table>' if body else '<p class="dim">none</p>'


def _row(columns: Sequence[_Column], cells: Sequence[str]) -> str:
    named = zip(columns, cells, strict=True)
    inner = "".join(f'<td class="{one.style}" data-is="{one.name}"><span>{cell}</span></td>' for one, cell in named)
    return f"<tr>{inner}</tr>"


def _share(status: DaemonStatus) -> str:
    """Return how many of the group's partitions are here; the others are other members', or nobody's."""
    return f"{status.owned} of the group's {counted(status.group_partitions, 'partition')} here"


def _ago(moment: Moment | None) -> str:
    return "&ndash;" if moment is None else f"{_duration(moment.ago_s)} ago"


def _number(value: int | None) -> str:
    return "&ndash;" if value is None else f"{value:,}"


def _mebibytes(value: int) -> str:
    return f"{value / 1048576:,.1f}"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes, _ = divmod(int(seconds), 60)
    if minutes < 120:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h" if hours < 48 else f"{hours // 24} d"
