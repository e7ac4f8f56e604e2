# SPDX-License-Identifier: Apache-2.0
"""Rights as a real ZooKeeper judges them: NoAuth before BadVersion, and a probe that leaves nothing behind."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from kazoo.client import KazooClient
from kazoo.security import ACL, make_acl, make_digest_acl

from consumerd.embedded.zookeeper import EmbeddedZooKeeper
from consumerd.group.rights import GroupRights
from consumerd.model import Claim, Incarnation, SessionEpoch, TopicPartition
from consumerd.offsets.store import Commit, CommitOutcome
from consumerd.offsets.zookeeper import ZooKeeperOffsetStore
from consumerd.zk.aiozk_client import AiozkClient
from consumerd.zk.layout_modern import MODERN
from consumerd.zk.port import NotPermitted, Right
from tests.support.claims import StubClaim
from tests.support.registry import open_registry
from tests.support.zookeeper import make_client, run_server

ALICE = ("digest", b"alice:secret")
READ_ONLY = [make_digest_acl("root", "secret", all=True), make_acl("world", "anyone", read=True)]
TOPIC = b'{"version":1,"partitions":{"0":[0],"1":[0]}}'


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedZooKeeper]:
    """One server for the module; each test has a group of its own."""
    with run_server() as zookeeper:
        with open_registry(zookeeper.connect_string) as registry:
            for topic in ("a", "b", "c", "d", "e"):
                registry.client.create(f"/brokers/topics/{topic}", TOPIC, makepath=True)
        yield zookeeper


@pytest.fixture
def kazoo(server: EmbeddedZooKeeper) -> Iterator[KazooClient]:
    """A client of another make, which sets ACLs, as a user that all of them let in."""
    with open_registry(server.connect_string) as registry:
        registry.client.add_auth("digest", "root:secret")
        yield registry.client


@asynccontextmanager
async def connect(server: EmbeddedZooKeeper, auth: tuple[str, bytes] | None = None) -> AsyncIterator[AiozkClient]:
    async with make_client(server.connect_string, auth=auth) as zk:
        await zk.wait_connected()
        yield zk


def put(kazoo: KazooClient, path: str, acl: list[ACL] | None = None, data: bytes = b"") -> None:
    kazoo.ensure_path(path.rpartition("/")[0])
    kazoo.create(path, data, acl=acl)


def dump(kazoo: KazooClient, path: str) -> dict[str, tuple[bytes, int, int, int, int]]:
    """Return data, transactions and counters of a tree: whatever a write or a watch would show."""
    data, stat = kazoo.get(path)
    found = {path: (data, stat.mzxid, stat.pzxid, stat.version, stat.cversion)}
    for name in kazoo.get_children(path):
        found |= dump(kazoo, f"{path}/{name}")
    return found


async def test_rights_are_proven_and_nothing_is_left_behind(server: EmbeddedZooKeeper, kazoo: KazooClient) -> None:
    """Closed folders, a closed node, a folder that lacks no node, and one that only our identity may use."""
    group = "/consumers/proven"
    ours = [make_digest_acl("alice", "secret", all=True), *READ_ONLY]
    put(kazoo, f"{group}/owners/a", READ_ONLY)
    put(kazoo, f"{group}/offsets/b", READ_ONLY)
    put(kazoo, f"{group}/offsets/c/0", READ_ONLY, b"5")
    for partition in ("0", "1"):
        put(kazoo, f"{group}/offsets/d/{partition}", None, b"7")
    kazoo.set_acls(f"{group}/offsets/d", READ_ONLY)
    put(kazoo, f"{group}/owners/e", ours)
    put(kazoo, f"{group}/offsets/e", ours)
    before = dump(kazoo, group)

    async with connect(server) as zk:
        anonymous = await GroupRights(zk, "proven", layout=MODERN).find_denied(["a", "b", "c", "d", "e", "absent"])
    async with connect(server, ALICE) as zk:
        alice = await GroupRights(zk, "proven", layout=MODERN).find_denied(["e"])

    assert {
        "a": (f"{group}/owners/a", Right.CREATE),
        "b": (f"{group}/offsets/b", Right.CREATE),
        "c": (f"{group}/offsets/c/0", Right.WRITE),
        "e": (f"{group}/owners/e", Right.CREATE),
    } == {topic: (denial.path, denial.right) for topic, denial in anonymous.items()}
    assert "its ACL is digest:alice:cdrwa,digest:root:cdrwa,world:anyone:r, our identity is world:anyone" in str(
        anonymous["e"]
    )
    assert {} == alice
    assert before == dump(kazoo, group)


async def test_a_node_that_shows_its_acl_to_nobody_is_tried_by_itself(
    server: EmbeddedZooKeeper, kazoo: KazooClient
) -> None:
    """From 3.6 on reading an ACL takes a right, too."""
    group = "/consumers/hidden"
    put(kazoo, f"{group}/offsets/c/0", [make_acl("world", "anyone", write=True)], b"5")
    put(kazoo, f"{group}/owners/c", [make_digest_acl("root", "secret", all=True)])

    async with connect(server) as zk:
        [denial] = (await GroupRights(zk, "hidden", layout=MODERN).find_denied(["c"])).values()

    assert f"{group}/owners/c" == denial.path
    assert "our identity is world:anyone" in str(denial)


async def test_rights_that_are_given_back_are_seen(server: EmbeddedZooKeeper, kazoo: KazooClient) -> None:
    """Nothing that was learned of an ACL outlives it."""
    put(kazoo, "/consumers/back/offsets/a", READ_ONLY)

    async with connect(server) as zk:
        rights = GroupRights(zk, "back", layout=MODERN)
        assert ["a"] == list(await rights.find_denied(["a", "b"]))
        kazoo.set_acls("/consumers/back/offsets/a", [make_acl("world", "anyone", all=True)])
        assert {} == await rights.find_denied(["a", "b"])
        kazoo.set_acls("/consumers/back/offsets/a", READ_ONLY)
        assert ["a"] == list(await rights.find_denied(["a", "b"]))


async def test_hundreds_of_topics_cost_no_write(server: EmbeddedZooKeeper, kazoo: KazooClient) -> None:
    """Where everything is open, as in nearly every cluster, the proof is made of reads."""
    for number in range(300):
        put(kazoo, f"/consumers/many/offsets/t{number}/0", None, b"1")
    written = int(dump(kazoo, "/consumers/many/offsets/t0/0")["/consumers/many/offsets/t0/0"][1])

    async with connect(server) as zk:
        assert {} == await GroupRights(zk, "many", layout=MODERN).find_denied([f"t{number}" for number in range(300)])

    put(kazoo, "/consumers/many/mark")
    last = kazoo.get("/consumers/many/mark")[1].czxid
    first = kazoo.get("/consumers/many/offsets/t299/0")[1].czxid
    assert written < first
    assert last - first <= 3  # our session's beginning and end, and the mark


async def test_a_refused_commit_names_node_acl_and_identity(server: EmbeddedZooKeeper, kazoo: KazooClient) -> None:
    """The other topics' commits go through, and the topic is reported."""
    put(kazoo, "/consumers/refused/offsets/a", READ_ONLY)
    put(kazoo, "/consumers/refused/offsets/c/0", READ_ONLY, b"5")
    put(kazoo, "/consumers/refused/offsets/b")
    denied: list[str] = []

    async with connect(server) as zk:
        store = ZooKeeperOffsetStore(zk, "refused", denied=denied.append)
        commits = [Commit(claim(kazoo, topic), 9) for topic in ("a", "b", "c")]
        outcomes = await store.commit(commits)
        reasons = [store.explain_refusal(TopicPartition.modern(topic, 0)) for topic in ("a", "b", "c")]

    failed, written = CommitOutcome.FAILED, CommitOutcome.WRITTEN
    assert [failed, written, failed] == [outcomes[TopicPartition.modern(topic, 0)] for topic in ("a", "b", "c")]
    assert ["a", "c"] == sorted(denied)
    said = "its ACL is digest:root:cdrwa,world:anyone:r, our identity is world:anyone"
    assert f"/consumers/refused/offsets/a: no permission to create nodes below it: {said}" in str(reasons[0])
    assert reasons[1] is None
    assert f"/consumers/refused/offsets/c/0: no permission to write it: {said}" in str(reasons[2])


def claim(kazoo: KazooClient, topic: str) -> Claim:
    stat = kazoo.exists(f"/brokers/topics/{topic}")
    assert stat is not None
    return StubClaim(TopicPartition.modern(topic, 0), incarnation=Incarnation(stat.czxid))


async def test_a_refusal_is_an_error_of_its_own_with_the_node(server: EmbeddedZooKeeper, kazoo: KazooClient) -> None:
    """Others are tried again; this one waits for an operator."""
    put(kazoo, "/closed", READ_ONLY)

    async with connect(server) as zk:
        with pytest.raises(NotPermitted) as caught:
            await zk.set("/closed", b"x")

    assert "/closed" == caught.value.path
    assert SessionEpoch(1) == zk.state.epoch
