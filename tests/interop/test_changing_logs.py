# SPDX-License-Identifier: Apache-2.0
"""Partitions that move, topics that go and come back, logs that lose their end: whole daemons on two brokers that create
topics for whoever names them, as brokers do by default.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kazoo.exceptions import NoNodeError

from tests.interop.conftest import Figure, require
from tests.interop.test_hard_cases import numbered, produce, states, told, total
from tests.support.daemon import Daemon, settings_for
from tests.support.kafka import Cluster
from tests.support.landing_check import check_landing, wait_landed
from tests.support.landing_reader import LandedChain, read_landing
from tests.support.registry import Registry, open_registry
from tests.support.tcp_proxy import Action, Direction, TcpProxy
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.records, pytest.mark.drawn]

PARTITIONS = 4
CUTS = 100
BACKLOG = 16_000
REASSIGNMENT = "/admin/reassign_partitions"

Names = Callable[[str], str]


@pytest.fixture(scope="module")
def pair(release: str) -> Iterator[Cluster]:
    """Two brokers; what a test breaks it mends."""
    require(release)
    with Cluster(release, 2, properties={"auto.create.topics.enable": "true", "num.partitions": "1"}) as cluster:
        yield cluster


@pytest.fixture
def registry(pair: Cluster) -> Iterator[Registry]:
    with open_registry(pair.zookeeper) as opened:
        yield opened


def _wait_committed(member: Daemon, count: int, what: str) -> None:
    member.wait(lambda: total(member, "committed") == count, what, 40)


# -- a partition that moves


@pytest.mark.smoke
@pytest.mark.timeout(120)
def test_partitions_moved_to_another_broker_go_on_there(
    pair: Cluster, registry: Registry, unique: Names, tmp_path: Path, figure: Figure
) -> None:
    """All of them, to and fro while a backlog is read in small bites; the brokers that they leave drop their logs. After
    each move records flow from where they are then.
    """
    topic, group = unique("moves"), unique("moves")
    pair.create_topic(topic, PARTITIONS)
    ledger = produce(pair, topic, numbered("value", BACKLOG), PARTITIONS, batch_size="400")
    landing = tmp_path / "landing"
    settings = settings_for(
        pair.zookeeper,
        group,
        topics=(topic,),
        sink={"type": "jsonl", "path": str(landing), "roll_ms": 300},
        fetch={"max_partition_bytes": 400},
    )
    moves = 0
    with Daemon(tmp_path, "member", settings) as member:
        member.wait(lambda: total(member, "position") > 0, "records flow")
        while moves < 2 or total(member, "position") < len(ledger):
            before = _leaders(registry, topic)
            after = {partition: 1 - leader for partition, leader in before.items()}
            _reassign(registry, topic, after)
            wait_until(lambda after=after: _leaders(registry, topic) == after, "the partitions have moved", 40)
            wait_until(lambda: registry.client.exists(REASSIGNMENT) is None, "the controller is done", 40)
            moves += 1
            if (flowed := total(member, "position")) == len(ledger):  # all was read before the move
                pair.wait_topic(topic, PARTITIONS)
                ledger |= produce(pair, topic, numbered(f"behind move {moves}", 40), PARTITIONS)
                flowed = len(ledger) - 1
            member.wait(
                lambda flowed=flowed: total(member, "position") > flowed, "records flow from where they are now"
            )
        figure("moves", moves)
        member.wait(lambda: total(member, "committed") == len(ledger), "all has landed")
        assert states(member) == {"running": PARTITIONS}
        pair.wait_topic(topic, PARTITIONS)
        ledger |= produce(pair, topic, numbered("later", 40), PARTITIONS)
        wait_landed(landing, ledger)
        assert member.terminate() == 0
    check_landing(landing, ledger)


def _leaders(registry: Registry, topic: str, partitions: int = PARTITIONS) -> dict[int, int]:
    found = {}
    for partition in range(partitions):
        state = json.loads(registry.client.get(f"/brokers/topics/{topic}/partitions/{partition}/state")[0])
        found[partition] = state["leader"]
    return found


def _reassign(registry: Registry, topic: str, brokers: dict[int, int]) -> None:
    """Ask the controller, as kafka-reassign-partitions does."""
    partitions = [
        {"topic": topic, "partition": partition, "replicas": [broker]} for partition, broker in brokers.items()
    ]
    registry.client.create(REASSIGNMENT, json.dumps({"version": 1, "partitions": partitions}).encode())


# -- topics that go, and come back


@pytest.mark.smoke
@pytest.mark.timeout(120)
def test_a_topic_deleted_while_it_is_consumed_stays_deleted(
    pair: Cluster, registry: Registry, unique: Names, tmp_path: Path
) -> None:
    """The brokers make what a question names; for ten seconds of questions nobody names it."""
    topic, kept, group = unique("stays-deleted"), unique("kept"), unique("stays-deleted")
    pair.create_topic(topic, 2)
    pair.create_topic(kept, 2)
    produce(pair, topic, numbered("v", 100))
    node = f"/brokers/topics/{topic}"
    settings = settings_for(pair.zookeeper, group, topics=(topic, kept))
    with Daemon(tmp_path, "member", settings) as member:
        member.wait(lambda: total(member, "committed") == 100, "all is delivered")
        _delete(registry, topic)
        asked = _requests(member)
        assert not _appears(registry, node, within_s=10.0)
        assert _requests(member) > asked, "nothing was asked in this time"
        produce(pair, kept, numbered("still", 50))
        member.wait(lambda: len(member.deliveries) == 150, "the other topic flows")
        assert member.status()["missing_topics"] == [topic]
        assert member.terminate() == 0
    assert registry.client.exists(node) is None
    # and a question that names it does make it, so that this test can fail: Kafka's own tool asks one
    with contextlib.suppress(RuntimeError):
        pair.run_tool("kafka.tools.ConsoleProducer", "--broker-list", pair.bootstrap, "--topic", topic, stdin=b"x\n")
    assert _appears(registry, node, within_s=10.0)


def _requests(member: Daemon) -> float:
    """Return how many requests brokers have answered it."""
    lines = member.get("/metrics")[1].splitlines()
    return sum(
        float(line.rpartition(" ")[2]) for line in lines if line.startswith("consumerd_broker_request_seconds_count")
    )


def _appears(registry: Registry, node: str, *, within_s: float) -> bool:
    """Whether a node is made within so many seconds."""
    try:
        wait_until(lambda: registry.client.exists(node) is not None, f"{node} is made", within_s, 0.02)
    except TimeoutError:
        return False
    return True


def _delete(registry: Registry, topic: str) -> None:
    """Ask the controller to delete a topic, as TopicCommand does, and wait until it is gone."""
    registry.client.create(f"/admin/delete_topics/{topic}")
    wait_until(lambda: registry.client.exists(f"/brokers/topics/{topic}") is None, f"{topic} is gone", 40)
    wait_until(lambda: registry.client.exists(f"/admin/delete_topics/{topic}") is None, f"all of {topic} is gone", 40)


def _make(registry: Registry, topic: str, partitions: int = 2) -> None:
    """Make a topic at once, as TopicCommand does, so that nobody has time to see that there was none."""
    with contextlib.suppress(NoNodeError):
        registry.client.delete(f"/config/topics/{topic}")
    registry.client.create(f"/config/topics/{topic}", b'{"version":1,"config":{}}')
    assignment = {str(partition): [partition % 2] for partition in range(partitions)}
    registry.client.create(f"/brokers/topics/{topic}", json.dumps({"version": 1, "partitions": assignment}).encode())


@pytest.mark.smoke
@pytest.mark.timeout(150)
def test_topics_made_again_under_a_running_daemon_are_read_from_their_beginning(
    pair: Cluster, registry: Registry, unique: Names, tmp_path: Path
) -> None:
    """One with more records than before, where the old position is a valid one, and one with fewer, where it is not."""
    _read_what_is_made_again(pair, registry, unique, tmp_path, running=True)


@pytest.mark.timeout(150)
def test_topics_made_again_while_nobody_looks_are_read_from_their_beginning(
    pair: Cluster, registry: Registry, unique: Names, tmp_path: Path
) -> None:
    """The same, where only the stored positions and the landed chains know of the topics before."""
    _read_what_is_made_again(pair, registry, unique, tmp_path, running=False)


def _read_what_is_made_again(
    pair: Cluster, registry: Registry, unique: Names, tmp_path: Path, *, running: bool
) -> None:
    longer, shorter, group = unique("longer"), unique("shorter"), unique("made-again")
    landing = tmp_path / "landing"
    sink = {"type": "jsonl", "path": str(landing), "roll_ms": 300}
    settings = settings_for(pair.zookeeper, group, topics=(longer, shorter), sink=sink)
    sizes = {longer: (60, 200), shorter: (60, 20)}
    expected: dict[str, Counter[bytes]] = {topic: Counter() for topic in sizes}
    with contextlib.ExitStack() as stack:
        member = stack.enter_context(Daemon(tmp_path, "first", settings))
        for turn in range(2):
            for topic in sizes:
                if turn:
                    _delete(registry, topic)
                _make(registry, topic)
            for topic, counts in sizes.items():
                pair.wait_topic(topic, 2)
                values = numbered(f"{topic} {turn}", counts[turn])
                expected[topic].update(values)
                produce(pair, topic, values)
            if turn and not running:
                member = stack.enter_context(Daemon(tmp_path, "second", settings))
            count = sum(counts[turn] for counts in sizes.values())
            _wait_committed(member, count, f"turn {turn} has landed")
            member.wait_ready()
            if not turn and not running:
                assert member.terminate() == 0
        again = member.events("topic_made_again")
        assert {(one["topic"], one["partition"]) for one in again} == {(one, part) for one in sizes for part in "01"}
        assert member.terminate() == 0

    read = read_landing(landing)
    assert read.problems == []
    for topic in sizes:
        ours = [one for one in read.partitions.values() if one.topic == topic]
        assert Counter(record.value for one in ours for record in one.records) == expected[topic]
        for one in ours:
            first, second = one.chains
            assert first.incarnation != second.incarnation
            assert second.record["origin"] == 0


# -- an election that loses records


@pytest.mark.smoke
@pytest.mark.timeout(200)
def test_a_log_that_lost_its_end_in_an_unclean_election(
    pair: Cluster, registry: Registry, unique: Names, tmp_path: Path
) -> None:
    """Offsets are given out a second time: what they name now is kept apart from what they named before."""
    topic = unique("unclean")
    pair.create_topic(topic, 1, 2, unclean_leader_election_enable="true")
    choices = ("nearest", "earliest", "stop")
    settings = {
        choice: settings_for(
            pair.zookeeper,
            f"{topic}-{choice}",
            topics=(topic,),
            sink={"type": "jsonl", "path": str(tmp_path / choice), "roll_ms": 300},
            offsets={"on_above": choice},
        )
        for choice in choices
    }
    kept, lost, new, newest = (numbered(stem, count) for stem, count in
                               (("kept", 100), ("lost", 50), ("new", 20), ("newest", 10)))  # fmt: skip
    produce(pair, topic, kept, 1)
    leader = _leaders(registry, topic, 1)[0]
    follower = 1 - leader
    with contextlib.ExitStack() as stack:
        members = {one: stack.enter_context(Daemon(tmp_path, f"{one}-1", settings[one])) for one in choices}
        for member in members.values():
            _wait_committed(member, 100, "what is kept has landed")
        pair.stop(f"broker-{follower}")
        wait_until(lambda: _isr(registry, topic) == [leader], "the leader is alone", 40)
        produce(pair, topic, lost, 1, bootstrap_servers=f"127.0.0.1:{pair.ports[leader]}")
        for member in members.values():
            _wait_committed(member, 150, "what will be lost has landed")
        pair.stop(f"broker-{leader}")
        pair.start_broker(follower)
        wait_until(lambda: _leaders(registry, topic, 1) == {0: follower}, "the one that had stopped leads", 40)
        members["stop"].wait(lambda: states(members["stop"]) == {"stopped": 1}, "it has stopped", 40)
        for one in ("nearest", "earliest"):
            _wait_committed(members[one], 100, "it has moved")
            assert {"position reset", "log truncated"} <= set(told(members[one]))
            (truncated,) = members[one].events("log_truncated")
            assert (truncated["landed"], truncated["latest"]) == (150, 100)
            labels = f'partition="0",reason="on_above",topic="{topic}"'
            assert f"consumerd_position_resets_total{{{labels}}} 1.0" in members[one].get("/metrics")[1]
        alone = f"127.0.0.1:{pair.ports[follower]}"
        produce(pair, topic, new, 1, bootstrap_servers=alone)
        for one in ("nearest", "earliest"):
            _wait_committed(members[one], 120, "what is new has landed")
        code, reasons = members["stop"].get("/readyz")
        assert code == 200
        assert "consumerd offsets set" in reasons
        assert all(member.terminate() == 0 for member in members.values())
        pair.start_broker(leader)

        produce(pair, topic, newest, 1)
        again = {one: stack.enter_context(Daemon(tmp_path, f"{one}-2", settings[one])) for one in choices}
        for one in ("nearest", "earliest"):
            _wait_committed(again[one], 130, "a restart goes on")
        again["stop"].wait(lambda: states(again["stop"]) == {"stopped": 1}, "it is stopped as before")
        assert all(member.terminate() == 0 for member in again.values())

    chains = {one: _chains(tmp_path / one) for one in choices}
    before, after = kept + lost, kept + new + newest
    assert [_values(chain) for chain in chains["stop"]] == [before]
    assert [_values(chain) for chain in chains["nearest"]] == [before, new + newest]
    assert [_values(chain) for chain in chains["earliest"]] == [before, after]
    for one in ("nearest", "earliest"):
        first, second = chains[one]
        assert second.incarnation == (first.incarnation[0], 1)
        assert (second.record["origin"], second.record["reason"]) == (100 if one == "nearest" else 0, "on_above")


def _isr(registry: Registry, topic: str) -> list[int]:
    state = json.loads(registry.client.get(f"/brokers/topics/{topic}/partitions/0/state")[0])
    return list(state["isr"])


def _chains(landing: Path) -> list[LandedChain]:
    read = read_landing(landing)
    assert read.problems == []
    (partition,) = read.partitions.values()
    return partition.chains


def _values(chain: LandedChain) -> list[bytes | None]:
    return [record.value for file in chain.files for record in file.records]


# -- connections that end in the middle


@pytest.mark.timeout(150)
async def test_answers_of_a_real_broker_cut_at_byte_after_byte(release: str, unique: Names, tmp_path: Path) -> None:
    """Answers to the daemon, whatever they are, end one byte later than the last one that ended too soon."""
    require(release)
    cluster = Cluster(release)
    async with TcpProxy(cluster.ports[0]) as proxy:
        cluster.properties = {"advertised.port": str(proxy.port)}
        with contextlib.ExitStack() as stack:
            await asyncio.to_thread(stack.enter_context, cluster)
            await asyncio.to_thread(_consume_through_cuts, cluster, proxy, unique, tmp_path)


class Cutter:
    """Ends answers in the middle, one in three; the proxy's hook."""

    def __init__(self, proxy: TcpProxy) -> None:
        self._proxy = proxy
        self._random = random.Random(8)
        self.cuts = 0

    def __call__(self, direction: Direction, frame: bytes) -> Action:
        if direction is Direction.TO_CLIENT and self.cuts < CUTS and self._random.random() < 1 / 3:
            self._proxy.truncate_next(min(self.cuts, len(frame) - 1))
            self.cuts += 1
        return Action.FORWARD


def _consume_through_cuts(cluster: Cluster, proxy: TcpProxy, unique: Names, folder: Path) -> None:
    topic, group = unique("cut"), unique("cut")
    cluster.create_topic(topic, 2)
    ledger = produce(cluster, topic, [f"value {one} {'x' * 200}".encode() for one in range(1000)], batch_size="400")
    landing = folder / "landing"
    settings = settings_for(
        cluster.zookeeper,
        group,
        topics=(topic,),
        sink={"type": "jsonl", "path": str(landing), "roll_ms": 300},
        fetch={"max_partition_bytes": 1000, "max_response_bytes": 2000, "max_wait_ms": 50},
    )
    cutter = Cutter(proxy)
    proxy.on_frame = cutter
    with Daemon(folder, "member", settings) as member:
        member.wait(lambda: cutter.cuts == CUTS, "so many answers were cut", 90)
        member.wait(lambda: total(member, "committed") == 1000, "all has landed", 40)
        member.wait_ready()
        assert "consumerd_broker_request_failures_total" in member.get("/metrics")[1]
        assert member.terminate() == 0
    check_landing(landing, ledger)
