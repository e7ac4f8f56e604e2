# SPDX-License-Identifier: Apache-2.0
"""The connections to a cluster's brokers."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest

from consumerd.errors import AuthenticationFailed, ConnectionLost
from consumerd.model import BrokerId
from consumerd.net.address import Address
from consumerd.net.connection import BrokerConnection
from consumerd.net.dialer import Dialer
from consumerd.net.pool import ConnectionPool, PoolShare, Purpose
from consumerd.wire.apikeys import ApiKey
from consumerd.wire.modern.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from tests.support import virtual_time
from tests.support.scripted_broker import FakeNetwork, Late, Reaction, ScriptedBroker, listing


@dataclass(frozen=True)
class Broker:
    id: BrokerId
    address: Address


ONE = Broker(BrokerId(1), Address(host="one", port=9092))
TWO = Broker(BrokerId(2), Address(host="two", port=9092))
RANGES = {ApiKey.LIST_OFFSETS: (0, 2)}

FETCH, CONTROL = Purpose.FETCH, Purpose.CONTROL


class Scene:
    """A pool in a network of two brokers."""

    def __init__(self) -> None:
        self.network = FakeNetwork()
        for broker in (ONE, TWO):
            self.network.brokers[broker.address] = ScriptedBroker(
                {ListOffsetsRequest: lambda _request, _version: Reaction.SILENT}, ranges=RANGES
            )

    def run(self, scenario: Callable[[ConnectionPool], Awaitable[None]]) -> None:
        async def play() -> None:
            now = asyncio.get_running_loop().time
            dialer = Dialer(self.network, client_id="t", now=now)
            async with ConnectionPool(dialer, now=now, random=lambda: 0.0, idle_timeout_s=60) as pool:
                await scenario(pool)
            assert all(stream.closed for stream in self.network.streams)

        virtual_time.run(play())

    @property
    def connects(self) -> int:
        return len(self.network.attempts)


def test_connections_are_kept_by_broker_and_purpose() -> None:
    """A long poll must not stand in the way of anything else."""
    scene = Scene()

    async def scenario(pool: ConnectionPool) -> None:
        kept = {await pool.get(broker, purpose) for broker in (ONE, TWO) for purpose in Purpose for _ in range(3)}
        assert 2 * len(Purpose) == len(kept) == scene.connects
        each = ", ".join(f"{broker}/{purpose}" for broker in (1, 2) for purpose in sorted(Purpose))
        assert repr(pool) == f"<ConnectionPool {each}>"

    scene.run(scenario)


def test_each_share_has_connections_of_its_own() -> None:
    """Answers come in order: what one sink has no room for must not hold up another's."""
    scene = Scene()

    async def scenario(pool: ConnectionPool) -> None:
        shares = [PoolShare(pool, name) for name in ("lake", "tail")]
        kept = {await share.get(ONE, FETCH) for share in shares for _ in range(2)} | {await pool.get(ONE, FETCH)}
        assert 3 == len(kept) == scene.connects
        assert repr(pool) == "<ConnectionPool 1/fetch, 1/fetch/lake, 1/fetch/tail>"

    scene.run(scenario)


def test_connecting_is_single_flight() -> None:
    """A thousand partitions of a broker that comes up make one connection."""
    scene = Scene()
    scene.network.connect_s = 1.0

    async def scenario(pool: ConnectionPool) -> None:
        got = await asyncio.gather(*(pool.get(ONE, FETCH) for _ in range(50)))
        assert 1 == len(set(got)) == scene.connects

    scene.run(scenario)


def test_failure_is_shared_by_who_waited() -> None:
    """Each would otherwise try in turn, one connect timeout after the other."""
    scene = Scene()
    scene.network.connect_s = 1.0
    scene.network.brokers.clear()

    async def scenario(pool: ConnectionPool) -> None:
        got = await asyncio.gather(*(pool.get(ONE, FETCH) for _ in range(5)), return_exceptions=True)
        assert [ConnectionLost] * 5 == [type(one) for one in got]
        assert scene.connects == 1
        assert asyncio.get_running_loop().time() == 1.0

    scene.run(scenario)


