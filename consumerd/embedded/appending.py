# SPDX-License-Identifier: Apache-2.0
"""Runs all changes of partitions' logs in threads, in order for each partition.

A log is synchronous and accepts one writer at a time. Produce requests, the coordinator and the housekeeper change logs
only through :class:`Appender`. So the event loop never waits for a disk, the appends of a partition happen in the order
of the calls, and fetches that wait for records are woken.

Per partition, at most one batch of work runs in a thread, and work requested meanwhile forms the next batch, so that
small appends share one thread switch. All bookkeeping happens on the event loop, without locks.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar

from consumerd.model import TopicPartition
from consumerd.wire.modern.building import build_marker

if TYPE_CHECKING:
    from consumerd.embedded.log.expansion import Expansion
    from consumerd.embedded.log.partition_log import Appended, PartitionLog

T = TypeVar("T")

Grown = Callable[[TopicPartition, int], None]

_ENOUGH_BYTES: Final = 1 << 31


@dataclass(frozen=True, slots=True)
class Marker:
    """Marker that ends a producer's transaction in one partition.

    ``time_ms`` is in ms since the Unix epoch.
    """

    producer_id: int
    epoch: int
    commit: bool
    time_ms: int

    def build(self, base_offset: int) -> bytes:
        """Return the marker as a control batch."""
        return build_marker(base_offset, self.producer_id, self.epoch, commit=self.commit, timestamp=self.time_ms)


Ended = Callable[[TopicPartition, Marker], None]

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
    """Runs changes of partitions' logs in threads, one at a time for each partition.

    Leaving its ``async with`` block waits for work in progress.
    """

    def __init__(self, *, threads: int = _THREADS) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="consumerd-log")
        self._queues: dict[TopicPartition, list[_Job[Any]]] = {}
        """Partitions with work in a thread, each with the jobs to follow."""
        self._subscribers: list[Grown] = []
        self._enders: list[Ended] = []
        self._idle = asyncio.Event()
        self._idle.set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Wait for all requested work, as long as the disk takes."""
        try:
            await self._idle.wait()
        finally:
            self._pool.shutdown(wait=False)  # its threads are done, or end when they are

    async def append(self, partition: TopicPartition, log: PartitionLog, record_set: bytes | memoryview) -> Appended:
        """Append produced records to a partition's log, in a thread.

        Returns the assigned offsets. Raises the errors of ``PartitionLog.append``. There is no timeout: the call takes
        as long as the disk. If the call is cancelled, the append may still happen.
        """
        return await self.start_append(partition, log, record_set)

    def start_append(
        self,
        partition: TopicPartition,
        log: PartitionLog,
        record_set: bytes | memoryview,
        expansion: Expansion | None = None,
    ) -> asyncio.Future[Appended]:
        """Queue an append of produced records, in the order of the calls; return a future.

        The future has the result of the append, or its error.

        Args:
            partition: The partition.
            log: The partition's open log.
            record_set: Messages or record batches, as a Produce request has them.
            expansion: Limit of the decompressed size of all appends of one request together; None for no such limit.
        """
        work = functools.partial(log.append, record_set, expansion)
        return self._start(partition, work, lambda appended: appended.size_bytes)

    async def run(self, partition: TopicPartition, work: Callable[[], T]) -> T:
        """Run other work on a partition's log, such as retention, in a thread.

        The work begins after the appends requested before. Returns the result of ``work``, or raises its error. There
        is no timeout.
        """
        return await self._start(partition, work, lambda _: 0)

    async def append_own(self, partition: TopicPartition, log: PartitionLog, build: Callable[[int], bytes]) -> Appended:
        """Append a batch of the broker itself to a partition's log, in a thread.

        As ``PartitionLog.append_own``, whose errors it raises.
        """
        work = functools.partial(log.append_own, build)
        return await self._start(partition, work, lambda written: written.size_bytes)

    async def append_marker(self, log: PartitionLog, marker: Marker) -> None:
        """Append the marker of a producer's transaction, and tell those who wait for it.

        Raises the errors of ``PartitionLog.append_own``.
        """
        work = functools.partial(log.append_own, marker.build)
        # it makes all records of the transaction visible, so whoever waits for any number of bytes looks again
        await self._start(log.partition, work, lambda _: _ENOUGH_BYTES)
        for ended in self._enders:
            ended(log.partition, marker)

    def subscribe_markers(self, ended: Ended) -> Callable[[], None]:
        """Call ``ended`` on the event loop after each marker.

        Returns a function that ends the subscription.
        """
        self._enders.append(ended)
        return lambda: self._enders.remove(ended)

    def subscribe(self, grown: Grown) -> Callable[[], None]:
        """Call ``grown`` after each append, with the partition and the number of bytes added.

        Calls come on the event loop. Returns a function that ends the subscription.
        """
        self._subscribers.append(grown)
        return lambda: self._subscribers.remove(grown)

    # -- batches of work

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
