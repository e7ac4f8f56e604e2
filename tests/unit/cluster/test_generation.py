# SPDX-License-Identifier: Apache-2.0
"""Generation of a cluster, from registries recorded from real brokers of both and from what no broker has written."""

from __future__ import annotations

import json

import pytest

from consumerd.cluster.generation import RegisteredBrokers, read_registered_brokers
from consumerd.errors import UnsupportedGeneration
from consumerd.model import Generation
from tests.support.fake_zookeeper import FakeZooKeeper
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
    found.require_modern("zk:1/kafka")


def test_where_no_broker_is_registered_nothing_is_known() -> None:
    """An empty chroot, and one whose brokers are all down."""
    assert read({}).generation is None
    assert read({"/brokers/ids": b"", "/brokers/topics/t": b""}).generation is None


def test_one_broker_of_0_7_among_later_ones_is_enough_to_refuse() -> None:
    """A group under that chroot may be of either generation, and ours would stop the rebalances of the other."""
    found = read({"/brokers/ids/0": MODERN_NODE, "/brokers/ids/1": LEGACY_NODE})
    assert found.generation is Generation.LEGACY
    with pytest.raises(
        UnsupportedGeneration, match=r"/brokers/ids/1 holds '127\.0\.0\.1.*beside them \(/brokers/ids/0\)"
    ):
        found.require_modern("zk:1/kafka")
    found.require_modern("zk:1/kafka", trusted=True)


def test_settings_that_say_modern_do_not_make_a_cluster_of_0_7_one() -> None:
    """The setting passes brokers of 0.7 over; it does not make consumable what is alone there."""
    with pytest.raises(UnsupportedGeneration, match="has written nothing"):
        read({"/brokers/ids/1": LEGACY_NODE}).require_modern("zk:1", trusted=True)


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
