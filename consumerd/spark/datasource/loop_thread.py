# SPDX-License-Identifier: Apache-2.0
"""An event loop in a thread, so that what is asynchronous can be called from code that is not.

Spark calls readers as ordinary functions: on the driver perhaps below a notebook's loop, which must not be entered
again, on executors from a generator that rests while rows are taken from it. Connections, though, need a loop that goes
on.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

R = TypeVar("R")
T = TypeVar("T")


class LoopThread(Generic[R]):
    """Enters a resource in a loop of its own, calls it there, and leaves it with the block.

    The thread is a daemon: a process that is told to end does not wait for it.
    """

    def __init__(self, resource: AbstractAsyncContextManager[R], *, name: str) -> None:
        self._resource = resource
        self._opened: concurrent.futures.Future[R] = concurrent.futures.Future()
        self._ended: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._abandoned = False
        self._calls: set[concurrent.futures.Future[Any]] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self._opened.result()
        except BaseException:  # also where the wait is interrupted while there is no answer
            self._abandoned = True
            self._end()
            self._thread.join()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for call in list(self._calls):
            call.cancel()
        self._end()
        self._thread.join()
        if error is None:
            self._ended.result()

    @property
    def resource(self) -> R:
        """What was entered; for use on its loop alone."""
        return self._opened.result()

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Begin to run ``work`` on the loop; what is not waited for ends with the block."""
        assert self._loop is not None
        call = asyncio.run_coroutine_threadsafe(work, self._loop)
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        return call

    def wait(self, call: concurrent.futures.Future[T]) -> T:
        """Return what a work returns; bounded by it. Raises what it raises, or what has ended the loop.

        Where waiting is interrupted the work is cancelled.
        """
        try:
            return call.result()
        except concurrent.futures.CancelledError:
            self._ended.result()  # cancelled since the resource failed: the thread is ending
            raise
        except BaseException:
            call.cancel()
            raise

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` on the loop and return what it returns. Raises as :meth:`wait`."""
        return self.wait(self.submit(work))

    def _end(self) -> None:
        """Have the thread leave its resource; where that is not entered yet, at once when it is."""
        if self._loop is not None and self._stop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended by itself
                self._loop.call_soon_threadsafe(self._stop.set)

    def _run(self) -> None:
        try:
            asyncio.run(self._hold())
        except BaseException as error:  # noqa: BLE001 - it is told to whoever enters or leaves, and ends the thread
            if not self._opened.done():
                self._opened.set_exception(error)
            self._ended.set_exception(error)
        else:
            self._ended.set_result(None)

    async def _hold(self) -> None:
        self._stop = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        if self._abandoned:
            return
        async with self._resource as resource:
            self._opened.set_result(resource)
            await self._stop.wait()
