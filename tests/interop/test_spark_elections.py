# SPDX-License-Identifier: Apache-2.0
"""Unclean elections on real brokers, through daemons, files, audit and bronze, record by record.

Every record that was landed is in the table once: those that the logs have lost, and beside them those that have their
offsets now. The producer's ledger is held against the brokers' own log files. The story:

1. A compacted topic is compacted, then the groups begin.
2. Two elections in a row, each of which takes records from both partitions. One group goes by a policy, one by
   requests, one by a policy with replicas that land in folders of their own.
3. After the second election the logs grow beyond the positions of the group that has stopped. Its daemon is restarted,
   is still stopped, and goes on where the request says.
4. The topic is deleted and made again.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from consumerd.landing.examine import examine
from consumerd.landing.findings import Finding, FindingKind
from consumerd.landing.footers import read_all
from consumerd.landing.scan import scan_landing
from consumerd.spark import local_session
from consumerd.spark.table.transaction import open_table
from consumerd.wire.records import Limits
from tests.interop.conftest import FULL, MAIN_RELEASE, require
from tests.interop.test_changing_logs import _delete, _leaders, _make
from tests.interop.test_hard_cases import states
from tests.support import naive_records
from tests.support.bronze import run_bronze
from tests.support.daemon import Daemon, settings_for
from tests.support.kafka import Cluster, Sent
from tests.support.landing_zone import LandingZone
from tests.support.registry import Registry, open_registry
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.records, pytest.mark.drawn(parts=3)]

RELEASES: Final = ("0.8.2.2", MAIN_RELEASE) if FULL else (MAIN_RELEASE,)
PARTITIONS: Final = 2
KEPT, LOST, NEW, LOST_TOO, NEWEST, AGAIN = 100, 50, 20, 30, 40, 30
KEYS, UPDATES = 10, 300

Row = tuple[str, str, int, int, bytes | None, bytes | None]
"""Topic, incarnation, partition, offset, key, value."""
Ledger = Counter[Row]


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """One session for all runs of the job: a JVM each takes longer."""
    session = local_session("elections", master="local[1]", settings={"spark.sql.shuffle.partitions": "1"})
    yield session
    session.stop()


@dataclass
class Group:
    """One group: its replicas' settings by name, and where they land."""

    folder: Path
    cluster: Cluster
    topics: tuple[str, ...]
    name: str
    on_above: str
    replicas: tuple[str, ...] = ("shared",)
    running: dict[str, Daemon] = field(default_factory=dict)
    starts: int = 0

    @property
    def id(self) -> str:
        """Its name in ZooKeeper."""
        return f"{self.topics[0]}-{self.name}"

    def landing(self, replica: str) -> Path:
        return self.folder / self.name / replica

    def start(self, replica: str) -> Daemon:
        """Start a replica, which claims what is free."""
        own = len(self.replicas) > 1
        sink = {"type": "parquet", "path": str(self.landing(replica)), "roll_ms": 300, "shared": not own}
        settings = settings_for(
            self.cluster.zookeeper,
            self.id,
            topics=self.topics,
            sink=sink,
            offsets={"on_above": self.on_above},
            **({"group": {"consumer_id": replica}} if own else {}),
        )
        self.starts += 1
        self.landing(replica).parent.mkdir(parents=True, exist_ok=True)
        daemon = self.running[replica] = Daemon(self.folder, f"{self.name}-{replica}-{self.starts}", settings)
        return daemon

    def hand_over(self, replica: str) -> Daemon:
        """Have another replica go on, or the same one after a restart."""
        for daemon in self.running.values():
            if daemon.process.poll() is None:
                assert daemon.terminate() == 0
        return self.start(replica)

    @property
    def daemon(self) -> Daemon:
        """The replica that runs."""
        (daemon,) = (one for one in self.running.values() if one.process.poll() is None)
        return daemon

    def wait_committed(self, count: int, what: str) -> None:
        """Wait for the positions in the first topic, all partitions together."""
        daemon, topic = self.daemon, self.topics[0]

        def committed() -> int:
            return sum(one["committed"] or 0 for one in daemon.status()["partitions"] if one["topic"] == topic)

        daemon.wait(lambda: committed() == count, f"{self.name}: {what}", 60)

    def set_offset(self, position: int) -> None:
        """Say where all partitions of the first topic go on."""
        places = [f"{self.topics[0]}/{partition}={position}" for partition in range(PARTITIONS)]
        words = ["consumerd", "offsets", "set", "-z", self.cluster.zookeeper, "-g", self.id, *places, "--yes"]
        self._run(words)

    def audit(self) -> list[Finding]:
        """Return what an audit finds; the command agrees that nothing is wrong."""
        roots = [word for one in self._landings for word in ("--landing", str(one))]
        summary: dict[str, Any] = json.loads(
            self._run(["consumerd.spark", "audit", *roots, "--json", "--quiet"]).stdout
        )
        assert summary["status"] == "ok"
        return list(examine(read_all(scan_landing(self._landings)), depth="footers").findings)

    def bronze(self, spark: SparkSession) -> Ledger:
        """Take over what has landed, and return the table's rows."""
        lake = self.folder / f"lake-{self.name}"
        summary = run_bronze(spark, [LandingZone(one) for one in self._landings], lake / "bronze")
        assert summary.findings == ()
        table = open_table(lake / "bronze")
        columns = ["incarnation", "partition", "offset", "key", "value"]
        found: Ledger = Counter()
        for file in table.snapshot().files:
            # the topic stands in the folder's name
            (topic,) = (part.removeprefix("topic=") for part in Path(file).parts if part.startswith("topic="))
            rows = pq.read_table(table.path / file, columns=columns, partitioning=None)
            values = zip(*(rows[column].to_pylist() for column in columns), strict=True)
            found.update((topic, *row) for row in values)
        return found

    @property
    def _landings(self) -> list[Path]:
        return [one for one in map(self.landing, self.replicas) if one.exists()]

    def _run(self, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
        ended = subprocess.run(
            [sys.executable, "-m", *words],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended


def _truncations(findings: list[Finding]) -> list[tuple[str | None, str | None, int | None, int | None]]:
    """Return partition, incarnation and range of each log that has lost its end."""
    cut = [one for one in findings if one.kind is FindingKind.LOG_TRUNCATED]
    return sorted((one.partition or "", one.incarnation, one.start, one.end) for one in cut)


def _czxid(registry: Registry, topic: str) -> int:
    return int(registry.client.get(f"/brokers/topics/{topic}")[1].czxid)


def _wait_isr(registry: Registry, topic: str, brokers: set[int]) -> None:
    def isr(partition: int) -> set[int]:
        return set(json.loads(registry.client.get(f"/brokers/topics/{topic}/partitions/{partition}/state")[0])["isr"])

    wait_until(lambda: all(isr(one) == brokers for one in range(PARTITIONS)), f"the ISR is {brokers}", 60)


def _wait_leader(registry: Registry, topic: str, broker: int) -> None:
    expected = dict.fromkeys(range(PARTITIONS), broker)
    wait_until(lambda: _leaders(registry, topic, PARTITIONS) == expected, f"broker {broker} leads", 60)


def _read_log(
    cluster: Cluster, topic: str, partition: int, broker: int
) -> list[tuple[int, bytes | None, bytes | None]]:
    """Return offset, key and value of each record in a broker's files.

    They are read with nothing of ours but the codecs.
    """
    rows = []
    for segment in cluster.segments(topic, partition, broker):
        rows += naive_records.decode(segment.read_bytes(), int(segment.stem), Limits()).rows
    return [(row[0], row[3], row[4]) for row in rows]


@dataclass
class Producer:
    """Sends to both partitions in turn, and keeps the ledger."""

    cluster: Cluster
    topic: str
    ledger: Ledger = field(default_factory=Counter)

    def send(self, stem: str, count: int, incarnation: str, broker: int, *, alone: bool = True) -> None:
        """Send records while ``broker`` leads all partitions, alone or not."""
        options = {"bootstrap_servers": f"127.0.0.1:{self.cluster.ports[broker]}"} if alone else {}
        producer = self.cluster.ledger_producer(linger_ms="5", **options)
        producer.send(
            Sent(self.topic, number % PARTITIONS, b"key %d" % (number % 7), f"{stem} {number}".encode())
            for number in range(count)
        )
        told = {(place[1], place[2], sent.key, sent.value) for place, sent in producer.finish().items()}
        held = {
            (partition, *row)
            for partition in range(PARTITIONS)
            for row in _read_log(self.cluster, self.topic, partition, broker)
        }
        assert told <= held
        self.ledger.update((self.topic, incarnation, *row) for row in told)


def _compact(cluster: Cluster, registry: Registry, topic: str) -> Counter[tuple[int, bytes | None, bytes | None]]:
    """Fill a compacted topic, and return what compaction has left of it."""
    config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.bytes": "2000"}
    _make_with(registry, topic, {"0": [0]}, config)
    cluster.wait_topic(topic, 1)
    producer = cluster.ledger_producer(linger_ms="20", batch_size="300")
    producer.send(Sent(topic, 0, b"key %d" % (one % KEYS), b"update %d" % one) for one in range(UPDATES))
    producer.finish()
    wait_until(lambda: len(_read_log(cluster, topic, 0, 0)) < UPDATES // 2, "the log is compacted", 60)
    return Counter(_read_log(cluster, topic, 0, 0))


def _make_with(registry: Registry, topic: str, assignment: dict[str, list[int]], config: dict[str, str]) -> None:
    """Make a topic as TopicCommand does, without a JVM."""
    registry.client.ensure_path("/config/topics")
    registry.client.create(f"/config/topics/{topic}", json.dumps({"version": 1, "config": config}).encode())
    layout = json.dumps({"version": 1, "partitions": assignment}).encode()
    registry.client.create(f"/brokers/topics/{topic}", layout)


@dataclass
class Stage:
    """Two brokers, a topic whose elections may be unclean, and the groups that read it."""

    cluster: Cluster
    registry: Registry
    topic: str
    producer: Producer
    groups: tuple[Group, ...]

    def wait_committed(self, count: int, what: str) -> None:
        for group in self.groups:
            group.wait_committed(count, what)

    def lose(self, leader: int, stem: str, count: int, incarnation: str, before: int) -> None:
        """Have one broker alone take records that all groups land, and the other one lead."""
        cluster, registry, topic = self.cluster, self.registry, self.topic
        follower = 1 - leader
        cluster.stop(f"broker-{follower}")
        _wait_isr(registry, topic, {leader})
        _wait_leader(registry, topic, leader)
        self.producer.send(stem, count, incarnation, leader)
        self.wait_committed(before + count, f"{stem} has landed")
        cluster.stop(f"broker-{leader}")
        cluster.start_broker(follower)
        _wait_leader(registry, topic, follower)


@contextlib.contextmanager
def _stage(version: str, topic: str, folder: Path, compacted: str | None) -> Iterator[Stage]:
    require(version)
    with (
        Cluster(version, 2, properties={"auto.create.topics.enable": "false"}) as cluster,
        open_registry(cluster.zookeeper) as registry,
        contextlib.ExitStack() as stack,
    ):
        _make_with(registry, topic, {"0": [0, 1], "1": [1, 0]}, {"unclean.leader.election.enable": "true"})
        cluster.wait_topic(topic, PARTITIONS)
        topics = (topic,) if compacted is None else (topic, compacted)
        groups = [
            Group(folder, cluster, topics, "policy", "nearest"),
            Group(folder, cluster, topics, "request", "stop"),
        ]
        if compacted is not None:
            groups.append(Group(folder, cluster, topics, "own", "nearest", replicas=("a", "b")))
        stack.callback(
            lambda: [one.kill() for group in groups for one in group.running.values() if one.process.poll() is None]
        )
        yield Stage(cluster, registry, topic, Producer(cluster, topic), tuple(groups))


@pytest.mark.parametrize("version", RELEASES)
def test_bronze_holds_what_the_logs_held_through_two_elections_and_a_topic_made_again(
    version: str, unique: Callable[[str], str], tmp_path: Path, spark: SparkSession
) -> None:
    """Under a policy, by requests, and with replicas that land in folders of their own."""
    topic, compacted = unique("elected"), unique("compacted")
    with _stage(version, topic, tmp_path, compacted) as stage:
        cluster, registry, producer = stage.cluster, stage.registry, stage.producer
        by_policy, by_request, own = stage.groups
        left_before = _compact(cluster, registry, compacted)
        made, compacted_id = _czxid(registry, topic), str(_czxid(registry, compacted))
        for group in stage.groups:
            group.start(group.replicas[0])
        _wait_isr(registry, topic, {0, 1})
        producer.send("kept", KEPT, str(made), 0, alone=False)
        stage.wait_committed(KEPT, "what is kept has landed")
        compacted_ends = [
            next(one for one in group.daemon.status()["partitions"] if one["topic"] == compacted)["position"]
            for group in stage.groups
        ]
        assert compacted_ends == [UPDATES] * len(stage.groups)

        stage.lose(0, "lost", LOST, str(made), KEPT)
        by_request.daemon.wait(lambda: states(by_request.daemon).get("stopped") == PARTITIONS, "it has stopped", 60)
        # a table that has the lost records already is where the others used to be left out
        by_request.bronze(spark)
        by_request.set_offset(KEPT // PARTITIONS)
        stage.wait_committed(KEPT, "it has moved back")
        producer.send("new", NEW, f"{made}.1", 1)
        stage.wait_committed(KEPT + NEW, "what is new has landed")
        own.hand_over("b")

        cluster.start_broker(0)
        _wait_isr(registry, topic, {0, 1})
        stage.lose(1, "lost too", LOST_TOO, f"{made}.1", KEPT + NEW)
        by_request.daemon.wait(lambda: states(by_request.daemon).get("stopped") == PARTITIONS, "it has stopped", 60)
        for group in (by_policy, own):
            group.wait_committed(KEPT + NEW, "it has moved back")
        producer.send("newest", NEWEST, f"{made}.2", 0)
        for group in (by_policy, own):
            group.wait_committed(KEPT + NEW + NEWEST, "what is newest has landed")
        # the logs have grown beyond its positions, and a new process knows of that what the group has noted
        restarted = by_request.hand_over("shared")
        restarted.wait(lambda: states(restarted).get("stopped") == PARTITIONS, "it is stopped still", 60)
        by_request.set_offset((KEPT + NEW) // PARTITIONS)
        by_request.wait_committed(KEPT + NEW + NEWEST, "what is newest has landed")
        own.hand_over("a")
        own.wait_committed(KEPT + NEW + NEWEST, "the first replica is back")

        cluster.start_broker(1)
        _wait_isr(registry, topic, {0, 1})
        _delete(registry, topic)
        _make(registry, topic, PARTITIONS)
        cluster.wait_topic(topic, PARTITIONS)
        remade = str(_czxid(registry, topic))
        again = cluster.ledger_producer(linger_ms="5")
        again.send(Sent(topic, one % PARTITIONS, b"again", b"again %d" % one) for one in range(AGAIN))
        told = again.finish()
        producer.ledger.update((topic, remade, place[1], place[2], one.key, one.value) for place, one in told.items())
        stage.wait_committed(AGAIN, "the topic that was made again has landed")
        assert all(group.daemon.terminate() == 0 for group in stage.groups)

        left_after = Counter(_read_log(cluster, compacted, 0, 0))
        assert set(left_after) <= set(left_before)
        cuts = [
            (str(partition), f"{made}.{number}", start // PARTITIONS, (start + lost) // PARTITIONS)
            for partition in range(PARTITIONS)
            for number, start, lost in ((1, KEPT, LOST), (2, KEPT + NEW, LOST_TOO))
        ]
        for group in stage.groups:
            rows = group.bronze(spark)
            elected = Counter({row: count for row, count in rows.items() if row[0] == topic})
            assert elected == producer.ledger, group.name
            rest = Counter({row[3:]: count for row, count in rows.items() if row[:3] == (compacted, compacted_id, 0)})
            assert elected.total() + rest.total() == rows.total()
            # a cleaner that went on since has taken records from the log, not from the table
            assert left_after <= rest <= left_before, group.name
            assert _truncations(group.audit()) == cuts, group.name


def test_bronze_holds_what_the_logs_of_an_old_release_held_through_an_election(
    unique: Callable[[str], str], tmp_path: Path, spark: SparkSession
) -> None:
    """The log grows beyond the old positions before a request comes."""
    topic = unique("elected")
    with _stage("0.8.2.2", topic, tmp_path, None) as stage:
        by_policy, by_request = stage.groups
        made = _czxid(stage.registry, topic)
        for group in stage.groups:
            group.start("shared")
        _wait_isr(stage.registry, topic, {0, 1})
        stage.producer.send("kept", KEPT, str(made), 0, alone=False)
        stage.wait_committed(KEPT, "what is kept has landed")
        stage.lose(0, "lost", LOST, str(made), KEPT)
        by_request.daemon.wait(lambda: states(by_request.daemon) == {"stopped": PARTITIONS}, "it has stopped", 60)
        by_policy.wait_committed(KEPT, "it has moved back")
        stage.producer.send("new", LOST + NEW, f"{made}.1", 1)
        by_policy.wait_committed(KEPT + LOST + NEW, "what is new has landed")
        assert states(by_request.daemon) == {"stopped": PARTITIONS}
        by_request.set_offset(KEPT // PARTITIONS)
        by_request.wait_committed(KEPT + LOST + NEW, "what is new has landed")
        assert all(group.daemon.terminate() == 0 for group in stage.groups)

        cuts = [
            (str(partition), f"{made}.1", KEPT // PARTITIONS, (KEPT + LOST) // PARTITIONS)
            for partition in range(PARTITIONS)
        ]
        for group in stage.groups:
            assert group.bronze(spark) == stage.producer.ledger, group.name
            assert _truncations(group.audit()) == cuts, group.name
