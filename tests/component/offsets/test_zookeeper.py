# SPDX-License-Identifier: Apache-2.0
"""Commits through the real client to a real ZooKeeper: what the server itself accepts, refuses and keeps."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager

import pytest

from consumerd.aio.timeouts import timeout
from consumerd.embedded.zookeeper import EmbeddedZooKeeper
from consumerd.model import TopicPartition
from consumerd.offsets.history import ZooKeeperPartitionHistory
from consumerd.offsets.requests import ZooKeeperOffsetRequests
from consumerd.offsets.store import Commit, CommitOutcome, OffsetRequest
from consumerd.offsets.zookeeper import ZooKeeperOffsetStore
from consumerd.zk.aiozk_client import AiozkClient
from consumerd.zk.layout import offset_path, owner_path, request_path, topic_path
from consumerd.zk.layout_modern import MODERN, partition_path
from tests.support.delivery import FakeClaim
from tests.support.tcp_proxy import Action, Direction, TcpProxy
from tests.support.waiting import until
from tests.support.zookeeper import make_client, run_server

MULTI = 14  # ZooKeeper's opcode
P, Q = TopicPartition.modern("t", 0), TopicPartition.modern("t", 1)


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedZooKeeper]:
    """One server for the module; each test has a group of its own."""
    with run_server() as zookeeper:
        yield zookeeper


@pytest.fixture
def group(request: pytest.FixtureRequest) -> str:
    """A group that no other test uses."""
    return str(request.node.name).replace("[", "-").replace("]", "")


async def make_topic(zk: AiozkClient, topic: str) -> int:
    """Create a topic's node if it is not there, and return its czxid."""
    await zk.ensure_path(topic_path(topic))
    return (await zk.get(topic_path(topic)))[1].czxid


class Member:
    """A session, owner nodes and a store."""

    def __init__(self, zk: AiozkClient, group: str) -> None:
        self.zk = zk
        self.group = group
        self.store = ZooKeeperOffsetStore(zk, group)

    async def claim(self, partitions: Sequence[TopicPartition]) -> list[FakeClaim]:
        epoch = self.zk.state.epoch
        for topic in {partition.topic for partition in partitions}:
            await self.zk.ensure_path(f"/consumers/{self.group}/owners/{topic}")
        async with asyncio.TaskGroup() as tasks:
            for partition in partitions:
                path = owner_path(self.group, partition)
                tasks.create_task(self.zk.create(path, b"m-0", ephemeral=True, epoch=epoch))
        await self.store.load(partitions)
        return [FakeClaim(one, epoch, await make_topic(self.zk, one.topic)) for one in partitions]

    async def commit(self, *positions: tuple[FakeClaim, int]) -> list[CommitOutcome]:
        outcomes = await self.store.commit([Commit(claim, position) for claim, position in positions])
        return [outcomes[claim.partition] for claim, _ in positions]

    async def held(self, partition: TopicPartition) -> tuple[bytes, int] | None:
        found = await self.zk.find(offset_path(self.group, partition))
        return None if found is None else (found[0], found[1].version)


@asynccontextmanager
async def member_of(group: str, connect_string: str, session_timeout_s: float = 6.0) -> AsyncIterator[Member]:
    async with make_client(connect_string, session_timeout_s=session_timeout_s) as zk:
        await zk.wait_connected()
        yield Member(zk, group)


async def test_commits_are_kept_beyond_the_session_that_made_them(server: EmbeddedZooKeeper, group: str) -> None:
    """The first one makes persistent nodes, each later one is one version on, and nobody else's look is needed."""
    async with member_of(group, server.connect_string) as member:
        claims = await member.claim([P, Q])
        assert await member.commit((claims[0], 42), (claims[1], 0)) == [CommitOutcome.WRITTEN] * 2
        assert await member.commit((claims[0], 43), (claims[1], 0)) == [
            CommitOutcome.WRITTEN,
            CommitOutcome.UNCHANGED,
        ]
    async with member_of(group, server.connect_string) as successor:
        assert await successor.held(P) == (b"43", 1)
        assert await successor.held(Q) == (b"0", 0)


async def test_a_foreign_write_is_written_over_by_the_owner_and_left_alone_by_who_is_none(
    server: EmbeddedZooKeeper, group: str
) -> None:
    """Two members, one partition: only the one whose session holds the owner node has the last word."""
    async with member_of(group, server.connect_string) as ours, member_of(group, server.connect_string) as theirs:
        claims = await ours.claim([P, Q])
        await ours.commit(*[(claim, 10) for claim in claims])
        await theirs.zk.set(offset_path(group, P), b"7")
        assert await ours.commit(*[(claim, 20) for claim in claims]) == [
            CommitOutcome.FOREIGN_OVERWRITTEN,
            CommitOutcome.WRITTEN,
        ]
        await theirs.zk.delete(owner_path(group, P))
        (claim,) = await theirs.claim([P])
        assert await theirs.commit((claim, 99)) == [CommitOutcome.WRITTEN]
        assert await ours.commit(*[(claim, 30) for claim in claims]) == [
            CommitOutcome.NOT_OWNER,
            CommitOutcome.WRITTEN,
        ]
        assert await ours.held(P) == (b"99", 3)
        assert await ours.held(Q) == (b"30", 2)


