# SPDX-License-Identifier: Apache-2.0
"""Moving positions on a real ZooKeeper: who is told from whom, and what the server's own counters show."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager

import pytest

from consumerd.admin.operations import OffsetMover, Plan, PositionMoveRow, Target, Way, plan_moves
from consumerd.embedded.zookeeper import EmbeddedZooKeeper
from consumerd.errors import ClusterChanged, OffsetError
from consumerd.group.admission import Admission, describe_cluster, find_our_sessions
from consumerd.model import TopicPartition
from consumerd.offsets.group_positions import GroupPositions
from consumerd.offsets.requests import ZooKeeperOffsetRequests
from consumerd.offsets.store import Commit
from consumerd.offsets.zookeeper import ZooKeeperOffsetStore
from consumerd.zk.aiozk_client import AiozkClient
from consumerd.zk.layout import BROKER_TOPICS, ids_path, offset_path, owner_path, topic_path
from tests.support.delivery import FakeClaim
from tests.support.zookeeper import make_client, run_server

P, Q = TopicPartition.modern("t", 0), TopicPartition.modern("t", 1)


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedZooKeeper]:
    """One server for the module; each test has a group of its own."""
    with run_server() as zookeeper:
        yield zookeeper


@pytest.fixture
def group(request: pytest.FixtureRequest) -> str:
    """A group that no other test uses."""
    return str(request.node.name)


@asynccontextmanager
async def connect(server: EmbeddedZooKeeper) -> AsyncIterator[AiozkClient]:
    async with make_client(server.connect_string) as zk:
        await zk.wait_connected()
        await zk.ensure_path(topic_path(P.topic))
        yield zk


async def join(zk: AiozkClient, group: str, name: str, *, owns: Sequence[TopicPartition] = ()) -> None:
    """Become a member as a Java one does."""
    await zk.ensure_path(ids_path(group))
    await zk.create(f"{ids_path(group)}/{name}", b"{}", ephemeral=True)
    for partition in owns:
        path = owner_path(group, partition)
        await zk.ensure_path(path.rpartition("/")[0])
        await zk.create(path, f"{name}-0".encode(), ephemeral=True)


async def cluster_of(zk: AiozkClient) -> str:
    stat = await zk.exists(BROKER_TOPICS)
    assert stat is not None
    return describe_cluster(stat)


async def plan(zk: AiozkClient, group: str, *targets: tuple[TopicPartition, int]) -> Plan:
    moves = [Target(partition=one, position=at) for one, at in targets]
    return await plan_moves(zk, GroupPositions(zk, group), moves, force=False)


def make_mover(zk: AiozkClient, group: str) -> OffsetMover:
    numbers = itertools.count()
    positions = GroupPositions(zk, group)
    return OffsetMover(zk, positions, author="ops", new_id=lambda: f"id-{next(numbers)}", wall_ms=lambda: 1)


async def test_members_of_ours_are_told_from_java_by_the_session_and_gone_with_it(
    server: EmbeddedZooKeeper, group: str
) -> None:
    """Their names look the same; a sign that outlived its process would have requests wait for nobody."""
    async with connect(server) as desk, connect(server) as java:
        await join(java, group, "java", owns=[Q])
        async with connect(server) as ours:
            await join(ours, group, "ours", owns=[P])
            admission = Admission(ours, group, cluster_id=await cluster_of(ours), about={"host": "h"})
            await admission.admit(ours.state.epoch)
            await admission.admit(ours.state.epoch)  # a registration that failed is tried again
            assert await find_our_sessions(desk, group) == {ours.state.session_id}
            assert [move.way for move in (await plan(desk, group, (P, 1), (Q, 1))).moves] == [Way.OWNER, Way.REFUSED]
        assert await find_our_sessions(desk, group) == set()
        assert [move.way for move in (await plan(desk, group, (P, 1))).moves] == [Way.REFUSED]


async def test_another_cluster_is_not_joined(server: EmbeddedZooKeeper, group: str) -> None:
    """Whatever made its root is not what made ours; nothing is left there."""
    async with connect(server) as zk:
        admission = Admission(zk, group, cluster_id="1-2", about={})
        with pytest.raises(ClusterChanged, match="made by 1-2"):
            await admission.admit(zk.state.epoch)
        assert await find_our_sessions(zk, group) == set()


async def test_positions_are_written_while_nobody_is_there_and_a_member_that_joins_is_seen(
    server: EmbeddedZooKeeper, group: str
) -> None:
    """The server counts every coming and going below ``ids``: also of one that is gone again."""
    shown: list[PositionMoveRow] = []
    async with connect(server) as desk:
        mover = make_mover(desk, group)
        assert not await mover.carry_out(
            await plan(desk, group, (P, 5), (Q, 6)), new_chain=False, wait_s=1, show=shown.append
        )
        assert [row.outcome for row in shown] == ["written"] * 2
        assert (await desk.get(offset_path(group, P)))[0] == b"5"
        made = await plan(desk, group, (P, 7))
        async with connect(server) as java:
            await join(java, group, "java")
        with pytest.raises(OffsetError, match="a member joined"):
            await mover.carry_out(made, new_chain=False, wait_s=1, show=shown.append)


async def test_a_member_that_carries_it_out_is_waited_for(server: EmbeddedZooKeeper, group: str) -> None:
    """From the request over the member's watch to the commit that takes it away, over the server's own events."""
    shown: list[PositionMoveRow] = []
    async with connect(server) as desk, connect(server) as ours, asyncio.TaskGroup() as tasks:
        await join(ours, group, "ours", owns=[P])
        admission = Admission(ours, group, cluster_id=await cluster_of(ours), about={})
        await admission.admit(ours.state.epoch)
        requests, store = ZooKeeperOffsetRequests(ours, group), ZooKeeperOffsetStore(ours, group)
        topic = await ours.exists(topic_path(P.topic))
        assert topic is not None
        claim = FakeClaim(P, ours.state.epoch, topic.czxid)
        asked = asyncio.Event()

        async def obey() -> None:
            while True:
                await asked.wait()
                asked.clear()
                if request := await requests.find(P):
                    await store.commit([Commit(claim, request.position, request)])

        requests.watch(P.topic, lambda _: asked.set())
        members = [tasks.create_task(requests.run()), tasks.create_task(obey())]
        moving = await plan(desk, group, (P, 5))
        undone = await make_mover(desk, group).carry_out(moving, new_chain=True, wait_s=10, show=shown.append)
        for member in members:
            member.cancel()
        assert not undone
        assert [row.outcome for row in shown] == ["carried out"]
        assert (await desk.get(offset_path(group, P)))[0] == b"5"
