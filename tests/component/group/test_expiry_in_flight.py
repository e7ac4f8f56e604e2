# SPDX-License-Identifier: Apache-2.0
"""Sessions that end while a registration, a claim, a release or a commit is under way, on a real server.

Two ways to be under way: the request is held back until the session is over and another member has claimed (then it
reaches the server after all), or the server has carried it out and the answer is held back. In neither may two members
hold a claim that they believe in, may anything be deleted or committed that is another's by then, or may the outcome be
told as a success.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import pytest

from consumerd.aio.cell import Cell
from consumerd.aio.timeouts import timeout
from consumerd.embedded.zookeeper import EmbeddedZooKeeper
from consumerd.errors import OwnershipLost, SessionLost
from consumerd.group.claims import OwnedClaim
from consumerd.group.events import Created
from consumerd.group.identity import MemberIdentity
from consumerd.group.owners import PartitionOwners
from consumerd.group.plan import Grant
from consumerd.group.registry import GroupRegistry
from consumerd.group.subscription import Subscription
from consumerd.model import ConsumerId, Incarnation, ThreadId, TopicPartition
from consumerd.offsets.store import Commit, CommitOutcome
from consumerd.offsets.zookeeper import ZooKeeperOffsetStore
from consumerd.zk.aiozk_client import AiozkClient
from consumerd.zk.layout import ids_path, offset_path, owner_path, topic_path
from consumerd.zk.layout_modern import MODERN
from consumerd.zk.port import LeasePhase, WatchKind
from tests.support.tcp_proxy import Action, Direction, FrameHook, TcpProxy
from tests.support.waiting import until
from tests.support.zookeeper import CREATE, DELETE, MULTI, at_answer_to, make_client, opcode, run_server

pytestmark = pytest.mark.records

T = TypeVar("T")

SESSION_S = 1.5
OURS, THEIRS = ThreadId("ours-0"), ThreadId("theirs-0")
PARTITIONS = [TopicPartition.modern("t", number) for number in range(3)]

HELD = pytest.mark.parametrize("answered", [False, True], ids=["request held", "answer held"])
MANY = pytest.mark.parametrize("count", [1, 3], ids=["one", "many in a transaction"])


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedZooKeeper]:
    """One server for the module; each test has a group of its own."""
    with run_server() as zookeeper:
        yield zookeeper


@dataclass
class Member:
    """One session, with what writes owners and positions in it."""

    zk: AiozkClient
    group: str
    thread: ThreadId
    incarnation: Incarnation

    def __post_init__(self) -> None:
        self.owners = PartitionOwners(self.zk, self.group)
        self.store = ZooKeeperOffsetStore(self.zk, self.group)
        self.registry = GroupRegistry(
            self.zk, self.group, wall_ms=lambda: 0, random=random.Random(self.thread), layout=MODERN
        )
        self.epoch = self.zk.state.epoch

    async def register(self) -> ConsumerId:
        """Register under the configured id that all members here have."""
        identity = MemberIdentity(group=self.group, host="h", consumer_id="same")
        return await self.registry.register(identity, Subscription.to_topics({"t": 1}), self.zk.state.epoch)

    async def registered(self) -> dict[str, int]:
        """Each member's node, and the session that keeps it."""
        names, _ = await self.zk.children(ids_path(self.group))
        nodes = {name: await self.zk.find(f"{ids_path(self.group)}/{name}") for name in names}
        return {name: node[1].ephemeral_owner for name, node in nodes.items() if node is not None}

    async def claim(self, count: int) -> dict[TopicPartition, object]:
        grants = {one: Grant(self.thread, self.incarnation) for one in PARTITIONS[:count]}
        return dict(await self.owners.claim(grants, self.epoch))

    def own(self, count: int) -> list[OwnedClaim]:
        """What the rebalancer makes of owner nodes."""
        return [
            OwnedClaim(
                self.zk,
                Cell(0),
                partition=partition,
                thread=self.thread,
                epoch=self.epoch,
                incarnation=self.incarnation,
                find_topic=lambda topic: self.zk.exists(topic_path(topic)),
            )
            for partition in PARTITIONS[:count]
        ]

    async def commit(self, claims: list[OwnedClaim], position: int) -> set[CommitOutcome]:
        return set((await self.store.commit([Commit(claim, position) for claim in claims])).values())

    async def holders(self, count: int) -> list[tuple[bytes, int] | None]:
        nodes = [await self.zk.find(owner_path(self.group, one)) for one in PARTITIONS[:count]]
        return [None if node is None else (node[0], node[1].ephemeral_owner) for node in nodes]

    async def positions(self, count: int) -> list[bytes | None]:
        nodes = [await self.zk.find(offset_path(self.group, one)) for one in PARTITIONS[:count]]
        return [None if node is None else node[0] for node in nodes]