async def test_a_session_that_ended_between_claim_and_commit_commits_nothing(
    server: EmbeddedZooKeeper, group: str
) -> None:
    """The client has long a new session when the stalled commit comes: it belongs to the old one."""
    async with (
        TcpProxy(server.port) as proxy,
        member_of(group, proxy.connect_string, session_timeout_s=1.5) as ours,
        member_of(group, server.connect_string) as theirs,
    ):
        (claim,) = await ours.claim([P])
        assert await ours.commit((claim, 10)) == [CommitOutcome.WRITTEN]
        proxy.refuse()
        proxy.cut()
        await until(lambda: _gone(theirs, P))
        (their_claim,) = await theirs.claim([P])
        assert await theirs.commit((their_claim, 50)) == [CommitOutcome.WRITTEN]
        await proxy.listen()
        await until(lambda: ours.zk.state.epoch > claim.epoch and ours.zk.state.connected)
        assert await ours.commit((claim, 20)) == [CommitOutcome.NOT_OWNER]
        assert await theirs.held(P) == (b"50", 1)


async def _gone(member: Member, partition: TopicPartition) -> bool:
    return await member.zk.exists(owner_path(member.group, partition)) is None


def _cut_at_multi(action: Action) -> tuple[list[bytes], Callable[[Direction, bytes], Action]]:
    """Return what a proxy is to do with each frame, so that the first multi meets ``action``, and where that is noted."""
    cuts: list[bytes] = []

    def cut_once(direction: Direction, frame: bytes) -> Action:
        is_multi = (
            direction is Direction.TO_SERVER and len(frame) > 12 and struct.unpack_from("!i", frame, 8)[0] == MULTI
        )
        if not is_multi or cuts:
            return Action.FORWARD
        cuts.append(frame)
        return action

    return cuts, cut_once


@pytest.mark.parametrize("exists", [True, False])
@pytest.mark.parametrize("action", [Action.CUT, Action.CUT_AFTER])
async def test_a_connection_cut_around_a_commit_leaves_one_write_of_ours(
    server: EmbeddedZooKeeper, group: str, action: Action, exists: bool
) -> None:
    """Before the server had it, or after it had it and before we heard: both end the same, and neither looks foreign."""
    cuts, cut_once = _cut_at_multi(action)
    async with TcpProxy(server.port) as proxy, member_of(group, proxy.connect_string) as member:
        (claim,) = await member.claim([P])
        if exists:
            await member.commit((claim, 1))
        proxy.on_frame = cut_once
        outcomes = []
        async with timeout(20):
            while CommitOutcome.WRITTEN not in outcomes:
                outcomes += await member.commit((claim, 10))
        assert cuts
        assert set(outcomes) <= {CommitOutcome.WRITTEN, CommitOutcome.FAILED}
        assert await member.held(P) == (b"10", 1 if exists else 0)
        assert await member.commit((claim, 11)) == [CommitOutcome.WRITTEN]


