# SPDX-License-Identifier: Apache-2.0
"""Generation of a cluster, from registries recorded from real brokers of both and from what no broker has written."""

from __future__ import annotations

import asyncio
import json

import pytest

from consumerd.cluster.generation import (
    RegisteredBrokers,
    find_cluster_generation,
    read_registered_brokers,
    wait_for_generation,
    watch_generation,
)
from consumerd.errors import UnsupportedGeneration
from consumerd.model import Generation
from tests.support.fake_zookeeper import FakeZkClient, FakeZooKeeper
from tests.support.virtual_time import run
from tests.support.znode_recordings import FOLDER, LEGACY, load_legacy

LEGACY_NODE = b"127.0.0.1-1795255441685:127.0.0.1:22110"
MODERN_NODE = b'{"jmx_port":-1,"timestamp":"1","host":"127.0.0.1","version":1,"port":9092}'


def read(nodes: dict[str, bytes]) -> RegisteredBrokers:
    async def play() -> RegisteredBrokers:
        server = FakeZooKeeper()
        for path, data in nodes.items():
            server.put(path, data)
        client = server.client("reader")
        client.connect()
        return await read_registered_brokers(client)

    return run(play())


@pytest.mark.parametrize("name", LEGACY)
def test_recorded_clusters_of_0_7_are_told_by_their_brokers(name: str) -> None:
    """A recording without a live broker says nothing: topics and positions outlive their cluster."""
    nodes = {path: node.data for path, node in load_legacy(name).items()}
    alive = any(path.startswith("/brokers/ids/") for path in nodes)
    assert read(nodes).generation == (Generation.LEGACY if alive else None)


@pytest.mark.parametrize("release", ["0.8.2.2", "0.10.2.2", "1.1.1"])
def test_recorded_clusters_of_0_8_and_later_are_modern(release: str) -> None:
    """Each release writes another version of the payload."""
    nodes = json.loads((FOLDER / f"kafka-{release}.json").read_text())["znodes"]
    found = read({path: (node["data"] or "").encode() for path, node in nodes.items()})
    assert found.generation is Generation.MODERN
    assert found.unreadable == {}
    assert found.decide("zk:1/kafka", None) is Generation.MODERN


def test_where_no_broker_is_registered_nothing_is_known() -> None:
    """An empty chroot, and one whose brokers are all down."""
    assert read({}).generation is None
    assert read({"/brokers/ids": b"", "/brokers/topics/t": b""}).generation is None


def test_brokers_of_two_generations_are_refused_until_the_settings_choose_one() -> None:
    """A group under that chroot may be of either generation, and ours would stop the rebalances of the other."""
    found = read({"/brokers/ids/0": MODERN_NODE, "/brokers/ids/1": LEGACY_NODE})
    assert found.generation is Generation.LEGACY
    with pytest.raises(UnsupportedGeneration) as refused:
        found.decide("zk:1/kafka", None)
    for told in (
        "at zk:1/kafka",
        "/brokers/ids/1 holds '127.0.0.1",
        "0.8 or later: /brokers/ids/0",
        "legacy or modern",
    ):
        assert told in str(refused.value)
    for expected in Generation:
        assert found.decide("zk:1/kafka", expected) is expected


@pytest.mark.parametrize(
    ("node", "found", "expected"),
    [
        (LEGACY_NODE, Generation.LEGACY, Generation.MODERN),
        (MODERN_NODE, Generation.MODERN, Generation.LEGACY),
    ],
)
def test_a_cluster_of_the_other_generation_is_refused(node: bytes, found: Generation, expected: Generation) -> None:
    """The setting passes brokers of the other generation over; it does not make consumable what is alone there."""
    brokers = read({"/brokers/ids/1": node})
    assert brokers.decide("zk:1", None) is brokers.decide("zk:1", found) is found
    with pytest.raises(UnsupportedGeneration) as refused:
        brokers.decide("zk:1", expected)
    for told in (
        f"cluster.generation is {expected.value}",
        "/brokers/ids/1",
        f"to {found.value}",
        "Nothing was written",
    ):
        assert told in str(refused.value)


@pytest.mark.parametrize("expected", [None, *Generation])
def test_without_a_broker_nothing_is_decided(expected: Generation | None) -> None:
    """The member waits for the first broker, whatever the settings name: it may contradict them."""
    assert read({}).decide("zk:1", expected) is None


@pytest.mark.parametrize(
    "data",
    [b"", b"\xff", b"{", b"[" * 100_000, b"{}", b"a:b", b"a:b:0", b"a:b:99999", b'{"host":"h","port":0}', b"null"],
)
def test_what_no_broker_writes_is_of_neither_generation(data: bytes) -> None:
    """It is told with its path, and waited out: no rule follows from it."""
    found = read({"/brokers/ids/3": data})
    assert found.generation is None
    assert list(found.unreadable) == ["/brokers/ids/3"]