@dataclass
class Rig:
    """Us behind a proxy, another member beside it, and a node that shows how long our session lives."""

    proxy: TcpProxy
    us: Member
    other: Member

    async def under_way(self, wanted: int, call: Awaitable[T], *, answered: bool, meanwhile: Callable[[], Awaitable[None]]) -> T:  # fmt: skip
        """Make a call whose request, or its answer, is held back while the session ends and ``meanwhile`` happens."""
        self.proxy.on_frame = at_answer_to(wanted, Action.BLACKHOLE) if answered else _hold_request(wanted)
        async with timeout(20), asyncio.TaskGroup() as tasks:
            running = tasks.create_task(_run(call))
            await until(lambda: self.proxy.held)
            await _gone(self.other.zk, f"/alive-{self.us.group}")
            assert self.us.zk.state.phase is LeasePhase.SUSPENDED, "the server ended the session before our lease did"
            await meanwhile()
            self.proxy.on_frame = None
            self.proxy.heal()
            return await running

    async def other_claims(self, count: int) -> None:
        assert set(await self.other.claim(count)) == set(PARTITIONS[:count])
        await self.other_owns(count)

    async def other_owns(self, count: int) -> None:
        expected = (str(THEIRS).encode(), self.other.zk.state.session_id)
        assert await self.other.holders(count) == [expected] * count

    async def new_session(self) -> None:
        """Wait until what was held back has had its effect, if it has any: our next session answers."""
        async with timeout(10):
            state = self.us.zk.state
            while not (state.connected and state.epoch > self.us.epoch and state.phase is LeasePhase.FRESH):
                state = await self.us.zk.wait_state(state)


async def _run(call: Awaitable[T]) -> T:
    return await call


def _hold_request(wanted: int) -> FrameHook:
    """Hold back the next request of that opcode, and everything after it."""
    done: list[bool] = []

    def decide(direction: Direction, frame: bytes) -> Action:
        if direction is Direction.TO_SERVER and opcode(frame) == wanted and not done:
            done.append(True)
            return Action.BLACKHOLE
        return Action.FORWARD

    return decide


async def _gone(zk: AiozkClient, path: str) -> None:
    told = asyncio.Event()
    watch = zk.watch(path, WatchKind.DATA, told.set)
    while await zk.exists(path) is not None:
        told.clear()
        await told.wait()
    watch.close()


