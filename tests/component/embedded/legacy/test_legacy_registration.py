# SPDX-License-Identifier: Apache-2.0
"""Brokers of Kafka 0.7 in a real ZooKeeper: nodes, sessions that end, several brokers, one after the other."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from consumerd.embedded.ephemeral_nodes import BrokerIdTaken
from consumerd.embedded.legacy.broker import LegacyBroker, LegacyBrokerSettings
from consumerd.embedded.legacy.cluster import LegacyCluster
from consumerd.embedded.zookeeper import EmbeddedZooKeeper
from consumerd.model import BrokerId, PartitionKey
from consumerd.wire.legacy.stored_message import encode_message
from consumerd.zk.aiozk_client import AiozkClient
from consumerd.zk.layout_legacy import LEGACY
from tests.support.legacy_client import legacy_client, legacy_settings
from tests.support.tcp_proxy import TcpProxy
from tests.support.waiting import until
from tests.support.zookeeper import make_client

NOW_MS = 1_324_306_324_402
MESSAGE = encode_message(b"one")


async def dump(zk: AiozkClient, path: str = "/brokers") -> dict[str, tuple[bytes, bool]]:
    """Return data of every node, and whether it is ephemeral."""
    data, stat = await zk.get(path)
    found = {path: (data, stat.ephemeral_owner != 0)}
    for name in (await zk.children(path))[0]:
        found |= await dump(zk, f"{path}/{name}")
    return found


async def exists(zk: AiozkClient, path: str) -> bool:
    """Return True if a node exists."""
    return await zk.exists(path) is not None


async def produce(broker: LegacyBroker, topic: str, *, partition: int = 0, messages: bytes = MESSAGE) -> None:
    """Store a message."""
    async with legacy_client(broker.port) as client:
        await client.produce(messages, topic, partition)


def settings_of(path: Path, zookeeper: str, broker_id: int = 0, **settings: Any) -> LegacyBrokerSettings:
    """Return the settings of one of several brokers."""
    return legacy_settings(path / str(broker_id), zookeeper=zookeeper, broker_id=broker_id, **settings)


async def test_a_broker_and_its_topics_are_registered_as_by_kafka_0_7(tmp_path: Path, zookeeper: str) -> None:
    """``creator:host:port``, the number of partitions, parents without data; all gone after a stop but the parents."""
    settings = settings_of(tmp_path, zookeeper, 2, topic_partitions={"dogs": 4}, advertised_port=9092)
    async with LegacyBroker(settings, now_ms=lambda: NOW_MS) as broker, make_client(zookeeper) as zk:
        before = await dump(zk)
        for topic in ("dogs", "mutts", "dogs"):
            await produce(broker, topic, partition=1)
        await until(lambda: exists(zk, "/brokers/topics/mutts/2"))
        found = await dump(zk)
    async with make_client(zookeeper) as zk:
        after = await dump(zk)

    own = (b"127.0.0.1-1324306324402:127.0.0.1:9092", True)
    parents = dict.fromkeys(("/brokers", "/brokers/ids", "/brokers/topics"), (b"", False))
    assert {**parents, "/brokers/ids/2": own} == before
    topics = {f"/brokers/topics/{topic}": (b"", False) for topic in ("dogs", "mutts")}
    counts = {"/brokers/topics/dogs/2": (b"4", True), "/brokers/topics/mutts/2": (b"3", True)}
    assert {**before, **topics, **counts} == found
    assert {**parents, **topics} == after


async def test_brokers_of_a_cluster_have_their_own_partitions(tmp_path: Path, zookeeper: str) -> None:
    """As the layout of 0.7 reads them: ``B-P``; a topic is only where it was sent to."""
    zero, one = settings_of(tmp_path, zookeeper), settings_of(tmp_path, zookeeper, 1, num_partitions=1)
    async with LegacyBroker(zero) as first, LegacyBroker(one) as second, make_client(zookeeper) as zk:
        await produce(first, "t")
        await produce(second, "t", messages=MESSAGE * 2)
        await produce(second, "alone")

        async def partitions(topic: str) -> list[PartitionKey]:
            node = await LEGACY.read_topic(zk, topic)
            assert node is None or node.problem is None
            return [] if node is None else list(node.replicas)

        async def is_complete() -> bool:
            return (len(await partitions("t")), len(await partitions("alone"))) == (4, 1)

        await until(is_complete)
        expected = [PartitionKey(number, BrokerId(0)) for number in range(3)] + [PartitionKey(0, BrokerId(1))]
        assert expected == await partitions("t")
        assert [PartitionKey(0, BrokerId(1))] == await partitions("alone")
        async with legacy_client(second.port) as client:
            assert (0, MESSAGE * 2) == await client.fetch()


async def test_a_started_broker_registers_the_topics_that_it_has(tmp_path: Path, zookeeper: str) -> None:
    """Before it serves anybody: consumers find all partitions at once. A wiped broker has none."""
    settings = settings_of(tmp_path, zookeeper)
    async with LegacyBroker(settings) as broker:
        await produce(broker, "t")
    async with make_client(zookeeper) as zk:
        async with LegacyBroker(settings):
            again = await zk.children("/brokers/topics/t")
        shutil.rmtree(settings.directory)
        async with LegacyBroker(settings):
            wiped = await zk.children("/brokers/topics/t")
    assert (["0"], []) == (again[0], wiped[0])


async def test_a_new_session_registers_anew(tmp_path: Path, server: EmbeddedZooKeeper, chroot: str) -> None:
    """The broker, its topics, and one that came into being while ZooKeeper was away."""
    async with TcpProxy(server.port) as proxy, make_client(server.connect_string) as root:
        settings = settings_of(tmp_path, f"127.0.0.1:{proxy.port}{chroot}", session_timeout_ms=1000)
        async with LegacyBroker(settings) as broker:
            await produce(broker, "before")
            await until(lambda: exists(root, f"{chroot}/brokers/topics/before/0"))
            _, stat = await root.get(f"{chroot}/brokers/ids/0")
            proxy.blackhole()
            await produce(broker, "meanwhile")
            await until(lambda: has_none(root, f"{chroot}/brokers/ids"))
            proxy.heal()
            for topic in ("before", "meanwhile"):
                await until(lambda topic=topic: exists(root, f"{chroot}/brokers/topics/{topic}/0"))
            _, again = await root.get(f"{chroot}/brokers/ids/0")
    assert again.ephemeral_owner not in {0, stat.ephemeral_owner}


async def has_none(zk: AiozkClient, path: str) -> bool:
    """Return True if a node has no children."""
    return not (await zk.children(path))[0]


async def test_a_killed_brokers_nodes_linger_and_are_waited_for(tmp_path: Path, zookeeper: str) -> None:
    """Consumers see its partitions until its session expires; the next start of the broker has them again."""
    settings = settings_of(tmp_path, zookeeper, session_timeout_ms=1000)
    async with make_client(zookeeper.partition("/")[0]) as root:
        broker = LegacyBroker(settings)
        async with broker:
            await produce(broker, "t")
            chroot = "/" + zookeeper.partition("/")[2]
            await until(lambda: exists(root, f"{chroot}/brokers/topics/t/0"))
            _, killed = await root.get(f"{chroot}/brokers/topics/t/0")
            broker.abandon()
        async with LegacyBroker(settings):
            _, stat = await root.get(f"{chroot}/brokers/topics/t/0")
    assert stat.ephemeral_owner not in {0, killed.ephemeral_owner}


async def test_an_id_that_another_broker_has_is_a_clear_error(tmp_path: Path, zookeeper: str) -> None:
    """The message says where the other one is; nothing of the second one is left behind."""
    first = settings_of(tmp_path, zookeeper)
    second = replace(first, directory=tmp_path / "second", session_timeout_ms=1000)
    async with LegacyBroker(first) as broker:
        with pytest.raises(BrokerIdTaken, match=re.escape(f"a process at {broker.bootstrap}: stop it")):
            await LegacyBroker(second).__aenter__()
        await produce(broker, "t")
    async with LegacyBroker(second):
        pass


async def test_a_cluster_starts_stops_kills_and_wipes_its_brokers(tmp_path: Path, zookeeper: str) -> None:
    """Ports and logs are kept, but for those of a wiped broker."""
    make_broker = partial(LegacyBrokerSettings, num_partitions=2, session_timeout_ms=1000)
    async with LegacyCluster(tmp_path, zookeeper=zookeeper, nodes=2, make_broker=make_broker) as cluster:
        addresses = cluster.bootstrap
        for broker in cluster.brokers.values():
            await produce(broker, "t")
        await cluster.stop_broker(1)
        await cluster.stop_broker(1)
        assert addresses.split(",")[:1] == [cluster.bootstrap]
        with pytest.raises(RuntimeError, match="does not run"):
            await cluster.kill_broker(1)
        await cluster.start_broker(1)
        with pytest.raises(RuntimeError, match="runs already"):
            await cluster.start_broker(1)
        await cluster.wipe_broker(1)
        await cluster.kill_broker(0)
        await cluster.start_broker(0)
        assert addresses == cluster.bootstrap
        ends = []
        for number in range(2):
            async with legacy_client(cluster.brokers[number].port) as client:
                ends.append(await client.offsets(most=1))
        with pytest.raises(RuntimeError, match="no ZooKeeper"):
            _ = cluster.zookeeper_server
    assert [[len(MESSAGE)], [0]] == ends


async def test_a_cluster_without_arguments_has_a_zookeeper_and_leaves_nothing() -> None:
    """One line of a test."""
    async with LegacyCluster() as cluster:
        directory = cluster.brokers[0].logs.path.parent
        await produce(cluster.brokers[0], "t")
        async with make_client(cluster.zookeeper) as zk:
            await until(lambda: exists(zk, "/brokers/topics/t/0"))
        assert cluster.zookeeper_server.running
    assert not directory.exists()
    with pytest.raises(RuntimeError, match="does not run"):
        _ = LegacyBroker(LegacyBrokerSettings(directory=directory, zookeeper=None)).port
