# SPDX-License-Identifier: Apache-2.0
"""The coordinator on virtual time, over a log in memory: answers that wait, timers, positions, loading, forgetting."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from consumerd.aio.timeouts import timeout
from consumerd.embedded.coordinator.coordinator import GroupCoordinator
from consumerd.embedded.coordinator.exchange import GroupState, JoinResult, SyncResult
from consumerd.embedded.coordinator.journal import partition_of
from consumerd.embedded.coordinator.member import Protocol
from consumerd.embedded.coordinator.positions import CoordinatedPosition
from consumerd.embedded.coordinator.settings import CoordinatorSettings
from consumerd.embedded.coordinator.state_topic import NoLog, NotWritten, StateTooLarge
from consumerd.embedded.handlers.context import Hangup
from consumerd.embedded.topics import OFFSETS_TOPIC
from consumerd.model import BrokerId, TopicPartition
from consumerd.wire.errorcodes import ErrorCode
from tests.support.group_log import MemoryLog
from tests.support.virtual_time import run

P, Q = TopicPartition.modern("t", 0), TopicPartition.modern("t", 1)
SETTINGS = CoordinatorSettings(offsets_topic_partitions=2)
DAY_MS = 24 * 60 * 60 * 1000


@asynccontextmanager
async def serving(log: MemoryLog, settings: CoordinatorSettings = SETTINGS) -> AsyncIterator[GroupCoordinator]:
    """Run a coordinator that has loaded what it can."""
    clock = asyncio.get_running_loop().time
    ids = itertools.count()
    async with GroupCoordinator(
        log,
        settings=settings,
        now=clock,
        now_ms=lambda: int(clock() * 1000),
        new_id=lambda: str(next(ids)),
    ) as coordinator:
        await asyncio.sleep(0.001)
        yield coordinator


async def join(
    coordinator: GroupCoordinator,
    member_id: str = "",
    *,
    group: str = "g",
    client_id: str = "c",
    session_timeout_ms: int = 10_000,
    hangup: Hangup | None = None,
) -> JoinResult:
    return await coordinator.join(
        group,
        member_id=member_id,
        client_id=client_id,
        client_host="/127.0.0.1",
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=60_000,
        protocol_type="consumer",
        protocols=[Protocol("range", b"sub")],
        hangup=hangup or Hangup(),
    )


async def sync(coordinator: GroupCoordinator, joined: JoinResult, **assignment: bytes) -> SyncResult:
    parts = {name.replace("_", "-"): part for name, part in assignment.items()}
    return await coordinator.sync(
        "g", member_id=joined.member_id, generation=joined.generation, assignment=parts, hangup=Hangup()
    )


async def one_member(coordinator: GroupCoordinator) -> JoinResult:
    joined = await join(coordinator)
    assert (await sync(coordinator, joined, c_0=b"part")).error is ErrorCode.NONE
    return joined


def position(offset: int, *, metadata: str = "", expire_ms: int = DAY_MS) -> CoordinatedPosition:
    return CoordinatedPosition(offset=offset, metadata=metadata, commit_ms=0, expire_ms=expire_ms)


async def commit(
    coordinator: GroupCoordinator,
    positions: Mapping[TopicPartition, CoordinatedPosition],
    *,
    group: str = "g",
    member: JoinResult | None = None,
) -> Mapping[TopicPartition, ErrorCode]:
    return await coordinator.commit(
        group,
        member_id=member.member_id if member else "",
        generation=member.generation if member else -1,
        positions=positions,
    )


Scenario = Callable[[], Coroutine[Any, Any, None]]


def on_virtual_time(scenario: Scenario) -> Callable[[], None]:
    """Make a test of a scenario: it runs on a loop whose clock jumps."""

    def test() -> None:
        run(scenario())

    test.__name__, test.__doc__ = scenario.__name__, scenario.__doc__
    return test


@on_virtual_time
async def test_members_that_join_together_are_answered_together() -> None:
    """Each request waits in its own handler; the group decides when they go on."""
    async with serving(MemoryLog()) as coordinator:
        first = await one_member(coordinator)
        async with asyncio.TaskGroup() as tasks:
            second = tasks.create_task(join(coordinator))
            await asyncio.sleep(1)
            waited = not second.done()
            told = coordinator.heartbeat("g", member_id=first.member_id, generation=1)
            again = tasks.create_task(join(coordinator, first.member_id))
        async with asyncio.TaskGroup() as tasks:
            part = tasks.create_task(sync(coordinator, second.result()))
            await asyncio.sleep(1)
            await sync(coordinator, again.result(), c_1=b"yours")

        assert (True, ErrorCode.REBALANCE_IN_PROGRESS) == (waited, told)
        assert (2, 2, b"yours") == (second.result().generation, again.result().generation, part.result().assignment)


@on_virtual_time
async def test_a_member_that_falls_silent_is_removed_by_the_clock_alone() -> None:
    """No request has to come for time to be up."""
    async with serving(MemoryLog()) as coordinator:
        await one_member(coordinator)
        await asyncio.sleep(9.9)
        before = coordinator.describe("g")[1].state
        await asyncio.sleep(0.2)

        assert (GroupState.STABLE, GroupState.EMPTY) == (before, coordinator.describe("g")[1].state)


@on_virtual_time
async def test_timers_follow_what_happens() -> None:
    """A deadline that moves back is kept, one that comes nearer is not missed."""
    async with serving(MemoryLog()) as coordinator:
        slow = await join(coordinator, group="slow", session_timeout_ms=100_000)
        quick = await join(coordinator, group="quick", session_timeout_ms=6_000)
        for _ in range(4):
            await asyncio.sleep(5)
            heard = coordinator.leave("nobody", member_id="")
            assert heard is ErrorCode.UNKNOWN_MEMBER_ID

        assert coordinator.heartbeat("quick", member_id=quick.member_id, generation=1) is ErrorCode.UNKNOWN_MEMBER_ID
        assert coordinator.heartbeat("slow", member_id=slow.member_id, generation=1) is ErrorCode.REBALANCE_IN_PROGRESS


@on_virtual_time
async def test_a_client_that_hangs_up_while_it_waits_keeps_no_handler() -> None:
    """It stays a member until the barrier's time is up, as in Kafka; nothing waits for it."""
    async with serving(MemoryLog()) as coordinator:
        await one_member(coordinator)
        hangup = Hangup()
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(join(coordinator, hangup=hangup))
            await asyncio.sleep(1)
            hangup.happen()
            async with timeout(1):
                await asyncio.wait([waiting])

        assert waiting.result().error is ErrorCode.UNKNOWN_MEMBER_ID
        assert len(coordinator.describe("g")[1].members) == 2