def test_cancelled_attempt_is_taken_over() -> None:
    """Whoever happened to be first must not decide for the others."""
    scene = Scene()
    scene.network.connect_s = 1.0

    async def scenario(pool: ConnectionPool) -> None:
        async with asyncio.TaskGroup() as tasks:
            first = tasks.create_task(pool.get(ONE, FETCH))
            await asyncio.sleep(0.5)
            second = tasks.create_task(pool.get(ONE, FETCH))
            await asyncio.sleep(0.1)
            first.cancel()
        assert not second.result().closed
        assert scene.connects == 2

    scene.run(scenario)


def test_failing_broker_is_tried_with_backoff() -> None:
    """And others meanwhile without delay; a success starts over."""
    scene = Scene()
    gone = scene.network.brokers.pop(ONE.address)

    async def scenario(pool: ConnectionPool) -> None:
        for _ in range(12):
            with pytest.raises(ConnectionLost, match="refused"):
                await pool.get(ONE, FETCH)
        times = [at for at, _ in scene.network.attempts]
        gaps = [round(later - earlier, 3) for earlier, later in itertools.pairwise(times)]
        assert gaps == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0, 10.0, 10.0]

        assert pool.waits_s(ONE) == 10.0
        assert pool.waits_s(TWO) == 0.0
        before = asyncio.get_running_loop().time()
        await pool.get(TWO, FETCH)
        assert asyncio.get_running_loop().time() - before < 0.1

        scene.network.brokers[ONE.address] = gone
        await pool.get(ONE, CONTROL)
        assert pool.waits_s(ONE) == 0.0

    scene.run(scenario)


def test_broken_connection_is_replaced() -> None:
    """The next one that asks gets a new one."""
    scene = Scene()

    async def scenario(pool: ConnectionPool) -> None:
        first = await pool.get(ONE, FETCH)
        scene.network.streams[0].end(ConnectionLost("gone"))
        assert first.closed
        second = await pool.get(ONE, FETCH)
        assert second is not first
        assert second is await pool.get(ONE, FETCH)

    scene.run(scenario)


def test_broker_that_moved_is_followed() -> None:
    """A broker id keeps its name on another machine; the old address is left, and its backoff with it."""
    scene = Scene()
    moved = Broker(ONE.id, TWO.address)

    async def scenario(pool: ConnectionPool) -> None:
        old = await pool.get(ONE, FETCH)
        new = await pool.get(moved, FETCH)
        assert TWO.address == new.address
        assert old.closed

    scene.run(scenario)


def test_idle_connections_are_closed_and_busy_ones_kept() -> None:
    """We close before the broker does; a request that is out keeps its connection."""
    scene = Scene()

    async def scenario(pool: ConnectionPool) -> None:
        idle, busy = await pool.get(ONE, CONTROL), await pool.get(ONE, FETCH)
        async with asyncio.TaskGroup() as tasks:
            polling = tasks.create_task(busy.request(ListOffsetsRequest(topics=()), timeout_s=500))
            await asyncio.sleep(61)
            await pool.get(TWO, CONTROL)
            assert idle.closed
            assert not busy.closed
            polling.cancel()

    scene.run(scenario)


def test_closed_pool_gives_no_connections() -> None:
    """Neither to who asks now nor to who has waited."""
    scene = Scene()
    scene.network.connect_s = 1.0

    async def scenario(pool: ConnectionPool) -> None:
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(_refused(pool))
            await asyncio.sleep(0.5)
            await pool.aclose()
        assert waiting.result()
        assert await _refused(pool)

    scene.run(scenario)


def test_slow_negotiation_holds_up_its_own_broker_only() -> None:
    """One broker in a long pause must not stop the cluster."""
    scene = Scene()
    scene.network.brokers[ONE.address] = ScriptedBroker(
        {ListOffsetsRequest: lambda _request, _version: Late(Reaction.CLOSE, 9.0)}
    )
    scene.network.brokers[TWO.address].ranges = RANGES

    async def scenario(pool: ConnectionPool) -> None:
        async with asyncio.TaskGroup() as tasks:
            slow = tasks.create_task(_refused(pool))
            await pool.get(TWO, FETCH)
            assert asyncio.get_running_loop().time() < 0.1
        assert slow.result()

    scene.run(scenario)
    assert listing(RANGES)


