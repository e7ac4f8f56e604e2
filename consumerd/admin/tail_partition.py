# SPDX-License-Identifier: Apache-2.0
"""Reads one partition for ``consumerd tail``: finds the range of offsets, then prints its records.

Example: ``--from -10`` of a compacted log [0, 300), in which only the offsets divisible by 20 are left.

1. The windows [290, 300), [270, 290), [230, 270) and [150, 230) are read, latest first, each twice as large as the one
   before. They have 0, 1, 2 and 4 records, which are counted, not shown.
2. Of the last one, [0, 150), three records are needed for ten in all: the first of them is 100.
3. [100, 300) is read again and shown: 100, 120, ... 280.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

from consumerd.access.principal import OUR_PRINCIPAL, Principal
from consumerd.admin.tail_notes import PartitionNotes, WaitingNotes, describe_offsets
from consumerd.admin.tail_range import AtOffset, AtTime, LastRecords, LogEdge, RecentOffsets, TailRequest, check_start
from consumerd.aio.tasks import alongside
from consumerd.aio.timeouts import timeout
from consumerd.client.log_range import LogRanges
from consumerd.client.remedies import READ, advise_right, explain_no_leader
from consumerd.delivery.passing import blame_hole, describe_unit, find_hole
from consumerd.delivery.search import PROBE_S, SearchProbe, confirm_end, find_readable, head_of
from consumerd.errors import (
    BrokerError,
    ConnectionLost,
    ConsumerdError,
    CorruptMessageError,
    OffsetOutOfRange,
    RecordTooLarge,
    RequestTimedOut,
)
from consumerd.fetch.feed import PartitionFeed
from consumerd.fetch.fetcher import Fetcher
from consumerd.fetch.patient_feed import PatientFeed
from consumerd.fetch.ports import LeaderDirectory
from consumerd.model import GapReason, LogRange, TopicPartition
from consumerd.wire.errorcodes import ErrorCode, broker_error
from consumerd.wire.records import RecordBatch

T = TypeVar("T")

_NOTE_S: Final = 2.0
"""Time without an answer, in seconds, after which the command says what it waits for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TailSource:
    """Partitions to print, and the clients that read them.

    Attributes:
        directory: Finds the partitions' leaders.
        ranges: Looks up the start and end of logs, and the first offset of a time.
        fetcher: Fetches the records.
        principal: Our identity at brokers, for advice.
    """

    partitions: Sequence[TopicPartition]
    directory: LeaderDirectory
    ranges: TimedRanges
    fetcher: Fetcher
    principal: Principal = OUR_PRINCIPAL


class TimedRanges(LogRanges, Protocol):
    """Lookup of the start and end of logs, and of offsets by time.

    It is implemented by ``client.log_range.LogRangeReader``.
    """

    async def offset_for_time(
        self, partitions: Collection[TopicPartition], timestamp_ms: int
    ) -> Mapping[TopicPartition, int | None]:
        """Return the offset of each partition's first record with this timestamp or a later one.

        The value is None for a partition without such a record. Raises ConnectionLost, ProtocolError, BrokerError.
        """

    async def is_coarse(self, partitions: Collection[TopicPartition]) -> bool:
        """Return True if a partition's leader finds times only by log segment (before 0.10.1).

        Raises ConnectionLost, ProtocolError.
        """


@dataclass(slots=True, kw_only=True)
class TailOutcome:
    """Counts of records that ``consumerd tail`` has printed, and failures.

    Attributes:
        shown: Number of printed records.
        failures: Errors of partitions that could not be read to their end.
        damaged: Number of times that records could not be read: a damaged or too large message or record batch, or a
            log that has lost its end.
    """

    shown: int = 0
    failures: list[ConsumerdError] = field(default_factory=list)
    damaged: int = 0


class TailOutput(Protocol):
    """Output of ``consumerd tail``, which all partitions share."""

    @property
    def is_busy(self) -> bool:
        """True while records are being printed."""

    async def show(self, batch: RecordBatch) -> RecordBatch:
        """Print a batch as far as it is wanted; return the printed part. Raises OSError."""

    def note_coarse_time(self) -> None:
        """Tell the operator, once, that a broker (before 0.10.1) finds times only by log segment.

        Records before the requested time may then be printed.
        """


