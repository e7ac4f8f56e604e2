# SPDX-License-Identifier: Apache-2.0
"""A daemon as a process at the registries of each generation of Kafka: those that it refuses, and those it waits for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from consumerd.embedded.zookeeper import EmbeddedZooKeeper
from tests.support.daemon import Daemon, settings_for
from tests.support.embedded import EmbeddedThread
from tests.support.jafka import dump
from tests.support.kafka import Sent
from tests.support.ledger import send_all
from tests.support.registry import open_registry
from tests.support.znode_recordings import LEGACY, load_legacy, put_nodes


@pytest.mark.parametrize(
    "name", [one for one in LEGACY if any(path.startswith("/brokers/ids/") for path in load_legacy(one))]
)
def test_a_recorded_cluster_of_0_7_is_refused_and_nothing_is_written(
    zookeeper: EmbeddedZooKeeper, unique: Callable[[str], str], tmp_path: Path, name: str
) -> None:
    """Exit code 2, with the node that says it: nothing restarts such a process, and the Java members go on."""
    at = f"{zookeeper.connect_string}/{unique('legacy')}"
    with open_registry(zookeeper.connect_string) as root:
        root.client.ensure_path(at.partition("/")[2])
    with open_registry(at) as registry:
        put_nodes(registry.client, load_legacy(name))
        before = dump(at)
        with Daemon(tmp_path, "d", settings_for(at, "g1", topics=("cons",))) as daemon:
            assert daemon.wait_end() == 2
        assert dump(at) == before
    assert "cluster.zookeeper: brokers of Kafka 0.6 or 0.7 are registered" in daemon.log()
    assert "/brokers/ids/" in daemon.log()


def test_brokers_that_are_down_are_waited_for_and_nothing_is_registered(
    zookeeper: EmbeddedZooKeeper, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """Topics outlive their brokers; until one is back it is not known whose they are."""
    at = f"{zookeeper.connect_string}/{unique('down')}"
    directory = tmp_path / "broker"
    with EmbeddedThread(directory, at) as broker:
        broker.create_topic("orders")
        send_all(broker.bootstrap, [Sent("orders", 0, None, b"v")])
    with Daemon(tmp_path, "d", settings_for(at, "lake", topics=("orders",))) as daemon:
        daemon.wait(lambda: "no broker is registered under /brokers/ids" in daemon.get("/readyz")[1], "the reason")
        assert daemon.get("/readyz")[0] == 503
        assert 'consumerd_troubles_total{kind="brokers_missing"} 1.0' in daemon.get("/metrics")[1]
        with open_registry(at) as registry:
            assert "lake" not in registry.client.get_children("/consumers")
            # somebody's tool, which is no broker of any release
            registry.client.create("/brokers/ids/7", b"here", ephemeral=True)
            daemon.wait(lambda: "/brokers/ids/7: " in daemon.get("/readyz")[1], "the node that cannot be read")
            with EmbeddedThread(directory, at):
                daemon.wait(lambda: len(daemon.deliveries) == 1, "it consumes")
                assert daemon.terminate() == 0