@on_virtual_time
async def test_session_timeouts_out_of_bounds_and_groups_without_a_name_are_refused() -> None:
    """INVALID_SESSION_TIMEOUT and INVALID_GROUP_ID, before a group comes into being."""
    async with serving(MemoryLog()) as coordinator:
        short = (await join(coordinator, session_timeout_ms=5_999)).error
        long = (await join(coordinator, session_timeout_ms=300_001)).error
        nameless = (await join(coordinator, group="")).error
        stranger = (await join(coordinator, "c-77")).error
        endless = (await join(coordinator, client_id="é" * 16_383)).error

        assert [ErrorCode.INVALID_SESSION_TIMEOUT] * 2 == [short, long]
        assert (ErrorCode.INVALID_GROUP_ID, ErrorCode.UNKNOWN_MEMBER_ID) == (nameless, stranger)
        assert endless is ErrorCode.INVALID_REQUEST  # its member's id would fit into no answer
        assert coordinator.groups() == (ErrorCode.NONE, [])


@on_virtual_time
async def test_the_first_to_ask_for_a_coordinator_makes_the_log_and_asks_again() -> None:
    """Error 15 until ``__consumer_offsets`` is there, then this broker; it is made once."""
    log = MemoryLog(partitions=None)
    async with serving(log) as coordinator:
        early = [coordinator.find("g"), coordinator.find("h")]
        unserved = (await join(coordinator)).error
        await asyncio.sleep(0.001)

        assert ([ErrorCode.COORDINATOR_NOT_AVAILABLE] * 2, ErrorCode.NOT_COORDINATOR) == (early, unserved)
        assert (BrokerId(0), 1) == (coordinator.find("g"), log.made)
        assert (await join(coordinator)).error is ErrorCode.NONE


