# SPDX-License-Identifier: Apache-2.0
"""The cluster as ZooKeeper has it, from registries recorded from real clusters."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import structlog

from consumerd.cluster.from_zookeeper import ZooKeeperSource
from consumerd.cluster.security_protocol import SecurityProtocol
from consumerd.cluster.view import Broker, ClusterView
from consumerd.daemon.status import RecentEvents
from consumerd.errors import CoordinationError
from consumerd.model import BrokerId, Incarnation, PartitionKey, TopicPartition
from consumerd.zk.layout_modern import MODERN
from consumerd.zk.port import NotConnected
from tests.support import virtual_time
from tests.support.fake_zookeeper import FakeZkClient, FakeZooKeeper

ZNODES = Path(__file__).parents[2] / "vectors" / "znodes"


def recorded(release: str) -> FakeZooKeeper:
    """Return a ZooKeeper with a recorded registry in it."""
    server = FakeZooKeeper()
    for path, node in json.loads((ZNODES / f"kafka-{release}.json").read_text())["znodes"].items():
        server.put(path, (node["data"] or "").encode())
    return server


def read(
    server: FakeZooKeeper,
    topics: set[str] | None,
    *,
    protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT,
    before: Callable[[FakeZkClient], None] = FakeZkClient.connect,
) -> ClusterView:
    async def play() -> ClusterView:
        client = server.client("reader")
        before(client)
        return await ZooKeeperSource(client, protocol=protocol, layout=MODERN).read(topics)

    return virtual_time.run(play())


@pytest.mark.parametrize("release", ["0.8.2.2", "0.10.2.2", "1.1.1"])
def test_recorded_registry_becomes_a_view(release: str) -> None:
    """Of every release: two brokers, every partition with its leader and in-sync replicas."""
    server = recorded(release)

    view = read(server, None)

    assert {broker.host for broker in view.brokers.values()} == {"127.0.0.1"}
    assert list(view.brokers) == [BrokerId(0), BrokerId(1)]
    assert "__consumer_offsets" in view.topics
    for name, topic in view.topics.items():
        node = server.read(f"/brokers/topics/{name}")
        assert node is not None
        assert topic.incarnation == Incarnation(node[1].czxid)
        for key, partition in topic.partitions.items():
            assert partition.leader in partition.isr
            assert partition.leader_epoch >= 0
            assert view.find_leader(TopicPartition(name, key)) is not None


def test_only_followed_topics_are_read() -> None:
    """A cluster may have thousands of others; one that does not exist is left out."""
    assert list(read(recorded("1.1.1"), {"__consumer_offsets", "no-such-topic"}).topics) == ["__consumer_offsets"]


def test_empty_registry_is_an_empty_view() -> None:
    """A chroot that no broker has used yet."""
    assert read(FakeZooKeeper(), None) == ClusterView()


def broker_node(**values: object) -> bytes:
    return json.dumps({"host": None, "port": -1, "version": 4, **values}).encode()


def test_listener_is_chosen_by_security_protocol() -> None:
    """Brokers with only TLS register no host; names of listeners are free since 0.10.2."""
    server = FakeZooKeeper()
    server.put(
        "/brokers/ids/5",
        broker_node(
            endpoints=["OUTSIDE://secure.example:9093", "INSIDE://plain.example:9092"],
            listener_security_protocol_map={"OUTSIDE": "SSL", "INSIDE": "PLAINTEXT"},
            rack="r1",
        ),
    )
    server.put("/brokers/ids/6", broker_node(endpoints=["SSL://tls-only.example:9093"]))

    assert read(server, None).brokers == {
        5: Broker(id=BrokerId(5), host="plain.example", port=9092, rack="r1"),
    }
    assert read(server, None, protocol=SecurityProtocol.SSL).brokers == {
        5: Broker(id=BrokerId(5), host="secure.example", port=9093, tls=True, rack="r1"),
        6: Broker(id=BrokerId(6), host="tls-only.example", port=9093, tls=True),
    }


@pytest.mark.parametrize(
    ("endpoint", "wanted"),
    [
        ("PLAINTEXT", SecurityProtocol.PLAINTEXT),
        ("SSL", SecurityProtocol.SSL),
        ("SASL_PLAINTEXT", SecurityProtocol.SASL_PLAINTEXT),
        ("PLAINTEXTSASL", SecurityProtocol.SASL_PLAINTEXT),
        ("SASL_SSL", SecurityProtocol.SASL_SSL),
    ],
)
def test_each_protocol_has_its_listener(endpoint: str, wanted: SecurityProtocol) -> None:
    """HDP's brokers have a name of their own for SASL without TLS; only listeners with TLS are spoken to by TLS."""
    server = FakeZooKeeper()
    server.put("/brokers/ids/5", broker_node(endpoints=[f"{endpoint}://b.example:6667"]))

    for protocol in SecurityProtocol:
        found = read(server, None, protocol=protocol).brokers
        expected = Broker(id=BrokerId(5), host="b.example", port=6667, tls=endpoint.endswith("SSL"))
        assert ({5: expected} if protocol is wanted else {}) == found


