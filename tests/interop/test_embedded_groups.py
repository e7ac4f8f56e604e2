# SPDX-License-Identifier: Apache-2.0
"""Kafka's own tools and consumers on the embedded broker: topics by znode, groups over ZooKeeper and by the coordinator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.conftest import require
from tests.support.embedded import EmbeddedProcess
from tests.support.java_tools import JavaTools
from tests.support.kafka import JavaConsumer, java_command
from tests.support.registry import open_registry
from tests.support.waiting import wait_until

pytestmark = pytest.mark.drawn

AS_RELEASE = {"0.8.2.2": "0.8.2", "1.1.1": "1.1"}
LINES = b"".join(b"key-%d\tvalue-%d\n" % (number, number) for number in range(400))


@pytest.fixture(params=AS_RELEASE)
def java(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[JavaTools]:
    """The clients of a release, on an embedded broker that passes for one of that release."""
    release = request.param
    require(release)
    with (
        EmbeddedProcess(tmp_path / "embedded", "--as-release", AS_RELEASE[release]) as broker,
        JavaTools(release, zookeeper_address=broker.zookeeper, bootstrap_address=broker.bootstrap) as tools,
    ):
        yield tools


def folders(tmp_path: Path, topic: str) -> list[str]:
    """Return the directories of a topic's logs."""
    logs = tmp_path / "embedded" / "cluster" / "logs"
    return sorted(path.name for path in logs.glob(f"{topic}-*"))


@pytest.mark.timeout(150)
def test_topics_are_what_kafkas_own_tool_makes_of_them(java: JavaTools, tmp_path: Path) -> None:
    """Made, described, grown, configured, deleted, made again: by nodes alone, and the broker follows."""
    java.create_topic("made", 2, retention_ms="3600000")
    java.produce("made", LINES)
    described = java.topics("--describe", "--topic", "made")
    java.add_partitions("made", 3)
    wait_until(lambda: len(folders(tmp_path, "made")) == 3, "the third partition is there")
    java.delete_topic("made")
    wait_until(lambda: folders(tmp_path, "made") == [], "the topic is gone")
    java.topics("--create", "--topic", "made", "--partitions", "1", "--replication-factor", "1")
    wait_until(lambda: folders(tmp_path, "made") == ["made-0"], "it is there again")
    offsets = java.run_tool(
        "kafka.tools.GetOffsetShell", "--broker-list", java.bootstrap, "--topic", "made", "--time", "-1", brisk=True
    )

    assert "PartitionCount:2" in described
    assert "retention.ms=3600000" in described
    assert 2 == described.count("Leader: 0\tReplicas: 0\tIsr: 0")
    assert ["made:0:0"] == offsets.split()


@pytest.mark.timeout(150)
def test_two_java_consumers_with_positions_in_kafka_take_over_from_each_other(java: JavaTools) -> None:
    """Nothing twice and nothing lost over a rebalance; with positions in ZooKeeper it is the clients' script that says so."""
    java.create_topic("shared", 4)
    java.produce("shared", LINES)
    properties = {"offsets_storage": "kafka", "dual_commit_enabled": "false", "auto_commit_interval_ms": "200"}
    with open_registry(java.zookeeper) as registry:

        def owners() -> set[str]:
            return set(registry.owners("group", "shared").values())

        first = java.java_consumer("group", "shared", **properties)
        wait_until(lambda: len(first.records()) == 400, "the first has read all", 60)
        second = java.java_consumer("group", "shared", **properties)
        wait_until(lambda: len(owners()) == 2, "both own partitions", 60)
        java.produce("shared", LINES)
        wait_until(lambda: len(first.records() + second.records()) == 800, "both have read all", 60)
        first.terminate()
        wait_until(lambda: len(owners()) == 1, "the second has taken over", 60)
        java.produce("shared", LINES)
        wait_until(lambda: len(first.records() + second.records()) == 1200, "the second goes on", 60)
        second.terminate()
        in_zookeeper = registry.offsets("group", "shared")

    assert 1200 == len(places(first) | places(second))
    assert sum(in_zookeeper.values()) == 0


