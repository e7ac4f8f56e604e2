# SPDX-License-Identifier: Apache-2.0
"""Fetches that wait: woken by enough bytes, by time, and by what else may end them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest

from consumerd.embedded.handlers.context import Hangup
from consumerd.embedded.long_polls import LongPolls
from consumerd.model import TopicPartition
from tests.support import virtual_time

A, B = (TopicPartition.modern("t", number) for number in range(2))


async def _waited(
    polls: LongPolls, rooms: Mapping[TopicPartition, int], missing: int, *steps: Callable[[], None]
) -> float:
    """Take a step a second while a poll waits up to 60 s; return when it ended."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    hangup = Hangup()
    for number, step in enumerate(steps, 1):
        loop.call_later(number, step)
    await polls.wait(rooms, missing, until=began + 60, hangup=hangup)
    assert polls.waiting == 0
    return round(loop.time() - began)


def _run(rooms: Mapping[TopicPartition, int], missing: int, *steps: Callable[[LongPolls], None]) -> float:
    async def main() -> float:
        polls = LongPolls()
        return await _waited(polls, rooms, missing, *[lambda step=step: step(polls) for step in steps])

    return virtual_time.run(main())


@pytest.mark.parametrize(
    ("steps", "ended"),
    [
        ([lambda polls: polls.grown(A, 100)], 1),
        ([lambda polls: polls.grown(A, 60), lambda polls: polls.grown(B, 30), lambda polls: polls.grown(A, 10)], 3),
        ([lambda polls: polls.grown(A, 99)], 60),
        ([lambda polls: polls.grown(TopicPartition.modern("u", 0), 100)], 60),
        ([lambda polls: polls.disturb(B)], 1),
        ([lambda polls: polls.disturb_topics(["u"]), lambda polls: polls.disturb_topics(["t"])], 2),
        ([], 60),
    ],
)
def test_poll_ends_with_enough_bytes_a_disturbance_or_its_time(
    steps: list[Callable[[LongPolls], None]], ended: float
) -> None:
    """Small appends must not wake who wants many bytes; nothing else than these may."""
    assert ended == _run({A: 1000, B: 1000}, 100, *steps)


def test_partition_counts_for_no_more_than_it_may_add() -> None:
    """Bytes that do not fit into the answer do not make it any larger."""
    assert 60 == _run({A: 50, B: 50}, 100, lambda polls: polls.grown(A, 5000), lambda polls: polls.grown(B, 49))


def test_every_poll_hears_of_an_append_and_of_no_other_partition() -> None:
    """Ten consumers of one partition, each of which wants what has come."""

    async def main() -> tuple[list[float], float]:
        polls, loop = LongPolls(), asyncio.get_running_loop()
        ended: list[float] = []

        async def wait(partition: TopicPartition) -> None:
            await polls.wait({partition: 10}, 1, until=60, hangup=Hangup())
            ended.append(loop.time())

        loop.call_at(5, polls.grown, A, 1)
        async with asyncio.TaskGroup() as group:
            for _ in range(10):
                group.create_task(wait(A))
            group.create_task(wait(B))
        return ended[:10], ended[10]

    assert ([5] * 10, 60) == virtual_time.run(main())


def test_poll_ends_when_its_peer_goes() -> None:
    """And at once where it has gone already."""

    async def main() -> tuple[float, float]:
        polls, hangup = LongPolls(), Hangup()
        loop = asyncio.get_running_loop()
        loop.call_later(5, hangup.happen)
        await polls.wait({A: 10}, 1, until=60, hangup=hangup)
        first = loop.time()
        await polls.wait({A: 10}, 1, until=60, hangup=hangup)
        return first, loop.time()

    first, second = virtual_time.run(main())
    assert second - first == 0
    assert first < 60


def test_cancelled_poll_leaves_nothing_behind() -> None:
    """A connection that is cut off takes its polls with it."""

    async def main() -> int:
        polls = LongPolls()
        async with asyncio.TaskGroup() as group:
            task = group.create_task(polls.wait({A: 10, B: 10}, 1, until=60, hangup=Hangup()))
            await asyncio.sleep(1)
            assert polls.waiting == 2
            task.cancel()
        return polls.waiting

    assert 0 == virtual_time.run(main())
