# SPDX-License-Identifier: Apache-2.0
"""Connections that break in every way there is, through a proxy in front of a real server.

AIOZK numbers are those of docs/aiozk.md. S is the session timeout.
"""

from __future__ import annotations

import asyncio
import time
from typing import Self

import pytest

from consumerd.aio.timeouts import timeout
from consumerd.embedded.zookeeper import EmbeddedZooKeeper
from consumerd.zk.aiozk_client import AiozkClient
from consumerd.zk.port import LeasePhase, NotConnected, OutcomeUnknown, WatchKind
from tests.support.clocks import ManualClock
from tests.support.tcp_proxy import Action, Direction, TcpProxy
from tests.support.waiting import until
from tests.support.zookeeper import (
    AUTH,
    CREATE,
    EXISTS,
    GET,
    SET_WATCHES,
    SYNC,
    at_answer_to,
    live_sessions,
    make_client,
    opcode,
    xid,
)


async def test_a1_orderly_close_is_noticed_at_once(proxy: TcpProxy, root: str) -> None:
    """AIOZK A1: a server that closes its side went unnoticed for 9.5 s, and calls hung with it."""
    async with make_client(proxy.connect_string, session_timeout_s=10) as zk:
        await zk.create(root, b"1")
        before = zk.state
        proxy.fin()
        state = await zk.wait_state(before)
        assert not state.connected

        async with timeout(2):
            assert (await zk.get(root))[0] == b"1"
        assert zk.state == before


@pytest.mark.parametrize("direction", [None, Direction.TO_CLIENT], ids=["both ways", "half-open"])
async def test_a2_silence_pauses_and_suspends_before_the_session_can_end(
    server: EmbeddedZooKeeper, proxy: TcpProxy, root: str, direction: Direction | None
) -> None:
    """AIOZK A2: silence was noticed only when the server gave the claim to somebody else."""
    async with (
        make_client(proxy.connect_string, session_timeout_s=3) as zk,
        make_client(server.connect_string) as other,
    ):
        await zk.create(root, b"", ephemeral=True)
        # what was sent about now is the newest that the leader has answered
        started = time.monotonic()
        proxy.blackhole(*([direction] if direction else []))

        seen = {}
        state = zk.state
        while state.phase is not LeasePhase.SUSPENDED:
            async with timeout(5):
                state = await zk.wait_state(state)
            seen.setdefault(state.phase, time.monotonic() - started)

        assert await other.exists(root) is not None
        assert 1.4 <= seen[LeasePhase.PAUSED] <= 1.9
        assert 1.9 <= seen[LeasePhase.SUSPENDED] <= 2.4
        assert state.epoch == 1
        proxy.heal()


# The longest that the server grants. A probe goes out every 5 s of real time, so none renews the lease during a test.
_LONG_SESSION_S = 30.0


class CrossingClock(ManualClock):
    """A clock that goes on by ``step`` after each reading, once that is set."""

    step = 0.0

    def __call__(self) -> float:
        now = super().__call__()
        self.seconds += self.step
        return now


async def test_a_phase_that_begins_while_its_wait_is_planned_is_told(proxy: TcpProxy) -> None:
    """Timers fire a little early: the clock may reach the phase's begin between a look and the next timer."""
    clock = CrossingClock(1000.0)
    async with make_client(proxy.connect_string, session_timeout_s=_LONG_SESSION_S, now=clock) as zk:
        await zk.wait_connected()
        clock.seconds += _LONG_SESSION_S * 2 / 3 - 0.01
        paused = zk.state
        assert paused.phase is LeasePhase.PAUSED
        clock.step = 0.02
        async with timeout(20):
            assert (await zk.wait_state(paused)).phase is LeasePhase.SUSPENDED


