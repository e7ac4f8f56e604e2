# SPDX-License-Identifier: Apache-2.0
"""The status page: one HTML document, rendered from the status.

It loads nothing else: no script, no font, no image. On a narrow screen each row of a table becomes a block, whose cells
show the names of their columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from consumerd.daemon.mirror import find_mirror_lag
from consumerd.daemon.page_style import STYLE
from consumerd.daemon.status import (
    AwayStatus,
    DaemonStatus,
    MirrorStatus,
    MirrorTopicStatus,
    Moment,
    PartitionReport,
    RequestStatus,
    SinkStatus,
)
from consumerd.delivery.status import DeliveryState
from consumerd.group.classic.transitions import ClassicState
from consumerd.group.transitions import MemberState
from consumerd.telemetry.wording import counted, join_shown
from consumerd.zk.port import LeasePhase

_POSITIONS: Final = {"kafka": "in Kafka", "both": "in ZooKeeper and Kafka"}
_PHASES: Final = {
    LeasePhase.NONE.value: "waiting for one",
    LeasePhase.FRESH.value: "ZooKeeper answers in time",
    LeasePhase.PAUSED.value: "no answer for half its timeout, delivery pauses",
    LeasePhase.SUSPENDED.value: "no answer for two thirds of its timeout, others may soon own the partitions",
}
"""Descriptions of the phases of the session."""

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
"""Descriptions of the member's states."""

_COORDINATED_STATES: Final = {
    ClassicState.UNJOINED.value: "joins the group when its time has come",
    ClassicState.JOINING.value: "the coordinator waits for all members to join",
    ClassicState.SYNCING.value: "waits for the assignment",
    ClassicState.STABLE.value: "owns, or claims, what the leader has assigned to it",
    ClassicState.DRAINING.value: "the group rebalances: flushes and commits before it joins again",
    ClassicState.LEAVING.value: "flushes, commits and leaves",
    ClassicState.STOPPED.value: "has left",
}
"""Descriptions of the states of a member that a broker coordinates."""
_COORDINATED_PHASES: Final = {
    LeasePhase.NONE.value: "belongs to no generation",
    LeasePhase.FRESH.value: "the coordinator answers in time",
    LeasePhase.PAUSED.value: "no heartbeat answered for half the session timeout, delivery pauses",
    LeasePhase.SUSPENDED.value: "no heartbeat answered for two thirds of the session timeout",
}

_UNSETTLED: Final = frozenset({MemberState.SETTLING.value, MemberState.READING.value})
_COORDINATED_UNSETTLED: Final = frozenset(
    {ClassicState.JOINING.value, ClassicState.SYNCING.value, ClassicState.DRAINING.value}
)
"""States in which the group has changed and is read again."""

_COLOURS: Final = {
    DeliveryState.STOPPED.value: "bad",
    DeliveryState.FAILING.value: "bad",
    DeliveryState.STARTING.value: "busy",
    DeliveryState.PAUSED.value: "busy",
    DeliveryState.DRAINING.value: "busy",
}
"""CSS classes of a partition's states; other states have none."""


