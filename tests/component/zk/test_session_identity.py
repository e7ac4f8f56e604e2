# SPDX-License-Identifier: Apache-2.0
"""Sessions that end: epochs, what is bound to them, and what goes on.

AIOZK numbers are those of docs/aiozk.md. S is the session timeout.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path

import pytest

from consumerd.aio.timeouts import timeout, timeout_at
from consumerd.embedded.zookeeper import EmbeddedZooKeeper
from consumerd.errors import SessionLost
from consumerd.model import SessionEpoch
from consumerd.zk.aiozk_client import AiozkClient
from consumerd.zk.port import LeasePhase, NotConnected, OutcomeUnknown, SetData, WatchKind
from tests.support.tcp_proxy import Action, Direction, FrameHook, TcpProxy
from tests.support.waiting import until
from tests.support.zookeeper import make_client, make_server

S = 1.5


async def gone(client: AiozkClient, path: str) -> None:
    """Wait until the server has ended the session that held ``path``."""
    told = asyncio.Event()
    watch = client.watch(path, WatchKind.DATA, told.set)
    async with timeout(20):
        while await client.exists(path) is not None:
            told.clear()
            await told.wait()
    watch.close()


async def test_state_before_the_first_session_is_none(proxy: TcpProxy) -> None:
    """Without a server there is an unready member, not a crash: it waits, and goes on by itself."""
    proxy.refuse()
    async with make_client(proxy.connect_string, session_timeout_s=S, call_timeout_s=0.1) as zk:
        before = zk.state
        assert (before.epoch, before.session_id, before.phase, before.connected) == (0, 0, LeasePhase.NONE, False)
        with pytest.raises(NotConnected):
            await zk.get("/")
        with pytest.raises(SessionLost):
            await zk.create("/x", b"", epoch=SessionEpoch(0))
        await proxy.listen()
        async with timeout(5):
            await zk.wait_connected()

        state = zk.state
        assert (state.epoch, state.phase, state.connected, state.timeout_s) == (1, LeasePhase.FRESH, True, S)


async def test_a6_expiry_begins_a_new_epoch_and_the_client_goes_on(
    server: EmbeddedZooKeeper, proxy: TcpProxy, root: str
) -> None:
    """AIOZK A6: no event told of an expiry; connected again in the same instant, with everything gone."""
    async with (
        make_client(proxy.connect_string, session_timeout_s=S) as zk,
        make_client(server.connect_string) as other,
    ):
        await zk.ensure_path(root)
        await zk.create(f"{root}/e", b"", ephemeral=True)
        told = asyncio.Event()
        zk.watch(root, WatchKind.CHILDREN, told.set)
        await zk.children(root)
        before = zk.state
        proxy.blackhole()
        await gone(other, f"{root}/e")
        assert zk.state.phase is LeasePhase.SUSPENDED
        assert zk.state.epoch == before.epoch
        told.clear()
        proxy.heal()
        async with timeout(5):
            await told.wait()
            state = zk.state
            while not state.connected:
                state = await zk.wait_state(state)

        assert state.epoch == before.epoch + 1
        assert state.session_id not in {0, before.session_id}
        assert state.phase is LeasePhase.FRESH
        with pytest.raises(SessionLost, match="session 1 is over"):
            await zk.create(f"{root}/e", b"", ephemeral=True, epoch=before.epoch)
        with pytest.raises(SessionLost):
            await zk.multi([SetData(root, b"")], epoch=before.epoch)
        await zk.create(f"{root}/e", b"", ephemeral=True, epoch=state.epoch)
        told.clear()
        await other.create(f"{root}/n", b"")
        async with timeout(5):
            await told.wait()


async def test_half_open_longer_than_the_session_keeps_it_where_the_server_still_hears_us(
    server: EmbeddedZooKeeper, proxy: TcpProxy, root: str
) -> None:
    """Only answers are lost: the server goes on hearing of the session, and we must not end it on our own."""
    async with (
        make_client(proxy.connect_string, session_timeout_s=S) as zk,
        make_client(server.connect_string) as other,
    ):
        await zk.create(root, b"", ephemeral=True)
        before = state = zk.state
        proxy.blackhole(Direction.TO_CLIENT)
        silence_ends = asyncio.get_running_loop().time() + 2 * S
        with contextlib.suppress(TimeoutError):
            async with timeout_at(silence_ends):
                while True:
                    state = await zk.wait_state(state)
        assert state.phase is LeasePhase.SUSPENDED
        stat = await other.exists(root)
        assert stat is not None
        proxy.heal()
        async with timeout(5):
            while not (state.connected and state.phase is LeasePhase.FRESH):
                state = await zk.wait_state(state)

        assert state == before


async def test_restarted_server_keeps_the_session(tmp_path: Path) -> None:
    """A rolling restart of the ensemble must not cost a rebalance."""
    async with make_server(tmp_path) as own, make_client(own.connect_string, session_timeout_s=10) as zk:
        await zk.create("/e", b"", ephemeral=True)
        before = zk.state
        await own.kill()
        await until(lambda: not zk.state.connected)
        await own.start()
        assert await zk.exists("/e") is not None

        assert zk.state == before


async def test_ensemble_set_up_anew_is_accepted_after_the_session_is_over(tmp_path: Path) -> None:
    """A server refuses who has seen more than itself: without forgetting that, a wiped one is refused for ever."""
    async with make_server(tmp_path / "old") as old:
        port = old.port
        async with make_client(old.connect_string, session_timeout_s=S) as zk:
            for _ in range(20):
                await zk.ensure_path("/old/node")
                await zk.set("/old/node", b"")
            before = zk.state
            await old.kill()
            async with make_server(tmp_path / "new", port=port):
                state = before
                async with timeout(15):
                    while state.epoch == before.epoch or not state.connected:
                        state = await zk.wait_state(state)

                assert await zk.exists("/old") is None
                assert state.epoch == before.epoch + 1


async def test_write_that_waits_for_a_connection_does_not_slip_into_the_next_session(
    server: EmbeddedZooKeeper, proxy: TcpProxy, root: str
) -> None:
    """A claim that was asked for in session 1 and made in session 2 would be nobody's."""
    async with (
        make_client(proxy.connect_string, session_timeout_s=S, call_timeout_s=20) as zk,
        make_client(server.connect_string) as other,
    ):
        await zk.ensure_path(root)
        await zk.create(f"{root}/e", b"", ephemeral=True)
        before = zk.state
        proxy.refuse()
        proxy.cut()
        await until(lambda: not zk.state.connected)
        async with asyncio.TaskGroup() as group:
            bound = [group.create_task(_outcome(zk, f"{root}/bound-{i}", before.epoch)) for i in range(50)]
            free = group.create_task(zk.create(f"{root}/free", b""))
            await gone(other, f"{root}/e")
            await proxy.listen()
            await free

        assert {type(await outcome) for outcome in bound} == {SessionLost}
        assert (await other.children(root))[0] == ["free"]
        assert zk.state.epoch == before.epoch + 1


