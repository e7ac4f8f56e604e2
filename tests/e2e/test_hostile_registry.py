# SPDX-License-Identifier: Apache-2.0
"""A whole daemon and a whole embedded broker under hostile znodes and hostile broker answers.

Decoders are tested with far more values elsewhere. Here the code around them must not fail: tasks, watches, plans, the
status page. After each round a new topic is created, and the daemon must find, claim and consume it.
"""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException

from tests.support.daemon import Daemon, settings_for
from tests.support.embedded import EmbeddedProcess
from tests.support.hostile_server import HostileServer
from tests.support.lying_broker import LyingBroker
from tests.support.memory import read_memory
from tests.support.registry import open_registry
from tests.support.seeds import draw_seed
from tests.support.topic_nodes import create_topic_nodes

pytestmark = pytest.mark.drawn

GROUP, GOOD, OTHER, EVIL = "lake", "good", "other", "evil"
EVIL_BROKERS: Final = range(7, 13)
"""Broker ids of one hostile server: each has a connection and back-off of its own, so that more is asked in less time."""
LYING_BROKERS: Final = range(20, 26)
LIES: Final = 10
"""Metadata responses that are told before the liar goes."""
ROUNDS_BETWEEN_CHECKS: Final = 10
MAX_GROWTH_MIB: Final = 200
"""Resident memory that all rounds may add. The largest values have 900 KB."""

DIGITS: Final = b"9" * 5_000
VALUES: Final = (
    b"",
    b"\xff\xfe\x00",
    b"[" * 100_000,
    b'{"a":' * 50_000,
    DIGITS,
    b"-" + DIGITS,
    b"null",
    b'"\\ud800"',
    b"[1,2,3]",
    b"x" * 900_000,
    b"a:b:1",
    json.dumps({"version": 1, "subscription": {GOOD: 10**9}, "pattern": "static", "timestamp": "1"}).encode(),
    json.dumps({"version": 1, "subscription": {"(a+)+b": 1}, "pattern": "white_list", "timestamp": "1"}).encode(),
    json.dumps({"version": 1, "subscription": {"\ud800": 1}, "pattern": "black_list", "timestamp": "1"}).encode(),
    json.dumps({"version": 1, "partitions": {"0": [2**31], str(2**40): [0], "-1": [], "0-1": [1]}}).encode(),
    json.dumps({"version": 1, "partitions": {str(number): [0] for number in range(2_000)}}).encode(),
    json.dumps({"leader": 2**40, "leader_epoch": 2**62, "isr": [2**33], "controller_epoch": 10**18}).encode(),
    json.dumps({"version": 4, "endpoints": ["PLAINTEXT://[" * 1000], "host": "\ud800", "port": 10**30}).encode(),
    json.dumps({"version": 1, "config": {"retention.ms": "9" * 4000, "segment.bytes": "-1"}}).encode(),
    json.dumps({"version": 1, "id": "x", "position": 2**63, "new_chain": True, "author": "a", "created_ms": 10**18}).encode(),
    json.dumps({"version": 1, "id": "x", "position": 2**62, "new_chain": True, "author": "\ud800", "created_ms": 1}).encode(),
)  # fmt: skip
NAMES: Final = ("9" * 5_000, str(2**31), "-1", "0-1", "a" * 5_000, "%2e%2e", "\u0661", "(a+)+b", "x\u2028y")


def hostile_paths(number: int) -> list[str]:
    """Return nodes that the daemon or the broker reads; where there can be several, each number has its own."""
    consumers = f"/consumers/{GROUP}"
    other = f"{OTHER}-{number}"
    return [
        f"/brokers/ids/{100 + number}",
        f"/brokers/topics/{other}",
        f"/brokers/topics/{other}/partitions/0/state",
        f"/config/topics/{GOOD}",
        f"/config/topics/{other}",
        f"/config/changes/config_change_{number:010}",
        "/controller_epoch",
        "/latest_producer_id_block",
        "/cluster/id",
        f"{consumers}/ids/{GROUP}_other-{number}",
        f"{consumers}/owners/{other}/0",
        f"{consumers}/offsets/{other}/0",
        f"{consumers}/offsets/{GOOD}/0",
        f"{consumers}/consumerd/requests/{other}/0",
        f"{consumers}/consumerd/requests/{GOOD}/0",
        f"{consumers}/consumerd/roots/out",
        f"{consumers}/consumerd/quarantine_root",
    ]


