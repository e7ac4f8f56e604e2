# SPDX-License-Identifier: Apache-2.0
"""Topics and leaders of Kafka 0.6 and 0.7, from recorded registries and from damaged ones."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from consumerd.model import BrokerId, Generation, Incarnation, PartitionKey, TopicPartition
from consumerd.zk.layout_legacy import LEGACY, read_topic_brokers, topic_broker_path
from consumerd.zk.port import WatchKind, ZkClient
from consumerd.zk.registry_layout import RegistryLayout, TopicNode
from consumerd.zk.znodes import MalformedZnode, PartitionStateNode
from tests.support.fake_zookeeper import FakeZooKeeper
from tests.support.virtual_time import run
from tests.support.znode_recordings import load_legacy

T = TypeVar("T")

LAYOUT: RegistryLayout = LEGACY


def make_server(nodes: dict[str, bytes] | None = None, *, recording: str | None = None) -> FakeZooKeeper:
    server = FakeZooKeeper()
    recorded = {} if recording is None else {path: node.data for path, node in load_legacy(recording).items()}
    for path, data in {**recorded, **(nodes or {})}.items():
        server.put(path, data)
    return server


def ask(server: FakeZooKeeper, question: Callable[[ZkClient], Awaitable[T]]) -> T:
    async def play() -> T:
        client = server.client("reader")
        client.connect()
        return await question(client)

    return run(play())


def read(server: FakeZooKeeper, topic: str) -> TopicNode | None:
    return ask(server, lambda zk: LAYOUT.read_topic(zk, topic))


def partition(text: str, topic: str = "t") -> TopicPartition:
    return TopicPartition(topic, PartitionKey.parse(text))


def test_recorded_topic_has_the_partitions_of_each_broker() -> None:
    """Those that the recorded group has positions for, each on its own broker."""
    server = make_server(recording="kafka-0.7.2/consoleconsumer_live.json")
    stat = ask(server, lambda zk: zk.exists("/brokers/topics/cons"))
    assert stat is not None

    node = read(server, "cons")

    assert node is not None
    assert server.names("/consumers/g1/offsets/cons") == [str(key) for key in node.replicas]
    assert [(0,)] * 3 + [(1,)] * 3 == list(node.replicas.values())
    assert (Incarnation(stat.czxid), None) == (node.incarnation, node.problem)
    assert (stat.czxid, stat.cversion) == node.stamp
    assert Generation.LEGACY is LAYOUT.generation


def test_topic_whose_brokers_are_away_has_no_partitions() -> None:
    """Its node stays; a topic that no broker ever had is not there."""
    server = make_server(recording="kafka-0.7.2/brokers_down.json")
    node = read(server, "cons")
    assert node is not None
    assert ({}, None) == (node.replicas, node.problem)
    assert read(server, "no-such-topic") is None


def test_partitions_are_in_the_order_of_text() -> None:
    """As Java members sort them: 0-10 before 0-2, and broker 10 before broker 2."""
    server = make_server({"/brokers/topics/t/2": b"1", "/brokers/topics/t/10": b"1", "/brokers/topics/t/0": b"11"})
    node = read(server, "t")
    assert node is not None
    assert ["0-0", "0-1", "0-10", "0-2"] == [str(key) for key in node.replicas][:4]
    assert ["0-9", "10-0", "2-0"] == [str(key) for key in node.replicas][-3:]


def test_a_damaged_child_makes_the_topic_unreadable() -> None:
    """No Java member can read it either, and a part of the partitions would be another assignment."""
    children = {"0": b"3", "1": b"three", "x": b"3", "07": b"3"}
    server = make_server({f"/brokers/topics/t/{name}": data for name, data in children.items()})

    node = read(server, "t")
    brokers = ask(server, lambda zk: read_topic_brokers(zk, "t"))

    assert node is not None
    assert brokers is not None
    assert {} == node.replicas
    assert node.problem == (
        "/brokers/topics/t/07: expected a broker id as the node's name; "
        "/brokers/topics/t/1: number of partitions: expected 0 to 100000, got 'three'; "
        "/brokers/topics/t/x: expected a broker id as the node's name"
    )
    assert {0: 3} == brokers.counts
    assert ["07", "1", "x"] == [path.rpartition("/")[2] for path in sorted(brokers.problems)]


def test_a_broker_that_goes_away_during_the_read_is_left_out() -> None:
    """Its node was listed, and is gone when it is read; the stamp is that of the listing, so it is out of date."""
    server = make_server({"/brokers/topics/t/0": b"1", "/brokers/topics/t/1": b"1"})

    class Leaving:
        """A session during whose listing a broker goes away."""

        def __init__(self, zk: ZkClient) -> None:
            self._zk = zk
            self.find = zk.find

        async def children(self, path: str) -> object:
            listed = await self._zk.children(path)
            await self._zk.delete("/brokers/topics/t/1")
            return listed

    async def leave(zk: ZkClient) -> tuple[TopicNode | None, bool]:
        node = await LAYOUT.read_topic(Leaving(zk), "t")  # type: ignore[arg-type]  # two methods are enough
        stat = await zk.exists("/brokers/topics/t")
        assert node is not None
        assert stat is not None
        return node, node.stamp == LAYOUT.stamp_topic(stat)

    node, current = ask(server, leave)
    assert node is not None
    assert ["0-0"] == [str(key) for key in node.replicas]
    assert not current


def test_brokers_and_a_topics_children_are_watched() -> None:
    """The data of these nodes never change."""
    watches = LAYOUT.topic_watches("t")
    assert {"/brokers/topics/t": WatchKind.CHILDREN, "/brokers/ids": WatchKind.CHILDREN} == watches


def test_stamp_changes_with_the_brokers_of_a_topic() -> None:
    """Also when a broker restarts with another number of partitions, and when the topic's node is made again."""
    server = make_server({"/brokers/topics/t/0": b"1"})

    async def change(zk: ZkClient) -> list[object]:
        stamps: list[object] = []

        async def note() -> None:
            node = await LAYOUT.read_topic(zk, "t")
            assert node is not None
            stamps.append(node.stamp)

        await note()
        await zk.delete("/brokers/topics/t/0")
        await note()
        await zk.create("/brokers/topics/t/0", b"2")
        await note()
        await zk.delete("/brokers/topics/t/0")
        await zk.delete("/brokers/topics/t")
        await zk.create("/brokers/topics/t", b"")
        await zk.create("/brokers/topics/t/0", b"2")
        await note()
        return stamps

    assert 4 == len(set(ask(server, change)))


def test_broker_in_the_key_is_the_leader_while_it_has_the_partition() -> None:
    """Without epochs; a partition that the broker does not have is not there yet."""
    server = make_server({"/brokers/topics/t/2": b"2", "/brokers/topics/t/3": b"?"})

    async def lead(zk: ZkClient) -> list[PartitionStateNode | None]:
        return [await LAYOUT.read_leader(zk, partition(text)) for text in ("2-1", "2-2", "1-0")]

    here = PartitionStateNode(leader=BrokerId(2), leader_epoch=-1, isr=(BrokerId(2),), controller_epoch=-1)
    assert [here, None, None] == ask(server, lead)
    assert "/brokers/topics/t/2" == LAYOUT.leader_path(partition("2-1")) == topic_broker_path("t", BrokerId(2))
    with pytest.raises(MalformedZnode):
        ask(server, lambda zk: LAYOUT.read_leader(zk, partition("3-0")))
    with pytest.raises(ValueError, match="t/1: expected BROKER-N"):
        LAYOUT.leader_path(partition("1"))


def test_no_node_is_as_old_as_its_partition() -> None:
    """The ephemeral node is younger after each restart of the broker; the partition would be taken for a new one."""
    assert LAYOUT.birth_path(partition("0-0")) is None
