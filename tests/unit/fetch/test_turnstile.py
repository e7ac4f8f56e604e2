# SPDX-License-Identifier: Apache-2.0
"""Only so much work in one turn of the loop."""

import asyncio

from consumerd.fetch.turnstile import Turnstile
from tests.support.virtual_time import run


async def _turns_of(costs: list[int], quota: int) -> list[int]:
    """Return in which turn of the loop each of several concurrent workers was admitted."""
    turnstile = Turnstile(quota)
    loop = asyncio.get_running_loop()
    turn = 0
    turns: dict[int, int] = {}

    def count() -> None:
        nonlocal turn
        turn += 1
        if len(turns) < len(costs):
            loop.call_soon(count)

    async def work(index: int) -> None:
        await turnstile.enter(costs[index])
        turns[index] = turn

    loop.call_soon(count)
    async with asyncio.TaskGroup() as group:
        for index in range(len(costs)):
            group.create_task(work(index))
    return [turns[index] for index in range(len(costs))]


def test_work_within_the_quota_is_admitted_at_once():
    """Small batches of many partitions cost no extra turns."""
    turns = run(_turns_of([10] * 10, quota=100))

    assert len(set(turns)) == 1


def test_more_work_than_the_quota_is_spread_over_turns_in_order():
    """A hundred pipelines with slices to decode let the loop breathe between them."""
    turns = run(_turns_of([100] * 10, quota=100))

    assert len(set(turns)) == 10
    assert turns == sorted(turns)


def test_a_cancelled_worker_does_not_hold_up_the_others():
    """Its place is passed on."""

    async def scenario() -> None:
        turnstile = Turnstile(1)
        await turnstile.enter(1)
        async with asyncio.TaskGroup() as group:
            first = group.create_task(turnstile.enter(1))
            group.create_task(turnstile.enter(1))
            await asyncio.sleep(0)
            first.cancel()

    run(scenario())
