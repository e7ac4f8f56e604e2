# SPDX-License-Identifier: Apache-2.0
"""The one way into a log: changes in threads, in order for each partition, and whoever waits is told.

A log is synchronous and takes one writer at a time. Whoever appends (Produce, the offset manager) or tends a log does so
through :class:`Appender`, so that the event loop never waits for a disk, what is appended to one partition is in the
order of the calls, and long polls hear of it.

Of one partition at most one batch of work is in a thread; what comes meanwhile is the next batch, so that many small
appends share the way to the thread and back. All book-keeping is on the loop: there are no locks.
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
    """Work to be done in a thread; ``measure`` says by how many bytes its result has made the log longer."""

    work: Callable[[], T]
    future: asyncio.Future[T]
    measure: Callable[[T], int]
    outcome: T | BaseException | None = None
    grown_by: int = 0

    def do(self) -> None:
        """Work, unless nobody wants it any more."""
        if self.future.cancelled():
            return
        try:
            outcome = self.work()
            self.outcome, self.grown_by = outcome, self.measure(outcome)
        except Exception as error:  # noqa: BLE001 - raised where the result is awaited
            self.outcome = error


class Appender:
    """Changes logs, one change of a partition at a time. ``async with``: leaving waits for what has begun."""

    def __init__(self, *, threads: int = _THREADS) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="consumerd-log")
        self._queues: dict[TopicPartition, list[_Job[Any]]] = {}
        """Partitions that are worked on, with what is to follow."""
        self._subscribers: list[Grown] = []
        self._idle = asyncio.Event()
        self._idle.set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Wait for what was asked for; bounded by the disk alone."""
        try:
            await self._idle.wait()
        finally:
            self._pool.shutdown(wait=False)  # its threads are done, or end when they are

    async def append(
        self, partition: TopicPartition, log: PartitionLog, record_set: bytes | memoryview, *, flush: bool = False
    ) -> Appended:
        """Append, and flush where ``flush`` asks for it or the log's settings do. Raises what ``PartitionLog.append`` does.

        Unbounded but by the disk. Cancelled, the append takes place nevertheless, or not at all.
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
        """Take an append's place in the partition's order now; its result is awaited later."""

        def work() -> Appended:
            appended = log.append(record_set, expansion)
            if flush:
                log.flush()
            return appended

        return self._start(partition, work, lambda appended: appended.size_bytes)

    async def run(self, partition: TopicPartition, work: Callable[[], T]) -> T:
        """Do other work on a partition's log (retention, compaction, closing) in its turn, in a thread.

        Raises what ``work`` raises. Unbounded but by ``work``.
        """
        return await self._start(partition, work, lambda _: 0)

    def subscribe(self, grown: Grown) -> Callable[[], None]:
        """Call back, on the loop, with each partition that has grown and by how many bytes; return what ends it."""
        self._subscribers.append(grown)
        return lambda: self._subscribers.remove(grown)

    # -- turns

    def _start(
        self, partition: TopicPartition, work: Callable[[], T], measure: Callable[[T], int]
    ) -> asyncio.Future[T]:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        future.add_done_callback(_look_at)
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
        """Back on the loop: start what came meanwhile, give out the results, tell of growth."""
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


def _look_at(future: asyncio.Future[Any]) -> None:
    """Mark a failure as seen: whoever started the work may have been cancelled since."""
    if not future.cancelled():
        future.exception()
