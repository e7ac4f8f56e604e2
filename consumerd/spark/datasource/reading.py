# SPDX-License-Identifier: Apache-2.0
"""Reads one range of offsets on an executor, from the partition's leader, into Arrow batches.

Needs neither Spark nor the driver: a :class:`ReadTask` holds everything. Records are fetched by the daemon's ``fetch``
package, on an event loop in a thread. So while Spark takes one batch, the next one is decoded and a third is fetched,
and leader changes, invalid responses and oversized messages are handled as in the daemon.

Two things differ from the daemon. Reading stops at an end offset. And it fails when no records come for
``patience_s``, because Spark repeats failed tasks, perhaps on another executor. If the log ends below the range
(:mod:`consumerd.fetch.patient_feed`), the reader fails, or skips the rest and reports it (``failOnDataLoss``).
"""

from __future__ import annotations

import random
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from consumerd.access.address import ClusterAddress
from consumerd.access.opening import open_cluster
from consumerd.aio.clock import monotonic
from consumerd.aio.tasks import alongside
from consumerd.client.fetch_protocols import choose_fetch_protocol
from consumerd.client.log_range import LogRangeReader, LogRanges
from consumerd.client.offset_lookups import choose_offset_lookup
from consumerd.client.topics import MetadataDirectory
from consumerd.cluster.from_brokers import BrokerSource
from consumerd.cluster.view import Broker
from consumerd.errors import (
    CorruptMessageError,
    OffsetOutOfRange,
    RecordTooLarge,
)
from consumerd.fetch.buffer import MemoryBudget
from consumerd.fetch.feed import PartitionFeed
from consumerd.fetch.fetcher import Fetcher
from consumerd.fetch.patient_feed import PatientFeed
from consumerd.fetch.ports import FetchSettings
from consumerd.model import Generation, TopicPartition
from consumerd.net.pool import ConnectionPool
from consumerd.spark.datasource.loop_thread import LoopThread
from consumerd.spark.datasource.options import FetchOptions
from consumerd.spark.datasource.partition_brokers import PartitionBrokers
from consumerd.spark.datasource.planning import Lost, OffsetRange
from consumerd.spark.datasource.schema import ReaderColumns, RowMaker
from consumerd.telemetry.hooks import Hooks

if TYPE_CHECKING:
    import pyarrow as pa

_FRAME_OVERHEAD_BYTES: Final = 1 << 20
_BUDGET_FETCHES: Final = 16
"""Memory of a task, in fetches: incoming frames count twice, and half of the memory is for decoding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTask:
    """Work of one Spark task: a range of offsets, and options. Can be pickled.

    Attributes:
        cluster: has addresses of brokers, because executors do not ask ZooKeeper.
        broker: broker of a partition of Kafka 0.6 or 0.7, which has no Metadata to find it by; None for later releases.
        fail_on_data_loss: offsets that the log no longer has are an error; if False they are skipped and reported on
            the executor's stderr.
    """

    range: OffsetRange
    cluster: ClusterAddress
    fetch: FetchOptions
    broker: Broker | None = None
    fail_on_data_loss: bool = True
    columns: ReaderColumns = field(default_factory=ReaderColumns)


def read_range(task: ReadTask, *, report: Callable[[Lost], None] | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the records of a range of offsets as rows for Spark, in order.

    Columns are those of ``schema.arrow_schema``. Fetches ahead in a thread, which ends with the iterator.

    Args:
        report: called with offsets that are skipped; by default they go to stderr.

    Raises OffsetOutOfRange (``failOnDataLoss``), RecordTooLarge, CorruptMessageError; RequestTimedOut if no records
    came for ``patience_s``. Each names the partition and the offset.
    """
    say = report_lost if report is None else report
    with LoopThread(open_range(task, say), name=f"consumerd {task.range}") as thread:
        reader = thread.resource
        following = thread.submit(reader.next())
        while (rows := thread.wait(following)) is not None:
            following = thread.submit(reader.next())  # decoded while Spark takes these
            yield rows


def report_lost(lost: Lost) -> None:
    """Report skipped offsets on the stderr of this process, the driver's or an executor's."""
    sys.stderr.write(f"consumerd: left out, failOnDataLoss is false: {lost}\n")


