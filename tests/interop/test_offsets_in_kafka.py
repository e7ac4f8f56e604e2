# SPDX-License-Identifier: Apache-2.0
"""Positions in Kafka, and in both places: our members and Java's take over from each other at exactly one position."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.interop.conftest import ClusterFactory
from tests.support.daemon import Daemon, settings_for
from tests.support.kafka import Cluster, JavaConsumer, Sent
from tests.support.registry import open_registry
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.timeout(240)]

PARTITIONS, MORE = 2, 100


def produce(cluster: Cluster, topic: str) -> None:
    """Send as many records to each partition, and wait until the brokers have them."""
    producer = cluster.ledger_producer()
    producer.send(Sent(topic, number % PARTITIONS, None, b"value %d" % number) for number in range(MORE * PARTITIONS))
    producer.finish()


def read_by_ours(
    cluster: Cluster, directory: Path, name: str, group: str, topic: str, *, dual: bool
) -> list[tuple[int, int]]:
    """Run a daemon until it has delivered what was produced last; return partitions and offsets."""
    offsets = {"storage": "kafka", "dual_commit": dual, "commit_interval_ms": 200}
    settings = settings_for(cluster.zookeeper, group, topics=(topic,), offsets=offsets)
    with Daemon(directory, name, settings) as daemon:
        daemon.wait(lambda: len(daemon.deliveries) >= MORE * PARTITIONS, "the records", 60)
        assert daemon.terminate() == 0
        return [(one.partition, one.offset) for one in daemon.deliveries]


def read_by_java(cluster: Cluster, group: str, topic: str, *, dual: bool) -> list[tuple[int, int]]:
    """The same with the Java consumer, which leaves in order."""
    properties = {
        "offsets_storage": "kafka",
        "dual_commit_enabled": str(dual).lower(),
        "auto_commit_interval_ms": "200",
    }
    consumer: JavaConsumer = cluster.java_consumer(group, topic, **properties)
    try:
        wait_until(lambda: len(consumer.records()) >= MORE * PARTITIONS, "the records", 60)
        consumer.terminate()
    finally:
        if consumer.process.poll() is None:
            consumer.kill()
    return [(partition, offset) for _, partition, offset, _ in consumer.records()]


@pytest.mark.smoke
@pytest.mark.newer_brokers
@pytest.mark.parametrize("dual", [True, False], ids=["both", "kafka alone"])
def test_java_and_ours_take_over_from_each_other(
    release: str, shared_clusters: ClusterFactory, unique: Callable[[str], str], tmp_path: Path, dual: bool
) -> None:
    """Ours, Java, ours: each record once, though three processes have read them by turns."""
    cluster = shared_clusters(release)
    topic, group = unique("handed-over"), unique("by-turns")
    cluster.create_topic(topic, PARTITIONS)
    read = []
    produce(cluster, topic)
    read += read_by_ours(cluster, tmp_path, "first", group, topic, dual=dual)
    produce(cluster, topic)
    read += read_by_java(cluster, group, topic, dual=dual)
    produce(cluster, topic)
    read += read_by_ours(cluster, tmp_path, "third", group, topic, dual=dual)
    with open_registry(cluster.zookeeper) as registry:
        in_zookeeper = registry.offsets(group, topic)

    assert sorted(read) == [(partition, offset) for partition in range(PARTITIONS) for offset in range(3 * MORE)]
    assert set(in_zookeeper.values()) <= ({3 * MORE} if dual else {0})