async def test_lease_runs_from_the_sending_of_the_answered_request(proxy: TcpProxy, root: str) -> None:
    """An answer that arrives late says how things were when the request was sent, not when it arrived.

    Sent at 0, answered at 0.6 of the timeout: the member is PAUSED at once, and SUSPENDED at 0.7. Counted from the answer it
    would be FRESH until 1.1 of the timeout, while the ensemble gives its partitions to another member at 1.0.
    """
    clock = ManualClock(1000.0)
    async with make_client(proxy.connect_string, session_timeout_s=_LONG_SESSION_S, now=clock) as zk:
        await zk.wait_connected()
        timeout_s = zk.state.timeout_s
        assert timeout_s == _LONG_SESSION_S
        to_answer = at_answer_to(CREATE, Action.CUT)  # acted upon by the clock, not by the proxy

        def late(way: Direction, frame: bytes) -> Action:
            if to_answer(way, frame) is Action.CUT:
                clock.seconds += 0.6 * timeout_s
            return Action.FORWARD

        proxy.on_frame = late
        await zk.create(root, b"")
        after_answer = zk.state
        clock.seconds += 0.1 * timeout_s

        assert (LeasePhase.PAUSED, True) == (after_answer.phase, after_answer.connected)
        assert LeasePhase.SUSPENDED is zk.state.phase


@pytest.mark.parametrize("connection", [1, 2], ids=["a new session", "the same session again"])
async def test_lease_runs_from_the_sending_of_the_greeting(proxy: TcpProxy, connection: int) -> None:
    """A server that hangs while it takes up a session has heard of us no later than we greeted it."""
    clock = ManualClock(1000.0)
    late: list[float] = []

    def decide(way: Direction, _frame: bytes) -> Action:
        if way is Direction.TO_CLIENT and proxy.accepted == connection and not late:
            late.append(0.6 * _LONG_SESSION_S)
            clock.seconds += late[0]
        return Action.FORWARD

    proxy.on_frame = decide
    async with make_client(proxy.connect_string, session_timeout_s=_LONG_SESSION_S, now=clock) as zk:
        await zk.wait_connected()
        if connection == 2:
            assert zk.state.phase is LeasePhase.FRESH
            before = zk.state
            proxy.cut()
            await zk.wait_state(before)
            await zk.wait_connected()

        assert zk.state.timeout_s == _LONG_SESSION_S
        assert (LeasePhase.PAUSED, 1) == (zk.state.phase, zk.state.epoch)


async def test_cut_right_after_an_answered_probe_for_most_of_a_session_costs_nothing(
    proxy: TcpProxy, server: EmbeddedZooKeeper, root: str
) -> None:
    """The longest partition that a session can outlive must be outlived: 0.7 S without a word."""
    async with (
        make_client(proxy.connect_string, session_timeout_s=4) as zk,
        make_client(server.connect_string) as other,
    ):
        await zk.create(root, b"", ephemeral=True)
        before = zk.state
        proxy.on_frame = at_answer_to(SYNC, Action.BLACKHOLE_AFTER)
        await until(lambda: proxy.held)
        proxy.on_frame = None
        loop = asyncio.get_running_loop()
        heal_at = loop.time() + 0.7 * 4
        phases, state = set(), before
        async with timeout(1.5 * 4):
            while state.phase is not LeasePhase.SUSPENDED:
                state = await zk.wait_state(state)
                phases.add(state.phase)
            # not earlier than that was seen: 0.13 s later is too soon for a crowded machine
            loop.call_at(heal_at, proxy.heal)
            while state.phase is not LeasePhase.FRESH or not state.connected:
                state = await zk.wait_state(state)

        assert phases >= {LeasePhase.PAUSED, LeasePhase.SUSPENDED}
        assert state == before
        stat = await other.exists(root)
        assert stat is not None
        assert stat.ephemeral_owner == before.session_id


async def test_a3_hung_server_of_two_does_not_block(server: EmbeddedZooKeeper) -> None:
    """AIOZK A3: a server that accepts and says nothing hung three starts of eight."""
    async with TcpProxy(server.port) as hung:
        hung.blackhole()
        async with timeout(6), asyncio.TaskGroup() as group:
            for _ in range(8):
                group.create_task(_starts(f"{hung.connect_string},{server.connect_string}"))
        assert hung.accepted == 8


