# SPDX-License-Identifier: Apache-2.0
"""A group of two daemons and two Java members moves its positions to Kafka and back, under load, by rolling restarts.

Files are judged against the producer's own ledger. A record may be delivered twice only where a member was killed.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.interop.conftest import ClusterFactory, Figure
from tests.support.daemon import Daemon
from tests.support.kafka import JavaConsumer, LedgerProducer
from tests.support.landing_check import Place, find_faults
from tests.support.landing_reader import read_landing
from tests.support.load import SteadyLoad
from tests.support.mixed_group import MixedGroup
from tests.support.offset_commands import offsets, rows
from tests.support.waiting import wait_until

pytestmark = pytest.mark.records

PARTITIONS = 4
RATE = 100.0

ZOOKEEPER: Mapping[str, object] = {"storage": "zookeeper"}
BOTH: Mapping[str, object] = {"storage": "kafka", "dual_commit": True}
KAFKA: Mapping[str, object] = {"storage": "kafka", "dual_commit": False}


def as_java(section: Mapping[str, object]) -> dict[str, str]:
    """Return the same settings for a Java member."""
    properties = {"offsets_storage": str(section["storage"]), "auto_commit_interval_ms": "300"}
    if "dual_commit" in section:
        properties["dual_commit_enabled"] = str(section["dual_commit"]).lower()
    return properties


@dataclass
class RollingGroup:
    """Members of both kinds, which are replaced one after the other."""

    group: MixedGroup
    folder: Path
    java_too: bool = True
    ours: list[Daemon] = field(default_factory=list)
    java: list[JavaConsumer] = field(default_factory=list)
    java_rebalances: int = 0

    @property
    def size(self) -> int:
        return 4 if self.java_too else 2

    def start_one(self, section: Mapping[str, object]) -> None:
        self.ours.append(
            self.group.start(
                sink={"type": "parquet", "path": str(self.folder), "roll_ms": 500},
                offsets={"commit_interval_ms": 200, **section},
                release_grace_ms=1000,  # a Java process that has just started may be slow to claim, and repeat records
            )
        )

    def start_java(self, section: Mapping[str, object]) -> None:
        self.java.append(self.group.start_java(**as_java(section)))

    def start(self, section: Mapping[str, object]) -> None:
        for _ in range(2):
            self.start_one(section)
            if self.java_too:
                self.start_java(section)
        self.group.settle(self.size, 180)

    def restart(self, section: Mapping[str, object]) -> None:
        """Replace each member by one with these settings; the others go on meanwhile."""
        for _ in range(2):
            assert self.ours.pop(0).terminate(120) == 0
            self.start_one(section)
            self.group.settle(self.size, 180)
            self.java_rebalances += 2 * len(self.java)  # one member left, and one joined
            if self.java_too:
                self.java_rebalances += 2
                self.java.pop(0).terminate()
                self.start_java(section)
                self.group.settle(self.size, 180)

    def kill_one_of_each(self, section: Mapping[str, object]) -> None:
        self.ours.pop(0).kill()
        if self.java_too:
            self.java.pop(0).kill()
        self.start_one(section)
        if self.java_too:
            self.start_java(section)
        self.group.settle(self.size, 180)

    def end(self) -> None:
        for daemon in self.ours:
            assert daemon.terminate(120) == 0
        for member in self.java:
            member.terminate()

    def run(self, verb: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        more = ("--timeout", "60", *arguments)
        return offsets(self.group.cluster.zookeeper, self.group.group, f"migrate {verb}", *more)

    def ask(self, verb: str, *arguments: str) -> list[dict[str, Any]]:
        return rows(self.run(verb, *arguments, "--json"))

    def refuse(self, verb: str, *arguments: str) -> str:
        """Run a command that has to end with 1, and return what it says."""
        done = self.run(verb, *arguments)
        assert done.returncode == 1, done.stdout + done.stderr
        return done.stderr

    def observe(self, *arguments: str) -> str:
        """Return where `plan` says that the group is."""
        done = self.run("plan", "--observe", "3", *arguments)
        assert done.returncode == 0, done.stderr
        return done.stderr.splitlines()[0]

    # -- what came out

    def consumed_by_java(self) -> Counter[Place]:
        return Counter(place for _, place in self.group.deliveries())

    def landed(self) -> Counter[Place]:
        if not self.folder.exists():
            return Counter()
        return Counter(
            (one.topic, int(one.partition), record.offset)
            for one in read_landing(self.folder).partitions.values()
            for record in one.records
        )

    def wait_delivered(self, ledger: Mapping[Place, object]) -> None:
        wait_until(
            lambda: set(ledger) <= self.landed().keys() | self.consumed_by_java().keys(), "all delivered", 180, 0.5
        )

    def find_repeats(self) -> set[Place]:
        """Return the places that were delivered more than once, into files or by Java members."""
        return {place for place, count in (self.landed() + self.consumed_by_java()).items() if count > 1}

    def expect_no_repeats_but_javas(self) -> None:
        """Fail if a record was delivered twice, but for those that a Java member held as it committed.

        Java's ``ConsumerIterator`` takes a record in ``hasNext`` and counts it in ``next``. If a rebalance commits and
        clears the queues in between, then ``next`` still returns the record, and its next owner gets it again.
        """
        repeats = self.find_repeats()
        assert repeats <= self.consumed_by_java().keys(), "no member was killed"
        assert len(repeats) <= self.java_rebalances, "no member was killed"


def migrate_and_roll_back(
    rolling: RollingGroup, producer: LedgerProducer, topics: Mapping[str, int], idle: str, figure: Figure
) -> None:
    """ZooKeeper, both, Kafka alone, both, ZooKeeper: each step by a rolling restart, with the commands in between."""
    group = rolling.group
    with SteadyLoad(producer, topics, per_second=RATE / sum(topics.values())):
        rolling.start(ZOOKEEPER)
        group.registry.client.create(f"/consumers/{group.group}/offsets/{idle}/0", b"7", makepath=True)
        wait_until(
            lambda: all(len(group.registry.offsets(group.group, topic)) == count for topic, count in topics.items()),
            "positions in ZooKeeper",
            120,
        )
        # members keep theirs; what no member consumes any more is written, and restored
        saved = str(rolling.folder.parent / "before.json")
        assert "live members consume left alone" in rolling.refuse("apply", "--yes", "--save", saved)
        assert "in ZooKeeper alone: step 1 is to be done" in rolling.observe(*topics)
        assert "do not set offsets.dual_commit: false" in rolling.refuse("verify", "--wait", "2")

        rolling.restart(BOTH)
        assert "positions move in both places" in rolling.observe(*topics)
        assert {row["topic"] for row in rolling.ask("verify", "--wait", "20")} == {*topics, idle}
        rolling.expect_no_repeats_but_javas()

        rolling.kill_one_of_each(BOTH)
        delivered = set(producer.acknowledged())
        rolling.ask("verify", "--wait", "20")

        rolling.restart(KAFKA)
        assert "positions move in Kafka alone" in rolling.observe(*topics)
        assert "do not set offsets.storage: zookeeper" in rolling.refuse("verify", "--to", "zookeeper", "--wait", "2")

        rolling.restart(BOTH)
        assert "positions move in both places" in rolling.observe("--to", "zookeeper", *topics)
        rolling.ask("verify", "--to", "zookeeper", "--wait", "20")
        rolling.restart(ZOOKEEPER)
        assert "positions move in ZooKeeper alone" in rolling.observe("--to", "zookeeper", *topics)
    ledger = producer.finish()
    rolling.wait_delivered(ledger)
    rolling.end()

    repeats = rolling.find_repeats()
    figure("records", len(ledger))
    figure("consumed by Java", len(rolling.consumed_by_java()))
    figure("repeated after members were killed", len(repeats & delivered))
    assert find_faults(rolling.folder, ledger, rolling.consumed_by_java().keys()) == []
    assert repeats - delivered <= rolling.consumed_by_java().keys()
    assert len(repeats - delivered) <= rolling.java_rebalances


@pytest.mark.newer_brokers
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_mixed_group_moves_to_kafka_and_back_under_load(
    release: str, shared_clusters: ClusterFactory, unique: Callable[[str], str], tmp_path: Path, figure: Figure
) -> None:
    """Nothing is lost, and nothing is delivered twice but what killed members had not committed."""
    cluster = shared_clusters(release)
    topic, idle, group_id = unique("orders"), unique("idle"), unique("migrated")
    cluster.create_topic(topic, PARTITIONS)
    cluster.create_topic(idle, 1)
    cluster.produce(idle, b"k\tv\n" * 10)
    with MixedGroup(cluster, tmp_path, group_id, {topic: PARTITIONS}) as group:
        rolling = RollingGroup(group, tmp_path / "landing")
        migrate_and_roll_back(rolling, cluster.ledger_producer(linger_ms="5"), {topic: PARTITIONS}, idle, figure)


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_group_of_ours_moves_on_newer_brokers(
    own_cluster: ClusterFactory, unique: Callable[[str], str], tmp_path: Path, figure: Figure
) -> None:
    """Without Java's members, which may repeat a record at each of their rebalances, no repeat is allowed for."""
    cluster = own_cluster("2.8.2")
    cluster.create_topic("orders", PARTITIONS)
    cluster.create_topic("idle", 1)
    cluster.produce("idle", b"k\tv\n" * 10)
    with MixedGroup(cluster, tmp_path, unique("migrated"), {"orders": PARTITIONS}) as group:
        rolling = RollingGroup(group, tmp_path / "landing", java_too=False)
        migrate_and_roll_back(rolling, cluster.ledger_producer(linger_ms="5"), {"orders": PARTITIONS}, "idle", figure)
