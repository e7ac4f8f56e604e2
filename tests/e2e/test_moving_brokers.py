# SPDX-License-Identifier: Apache-2.0
"""A daemon on two brokers: partitions and the coordinator of its positions move, stop and die, and no record is lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from consumerd.embedded.zookeeper import EmbeddedZooKeeper
from tests.support.daemon import Daemon, settings_for
from tests.support.embedded import EmbeddedProcess, EmbeddedThread
from tests.support.kafka import Sent
from tests.support.ledger import send_all
from tests.support.offset_commands import read_landed
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.records, pytest.mark.drawn]

PARTITIONS = 4
ROUND = 40


def read_kafka(cluster: EmbeddedThread, group: str, topic: str) -> list[int]:
    """Return the positions in Kafka, by a client that is not ours."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group})
    try:
        wanted = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        return [one.offset for one in consumer.committed(wanted, timeout=20)]
    finally:
        consumer.close()


@pytest.mark.timeout(180)
def test_a_daemon_follows_its_leaders_and_its_coordinator(
    zookeeper: EmbeddedZooKeeper, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """Stopped in order, killed, started again: files hold each record once, positions are complete each time."""
    topic, group = unique("followed"), unique("followers")
    connect = f"{zookeeper.connect_string}/{unique('pair')}"
    folder = tmp_path / "landing"
    settings = settings_for(
        connect,
        group,
        topics=(topic,),
        sink={"type": "parquet", "path": str(folder), "roll_ms": 200},
        offsets={"storage": "kafka", "dual_commit": False, "commit_interval_ms": 200},
    )
    with EmbeddedThread(tmp_path / "cluster", connect, nodes=2, session_timeout_ms=2000) as cluster:
        cluster.create_topic(topic, PARTITIONS)
        with Daemon(tmp_path, "one", settings) as daemon:
            sent = 0

            def land_a_round() -> None:
                nonlocal sent
                values = (Sent(topic, one % PARTITIONS, None, b"%d" % one) for one in range(sent, sent + ROUND))
                send_all(cluster.bootstrap, values)
                sent += ROUND
                expected = [sent // PARTITIONS] * PARTITIONS
                daemon.wait(lambda: read_kafka(cluster, group, topic) == expected, f"{sent} records are committed")

            land_a_round()
            coordinator = cluster.find_coordinator(group)
            assert coordinator is not None
            cluster.stop_node(coordinator)
            land_a_round()
            cluster.start_node(coordinator)
            cluster.elect_preferred_leaders()
            land_a_round()
            after = cluster.find_coordinator(group)
            assert after == coordinator
            cluster.kill_node(coordinator)
            wait_until(lambda: cluster.find_leader(topic, coordinator) == 1 - coordinator, "the other leads")
            land_a_round()
            assert daemon.terminate() == 0

    landed = [read_landed(folder, topic, number).offsets for number in range(PARTITIONS)]
    assert landed == [[*range(sent // PARTITIONS)]] * PARTITIONS


@pytest.mark.timeout(180)
@pytest.mark.parametrize("arguments", [(), ("--without-zookeeper",)], ids=["zookeeper", "without zookeeper"])
def test_the_command_runs_several_brokers(arguments: tuple[str, ...], tmp_path: Path) -> None:
    """Each has a port of its own; a foreign client finds all from one, and the topics are there the next time."""
    lines = b"".join(b"key-%d\tvalue-%d\n" % (number, number) for number in range(100))
    with EmbeddedProcess(tmp_path, "--nodes", "2", "--topic", "orders:3", *arguments) as cluster:
        addresses = cluster.bootstrap.split(",")
        consumer = Consumer({"bootstrap.servers": addresses[1], "group.id": "g"})
        known = consumer.list_topics(timeout=10)
        consumer.close()
        cluster.produce("orders", lines)
        assert cluster.stop() == 0
        cluster.start()
        assert len(cluster.read("orders", 3)) == 100
        assert bool(cluster.zookeeper) == (not arguments)
        assert "Traceback" not in cluster.log()

    assert {0, 1} == set(known.brokers)
    assert {0, 1} == {one.leader for one in known.topics["orders"].partitions.values()}
    assert all({0, 1} == set(one.replicas) for one in known.topics["orders"].partitions.values())
