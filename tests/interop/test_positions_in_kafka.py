# SPDX-License-Identifier: Apache-2.0
"""Groups whose positions real brokers keep: what commands show of them, and where a member of ours may start.

The scene: a Java member has committed 300 to Kafka, and ZooKeeper holds 200 from before it was migrated.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from kazoo.client import KazooClient

from consumerd.cli.main import CONFIGURATION, DONE, FAILED, main
from tests.interop.conftest import ClusterFactory
from tests.support.daemon import Daemon
from tests.support.kafka import Cluster
from tests.support.registry import open_registry
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.timeout(240)]

JAVA_S = 60.0
"""A JVM starts and takes its partition; the machine may be busy."""


def produce(cluster: Cluster, topic: str, first: int, count: int) -> None:
    cluster.produce(topic, b"".join(b"k%d\tv%d\n" % (number, number) for number in range(first, first + count)))


class Group:
    """One group of one topic with one partition, and the commands for it."""

    def __init__(self, cluster: Cluster, name: str, topic: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.cluster = cluster
        self.name = name
        self.topic = topic
        self._capsys = capsys

    def ask(self, command: str, *arguments: str) -> tuple[int, str, str]:
        """Run a command; returns its exit code and what it printed."""
        self._capsys.readouterr()
        address = ["-z", self.cluster.zookeeper, "-g", self.name, "--timeout", "30"]
        code = main([*command.split(), *address, *arguments])
        shown = self._capsys.readouterr()
        return code, shown.out, shown.err

    def settings(self) -> dict[str, object]:
        return {
            "cluster": {"zookeeper": self.cluster.zookeeper},
            "group": {"id": self.name},
            "subscriptions": [{"topics": [self.topic], "sink": "out"}],
            "sinks": {"out": {"type": "stdout"}},
            "offsets": {"commit_interval_ms": 100},
        }

    def set_in_zookeeper(self, registry: KazooClient, position: int) -> None:
        path = f"/consumers/{self.name}/offsets/{self.topic}/0"
        registry.ensure_path(path)
        registry.set(path, b"%d" % position)

    def consume_by_java(self, count: int, *, dual: bool) -> None:
        """Have a Java member with offsets.storage=kafka consume this many records, and leave in order."""
        java = self.cluster.java_consumer(
            self.name,
            self.topic,
            offsets_storage="kafka",
            dual_commit_enabled="true" if dual else "false",
            auto_commit_interval_ms="200",
        )
        try:
            # its commit at the end is not tried again (0.9 on), so one before it must have been made
            wait_until(lambda: self._find_in_kafka() == count, f"Java has committed {count}", JAVA_S)
            java.terminate()
        finally:
            if java.process.poll() is None:
                java.kill()

    def _find_in_kafka(self) -> object:
        rows = [json.loads(line) for line in self.ask("offsets show", "--json")[1].splitlines()]
        return rows[0].get("kafka") if rows else None

    def check_refusal(self, directory: Path) -> None:
        """Commands show 300 and 200, and a member does not start."""
        both = f"{self.topic}/0 (300 in Kafka, 200 in ZooKeeper)"
        code, out, err = self.ask("lag", "--json")
        row = json.loads(out)
        assert (DONE, 200, 300, 200) == (code, row["position"], row["kafka"], row["lag"])
        assert "Here count those in ZooKeeper" in err
        row = json.loads(self.ask("offsets show", "--json")[1])
        assert (200, 300) == (row["position"], row["kafka"])
        code, out, _ = self.ask("doctor")
        assert (FAILED, True) == (code, both in out), out

        refused = Daemon(directory, "refused", self.settings())
        assert CONFIGURATION == refused.wait_end(60)
        assert both in refused.log()
        assert "offsets.ignore_other_place: true" in refused.log()
        assert [] == refused.deliveries

        assert DONE == self.ask("offsets set", f"{self.topic}/0=300", "--yes")[0]
        self.check_start(directory)

    def check_start(self, directory: Path) -> None:
        """A member goes on at 300."""
        with Daemon(directory, "started", self.settings()) as member:
            member.wait(lambda: len(member.deliveries) >= 100, "the rest is delivered", 60)
            assert list(range(300, 400)) == [one.offset for one in member.deliveries]


@pytest.fixture
def registry_of() -> Iterator[Callable[[Cluster], KazooClient]]:
    """Open sessions of nobody's."""
    opened = []

    def open_one(cluster: Cluster) -> KazooClient:
        registry = open_registry(cluster.zookeeper)
        opened.append(registry)
        return registry.__enter__().client

    yield open_one
    for registry in opened:
        registry.__exit__(None, None, None)


@pytest.mark.newer_brokers
def test_a_group_that_java_has_migrated_is_refused_and_explained(
    release: str,
    shared_clusters: ClusterFactory,
    unique: Callable[[str], str],
    registry_of: Callable[[Cluster], KazooClient],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A start would deliver 200 to 299 again, and every command took the old position for the group's."""
    cluster = shared_clusters(release)
    group = Group(cluster, unique("migrated"), unique("orders"), capsys)
    cluster.create_topic(group.topic, 1)
    produce(cluster, group.topic, 0, 300)
    group.consume_by_java(300, dual=False)
    row = json.loads(group.ask("lag", "--json")[1])
    assert (None, 300, 0) == (row["position"], row["kafka"], row["lag"]), "known to Kafka only"

    group.set_in_zookeeper(registry_of(cluster), 200)
    produce(cluster, group.topic, 300, 100)
    group.check_refusal(tmp_path)


@pytest.mark.newer_brokers
def test_a_group_that_commits_to_both_is_taken_over_at_its_position(
    release: str,
    shared_clusters: ClusterFactory,
    unique: Callable[[str], str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The first step of a migration: positions are equal, and nothing is refused."""
    cluster = shared_clusters(release)
    group = Group(cluster, unique("both"), unique("orders"), capsys)
    cluster.create_topic(group.topic, 1)
    produce(cluster, group.topic, 0, 300)
    group.consume_by_java(300, dual=True)
    produce(cluster, group.topic, 300, 100)

    row = json.loads(group.ask("lag", "--json")[1])
    assert (300, 300, "") == (row["position"], row["kafka"], row["note"])
    assert "positions-in-kafka" in group.ask("doctor")[1]
    group.check_start(tmp_path)


@pytest.mark.full
def test_a_group_that_a_newer_client_has_migrated(
    own_cluster: ClusterFactory,
    registry_of: Callable[[Cluster], KazooClient],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The group's new consumer commits to Kafka alone. Before the first commit nothing creates the topic of offsets."""
    cluster = own_cluster("2.8.2")
    group = Group(cluster, "migrated", "orders", capsys)
    cluster.create_topic(group.topic, 1)
    produce(cluster, group.topic, 0, 400)
    registry = registry_of(cluster)
    group.set_in_zookeeper(registry, 200)
    for command in ("lag", "offsets show", "doctor"):
        assert DONE == group.ask(command)[0]
    assert ["orders"] == registry.get_children("/brokers/topics")

    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group.name, "enable.auto.commit": False})
    try:
        consumer.commit(offsets=[TopicPartition(group.topic, 0, 300)], asynchronous=False)
    finally:
        consumer.close()
    group.check_refusal(tmp_path)