async def _refused(pool: ConnectionPool) -> bool:
    try:
        await pool.get(ONE, FETCH)
    except ConnectionLost:
        return True
    return False


class FailingDialer:
    """Raises what it is told to, and notes when it was asked."""

    def __init__(self, *errors: ConnectionLost) -> None:
        self._errors = list(errors)
        self.times: list[float] = []

    async def dial(self, address: Address, broker: BrokerId | None = None) -> BrokerConnection:
        self.times.append(asyncio.get_running_loop().time())
        raise self._errors[0] if len(self._errors) == 1 else self._errors.pop(0)


def list_delays(dialer: FailingDialer, attempts: int) -> list[float]:
    """Return the time between attempts of a caller that never gives up, without jitter."""

    async def play() -> None:
        now = asyncio.get_running_loop().time
        async with ConnectionPool(dialer, now=now, random=lambda: 0.0) as pool:
            for _ in range(attempts):
                with pytest.raises(ConnectionLost):
                    await pool.get(ONE, CONTROL)

    virtual_time.run(play())
    return [round(after - before, 3) for before, after in itertools.pairwise(dialer.times)]


def test_refused_identity_is_shown_again_after_seconds_to_a_minute() -> None:
    """A wrong password does not become right, and brokers write a line for each attempt."""
    assert [2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0] == list_delays(FailingDialer(AuthenticationFailed("no")), 8)
    assert [0.1, 0.2, 0.4] == list_delays(FailingDialer(ConnectionLost("no")), 4)


def test_broker_that_comes_back_after_a_refusal_is_not_waited_for_that_long() -> None:
    """Each way to fail has its own backoff: a restart in between is no refusal."""
    refused, lost = AuthenticationFailed("no"), ConnectionLost("down")

    assert [2.0, 4.0, 0.1, 0.2, 2.0] == list_delays(FailingDialer(refused, refused, lost, lost, refused), 6)


def test_callers_that_share_an_attempt_share_the_kind_of_its_failure() -> None:
    """What cannot be authenticated is told as such to each."""

    async def play() -> None:
        now = asyncio.get_running_loop().time
        async with ConnectionPool(FailingDialer(AuthenticationFailed("no")), now=now, random=lambda: 0.0) as pool:
            calls = [pool.get(ONE, CONTROL) for _ in range(3)]
            results = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(one) for one in results] == [AuthenticationFailed] * 3

    virtual_time.run(play())


def test_connection_at_the_end_of_its_lifetime_is_replaced_and_drained() -> None:
    """New requests go to another one; the pending one gets its answer; then the old one is closed."""
    scene = Scene()
    server = scene.network.brokers[ONE.address]
    assert isinstance(server, ScriptedBroker)
    server.handlers[ListOffsetsRequest] = lambda _request, _version: Late(ListOffsetsResponse(topics=()), 5.0)

    async def scenario(pool: ConnectionPool) -> None:
        old = await pool.get(ONE, FETCH)
        old.retire_after(10.0)
        await asyncio.sleep(9.0)
        assert await pool.get(ONE, FETCH) is old
        pending = asyncio.gather(old.request(ListOffsetsRequest(topics=()), timeout_s=30))
        await asyncio.sleep(1.5)

        new = await pool.get(ONE, FETCH)
        assert new is not old
        assert not old.closed
        assert await pending == [ListOffsetsResponse(topics=())]
        assert await pool.get(ONE, FETCH) is new
        assert not old.closed  # a caller may have got it a moment ago
        await asyncio.sleep(1.1)
        await pool.get(ONE, CONTROL)
        assert old.closed
        assert not new.closed

    scene.run(scenario)


def test_retired_connection_is_closed_with_the_pool() -> None:
    """Also if it still waits for an answer."""
    scene = Scene()

    async def scenario(pool: ConnectionPool) -> None:
        old = await pool.get(ONE, FETCH)
        old.retire_after(1.0)
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(_lose(old))
            await asyncio.sleep(1.0)
            assert await pool.get(ONE, FETCH) is not old
            await pool.aclose()
            await task

    scene.run(scenario)


async def _lose(connection: BrokerConnection) -> None:
    with pytest.raises(ConnectionLost):
        await connection.request(ListOffsetsRequest(topics=()), timeout_s=30)