@pytest.fixture
async def rig(server: EmbeddedZooKeeper, request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    """Everything but the claims."""
    group = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
    async with contextlib.AsyncExitStack() as stack:
        proxy = await stack.enter_async_context(TcpProxy(server.port))
        other = await stack.enter_async_context(make_client(server.connect_string))
        us = await stack.enter_async_context(make_client(proxy.connect_string, session_timeout_s=SESSION_S))
        for path in (f"/consumers/{group}/owners/t", f"/consumers/{group}/offsets/t", topic_path("t")):
            await other.ensure_path(path)
        incarnation = Incarnation((await other.get(topic_path("t")))[1].czxid)
        await us.create(f"/alive-{group}", b"", ephemeral=True)
        yield Rig(proxy, Member(us, group, OURS, incarnation), Member(other, group, THEIRS, incarnation))


@HELD
async def test_registration_under_way_when_the_session_ends_is_none(rig: Rig, answered: bool) -> None:
    """A node of a session that is over would be dealt partitions that nobody delivers; and by the id alone, the node of
    whoever has taken it meanwhile would pass for ours.
    """
    await rig.other.zk.ensure_path(ids_path(rig.us.group))
    same = ConsumerId(f"{rig.us.group}_same")

    async def heir() -> None:
        assert await rig.other.register() == same

    async def refused() -> None:
        with pytest.raises(SessionLost):
            await rig.us.register()

    await rig.under_way(CREATE, refused(), answered=answered, meanwhile=heir)

    theirs = {str(same): rig.other.zk.state.session_id}
    await rig.new_session()
    assert await rig.other.registered() == theirs
    ours = await rig.us.register()
    assert await rig.other.registered() == theirs | {str(ours): rig.us.zk.state.session_id}


@HELD
@MANY
async def test_claim_under_way_when_the_session_ends_is_no_claim(rig: Rig, count: int, answered: bool) -> None:
    """Two members that both believe to own a partition would both deliver it."""
    outcomes = await rig.under_way(
        CREATE if count == 1 else MULTI,
        rig.us.claim(count),
        answered=answered,
        meanwhile=lambda: rig.other_claims(count),
    )

    assert not any(isinstance(outcome, Created) for outcome in outcomes.values())
    await rig.new_session()
    await rig.other_owns(count)


@HELD
@MANY
async def test_release_under_way_when_the_session_ends_takes_nothing_from_the_heir(
    rig: Rig, count: int, answered: bool
) -> None:
    """The heir's node has the same path and the same version as the one that was to be deleted."""
    await rig.us.claim(count)
    released = await rig.under_way(
        DELETE if count == 1 else MULTI,
        rig.us.owners.release(PARTITIONS[:count], rig.us.epoch),
        answered=answered,
        meanwhile=lambda: rig.other_claims(count),
    )

    assert released <= set(PARTITIONS[:count])
    await rig.new_session()
    await rig.other_owns(count)


@HELD
async def test_commit_under_way_when_the_session_ends_changes_nothing_of_the_heirs(rig: Rig, answered: bool) -> None:
    """A position that goes back behind the heir's would repeat its records after the next handover."""
    count = len(PARTITIONS)
    await rig.us.claim(count)
    claims = rig.us.own(count)
    await rig.us.store.load(PARTITIONS[:count])
    assert await rig.us.commit(claims, 10) == {CommitOutcome.WRITTEN}

    async def heir() -> None:
        await rig.other_claims(count)
        await rig.other.store.load(PARTITIONS[:count])
        assert await rig.other.commit(rig.other.own(count), 30) == {CommitOutcome.WRITTEN}

    outcomes = await rig.under_way(MULTI, rig.us.commit(claims, 20), answered=answered, meanwhile=heir)

    assert outcomes <= {CommitOutcome.NOT_OWNER, CommitOutcome.FAILED}
    await rig.new_session()
    assert await rig.other.positions(count) == [b"30"] * count
    # and nothing of the old session is committed later on
    for claim in claims:
        with pytest.raises(OwnershipLost):
            claim.check()
    assert await rig.us.commit(claims, 40) == {CommitOutcome.NOT_OWNER}
    assert await rig.other.positions(count) == [b"30"] * count


async def test_request_held_in_an_old_connection_has_no_effect_once_the_session_goes_on_in_another(
    server: EmbeddedZooKeeper,
) -> None:
    """A claim that arrives after its own release would keep the partition from everybody until the next look."""
    group = "held-in-an-old-connection"
    async with (
        TcpProxy(server.port) as one,
        TcpProxy(server.port) as two,
        make_client(server.connect_string) as other,
        make_client(f"{one.connect_string},{two.connect_string}", session_timeout_s=4) as zk,
    ):
        for path in (f"/consumers/{group}/owners/t", f"/consumers/{group}/offsets/t", topic_path("t")):
            await zk.ensure_path(path)
        incarnation = Incarnation((await zk.get(topic_path("t")))[1].czxid)
        us, before = Member(zk, group, OURS, incarnation), zk.state
        for wanted, call in ((CREATE, lambda: us.claim(1)), (MULTI, lambda: us.commit(us.own(1), 10))):
            used = one if one.connections else two
            used.on_frame = _hold_request(wanted)
            async with timeout(10), asyncio.TaskGroup() as tasks:
                running = tasks.create_task(_run(call()))
                await until(lambda used=used: used.held)  # type: ignore[misc]
                result = await running
            if wanted == CREATE:
                assert all(isinstance(outcome, Created) for outcome in result.values())
                assert await us.owners.release(PARTITIONS[:1], us.epoch) == {PARTITIONS[0]}
            else:
                assert result == {CommitOutcome.WRITTEN}
                assert await us.commit(us.own(1), 20) == {CommitOutcome.WRITTEN}
            used.on_frame = None
            used.heal()
            await until(lambda used=used: used.connections == 0)  # type: ignore[misc]

            assert await other.exists(owner_path(group, PARTITIONS[0])) is None
        assert await us.positions(1) == [b"20"]
        assert zk.state == before