class PartitionTail:
    """Reads and prints the records of one partition in the requested range.

    Args:
        source: Clients that read the partition.
        request: Range of the records to print.
        outcome: Counts and failures of all partitions.
        tell: Prints a line for the operator.
        waiting: Prints notes about partitions from which no records come.
    """

    def __init__(
        self,
        partition: TopicPartition,
        source: TailSource,
        request: TailRequest,
        outcome: TailOutcome,
        *,
        output: TailOutput,
        tell: Callable[[str], None],
        waiting: WaitingNotes,
    ) -> None:
        self.partition: Final = partition
        self.notes: Final = PartitionNotes(partition, tell, waiting)
        self.located: Final = asyncio.Event()
        """Set when the log's range is known, and when the partition has failed before that."""
        self.log: LogRange | None = None
        """The log's range when the reading began."""
        self._directory = source.directory
        self._principal = source.principal
        self._ranges = source.ranges
        self._fetcher = source.fetcher
        self._request = request
        self._outcome = outcome
        self._output = output
        self._until_ms: int | None = None
        """Time at which to end, if the log had no record of it when the reading began."""

    @property
    def is_empty(self) -> bool:
        """True if the log has no records; False also while its range is not known."""
        return self.log is not None and self.log.earliest == self.log.latest

    async def run(self) -> None:
        """Read and print the partition's range; with ``follow``, forever.

        A ConsumerdError is printed and kept in the outcome. Raises the OSError of the output.
        """
        try:
            start, end = await self._locate()
            if end is None or start < end:
                await self._show(start, end)
        except ConsumerdError as error:
            self._outcome.failures.append(error)
            self.notes.tell(_without_prefix(str(error), self.partition))
        finally:
            self.located.set()

    async def _show(self, start: int, end: int | None) -> None:
        async with aclosing(self._read(start, end, tells=True)) as batches:
            async for batch in batches:
                is_last = False
                if self._until_ms is not None:
                    batch, is_last = _cut_at_time(batch, self._until_ms)
                shown = await self._output.show(batch)
                for gap in shown.gaps:
                    self._outcome.damaged += gap.reason is GapReason.CORRUPT
                    self.notes.note_gap(gap)
                if is_last:
                    return

    # -- range

    async def _locate(self) -> tuple[int, int | None]:
        """Return start and end; no end is None."""
        request = self._request
        log = self.log = await self._insist(self._read_range)
        self.located.set()
        end = None if request.follow else log.latest
        match request.end:
            case AtOffset(offset=offset):
                end = offset if end is None else min(offset, end)
            case AtTime(time_ms=time_ms):
                at = await self._insist(lambda: self._find_time(time_ms))
                if at is None:
                    self._until_ms = time_ms
                else:
                    end = at if end is None else min(at, end)
            case None:
                pass
        match request.start:
            case LogEdge.EARLIEST:
                return log.earliest, end
            case LogEdge.LATEST:
                return log.latest, end
            case AtOffset(offset=offset):
                return check_start(self.partition, offset, log), end
            case AtTime(time_ms=time_ms):
                at = await self._insist(lambda: self._find_time(time_ms))
                return log.latest if at is None else at, end
            case LastRecords(count=count):
                last = log.latest if end is None else min(end, log.latest)
                return await self._find_last(count, log.earliest, last), end

    async def _read_range(self) -> LogRange:
        return (await self._ranges.read([self.partition]))[self.partition]

    async def _find_time(self, time_ms: int) -> int | None:
        found = await self._ranges.offset_for_time([self.partition], time_ms)
        if await self._ranges.is_coarse([self.partition]):
            self._output.note_coarse_time()
        return found[self.partition]

    async def _insist(self, look_up: Callable[[], Awaitable[T]]) -> T:
        """Look up, and say so if that takes long.

        Without ``follow`` it must end within the patience. Raises ConsumerdError.
        """
        limit_s = None if self._request.follow else self._request.patience_s
        async with alongside(self._tell_waiting(), name=f"tail {self.partition}: note"):
            try:
                async with timeout(limit_s):
                    while True:
                        try:
                            found = await look_up()
                        except ConnectionLost:
                            continue  # after the time limit of the lookup, which has retried
                        except BrokerError as error:
                            if not error.retriable:
                                raise
                        else:
                            self.notes.resume()
                            return found
            except TimeoutError:
                topic = self._directory.views.value.topics.get(self.partition.topic)
                if topic is not None and topic.error == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                    right = advise_right(READ, self.partition.topic, self._principal)
                    raise broker_error(topic.error, "Metadata", right) from None
                raise RequestTimedOut(
                    f"{self.partition}: no range of the log within {limit_s:g} s: {self._explain_leader()}"
                ) from None

    async def _tell_waiting(self) -> None:
        await asyncio.sleep(_NOTE_S)
        self.notes.wait(self._explain_leader())

    def _explain_leader(self) -> str:
        leader = self._directory.find_leader(self.partition)
        if leader is None:
            return explain_no_leader(self.partition, self._directory.views.value, self._principal, right=READ)
        return f"its leader, broker {leader}, has not answered yet"

    async def _find_last(self, count: int, earliest: int, end: int) -> int:
        """Return the offset of the ``count``-th record before ``end``.

        That is the log's start if there are fewer.
        """
        step = count
        while end > earliest:
            begin = max(earliest, end - step)
            recent = RecentOffsets(count)
            async with aclosing(self._read(begin, end, tells=False)) as batches:
                async for batch in batches:
                    recent.add(batch)
            first = recent.find_first()
            if first is not None:
                return first
            count -= recent.count
            end = begin
            step *= 2
        return earliest

    # -- records

    async def _read(self, start: int, end: int | None, *, tells: bool) -> AsyncGenerator[RecordBatch]:
        """Yield the batches of a range; what cannot be read is left out.

        Args:
            tells: Tell what is left out.
        """
        feed = self._fetcher.feed(self.partition, start, end)
        patient = PatientFeed(
            feed,
            self._ranges,
            patience_s=None if self._request.follow else self._request.patience_s,
            explain=lambda: self._explain_leader() if feed.fault is None else feed.fault.reason,
            waiting=lambda: self._note_fault(feed),
            held_up=lambda: self._output.is_busy,
        )
        position, passed_to = start, None
        try:
            while end is None or position < end:
                try:
                    batch = await patient.next(position)
                except RequestTimedOut as late:
                    code = None if feed.fault is None else feed.fault.code
                    if code is None or ErrorCode(code).retriable:
                        raise
                    raise broker_error(code, str(late)) from late  # trying again later does not help by itself
                except OffsetOutOfRange as error:
                    position = self._move(error, position, end, tells=tells)
                    feed.seek(position)
                    continue
                except (CorruptMessageError, RecordTooLarge) as error:
                    passed_to = await self._pass_over(feed, error, position, end, tells=tells)
                    position = passed_to
                    feed.seek(position)
                    continue
                self.notes.resume()
                try:
                    part = batch if end is None else batch.slice_to(end)
                    yield blame_hole(part) if position == passed_to else part
                finally:
                    feed.done(batch)
                position = batch.next_offset
        finally:
            feed.close()

    def _note_fault(self, feed: PartitionFeed) -> None:
        fault = feed.fault
        if fault is None:
            self.notes.resume()
        else:
            self.notes.wait(fault.reason)

    def _move(self, error: OffsetOutOfRange, position: int, end: int | None, *, tells: bool) -> int:
        """Return the position to continue at, after one that was deleted."""
        if error.earliest > position:
            if tells:
                lost = describe_offsets(position, error.earliest)
                self.notes.tell(f"{lost}: deleted before they were read; log_start_offset is {error.earliest} now")
            return error.earliest
        if tells:
            self._outcome.damaged += 1
            self.notes.tell(
                f"log_end_offset is {error.latest} now, and offset {position} was to be read next: the log has lost "
                f"its "
                "end in an unclean leader election, or the topic was created again"
            )
        return error.latest if end is None else end

    async def _pass_over(
        self,
        feed: PartitionFeed,
        error: CorruptMessageError | RecordTooLarge,
        position: int,
        end: int | None,
        *,
        tells: bool,
    ) -> int:
        """Return the position to continue at after a unit that cannot be read.

        Raises the error if no record can be read after it.
        """
        unit = describe_unit(error, position)
        next_offset = unit.next_offset
        log_end = feed.high_watermark if end is None else end
        if next_offset is None and log_end is not None:
            next_offset = await self._search(feed, SearchProbe(at=position, unit=head_of(unit.raw)), log_end)
        elif next_offset is not None and isinstance(error, RecordTooLarge) and feed.high_watermark is None:
            within = end is None or next_offset < end  # the feed ends at the range's end, where nothing confirms
            next_offset = await self._confirm_end(feed, next_offset) if within else None
        if next_offset is None:
            if end is None:
                raise error
            next_offset = end  # nothing can be read up to the end
        if tells:
            self._outcome.damaged += 1
            if isinstance(error, RecordTooLarge):
                kind, reason = "too large", _describe_size(error)
            else:
                kind, reason = "damaged", _without_prefix(str(error), self.partition)
            self.notes.note_left_out(position, next_offset, kind, reason)
        return next_offset

    async def _search(self, feed: PartitionFeed, first: SearchProbe, end: int) -> int | None:
        """Return the first readable offset after a unit of unknown end, or None.

        Raises RequestTimedOut if a probe is not answered.
        """

        async def look(offset: int) -> SearchProbe:
            try:
                batch = await self._probe(feed, offset)
            except (RecordTooLarge, CorruptMessageError) as error:
                unit = head_of(error.raw)
                is_another = error.next_offset is not None and (unit is None or unit != first.unit)
                return SearchProbe(at=offset, readable=offset if is_another else None, unit=unit)
            except OffsetOutOfRange:
                return SearchProbe(at=offset)
            if batch is None:
                raise RequestTimedOut(
                    f"{self.partition}: no answer at offset {offset}, in the search for the end of damaged data"
                )
            hole = find_hole(batch)
            return SearchProbe(at=offset, readable=offset if hole is None else hole.end)

        return await find_readable(look, first, end)

    async def _confirm_end(self, feed: PartitionFeed, claimed: int) -> int | None:
        """Return the end that an oversized message claims, if it is confirmed; else None."""

        async def look(offset: int) -> SearchProbe:
            try:
                batch = await self._probe(feed, offset)
            except RecordTooLarge as error:
                return SearchProbe(at=offset, claimed_end=error.next_offset)
            except (CorruptMessageError, OffsetOutOfRange):
                return SearchProbe(at=offset)
            return SearchProbe(at=offset, readable=None if batch is None else offset)

        return await confirm_end(look, claimed)

    async def _probe(self, feed: PartitionFeed, offset: int) -> RecordBatch | None:
        """Return what can be read at an offset; None if nothing came in time.

        The batch's memory is released.
        """
        feed.seek(offset)
        try:
            async with timeout(PROBE_S):
                batch = await feed.next()
        except TimeoutError:
            return None
        feed.done(batch)
        return batch


def _describe_size(error: RecordTooLarge) -> str:
    known = f"{error.size} bytes" if error.size is not None else "more"
    return (
        f"the message at offset {error.offset} has {known}, the limit is {error.limit}; give --set "
        "fetch.max_message_bytes=SIZE"
    )


def _without_prefix(text: str, partition: TopicPartition) -> str:
    """Return a text without the name of the partition at its beginning."""
    return text.removeprefix(f"{partition}: ")


def _cut_at_time(batch: RecordBatch, time_ms: int) -> tuple[RecordBatch, bool]:
    """Return the records before a time, and True if there are later ones."""
    for offset, timestamp in zip(batch.offsets, batch.timestamps, strict=True):
        if timestamp >= time_ms:
            return batch.slice_to(offset), True
    return batch, False
