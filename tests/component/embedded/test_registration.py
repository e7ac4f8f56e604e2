# SPDX-License-Identifier: Apache-2.0
"""The broker in a real ZooKeeper: what it writes, beside what real brokers wrote; sessions that end; ids that are taken."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from consumerd.aio.timeouts import timeout
from consumerd.embedded.ephemeral_nodes import BrokerIdTaken
from consumerd.embedded.registration import BrokerNode
from consumerd.embedded.topic_nodes import TopicNodes
from consumerd.embedded.znodes import BrokerAddress
from consumerd.embedded.zookeeper import EmbeddedZooKeeper
from consumerd.model import BrokerId, TopicPartition
from consumerd.net.versions import Release
from consumerd.zk.aiozk_client import AiozkClient
from consumerd.zk.layout_modern import CONTROLLER
from tests.support.tcp_proxy import TcpProxy
from tests.support.waiting import until
from tests.support.zookeeper import make_client

VECTORS: Final = Path(__file__).parents[2] / "vectors" / "znodes"
NOW_MS: Final = 1_795_257_170_252
VERSION_2: Final = (
    '{"jmx_port":-1,"timestamp":"%d","endpoints":["PLAINTEXT://127.0.0.1:9092"],"host":"127.0.0.1",'
    '"version":2,"port":9092}'
)
VERSION_4: Final = (
    '{"listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT"},"endpoints":["PLAINTEXT://127.0.0.1:9092"],'
    '"jmx_port":-1,"host":"127.0.0.1","timestamp":"%d","port":9092,"version":4}'
)


@asynccontextmanager
async def client(
    server: EmbeddedZooKeeper,
    request: pytest.FixtureRequest,
    *,
    port: int | None = None,
    session_timeout_s: float = 6.0,
) -> AsyncIterator[AiozkClient]:
    """Open a session below the test's own chroot."""
    chroot = "/" + "".join(one if one.isalnum() else "-" for one in request.node.name)
    async with make_client(server.connect_string) as root:
        await root.ensure_path(chroot)
    address = f"127.0.0.1:{port or server.port}{chroot}"
    async with make_client(address, session_timeout_s=session_timeout_s) as zk:
        yield zk


def registration(zk: AiozkClient, *, release: Release = (1, 1), broker_id: int = 0, port: int = 9092) -> BrokerNode:
    return BrokerNode(
        zk,
        address=BrokerAddress(broker_id=BrokerId(broker_id), host="127.0.0.1", port=port),
        release=release,
        now_ms=lambda: NOW_MS,
        random_bytes=lambda count: bytes(range(count)),
    )


async def dump(zk: AiozkClient, path: str = "") -> dict[str, tuple[str | None, bool, int]]:
    """Return data, whether it is ephemeral, and version of every node."""
    found = {}
    if path:
        data, stat = await zk.get(path)
        found[path] = (data.decode(), stat.ephemeral_owner != 0, stat.version)
    for name in (await zk.children(path or "/"))[0]:
        found |= await dump(zk, f"{path}/{name}")
    return found


def recorded(release: str) -> dict[str, tuple[str | None, bool, int]]:
    """Return the same of a real cluster of one broker with topics ``v`` and ``ten``."""
    dumps = json.loads((VECTORS / f"kafka-{release}-full.json").read_text())["dumps"]
    nodes = next(iter(dumps.values()))
    return {
        path: (node["data"], node["ephemeral"], node["version"])
        for path, node in nodes.items()
        if path != "/" and not path.startswith(("/consumers/", "/zookeeper"))
    }


def comparable(path: str, data: str | None, *, port: int) -> Any:
    """Return what two brokers of one release must agree on.

    Allowed differences: a node without data holds null or "" (no client tells them apart); the partitions of a topic stand in
    the order of a Scala map's hashes; times, ports, and the cluster's id are those of the day.
    """
    if not data:
        return None
    value = json.loads(data)
    if not isinstance(value, dict):
        return value
    if "timestamp" in value:
        assert value["timestamp"].isdecimal()
        value["timestamp"] = "a time"
    if path == "/cluster/id":
        assert len(value["id"]) == 22
        value["id"] = "an id"
    text = json.dumps(value).replace(str(port), "PORT")
    if path.startswith("/brokers/topics/") and "partitions" in value:
        return json.loads(text)
    return text


@pytest.mark.parametrize(("name", "release"), [("0.8.2.2", (0, 8, 2)), ("1.1.1", (1, 1))])
async def test_the_registry_is_that_of_a_real_broker_field_by_field(
    name: str, release: Release, server: EmbeddedZooKeeper, request: pytest.FixtureRequest
) -> None:
    """Every node that there is, its data with the order of its keys, whether it is ephemeral, and its version."""
    theirs = recorded(name)
    their_port = json.loads(str(theirs["/brokers/ids/0"][0]))["port"]
    async with client(server, request) as zk, registration(zk, release=release, port=9092):
        nodes, here = TopicNodes(zk), frozenset({BrokerId(0)})
        for topic, partitions in (("v", 4), ("ten", 10)):
            await nodes.create(topic, dict.fromkeys(range(partitions), (BrokerId(0),)), {})
            for number in range(partitions):
                partition = TopicPartition.modern(topic, number)
                assert await nodes.settle(partition, (BrokerId(0),), live=here, known=here, make_room=no_room_to_make)
        ours = await dump(zk)

    assert {path: (comparable(path, data, port=their_port), *rest) for path, (data, *rest) in theirs.items()} == {
        path: (comparable(path, data, port=9092), *rest) for path, (data, *rest) in ours.items()
    }