async def _starts(connect_string: str) -> None:
    # all draw the same lot, and come to the server that is named first
    async with make_client(connect_string, session_timeout_s=3, random=lambda: 0.5) as zk:
        await zk.wait_connected()
        assert zk.state.epoch == 1


async def test_a3_connected_server_that_hangs_is_left_for_another_one(server: EmbeddedZooKeeper, root: str) -> None:
    """The session must reach the healthy server while it still lives."""
    async with TcpProxy(server.port) as one, TcpProxy(server.port) as two:
        both = f"{one.connect_string},{two.connect_string}"
        async with make_client(both, session_timeout_s=4) as zk:
            await zk.create(root, b"", ephemeral=True)
            before = zk.state
            used, spare = (one, two) if one.connections else (two, one)
            used.blackhole()
            await until(lambda: spare.connections == 1, within_s=3)
            await zk.exists(root)

            assert zk.state.phase is LeasePhase.FRESH
            assert zk.state == before
            used.heal()


STEPS = {
    "connect request": (Direction.TO_SERVER, None),
    "welcome": (Direction.TO_CLIENT, None),
    "authentication": (Direction.TO_SERVER, AUTH),
    "authentication's answer": (Direction.TO_CLIENT, AUTH),
    "look at the root": (Direction.TO_SERVER, EXISTS),
    "look's answer": (Direction.TO_CLIENT, EXISTS),
    "watches": (Direction.TO_SERVER, SET_WATCHES),
    "watches' answer": (Direction.TO_CLIENT, SET_WATCHES),
    "first probe": (Direction.TO_SERVER, SYNC),
    "first probe's answer": (Direction.TO_CLIENT, SYNC),
}


@pytest.mark.parametrize("action", [Action.CUT, Action.CUT_AFTER], ids=["cut before", "cut after"])
@pytest.mark.parametrize("step", STEPS)
async def test_a4_cut_at_each_step_of_reconnecting_is_survived(
    server: EmbeddedZooKeeper, proxy: TcpProxy, root: str, step: str, action: Action
) -> None:
    """AIOZK A4: a second cut while watches were being set again stopped the client for good."""
    direction, wanted = STEPS[step]
    auth = ("digest", b"us:secret")
    sessions = await asyncio.to_thread(live_sessions, server.port)
    async with (
        make_client(proxy.connect_string, auth=auth, session_timeout_s=4) as zk,
        make_client(server.connect_string) as other,
    ):
        await zk.create(root, b"", ephemeral=True)
        before = zk.state
        told = asyncio.Event()
        zk.watch(root, WatchKind.DATA, told.set)
        await zk.exists(root)
        asked: set[int] = set()
        hits: list[bytes] = []

        def decide(way: Direction, frame: bytes) -> Action:
            # the second connection: that of the first cut's repair
            if proxy.accepted != 2 or hits:
                return Action.FORWARD
            if way is Direction.TO_SERVER and opcode(frame) == wanted:
                asked.add(xid(frame))
            at_step = wanted is None or (opcode(frame) == wanted if way is Direction.TO_SERVER else xid(frame) in asked)
            if way is not direction or not at_step:
                return Action.FORWARD
            hits.append(frame)
            return action

        proxy.on_frame = decide
        proxy.cut()
        await until(lambda: bool(hits), within_s=5)
        await until(lambda: proxy.accepted >= 3, within_s=5)
        await zk.exists("/")
        told.clear()
        await other.set(root, b"new")
        async with timeout(5):
            await told.wait()

        assert (await zk.get(root))[0] == b"new"
        assert zk.state == before
        ours = {before.session_id, other.state.session_id}
        assert await asyncio.to_thread(live_sessions, server.port) <= sessions | ours


WORKERS = 48


