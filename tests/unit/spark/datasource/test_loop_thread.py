# SPDX-License-Identifier: Apache-2.0
"""An event loop in a thread: called from anywhere, ended with the block, and no failure lost."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from consumerd.aio.tasks import alongside
from consumerd.spark.datasource.loop_thread import LoopThread


class Resource:
    """Something with a loop, and whether it was left."""

    def __init__(self) -> None:
        self.left = False
        self.failing = asyncio.Event()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Resource]:
        try:
            yield self
        finally:
            self.left = True

    @asynccontextmanager
    async def open_failing(self) -> AsyncIterator[Resource]:
        async def fail() -> None:
            await self.failing.wait()
            raise OSError("broken")

        async with alongside(fail(), name="fail"):
            yield self


async def _answer(value: int) -> int:
    await asyncio.sleep(0)
    return value


async def _raise(error: BaseException) -> None:
    await asyncio.sleep(0)
    raise error


async def test_it_is_called_below_a_running_loop() -> None:
    """A notebook has one, and this test: it must not be entered again."""
    resource = Resource()
    with LoopThread(resource.open(), name="test") as thread:
        assert thread.call(_answer(3)) == 3
        assert thread.resource is resource
        with pytest.raises(ValueError, match="no"):
            thread.call(_raise(ValueError("no")))
        assert thread.call(_answer(4)) == 4
    assert resource.left


def test_a_failure_to_open_is_raised_and_leaves_no_thread() -> None:
    """What cannot connect says why."""

    @asynccontextmanager
    async def broken() -> AsyncIterator[None]:
        raise ConnectionError("nobody there")
        yield

    with pytest.raises(ConnectionError, match="nobody there"), LoopThread(broken(), name="unopened"):
        pytest.fail("it was entered")
    assert all(thread.name != "unopened" for thread in threading.enumerate())


def test_what_is_not_waited_for_ends_with_the_block() -> None:
    """A reader that is left early, by a LIMIT say, has the next rows under way."""
    resource = Resource()
    with LoopThread(resource.open(), name="test") as thread:
        left = thread.submit(asyncio.Event().wait())
    assert left.cancelled()
    assert resource.left


def test_the_cause_is_told_where_the_resource_fails() -> None:
    """Instead of a cancellation that nobody can explain."""
    resource = Resource()
    with pytest.raises(ExceptionGroup) as caught, LoopThread(resource.open_failing(), name="test") as thread:
        waiting = thread.submit(asyncio.Event().wait())

        async def fail() -> None:
            resource.failing.set()

        thread.call(fail())
        thread.wait(waiting)
    assert "broken" in str(caught.value.exceptions[0])


def test_an_interruption_ends_the_work() -> None:
    """Ctrl-C while the cluster is silent."""
    resource = Resource()
    started, ended = threading.Event(), threading.Event()

    async def wait() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    class Interrupted:
        def result(self) -> None:
            raise KeyboardInterrupt

        def cancel(self) -> None:
            work.cancel()

    with pytest.raises(KeyboardInterrupt), LoopThread(resource.open(), name="test") as thread:
        work = thread.submit(wait())
        assert started.wait(10)  # a task that is cancelled before its first step has nothing to end
        thread.wait(Interrupted())  # type: ignore[arg-type]  # a call whose waiter is interrupted
    assert ended.wait(10)