@on_virtual_time
async def test_while_groups_are_loaded_requests_are_put_off() -> None:
    """Error 14, but for heartbeats, which nobody can judge; then everything is there."""
    log = MemoryLog()
    async with serving(log) as coordinator:
        member = await one_member(coordinator)
        await commit(coordinator, {P: position(7)}, member=member)
    log.reading.clear()
    async with serving(log) as coordinator:
        loading = [
            (await join(coordinator)).error,
            (await sync(coordinator, member)).error,
            coordinator.leave("g", member_id=member.member_id),
            (await commit(coordinator, {P: position(9)}))[P],
            coordinator.positions("g")[0],
            coordinator.describe("g")[0],
            coordinator.groups()[0],
        ]
        blind = coordinator.heartbeat("g", member_id="who", generation=99)
        log.reading.set()
        await asyncio.sleep(0.001)

        assert [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 7 == loading
        assert blind is ErrorCode.NONE
        assert coordinator.positions("g") == (ErrorCode.NONE, {P: position(7)})
        assert coordinator.heartbeat("g", member_id=member.member_id, generation=1) is ErrorCode.NONE
        assert coordinator.describe("g")[1].members[0].assignment == b"part"
        assert coordinator.groups() == (ErrorCode.NONE, [("g", "consumer")])


@on_virtual_time
async def test_positions_of_clients_without_a_group_are_kept_over_a_restart() -> None:
    """Generation -1 and no member: the group has no record of its own, only its positions."""
    log = MemoryLog()
    async with serving(log) as coordinator:
        answers = await commit(coordinator, {P: position(3, metadata="why"), Q: position(4)})
        unknown = await coordinator.commit("other", member_id="m", generation=5, positions={P: position(1)})
    async with serving(log) as coordinator:
        kept = coordinator.positions("g")

    assert ({P: ErrorCode.NONE, Q: ErrorCode.NONE}, {P: ErrorCode.ILLEGAL_GENERATION}) == (answers, unknown)
    assert kept == (ErrorCode.NONE, {P: position(3, metadata="why"), Q: position(4)})


@on_virtual_time
async def test_metadata_that_is_too_large_costs_only_its_own_partition() -> None:
    """OFFSET_METADATA_TOO_LARGE, counted in characters."""
    async with serving(MemoryLog(), replace(SETTINGS, max_metadata_characters=3)) as coordinator:
        answers = await commit(coordinator, {P: position(1, metadata="four"), Q: position(2, metadata="ééé")})

        assert {P: ErrorCode.OFFSET_METADATA_TOO_LARGE, Q: ErrorCode.NONE} == answers
        assert list(coordinator.positions("g")[1]) == [Q]


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (NoLog("gone"), ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (StateTooLarge("large"), ErrorCode.INVALID_COMMIT_OFFSET_SIZE),
        (NotWritten("disk"), ErrorCode.NOT_COORDINATOR),
    ],
)
def test_a_position_that_could_not_be_written_is_not_remembered(failure: NotWritten, expected: ErrorCode) -> None:
    """Or it would be gone after a restart, though the client was told that it is kept."""

    async def scenario() -> None:
        log = MemoryLog()
        async with serving(log) as coordinator:
            log.failure = failure
            answers = await commit(coordinator, {P: position(3)})

            assert (expected, {}) == (answers[P], coordinator.positions("g")[1])

    run(scenario())


@on_virtual_time
async def test_a_commit_whose_client_hangs_up_is_remembered_once_it_is_written() -> None:
    """Log and memory say the same, whoever listens."""
    log = MemoryLog()
    async with serving(log) as coordinator:
        log.writing.clear()
        async with asyncio.TaskGroup() as tasks:
            request = tasks.create_task(commit(coordinator, {P: position(5)}))
            await asyncio.sleep(1)
            request.cancel()
        log.writing.set()
        await asyncio.sleep(0.001)

        assert coordinator.positions("g")[1] == {P: position(5)}


@on_virtual_time
async def test_positions_expire_and_a_group_with_nothing_left_is_forgotten() -> None:
    """With tombstones, so that compaction forgets them too; a group that still has members stays."""
    log = MemoryLog()
    settings = replace(SETTINGS, offsets_check_interval_s=10)
    async with serving(log, settings) as coordinator:
        await commit(coordinator, {P: position(3, expire_ms=15_000), Q: position(4, expire_ms=35_000)})
        member = await join(coordinator, group="left", session_timeout_ms=6_000)
        coordinator.leave("left", member_id=member.member_id)
        await asyncio.sleep(21)
        half = (coordinator.positions("g")[1].keys(), coordinator.groups()[1])
        await asyncio.sleep(20)
        groups = coordinator.groups()[1]

    assert ({Q}, [("g", "")]) == half
    assert groups == []
    assert [None, None] == [one.value for one in log.records[partition_of("g", 2)] if one.key and b"g" in one.key][-2:]
    async with serving(log) as coordinator:
        assert coordinator.groups() == (ErrorCode.NONE, [])


@on_virtual_time
async def test_a_position_that_is_committed_anew_while_the_old_one_expires_stays() -> None:
    """The tombstone would come behind it in the log."""
    log = MemoryLog()
    async with serving(log, replace(SETTINGS, offsets_check_interval_s=10)) as coordinator:
        await commit(coordinator, {P: position(3, expire_ms=1_000)})
        log.writing.clear()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(commit(coordinator, {P: position(4)}))
            await asyncio.sleep(15)
            log.writing.set()
    async with serving(log) as coordinator:
        assert coordinator.positions("g")[1] == {P: position(4)}


