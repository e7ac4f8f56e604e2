# SPDX-License-Identifier: Apache-2.0
"""Supervised tasks: every failure reaches an owner, every end is heard."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from consumerd.aio.backoff import Backoff
from consumerd.aio.cell import Cell
from consumerd.aio.tasks import TaskSet, alongside, unless
from consumerd.aio.timeouts import timeout
from tests.support.virtual_time import Deadlock, run


async def forever() -> None:
    await asyncio.Event().wait()


async def fail() -> None:
    raise ValueError("broken")


def test_a_failing_task_ends_the_block_that_owns_it() -> None:
    """No task dies unseen."""

    async def scenario() -> None:
        with pytest.raises(ExceptionGroup) as caught:
            async with TaskSet[str]() as tasks:
                tasks.start("good", forever(), name="good")
                tasks.start("bad", fail(), name="bad")
        assert [str(one) for one in caught.value.exceptions] == ["broken"]

    run(scenario())


def test_a_key_is_free_again_when_its_task_has_ended() -> None:
    """A pipeline of a partition may come back."""

    async def scenario() -> None:
        async with TaskSet[str]() as tasks:
            tasks.start("a", forever(), name="a")
            with pytest.raises(KeyError):
                tasks.start("a", forever(), name="a")
            await tasks.cancel("a")
            await tasks.cancel("a")
            assert "a" not in tasks
            tasks.start("a", asyncio.sleep(1), name="a")
            await tasks.join("a")
            assert tasks.keys == frozenset()

    run(scenario())


def test_unless_returns_the_result_or_stops() -> None:
    """A start that waits for a server must end when the process is told to."""

    async def scenario() -> None:
        stop = asyncio.Event()
        assert await unless(stop, asyncio.sleep(1, "done")) == "done"
        with pytest.raises(ValueError, match="broken"):
            await unless(stop, fail())
        asyncio.get_running_loop().call_later(5, stop.set)
        assert await unless(stop, forever()) is None

    run(scenario())


def test_alongside_keeps_the_blocks_own_failure_as_it_is() -> None:
    """An error of a command must not come out wrapped in a group."""

    async def scenario() -> None:
        with pytest.raises(KeyError):
            async with alongside(forever(), name="background"):
                raise KeyError("mine")
        with pytest.raises(ExceptionGroup):
            async with alongside(fail(), name="background"):
                await forever()

    run(scenario())


def test_a_cell_wakes_who_waits_for_what_it_became() -> None:
    """No change is missed between two looks."""

    async def scenario() -> None:
        cell = Cell(0)
        loop = asyncio.get_running_loop()
        for second in (1, 2, 3):
            loop.call_later(second, cell.set, second)
        assert await cell.wait(lambda value: value >= 2) == 2
        assert loop.time() == 2

    run(scenario())


def test_backoff_grows_to_its_maximum_and_starts_over() -> None:
    """Deterministic with a given random source; half of a step is the least."""
    backoff = Backoff(initial_s=1, maximum_s=5, random=lambda: 0.0)
    grown = [backoff.next() for _ in range(4)]
    jittered = Backoff(initial_s=1, maximum_s=5, random=lambda: 1.0)
    backoff.reset()

    assert grown == [1, 2, 4, 5]
    assert jittered.next() == 0.5
    assert backoff.next() == 1
    assert backoff.attempts == 1


def test_virtual_time_reports_a_deadlock() -> None:
    """A test that would hang fails instead."""
    with pytest.raises(Deadlock):
        run(forever())


def test_a_task_is_cancelled_though_a_timeout_in_it_expires_at_the_same_moment() -> None:
    """The timeout's own cancellation must not be taken for ours: it is taken back, and the task would run for ever."""

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        windows: list[asyncio.Timeout] = []

        async def work() -> None:
            while True:
                with suppress(TimeoutError):
                    async with timeout(1.0) as window:
                        windows.append(window)
                        await asyncio.Event().wait()

        async with TaskSet[str]() as tasks:
            tasks.start("work", work(), name="work")
            await asyncio.sleep(0.5)
            windows[0].reschedule(loop.time())  # expires in the next turn of the loop
            loop.call_soon(tasks.cancel_soon, "work")  # and this comes before the task does
            await asyncio.sleep(3)
            assert "work" not in tasks
            assert len(windows) == 1
            await tasks.cancel("work")

    run(scenario())