async def _outcome(zk: AiozkClient, path: str, epoch: SessionEpoch) -> Exception | None:
    try:
        await zk.create(path, b"", ephemeral=True, epoch=epoch)
    except (SessionLost, NotConnected, OutcomeUnknown) as error:
        return error
    return None


async def test_bound_writes_under_constant_cuts_belong_to_their_session(
    server: EmbeddedZooKeeper, proxy: TcpProxy, root: str
) -> None:
    """Whatever the outcome reported, a node of ours is of the session that it was bound to, or is not there."""
    async with (
        make_client(proxy.connect_string, session_timeout_s=S) as zk,
        make_client(server.connect_string) as other,
    ):
        await zk.ensure_path(root)
        await zk.create(f"{root}/marker", b"", ephemeral=True)
        outcomes: dict[str, Exception | None] = {}
        sessions: dict[int, int] = {}
        for turn in range(12):
            state = zk.state
            sessions[state.epoch] = state.session_id
            proxy.on_frame = _cut_at(turn * 3)
            paths = [f"{root}/{turn:02}-{i:02}-{state.epoch}" for i in range(20)]
            results = await asyncio.gather(*(_outcome(zk, path, state.epoch) for path in paths))
            outcomes |= dict(zip(paths, results, strict=True))
            proxy.on_frame = None
            if turn == 6:
                proxy.blackhole()
                await gone(other, f"{root}/marker")
                proxy.heal()
            await until(lambda: zk.state.connected and zk.state.phase is LeasePhase.FRESH)

        last = zk.state.epoch
        assert last >= 2
        for path, outcome in outcomes.items():
            stat = await other.exists(path)
            epoch = int(path.rsplit("-", 1)[1])
            if epoch == last and outcome is None:
                assert stat is not None, path
            if stat is not None:
                assert sessions[epoch] == stat.ephemeral_owner, path
            if isinstance(outcome, NotConnected | SessionLost):
                assert stat is None, path


def _cut_at(count: int) -> FrameHook:
    """Cut at the nth frame, whichever way it goes."""
    seen = 0

    def decide(way: Direction, frame: bytes) -> Action:
        nonlocal seen
        seen += 1
        return Action.CUT if seen == count else Action.FORWARD

    return decide


async def test_process_that_was_stopped_finds_its_lease_suspended_at_once(server: EmbeddedZooKeeper) -> None:
    """After SIGCONT the first check must see how late it is, before any timer or answer."""
    skipped = 0.0
    async with make_client(server.connect_string, session_timeout_s=6, now=lambda: time.monotonic() + skipped) as zk:
        await zk.wait_connected()
        assert zk.state.phase is LeasePhase.FRESH
        skipped = 3.1
        assert zk.state.phase is LeasePhase.PAUSED
        skipped = 4.1
        assert zk.state.phase is LeasePhase.SUSPENDED
        # a read proves nothing, but the server has not stopped, and its answer to a write says so
        await zk.exists("/")
        assert zk.state.phase is LeasePhase.SUSPENDED
        await zk.set("/", b"")
        assert zk.state.phase is LeasePhase.FRESH
        assert zk.state.epoch == 1
