# SPDX-License-Identifier: Apache-2.0
"""Threads that work for a loop."""

import asyncio
import threading

import pytest

from consumerd.aio.threads import SideThread, WorkThreads
from consumerd.errors import LocalProtocolError


async def test_results_and_failures_come_back():
    """As if the work had been done on the loop."""
    threads = WorkThreads(name="t", count=2)

    def fail() -> None:
        raise KeyError("x")

    assert await threads.run(lambda: threading.current_thread().name) in {"t-0", "t-1"}
    with pytest.raises(KeyError):
        await threads.run(fail)
    await threads.close(timeout_s=5)
    await threads.close(timeout_s=5)


async def test_closed_threads_take_no_work():
    """Whoever asks would wait for ever."""
    threads = WorkThreads(name="t", count=1)
    await threads.close(timeout_s=5)

    with pytest.raises(LocalProtocolError):
        await threads.run(lambda: None)


async def test_close_finishes_what_is_queued():
    """A discarded file's clean-up is queued last."""
    threads, done = WorkThreads(name="t", count=1), []
    threads.post(lambda: done.append(1))
    threads.post(lambda: done.append(2))
    await threads.close(timeout_s=5)

    assert done == [1, 2]


def test_result_after_the_loop_has_ended_is_dropped():
    """A thread that hung outlives the daemon's loop."""
    release, threads = threading.Event(), WorkThreads(name="t", count=1)

    async def leave_behind() -> None:
        threads.post(lambda: (release.wait(10), None)[1])
        await threads.close(timeout_s=0.01)

    asyncio.run(leave_behind())
    release.set()
    for thread in threading.enumerate():
        if thread.name == "t-0":
            thread.join(5)
            assert not thread.is_alive()


def test_side_thread_does_one_thing_at_a_time():
    """Row groups of a file must not be mixed."""
    side, released, done = SideThread(name="side"), threading.Event(), []

    def work() -> None:
        released.wait(10)
        done.append("first")

    assert not side.busy
    side.start(work)
    assert side.busy
    assert done == []
    threading.Timer(0.01, released.set).start()
    side.start(lambda: done.append("second"))
    side.wait()

    assert done == ["first", "second"]
    assert not side.busy


def test_side_thread_tells_a_failure_once():
    """To whoever gives it the next piece of work, or waits; and that piece is not begun."""
    side, done = SideThread(name="side"), []

    def fail() -> None:
        raise OSError("full")

    side.start(fail)
    with pytest.raises(OSError, match="full"):
        side.start(lambda: done.append("not begun"))
    side.wait()
    side.start(fail)
    with pytest.raises(OSError, match="full"):
        side.wait()
    side.wait()

    assert done == []


def test_side_thread_works_in_place_where_there_is_no_thread_to_be_had(monkeypatch: pytest.MonkeyPatch):
    """A container's limit of processes: the work is done all the same, and its failure told the same way."""
    side, done = SideThread(name="side"), []

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    def fail() -> None:
        raise OSError("full")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    side.start(lambda: done.append("first"))
    assert done == ["first"]
    assert not side.busy
    side.wait()
    side.start(fail)
    with pytest.raises(OSError, match="full"):
        side.wait()
    side.wait()


def test_side_thread_may_be_asked_whether_it_is_busy_while_somebody_waits_for_it():
    """A loop asks how much a file holds while the file's own thread is in the middle of it."""

    class Vanishing(SideThread):
        """Whose thread is waited for by another one as soon as it was looked at."""

        looks = 0

        def __getattribute__(self, name: str) -> object:
            if name == "_thread":
                self.looks += 1
                return threading.current_thread() if self.looks == 1 else None
            return super().__getattribute__(name)

    assert Vanishing(name="side").busy in {True, False}
