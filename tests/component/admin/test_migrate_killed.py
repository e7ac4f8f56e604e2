# SPDX-License-Identifier: Apache-2.0
"""``migrate cutover`` and ``rollback``, killed at each of their requests, and run again."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, redirect_stdout
from dataclasses import dataclass, replace
from io import StringIO
from itertools import count
from typing import Final

import pytest
from confluent_kafka import Consumer, TopicPartition
from kazoo.client import KazooClient

from consumerd.access.address import ClusterAddress
from consumerd.cli.main import DONE, main
from consumerd.mirror.checkpoint import decode_checkpoint
from consumerd.mirror.journal import CutoverEntry, CutoverState
from tests.support.embedded import EmbeddedThread
from tests.support.kafka import free_port
from tests.support.mirroring import read_journal, read_topic
from tests.support.proxy_thread import ProxyThread
from tests.support.registry import open_registry
from tests.support.seeds import some_of
from tests.support.small_mirror import GROUP, SmallMirror
from tests.support.sudden_end import Moment, SuddenEnd, list_moments, run_losing, run_until
from tests.support.zookeeper import run_server

pytestmark = [pytest.mark.records, pytest.mark.timeout(240)]

SOURCE, TARGET, ZOOKEEPER = "source", "target", "zookeeper"
WRITES: Final = frozenset({"PRODUCE", "OFFSET_COMMIT", "CREATE_TOPICS", "INIT_PRODUCER_ID", "set", "create", "multi"})
"""Requests that change something."""
NONE: Final = -1001
POSITIONS: Final = {0: 12, 1: 20}
CUTOVER: Final = [
    CutoverState.PLANNED,
    CutoverState.STOPPED,
    CutoverState.MIRRORED,
    CutoverState.TRANSLATED,
    CutoverState.VERIFIED,
    CutoverState.DONE,
]


@dataclass(frozen=True)
class Outcome:
    """All that a command leaves behind for one group, but for names and times."""

    here: Mapping[str, Sequence[int]]
    there: Sequence[int]
    checkpoints: frozenset[tuple[str, int, int, int]]
    entry: CutoverEntry | None


class Place:
    """Two clusters and a ZooKeeper behind proxies, and a mirror that has copied ``orders``."""

    def __init__(self, source: EmbeddedThread, target: EmbeddedThread, registry: KazooClient, end: SuddenEnd) -> None:
        self.source = source
        self.target = target
        self._registry = registry
        self.end = end

    def name(self, command: str, group: str, *options: str) -> list[str]:
        """Return a command's arguments."""
        addresses = ["-z", self.source.zookeeper, "--target", self.target.bootstrap, "--mirror-group", GROUP]
        arguments = ["migrate", command, *addresses, "--timeout", "20", *options]
        return [*arguments, "-g", group] if group else arguments

    def put(self, group: str, positions: Mapping[int, int]) -> None:
        """Write a group's positions to ZooKeeper and to Kafka, as members do that commit to both."""
        for partition, offset in positions.items():
            path = f"/consumers/{group}/offsets/orders/{partition}"
            self._registry.ensure_path(path)
            self._registry.set(path, b"%d" % offset)
        commit(self.source, group, positions)

    def read_on(self, group: str, count: int) -> None:
        """Move the group's positions in the target on, as its members do."""
        commit(self.target, group, {one: at + count for one, at in enumerate(committed(self.target, group))})

    def look(self, group: str) -> Outcome:
        """Return what is stored of a group, whose name is that of its checkpoints, too."""
        rows = read_topic(self.target.bootstrap, f"{group}.checkpoints.internal")
        found = {decode_checkpoint(key or b"", value or b"") for key, value in rows}
        entries = self.read_journal(group)
        return Outcome(
            here={
                ZOOKEEPER: [int(self._registry.get(f"/consumers/{group}/offsets/orders/{one}")[0]) for one in (0, 1)],
                SOURCE: committed(self.source, group),
            },
            there=committed(self.target, group),
            checkpoints=frozenset((one.topic, one.partition, one.source, one.target) for one in found),
            entry=replace(entries[-1], written_ms=0) if entries else None,
        )

    def read_journal(self, group: str) -> list[CutoverEntry]:
        """Return all entries of a group's journal, the oldest first."""
        return read_journal(self.target.bootstrap, group)

    def run(self, arguments: Sequence[str]) -> None:
        """Run a command that must succeed."""
        assert main(arguments) == DONE, arguments


def commit(cluster: EmbeddedThread, group: str, positions: Mapping[int, int]) -> None:
    with_group = {"bootstrap.servers": cluster.bootstrap, "group.id": group, "enable.auto.commit": False}
    consumer = Consumer(with_group)
    consumer.commit(offsets=[TopicPartition("orders", *one) for one in positions.items()], asynchronous=False)
    consumer.close()


