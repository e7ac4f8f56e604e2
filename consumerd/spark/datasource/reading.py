# SPDX-License-Identifier: Apache-2.0
"""Reads one range of offsets on an executor, from the leader itself, into Arrow batches.

Nothing here needs Spark or the driver: a :class:`ReadTask` says it all. What fetches is the daemon's own ``fetch``, in
a loop of its own in a thread; so while Spark takes one batch the next is decoded and the one after it is on its way,
and moved leaders, doubtful answers and oversized messages are dealt with as there. What is added: it ends at an offset,
and it gives up when nothing comes for a while, since Spark tries a task again, elsewhere perhaps, and a daemon would
not.

A range whose end lies above the log's end, though it did not when it was planned, has lost records (an unclean
election, or a topic that was made again): a partition that brings nothing more is asked what its log holds before the
task fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from consumerd.access.address import ClusterAddress
from consumerd.access.opening import open_cluster
from consumerd.aio.clock import monotonic
from consumerd.aio.tasks import alongside
from consumerd.aio.timeouts import timeout
from consumerd.client.log_range import LogRangeReader, LogRanges
from consumerd.client.topics import MetadataDirectory
from consumerd.cluster.from_brokers import BrokerSource
from consumerd.errors import (
    ConsumerdError,
    CorruptMessageError,
    OffsetOutOfRange,
    RecordTooLarge,
    RequestTimedOut,
)
from consumerd.fetch.buffer import MemoryBudget
from consumerd.fetch.feed import PartitionFeed
from consumerd.fetch.fetcher import Fetcher
from consumerd.fetch.ports import FetchSettings
from consumerd.model import TopicPartition
from consumerd.spark.datasource.loop_thread import LoopThread
from consumerd.spark.datasource.options import FetchOptions
from consumerd.spark.datasource.planning import Lost, OffsetRange
from consumerd.spark.datasource.schema import RowMaker
from consumerd.telemetry.hooks import Hooks
from consumerd.wire.records import RecordBatch

if TYPE_CHECKING:
    import pyarrow as pa

_FRAME_OVERHEAD_BYTES: Final = 1 << 20
_BUDGET_FETCHES: Final = 16
"""So many fetches fit into a task's memory: frames are counted twice while they come in, and half of it is for decoding."""
_LOOK_S: Final = 2.0
"""How often one looks what may be the matter while nothing comes."""
_DOUBT_S: Final = 10.0
"""For how long a log may end below what was planned: a new leader hears moments late of what it may show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTask:
    """One range, and all that is needed to read it. ``cluster.bootstrap`` is always there; ZooKeeper is not asked.

    With ``fail_on_data_loss`` offsets that the log no longer holds are an error; without, they are left out and
    reported on the executor's stderr. Can be pickled.
    """

    range: OffsetRange
    cluster: ClusterAddress
    fetch: FetchOptions
    fail_on_data_loss: bool = True
    include_headers: bool = False


def read_range(task: ReadTask, *, report: Callable[[Lost], None] | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the records of a range under ``schema.arrow_schema``, in the order of their offsets.

    Fetches ahead in a thread, which ends with the iterator. ``report`` hears of what is left out; by default it goes to
    stderr.

    Raises OffsetOutOfRange (``failOnDataLoss``), RecordTooLarge, CorruptMessageError, and RequestTimedOut when nothing
    came for ``patience_s``; each names the partition and the offset.
    """
    say = report_lost if report is None else report
    with LoopThread(open_range(task, say), name=f"consumerd {task.range}") as thread:
        reader = thread.resource
        following = thread.submit(reader.next())
        while (rows := thread.wait(following)) is not None:
            following = thread.submit(reader.next())  # decoded while Spark takes these
            yield rows


def report_lost(lost: Lost) -> None:
    """Say on stderr, the driver's or an executor's, that offsets are left out."""
    sys.stderr.write(f"consumerd: left out, failOnDataLoss is false: {lost}\n")


@asynccontextmanager
async def open_range(task: ReadTask, report: Callable[[Lost], None]) -> AsyncIterator[RangeReader]:
    """Connect, and begin to fetch; the block reads. Raises ConfigError."""
    fetch, partition = task.fetch, task.range.partition
    hooks = _LastError()
    brokers = task.cluster.first_brokers()
    async with open_cluster(
        task.cluster,
        wait_s=None,
        max_answer_bytes=max(fetch.message_bytes, fetch.partition_bytes),
        receive_buffer_bytes=fetch.receive_buffer_bytes,
    ) as cluster:
        pool = cluster.pool
        leaders = MetadataDirectory(
            lambda known: BrokerSource(pool, known, random=random.random, timeout_s=task.cluster.request_timeout_s),
            lambda: brokers,
            random=random.random,
            topics=[partition.topic],
        )
        ranges = LogRangeReader(
            pool,
            leaders,
            random=random.random,
            read_committed=fetch.read_committed,
            request_timeout_s=task.cluster.request_timeout_s,
        )
        fetcher = Fetcher(
            settings=FetchSettings(
                max_partition_bytes=fetch.partition_bytes,
                max_message_bytes=fetch.message_bytes,
                max_response_bytes=fetch.partition_bytes,
                max_wait_ms=fetch.wait_ms,
                read_committed=fetch.read_committed,
                request_timeout_s=task.cluster.request_timeout_s,
                native_slice_bytes=fetch.batch_bytes,
            ),
            budget=MemoryBudget(max(_BUDGET_FETCHES * fetch.partition_bytes, 4 * fetch.message_bytes)),
            leaders=leaders,
            connections=pool,
            log_ranges=ranges,
            hooks=hooks,
            now=monotonic,
            random=random.random,
        )
        async with (
            alongside(leaders.run(), name="follow the leaders"),
            alongside(fetcher.run(), name="fetch"),
        ):
            feed = fetcher.feed(partition, task.range.start, task.range.end)
            reader = RangeReader(task, feed, ranges, report=report, explain=lambda: _explain(leaders, partition, hooks))
            try:
                yield reader
            finally:
                reader.close()


