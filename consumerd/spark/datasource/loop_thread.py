# SPDX-License-Identifier: Apache-2.0
"""An event loop in a thread, so that synchronous code can use connections.

Spark calls readers as ordinary functions. On the driver a notebook's event loop may be running, which cannot be entered
a second time. On executors the reader is a generator, which stands still while Spark takes rows. Connections need a
loop that keeps running.
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
    """Runs coroutines on an event loop in a thread of its own; a context manager.

    Its ``with`` block enters a resource, such as connections, on that loop. The thread is a daemon thread, so it does
    not keep an ending process alive.
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
        except BaseException:  # the resource failed, or an interrupt (Ctrl-C) ended our wait for it
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
        """The resource that the ``with`` block has entered; use it only on the loop."""
        return self._opened.result()

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Start a coroutine on the loop. Leaving the ``with`` block cancels it."""
        assert self._loop is not None
        call = asyncio.run_coroutine_threadsafe(work, self._loop)
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        return call

    def wait(self, call: concurrent.futures.Future[T]) -> T:
        """Wait for a submitted coroutine, and return its result. An interrupt cancels the coroutine.

        Raises the coroutine's exception, or the one that has ended the loop. Has no time limit of its own.
        """
        try:
            return call.result()
        except concurrent.futures.CancelledError:
            self._ended.result()  # cancelled because the resource failed: raises its exception
            raise
        except BaseException:
            call.cancel()
            raise

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop; wait for its result and return it.

        Raises the coroutine's exception, or the one that has ended the loop.
        """
        return self.wait(self.submit(work))

    def _end(self) -> None:
        """Ask the thread to leave the resource, even if it is still being entered."""
        if self._loop is not None and self._stop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended by itself
                self._loop.call_soon_threadsafe(self._stop.set)

    def _run(self) -> None:
        try:
            asyncio.run(self._hold())
        except BaseException as error:  # noqa: BLE001 - raised again by __enter__, wait or __exit__; the thread ends
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