@pytest.mark.parametrize("direction", Direction, ids=["to the server", "to us"])
async def test_a4_cut_after_each_byte_of_reconnecting_is_survived(
    server: EmbeddedZooKeeper, root: str, direction: Direction
) -> None:
    """AIOZK A4, A5, A10: whichever byte was the last, the session goes on, its watches work, and none is left behind."""
    sessions = await asyncio.to_thread(live_sessions, server.port)
    async with make_client(server.connect_string) as other:
        await other.create(root, b"")
        async with TcpProxy(server.port) as proxy, ByteCuts(proxy, other, f"{root}/size") as cuts:
            size = await cuts.measure(direction)
        assert 100 < size < 500, "a greeting, credentials, the look at the root, watches, and one read"

        async def cut_some(worker: int) -> None:
            async with TcpProxy(server.port) as proxy, ByteCuts(proxy, other, f"{root}/{worker}") as cuts:
                for last in range(worker, size, WORKERS):
                    await cuts.cut(direction, last)

        async with timeout(50), asyncio.TaskGroup() as workers:
            for worker in range(WORKERS):
                workers.create_task(cut_some(worker))
        # a busy server may answer a close too late for us; then the session expires
        expected = sessions | {other.state.session_id}
        await until(lambda: live_sessions(server.port) <= expected)


class ByteCuts:
    """A session with a claim and a watch, whose connection is cut, and cut again after some bytes of the next one."""

    def __init__(self, proxy: TcpProxy, other: AiozkClient, path: str) -> None:
        self._proxy = proxy
        self._other = other
        self._path = path
        self._zk = make_client(proxy.connect_string, auth=("digest", b"us:secret"), session_timeout_s=4)
        self._told = asyncio.Event()

    async def __aenter__(self) -> Self:
        await self._zk.__aenter__()
        await self._zk.create(self._path, b"", ephemeral=True)
        self._zk.watch(self._path, WatchKind.DATA, self._told.set)
        await self._zk.exists(self._path)
        self._before = self._zk.state
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._zk.__aexit__(*exc)

    async def measure(self, direction: Direction) -> int:
        """Return how many bytes a reconnect takes."""
        before, accepted = self._proxy.carried[direction], self._proxy.accepted
        self._proxy.cut()
        await until(lambda: self._proxy.accepted > accepted and self._zk.state.connected)
        await self._zk.exists("/")  # answered after the watches
        return self._proxy.carried[direction] - before

    async def cut(self, direction: Direction, last: int) -> None:
        """Cut twice, and see that nothing is lost."""
        self._proxy.cut_after(direction, last)
        self._proxy.cut()
        # what a reconnect does not send, the next probe does
        await until(lambda: not self._proxy.cut_pending)
        await self._changed(b"%d" % last)

    async def _changed(self, data: bytes) -> None:
        await until(lambda: self._zk.state.connected)
        await self._zk.exists("/")
        self._told.clear()
        await self._other.set(self._path, data)
        async with timeout(10):
            await self._told.wait()
        assert (await self._zk.get(self._path))[0] == data
        assert self._zk.state == self._before


async def test_a4_more_watches_than_fit_into_a_request_are_set_again(
    server: EmbeddedZooKeeper, proxy: TcpProxy, root: str
) -> None:
    """AIOZK A4: 12,000 watches of 90 bytes made a request that no server reads, for ever."""
    paths = [f"{root}/{i:05}-{'x' * 80}" for i in range(12_000)]
    async with make_client(proxy.connect_string) as zk, make_client(server.connect_string) as other:
        await zk.create(root, b"")
        told: set[str] = set()
        for path in paths:
            zk.watch(path, WatchKind.DATA, lambda path=path: told.add(path))
        await zk.exists("/")
        await until(lambda: len(told) == len(paths))
        told.clear()
        proxy.cut()
        await until(lambda: len(told) == len(paths))
        # every watch finds out again that its node is missing
        await zk.exists("/")
        await asyncio.sleep(0)
        await until(lambda: zk._session._connection is not None and not zk._session._connection._pending)
        told.clear()
        for path in (paths[0], paths[6000], paths[-1]):
            await other.create(path, b"", ephemeral=True)
        await until(lambda: told == {paths[0], paths[6000], paths[-1]})

        assert zk.state.epoch == 1


