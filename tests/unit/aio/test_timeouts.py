# SPDX-License-Identifier: Apache-2.0
"""The bounds that every await has, in tasks that were cancelled before."""

import asyncio

import pytest

from consumerd.aio.timeouts import CountingTimeout, timeout, timeout_at
from tests.support.virtual_time import run


def limit(seconds):
    return CountingTimeout(asyncio.get_running_loop().time() + seconds)


def in_loop(seconds):
    return timeout_at(asyncio.get_running_loop().time() + seconds)


every_timeout = pytest.mark.parametrize("bound", [timeout, in_loop, limit])


async def wait_long():
    await asyncio.get_running_loop().create_future()


@every_timeout
def test_the_end_of_the_time_is_a_timeout_error(bound):
    """What the caller catches."""

    async def scenario():
        with pytest.raises(TimeoutError):
            async with bound(1):
                await wait_long()
        assert asyncio.get_running_loop().time() == pytest.approx(1)
        assert not asyncio.current_task().cancelling()

    run(scenario())


@every_timeout
def test_it_is_one_in_the_clean_up_of_a_cancelled_task_too(bound):
    """There a cancellation is pending already; the clean-up must be able to tell its own bound from it."""

    async def clean_up_late(outcomes):
        try:
            await wait_long()
        finally:
            try:
                async with bound(1):
                    await wait_long()
            except TimeoutError:
                outcomes.append("timed out")

    async def scenario():
        outcomes = []
        async with asyncio.TaskGroup() as group:
            task = group.create_task(clean_up_late(outcomes))
            await asyncio.sleep(0)
            task.cancel()
        assert task.cancelled()
        assert outcomes == ["timed out"]

    run(scenario())


@every_timeout
def test_two_that_end_together_are_told_by_the_outer_one(bound):
    """The inner one must not claim what cancels more than its own block."""

    async def scenario():
        inner_told = False
        with pytest.raises(TimeoutError):
            async with bound(1):
                try:
                    async with bound(1):
                        await wait_long()
                except TimeoutError:
                    inner_told = True
        assert not inner_told
        assert not asyncio.current_task().cancelling()

    run(scenario())


@every_timeout
def test_a_cancellation_from_outside_stays_one(bound):
    """A task that is told to end must not take it for its own time that ran out."""

    async def bounded():
        async with bound(100):
            await wait_long()

    async def scenario():
        async with asyncio.TaskGroup() as group:
            task = group.create_task(bounded())
            await asyncio.sleep(0)
            task.cancel()
        assert task.cancelled()

    run(scenario())
