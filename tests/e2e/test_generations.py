# SPDX-License-Identifier: Apache-2.0
"""A daemon at registries that contradict its settings or each other, which it refuses, and at those that it waits for."""

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
from tests.support.seeds import some_of
from tests.support.znode_recordings import LEGACY, load_legacy, put_nodes

pytestmark = pytest.mark.drawn


@pytest.mark.parametrize(
    "name",
    some_of(
        "clusters of 0.7",
        [one for one in LEGACY if any(path.startswith("/brokers/ids/") for path in load_legacy(one))],
        2,
    ),
)
@pytest.mark.parametrize("setting", ["modern", "auto"])
def test_a_recorded_cluster_of_0_7_is_refused_where_0_8_is_set_or_registered_beside_it(
    zookeeper: EmbeddedZooKeeper, unique: Callable[[str], str], tmp_path: Path, name: str, setting: str
) -> None:
    """Exit code 2, with the node that says it, and nothing written: the Java members of the group go on."""
    at = f"{zookeeper.connect_string}/{unique('legacy')}"
    with open_registry(zookeeper.connect_string) as root:
        root.client.ensure_path(at.partition("/")[2])
    with open_registry(at) as registry:
        put_nodes(registry.client, load_legacy(name))
        if setting == "auto":
            registry.client.create("/brokers/ids/77", b'{"jmx_port":-1,"host":"127.0.0.1","version":1,"port":9092}')
        before = dump(at)
        given = settings_for(at, "g1", topics=("cons",), cluster={"generation": setting})
        with Daemon(tmp_path, "d", given) as daemon:
            assert daemon.wait_end() == 2
        assert dump(at) == before
    told = "brokers of two generations" if setting == "auto" else "cluster.generation is modern, and no broker of that"
    assert f"cluster.zookeeper: {told}" in daemon.log()
    assert "/brokers/ids/" in daemon.log()


def test_a_cluster_of_0_8_is_refused_where_0_7_is_set(
    zookeeper: EmbeddedZooKeeper, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """Nothing is written there, either."""
    at = f"{zookeeper.connect_string}/{unique('modern')}"
    with EmbeddedThread(tmp_path / "broker", at):
        before = dump(at)
        given = settings_for(at, "g1", topics=("cons",), cluster={"generation": "legacy"})
        with Daemon(tmp_path, "d", given) as daemon:
            assert daemon.wait_end() == 2
        assert dump(at) == before
    assert "cluster.generation is legacy, and no broker of that generation is registered" in daemon.log()


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