def committed(cluster: EmbeddedThread, group: str) -> list[int]:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group, "enable.auto.commit": False})
    found = consumer.committed([TopicPartition("orders", one) for one in (0, 1)], timeout=20)
    consumer.close()
    return [one.offset for one in found]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    end = SuddenEnd()
    with ExitStack() as stack:
        server = stack.enter_context(run_server())

        def start(name: str, zookeeper: str | None) -> EmbeddedThread:
            port = free_port()
            proxy = stack.enter_context(ProxyThread(port))
            proxy.decide(end.hook_kafka(name))
            folder = tmp_path_factory.mktemp(name)
            return stack.enter_context(EmbeddedThread(folder, zookeeper, port=port, advertised_port=proxy.port))

        to_zookeeper = stack.enter_context(ProxyThread(int(server.connect_string.rpartition(":")[2])))
        to_zookeeper.decide(end.hook_zookeeper(ZOOKEEPER))
        source, target = start(SOURCE, f"{server.connect_string}/old"), start(TARGET, None)
        source.create_topic("orders", 2)
        source.produce("orders", b"".join(b"k%d\tv%d\n" % (number, number) for number in range(100)))
        mirror = SmallMirror(ClusterAddress(zookeeper=source.zookeeper, client_id="small-mirror"), target.bootstrap)
        mirror.create_topics({"orders": 2})
        mirror.copy("orders", 2)
        registry = stack.enter_context(open_registry(source.zookeeper))
        source.zookeeper = f"{to_zookeeper.address}/old"
        place = Place(source, target, registry.client, end)
        # coordinators of both clusters are asked for the first time, which takes them some tries
        place.put("first", POSITIONS)
        place.run(place.name("cutover", "first"))
        yield place


GROUPS: Final = count(1)
"""Numbers of groups: each case has a group and checkpoints of its own."""


@dataclass(frozen=True)
class Case:
    """One group, and what becomes of it."""

    place: Place
    group: str

    @property
    def cutover(self) -> list[str]:
        """Arguments of the cut-over."""
        return self.place.name("cutover", self.group, "--alias", self.group)

    @property
    def rollback(self) -> list[str]:
        """Arguments of the way back."""
        return self.place.name("rollback", self.group, "--yes")

    def look(self) -> Outcome:
        """Return what is stored of the group."""
        return self.place.look(self.group)

    def read_states(self) -> list[CutoverState]:
        """Return the states in the journal, the oldest first."""
        return [one.state for one in self.place.read_journal(self.group)]


def begin(place: Place, *, cut_over: bool) -> Case:
    """Return a group with positions in the source; with ``cut_over`` it has read on in the target."""
    case = Case(place, f"group-{next(GROUPS)}")
    place.put(case.group, POSITIONS)
    if cut_over:
        place.run(case.cutover)
        place.read_on(case.group, 3)
    return case


@dataclass(frozen=True)
class Undisturbed:
    """Requests of a run that nothing disturbs, its outcome, and the states in its journal."""

    seen: Sequence[tuple[str, str]]
    outcome: Outcome
    states: Sequence[CutoverState]

    def list_writes(self) -> list[Moment]:
        """Return all moments of requests that change something."""
        return [one for one in list_moments(self.seen) if one.request in WRITES]


@pytest.fixture(scope="module")
def cut_over(place: Place) -> Undisturbed:
    case = begin(place, cut_over=False)
    with place.end.watch():
        place.run(case.cutover)
    return Undisturbed(place.end.seen, case.look(), case.read_states())


@pytest.fixture(scope="module")
def rolled_back(place: Place) -> Undisturbed:
    case = begin(place, cut_over=True)
    with place.end.watch():
        place.run(case.rollback)
    return Undisturbed(place.end.seen, case.look(), case.read_states())


def test_moments_of_a_cutover_are_all_its_writes(cut_over: Undisturbed, rolled_back: Undisturbed) -> None:
    """What the tests below kill at is every step; else they would prove nothing of it."""
    assert Counter((one.server, one.request) for one in cut_over.list_writes() if one.answered) == {
        (TARGET, "INIT_PRODUCER_ID"): 1,
        (TARGET, "PRODUCE"): len(CUTOVER) + 1,  # and checkpoints
        (TARGET, "OFFSET_COMMIT"): 1,
        (TARGET, "CREATE_TOPICS"): 1,
    }
    assert Counter((one.server, one.request) for one in rolled_back.list_writes() if one.answered) == {
        (TARGET, "INIT_PRODUCER_ID"): 1,
        (ZOOKEEPER, "multi"): 2,
        (SOURCE, "OFFSET_COMMIT"): 2,
        (TARGET, "PRODUCE"): 1,
    }
    assert (cut_over.states, rolled_back.states) == (CUTOVER, [*CUTOVER, CutoverState.RETURNED])
    assert (cut_over.outcome.there, cut_over.outcome.here[SOURCE]) == ([13, 22], [12, 20])
    assert rolled_back.outcome.here == {ZOOKEEPER: [14, 22], SOURCE: [14, 22]}


