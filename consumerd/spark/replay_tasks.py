# SPDX-License-Identifier: Apache-2.0
"""Writes rows of bronze by the sink ``kafka``, within one Spark task.

Each log is written by a writer of its own. The writer fences all earlier ones of the partition (a killed run, a lost
attempt of the task, a mirror), and reads back the stored position. Rows below it are left out.

Transactions
    What is taken of an Arrow batch is committed before the next batch is asked for. So no transaction is open while the
    task waits for Spark, and a retry needs no more records than are in memory.

Example: a task has committed offsets up to 20,000, and is lost with an open transaction. Spark runs it again, with the
rows from 0 on. Its writer aborts the transaction, reads back 20,000, and writes from there.

Two attempts of one task (speculative execution)
    1. Attempt A writes. 2. Attempt B begins, which fences A. 3. A's next commit fails, and A ends with OwnershipLost.
    It does not begin again, as a mirror would that still owns the partition. 4. B goes on where A has ended.
"""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from bisect import bisect_right
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, TypeVar

import pyarrow as pa

from consumerd.aio.backoff import Backoff
from consumerd.errors import OwnershipLost, PermanentSinkError, RetriableSinkError
from consumerd.model import Claim, Incarnation, SessionEpoch, ThreadId, TopicPartition
from consumerd.sinks.base import PartitionWriter, SinkContext, Start
from consumerd.sinks.kafka.options import KafkaOptions
from consumerd.sinks.kafka.sink import KafkaSink
from consumerd.spark.datasource.loop_thread import LoopThread
from consumerd.spark.replay_plan import PlannedLog
from consumerd.spark.replay_rows import LogName, LogPart, split_rows, to_record_batch
from consumerd.wire.records import RecordBatch, empty_batch

T = TypeVar("T")

SINK_NAME: Final = "replay"
"""Name of the sink in error messages."""
RESULT: Final = "broker int, partition int, incarnation string, first bigint, position bigint, records bigint"
"""Columns of what a task returns for each log.

``first`` is the offset from which it has written, ``position`` the stored one at its end.
"""

