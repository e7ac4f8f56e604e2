# SPDX-License-Identifier: Apache-2.0
"""A member and a view of the cluster over the registry of Kafka 0.6 and 0.7: partitions as children of a topic's node.

Brokers register a topic so: ``/brokers/topics/T/B`` holds the number of partitions on broker B.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from random import Random

from consumerd.cluster.directory import ClusterDirectory
from consumerd.cluster.from_legacy_zookeeper import LegacyZooKeeperSource
from consumerd.group.identity import MemberIdentity
from consumerd.group.rebalancer import Rebalancer
from consumerd.group.registry import GroupRegistry
from consumerd.group.settings import RebalanceSettings
from consumerd.group.subscription import Subscription
from consumerd.model import BrokerId, Claim, PartitionKey, TopicPartition
from consumerd.zk.layout import broker_path, id_path, ids_path, owners_path, topic_path
from consumerd.zk.layout_legacy import LEGACY
from tests.support.fake_zookeeper import FakeZkClient, FakeZooKeeper
from tests.support.virtual_time import run

GROUP = "g"


class Held:
    """Keeps the claims that a member gives it."""

    def __init__(self) -> None:
        self.claims: dict[TopicPartition, Claim] = {}

    async def claimed(self, claims: Sequence[Claim]) -> None:
        self.claims.update({claim.partition: claim for claim in claims})

    async def drain(self, partitions: Collection[TopicPartition], deadline_s: float) -> None:
        for partition in partitions:
            del self.claims[partition]

    async def lost(self, partitions: Collection[TopicPartition]) -> None:
        for partition in partitions:
            self.claims.pop(partition, None)


def make_server() -> FakeZooKeeper:
    server = FakeZooKeeper()
    server.put(broker_path(BrokerId(0)), b"creator:h0:9092")
    server.put(f"{topic_path('t')}/0", b"2")
    return server


def play(scenario: Callable[[FakeZooKeeper, FakeZkClient], Awaitable[None]]) -> None:
    async def live() -> None:
        server = make_server()
        client = server.client("m")
        client.connect()
        await scenario(server, client)

    run(live())


def test_member_consumes_over_another_layout() -> None:
    """Its registration, the partitions and their changes all come from the layout; nothing else knows the formats."""

    async def scenario(server: FakeZooKeeper, client: FakeZkClient) -> None:
        loop = asyncio.get_running_loop()
        held = Held()
        member = Rebalancer(
            client,
            identity=MemberIdentity(group=GROUP, host="m"),
            subscription=Subscription.to_topics({"t": 1}),
            listener=held,
            now=loop.time,
            wall_ms=lambda: int(loop.time() * 1000),
            random=Random(1),
            settings=RebalanceSettings(),
            layout=LEGACY,
        )
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(member.run())
            await asyncio.sleep(2)
            assert ["t/0-0", "t/0-1"] == sorted(map(str, held.claims))
            assert ["0-0", "0-1"] == server.names(owners_path(GROUP, "t"))
            status = member.status
            assert status.ready
            assert status.consumer is not None
            node = server.read(id_path(GROUP, status.consumer))
            assert node is not None
            assert b'{ "t": 1 }' == node[0]
            server.put(f"{topic_path('t')}/1", b"1")
            await asyncio.sleep(2)
            assert ["t/0-0", "t/0-1", "t/1-0"] == sorted(map(str, held.claims))
            server.remove(f"{topic_path('t')}/0")
            await asyncio.sleep(2)
            assert ["t/1-0"] == sorted(map(str, held.claims))
            assert await member.leave()
            await running

    play(scenario)


def test_snapshot_of_children_is_out_of_date_when_they_change() -> None:
    """By the topic's data version, a stale plan would pass, and keep what others claim."""

    async def scenario(server: FakeZooKeeper, client: FakeZkClient) -> None:
        server.put(ids_path(GROUP))
        registry = GroupRegistry(client, GROUP, wall_ms=lambda: 0, random=Random(1), layout=LEGACY)
        subscription = Subscription.to_topics({"t": 1})
        await registry.register(MemberIdentity(group=GROUP, host="m"), subscription, client.state.epoch)
        snapshot = await registry.read(None, lambda _topics: None)
        assert ["0-0", "0-1"] == [str(key) for key in snapshot.topics["t"].partitions]
        assert await registry.is_current(snapshot.stamp, {"t"})
        server.put(f"{topic_path('t')}/1", b"1")
        assert not await registry.is_current(snapshot.stamp, {"t"})

    play(scenario)


def test_view_of_the_cluster_follows_children() -> None:
    """Brokers, partitions and leaders come from the layout, and its watches refresh the view."""

    async def scenario(server: FakeZooKeeper, client: FakeZkClient) -> None:
        directory = ClusterDirectory(
            client,
            LegacyZooKeeperSource(client),
            lambda known: LegacyZooKeeperSource(client),  # in the place of Metadata
            now=asyncio.get_running_loop().time,
            random=Random(1).random,
            layout=LEGACY,
        )
        directory.follow({"t"})
        first = TopicPartition("t", PartitionKey(1, BrokerId(0)))
        second = TopicPartition("t", PartitionKey(0, BrokerId(1)))
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(directory.run())
            await asyncio.sleep(5)
            await directory.refresh("leaders are wanted")
            leader = directory.find_leader(first)
            assert leader is not None
            assert (leader.host, leader.port) == ("h0", 9092)
            server.put(broker_path(BrokerId(1)), b"creator:h1:9093")
            await asyncio.sleep(60)
            assert len(directory.view.brokers) == 2
            server.put(f"{topic_path('t')}/1", b"1")  # only the topic's own watch reports it
            await asyncio.sleep(5)
            assert second.partition in directory.view.topics["t"].partitions
            running.cancel()

    play(scenario)