def places(consumer: JavaConsumer) -> set[tuple[int, int]]:
    """Return partition and offset of what it has read."""
    return {(partition, offset) for _, partition, offset, _ in consumer.records()}


@pytest.mark.parametrize("java", ["1.1.1"], indirect=True)
@pytest.mark.timeout(120)
def test_kafkas_own_tool_describes_the_group(java: JavaTools) -> None:
    """What an operator sees: members, their partitions, positions and lag."""
    java.create_topic("seen", 2)
    java.produce("seen", LINES)
    java.run_tool(
        "kafka.tools.ConsoleConsumer", "--bootstrap-server", java.bootstrap, "--topic", "seen", "--from-beginning",
        "--max-messages", "400", "--consumer-property", "group.id=looked-at", "--timeout-ms", "20000", brisk=True,
    )  # fmt: skip
    tool = "kafka.admin.ConsumerGroupCommand"
    groups = java.run_tool(tool, "--bootstrap-server", java.bootstrap, "--list", brisk=True)
    said = java.run_tool(tool, "--bootstrap-server", java.bootstrap, "--describe", "--group", "looked-at", brisk=True)

    assert ["looked-at"] == groups.split()
    rows = [line.split()[:5] for line in said.splitlines() if line.startswith("seen")]
    assert [["seen", "0"], ["seen", "1"]] == sorted(row[:2] for row in rows)
    assert (400, 400, 0) == tuple(sum(int(row[column]) for row in rows) for column in (2, 3, 4))


@pytest.mark.parametrize("java", ["1.1.1"], indirect=True)
@pytest.mark.timeout(150)
def test_javas_new_consumers_share_a_topic_and_resume_where_they_were(java: JavaTools) -> None:
    """Join, rebalance, commit, leave; a third one, later, is given nothing twice."""
    java.create_topic("new", 4)
    java.produce("new", LINES)
    first, second = new_consumer(java, "first"), new_consumer(java, "second")
    wait_until(lambda: len(read(first) + read(second)) == 400, "all is read", 60)
    wait_until(lambda: members(java) == {2}, "they share the partitions", 60)
    java.produce("new", LINES)
    wait_until(lambda: len(read(first) + read(second)) == 800, "what came since is read, too", 60)
    both = len(read(first)) < 800 and len(read(second)) > 0
    for name in ("first", "second"):
        java.stop(name)
    third = new_consumer(java, "third")
    java.produce("new", b"key\tthe last\n")
    wait_until(lambda: len(read(third)) > 0, "the third goes on", 60)
    java.stop("third")

    assert both
    assert ["the last"] == read(third)


def new_consumer(java: JavaTools, name: str) -> Path:
    """Start Kafka's console consumer on its new consumer; return where it writes values to."""
    path = java.directory / f"{name}.values"
    command = java_command(
        java.release, "kafka.tools.ConsoleConsumer", "--bootstrap-server", java.bootstrap, "--topic", "new",
        "--from-beginning", "--consumer-property", "group.id=new", "--consumer-property", "auto.commit.interval.ms=200",
        "--consumer-property", "heartbeat.interval.ms=200", brisk=True,
    )  # fmt: skip
    with path.open("wb") as out:
        java.spawn(name, command, stdout=out.fileno())
    return path


def read(path: Path) -> list[str]:
    """Return the values that a consumer has written."""
    return path.read_text().splitlines()


def members(java: JavaTools) -> set[int]:
    """Return how many partitions each member has."""
    said = java.run_tool(
        "kafka.admin.ConsumerGroupCommand",
        "--bootstrap-server",
        java.bootstrap,
        "--describe",
        "--group",
        "new",
        brisk=True,
    )
    rows = [line.split() for line in said.splitlines() if line.startswith("new ")]
    return set(Counter(row[5] for row in rows if len(row) > 5 and row[5] != "-").values())