_TRANSACTION_BYTES: Final = 16 << 20
"""Limit of the records of one transaction, in bytes. A larger record has a transaction of its own."""
_PATIENCE_S: Final = 120.0
"""Time for which a target that fails is asked again, in seconds, before the task fails."""
_RESULT_SCHEMA: Final = pa.schema(
    [
        ("broker", pa.int32()),
        ("partition", pa.int32()),
        ("incarnation", pa.string()),
        ("first", pa.int64()),
        ("position", pa.int64()),
        ("records", pa.int64()),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayTarget:
    """Cluster that tasks write to, and names in the keys of stored positions.

    Attributes:
        options: settings of the sink ``kafka``.
        group: the group that mirrors, as keys of the positions topic have it.
        cluster: id of the cluster that the records are of.
    """

    options: KafkaOptions
    group: str
    cluster: str

    def make_context(self) -> SinkContext:
        """Return the context of a sink that writes there."""
        return SinkContext(
            sink_name=SINK_NAME,
            group=self.group,
            cluster_id=self.cluster,
            writer_id=uuid.uuid4().hex,
            now=time.monotonic,
            charge=lambda _: None,  # Spark bounds the batches, and a task has one at a time
        )


class ReplayClaim:
    """Claim of a task on a partition, until another writer fences it.

    Implements ``model.Claim``.
    """

    usable = True

    def __init__(self, partition: TopicPartition, incarnation: Incarnation, *, group: str) -> None:
        self.partition: Final = partition
        self.incarnation: Final = incarnation
        self.thread: Final = ThreadId(f"{SINK_NAME}-0")
        self.epoch: Final = SessionEpoch(1)
        self._group = group

    def check(self) -> None:
        """Do nothing: the target itself refuses the commit of a fenced writer."""

    async def wait_usable(self) -> None:
        """Return: the claim is never paused."""

    async def confirm(self) -> None:
        """Raise OwnershipLost, so that the later writer goes on.

        A writer asks only if it was fenced.
        """
        raise OwnershipLost(
            f"{self.partition}: another writer of group {self._group} has begun in the target: a mirror, another "
            "replay with --map, or another attempt of this task. Stop the other ones, and run this one again: it goes "
            "on where the target stands"
        )


_: type[Claim] = ReplayClaim


async def retry_target(work: Callable[[], Awaitable[T]], *, patience_s: float = _PATIENCE_S) -> T:
    """Call ``work`` until the target lets it succeed; return its result.

    Raises the last RetriableSinkError after ``patience_s`` seconds; other errors at once.
    """
    loop = asyncio.get_running_loop()
    backoff = Backoff(initial_s=0.1, maximum_s=5.0, random=random.random)
    limit = loop.time() + patience_s
    while True:
        try:
            return await work()
        except RetriableSinkError as error:
            delay_s = max(backoff.next(), error.retry_after_s)
            if loop.time() + delay_s > limit:
                raise
            await asyncio.sleep(delay_s)


class LogReplay:
    """Writes the rows of one log, from the position on that the target has stored.

    Args:
        patience_s: time for which a target that fails is asked again, in seconds.
    """

    def __init__(self, sink: KafkaSink, log: PlannedLog, *, group: str, patience_s: float = _PATIENCE_S) -> None:
        self._sink = sink
        self._log = log
        self._claim = ReplayClaim(log.partition, log.incarnation.truncated(0), group=group)
        self._patience_s = patience_s
        self._writer: PartitionWriter | None = None
        self._held: pa.RecordBatch | None = None
        self.first = 0
        """Offset from which it writes."""
        self.position = 0
        """Offset up to which the target has the log."""
        self.records = 0
        """Number of records that it has written."""

    async def begin(self) -> None:
        """Fence earlier writers, and find the position. Raises SinkError, OwnershipLost, ConfigError."""
        await retry_target(self._begin, patience_s=self._patience_s)

    async def _begin(self) -> None:
        await self.abandon()
        self._writer = writer = await self._sink.open(self._claim)
        truncation = self._log.incarnation.truncation
        stored = writer.resume_position
        if stored is not None and writer.truncation > truncation:
            # a later log of the partition has begun: nothing can be added to this one
            self.first = self.position = self._log.end
            return
        position = stored if stored is not None and writer.truncation == truncation else self._log.start
        await writer.start(Start(position=position, reason="replayed", truncation=truncation))
        self.first = self.position = position

    async def take(self, rows: pa.RecordBatch) -> None:
        """Write rows of the log, and commit them. Raises SinkError, OwnershipLost, ConfigError."""
        if self._log.partition.is_legacy:
            rows = self._hold_last_message(rows)
        if len(rows):
            await self._take(rows)

    def _hold_last_message(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows without those of the last message.

        They are kept for the next call.

        Records of a compressed message of Kafka 0.7 share their offset, and a position is that of a whole message. A
        message may go over the end of an Arrow batch.
        """
        if self._held is not None:
            rows = pa.Table.from_batches([self._held, rows]).combine_chunks().to_batches()[0]
        offsets = rows["offset"].to_numpy()
        first = int(offsets.searchsorted(offsets[-1]))
        self._held = rows.slice(first)
        return rows.slice(0, first)

    async def _take(self, rows: pa.RecordBatch) -> None:
        batch = to_record_batch(self._log.partition, rows, min(self.position, rows["offset"][0].as_py()))
        if batch.next_offset <= self.position:
            return
        batch = batch.slice_from(self.position)
        for end in list(_cut(batch)):
            await self._write(batch.slice_from(self.position).slice_to(end))

    async def end(self) -> None:
        """Store the end of the log as the position.

        Raises the errors of :meth:`take`.
        """
        held, self._held = self._held, None
        if held is not None:
            await self._take(held)
        if self.position < self._log.end:
            await self._write(empty_batch(self._log.partition, self.position, self._log.end))

    async def _write(self, batch: RecordBatch) -> None:
        begun = self.position

        async def commit() -> int:
            assert self._writer is not None, "begun first"
            try:
                await self._writer.write(batch)
                return await self._writer.flush()
            except RetriableSinkError as error:
                if error.resume_position is not None and error.resume_position >= batch.next_offset:
                    return error.resume_position  # it was committed, and only the answer was lost
                raise

        try:
            self.position = await retry_target(commit, patience_s=self._patience_s)
        except PermanentSinkError as error:
            offset = batch.start if error.refused is None else batch.offsets[error.refused]
            raise PermanentSinkError(
                f"{self._log.partition}: the target refuses the record at offset {offset}, and nothing from "
                f"{begun} on was replayed: {error}. Run the job again afterwards: it goes on there"
            ) from error
        self.records += len(batch)

    async def abandon(self) -> None:
        """Abort what was not committed. Idempotent."""
        writer, self._writer = self._writer, None
        if writer is not None:
            await writer.abandon()


def _cut(batch: RecordBatch) -> Iterator[int]:
    """Yield the offset behind each part of a batch that becomes a transaction."""
    spans = zip(batch.key_starts, batch.key_ends, batch.value_starts, batch.value_ends, strict=True)
    ends = list(accumulate(key_end - key + value_end - value for key, key_end, value, value_end in spans))
    begin, count = 0, len(batch)
    while begin < count:
        before = ends[begin - 1] if begin else 0
        stop = max(begin + 1, bisect_right(ends, before + _TRANSACTION_BYTES, begin))
        while stop < count and batch.offsets[stop] == batch.offsets[stop - 1]:
            stop += 1  # no position is within a message of Kafka 0.7
        yield batch.next_offset if stop == count else batch.offsets[stop]
        begin = stop


@asynccontextmanager
async def open_sink(target: ReplayTarget) -> AsyncIterator[KafkaSink]:
    """Make a sink, and close it."""
    sink = KafkaSink(target.make_context(), target.options)
    try:
        yield sink
    finally:
        await sink.close()


def replay_rows(
    target: ReplayTarget, logs: dict[LogName, PlannedLog], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Write a task's rows; yield :data:`RESULT`, a row for each log.

    Args:
        logs: all logs of the replay.
        batches: rows as ``replay_rows`` describes them, sorted, the end row of each log last.

    Raises SinkError, OwnershipLost, ConfigError: what is committed stays, and the next attempt goes on behind it.
    """
    with LoopThread(open_sink(target), name="consumerd replay") as loop, closing(_Task(target, logs, loop)) as task:
        for batch in batches:
            for part in split_rows(batch):
                if (result := task.take(part)) is not None:
                    yield result


class _Task:
    """The log that a task is writing."""

    def __init__(self, target: ReplayTarget, logs: dict[LogName, PlannedLog], loop: LoopThread[KafkaSink]) -> None:
        self._target = target
        self._logs = logs
        self._loop = loop
        self._name: LogName | None = None
        self._current: LogReplay | None = None

    def take(self, part: LogPart) -> pa.RecordBatch | None:
        """Write a part of a log; return the log's result at its end."""
        if self._current is None or part.name != self._name:
            self.close()
            self._name = part.name
            self._current = LogReplay(self._loop.resource, self._logs[part.name], group=self._target.group)
            self._loop.call(self._current.begin())
        current = self._current
        if len(part.rows):
            self._loop.call(current.take(part.rows))
        if part.end is None:
            return None
        self._loop.call(current.end())
        self.close()
        values = (*part.name, current.first, current.position, current.records)
        columns = [pa.array([value], field.type) for value, field in zip(values, _RESULT_SCHEMA, strict=True)]
        return pa.RecordBatch.from_arrays(columns, schema=_RESULT_SCHEMA)

    def close(self) -> None:
        """Abort what was not committed. Idempotent."""
        current, self._current = self._current, None
        if current is not None:
            self._loop.call(current.abandon())
