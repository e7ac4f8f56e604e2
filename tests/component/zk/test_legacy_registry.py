# SPDX-License-Identifier: Apache-2.0
"""The registry of Kafka 0.6 and 0.7 on a real ZooKeeper, whose nodes another client has written as they were recorded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from random import Random

import pytest
from kazoo.client import KazooClient

from consumerd.cluster.from_legacy_zookeeper import LegacyZooKeeperSource
from consumerd.cluster.view import ClusterView
from consumerd.embedded.zookeeper import EmbeddedZooKeeper
from consumerd.group.assignors import Strategy
from consumerd.group.plan import GroupSnapshot, plan_assignment
from consumerd.group.registry import GroupRegistry
from consumerd.zk.layout import BROKER_IDS, ids_path, topic_path
from consumerd.zk.layout_legacy import LEGACY
from consumerd.zk.port import ZkClient
from tests.support.waiting import until
from tests.support.znode_recordings import RecordedNode, load_legacy, put_nodes
from tests.support.zookeeper import make_client

RUNNING = "kafka-0.7.2/drv_two_consumers.json"


@asynccontextmanager
async def other(address: str) -> AsyncIterator[KazooClient]:
    """A session of kazoo's below a chroot; its calls block, so they are made in threads."""
    client = KazooClient(address)
    await asyncio.to_thread(client.start)
    try:
        yield client
    finally:
        await asyncio.to_thread(client.stop)
        await asyncio.to_thread(client.close)


async def put(client: KazooClient, nodes: Mapping[str, RecordedNode]) -> None:
    await asyncio.to_thread(put_nodes, client, nodes)


async def make_chroot(server: EmbeddedZooKeeper, root: str) -> str:
    async with make_client(server.connect_string) as zk:
        await zk.ensure_path(root)
    return f"{server.connect_string}{root}"


def nodes_of_broker(broker: int, kind: str) -> dict[str, RecordedNode]:
    """The recorded ephemeral nodes of a broker: its registration (``ids``), or its topics."""
    return {
        path: node
        for path, node in load_legacy(RUNNING).items()
        if node.ephemeral and path.startswith(f"/brokers/{kind}/") and path.endswith(f"/{broker}")
    }


def keys(view: ClusterView, topic: str) -> list[str]:
    return [str(key) for key in view.topics[topic].partitions]


def make_registry(zk: ZkClient, group: str) -> GroupRegistry:
    return GroupRegistry(zk, group, wall_ms=lambda: 0, random=Random(1), layout=LEGACY)


async def read_group(zk: ZkClient, group: str) -> GroupSnapshot:
    return await make_registry(zk, group).read(None, lambda topics: None)


@pytest.mark.parametrize(
    ("recording", "group"),
    [(RUNNING, "grp"), ("kafka-0.7.2/consoleconsumer_live.json", "g1"), ("jafka-3.0.6/jafka_consumer_live.json", "jg")],
)
async def test_recorded_clusters_and_groups_are_read(
    server: EmbeddedZooKeeper, root: str, recording: str, group: str
) -> None:
    """The assignment of the group that was read is that of the owners beside it."""
    address = await make_chroot(server, root)
    nodes = load_legacy(recording)
    owners = {
        "/".join(path.split("/")[4:]): node.data.decode()
        for path, node in nodes.items()
        if node.ephemeral and f"/{group}/owners/" in path
    }
    async with other(address) as client, make_client(address) as zk:
        await put(client, nodes)

        view = await LegacyZooKeeperSource(zk).read(None)
        snapshot = await read_group(zk, group)

        assert not view.has_leaderless
        assert {path.rpartition("/")[2] for path in nodes if path.startswith("/brokers/ids/")} == set(
            map(str, view.brokers)
        )
        assert [None] * len(snapshot.members) == [one.problem for one in snapshot.members]
        assigned = plan_assignment(snapshot, Strategy.RANGE)
        assert owners == {str(partition): thread for partition, thread in assigned.items()}


async def test_watches_and_stamps_report_brokers_that_come_and_go(server: EmbeddedZooKeeper, root: str) -> None:
    """A broker registers itself, then its topics; both nodes end with its session."""
    address = await make_chroot(server, root)
    fired: set[str] = set()
    async with other(address) as first, make_client(address) as zk:
        await put(first, nodes_of_broker(0, "ids") | nodes_of_broker(0, "topics"))
        await put(first, {path: node for path, node in load_legacy(RUNNING).items() if "/grp/ids" in path})
        source = LegacyZooKeeperSource(zk)
        assert ["0-0", "0-1", "0-2"] == keys(await source.read({"cons"}), "cons")
        for path, kind in LEGACY.topic_watches("cons").items():
            zk.watch(path, kind, lambda path=path: fired.add(path))  # type: ignore[misc]  # the default binds the path
        registry = make_registry(zk, "grp")

        async def note() -> GroupSnapshot:
            """Read the group again, when the watches are set."""
            await zk.exists("/")
            fired.clear()
            snapshot = await registry.read(None, lambda topics: None)
            assert await registry.is_current(snapshot.stamp, {"cons"})
            return snapshot

        snapshots = [await note()]
        async with other(address) as second:
            await put(second, nodes_of_broker(1, "ids"))
            await until(lambda: BROKER_IDS in fired)
            assert await registry.is_current(snapshots[-1].stamp, {"cons"})
            await note()
            await put(second, nodes_of_broker(1, "topics"))
            await until(lambda: topic_path("cons") in fired)
            assert not await registry.is_current(snapshots[-1].stamp, {"cons"})
            assert ["0-0", "0-1", "0-2", "1-0", "1-1", "1-2"] == keys(await source.read({"cons"}), "cons")
            snapshots.append(await note())
        await until(lambda: {BROKER_IDS, topic_path("cons")} <= fired)
        assert not await registry.is_current(snapshots[-1].stamp, {"cons"})
        assert ["0-0", "0-1", "0-2"] == keys(await source.read({"cons"}), "cons")
        snapshots.append(await note())
    stamps = [one.topics["cons"].stamp for one in snapshots]
    assert 3 == len(set(stamps))
    assert 1 == len({one.topics["cons"].czxid for one in snapshots})


async def test_nodes_without_data_are_malformed(server: EmbeddedZooKeeper, root: str) -> None:
    """ZooKeeper tells no data from empty data; no reader fails at either."""
    address = await make_chroot(server, root)
    paths = [f"{BROKER_IDS}/0", f"{topic_path('t')}/0", f"{ids_path('g')}/g_m"]
    async with other(address) as client, make_client(address) as zk:
        for path in paths:
            await asyncio.to_thread(client.create, path, None, ephemeral=True, makepath=True)
        node = await LEGACY.read_topic(zk, "t")
        (member,) = (await read_group(zk, "g")).members
        view = await LegacyZooKeeperSource(zk).read(None)
    assert node is not None
    assert node.problem == f"{topic_path('t')}/0: number of partitions: expected 0 to 100000, got ''"
    assert "expected a JSON object" in str(member.problem)
    assert ({}, {}) == (view.brokers, view.topics["t"].partitions)
