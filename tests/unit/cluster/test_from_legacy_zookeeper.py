# SPDX-License-Identifier: Apache-2.0
"""A cluster of Kafka 0.6 or 0.7 as ZooKeeper has it, from recorded registries."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import structlog

from consumerd.cluster.from_legacy_zookeeper import LegacyZooKeeperSource
from consumerd.cluster.view import Broker, ClusterView, PartitionView, RegistrySource
from consumerd.daemon.status import RecentEvents
from consumerd.model import BrokerId, Incarnation, PartitionKey, TopicPartition
from consumerd.zk.port import NotConnected
from tests.support.fake_zookeeper import FakeZooKeeper
from tests.support.virtual_time import run
from tests.support.znode_recordings import load_legacy


def make_server(recording: str | None = None, nodes: Mapping[str, bytes] | None = None) -> FakeZooKeeper:
    server = FakeZooKeeper()
    recorded = {} if recording is None else {path: node.data for path, node in load_legacy(recording).items()}
    for path, data in {**recorded, **(nodes or {})}.items():
        server.put(path, data)
    return server


def read(
    server: FakeZooKeeper, topics: set[str] | None, *, times: int = 1, recent: RecentEvents | None = None
) -> ClusterView:
    """Return the view, the same each time."""

    async def play() -> list[ClusterView]:
        client = server.client("reader")
        client.connect()
        source: RegistrySource = LegacyZooKeeperSource(client, hooks=recent)
        return [await source.read(topics, leaders=bool(number % 2)) for number in range(times)]

    views = run(play())
    assert [views[0]] * times == views
    return views[0]


def keys(view: ClusterView, topic: str) -> list[str]:
    return [str(key) for key in view.topics[topic].partitions]


def test_recorded_registry_of_kafka_0_7_becomes_a_view() -> None:
    """Two brokers, each of which leads its own partitions of each topic."""
    server = make_server("kafka-0.7.2/autooffset.json")

    view = read(server, None)

    assert view.brokers == {
        0: Broker(id=BrokerId(0), host="127.0.0.1", port=22110),
        1: Broker(id=BrokerId(1), host="127.0.0.1", port=22111),
    }
    assert ["0-0", "0-1", "0-2", "1-0", "1-1", "1-2"] == keys(view, "cons")
    assert ["1-0", "1-1", "1-2"] == keys(view, "jprod2")
    assert "té" in view.topics
    assert (None, None, False) == (view.cluster_id, view.controller, view.has_leaderless)
    for name, topic in view.topics.items():
        node = server.read(f"/brokers/topics/{name}")
        assert node is not None
        assert Incarnation(node[1].czxid) == topic.incarnation
        for key, partition in topic.partitions.items():
            broker = key.broker
            assert broker is not None
            assert PartitionView(leader=broker, replicas=(broker,), isr=(broker,)) == partition
            assert view.brokers[broker] == view.find_leader(TopicPartition(name, key))


def test_recorded_registry_of_jafka_becomes_a_view() -> None:
    """The fourth field of the broker's node says nothing about its address."""
    view = read(make_server("jafka-3.0.6/jafka_consumer_live.json"), {"jt", "no-such-topic"})
    assert {6: Broker(id=BrokerId(6), host="127.0.0.1", port=22121)} == view.brokers
    assert (["jt"], ["6-0", "6-1", "6-2"]) == (list(view.topics), keys(view, "jt"))


def test_brokers_that_are_away_have_no_partitions() -> None:
    """Topics outlive their brokers; an empty chroot has nothing."""
    view = read(make_server("kafka-0.7.2/brokers_down.json"), {"cons"})
    assert ({}, {}) == (view.brokers, view.topics["cons"].partitions)
    assert ClusterView() == read(FakeZooKeeper(), None)


def test_partitions_of_a_broker_that_is_not_registered_are_left_out() -> None:
    """A broker registers itself before its topics, so the rest of an earlier session is all that can be there."""
    nodes = {"/brokers/ids/0": b"c:h0:9092", "/brokers/topics/t/0": b"1", "/brokers/topics/t/1": b"1"}
    view = read(make_server(nodes=nodes), None)
    assert (["0-0"], False) == (keys(view, "t"), view.has_leaderless)


def test_malformed_nodes_are_left_out_and_reported_once() -> None:
    """What the other nodes of the topic say is still true: delivery from their brokers goes on."""
    nodes = {
        "/brokers/ids/0": b"c:h0:9092",
        "/brokers/ids/1": b'{"host":"h1","port":9092}',
        "/brokers/ids/not-a-number": b"c:h2:9092",
        "/brokers/topics/t/0": b"2",
        "/brokers/topics/t/1": b"1",
        "/brokers/topics/t/2": b"many",
        "/brokers/topics/t/notes": b"",
    }
    recent = RecentEvents(lambda: 0.0)

    with structlog.testing.capture_logs() as logs:
        view = read(make_server(nodes=nodes), None, times=3, recent=recent)

    assert [0] == list(view.brokers)
    assert ["0-0", "0-1", "1-0"] == keys(view, "t")
    assert (TopicPartition("t", PartitionKey(0, BrokerId(1))),) == view.leaderless
    damaged = ["/brokers/ids/1", "/brokers/topics/t/2", "/brokers/topics/t/notes"]
    assert damaged == sorted(log["path"] for log in logs)
    assert {"znode_ignored"} == {log["event"] for log in logs}
    told = sorted((one.kind, one.what) for one in recent.events())
    assert told == sorted(("znode ignored", f"{log['path']}: {log['reason']}") for log in logs)


def test_no_connection_is_told_at_once() -> None:
    """As by the source of later clusters: whoever asks decides how long to wait."""

    async def play() -> None:
        await LegacyZooKeeperSource(FakeZooKeeper().client("reader")).read(None)

    with pytest.raises(NotConnected):
        run(play())
