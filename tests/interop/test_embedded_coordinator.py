# SPDX-License-Identifier: Apache-2.0
"""The life of a group of two, on a real broker and on the embedded one at the same time: every answer is the same.

What a group of one does is among the recordings; here members wait for each other, fall silent, and get in each other's way.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import pytest

from consumerd.aio.timeouts import timeout
from consumerd.net.address import Address
from consumerd.net.connection import BrokerConnection
from consumerd.net.dialer import Dialer
from consumerd.net.stream import TcpConnector
from consumerd.wire.errorcodes import ErrorCode
from consumerd.wire.modern.find_coordinator import FindCoordinatorRequest
from consumerd.wire.modern.groups import (
    DescribeGroupsRequest,
    GroupProtocol,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    ListGroupsRequest,
    MemberAssignment,
    SyncGroupRequest,
)
from consumerd.wire.modern.offset_commit import CommitPartition, CommitTopic, OffsetCommitRequest
from consumerd.wire.modern.offset_fetch import OffsetFetchRequest, OffsetFetchTopic
from consumerd.wire.schema import Request
from tests.interop.conftest import ClusterFactory
from tests.support.embedded import EmbeddedProcess
from tests.support.waiting import until

AS_RELEASE: Final = {"0.10.2.2": "0.10", "1.1.1": "1.1"}
STUMBLES_OVER_NO_PROTOCOL: Final = {"0.10.2.2"}
"""Takes a member without a protocol in, then fails in choosing one (error -1), and keeps the member; later ones refuse it."""
SESSION_MS: Final = 6000
CALL_S: Final = 20.0
RANGE: Final = (GroupProtocol(name="range", metadata=b"range-sub"),)
BOTH: Final = (*RANGE, GroupProtocol(name="roundrobin", metadata=b"rr-sub"))
OTHER: Final = (GroupProtocol(name="sticky", metadata=b"sticky-sub"),)


class Script:
    """Asks a broker, and writes down what it says; members are named by the order in which they come."""

    def __init__(self, group: str, topic: str, release: str) -> None:
        self.said: list[tuple[str, Any]] = []
        self._group = group
        self._topic = topic
        self._release = release
        self._names: dict[str, str] = {}
        self._connections: list[BrokerConnection] = []

    def comparable(self) -> list[tuple[str, Any]]:
        """Return what was said, members by their names."""
        return [(what, self._renamed(answer)) for what, answer in self.said]

    async def play(self, port: int) -> None:
        """Play the whole of it; about ten seconds, most of which are a session's timeout."""
        dialer = Dialer(TcpConnector(max_frame_bytes=1 << 20), client_id="script", now=time.monotonic)
        async with AsyncExitStack() as stack, timeout(60):
            for _ in range(3):
                connection = await dialer.dial(Address(host="127.0.0.1", port=port))
                stack.callback(connection.close)
                self._connections.append(connection)
            await self._wait_coordinator()
            first = await self._alone()
            second = await self._a_second_comes(first)
            await self._in_each_others_way(first, second)
            await self._one_leaves_and_one_falls_silent(first, second)

    # -- scenes

    async def _alone(self) -> str:
        await self.ask("no name", JoinGroupRequest(**self._join("") | {"group_id": ""}))
        await self.ask("too short a session", JoinGroupRequest(**self._join("") | {"session_timeout_ms": 1}))
        await self.ask("a stranger", JoinGroupRequest(**self._join("stranger")))
        if self._release not in STUMBLES_OVER_NO_PROTOCOL:
            await self.ask("no protocol", JoinGroupRequest(**self._join("", ())))
        answer = await self.ask("first", JoinGroupRequest(**self._join("", BOTH)))
        first: str = answer.member_id
        await self.ask("no assignment yet", self._heartbeat(first, 1))
        await self.ask("commits between the barriers", self._commit(first, 1))
        await self.ask("joins again", JoinGroupRequest(**self._join(first, BOTH)))
        await self.ask("syncs for another generation", self._sync(first, 7))
        await self.ask("syncs", self._sync(first, 1, first))
        await self.ask("syncs again", self._sync(first, 1))
        await self.ask("beats", self._heartbeat(first, 1))
        await self.ask("beats for another generation", self._heartbeat(first, 0))
        await self.ask("commits", self._commit(first, 1))
        await self.ask("commits for nobody", self._commit("", -1))
        await self.ask("commits as a stranger", self._commit("stranger", 1))
        return first

    async def _a_second_comes(self, first: str) -> str:
        await self.ask("another kind", JoinGroupRequest(**self._join("", OTHER)), by=1)
        async with asyncio.TaskGroup() as tasks:
            second_joins = tasks.create_task(self._answer(JoinGroupRequest(**self._join("", RANGE)), by=1))
            await self._until_rebalance(first, 1)
            await self.ask("beats while others join", self._heartbeat(first, 1))
            await self.ask("commits while others join", self._commit(first, 1))
            await self.ask("syncs while others join", self._sync(first, 1))
            await self.ask("described while others join", DescribeGroupsRequest(groups=(self._group,)))
            await self.ask("the leader joins again", JoinGroupRequest(**self._join(first, BOTH)))
        joined = second_joins.result()
        self._say("second", joined)
        second: str = joined.member_id
        async with asyncio.TaskGroup() as tasks:
            follower = tasks.create_task(self._answer(self._sync(second, 2), by=1))
            await asyncio.sleep(0.2)
            await self.ask("the leader assigns", self._sync(first, 2, first, second))
        self._say("the follower has", follower.result())
        await self.ask("described", DescribeGroupsRequest(groups=(self._group, "nobody's")))
        await self.ask("positions", self._fetch())
        return second

    async def _in_each_others_way(self, first: str, second: str) -> None:
        await self.ask("a follower asks again", JoinGroupRequest(**self._join(second, RANGE)))
        async with asyncio.TaskGroup() as tasks:
            changed = (GroupProtocol(name="range", metadata=b"another"),)
            waits = tasks.create_task(self._answer(JoinGroupRequest(**self._join(second, changed)), by=1))
            await self._until_rebalance(first, 2)
            await self.ask("after a change", JoinGroupRequest(**self._join(first, BOTH)))
        self._say("with a change", waits.result())
        async with asyncio.TaskGroup() as tasks:
            waits = tasks.create_task(self._answer(self._sync(second, 3), by=1))
            await asyncio.sleep(0.2)
            rejoins = tasks.create_task(self._answer(JoinGroupRequest(**self._join(first, RANGE)), by=0))
            self._say("it has waited for nothing", await waits)
            await self.ask("joins, too", JoinGroupRequest(**self._join(second, changed)), by=1)
        self._say("leads again", rejoins.result())
        await self.ask("assigns to itself alone", self._sync(first, 4, first))
        await self.ask("gets nothing", self._sync(second, 4))

    async def _one_leaves_and_one_falls_silent(self, first: str, second: str) -> None:
        await self.ask("leaves", LeaveGroupRequest(group_id=self._group, member_id=second))
        await self.ask("leaves again", LeaveGroupRequest(group_id=self._group, member_id=second))
        await self.ask("must join", self._heartbeat(first, 4))
        await self.ask("alone again", JoinGroupRequest(**self._join(first, RANGE)))
        await self.ask("assigns", self._sync(first, 5, first))
        await asyncio.sleep(SESSION_MS / 1000 + 1.5)
        await self.ask("is no more", self._heartbeat(first, 5))
        await self.ask("described without members", DescribeGroupsRequest(groups=(self._group,)))
        await self.ask("a late commit", self._commit(first, 5))
        await self.ask("a simple commit", self._commit("", -1, offset=99))
        await self.ask("positions in the end", self._fetch())
        listed = await self._answer(ListGroupsRequest())
        self._say("listed", [one for one in listed.groups if one.group_id == self._group])

    # -- asking

    async def ask(self, what: str, request: Request[Any], *, by: int = 0) -> Any:
        """Ask, and write the answer down."""
        answer = await self._answer(request, by=by)
        self._say(what, answer)
        return answer

    async def _answer(self, request: Request[Any], *, by: int = 2) -> Any:
        return await self._connections[by].request(request, timeout_s=CALL_S)

    def _say(self, what: str, answer: Any) -> None:
        if isinstance(answer, JoinGroupResponse) and answer.member_id:
            self._names.setdefault(answer.member_id, f"member {len(self._names)}")
        self.said.append((what, answer))

    def _renamed(self, value: Any) -> Any:
        """Return a value with members' names, and lists of members in the order of these."""
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {one.name: self._renamed(getattr(value, one.name)) for one in dataclasses.fields(value)}
        if isinstance(value, tuple | list):
            return sorted((self._renamed(one) for one in value), key=str)
        return self._names.get(value, value) if isinstance(value, str) else value

    async def _wait_coordinator(self) -> None:
        async def serves() -> bool:
            found = await self._answer(FindCoordinatorRequest(key=self._group))
            # and has loaded what there is: nothing
            return not found.error_code and not (await self._answer(self._fetch())).error_code

        await until(serves, within_s=30)

    async def _until_rebalance(self, member: str, generation: int) -> None:
        async def begun() -> bool:
            return bool((await self._answer(self._heartbeat(member, generation))).error_code)

        await until(begun)

    # -- requests

    def _join(self, member: str, protocols: tuple[GroupProtocol, ...] = RANGE) -> dict[str, Any]:
        return {
            "group_id": self._group,
            "session_timeout_ms": SESSION_MS,
            "rebalance_timeout_ms": 30_000,
            "member_id": member,
            "protocol_type": "consumer",
            "protocols": protocols,
        }

    def _sync(self, member: str, generation: int, *assigned: str) -> SyncGroupRequest:
        parts = tuple(
            MemberAssignment(member_id=one, assignment=b"part of %d" % number) for number, one in enumerate(assigned)
        )
        return SyncGroupRequest(group_id=self._group, generation_id=generation, member_id=member, assignments=parts)

    def _heartbeat(self, member: str, generation: int) -> HeartbeatRequest:
        return HeartbeatRequest(group_id=self._group, generation_id=generation, member_id=member)

    def _commit(self, member: str, generation: int, offset: int = 7) -> OffsetCommitRequest:
        partitions = tuple(
            CommitPartition(partition=number, offset=offset, metadata=text)
            for number, text in ((0, "why"), (1, "x" * 5000), (77, None))
        )
        return OffsetCommitRequest(
            group_id=self._group,
            generation_id=generation,
            member_id=member,
            topics=(
                CommitTopic(topic=self._topic, partitions=partitions),
                CommitTopic(topic="absent", partitions=partitions),
            ),
        )

    def _fetch(self) -> OffsetFetchRequest:
        return OffsetFetchRequest(
            group_id=self._group, topics=(OffsetFetchTopic(topic=self._topic, partitions=(0, 1, 77)),)
        )


