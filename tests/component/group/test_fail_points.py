# SPDX-License-Identifier: Apache-2.0
"""Members that die, or stall past their session, right before or after they register, claim or release.

Processes of their own over a real ZooKeeper, without brokers; all points at once, each in a group of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Final

import pytest

from consumerd.embedded.zookeeper import EmbeddedZooKeeper
from consumerd.failpoints import POINTS
from consumerd.group.subscription import Subscription
from consumerd.zk.layout import ids_path, topic_path
from tests.support.group_member import GroupMember, join_group, start_member
from tests.support.owner_nodes import read_owners
from tests.support.waiting import until
from tests.support.zookeeper import make_client, run_server

pytestmark = pytest.mark.records

PARTITIONS: Final = 4
SESSION_S: Final = 1.5
LIMIT_S: Final = 30.0
MEMBERSHIP: Final = [point for point in POINTS if point.endswith(("register", "claim", "release"))]


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedZooKeeper]:
    """One server for the module."""
    with run_server() as zookeeper:
        yield zookeeper


class Steady:
    """The member that stays, and what it sees of the other one."""

    def __init__(self, member: GroupMember, name: str) -> None:
        self._member = member
        self._name = name

    async def owns(self, count: int) -> None:
        """Wait until it is at rest with so many partitions, and everything is owned."""
        await until(lambda: self._at_rest(count), within_s=LIMIT_S)

    async def _at_rest(self, count: int) -> bool:
        status = self._member.status
        if not status.ready or status.moving or len(status.owned) != count:
            return False
        owners = await read_owners(self._member.zk, self._name, self._name)
        ours = [one for one in owners.values() if one.session_id == self._member.zk.state.session_id]
        return len(owners) == PARTITIONS and len(ours) == count

    async def is_alone(self) -> None:
        """Wait until nothing is left of the other one, and it owns everything."""

        async def listed_alone() -> bool:
            names, _ = await self._member.zk.children(ids_path(self._name))
            return names == [self._member.status.consumer]

        await until(listed_alone, within_s=LIMIT_S)
        await self.owns(PARTITIONS)
        assert self._member.listener.lost_ones == []


@asynccontextmanager
async def with_another(
    server: EmbeddedZooKeeper, name: str, fail_points: str
) -> AsyncIterator[tuple[Steady, subprocess.Popen[bytes]]]:
    """Run a group whose second member is told about fail points."""
    async with make_client(server.connect_string) as zk:
        body = {"version": 1, "partitions": {str(number): [0] for number in range(PARTITIONS)}}
        await zk.ensure_path(topic_path(name), json.dumps(body).encode())
        async with join_group(zk, name, Subscription.to_topics({name: 1})) as member:
            steady = Steady(member, name)
            await steady.owns(PARTITIONS)
            with start_member(
                server.connect_string, name, {name: 1}, session_timeout_s=SESSION_S, fail_points=fail_points
            ) as other:
                yield steady, other


async def reach(point: str, steady: Steady, other: subprocess.Popen[bytes]) -> None:
    """Have the other member come to the point; it releases when it is to leave."""
    if point.endswith("release"):
        await steady.owns(PARTITIONS // 2)
        other.terminate()


async def die_at(server: EmbeddedZooKeeper, point: str) -> None:
    async with with_another(server, f"dies-{point}", f"{point}=kill") as (steady, other):
        await reach(point, steady, other)
        assert await asyncio.to_thread(other.wait, LIMIT_S) == -signal.SIGKILL
        await steady.is_alone()


async def stall_at(server: EmbeddedZooKeeper, point: str) -> None:
    async with with_another(server, f"stalls-{point}", f"{point}=stop") as (steady, other):
        await reach(point, steady, other)
        await until(lambda: os.waitid(os.P_PID, other.pid, os.WSTOPPED | os.WNOHANG) is not None, within_s=LIMIT_S)
        await steady.is_alone()
        other.send_signal(signal.SIGCONT)
        if point.endswith("release"):
            assert await asyncio.to_thread(other.wait, LIMIT_S) == 0
            await steady.is_alone()
        else:
            await steady.owns(PARTITIONS // 2)


async def test_a_member_that_dies_at_any_point_of_joining_or_leaving_is_inherited(server: EmbeddedZooKeeper) -> None:
    """Whatever it had written of itself goes with its session, and the others know what to do."""
    async with asyncio.TaskGroup() as tasks:
        for point in MEMBERSHIP:
            tasks.create_task(die_at(server, point))


async def test_a_member_that_stalls_at_any_point_past_its_session_takes_nothing_from_its_heir(
    server: EmbeddedZooKeeper,
) -> None:
    """Promise 3: the call that it had on its lips when it fell asleep is refused when it wakes up."""
    async with asyncio.TaskGroup() as tasks:
        for point in MEMBERSHIP[1:]:  # before it has registered, nothing of it is there to be inherited
            tasks.create_task(stall_at(server, point))
