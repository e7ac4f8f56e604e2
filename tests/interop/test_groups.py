# SPDX-License-Identifier: Apache-2.0
"""``consumerd groups`` and ``lag --all-groups`` of real groups: ours, and Java's of both kinds."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from consumerd.cli.main import DONE, FAILED, main
from consumerd.client.coordinator import choose_offsets_partition
from tests.interop.conftest import MAIN_RELEASE, ClusterFactory
from tests.support.daemon import Daemon, settings_for
from tests.support.kafka import Cluster, java_command
from tests.support.registry import open_registry
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(240)

JAVA_S = 60.0
"""A JVM starts and takes its partitions; the machine may be busy."""

Ask = Callable[..., tuple[int, str, str]]


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Ask:
    """Run a command; returns its exit code and what it printed."""

    def run(cluster: Cluster, command: str, *arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main([*command.split(), "-z", cluster.zookeeper, "--timeout", "40", *arguments])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run


def read_groups(ask: Ask, cluster: Cluster) -> dict[str, Any]:
    _, out, _ = ask(cluster, "groups --json")
    return {row["group"]: row for row in map(json.loads, out.splitlines())}


@contextmanager
def new_consumer(cluster: Cluster, group: str, topic: str) -> Iterator[None]:
    """Run Java's new consumer, as its console tool."""
    own = ("--consumer-property", f"group.id={group}", "--consumer-property", "client.id=java-app")
    command = java_command(
        cluster.release, "kafka.tools.ConsoleConsumer", "--bootstrap-server", cluster.bootstrap, "--topic", topic,
        "--from-beginning", *own, heap="256m", brisk=True,
    )  # fmt: skip
    name = f"console-{group}"
    cluster.spawn(name, command)
    try:
        yield
    finally:
        cluster.stop(name)


def produce(cluster: Cluster, topic: str, count: int) -> None:
    cluster.produce(topic, b"".join(b"k%d\tv\n" % number for number in range(count)))