async def test_two_thousand_partitions_commit_in_a_few_requests(server: EmbeddedZooKeeper, group: str) -> None:
    """What a large member does every few seconds: all of it arrives, within the server's limit for a packet."""
    partitions = [TopicPartition.modern(f"a-topic-with-a-long-name-{n % 20}", n // 20) for n in range(2000)]
    async with member_of(group, server.connect_string) as member:
        claims = await member.claim(partitions)
        for position in (10**15, 10**15 + 1):
            outcomes = await member.commit(*[(claim, position) for claim in claims])
            assert set(outcomes) == {CommitOutcome.WRITTEN}
        loaded = await member.store.load(partitions)
        assert {stored.position for stored in loaded.values() if stored is not None} == {10**15 + 1}
        assert len(loaded) == 2000


async def test_a_partition_added_to_a_known_topic_is_told_from_an_old_one(
    server: EmbeddedZooKeeper, group: str
) -> None:
    """By the server's own transaction numbers."""
    topic = f"topic-{group}"
    old, new = TopicPartition.modern(topic, 0), TopicPartition.modern(topic, 1)
    async with member_of(group, server.connect_string) as member:
        history = ZooKeeperPartitionHistory(member.zk, group, layout=MODERN)
        await member.zk.ensure_path(partition_path(old))
        assert not await history.made_after_group(old)
        claims = await member.claim([old])
        await member.commit((claims[0], 5))
        await member.zk.ensure_path(partition_path(new))
        assert not await history.made_after_group(old)
        assert await history.made_after_group(new)
        stored = (await member.store.load([old]))[old]
        made = await member.zk.exists(topic_path(topic))
        assert stored is not None
        assert made is not None
        assert stored.token.mark > made.czxid


def wish(position: int, request_id: str, partition: TopicPartition = P) -> OffsetRequest:
    """Return what an operator asks for."""
    return OffsetRequest(
        id=request_id,
        partition=partition,
        position=position,
        new_chain=False,
        author="ops@desk",
        created_ms=1_700_000_000_000,
        version=0,
    )


async def test_each_request_wakes_the_member_and_the_newest_is_the_one_that_is_carried_out(
    server: EmbeddedZooKeeper, group: str
) -> None:
    """Made where no folder was, put over another, and made again after the last one was carried out."""
    async with (
        member_of(group, server.connect_string) as ours,
        make_client(server.connect_string) as desk,
        asyncio.TaskGroup() as tasks,
    ):
        requests, operator = ZooKeeperOffsetRequests(ours.zk, group), ZooKeeperOffsetRequests(desk, group)
        seen: list[str] = []
        woken = asyncio.Event()

        async def look() -> None:
            while True:
                await woken.wait()
                woken.clear()
                if found := await requests.find(P):
                    seen.append(found.id)

        members = [tasks.create_task(requests.run()), tasks.create_task(look())]
        requests.watch("t", lambda _: woken.set())
        (claim,) = await ours.claim([P])
        await ours.commit((claim, 10))
        for number, position in enumerate((5, 6, 10, 0)):
            first = await operator.put(wish(99, f"old-{number}"))
            await until(lambda expected=first.id: expected in seen)
            second = await operator.put(wish(position, f"new-{number}"))
            await until(lambda expected=second.id: expected in seen)
            assert (first.version, second.version) == (0, 1)
            assert await ours.store.commit([Commit(claim, 99, first)]) == {P: CommitOutcome.REQUEST_CHANGED}
            assert await ours.store.commit([Commit(claim, position, second)]) == {P: CommitOutcome.WRITTEN}
            assert await ours.held(P) == (b"%d" % position, number + 1)
            assert await requests.find(P) is None
        for member in members:
            member.cancel()


async def test_a_version_that_has_grown_is_refused_by_the_server(server: EmbeddedZooKeeper, group: str) -> None:
    """Between the last look at a request and the write the operator may have thought again."""
    replaced = []

    async with (
        TcpProxy(server.port) as proxy,
        member_of(group, proxy.connect_string) as member,
        make_client(server.connect_string) as desk,
    ):
        operator = ZooKeeperOffsetRequests(desk, group)
        request = await operator.put(wish(5, "old"))
        claims = await member.claim([P, Q])
        await member.commit((claims[0], 10))
        multi, zk = member.zk.multi, member.zk

        class Interfering:
            """The real client, with an operator who is quicker than its multi."""

            def __getattr__(self, name: str) -> object:
                return getattr(zk, name)

            async def multi(self, operations, *, epoch=None):  # type: ignore[no-untyped-def]  # as the port's
                if not replaced:
                    replaced.append(await operator.put(wish(3, "new")))
                return await multi(operations, epoch=epoch)

        store = ZooKeeperOffsetStore(Interfering(), group)  # type: ignore[arg-type]  # the rest is the real one's
        outcomes = await store.commit([Commit(claims[0], 5, request), Commit(claims[1], 7)])
        assert outcomes == {P: CommitOutcome.REQUEST_CHANGED, Q: CommitOutcome.WRITTEN}
        assert await member.held(P) == (b"10", 0)
        assert await ZooKeeperOffsetRequests(member.zk, group).find(P) == replaced[0]


@pytest.mark.parametrize("action", [Action.CUT, Action.CUT_AFTER])
async def test_a_connection_cut_around_a_fulfilment_carries_it_out_once(
    server: EmbeddedZooKeeper, group: str, action: Action
) -> None:
    """Position and request change together or not at all, and the answer to that is in the nodes."""
    cuts, cut_once = _cut_at_multi(action)
    async with TcpProxy(server.port) as proxy, member_of(group, proxy.connect_string) as member:
        (claim,) = await member.claim([P])
        await member.commit((claim, 10))
        request = await ZooKeeperOffsetRequests(member.zk, group).put(wish(10, "same"))
        proxy.on_frame = cut_once
        outcomes = []
        async with timeout(20):
            while CommitOutcome.WRITTEN not in outcomes:
                outcomes += (await member.store.commit([Commit(claim, 10, request)])).values()
        assert cuts
        assert set(outcomes) <= {CommitOutcome.WRITTEN, CommitOutcome.FAILED}
        assert await member.held(P) == (b"10", 1)
        assert await member.zk.exists(request_path(group, P)) is None