@pytest.mark.parametrize("name", ["9" * 5000, "2147483648", "-1", "one", "\N{ARABIC-INDIC DIGIT ONE}"])
def test_names_that_are_no_broker_ids_are_passed_over(name: str) -> None:
    """5,000 digits are more than Python converts, and more than any broker's id has."""
    assert read({f"/brokers/ids/{name}": LEGACY_NODE}) == RegisteredBrokers()


def infer(nodes: dict[str, bytes], expected: Generation | None = None) -> Generation | None:
    async def play() -> Generation | None:
        server = FakeZooKeeper()
        for path, data in nodes.items():
            server.put(path, data)
        client = server.client("reader")
        client.connect()
        return await find_cluster_generation(client, "zk:1/kafka", expected)

    return run(play())


@pytest.mark.parametrize("name", LEGACY)
def test_recorded_clusters_of_0_7_are_told_by_what_they_left(name: str) -> None:
    """A command while all brokers are down would else read the group by the layout of 0.8, and find nothing of it."""
    left = {path: node.data for path, node in load_legacy(name).items() if not path.startswith("/brokers/ids/")}
    has_topics = any(path.startswith("/brokers/topics/") for path in left)
    has_positions = any(path.count("/") == 5 and "/offsets/" in path for path in left)
    assert infer(left) is (Generation.LEGACY if has_topics or has_positions else None)
    assert infer(left, Generation.MODERN) is Generation.MODERN


@pytest.mark.parametrize("release", ["0.8.2.2", "0.10.2.2", "1.1.1"])
def test_recorded_clusters_of_0_8_and_later_are_told_by_what_they_left(release: str) -> None:
    """Their topics have data."""
    nodes = json.loads((FOLDER / f"kafka-{release}.json").read_text())["znodes"]
    left = {path: (node["data"] or "").encode() for path, node in nodes.items() if "/brokers/ids/" not in path}
    assert infer(left) is Generation.MODERN


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ({}, None),
        ({"/brokers/topics": b"", "/consumers/g/ids": b""}, None),
        ({"/consumers/f/offsets/t/what": b"0", "/consumers/g/offsets/t/0-3": b"9"}, Generation.LEGACY),
        ({"/consumers/g/offsets/t/3": b"9"}, Generation.MODERN),
        ({"/brokers/topics/t": b"", "/consumers/g/offsets/t/3": b"9"}, Generation.LEGACY),
        ({"/brokers/topics/t": b"", "/brokers/ids/1": MODERN_NODE}, Generation.MODERN),
    ],
    ids=["empty", "no evidence", "a position of 0.7", "a position of 0.8", "topics first", "brokers first"],
)
def test_what_is_left_tells_the_generation(nodes: dict[str, bytes], expected: Generation | None) -> None:
    """Brokers, then topics, then positions."""
    assert infer(nodes) is expected


def test_topics_of_two_generations_tell_nothing() -> None:
    """The chroot had two clusters; either layout could be the wrong one."""
    nodes = {"/brokers/topics/old": b"", "/brokers/topics/new": b'{"version":1,"partitions":{"0":[1]}}'}
    with pytest.raises(UnsupportedGeneration) as refused:
        infer(nodes)
    for told in ("no broker is registered at zk:1/kafka", "/brokers/topics/old is of Kafka 0.7", "legacy or modern"):
        assert told in str(refused.value)
    assert infer(nodes, Generation.LEGACY) is Generation.LEGACY


def test_the_first_broker_decides_for_who_waits() -> None:
    """A producer that was started before its cluster."""

    async def play() -> None:
        server = FakeZooKeeper()
        server.put("/brokers/ids", b"")
        server.put("/brokers/topics/t", b"{}")
        client = server.client("reader")
        client.connect()
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(wait_for_generation(client, "zk:1", None))
            await asyncio.sleep(10)
            assert not waiting.done()
            server.put("/brokers/ids/1", LEGACY_NODE)
        assert waiting.result() is Generation.LEGACY

    run(play())


@pytest.mark.parametrize(
    ("first", "then", "generation"),
    [(LEGACY_NODE, MODERN_NODE, Generation.LEGACY), (MODERN_NODE, LEGACY_NODE, Generation.MODERN)],
)
def test_brokers_of_another_generation_alone_end_a_process(first: bytes, then: bytes, generation: Generation) -> None:
    """An upgrade in place: a member that went on would write what the new members cannot read."""

    async def play() -> None:
        server = FakeZooKeeper()
        server.put("/brokers/ids/1", first)
        client = server.client("reader")
        client.connect()
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(expect_end(client))
            await asyncio.sleep(10)
            server.put("/brokers/ids/2", then)  # beside the other, it may be a mistake
            await asyncio.sleep(10)
            server.remove("/brokers/ids/2")
            server.remove("/brokers/ids/1")  # nobody is there
            await asyncio.sleep(10)
            assert not watching.done()
            server.put("/brokers/ids/2", then)

    async def expect_end(client: FakeZkClient) -> None:
        with pytest.raises(UnsupportedGeneration, match=rf"started \({generation.value}\).*/brokers/ids/2"):
            await watch_generation(client, "zk:1", generation)

    run(play())
