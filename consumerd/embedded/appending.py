# SPDX-License-Identifier: Apache-2.0
"""Runs changes of logs in threads, in order per partition, and reports appends.

A log is synchronous and accepts one writer at a time. Produce requests, the coordinator and the housekeeper change logs
only through :class:`Appender`. So the event loop never waits for a disk, the appends of a partition happen in the order
of the calls, and long polls are woken.

Per partition, at most one batch of work runs in a thread, and work requested meanwhile forms the next batch, so that
small appends share one thread switch. All bookkeeping happens on the event loop, without locks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar

from consumerd.model import TopicPartition

if TYPE_CHECKING:
    from consumerd.embedded.log.expansion import Expansion
    from consumerd.embedded.log.partition_log import Appended, PartitionLog

T = TypeVar("T")

Grown = Callable[[TopicPartition, int], None]

_THREADS: Final = 4


@dataclass(slots=True)
class _Job(Generic[T]):
    """Work for a thread; ``measure`` returns the bytes that its result added to the log."""

    work: Callable[[], T]
    future: asyncio.Future[T]
    measure: Callable[[T], int]
    outcome: T | BaseException | None = None
    grown_by: int = 0

    def do(self) -> None:
        """Do the work, unless it was cancelled."""
        if self.future.cancelled():
            return
        try:
            outcome = self.work()
            self.outcome, self.grown_by = outcome, self.measure(outcome)
        except Exception as error:  # noqa: BLE001 - raised where the result is awaited
            self.outcome = error


class Appender:
    """Changes logs, one change per partition at a time.

    Leaving its ``async with`` block waits for work in progress.
    """

    def __init__(self, *, threads: int = _THREADS) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="consumerd-log")
        self._queues: dict[TopicPartition, list[_Job[Any]]] = {}
        """Partitions with work in a thread, each with the jobs to follow."""
        self._subscribers: list[Grown] = []
        self._idle = asyncio.Event()
        self._idle.set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Wait for all requested work; bounded by the disk only."""
        try:
            await self._idle.wait()
        finally:
            self._pool.shutdown(wait=False)  # its threads are done, or end when they are

    async def append(
        self, partition: TopicPartition, log: PartitionLog, record_set: bytes | memoryview, *, flush: bool = False
    ) -> Appended:
        """Append, and flush if ``flush`` or the log's settings say so.

        Raises what ``PartitionLog.append`` raises. Bounded by the disk only. If it is cancelled, the append may still
        happen.
        """
        return await self.start_append(partition, log, record_set, flush=flush)

    def start_append(
        self,
        partition: TopicPartition,
        log: PartitionLog,
        record_set: bytes | memoryview,
        *,
        flush: bool = False,
        expansion: Expansion | None = None,
    ) -> asyncio.Future[Appended]:
        """Queue an append in the partition's order; its result is awaited later."""

        def work() -> Appended:
            appended = log.append(record_set, expansion)
            if flush:
                log.flush()
            return appended

        return self._start(partition, work, lambda appended: appended.size_bytes)

    async def run(self, partition: TopicPartition, work: Callable[[], T]) -> T:
        """Run other work on a partition's log (retention, compaction, closing), in order.

        It runs in a thread. Raises what ``work`` raises; bounded by ``work`` only.
        """
        return await self._start(partition, work, lambda _: 0)

    def subscribe(self, grown: Grown) -> Callable[[], None]:
        """Call ``grown`` on the loop with each extended partition and the bytes added.

        Returns a function that ends the subscription.
        """
        self._subscribers.append(grown)
        return lambda: self._subscribers.remove(grown)

    # -- turns

    def _start(
        self, partition: TopicPartition, work: Callable[[], T], measure: Callable[[T], int]
    ) -> asyncio.Future[T]:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        future.add_done_callback(_mark_retrieved)
        job = _Job(work, future, measure)
        queue = self._queues.get(partition)
        if queue is None:
            self._queues[partition] = []
            self._idle.clear()
            self._give_to_thread(partition, [job])
        else:
            queue.append(job)
        return future

    def _give_to_thread(self, partition: TopicPartition, batch: list[_Job[Any]]) -> None:
        loop = asyncio.get_running_loop()

        def work_off() -> None:
            for job in batch:
                job.do()
            loop.call_soon_threadsafe(self._finish, partition, batch)

        self._pool.submit(work_off)

    def _finish(self, partition: TopicPartition, batch: Iterable[_Job[Any]]) -> None:
        """On the loop: start the next batch, deliver results, report appended bytes."""
        if following := self._queues[partition]:
            self._queues[partition] = []
            self._give_to_thread(partition, following)
        else:
            del self._queues[partition]
            if not self._queues:
                self._idle.set()
        grown_by = 0
        for job in batch:
            if isinstance(job.outcome, BaseException):
                if not job.future.done():
                    job.future.set_exception(job.outcome)
                continue
            grown_by += job.grown_by
            if not job.future.done():
                job.future.set_result(job.outcome)
        if grown_by:
            for grown in self._subscribers:
                grown(partition, grown_by)


def _mark_retrieved(future: asyncio.Future[Any]) -> None:
    """Mark an error as retrieved: the caller may have been cancelled meanwhile."""
    if not future.cancelled():
        future.exception()
