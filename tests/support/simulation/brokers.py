# SPDX-License-Identifier: Apache-2.0
"""Logs that grow, go and come again; feeds that read them, and those who ask how far they reach."""

from __future__ import annotations

import asyncio
import random
from array import array
from collections.abc import Mapping, Sequence

from consumerd.errors import ConnectionLost, OffsetOutOfRange
from consumerd.model import LogRange, TopicPartition
from consumerd.wire.records import RecordBatch
from tests.support.record_batches import build_batch, record

_MOST_RECORDS = 7


_ELECTION = 10**9


def parse_mark(mark: int) -> tuple[int, int]:
    """Return which making of a topic, and after how many truncations of its log, a record with this mark was written."""
    return mark % _ELECTION, mark // _ELECTION


class Log:
    """One partition of one making of a topic: records ``[0, end)``, each of which says which making it is of, and after how
    many truncations (``cuts``, by offset) it was written.
    """

    def __init__(self, czxid: int) -> None:
        self.czxid = czxid
        self.end = 0
        self.cuts: list[int] = []
        self.held: set[tuple[int, int]] = set()
        """Every record that was ever in the log: its offset, and after how many truncations it was written."""
        self.frozen = False
        """Nobody writes: a log that grew beyond a reader's position before it looked could not be told from a whole one."""
        self._eras: list[int] = []
        self._waiting: list[asyncio.Future[None]] = []

    def append(self, count: int) -> None:
        """Produce."""
        self.held.update((offset, len(self.cuts)) for offset in range(self.end, self.end + count))
        self.end += count
        self._eras += [len(self.cuts)] * count
        self.wake()

    def truncate(self, end: int) -> None:
        """Lose the end in an unclean election; other records will take those offsets."""
        self.cuts.append(end)
        self.end = end
        del self._eras[end:]
        self.wake()

    def marks(self, start: int, end: int) -> list[int]:
        """Return the marks of records."""
        return [self.czxid + era * _ELECTION for era in self._eras[start:end]]

    def wake(self) -> None:
        """Let whoever waits look again."""
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def wait(self) -> asyncio.Future[None]:
        """Return what is done once there is something new."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        return future


class Brokers:
    """All logs; for every member a source of feeds and of ranges."""

    logs_are_replicated = True

    def __init__(self, chance: random.Random, latency_s: tuple[float, float]) -> None:
        self.logs: dict[TopicPartition, Log] = {}
        self.with_values = False
        """Records have keys and values, which say where they are from; without, a story is told faster."""
        self._chance = chance
        self._latency_s = latency_s

    def remove(self, partition: TopicPartition) -> None:
        """Delete a log; whoever waits for its next record hears of it."""
        self.logs.pop(partition).wake()

    async def answer(self) -> None:
        """Let a request and its answer travel."""
        await asyncio.sleep(self._chance.uniform(*self._latency_s))

    def get(self, partition: TopicPartition) -> Log:
        """Return the log there is now. Raises ConnectionLost."""
        log = self.logs.get(partition)
        if log is None:
            raise ConnectionLost(f"{partition}: there is no such partition")
        return log

    def feed(self, partition: TopicPartition, offset: int) -> Feed:
        """See FeedSource."""
        return Feed(self, partition, offset)

    async def read(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, LogRange]:
        """See LogRanges."""
        await self.answer()
        return {partition: LogRange(0, self.get(partition).end) for partition in partitions}

    async def high_watermarks(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """See LogRanges: there are no transactions here."""
        return {one: log.latest for one, log in (await self.read(partitions)).items()}


class Feed:
    """See RecordFeed: whatever log has the name now, as a broker would serve it."""

    last_stable_offset = None
    fault = heard_at = None

    def __init__(self, brokers: Brokers, partition: TopicPartition, position: int) -> None:
        self._brokers = brokers
        self._partition = partition
        self._position = position

    @property
    def high_watermark(self) -> int | None:
        """See RecordFeed."""
        log = self._brokers.logs.get(self._partition)
        return None if log is None else log.end

    async def next(self) -> RecordBatch:
        """See RecordFeed."""
        while True:
            await self._brokers.answer()
            log, position = self._brokers.get(self._partition), self._position
            if position > log.end:
                raise OffsetOutOfRange(self._partition, position, 0, log.end)
            if position < log.end:
                self._position = min(position + _MOST_RECORDS, log.end)
                marks = log.marks(position, self._position)
                if self._brokers.with_values:
                    return make_batch_with_values(self._partition, position, marks)
                return make_batch(self._partition, position, marks)
            await log.wait()

    def done(self, batch: RecordBatch) -> None:
        """See RecordFeed."""

    def seek(self, position: int) -> None:
        """See RecordFeed."""
        self._position = position

    def close(self) -> None:
        """See RecordFeed."""


def make_value(partition: TopicPartition, offset: int, mark: int) -> bytes:
    """Return the value of a record: its partition, offset and mark."""
    return f"{partition} {offset} {mark}".encode()


def make_key(offset: int) -> bytes | None:
    """Return the key of a record, one of three; None for every fourth."""
    return b"k%d" % (offset % 4) if offset % 4 else None


def make_batch_with_values(partition: TopicPartition, start: int, marks: Sequence[int]) -> RecordBatch:
    """Return records with keys and values, whose timestamps are their marks."""
    return build_batch(
        partition,
        [
            record(offset, make_value(partition, offset, mark), key=make_key(offset), timestamp=mark)
            for offset, mark in enumerate(marks, start)
        ],
    )


def make_batch(partition: TopicPartition, start: int, marks: Sequence[int]) -> RecordBatch:
    """Return records without key and value, whose timestamps are their marks."""
    count = len(marks)
    end = start + count
    nulls = array("q", [-1]) * count
    return RecordBatch(
        partition=partition,
        start=start,
        next_offset=end,
        offsets=array("q", range(start, end)),
        timestamps=array("q", marks),
        timestamp_types=b"\x01" * count,
        key_starts=nulls,
        key_ends=nulls,
        value_starts=nulls,
        value_ends=nulls,
        size_bytes=100 * count,
    )
