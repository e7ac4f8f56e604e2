# SPDX-License-Identifier: Apache-2.0
"""Delivery and the sink http together: policies, commits, releases, and what an operator is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from consumerd.delivery.status import DeliveryState
from consumerd.model import TopicPartition
from tests.support.clocks import LoopClock
from tests.support.http_receiver import HttpReceiver, Received, Reply
from tests.support.http_sinks import deliver, open_rig
from tests.support.waiting import until

pytestmark = pytest.mark.records

P = TopicPartition.modern("orders", 0)


@pytest.fixture
async def receiver() -> AsyncIterator[HttpReceiver]:
    async with HttpReceiver() as server:
        yield server


async def test_position_follows_the_responses(receiver: HttpReceiver) -> None:
    """What is committed was answered with 2xx, whatever the server does in between."""
    receiver.replies += [Reply(status=500), Reply(cut=True), Reply(), Reply(status=503), Reply(status=429)]
    async with open_rig(receiver, clock=LoopClock(), batch_records=7, batch_ms=20) as rig, deliver(rig) as delivery:
        delivery.log(P, 0, 100)
        await delivery.claim(P)
        await until(lambda: delivery.store.position(P) == 100)

        assert receiver.offsets == list(range(100))
        assert delivery.status(P).state is DeliveryState.RUNNING


async def test_server_that_is_away_is_shown_until_it_is_back(receiver: HttpReceiver) -> None:
    """The partition is failing, with the reason; the secrets of the URL are not in it."""
    receiver.rule = lambda _: Reply(status=503)
    async with open_rig(receiver, clock=LoopClock(), batch_records=5) as rig, deliver(rig) as delivery:
        delivery.log(P, 0, 10)
        await delivery.claim(P)
        await until(lambda: delivery.status(P).state is DeliveryState.FAILING)
        reason = delivery.status(P).reason or ""
        assert "sink api: http://127.0.0.1" in reason
        assert "answered 503 Service Unavailable; it is tried again" in reason
        assert "SECRET" not in reason
        receiver.rule = lambda _: Reply()
        await until(lambda: delivery.store.position(P) == 10)
        assert delivery.status(P).state is DeliveryState.RUNNING
    assert receiver.offsets == list(range(10))
    assert len({one.key for one in receiver.received}) == 2


async def test_retry_after_postpones_the_next_request(receiver: HttpReceiver) -> None:
    """Longer than the pipeline's own backoff would: no request comes before its time."""
    times: list[float] = []
    clock = LoopClock()

    def answer(_: Received) -> Reply:
        times.append(clock())
        return Reply(status=429, headers={"Retry-After": "1"}) if len(times) == 1 else Reply()

    receiver.rule = answer
    async with open_rig(receiver, clock=clock, batch_records=5) as rig, deliver(rig) as delivery:
        delivery.log(P, 0, 5)
        await delivery.claim(P)
        await until(lambda: delivery.store.position(P) == 5)

    assert len(times) == 2
    assert times[1] - times[0] >= 1.0


async def test_refused_records_are_skipped_one_by_one(receiver: HttpReceiver) -> None:
    """Each as a gap that is told, and nothing else is lost or comes twice."""
    bad = {3, 4, 17, 29}
    receiver.rule = lambda one: Reply(status=422 if bad & set(one.offsets) else 200)
    async with (
        open_rig(receiver, clock=LoopClock(), batch_records=8, batch_ms=20) as rig,
        deliver(rig, on_rejected="skip") as delivery,
    ):
        delivery.log(P, 0, 30)
        await delivery.claim(P)
        await until(lambda: delivery.store.position(P) == 30)
        passed = [one for one in delivery.hooks.events if one[0] == "unit_passed"]

    assert receiver.offsets == [offset for offset in range(30) if offset not in bad]
    assert len(passed) == len(bad)


async def test_refused_record_goes_into_quarantine(receiver: HttpReceiver) -> None:
    """With its coordinates, and the reason."""
    receiver.rule = lambda one: Reply(status=400 if 5 in one.offsets else 200)
    async with (
        open_rig(receiver, clock=LoopClock(), batch_records=8, batch_ms=20) as rig,
        deliver(rig, on_rejected="quarantine") as delivery,
    ):
        delivery.log(P, 0, 10)
        await delivery.claim(P)
        await until(lambda: delivery.store.position(P) == 10)
        (unit,) = delivery.quarantine.units

    assert (unit.offset, unit.next_offset, unit.cause) == (5, 6, "rejected")
    assert "answered 400 Bad Request" in unit.reason