@pytest.mark.parametrize(
    ("wanted", "endpoint", "has", "needs"),
    [
        (SecurityProtocol.PLAINTEXT, "PLAINTEXTSASL", "false and no cluster.sasl", "false and cluster.sasl"),
        (SecurityProtocol.SASL_PLAINTEXT, "SASL_SSL", "false and cluster.sasl", "true and cluster.sasl"),
        (SecurityProtocol.SSL, "PLAINTEXT", "true and no cluster.sasl", "false and no cluster.sasl"),
    ],
)
def test_broker_without_a_listener_for_us_is_told_with_what_would_help(
    wanted: SecurityProtocol, endpoint: str, has: str, needs: str
) -> None:
    """The operator learns which settings are set, and which would fit."""
    offered = "SASL_PLAINTEXT" if endpoint == "PLAINTEXTSASL" else endpoint
    expected = (
        f"no {wanted.value} listener, only {offered}; cluster.tls.enabled: {has} asks for it; "
        f"{offered} needs cluster.tls.enabled: {needs}"
    )

    assert explain(wanted, endpoint) == expected


def test_listener_of_an_unknown_protocol_is_told() -> None:
    """Brokers whose protocols we do not have can still be given a listener."""
    expected = "no SSL listener, only CLIENT; the broker needs a listener of SSL"

    assert explain(SecurityProtocol.SSL, "CLIENT") == expected


def explain(wanted: SecurityProtocol, endpoint: str) -> str:
    """Return the reason for which a broker with one listener is left out."""
    server = FakeZooKeeper()
    server.put("/brokers/ids/5", broker_node(endpoints=[f"{endpoint}://b.example:9092"]))
    with structlog.testing.capture_logs() as logs:
        view = read(server, None, protocol=wanted)
    assert view.brokers == {}
    assert [log["path"] for log in logs] == ["/brokers/ids/5"]
    return str(logs[0]["reason"])


def test_partition_without_state_has_no_leader_yet() -> None:
    """The controller writes assignments first and states a moment later."""
    server = FakeZooKeeper()
    server.put("/brokers/topics/t", b'{"version":1,"partitions":{"0":[1,2],"10":[2],"2":[1]}}')
    server.put("/brokers/topics/t/partitions/2/state", b'{"leader":-1,"leader_epoch":4,"isr":[],"controller_epoch":1}')

    partitions = read(server, {"t"}).topics["t"].partitions

    assert list(partitions) == [PartitionKey(0), PartitionKey(2), PartitionKey(10)]
    assert partitions[PartitionKey(0)].leader is None
    assert partitions[PartitionKey(0)].leader_epoch == -1
    assert partitions[PartitionKey(0)].replicas == (1, 2)
    assert partitions[PartitionKey(2)].leader is None
    assert partitions[PartitionKey(2)].leader_epoch == 4


def test_malformed_nodes_are_left_out_and_reported_once() -> None:
    """Foreign tools write there, too; what the other nodes say is still true."""
    server = recorded("1.1.1")
    server.put("/brokers/ids/7", b"rubbish")
    server.put("/brokers/ids/not-a-number", b"{}")
    server.put("/brokers/topics/broken", b'{"partitions":[]}')
    server.put("/cluster/id", b"[]")
    recent = RecentEvents(lambda: 0.0)

    async def play() -> list[ClusterView]:
        client = server.client("reader")
        client.connect()
        source = ZooKeeperSource(client, hooks=recent, layout=MODERN)
        return [await source.read(None) for _ in range(3)]

    with structlog.testing.capture_logs() as logs:
        views = virtual_time.run(play())

    assert views[0] == views[1] == views[2]
    assert list(views[0].brokers) == [0, 1]
    assert "broken" not in views[0].topics
    assert views[0].cluster_id is None
    assert sorted(log["path"] for log in logs) == ["/brokers/ids/7", "/brokers/topics/broken", "/cluster/id"]
    assert {log["event"] for log in logs} == {"znode_ignored"}
    told = sorted((one.kind, one.what) for one in recent.events())
    assert told == sorted(("znode ignored", f"{log['path']}: {log['reason']}") for log in logs)


def test_no_connection_is_told_at_once() -> None:
    """Metadata must not wait for the patience of ZooKeeper calls."""
    with pytest.raises(NotConnected):
        read(recorded("1.1.1"), None, before=lambda client: None)


def test_connection_lost_on_the_way_is_an_error() -> None:
    """Half an account is none."""
    server = recorded("1.1.1")

    async def play() -> None:
        client = server.client("reader", call_timeout_s=0.5)
        client.connect()
        asyncio.get_running_loop().call_later(0.004, client.cut)
        await ZooKeeperSource(client, layout=MODERN).read(None)

    with pytest.raises(CoordinationError):
        virtual_time.run(play())
