# SPDX-License-Identifier: Apache-2.0
"""Promise 5: every failure is visible in the log, in a metric and on the status page.

Every warning and error that the code logs is found by parsing it, and so is every line of any level that is logged where an
exception is handled: a failure is one, whatever its level. Each is one of three: a :class:`Trouble`, told next to the line
that logs it; shown by another hook or by what the status says, as listed here; or exempt, for a reason. That the hooks count
and show is tried by calling each.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Final

import pytest
from prometheus_client import CollectorRegistry

import consumerd
from consumerd.daemon.page import render_page
from consumerd.daemon.readings import GAUGES
from consumerd.daemon.status import AwayStatus, RecentEvents
from consumerd.model import Gap, GapReason, SessionEpoch, TopicPartition
from consumerd.telemetry.hooks import Hooks, Trouble
from consumerd.telemetry.metrics import MetricsHooks
from tests.support.syntax import parse_file
from tests.unit.daemon.test_status_surface import STATUS

PACKAGE: Final = Path(consumerd.__file__).parent
LEVELS: Final = frozenset({"warning", "error", "exception", "critical"})
QUIET: Final = frozenset({"info", "debug"})
"""Levels of failures only where an exception is handled."""
PARTITION: Final = TopicPartition.modern("orders", 7)


@dataclass(frozen=True, slots=True)
class Line:
    """A call that logs: where it stands, and the function around it."""

    module: str
    line: int
    events: frozenset[str]
    function: ast.AST


@cache
def lines() -> tuple[Line, ...]:
    """Return every call of a logger that writes a warning or an error, or tells of an exception."""
    return tuple(
        Line(path.relative_to(PACKAGE).as_posix(), call.lineno, _names(call.args[0]), function)
        for path in sorted(PACKAGE.rglob("*.py"))
        if not path.relative_to(PACKAGE).as_posix().startswith(NO_DAEMON)
        for function in _functions(parse_file(path))
        for call in _logging_calls(function)
    )


def _functions(tree: ast.AST) -> Iterator[ast.AST]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def _own(function: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function without those of functions within it."""
    for child in ast.iter_child_nodes(function):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child
            yield from _own(child)