@dataclass(frozen=True, slots=True)
class _Column:
    """A column: its name, and the CSS class of its cells.

    ``n`` is for numbers, ``s`` for short text. On a narrow screen ``wide`` has its own line, and ``title`` is above all
    others.
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
_AWAY_SHOWN: Final = 20
"""Partitions that are named for each broker that is away."""
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
_AWAY: Final = (
    _Column("broker", "title"),
    _Column("away", "n"),
    _Column("why", "wide"),
    _Column("partitions", "wide"),
)
_MIRRORED_TOPICS: Final = (_Column("topic", "title"), _Column("partitions", "n"), _Column("not in the target", "n"))
_MIRRORED: Final = (
    _Column("partition", "title"),
    _Column("target"),
    _Column("source offset", "n"),
    _Column("target offset", "n"),
    _Column("not in the target", "n"),
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
    """Return the status page as an HTML document.

    Text from outside, such as topics and reasons, is escaped.
    """
    return "".join(_document(status))


def _document(status: DaemonStatus) -> Iterator[str]:
    group = escape(status.group)
    yield '<!doctype html><html lang="en"><head><meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width,initial-scale=1"><meta http-equiv="refresh" content="5">'
    yield f'<link rel="icon" href="data:,"><title>{group}: {_readiness(status)} &middot; consumerd</title>'
    yield f"<style>{STYLE}</style></head><body><header><h1>consumerd<small>group {group}</small></h1>"
    yield f'<span class="badge {"ok" if status.ready else "bad"}">{_readiness(status)}</span>'
    unsettled = _UNSETTLED if status.coordination is None else _COORDINATED_UNSETTLED
    if status.owned < status.desired or status.state in unsettled:
        yield '<span class="badge busy">rebalancing</span>'
    yield "</header><main>"
    yield from _notes(status)
    yield from _facts(status)
    yield f"<h2>Partitions <small>{status.owned} owned, {status.desired} assigned</small></h2>"
    yield _table(_PARTITIONS, (row for one in status.partitions for row in _partition_rows(one)))
    if status.away:
        yield f"<h2>Away <small>{sum(len(one.partitions) for one in status.away)} of the group's partitions</small></h2>"
        yield _table(_AWAY, map(_away_row, status.away))
    if status.mirror is not None:
        yield "<h2>Mirror</h2>"
        yield from _mirror(status, status.mirror)
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
    """Yield the notes at the top of the page: troubles, with their reasons."""
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
        ("Away", tuple(f"{one.reason}: {counted(len(one.partitions), 'partition')}" for one in status.away)),
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
    states = _STATES if status.coordination is None else _COORDINATED_STATES
    state = f"{status.state}: {states[status.state]}" if status.state in states else status.state
    yield _fact("member", escape(status.consumer_id or "not registered"), escape(state), long=True)
    if (group := status.coordination) is not None:
        generation = f"generation {group.generation}" if group.generation >= 0 else "no generation"
        role = f", {group.assignor}, {'leader' if group.leader else 'follower'}" if group.assignor else ""
        shown = f"broker {group.coordinator}, {generation}{role}" if group.coordinator else "not found yet"
        yield _fact("coordinator", escape(shown), escape(_COORDINATED_PHASES[group.phase]), long=True)
    if status.session_phase != "none" or status.coordination is None:  # a coordinated member may have no ZooKeeper
        yield _fact("ZooKeeper", escape(session), escape(_PHASES[status.session_phase]), long=True)
    if status.positions != "zookeeper":
        yield _fact("positions", _POSITIONS[status.positions], "offsets.storage")
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


def _mirror(status: DaemonStatus, mirror: MirrorStatus) -> Iterator[str]:
    verdict = "yes" if mirror.safe_to_cut_over else f"no, because {escape('; '.join(mirror.unsafe))}"
    yield f'<dl class="facts">{_fact("safe to cut over", verdict, "everything is in the target", long=True)}</dl>'
    yield _table(_MIRRORED_TOPICS, map(_mirrored_topic_row, mirror.topics))
    yield _table(_MIRRORED, (row for one in status.partitions for row in _mirrored_rows(one)))


def _mirrored_topic_row(one: MirrorTopicStatus) -> str:
    return _row(_MIRRORED_TOPICS, (escape(one.topic), _number(one.partitions), _number(one.lag)))


def _mirrored_rows(one: PartitionReport) -> Iterator[str]:
    if (place := one.mirrored) is not None:
        cells = (
            escape(f"{one.topic}/{one.partition}"),
            escape(f"{place.topic}/{place.partition}"),
            *map(_number, (place.source, place.target, find_mirror_lag(one))),
        )
        yield _row(_MIRRORED, cells)


def _away_row(one: AwayStatus) -> str:
    shown = join_shown(one.partitions, _AWAY_SHOWN)
    return _row(_AWAY, [escape(cell) for cell in (str(one.broker), f"{len(one.partitions)}", one.reason, shown)])


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
        _number(one.open_files + one.requests),  # a sink has files or requests, never both
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
    """Return the number of the group's partitions that this member owns, of all."""
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