async def test_refused_record_stops_the_partition_at_its_offset(receiver: HttpReceiver) -> None:
    """By default. What is before it is committed and not sent again at each look; and it goes on once it is taken."""
    receiver.rule = lambda one: Reply(status=422 if 13 in one.offsets else 200)
    async with open_rig(receiver, clock=LoopClock(), batch_records=8, batch_ms=20) as rig, deliver(rig) as delivery:
        delivery.log(P, 0, 20)
        await delivery.claim(P)
        await until(lambda: delivery.status(P).state is DeliveryState.STOPPED)
        assert "orders/0 13-13" in (delivery.status(P).reason or "")
        await until(lambda: delivery.store.position(P) == 13)
        tries = sum(one.span == "13-13" for one in receiver.received)
        await until(lambda: sum(one.span == "13-13" for one in receiver.received) >= tries + 3)
        assert receiver.offsets == list(range(13))
        receiver.rule = lambda _: Reply()
        await until(lambda: delivery.store.position(P) == 20)

    assert receiver.offsets == list(range(20))


async def test_wrong_address_stops_whatever_the_policy(receiver: HttpReceiver) -> None:
    """To skip every record because of a misspelt URL would be the loss of a topic."""
    receiver.rule = lambda _: Reply(status=404)
    async with (
        open_rig(receiver, clock=LoopClock(), batch_records=4) as rig,
        deliver(rig, on_rejected="skip") as delivery,
    ):
        delivery.log(P, 0, 10)
        await delivery.claim(P)
        await until(lambda: delivery.status(P).state is DeliveryState.STOPPED)
        assert "check url" in (delivery.status(P).reason or "")
        assert delivery.store.position(P) == 0
        receiver.rule = lambda _: Reply()
        await until(lambda: delivery.store.position(P) == 8)


async def test_release_sends_what_is_open_and_commits_it(receiver: HttpReceiver) -> None:
    """So a rebalance repeats nothing as long as the server answers."""
    async with (
        open_rig(receiver, clock=LoopClock(), batch_records=100, batch_ms="1h") as rig,
        deliver(rig) as delivery,
    ):
        delivery.log(P, 0, 30)
        await delivery.claim(P)
        await until(lambda: delivery.status(P).position == 30)
        assert receiver.received == []
        await delivery.deliveries.drain([P], 10)
        assert delivery.store.position(P) == 30

    assert [one.span for one in receiver.received] == ["0-29"]


async def test_request_that_is_not_answered_in_time_is_the_next_owners(receiver: HttpReceiver) -> None:
    """The drain's time is kept; the same records come again, with the same key.

    Both requests are of one batch: what the first of them holds is committed all the same.
    """
    never = asyncio.Event()
    receiver.rule = lambda one: Reply(until=never if one.span == "10-19" else None)
    async with open_rig(receiver, clock=LoopClock(), batch_records=10) as rig, deliver(rig, batch=20) as delivery:
        delivery.log(P, 0, 20)
        await delivery.claim(P)
        await until(lambda: receiver.in_flight == 1 and delivery.store.position(P) == 10)
        await delivery.deliveries.drain([P], 0.4)
        assert rig.charged == 0
        assert delivery.store.position(P) == 10

        receiver.rule = lambda _: Reply()
        await delivery.claim(P, epoch=2)
        await until(lambda: delivery.store.position(P) == 20)
    never.set()

    assert [one.span for one in receiver.received] == ["0-9", "10-19", "10-19"]
    assert receiver.offsets == list(range(20))


async def test_lost_claim_sends_no_more(receiver: HttpReceiver) -> None:
    """What is under way is given up, and nothing of it is committed."""
    never = asyncio.Event()
    receiver.rule = lambda _: Reply(until=never)
    async with open_rig(receiver, clock=LoopClock(), batch_records=10) as rig, deliver(rig) as delivery:
        delivery.log(P, 0, 50)
        claim = await delivery.claim(P)
        await until(lambda: receiver.in_flight == 1)
        claim.lease.set("lost")
        await delivery.deliveries.lost([P])
        never.set()
        assert delivery.store.position(P) == 0
        assert rig.charged == 0
    assert [one.span for one in receiver.received] == ["0-9"]