def find_codes(value: Any) -> set[int]:
    """Return the error codes of answers, at any depth."""
    if isinstance(value, tuple | list):
        return {code for one in value for code in find_codes(one)}
    if not dataclasses.is_dataclass(value):
        return set()
    found = {code for one in dataclasses.fields(value) for code in find_codes(getattr(value, one.name))}
    return found | {value.error_code} if hasattr(value, "error_code") else found


@pytest.mark.smoke
@pytest.mark.timeout(150)
async def test_a_group_of_two_hears_the_same_from_both_brokers(
    release: str, shared_clusters: ClusterFactory, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """Every field of some fifty answers, but for members' ids, which are random."""
    if release not in AS_RELEASE:
        pytest.skip("brokers know groups from 0.9 on")
    cluster = shared_clusters(release)
    group, topic = unique("scripted"), unique("scripted")
    real, ours = Script(group, topic, release), Script(group, topic, release)
    await asyncio.to_thread(cluster.create_topic, topic, 2)
    process = EmbeddedProcess(tmp_path, "--as-release", AS_RELEASE[release])
    await asyncio.to_thread(process.__enter__)
    try:
        await asyncio.to_thread(process.create_topic, topic, 2)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(real.play(cluster.ports[0]))
            tasks.create_task(ours.play(int(process.bootstrap.rpartition(":")[2])))
    finally:
        await asyncio.to_thread(process.__exit__)

    assert len(real.said) > 40
    for theirs, own in zip(real.comparable(), ours.comparable(), strict=True):
        assert theirs == own
    provoked = {
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.OFFSET_METADATA_TOO_LARGE,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        ErrorCode.INVALID_GROUP_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.INVALID_SESSION_TIMEOUT,
        ErrorCode.REBALANCE_IN_PROGRESS,
    }
    assert provoked == find_codes([answer for _, answer in real.said])
