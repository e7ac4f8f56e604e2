# SPDX-License-Identifier: Apache-2.0
"""Kerberos tickets kept ahead of connections: who waits for them, when they are looked at, and what is told of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import structlog

from consumerd.access.tickets import TicketKeeper
from consumerd.aio.tasks import alongside
from consumerd.errors import AuthenticationFailed
from consumerd.sasl.kerberos import KerberosLogin, TicketCache
from consumerd.telemetry.hooks import Hooks, Trouble
from tests.support import virtual_time
from tests.support.sasl_broker import Inline

REFUSED = AuthenticationFailed("no server of the realm answers")


class Told(Hooks):
    def __init__(self) -> None:
        self.troubles: list[tuple[Trouble, str]] = []
        self.seen: list[float] = []
        self.lives: list[float] = []

    def trouble(self, kind: Trouble, detail: str, partition: object = None) -> None:
        self.troubles.append((kind, detail))

    def kerberos_ticket_seen(self, identity: str, left_s: float, life_s: float) -> None:
        assert "p@R" == identity
        self.seen.append(left_s)
        self.lives.append(life_s)


class Scene(TicketCache):
    """A keeper of tickets that live for ``life_s`` seconds; ``renews`` says if the server answers."""

    def __init__(self, *, life_s: float = 1000.0, gates: bool = True) -> None:
        super().__init__(KerberosLogin(principal="p@R", keytab=Path("/k") if gates else None))
        self.replaced: list[float] = []
        self.life_s = life_s
        self.renews = True
        self.ends = 0.0
        self.looks: list[float] = []
        self.hooks = Told()
        self.threads = Inline()

    def replace(self) -> None:
        now = asyncio.get_running_loop().time()
        self.replaced.append(now)
        if not self.renews:
            raise REFUSED
        self.ends = now + self.life_s

    def acquire(self) -> float:
        now = asyncio.get_running_loop().time()
        self.looks.append(now)
        if self.renews and self.ends - now <= self.life_s / 2:
            self.ends = now + self.life_s
        if self.ends <= now:
            raise REFUSED
        return self.ends - now

    def run(self, scenario: Callable[[TicketKeeper], Awaitable[None]]) -> None:
        async def play() -> None:
            keeper = TicketKeeper(self, hooks=self.hooks, threads=self.threads)
            async with alongside(keeper.run(), name="ticket"):
                await scenario(keeper)

        with structlog.testing.capture_logs() as logs:
            virtual_time.run(play())
        self.events = [log["event"] for log in logs]
        assert self.threads.closed


async def refusal_of(keeper: TicketKeeper, timeout_s: float) -> str:
    """Return why there is no ticket; an empty text if there is one."""
    try:
        await keeper.wait_ticket(timeout_s)
    except AuthenticationFailed as error:
        return str(error)
    return ""


def test_ticket_is_renewed_ahead_and_its_end_is_told() -> None:
    """At half of its life, which nobody waits for."""
    scene = Scene()

    async def scenario(keeper: TicketKeeper) -> None:
        await keeper.wait_ticket(20.0)
        for _ in range(40):
            await asyncio.sleep(100.0)
            await keeper.wait_ticket(0.0)

    scene.run(scenario)
    assert min(scene.hooks.seen) > 400.0
    assert {1000.0} == {round(life, 3) for life in scene.hooks.lives}
    assert scene.hooks.troubles == []
    assert max(after - before for before, after in zip(scene.looks, scene.looks[1:], strict=False)) <= 30.5


def test_connections_wait_for_the_first_ticket_and_for_no_longer_than_they_may() -> None:
    """A silent server holds the thread for most of a minute."""
    scene = Scene()
    scene.threads.delay_s = 50.0

    async def scenario(keeper: TicketKeeper) -> None:
        assert "no Kerberos ticket within 20 s" in await refusal_of(keeper, 20.0)
        await keeper.wait_ticket(40.0)
        assert 50.0 == pytest.approx(asyncio.get_running_loop().time(), abs=0.1)

    scene.run(scenario)


def test_ticket_that_is_not_renewed_is_told_before_it_ends_and_once() -> None:
    """A fifth of its life is time enough to act; connections go on until then."""
    scene = Scene()

    async def scenario(keeper: TicketKeeper) -> None:
        await keeper.wait_ticket(20.0)
        scene.renews = False
        await asyncio.sleep(790.0)
        assert scene.hooks.troubles == []
        await asyncio.sleep(60.0)
        ((kind, detail),) = scene.hooks.troubles
        assert kind is Trouble.TICKET_NOT_RENEWED
        assert "and is not renewed" in detail
        await keeper.wait_ticket(0.0)
        await asyncio.sleep(200.0)
        assert await refusal_of(keeper, 0.0) == str(REFUSED)
        scene.renews = True
        await asyncio.sleep(10.0)
        await keeper.wait_ticket(0.0)

    scene.run(scenario)
    assert len(scene.hooks.troubles) == 1
    assert scene.events == ["ticket_not_renewed", "ticket_renewed"]


def test_without_a_keytab_connections_look_for_themselves() -> None:
    """A ticket of kinit is used at once; the trouble is told all the same."""
    scene = Scene(gates=False)
    scene.renews = False

    async def scenario(keeper: TicketKeeper) -> None:
        await keeper.wait_ticket(0.0)
        await asyncio.sleep(1.0)
        await keeper.wait_ticket(0.0)

    scene.run(scenario)
    assert [kind for kind, _ in scene.hooks.troubles] == [Trouble.TICKET_NOT_RENEWED]


def test_short_tickets_are_looked_at_more_often() -> None:
    """One of 20 seconds would end between two looks."""
    scene = Scene(life_s=20.0)

    async def scenario(keeper: TicketKeeper) -> None:
        await asyncio.sleep(200.0)

    scene.run(scenario)
    assert scene.hooks.troubles == []
    assert min(scene.hooks.seen) > 5.0


def test_ticket_that_a_server_refuses_is_replaced_at_once_and_then_ever_more_rarely() -> None:
    """It may be from a time when a clock was wrong; but most refusals have another cause."""
    scene = Scene()

    async def scenario(keeper: TicketKeeper) -> None:
        await keeper.wait_ticket(20.0)
        for _ in range(1200):
            keeper.note_refusal()
            await asyncio.sleep(1.0)
        await asyncio.sleep(700.0)
        keeper.note_refusal()
        await asyncio.sleep(1.0)

    scene.run(scenario)
    assert [0, 5, 15, 35, 75, 155, 315, 615, 915, 1900] == [round(one) for one in scene.replaced]
    assert scene.hooks.troubles == []
    assert scene.events.count("ticket_replaced") == 10


def test_ticket_that_cannot_be_replaced_stays_in_use() -> None:
    """The Kerberos server is down: what there is may be good for other servers."""
    scene = Scene()

    async def scenario(keeper: TicketKeeper) -> None:
        await keeper.wait_ticket(20.0)
        scene.renews = False
        keeper.note_refusal()
        await asyncio.sleep(1.0)
        await keeper.wait_ticket(0.0)

    scene.run(scenario)
    assert [0] == [round(one) for one in scene.replaced]
    assert scene.hooks.troubles == []


def test_ticket_of_the_systems_cache_is_not_replaced() -> None:
    """Its owner renews it."""
    scene = Scene(gates=False)

    async def scenario(keeper: TicketKeeper) -> None:
        keeper.note_refusal()
        await asyncio.sleep(1.0)

    scene.run(scenario)
    assert scene.replaced == []