def _logging_calls(function: ast.AST) -> Iterator[ast.Call]:
    """Yield the calls that log: on a logger, or of a logger's method that was chosen before."""
    nodes = list(_own(function))
    chosen = {
        target.id
        for node in nodes
        if isinstance(node, ast.Assign) and any(map(_is_logging_method, ast.walk(node.value)))
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    handled = {call for node in nodes if isinstance(node, ast.ExceptHandler) for call in ast.walk(node)}
    for node in nodes:
        if isinstance(node, ast.Call) and node.args:
            by_name = isinstance(node.func, ast.Name) and node.func.id in chosen
            if by_name or _is_logging_method(node.func, LEVELS | QUIET if node in handled else LEVELS):
                yield node


def _is_logging_method(node: ast.AST, levels: Collection[str] = LEVELS) -> bool:
    if not isinstance(node, ast.Attribute) or node.attr not in levels:
        return False
    logger = node.value
    return (isinstance(logger, ast.Name) and logger.id.strip("_") == "log") or (
        isinstance(logger, ast.Attribute) and logger.attr == "_log"
    )


def _names(event: ast.expr) -> frozenset[str]:
    """Return the names that an event may have; none where it is handed in."""
    return frozenset(
        node.value for node in ast.walk(event) if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


# -- what shows an event that is no Trouble


@dataclass(frozen=True, slots=True)
class Hook:
    """Told by a hook, called in ``module``. ``page`` is where the page has it, if not among the last events."""

    name: str
    module: str
    page: str | None = None
    metric: str | None = None
    """Of a gauge, where no counter counts it."""


@dataclass(frozen=True, slots=True)
class Status:
    """Read from the status at each look: a gauge, and a field that the page shows."""

    gauge: str
    field: str


SHOWN: Final[Mapping[str, Hook | Status]] = {
    "claim_conflicted": Hook("claim_conflicted", "group/reports.py", page="conflicts"),
    "commit_failed": Hook("commit_failed", "delivery/committer.py"),
    "committed_behind_landed": Hook("committed_behind", "delivery/condition.py"),
    "delivery_ended": Hook("ownership_lost", "group/claimed.py"),  # by way of DeliveryReports.lost
    "drain_flush_failed": Hook("sink_failed", "delivery/condition.py"),
    "foreign_commit_found": Hook("foreign_commit", "delivery/committer.py"),
    "members_disagree": Hook("group_disagreed", "group/reports.py", metric="consumerd_group_disagreements"),
    "offsets_commit_failed": Hook("commit_failed", "delivery/committer.py"),
    "ownership_lost": Hook("ownership_lost", "group/claimed.py"),
    "partition_stopped": Hook("partition_stopped", "delivery/condition.py", metric="consumerd_stopped_partitions"),
    "position_reset": Hook("position_reset", "delivery/condition.py"),
    "range_skipped": Hook("gap_recorded", "delivery/condition.py"),
    "request_carried_out": Hook("position_reset", "delivery/condition.py"),
    "topic_made_again": Hook("position_reset", "delivery/condition.py"),
    "partitions_away": Status("consumerd_partitions_away", "away"),
    "topics_missing": Status("consumerd_missing_topics", "missing_topics"),
    "unit_quarantined": Hook("unit_passed", "delivery/condition.py"),
    "unit_skipped": Hook("unit_passed", "delivery/condition.py"),
    "zookeeper_disconnected": Hook("session_changed", "group/rebalancer.py"),
    "zookeeper_session_expired": Hook("session_changed", "group/rebalancer.py"),
    "zookeeper_unreachable": Status("consumerd_ready", "not_ready"),  # later ones are zookeeper_disconnected
}

EXEMPT: Final[Mapping[str, str]] = {
    "cluster_lookup_failed": "before the daemon has begun: not ready, since it waits for ZooKeeper, which is told",
    "coordinated_members_unknown": "before the daemon has begun; the start in ZooKeeper goes on without the comparison",
    "daemon_failed": "the process ends with it, by an exit code",
    "landed_end_unreadable": "evidence that is missing; nothing is decided by it",
    "members_not_counted": "a number for display; whether the coordinator answers is told by the heartbeats",
    "metadata_not_answered": "one broker of several; that none answers is cluster_read_failed",
    "recheck_failed": "of a partition that stays stopped, which is shown, and is looked at again",
    "settings_doubtful": "said once of the settings, before there is a daemon",
    "positions_lookup_failed": "before the daemon has begun: not ready, since it waits for ZooKeeper, which is told",
    "service_manager_unreachable": "systemd acts by itself on a service that it does not hear; delivery goes on",
    "shutdown_cut_short": "the process ends with it, by an exit code",
    "ticket_not_replaced": "the present ticket stays in use: its end is told, and so is what servers refuse",
    "sink_closed": "the reader of stdout has gone: an end in order",
}

PRODUCER: Final = (
    "client/legacy_produce_handler.py", "client/opening.py", "client/producer.py", "client/sender.py", "client/topics.py",
    "client/transactions.py",
)  # fmt: skip
NO_DAEMON: Final = ("embedded/", "demo/", "spark/", "config/pipeline.py", *PRODUCER)
"""What runs beside the daemon, for demo and tests; the data pipeline; and the producer, which tells its callers."""

COMMANDS: Final = (
    "cli/", "admin/cancellation.py", "admin/doctor/", "admin/group_facts.py", "admin/groups.py",
    "admin/inspection.py", "admin/lag.py", "admin/migration.py", "admin/operations.py", "admin/positions.py", "admin/tail.py",
)  # fmt: skip
"""They print what they find."""

CALLS: Final[Mapping[str, Callable[[Hooks], None]]] = {
    "claim_conflicted": lambda hooks: hooks.claim_conflicted(PARTITION, "g_other-0"),
    "commit_failed": lambda hooks: hooks.commit_failed(PARTITION, "failed"),
    "committed_behind": lambda hooks: hooks.committed_behind(PARTITION, committed=1, landed=2),
    "foreign_commit": lambda hooks: hooks.foreign_commit(PARTITION, 5),
    "gap_recorded": lambda hooks: hooks.gap_recorded(PARTITION, Gap(1, 5, GapReason.RETENTION), requested=False),
    "group_disagreed": lambda hooks: hooks.group_disagreed("unowned", "orders/7 is not owned"),
    "ownership_lost": lambda hooks: hooks.ownership_lost(PARTITION, "the session is over"),
    "partition_stopped": lambda hooks: hooks.partition_stopped(PARTITION, "corrupt"),
    "position_reset": lambda hooks: hooks.position_reset(PARTITION, before=1, after=2, reason="on_above"),
    "session_changed": lambda hooks: hooks.session_changed(SessionEpoch(3), "suspended"),
    "sink_failed": lambda hooks: hooks.sink_failed(PARTITION, "lake", retriable=True),
    "trouble": lambda hooks: hooks.trouble(Trouble.DRAIN_ABANDONED, "not flushed in time", PARTITION),
    "unit_passed": lambda hooks: hooks.unit_passed(PARTITION, cause="corrupt", kept=False),
}

SHOWS: Final[Mapping[str, object]] = {
    "away": (AwayStatus(broker=1, reason="broker 1 is not registered", partitions=("orders/7",)),),
    "conflicts": {"orders/7": "g_other-0"},
    "missing_topics": ("orders/7",),
    "not_ready": ("waiting for orders/7",),
}
"""Fields of the status, and a value of each that names what the page must then name."""


def by_event() -> dict[str, list[Line]]:
    found: dict[str, list[Line]] = {}
    for line in lines():
        for event in line.events:
            found.setdefault(event, []).append(line)
    return found


@cache
def _attributes(function: ast.AST) -> frozenset[str]:
    return frozenset(ast.unparse(node) for node in _own(function) if isinstance(node, ast.Attribute))


def _tells(function: ast.AST, kind: Trouble) -> bool:
    """Whether a function tells the hooks of a trouble by its name."""
    named = _attributes(function)
    return f"Trouble.{kind.name}" in named and any(one.endswith("hooks.trouble") for one in named)


def test_every_warning_and_error_is_also_counted_and_on_the_page() -> None:
    """Whoever watches metrics, or looks at the page, must not miss what only the log says."""
    known = {kind.value for kind in Trouble} | SHOWN.keys() | EXEMPT.keys()
    logged = by_event()

    assert {
        event: [(one.module, one.line) for one in found] for event, found in logged.items() if event not in known
    } == {}
    assert (SHOWN.keys() | EXEMPT.keys()) - logged.keys() == set(), "nobody logs these any more"
    assert not SHOWN.keys() & {kind.value for kind in Trouble}


def test_whoever_logs_a_trouble_tells_it_in_the_same_function() -> None:
    """A kind that nobody tells would look as if it never happened."""
    logged = by_event()
    silent = [
        (line.module, line.line)
        for kind in Trouble
        for line in logged.get(kind.value, [])
        if not _tells(line.function, kind)
    ]

    assert silent == []


def test_a_line_whose_event_is_handed_in_tells_the_trouble_that_was_handed_in() -> None:
    """Some functions log for others; each takes a Trouble, writes its name and tells it."""
    handed = {line.module: line for line in lines() if not line.events}

    assert handed.keys() == {"group/owners.py", "group/reports.py", "offsets/requests.py"}
    for line in handed.values():
        assert isinstance(line.function, ast.FunctionDef)
        assert {
            ast.unparse(one.annotation) for one in line.function.args.args if one.arg == "event" and one.annotation
        } == {"Trouble"}
        assert any(ast.unparse(node).startswith("self._hooks.trouble(event, ") for node in _own(line.function))
    kinds = {kind for kind in Trouble if kind.value not in by_event()}  # nobody names these in the line that logs
    source = [path.read_text() for module in handed for path in (PACKAGE / module).parent.rglob("*.py")]
    assert [kind for kind in kinds if not any(f"(Trouble.{kind.name}, " in text for text in source)] == []


def test_a_failure_is_found_at_any_level() -> None:
    """One that is logged for developers alone would be in no metric, and nobody would look for it."""
    found = [
        _names(call.args[0])
        for function in _functions(
            ast.parse(
                "def f():\n"
                "    log.debug('asked')\n"
                "    try:\n        ask()\n"
                "    except OSError as error:\n        if error.errno:\n            self._log.debug('failed', error=error)\n"
            )
        )
        for call in _logging_calls(function)
    ]

    assert [{"failed"}] == found


def test_the_daemon_gives_its_hooks_to_everybody_who_takes_some() -> None:
    """They are optional for commands, which print; a part of the daemon without them would tell nobody."""
    trees = {path.relative_to(PACKAGE).as_posix(): parse_file(path) for path in PACKAGE.rglob("*.py")}
    takers = {
        node.name
        for module, tree in trees.items()
        if not module.startswith(NO_DAEMON)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for method in node.body
        if isinstance(method, ast.FunctionDef) and method.name == "__init__"
        if "hooks" in {one.arg for one in (*method.args.args, *method.args.kwonlyargs)}
    }
    forgotten = [
        (module, node.lineno)
        for module, tree in trees.items()
        if not module.startswith((*COMMANDS, *NO_DAEMON))
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in takers
        if not any(
            ast.unparse(given).endswith("hooks") for given in (*node.args, *(one.value for one in node.keywords))
        )
    ]

    assert "ZkSession" in takers
    assert forgotten == []


@pytest.mark.parametrize(("event", "shown"), [(event, one) for event, one in SHOWN.items() if isinstance(one, Hook)])
def test_the_hook_that_is_said_to_tell_of_an_event_is_called(event: str, shown: Hook) -> None:
    """The table above is checked against the code, as far as that goes."""
    called = {
        node.func.attr
        for node in ast.walk(parse_file(PACKAGE / shown.module))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    }

    assert shown.name in called, event


@pytest.mark.parametrize("hook", sorted({one.name for one in SHOWN.values() if isinstance(one, Hook)} | {"trouble"}))
def test_each_hook_moves_a_series_and_leaves_a_line(hook: str) -> None:
    """A hook that nobody listens to shows nothing."""
    registry = CollectorRegistry()
    counters, recent = MetricsHooks(registry), RecentEvents(lambda: 0.0)
    before = _total(registry)
    CALLS[hook](counters)
    CALLS[hook](recent)

    gauges = {one.metric for one in SHOWN.values() if isinstance(one, Hook) and one.name == hook and one.metric}
    assert _total(registry) > before or (gauges and gauges <= {spec.name for spec in GAUGES})
    fields = {one.page for one in SHOWN.values() if isinstance(one, Hook) and one.name == hook and one.page}
    if fields:
        assert all("orders/7" in _page(**{field: SHOWS[field]}) for field in fields)
    else:
        (event,) = recent.events()
        assert event.what in _page(events=(event,))


@pytest.mark.parametrize("shown", [one for one in SHOWN.values() if isinstance(one, Status)])
def test_what_the_status_shows_has_a_gauge_and_a_place_on_the_page(shown: Status) -> None:
    """Read anew at each look, so that it goes when its cause goes."""
    assert shown.gauge in {spec.name for spec in GAUGES}
    assert "orders/7" in _page(**{shown.field: SHOWS[shown.field]})


def _page(**fields: object) -> str:
    bare = replace(STATUS, conflicts={}, partitions=())
    return render_page(replace(bare, **fields))  # type: ignore[arg-type]  # the tables' names are the fields'


def _total(registry: CollectorRegistry) -> float:
    """Return all that is counted, together: that a series is there, at nought, tells nobody."""
    return sum(
        sample.value
        for family in registry.collect()
        for sample in family.samples
        if not sample.name.endswith("_created")
    )