async def test_a5_session_survives_a_greeting_that_is_slower_than_any_bound(
    server: EmbeddedZooKeeper, proxy: TcpProxy, root: str
) -> None:
    """AIOZK A5: a slow or broken greeting made the client drop the id of a session that lived on."""
    async with (
        make_client(proxy.connect_string, session_timeout_s=4) as zk,
        make_client(server.connect_string) as other,
    ):
        await zk.create(root, b"", ephemeral=True)
        before = zk.state
        slow: list[bytes] = []

        def hold_greetings(way: Direction, frame: bytes) -> Action:
            if way is Direction.TO_CLIENT and not slow:
                slow.append(frame)
                proxy.blackhole(Direction.TO_CLIENT)
            return Action.FORWARD

        proxy.on_frame = hold_greetings
        proxy.cut()
        # the greeting is held back until the attempt has been given up and another one begun
        await until(lambda: proxy.accepted >= 3)
        proxy.heal()
        proxy.truncate_next(10)
        await until(lambda: proxy.accepted >= 4)
        await zk.exists("/")

        assert zk.state == before
        stat = await other.exists(root)
        assert stat is not None
        assert stat.ephemeral_owner == before.session_id


async def test_a7_reconnects_within_a_fraction_of_the_session(proxy: TcpProxy) -> None:
    """AIOZK A7: its pauses of 0, 4, 12, 28 s cost every session of 6 s that met one failed attempt."""
    async with make_client(proxy.connect_string, session_timeout_s=3) as zk:
        await zk.wait_connected()
        before = zk.state
        proxy.refuse()
        proxy.cut()
        state = await zk.wait_state(before)
        while state.phase not in (LeasePhase.SUSPENDED, LeasePhase.NONE):  # over at once where the machine stood still
            state = await zk.wait_state(state)
        await proxy.listen()
        listening = time.monotonic()
        while not state.connected:
            state = await zk.wait_state(state)

        assert time.monotonic() - listening < 0.6
        assert zk.state == before


async def test_a8_leaving_without_a_connection_is_quick(proxy: TcpProxy) -> None:
    """AIOZK A8: close() raised after a whole timeout and left the client unusable."""
    async with make_client(proxy.connect_string, session_timeout_s=6) as zk:
        await zk.wait_connected()
        before = zk.state
        proxy.refuse()
        proxy.cut()
        await zk.wait_state(before)
        started = time.monotonic()

    assert time.monotonic() - started < 0.5


async def test_a8_leaving_a_hung_server_is_bounded(proxy: TcpProxy) -> None:
    """A stop must not wait for a server that says nothing for longer than a third of the session."""
    async with make_client(proxy.connect_string, session_timeout_s=3) as zk:
        await zk.wait_connected()
        proxy.blackhole()
        started = time.monotonic()

    assert time.monotonic() - started < 1.5
    proxy.heal()


@pytest.mark.parametrize("size", [0, 2, 4, 10, 20, 60])
async def test_a10_frame_cut_in_its_middle_ends_the_connection_and_nothing_else(
    proxy: TcpProxy, root: str, size: int
) -> None:
    """AIOZK A10: half a frame blocked the whole event loop for 3 s, on Python 3.12 and later."""
    async with make_client(proxy.connect_string, session_timeout_s=10) as zk:
        await zk.create(root, bytes(100))
        before = zk.state
        proxy.truncate_next(size)
        started, turns = time.monotonic(), 0
        async with asyncio.TaskGroup() as group:
            call = group.create_task(zk.get(root))
            while not call.done():
                await asyncio.sleep(0.001)
                turns += 1

        assert (await call)[0] == bytes(100)
        assert time.monotonic() - started < 2
        assert turns >= 2
        assert zk.state == before


async def test_a12_writes_are_sent_once_and_reads_again(server: EmbeddedZooKeeper, proxy: TcpProxy, root: str) -> None:
    """AIOZK A12: everything was sent again after a lost connection, creates too."""
    sent: list[int] = []

    async with make_client(proxy.connect_string) as zk:
        await zk.wait_connected()
        lose_create, lose_get = at_answer_to(CREATE, Action.CUT), at_answer_to(GET, Action.CUT)

        def decide(way: Direction, frame: bytes) -> Action:
            if way is Direction.TO_SERVER:
                sent.append(opcode(frame))
            one, two = lose_create(way, frame), lose_get(way, frame)
            return one if one is not Action.FORWARD else two

        proxy.on_frame = decide
        with pytest.raises(OutcomeUnknown, match=rf"create {root}: sent, but the connection broke"):
            await zk.create(root, b"1", ephemeral=True)
        assert (await zk.get(root))[0] == b"1"

        assert sent.count(CREATE) == 1
        assert sent.count(GET) == 2
        stat = await zk.exists(root)
        assert stat is not None
        assert stat.ephemeral_owner == zk.state.session_id


