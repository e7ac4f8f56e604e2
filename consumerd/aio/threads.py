# SPDX-License-Identifier: Apache-2.0
"""Threads for work that blocks on a disk or a pipe.

Each sink has a few threads of its own, so that a destination that hangs blocks neither other sinks nor the event loop's
default executor. They are daemon threads: one stuck in a system call (a dead NFS server, a pipe without a reader)
cannot keep the process from ending. Ending it loses nothing: records written by a thread count as delivered only after
the event loop has acknowledged them.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from consumerd.errors import LocalProtocolError

T = TypeVar("T")


class SideThread:
    """Runs one function at a time in another thread.

    One thread at a time may call the methods; ``busy`` may be read in any thread.
    """

    def __init__(self, *, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    @property
    def busy(self) -> bool:
        """True while a function runs in the thread."""
        thread = self._thread  # a local copy, since wait() in another thread resets it
        return thread is not None and thread.is_alive()

    def start(self, work: Callable[[], object]) -> None:
        """Begin to run a function in the thread, once the previous function has ended.

        Waits for the previous function, and raises its error, as :meth:`wait` does; the new function is not run then.
        If the system cannot start a thread, the new function runs in the caller's thread, before ``start`` returns.
        :meth:`wait` raises its error in either case.
        """
        self.wait()
        thread = threading.Thread(target=self._run, args=(work,), name=self._name, daemon=True)
        try:
            thread.start()
        except RuntimeError:
            self._run(work)
        else:
            self._thread = thread

    def _run(self, work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised again in wait()
            self._failure = error

    def wait(self) -> None:
        """Block until the function in the thread has ended; raise its error.

        An error is raised by one call only; a second call returns at once.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure


@dataclass(slots=True, kw_only=True)
class _Job(Generic[T]):
    work: Callable[[], T]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[T]

    def run(self) -> None:
        try:
            result = self.work()
        except BaseException as error:  # noqa: BLE001 - raised again in the coroutine that awaits the result
            self._report(self._fail, error)
        else:
            self._report(self._succeed, result)

    def _report(self, settle: Callable[..., None], outcome: object) -> None:
        # RuntimeError: the loop is closed, so there is no waiter any more
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(settle, outcome)

    def _succeed(self, result: T) -> None:
        if not self.future.done():
            self.future.set_result(result)

    def _fail(self, error: BaseException) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class WorkThreads:
    """A fixed number of threads that run functions; all are started by the first function."""

    def __init__(self, *, name: str, count: int) -> None:
        self._name = name
        self._count = count
        self._jobs: queue.SimpleQueue[_Job[object] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._closed = False

    async def run(self, work: Callable[[], T]) -> T:
        """Run ``work`` in a thread, and return its result or raise its error.

        There is no time limit. Cancelling ends the wait only: ``work`` goes on in its thread, and may still take
        effect.
        """
        return await self._submit(work)

    def post(self, work: Callable[[], None]) -> None:
        """Run ``work`` in a thread, without waiting for its end; ``work`` must not raise."""
        self._submit(work)

    def _submit(self, work: Callable[[], T]) -> asyncio.Future[T]:
        if self._closed:
            raise LocalProtocolError(f"the threads of {self._name} are closed")
        if not self._threads:
            self._start()
        loop = asyncio.get_running_loop()
        job: _Job[T] = _Job(work=work, loop=loop, future=loop.create_future())
        self._jobs.put(job)  # type: ignore[arg-type]  # the queue does not look at the result
        return job.future

    async def close(self, *, timeout_s: float) -> None:
        """Finish the queued work and end the threads. Idempotent.

        Threads that have not ended after ``timeout_s`` seconds are left running.
        """
        self._closed = True
        for _ in self._threads:
            self._jobs.put(None)
        threads, self._threads = self._threads, []
        if threads:
            await asyncio.to_thread(_join, threads, time.monotonic() + timeout_s)

    def _start(self) -> None:
        for number in range(self._count):
            thread = threading.Thread(target=self._work, name=f"{self._name}-{number}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.run()


def _join(threads: list[threading.Thread], deadline: float) -> None:
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
