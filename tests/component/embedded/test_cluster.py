# SPDX-License-Identifier: Apache-2.0
"""ZooKeeper and a broker together: they come, go and come back, and never leave anything behind."""

from __future__ import annotations

import asyncio
import socket
import tempfile
from functools import partial
from pathlib import Path

import pytest

from consumerd.client.opening import open_producer
from consumerd.embedded.broker import BrokerSettings
from consumerd.embedded.cluster import EmbeddedCluster
from consumerd.embedded.zookeeper import EmbeddedZooKeeper
from consumerd.errors import ConfigError
from tests.support.processes import pids_in
from tests.support.waiting import until


def partitions(cluster: EmbeddedCluster, topic: str) -> tuple[int, ...]:
    found = cluster.broker.topics.find(topic)
    return () if found is None else found.partitions


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders are made, so that one that is left behind is seen."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


async def test_it_is_there_with_its_topics_comes_back_with_its_records_and_is_gone_afterwards(temporary: Path) -> None:
    """Tests and the demo start many; a broker that was away is found where it was, and producers go on there."""
    async with EmbeddedCluster(topics={"orders": 3}) as cluster, open_producer(cluster.bootstrap) as producer:
        before = cluster.bootstrap
        assert before == f"127.0.0.1:{cluster.broker.port}"
        assert partitions(cluster, "orders") == (0, 1, 2)
        assert "Mode: standalone" in await cluster.zookeeper_server.ask("srvr")
        assert len(list(temporary.iterdir())) == 1
        assert (await producer.send("orders", b"first", partition=1)).offset == 0

        await cluster.stop_broker()
        with pytest.raises(OSError):  # noqa: PT011 (refused, in the system's words)
            await asyncio.open_connection("127.0.0.1", int(before.rpartition(":")[2]))
        await cluster.stop_broker()
        await cluster.start_broker()

        assert before == cluster.bootstrap
        with pytest.raises(RuntimeError):
            await cluster.start_broker()
        assert (await producer.send("orders", b"second", partition=1)).offset == 1

    assert list(temporary.iterdir()) == []
    assert pids_in(temporary) == set()
    with pytest.raises(RuntimeError):
        _ = cluster.bootstrap


async def test_a_folder_that_is_given_stays(tmp_path: Path, temporary: Path) -> None:
    """Topics that are there already are left as they are."""
    async with EmbeddedCluster(tmp_path / "cluster", topics={"orders": 3}):
        pass
    async with EmbeddedCluster(tmp_path / "cluster", topics={"orders": 5}) as cluster:
        assert partitions(cluster, "orders") == (0, 1, 2)

    assert {path.name for path in (tmp_path / "cluster").iterdir()} == {"zookeeper", "logs"}
    assert list(temporary.iterdir()) == []


async def test_it_leaves_a_zookeeper_that_was_there_running(server: EmbeddedZooKeeper, zookeeper: str) -> None:
    """Several brokers may share one, each below a chroot."""
    async with EmbeddedCluster(zookeeper=f"{zookeeper}/a/b", topics={"orders": 1}) as cluster:
        assert cluster.zookeeper == f"{zookeeper}/a/b"
        with pytest.raises(RuntimeError):
            _ = cluster.zookeeper_server

    assert server.running


async def test_a_start_that_fails_leaves_nothing(temporary: Path) -> None:
    """ZooKeeper runs by then, and the folder is there."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        cluster = EmbeddedCluster(make_broker=partial(BrokerSettings, port=taken.getsockname()[1]))
        with pytest.raises(ConfigError):
            async with cluster:
                pass

    assert list(temporary.iterdir()) == []
    assert pids_in(temporary) == set()


async def test_a_start_that_is_cancelled_leaves_nothing(temporary: Path) -> None:
    """Somebody presses Ctrl-C before it is up."""

    async def start() -> None:
        async with EmbeddedCluster():
            raise AssertionError("it was cancelled before it was up")

    async with asyncio.TaskGroup() as tasks:
        starting = tasks.create_task(start())
        await until(lambda: any(temporary.rglob("zookeeper.log")))
        starting.cancel()

    assert list(temporary.iterdir()) == []
    assert pids_in(temporary) == set()