def hostile_parents() -> list[str]:
    """Return nodes whose children are listed."""
    consumers = f"/consumers/{GROUP}"
    return [
        "/brokers/ids",
        "/brokers/topics",
        "/config/topics",
        "/config/changes",
        "/admin/delete_topics",
        f"{consumers}/ids",
        f"{consumers}/owners/{GOOD}",
        f"{consumers}/offsets/{GOOD}",
        f"{consumers}/consumerd/requests",
        f"{consumers}/consumerd/requests/{GOOD}",
        f"{consumers}/consumerd/members",
    ]


def remove_foreign_brokers(client: KazooClient) -> None:
    """Remove registrations that other tests have left: no process holds them, so a start would refuse the cluster."""
    for name in client.get_children("/brokers/ids"):
        if not client.get(f"/brokers/ids/{name}")[1].ephemeralOwner:
            client.delete(f"/brokers/ids/{name}")


def put(client: KazooClient, path: str, data: bytes) -> None:
    """Write a node, or create it. Names that ZooKeeper itself refuses are left out."""
    with contextlib.suppress(KazooException, ValueError):
        if client.exists(path):
            client.set(path, data)
        else:
            client.create(path, data, makepath=True)


class Rig:
    """A broker and a daemon as processes."""

    def __init__(self, broker: EmbeddedProcess, daemon: Daemon, client: KazooClient) -> None:
        self.broker, self.daemon, self.client = broker, daemon, client
        self._checks = 0

    def check(self, after: str) -> None:
        """Send a record through a new topic: both processes must read the registry again for it."""
        self._checks += 1
        topic = f"new-{self._checks}"
        # not awaited by asking for all topics: librdkafka fails on answers that list many topics without partitions
        create_topic_nodes(self.client, topic, 1, {})
        self.broker.produce(topic, b"k\tv\n")
        assert self.broker.process.poll() is None, f"the broker ended after {after}:\n{self.broker.log()[-3000:]}"
        assert self.daemon.get("/")[0] == 200
        self.daemon.wait(
            lambda: any(one.topic == topic for one in list(self.daemon.deliveries)),
            f"the record in {topic} is delivered after {after}",
            60,
        )


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Start both once for all tests, with a subscription that matches every name."""
    folder = tmp_path_factory.mktemp("hostile")
    with EmbeddedProcess(folder / "broker", "--as-release", "0.10") as broker:
        broker.create_topic(GOOD)
        broker.create_topic(OTHER, 2)
        settings = settings_for(
            broker.zookeeper,
            GROUP,
            pattern=".*",
            # pinned, so that the hostile broker is asked for more than its versions
            cluster={"broker_version": "0.10.2"},
            offsets={"commit_interval_ms": 100},
            log={"level": "info"},
        )
        with Daemon(folder, "d", settings) as daemon, open_registry(broker.zookeeper) as registry:
            daemon.wait_ready()
            rig = Rig(broker, daemon, registry.client)
            rig.check("the start")
            before = read_memory(daemon.process.pid).resident
            yield rig
            assert daemon.status()["session_epoch"] == 1, "the loop was held for longer than a session lasts"
            assert read_memory(daemon.process.pid).resident - before < MAX_GROWTH_MIB
            assert daemon.terminate() == 0, daemon.log()[-3000:]
            assert broker.stop() == 0, broker.log()[-3000:]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_value_in_any_node_ends_or_stalls_a_process(rig: Rig) -> None:
    """A damaged node may stop the partition or member that it describes, and nothing else."""
    for number, value in enumerate(VALUES):
        for path in hostile_paths(number):
            put(rig.client, path, value)
        if number % ROUNDS_BETWEEN_CHECKS == 0 or value is VALUES[-1]:
            rig.check(f"{value[:60]!r} and those before")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_name_of_a_node_ends_or_stalls_a_process(rig: Rig) -> None:
    """Names are read as broker ids, topics, partitions and sessions."""
    for number, name in enumerate(NAMES):
        for parent in hostile_parents():
            put(rig.client, f"{parent}/{name}", b"1")
        if number % 4 == 0:
            rig.check(f"nodes named {name[:40]!r} and those before")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_mutated_value_ends_or_stalls_a_process(rig: Rig) -> None:
    """Contents of real nodes, cut, doubled, and with values of other types; a failure names the seed."""
    seed = draw_seed("mutated values of nodes")
    chance = random.Random(seed)
    topic, members = f"/brokers/topics/{GOOD}", f"/consumers/{GROUP}/ids"
    member = f"{members}/{rig.client.get_children(members)[0]}"
    real = [rig.client.get(path)[0] for path in ("/brokers/ids/0", topic, f"{topic}/partitions/0/state", member)]
    for number in range(2):
        for path in [path for each in range(6) for path in hostile_paths(1_000 * (1 + number) + each)]:
            put(rig.client, path, mutate(chance, chance.choice(real)))
        rig.check(f"round {number} of seed {seed}")


def mutate(chance: random.Random, data: bytes) -> bytes:
    """Return a node's content with up to three damages."""
    values = (b"null", b"-1", b"1e999", DIGITS, b"[]", b"{}", b'""', b"true", b"\xff", b'"9"', b"99999999999999999999")
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(len(data) + 1)
        to = min(len(data), at + chance.randrange(12))
        data = chance.choice((data[:at], data[:at] + chance.choice(values) + data[to:], data + data[at:]))
    return data


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_answer_of_a_broker_ends_or_stalls_the_daemon(rig: Rig) -> None:
    """Partitions of a broker with malformed answers wait; all others are consumed."""
    seed = draw_seed("answers of a hostile broker")
    with HostileServer(seed) as server:
        address = {"version": 1, "host": "127.0.0.1", "port": server.port, "jmx_port": -1, "timestamp": "1"}
        for broker in EVIL_BROKERS:
            put(rig.client, f"/brokers/ids/{broker}", json.dumps(address).encode())
            state = {"controller_epoch": 1, "leader": broker, "version": 1, "leader_epoch": 0, "isr": [broker]}
            put(rig.client, f"/brokers/topics/{EVIL}/partitions/{broker}/state", json.dumps(state).encode())
        led = {"version": 1, "partitions": {str(broker): [broker] for broker in EVIL_BROKERS}}
        put(rig.client, f"/brokers/topics/{EVIL}", json.dumps(led).encode())
        for number in range(2):
            wanted = server.requests + 10
            rig.daemon.wait(lambda wanted=wanted: server.requests >= wanted, "the hostile broker is asked", 60)  # type: ignore[misc]  # bound now
            rig.check(f"round {number} of seed {seed}")
        status = rig.daemon.status()
        states = {
            one["partition"]: (one["state"], one["reason"]) for one in status["partitions"] if one["topic"] == EVIL
        }
        assert len(states) == len(EVIL_BROKERS), states


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_false_metadata_ends_or_stalls_the_daemon(rig: Rig) -> None:
    """A registered broker tells false things of all others, in the right form; once it is gone, all is consumed again.

    While it is believed nothing can be promised of the partitions that it lies about: it may give the address of every
    other broker. The process, its session, its page and its memory must not suffer.
    """
    seed = draw_seed("false Metadata")
    with LyingBroker(seed, (GOOD, OTHER, EVIL), (0, *LYING_BROKERS)) as liar:
        address = {"version": 1, "host": "127.0.0.1", "port": liar.port, "jmx_port": -1, "timestamp": "1"}
        for broker in LYING_BROKERS:
            put(rig.client, f"/brokers/ids/{broker}", json.dumps(address).encode())
        for number in range(LIES):
            # a changed topic has the view read again at once
            put(rig.client, f"/brokers/topics/lied-{number}", b'{"version": 1, "partitions": {"0": [21]}}')
            rig.daemon.wait(lambda number=number: liar.answered > number, f"lie {number} of seed {seed}", 60)  # type: ignore[misc]  # bound now
            assert rig.daemon.get("/")[0] == 200
        for broker in LYING_BROKERS:
            rig.client.delete(f"/brokers/ids/{broker}")
    rig.check(f"the lies of seed {seed}")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_note_of_a_group_costs_more_than_its_partition(rig: Rig, tmp_path: Path) -> None:
    """Truncation notes, landed ends and recorded roots are read by members that land files; this one has a group of its own."""
    group, topics, count = "notes", ("truncated", "lost", "landed"), len(VALUES) + 1
    own, offsets = f"/consumers/{group}/consumerd", f"/consumers/{group}/offsets"
    path = tmp_path / "landed"
    remove_foreign_brokers(rig.client)
    settings = settings_for(
        rig.broker.zookeeper,
        group,
        topics=topics,
        sink={"type": "jsonl", "path": str(path), "roll_ms": 100},
        offsets={"commit_interval_ms": 100},
    )

    def produce() -> None:
        for topic in topics:
            rig.broker.produce(topic, b"".join(b"%d\tv\n" % number for number in range(60 * count)))

    def position(topic: str, partition: int) -> int:
        return int(rig.client.get(f"{offsets}/{topic}/{partition}")[0])

    for topic in topics:
        rig.broker.create_topic(topic, count)
    produce()
    with Daemon(tmp_path, "first", settings) as daemon:
        daemon.wait(
            lambda: all(
                rig.client.exists(f"{offsets}/{topic}/{number}") and position(topic, number) > 0
                for topic in topics
                for number in range(count)
            ),
            "every partition is landed",
            60,
        )
        assert daemon.terminate() == 0, daemon.log()[-3000:]
    root = rig.client.get(f"{own}/roots/out")[0]
    for number, value in enumerate(VALUES):
        put(rig.client, f"{own}/truncations/truncated/{number}", value)
        put(rig.client, f"{own}/truncations/lost/{number}.lost", value)
        landed = f"{own}/landed/{root.decode()}/landed/{number}"
        put(rig.client, landed, value)
    before = {(topic, number): position(topic, number) for topic in topics for number in range(count)}
    produce()
    for number in range(count):  # above the chain's end, so that the landed end is asked for
        put(rig.client, f"{offsets}/landed/{number}", b"%d" % (before["landed", number] + 1))
    put(rig.client, f"{own}/roots/out", VALUES[9])
    with Daemon(tmp_path, "second", settings) as daemon:
        states: dict[tuple[str, int], str | None] = {}

        def failing(topic: str) -> bool:
            states.clear()
            states.update(
                {
                    (one["topic"], int(one["partition"])): one["reason"]
                    for one in daemon.status()["partitions"]
                    if one["state"] not in {"running", "starting"}
                }
            )
            return all((topic, number) in states for number in range(count))

        daemon.wait(lambda: failing("landed"), "a root that nobody has recorded is told of", 60)
        put(rig.client, f"{own}/roots/out", root)
        for topic, number in (
            ("truncated", count - 1),
            ("lost", count - 1),
            *(("landed", one) for one in range(count)),
        ):
            daemon.wait(
                lambda topic=topic, number=number: position(topic, number) > before[topic, number] + 1,  # type: ignore[misc]  # bound now
                f"{topic}/{number} goes on",
                60,
            )
        assert not failing("truncated")
        for topic in ("truncated", "lost"):
            for number in range(len(VALUES)):
                assert "cannot be read" in str(states.get((topic, number))), (topic, number, states)
                rig.client.delete(f"{own}/truncations/{topic}/{number}{'.lost' * (topic == 'lost')}")
        for (topic, number), old in before.items():
            daemon.wait(
                lambda topic=topic, number=number, old=old: position(topic, number) > old + 1,  # type: ignore[misc]  # bound now
                f"{topic}/{number} goes on once the note is removed",
                60,
            )
        assert daemon.get("/")[0] == 200
        assert daemon.terminate() == 0, daemon.log()[-3000:]
