# SPDX-License-Identifier: Apache-2.0
"""An embedded cluster of any generation on an event loop of a thread of its own, so that a test can make it fail."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Final, Generic, Protocol, Self, TypeVar

START_TIMEOUT_S: Final = 40.0
STOP_TIMEOUT_S: Final = 20.0

T = TypeVar("T")


class RunnableCluster(Protocol):
    """What both generations' embedded clusters have."""

    async def __aenter__(self) -> Any: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    async def start_broker(self, number: int = 0) -> None: ...

    async def stop_broker(self, number: int = 0) -> None: ...

    async def kill_broker(self, number: int = 0) -> None: ...


C = TypeVar("C", bound=RunnableCluster)


class ClusterThread(Generic[C]):
    """Runs a cluster in a thread; ``with`` starts and stops it, and raises what it failed with in the meantime."""

    def __init__(self, cluster: C) -> None:
        self._cluster = cluster
        self._started: Future[None] = Future()
        self._ended: Future[None] = Future()
        self._jobs: asyncio.Queue[Callable[[], Awaitable[None]] | None] = asyncio.Queue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="embedded broker", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.result(START_TIMEOUT_S)
        return self

    def __exit__(self, *_exc: object) -> None:
        if not self._ended.done():
            self._put(None)
        self._ended.result(STOP_TIMEOUT_S)
        self._thread.join(STOP_TIMEOUT_S)

    def do(self, act: Callable[[C], Awaitable[T]]) -> T:
        """Run something on the cluster's loop, in the task that entered the cluster, and return what comes of it."""
        outcome: Future[T] = Future()

        async def run() -> None:
            try:
                outcome.set_result(await act(self._cluster))
            except Exception as error:  # noqa: BLE001 - raised where it is heard
                outcome.set_exception(error)

        self._put(run)
        return outcome.result(START_TIMEOUT_S)

    def start_node(self, number: int) -> None:
        """Start a broker again; return when it serves."""
        self.do(lambda cluster: cluster.start_broker(number))

    def stop_node(self, number: int) -> None:
        """Stop a broker in order."""
        self.do(lambda cluster: cluster.stop_broker(number))

    def kill_node(self, number: int) -> None:
        """Stop a broker as a kill does: its session goes on until it expires."""
        self.do(lambda cluster: cluster.kill_broker(number))

    def restart(self) -> None:
        """Stop the first broker, which cuts its connections, and start it on its port with its logs."""

        async def act(cluster: C) -> None:
            await cluster.stop_broker()
            await cluster.start_broker()

        self.do(act)

    def _put(self, job: Callable[[], Awaitable[None]] | None) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._jobs.put_nowait, job)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - raised where it is heard
            (self._ended if self._started.done() else self._started).set_exception(error)
        else:
            self._ended.set_result(None)

    async def _serve(self) -> None:
        async with self._cluster:
            self._loop = asyncio.get_running_loop()
            self._started.set_result(None)
            while (job := await self._jobs.get()) is not None:
                await job()