async def test_a13_calls_without_a_connection_are_bounded(proxy: TcpProxy, root: str) -> None:
    """AIOZK A13: requests waited for ever while there was no connection."""
    async with make_client(proxy.connect_string, session_timeout_s=6, call_timeout_s=0.2) as zk:
        await zk.create(root, b"")
        before = zk.state
        proxy.refuse()
        proxy.cut()
        await zk.wait_state(before)
        with pytest.raises(NotConnected, match=rf"get {root}: no answer from ZooKeeper within 0.2 s"):
            await zk.get(root)
        with pytest.raises(NotConnected, match="not sent"):
            await zk.set(root, b"")
        with pytest.raises(NotConnected, match="not sent"):
            await zk.set(root, b"", epoch=before.epoch)


async def test_a13_calls_that_are_sent_into_silence_are_bounded_too(proxy: TcpProxy, root: str) -> None:
    """A write that was sent has an unknown outcome; a read has simply not been answered."""
    async with make_client(proxy.connect_string, session_timeout_s=6, call_timeout_s=0.2) as zk:
        await zk.create(root, b"")
        proxy.blackhole()
        with pytest.raises(NotConnected, match="no answer"):
            await zk.get(root)
        with pytest.raises(OutcomeUnknown, match=r"sent, but no answer within 0.2 s"):
            await zk.set(root, b"x")
        proxy.heal()

        await until(lambda: zk.state.connected)
        assert (await zk.get(root))[0] == b"x"


async def test_a13_a14_cancelled_calls_leave_nothing_behind(proxy: TcpProxy, root: str) -> None:
    """AIOZK A13, A14: cancelled requests left timers for good, which made later requests fail unsent."""
    async with make_client(proxy.connect_string, session_timeout_s=6) as zk:
        await zk.create(root, b"")
        before, tasks = zk.state, len(asyncio.all_tasks())
        proxy.refuse()
        proxy.cut()
        await zk.wait_state(before)
        async with asyncio.TaskGroup() as group:
            calls = [group.create_task(zk.get(root)) for _ in range(600)]
            await asyncio.sleep(0)
            for call in calls:
                call.cancel()
        await proxy.listen()
        await until(lambda: zk.state.connected)
        async with asyncio.TaskGroup() as group:
            calls = [group.create_task(zk.get(root)) for _ in range(600)]
            await asyncio.sleep(0)
            for call in calls:
                call.cancel()
        await asyncio.gather(*(zk.get(root) for _ in range(600)))

        assert all(call.cancelled() for call in calls)
        assert len(asyncio.all_tasks()) <= tasks + 1  # the proxy's own come and go with its connections
        connection = zk._session._connection
        assert connection is not None
        await until(lambda: not connection._pending)  # a keep-alive may be on its way just now
        assert zk.state == before


async def test_paused_server_is_noticed_and_taken_up_again(server: EmbeddedZooKeeper, root: str) -> None:
    """A long garbage collection: the process is there, its port accepts, nothing is answered."""
    async with make_client(server.connect_string, session_timeout_s=3) as zk:
        await zk.create(root, b"", ephemeral=True)
        before = state = zk.state
        server.pause()
        try:
            async with timeout(5):
                while state.phase is not LeasePhase.SUSPENDED:
                    state = await zk.wait_state(state)
        finally:
            server.resume()
        async with timeout(5):
            while state.phase is not LeasePhase.FRESH:
                state = await zk.wait_state(state)

        # the server's clock went on: it may have ended the session, but then it is another epoch
        kept = await zk.exists(root) is not None
        assert kept == (zk.state.epoch == before.epoch)