def _explain(leaders: MetadataDirectory, partition: TopicPartition, hooks: _LastError) -> str:
    """Say what is known of why nothing comes."""
    if leaders.failure is not None:
        return str(leaders.failure)
    leader = leaders.find_leader(partition)
    if leader is None:
        return "it has no leader, or is not there"
    return f"its leader is broker {leader}, the last error was {hooks.error or 'none'}"


class RangeReader:
    """Takes one range out of a feed. For use on one event loop, whose clock counts.

    ``report`` hears of what is left out, ``explain`` says why nothing comes.
    """

    def __init__(
        self,
        task: ReadTask,
        feed: PartitionFeed,
        ranges: LogRanges,
        *,
        report: Callable[[Lost], None],
        explain: Callable[[], str],
    ) -> None:
        self._task = task
        self._feed = feed
        self._ranges = ranges
        self._report = report
        self._explain = explain
        self._position = task.range.start
        partition = task.range.partition
        self._rows = RowMaker(partition.topic, partition.partition.number, include_headers=task.include_headers)

    async def next(self) -> pa.RecordBatch | None:
        """Return the next rows, or None behind the last. Raises as :func:`read_range`; cancel freely.

        Bounded by ``patience_s`` without news; what is fetched without a row for this range in it is news.
        """
        while self._position < self._task.range.end:
            try:
                batch = await self._take()
            except OffsetOutOfRange as error:
                if self._task.fail_on_data_loss:
                    raise
                self._leave_out(error)
                continue
            try:
                rows = self._rows.make(batch.slice_to(self._task.range.end))
            except CorruptMessageError as error:
                raise CorruptMessageError(
                    f"{batch.partition}: headers between offsets {batch.start} and {batch.next_offset}: {error}",
                    partition=batch.partition,
                ) from error
            finally:
                self._feed.done(batch)
            self._position = batch.next_offset
            if self._position >= self._task.range.end:
                self.close()  # nothing more is asked for while the last rows are on their way
            if rows.num_rows:
                return rows
        return None

    def close(self) -> None:
        """Stop fetching. Idempotent."""
        self._feed.close()

    async def _take(self) -> RecordBatch:
        """Return the next batch. Raises RequestTimedOut when there is none for too long."""
        now = asyncio.get_running_loop().time
        began = now()
        while True:
            waited_s = now() - began
            left_s = self._task.fetch.patience_s - waited_s
            if left_s <= 0:
                raise RequestTimedOut(
                    f"{self._feed.partition}: nothing came from offset {self._position} on within "
                    f"{self._task.fetch.patience_s:g} s: {self._explain()}"
                )
            try:
                async with timeout(min(left_s, _LOOK_S)):
                    return await self._feed.next()
            except TimeoutError:
                if waited_s >= min(_DOUBT_S, self._task.fetch.patience_s / 2):
                    await self._check_end()
            except RecordTooLarge as error:
                raise MessageTooLarge(error) from error

    async def _check_end(self) -> None:
        """Raise OffsetOutOfRange where the log ends at the position, by its leader's answers and by ListOffsets."""
        latest = self._feed.high_watermark
        if latest is None or latest > self._position:
            return
        partition = self._feed.partition
        found = None
        with contextlib.suppress(ConsumerdError, TimeoutError):
            async with timeout(_LOOK_S):
                found = (await self._ranges.read([partition])).get(partition)
        if found is not None and found.latest <= self._position:
            raise OffsetOutOfRange(partition, self._position, found.earliest, found.latest)

    def _leave_out(self, error: OffsetOutOfRange) -> None:
        """Go on behind what the log does not hold, and report that."""
        end = self._task.range.end
        if error.earliest > self._position:
            until, reason = min(error.earliest, end), f"the log begins with offset {error.earliest}"
        else:
            until, reason = end, f"the log ends at offset {error.latest}"
        self._report(Lost(partition=self._feed.partition, start=self._position, end=until, reason=reason))
        self._position = until
        if until < end:
            self._feed.seek(until)


class MessageTooLarge(RecordTooLarge):
    """A message is larger than the option ``maxMessageBytes``."""

    def __init__(self, error: RecordTooLarge) -> None:
        super().__init__(error.partition, error.offset, error.limit, error.size)

    def __str__(self) -> str:
        known = f"{self.size} bytes" if self.size is not None else "more"
        return (
            f"{self.partition}: the message at offset {self.offset} has {known}, the limit is {self.limit}; "
            "raise the option maxMessageBytes"
        )


class _LastError(Hooks):
    """Remembers why fetching failed last."""

    def __init__(self) -> None:
        self.error: str | None = None

    def fetch_error(self, partition: TopicPartition, error: str) -> None:  # noqa: ARG002 - there is one
        self.error = error
