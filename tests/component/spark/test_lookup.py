# SPDX-License-Identifier: Apache-2.0
"""The driver's connections when all brokers that it has heard of are replaced."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from consumerd.access.address import ClusterAddress, IdentitiesFile
from consumerd.cluster.identities import ClusterIdentities
from consumerd.errors import ConfigError, ConnectionLost
from consumerd.model import TopicPartition
from consumerd.spark.datasource.lookup import ClusterLookup
from consumerd.spark.datasource.options import Subscribe
from tests.support.embedded import EmbeddedThread
from tests.support.zookeeper import run_server

ORDERS = TopicPartition.modern("orders", 0)


@pytest.fixture
def zookeeper() -> Iterator[str]:
    with run_server() as server:
        yield f"{server.connect_string}/lookup"


def test_brokers_that_all_were_replaced_are_looked_up_again(tmp_path: Path, zookeeper: str) -> None:
    """Partitions, ends of logs, and the executors' addresses are of the new brokers."""
    with EmbeddedThread(tmp_path, zookeeper) as first:
        first.create_topic("orders", 1)
        first.produce("orders", b"key\tone\n")
        given = ClusterAddress(client_id="consumerd-spark", bootstrap=first.bootstrap, zookeeper=zookeeper)
        lookup = ClusterLookup(given).__enter__()
        assert lookup.find_partitions(Subscribe(("orders",))) == (ORDERS,)
    try:
        with EmbeddedThread(tmp_path, zookeeper) as second:
            assert second.bootstrap != first.bootstrap

            assert lookup.log_ranges([ORDERS])[ORDERS].latest == 1
            assert lookup.find_partitions(Subscribe(("orders",))) == (ORDERS,)
            assert lookup.log_ranges([ORDERS])[ORDERS].latest == 1
            assert second.bootstrap in lookup.bootstrap().split(",")
    finally:
        lookup.__exit__(None, None, None)


def test_a_cluster_without_any_broker_is_told_with_both_reasons(tmp_path: Path, zookeeper: str) -> None:
    """The addresses that do not answer, and that ZooKeeper knows no others."""
    with EmbeddedThread(tmp_path, zookeeper):
        pass
    with (
        ClusterLookup(
            ClusterAddress(client_id="consumerd-spark", bootstrap="127.0.0.1:1", zookeeper=zookeeper)
        ) as lookup,
        pytest.raises(
            ConnectionLost, match=r"none of 1 brokers answered.*127\.0\.0\.1:1.*cannot be looked up.*no broker"
        ),
    ):
        lookup.find_partitions(Subscribe(("orders",)))


def test_brokers_that_hang_leave_time_to_look_up_others(tmp_path: Path, zookeeper: str) -> None:
    """A lost route: connections are taken, and nothing answers."""
    with EmbeddedThread(tmp_path, zookeeper) as broker, socket.create_server(("127.0.0.1", 0)) as silent:
        broker.create_topic("orders", 1)
        given = ClusterAddress(
            client_id="consumerd-spark", bootstrap=f"127.0.0.1:{silent.getsockname()[1]}", zookeeper=zookeeper
        )
        with ClusterLookup(given, timeout_s=4) as lookup:
            assert lookup.find_partitions(Subscribe(("orders",))) == (ORDERS,)


def test_a_record_of_identities_is_of_the_cluster_or_refused(tmp_path: Path, zookeeper: str) -> None:
    """Before anything is read: topics of another cluster would be taken for those of the checkpoint."""
    file = tmp_path / "identities.json"
    with EmbeddedThread(tmp_path / "broker", zookeeper) as broker:
        broker.create_topic("orders", 1)
        given = ClusterAddress(
            client_id="consumerd-spark",
            bootstrap=broker.bootstrap,
            identities=IdentitiesFile(setting="identities", file=file),
        )
        with pytest.raises(ConfigError, match=rf"^identities: {file}: cannot be read: No such file"):
            ClusterLookup(given).__enter__()
        file.write_text(ClusterIdentities(cluster="25-17", cluster_id="another").encode())
        with pytest.raises(ConfigError, match=rf"^identities: {file}: it is a record of cluster another"):
            ClusterLookup(given).__enter__()
        cluster_id = AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=60).cluster_id
        assert cluster_id is not None
        file.write_text(ClusterIdentities(cluster="25-17", cluster_id=cluster_id).encode())
        with ClusterLookup(given) as lookup:
            assert lookup.find_partitions(Subscribe(("orders",))) == (ORDERS,)
            assert lookup.identities.cluster == "25-17"