@on_virtual_time
async def test_positions_of_a_deleted_topic_are_forgotten() -> None:
    """A topic that is made again under its name begins without them."""
    log = MemoryLog()
    async with serving(log) as coordinator:
        await commit(coordinator, {P: position(3), TopicPartition.modern("other", 0): position(4)})
        log.missing = {"t"}
        log.tell("t", "other")  # which has only grown
        await asyncio.sleep(0.001)

        assert [one.topic for one in coordinator.positions("g")[1]] == ["other"]
    async with serving(log) as coordinator:
        assert [one.topic for one in coordinator.positions("g")[1]] == ["other"]


@on_virtual_time
async def test_a_commit_that_was_let_in_keeps_its_group_from_being_forgotten() -> None:
    """All that the group had goes just before the commit is written: what is acknowledged then is still of a group."""
    log = MemoryLog()
    other = {TopicPartition.modern("other", 0): position(4)}
    async with serving(log) as coordinator:
        await commit(coordinator, {P: position(3)})
        async with asyncio.TaskGroup() as tasks:
            committing = tasks.create_task(commit(coordinator, other))
            log.missing = {"t"}
            log.tell("t")  # forgets in a task that runs between the commit's check and its writing
        assert set(committing.result().values()) == {ErrorCode.NONE}

        assert coordinator.positions("g")[1] == other


@on_virtual_time
async def test_a_write_that_ends_after_its_group_was_forgotten_leaves_the_successors_deadline() -> None:
    """Both have one name; without its deadline, a member that falls silent would be a member for ever."""
    log = MemoryLog()
    async with serving(log, replace(SETTINGS, offsets_check_interval_s=30.0)) as coordinator:
        first = await one_member(coordinator)
        while asyncio.get_running_loop().time() < 29:
            coordinator.heartbeat("g", member_id=first.member_id, generation=first.generation)
            await asyncio.sleep(1)
        log.writing.clear()
        coordinator.leave("g", member_id=first.member_id)
        await asyncio.sleep(2)
        forgotten = coordinator.groups()[1]
        await join(coordinator, session_timeout_ms=6_000)
        log.writing.set()
        await asyncio.sleep(60)

        assert ([], ()) == (forgotten, coordinator.describe("g")[1].members)


@on_virtual_time
async def test_a_log_that_goes_while_it_is_loaded_leaves_no_groups() -> None:
    """Its successor is empty, and may have another number of partitions."""
    log = MemoryLog()
    async with serving(log) as coordinator:
        await commit(coordinator, {P: position(3)})
    log.reading.clear()
    async with serving(log) as coordinator:
        log.partitions = None
        log.tell(OFFSETS_TOPIC)
        log.reading.set()
        await asyncio.sleep(0.001)
        assert ErrorCode.NOT_COORDINATOR is coordinator.positions("g")[0]
        log.records.clear()
        await log.make()
        await asyncio.sleep(0.001)

        assert coordinator.groups() == (ErrorCode.NONE, [])
        assert coordinator.positions("g") == (ErrorCode.NONE, {})


@on_virtual_time
async def test_groups_go_with_their_log() -> None:
    """Somebody deletes ``__consumer_offsets``: this broker coordinates nothing until there is a new one."""
    log = MemoryLog()
    async with serving(log) as coordinator:
        await commit(coordinator, {P: position(3)})
        log.partitions = None
        log.records.clear()
        log.tell(OFFSETS_TOPIC)
        gone = coordinator.positions("g")[0]
        await log.make()
        await asyncio.sleep(0.001)

        assert (ErrorCode.NOT_COORDINATOR, (ErrorCode.NONE, {})) == (gone, coordinator.positions("g"))


@on_virtual_time
async def test_who_waits_when_the_broker_stops_is_answered() -> None:
    """NOT_COORDINATOR makes clients look for another one."""
    async with asyncio.TaskGroup() as tasks, serving(MemoryLog()) as coordinator:
        await one_member(coordinator)
        waiting = tasks.create_task(join(coordinator))
        await asyncio.sleep(1)
    after = (await join(coordinator)).error

    assert (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE) == (waiting.result().error, after)


@on_virtual_time
async def test_commits_that_come_at_once_count_in_the_order_of_the_log() -> None:
    """In memory as after a restart."""
    log = MemoryLog()
    async with serving(log) as coordinator:
        async with asyncio.TaskGroup() as tasks:
            for offset in range(20):
                tasks.create_task(commit(coordinator, {P: position(offset)}))
        kept = coordinator.positions("g")[1]
    async with serving(log) as coordinator:
        assert coordinator.positions("g")[1] == kept == {P: position(19)}
