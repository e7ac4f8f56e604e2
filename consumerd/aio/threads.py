# SPDX-License-Identifier: Apache-2.0
"""Threads for work that blocks on a disk or a pipe.

Each sink has its own few, so that a destination that hangs stalls no other sink and none of what the process does in
the event loop's own executor. They are daemon threads: one that is stuck in a system call (a dead NFS server, a pipe
that nobody reads) cannot keep the process from ending, which is harmless, as nothing that a thread does counts before it
has been acknowledged on the loop.
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
    """Does one piece of work at a time beside the thread that gives it. Used by one thread at a time, but for ``busy``."""

    def __init__(self, *, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    @property
    def busy(self) -> bool:
        """Whether a piece of work is being done."""
        thread = self._thread  # which whoever waits takes away
        return thread is not None and thread.is_alive()

    def start(self, work: Callable[[], object]) -> None:
        """Begin a piece of work, once the one before is done. Blocks as :meth:`wait`, and raises what it raises.

        Where the system gives no more threads the work is done when this returns; its failure is told in the same way.
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
        except BaseException as error:  # noqa: BLE001 - whatever it is goes to whoever waits for it
            self._failure = error

    def wait(self) -> None:
        """Block until nothing is being done, and raise, once, what the last piece of work raised."""
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
        except BaseException as error:  # noqa: BLE001 - whatever it is goes to the coroutine that waits for it
            self._report(self._fail, error)
        else:
            self._report(self._succeed, result)

    def _report(self, settle: Callable[..., None], outcome: object) -> None:
        # RuntimeError: the loop is closed, so nobody waits any more
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(settle, outcome)

    def _succeed(self, result: T) -> None:
        if not self.future.done():
            self.future.set_result(result)

    def _fail(self, error: BaseException) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class WorkThreads:
    """A fixed number of threads, started with the first piece of work."""

    def __init__(self, *, name: str, count: int) -> None:
        self._name = name
        self._count = count
        self._jobs: queue.SimpleQueue[_Job[object] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._closed = False

    async def run(self, work: Callable[[], T]) -> T:
        """Do ``work`` in a thread and return what it returns or raise what it raises.

        Unbounded. Cancelling ends the wait, not the work: whoever cancels must not assume that it did not happen.
        """
        return await self._submit(work)

    def post(self, work: Callable[[], None]) -> None:
        """Do ``work``, which raises nothing, some time, without waiting for it."""
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
        """Let what is queued finish and end the threads; after ``timeout_s`` they are left to themselves. Idempotent."""
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