def commit(cluster: Cluster, group: str, topic: str, position: int) -> None:
    """Commit without being a member."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group, "enable.auto.commit": False})
    try:
        consumer.commit(offsets=[TopicPartition(topic, 0, position)], asynchronous=False)
    finally:
        consumer.close()


def test_groups_of_all_kinds_are_listed_and_described(
    shared_clusters: ClusterFactory, unique: Callable[[str], str], ask: Ask, tmp_path: Path
) -> None:
    """One of ours, one of Java's high-level consumer, one of its new consumer; Kafka's own tool says the same."""
    cluster = shared_clusters(MAIN_RELEASE)
    topic, ours, java, web = (unique(stem) for stem in ("grouped", "ours", "java", "web"))
    cluster.create_topic(topic, 2)
    produce(cluster, topic, 60)
    high_level = cluster.java_consumer(java, topic, streams=2, offsets_storage="kafka", auto_commit_interval_ms="200")
    settings = settings_for(cluster.zookeeper, ours, topics=(topic,))
    with Daemon(tmp_path, "daemon", settings), new_consumer(cluster, web, topic):

        def has_all(row: dict[str, Any]) -> bool:
            return (row["members"], row["state"], row["lag"]) == (1, "Stable", 0)

        wait_until(
            lambda: (
                all(has_all(row) for row in map(read_groups(ask, cluster).get, (ours, java, web)) if row is not None)
                and {ours, java, web} <= read_groups(ask, cluster).keys()
            ),
            "each has read all",
            JAVA_S,
        )
        rows = read_groups(ask, cluster)
        reports = {name: json.loads(ask(cluster, f"groups describe {name} --json")[1]) for name in (ours, java, web)}
        tool = cluster.run_tool(
            "kafka.admin.ConsumerGroupCommand", "--bootstrap-server", cluster.bootstrap, "--describe", "--group", web,
            brisk=True,
        )  # fmt: skip
        code, out, err = ask(cluster, "lag --all-groups --json", topic)
        high_level.terminate()

    columns = ("registered", "positions", "topics", "note")
    assert ("zookeeper", "zookeeper", [topic], "") == tuple(rows[ours][one] for one in columns)
    assert ("zookeeper", "both", [topic], "") == tuple(rows[java][one] for one in columns)
    assert ("kafka", "kafka", [topic], "") == tuple(rows[web][one] for one in columns)
    assert DONE == code, err
    lags = [(row["group"], row["partition"], row["lag"]) for row in map(json.loads, out.splitlines())]
    assert sorted((name, partition, 0) for name in (ours, java, web) for partition in "01") == sorted(
        one for one in lags if one[0] in {ours, java, web}
    )
    (member,) = reports[ours]["members"]
    assert ("consumerd", 1, 2) == (member["note"], len(member["threads"]), len(member["owned"]))
    (member,) = reports[java]["members"]
    assert ("", 2, 2) == (member["note"], len(member["threads"]), len(member["owned"]))
    assert member["host"] is not None
    (member,) = reports[web]["members"]
    assert ("java-app", "127.0.0.1", [topic]) == (member["client_id"], member["host"], member["topics"])
    assert ("consumer", "range") == (reports[web]["protocol_type"], reports[web]["protocol"])
    described = [line.split() for line in tool.splitlines() if line.startswith(topic)]
    expected = [
        [topic, row["partition"], str(row["kafka"]), str(row["latest"]), str(row["lag"]), row["owner"]]
        for row in reports[web]["partitions"]
    ]
    assert sorted(expected) == sorted(line[:6] for line in described)


def test_groups_of_a_broker_that_is_gone_are_told_to_be_missing(own_cluster: ClusterFactory, ask: Ask) -> None:
    """Its part of ``__consumer_offsets`` has no other replica: nobody can list them, and the list says so."""
    cluster = own_cluster(MAIN_RELEASE, 2)
    cluster.create_topic("orders")
    produce(cluster, "orders", 10)
    groups = [f"g{number}" for number in range(8)]
    for group in groups:
        commit(cluster, group, "orders", 4)
    partitions = {row["partition"]: row for row in map(
        json.loads, ask(cluster, "topics --partitions __consumer_offsets --json")[1].splitlines()
    )}  # fmt: skip
    (leader,) = {
        row["leader"] for row in map(json.loads, ask(cluster, "topics --partitions orders --json")[1].splitlines())
    }
    lost = 1 - leader
    coordinators = {
        group: partitions[str(choose_offsets_partition(group, len(partitions)))]["leader"] for group in groups
    }
    assert {0, 1} == set(coordinators.values())
    reports = {name: json.loads(ask(cluster, f"groups describe {name} --json")[1]) for name in groups}
    assert {name: f"{broker} at" for name, broker in coordinators.items()} == {
        name: report["coordinator"][:4] for name, report in reports.items()
    }
    code, out, err = ask(cluster, "groups --json")
    assert (DONE, groups, "") == (code, [json.loads(line)["group"] for line in out.splitlines()], err)
    with open_registry(cluster.zookeeper) as registry:
        for group in groups:
            registry.client.create(f"/consumers/{group}/offsets/orders/0", b"7", makepath=True)

        cluster.kill_broker(lost)
        wait_until(lambda: "have no leader" in ask(cluster, "groups --json")[2], "the controller has noticed", 60)
        code, out, err = ask(cluster, "groups --json")
        rows = {row["group"]: row for row in map(json.loads, out.splitlines())}

    assert FAILED == code
    assert "of 4 partitions of __consumer_offsets have no leader" in err
    for group, coordinator in coordinators.items():
        expected = "zookeeper" if coordinator == lost else "both"
        assert (expected, 3) == (rows[group]["positions"], rows[group]["lag"])
        assert (coordinator == lost) == ("positions in Kafka are unknown" in rows[group]["note"])