@asynccontextmanager
async def open_range(task: ReadTask, report: Callable[[Lost], None]) -> AsyncIterator[RangeReader]:
    """Connect to the brokers and start fetching a range; yield its reader.

    The context manager closes the connections. Raises ConfigError.

    Args:
        report: called with offsets that are skipped because the log no longer has them.
    """
    fetch, partition = task.fetch, task.range.partition
    hooks = _LastError()
    generation = Generation.MODERN if task.broker is None else Generation.LEGACY
    async with (
        open_cluster(
            task.cluster,
            wait_s=None,
            max_answer_bytes=max(fetch.message_bytes, fetch.partition_bytes),
            receive_buffer_bytes=fetch.receive_buffer_bytes,
            generation=generation,
        ) as cluster,
        _open_directory(task, cluster.pool) as leaders,
    ):
        pool = cluster.pool
        ranges = LogRangeReader(
            pool,
            leaders,
            random=random.random,
            read_committed=fetch.read_committed,
            lookup=choose_offset_lookup(generation, pool, request_timeout_s=task.cluster.request_timeout_s),
            principal=task.cluster.principal,
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
                principal=task.cluster.principal,
            ),
            budget=MemoryBudget(max(_BUDGET_FETCHES * fetch.partition_bytes, 4 * fetch.message_bytes)),
            leaders=leaders,
            protocol=choose_fetch_protocol(generation, pool),
            log_ranges=ranges,
            hooks=hooks,
            now=monotonic,
            random=random.random,
        )
        async with alongside(fetcher.run(), name="fetch"):
            feed = fetcher.feed(partition, task.range.start, task.range.end)
            reader = RangeReader(task, feed, ranges, report=report, explain=lambda: _explain(leaders, feed, hooks))
            try:
                yield reader
            finally:
                reader.close()


@asynccontextmanager
async def _open_directory(task: ReadTask, pool: ConnectionPool) -> AsyncIterator[MetadataDirectory | PartitionBrokers]:
    """Run the directory by which a task finds the leader of its partition."""
    if task.broker is not None:
        yield PartitionBrokers.of_task(task.range.partition, task.broker)
        return
    brokers = task.cluster.first_brokers()
    leaders = MetadataDirectory(
        lambda known: BrokerSource(pool, known, random=random.random, timeout_s=task.cluster.request_timeout_s),
        lambda: brokers,
        random=random.random,
        topics=[task.range.partition.topic],
    )
    async with alongside(leaders.run(), name="follow the leaders"):
        yield leaders


def _explain(leaders: MetadataDirectory | PartitionBrokers, feed: PartitionFeed, hooks: _LastError) -> str:
    """Return the known reason why no records come."""
    if isinstance(leaders, MetadataDirectory) and leaders.failure is not None:
        return str(leaders.failure)
    partition, fault = feed.partition, feed.fault
    leader = leaders.find_leader(partition)
    if leader is None:
        return "it has no leader, or is not there"
    last = hooks.error or "none" if fault is None else fault.reason
    return f"its leader is broker {leader}, the last error was {last}"


class RangeReader:
    """Reads one range of offsets from a partition, on one event loop.

    Args:
        report: called with offsets that are skipped because the log no longer has them.
        explain: returns the reason why no records come, for an error.
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
        self._patient = PatientFeed(feed, ranges, patience_s=task.fetch.patience_s, explain=explain)
        self._report = report
        self._position = task.range.start
        partition = task.range.partition
        self._rows = RowMaker(partition, task.columns)

    async def next(self) -> pa.RecordBatch | None:
        """Return the next rows, or None after the last.

        Waits at most ``patience_s`` for each decoded batch, with or without rows of this range. Safe to cancel. Raises
        OffsetOutOfRange (``failOnDataLoss``), RecordTooLarge, CorruptMessageError, RequestTimedOut.
        """
        while self._position < self._task.range.end:
            try:
                batch = await self._patient.next(self._position)
            except OffsetOutOfRange as error:
                if self._task.fail_on_data_loss:
                    raise
                self._leave_out(error)
                continue
            except RecordTooLarge as error:
                raise MessageTooLarge(error) from error
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
                self.close()  # now, so that nothing more is fetched while Spark takes the last rows
            if rows.num_rows:
                return rows
        return None

    def close(self) -> None:
        """Stop fetching. Idempotent."""
        self._feed.close()

    def _leave_out(self, error: OffsetOutOfRange) -> None:
        """Skip and report the offsets that the log does not hold."""
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
    """Raised for a message that is larger than the option ``maxMessageBytes``."""

    def __init__(self, error: RecordTooLarge) -> None:
        super().__init__(error.partition, error.offset, error.limit, error.size)

    def __str__(self) -> str:
        known = f"{self.size} bytes" if self.size is not None else "more"
        return (
            f"{self.partition}: the message at offset {self.offset} has {known}, the limit is {self.limit}; "
            "raise the option maxMessageBytes"
        )


class _LastError(Hooks):
    """Remembers the last fetch error."""

    def __init__(self) -> None:
        self.error: str | None = None

    def fetch_error(self, partition: TopicPartition, error: str) -> None:  # noqa: ARG002 - there is one
        self.error = error
