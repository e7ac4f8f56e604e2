# SPDX-License-Identifier: Apache-2.0
"""``consumerd identities`` on a real ZooKeeper, whose nodes another client has written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from kazoo.client import KazooClient

from consumerd.cli.main import CONFIGURATION, DONE, main
from consumerd.embedded.zookeeper import EmbeddedZooKeeper
from tests.support.zookeeper import run_server

ORDERS: Final = "a5g7j1tvSx-Ob3bjRwaYgQ"


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedZooKeeper]:
    """A ZooKeeper for the module."""
    with run_server() as zookeeper:
        yield zookeeper


class Nodes:
    """A cluster's nodes below a chroot of its own, and the command."""

    def __init__(self, client: KazooClient, address: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.client = client
        self.address = address
        self._capsys = capsys

    def put(self, path: str, data: bytes) -> None:
        self.client.ensure_path(path)
        self.client.set(path, data)

    def put_topic(self, topic: str, topic_id: str | None) -> None:
        """Write a topic's node, as 2.8 does with an id, and older releases without."""
        known = {} if topic_id is None else {"topic_id": topic_id}
        content = {"version": 1 if topic_id is None else 3, "partitions": {"0": [0]}, **known}
        self.put(f"/brokers/topics/{topic}", json.dumps(content).encode())

    def ask(self, *options: str) -> tuple[int, str, str]:
        """Run the command; return its exit code, stdout and stderr."""
        code = main(["identities", "--zookeeper", self.address, *options])
        told = self._capsys.readouterr()
        return code, told.out, told.err


@pytest.fixture
def nodes(server: EmbeddedZooKeeper, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Nodes]:
    """A cluster with a cluster id, and a topic with an id."""
    address = f"{server.connect_string}/{tmp_path.name}"
    root = KazooClient(server.connect_string)
    root.start()
    root.ensure_path(f"/{tmp_path.name}")
    root.stop()
    root.close()
    client = KazooClient(address)
    client.start()
    made = Nodes(client, address, capsys)
    made.put("/cluster/id", b'{"version":"1","id":"kSqpHgfDQEKzdGSYfrhfAA"}')
    made.put_topic("orders", ORDERS)
    yield made
    client.stop()
    client.close()


def test_both_identities_of_each_topic_are_recorded(nodes: Nodes, tmp_path: Path) -> None:
    """A topic without an id is named, and left out."""
    nodes.put_topic("clicks", None)
    topics = nodes.client.exists("/brokers/topics")
    czxid = nodes.client.exists("/brokers/topics/orders").czxid
    expected = {
        "format": "consumerd identities",
        "version": 1,
        "cluster": f"{topics.czxid}-{topics.ctime}",
        "cluster_id": "kSqpHgfDQEKzdGSYfrhfAA",
        "topics": [{"topic": "orders", "czxid": czxid, "topic_id": ORDERS}],
    }

    code, out, err = nodes.ask()
    written = nodes.ask("--output", str(tmp_path / "identities.json"))

    assert (DONE, expected) == (code, json.loads(out))
    assert "without a topic id, and left out: clicks" in err
    assert (DONE, "") == written[:2]
    assert f"identities of 1 topic in {tmp_path}/identities.json" in written[2]
    assert out == (tmp_path / "identities.json").read_text()


def test_what_cannot_be_recorded_is_refused(nodes: Nodes, tmp_path: Path) -> None:
    """Each with the node or the option to look at."""
    refused = [nodes.ask("--output", str(tmp_path / "absent" / "file"))]
    nodes.put("/brokers/topics/orders", b"[")
    refused.append(nodes.ask())
    nodes.put_topic("orders", "too-short")
    refused.append(nodes.ask())
    nodes.put("/cluster/id", b"{}")
    refused.append(nodes.ask())
    nodes.client.delete("/cluster/id")
    refused.append(nodes.ask())
    nodes.client.delete("/brokers", recursive=True)
    refused.append(nodes.ask())

    assert {(CONFIGURATION, "")} == {(code, out) for code, out, _ in refused}
    told = [
        "cannot be written: No such file or directory (--output)",
        "/brokers/topics/orders: ",
        "none of the 1 topics has a topic id: brokers of 2.8",
        "/cluster/id: cluster id: expected a string",
        "there is no /cluster/id: brokers before 0.10.1",
        "there is no /brokers/topics here: is the chroot",
    ]
    assert [] == [expected for expected, (*_, err) in zip(told, refused, strict=True) if expected not in err], refused


def test_brokers_alone_have_nothing_to_record(capsys: pytest.CaptureFixture[str]) -> None:
    """The identities of the time with ZooKeeper are in ZooKeeper alone."""
    assert CONFIGURATION == main(["identities", "--bootstrap", "127.0.0.1:1"])
    assert "give cluster.zookeeper instead" in capsys.readouterr().err