def test_a_cutover_killed_before_its_commit_has_noted_nothing_of_it(place: Place, cut_over: Undisturbed) -> None:
    """The journal follows what is done: a state that was noted before would be believed by the next run."""
    case = begin(place, cut_over=False)
    moment = Moment(TARGET, "OFFSET_COMMIT", 1, answered=False)

    assert run_until(place.end, moment, case.cutover)

    assert case.read_states() == CUTOVER[: CUTOVER.index(CutoverState.TRANSLATED)]
    assert committed(place.target, case.group) == [NONE, NONE]
    place.run(case.cutover)
    assert case.look() == cut_over.outcome
    assert case.read_states() == CUTOVER


def test_a_rollback_killed_between_zookeeper_and_kafka_writes_both_again(
    place: Place, rolled_back: Undisturbed
) -> None:
    case = begin(place, cut_over=True)

    assert run_until(place.end, Moment(SOURCE, "OFFSET_COMMIT", 2, answered=False), case.rollback)

    assert case.look().here == {ZOOKEEPER: [14, 22], SOURCE: [14, 20]}
    place.run(case.rollback)
    assert case.look() == rolled_back.outcome


@pytest.mark.drawn
def test_a_cutover_killed_at_any_step_ends_as_an_undisturbed_one(place: Place, cut_over: Undisturbed) -> None:
    """Each step is in effect once, the journal has each state once, and the commands tell the truth in between."""
    reads = [one for one in list_moments(cut_over.seen, answered=[False]) if one.request not in WRITES]
    moments = some_of("writes of a cutover", cut_over.list_writes(), 3)
    for moment in [*moments, *some_of("reads of a cutover", reads, 1)]:
        case = begin(place, cut_over=False)
        assert run_until(place.end, moment, case.cutover), moment
        states = case.read_states()
        assert states == CUTOVER[: len(states)], moment
        assert committed(place.target, case.group) in ([NONE, NONE], cut_over.outcome.there), moment
        was_committed = committed(place.target, case.group) != [NONE, NONE]
        assert ask(place, "status", case.group) == {"same" if was_committed else "ready"}, moment

        with place.end.watch():
            place.run(case.cutover)

        assert case.look() == cut_over.outcome, moment
        assert case.read_states() == CUTOVER, moment
        assert ((TARGET, "OFFSET_COMMIT") in place.end.seen) == (not was_committed), moment
    place.run(place.name("verify", "", "--sample", "5"))


@pytest.mark.drawn
def test_a_rollback_killed_at_any_step_ends_as_an_undisturbed_one(place: Place, rolled_back: Undisturbed) -> None:
    """The group's positions were in ZooKeeper and in Kafka, and are in both again."""
    for moment in some_of("writes of a rollback", rolled_back.list_writes(), 3):
        case = begin(place, cut_over=True)
        there = committed(place.target, case.group)
        assert run_until(place.end, moment, case.rollback), moment
        assert committed(place.target, case.group) == there, moment
        assert ask(place, "rollback", case.group, "--dry-run") <= {"ready", "same"}, moment

        place.run(case.rollback)

        place.run(case.rollback)  # and once more, when nothing is left to do
        assert case.look() == rolled_back.outcome, moment
        assert case.read_states() == [*CUTOVER, CutoverState.RETURNED], moment


@pytest.mark.drawn
def test_lost_answers_of_a_cutover_repeat_nothing(place: Place, cut_over: Undisturbed) -> None:
    """The request was carried out, and the command is not told: it asks again, or says so and can be given again."""
    moments = [one for one in cut_over.list_writes() if one.answered]
    for moment in some_of("lost answers of a cutover", moments, 2):
        case = begin(place, cut_over=False)
        code, was_lost = run_losing(place.end, moment, case.cutover)
        assert was_lost, moment
        if code != DONE:
            place.run(case.cutover)
        assert case.look() == cut_over.outcome, moment
        assert case.read_states() == CUTOVER, moment


@pytest.mark.drawn
def test_lost_answers_of_a_rollback_repeat_nothing(place: Place, rolled_back: Undisturbed) -> None:
    moments = [one for one in rolled_back.list_writes() if one.answered]
    for moment in some_of("lost answers of a rollback", moments, 2):
        case = begin(place, cut_over=True)
        code, was_lost = run_losing(place.end, moment, case.rollback)
        assert was_lost, moment
        if code != DONE:
            place.run(case.rollback)
        assert case.look() == rolled_back.outcome, moment
        assert case.read_states() == [*CUTOVER, CutoverState.RETURNED], moment


def ask(place: Place, command: str, group: str, *options: str) -> set[str]:
    """Return the verdicts that a command tells of a group's partitions."""
    said = StringIO()
    with redirect_stdout(said):
        place.run(place.name(command, group, "--json", *options))
    return {json.loads(line)["verdict"] for line in said.getvalue().splitlines()}