async def no_room_to_make() -> None:
    """There is nothing on disk in these tests."""


@pytest.mark.parametrize(
    ("release", "expected"),
    [
        ((0, 9), VERSION_2),
        ((0, 10, 2), VERSION_4),
    ],
)
async def test_releases_in_between_register_in_their_own_form(
    release: Release, expected: str, server: EmbeddedZooKeeper, request: pytest.FixtureRequest
) -> None:
    """Clients of the time read one form or the other."""
    async with client(server, request) as zk, registration(zk, release=release):
        assert expected % NOW_MS == (await zk.get("/brokers/ids/0"))[0].decode()
        assert (await zk.exists("/cluster/id") is not None) == (release >= (0, 10, 1))


async def test_the_cluster_keeps_its_id_and_counts_its_controllers(
    server: EmbeddedZooKeeper, request: pytest.FixtureRequest
) -> None:
    """The first broker chooses the id; each election is another epoch."""
    async with client(server, request) as zk:
        async with registration(zk) as first:
            known = first.cluster_id
            assert first.is_controller
        gone = (await zk.exists("/brokers/ids/0"), await zk.exists(CONTROLLER))
        await zk.set("/cluster/id", b'{"version":"1","id":"another"}')
        async with registration(zk) as second:
            epoch = (await zk.get("/controller_epoch"))[0]

            assert ("AAECAwQFBgcICQoLDA0ODw", "another", b"2") == (known, second.cluster_id, epoch)
    assert gone == (None, None)


async def test_a_new_session_registers_anew(server: EmbeddedZooKeeper, request: pytest.FixtureRequest) -> None:
    """The ensemble ended the session, and everything that hung on it; nobody has to start the broker again."""
    async with (
        TcpProxy(server.port) as proxy,
        client(server, request) as watching,
        client(server, request, port=proxy.port, session_timeout_s=1.0) as zk,
        registration(zk) as broker,
    ):
        before = zk.state.session_id
        proxy.blackhole()
        await until(lambda: gone(watching, "/brokers/ids/0"))
        proxy.heal()

        async def is_back() -> bool:
            stat = await watching.exists("/brokers/ids/0")
            return stat is not None and stat.ephemeral_owner not in {0, before}

        async def is_elected_again() -> bool:
            return (await watching.get("/controller_epoch"))[0] == b"2"

        await until(is_back)
        await until(is_elected_again)
        await until(lambda: broker.is_controller)


async def gone(zk: AiozkClient, path: str) -> bool:
    return await zk.exists(path) is None


async def test_what_a_killed_broker_has_left_behind_is_waited_for(
    server: EmbeddedZooKeeper, request: pytest.FixtureRequest
) -> None:
    """It lingers until its session's time is up; the new one then has the id, without anybody's help."""
    async with (
        TcpProxy(server.port) as proxy,
        client(server, request) as zk,
        client(server, request, port=proxy.port, session_timeout_s=1.5) as killed,
    ):
        await killed.ensure_path("/brokers/ids")
        await killed.create("/brokers/ids/0", b"{}", ephemeral=True)
        proxy.blackhole()
        async with timeout(10), registration(zk) as broker:
            assert zk.state.session_id == (await zk.get("/brokers/ids/0"))[1].ephemeral_owner
            assert broker.is_controller
        proxy.heal()


async def test_an_id_that_somebody_else_has_is_a_clear_error(
    server: EmbeddedZooKeeper, request: pytest.FixtureRequest
) -> None:
    """Two brokers of one id would take each other's partitions; the message says where the other one is."""
    async with (
        client(server, request) as other,
        registration(other, port=9999),
        client(server, request, session_timeout_s=1.0) as zk,
    ):
        with pytest.raises(BrokerIdTaken, match=r"broker 0 is registered already, by a process at 127\.0\.0\.1:9999"):
            await registration(zk).__aenter__()


async def test_another_controller_is_left_so_and_followed(
    server: EmbeddedZooKeeper, request: pytest.FixtureRequest
) -> None:
    """A cluster has one; when it goes, the next is elected, in the next epoch."""
    async with client(server, request) as other, client(server, request) as zk:
        first = await registration(other, broker_id=1).__aenter__()
        async with timeout(20), registration(zk) as broker:
            followed = broker.is_controller
            await first.__aexit__(None, None, None)
            await until(lambda: broker.is_controller)

            assert not followed
            assert b"2" == (await zk.get("/controller_epoch"))[0]
