# SPDX-License-Identifier: Apache-2.0
"""Reader of one partition of a mirror's positions topic.

``mirror.positions`` has the theory. Callers that come while a read is running share the next one.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Final, TypeVar

from consumerd.aio.timeouts import timeout
from consumerd.client.leaders import Connections
from consumerd.client.log_range import LogRangeReader
from consumerd.client.retrying import retry_passing
from consumerd.client.topics import MetadataDirectory
from consumerd.errors import BrokerError, ConnectionLost, RequestTimedOut, UnsupportedVersion
from consumerd.mirror.positions_index import PositionsIndex, PositionsTail
from consumerd.mirror.records import MARK
from consumerd.model import TopicPartition
from consumerd.net.connection import BrokerConnection
from consumerd.net.pool import Purpose
from consumerd.wire.errorcodes import ErrorCode, broker_error
from consumerd.wire.modern.building import build_record_set
from consumerd.wire.modern.fetch import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchTopic,
)
from consumerd.wire.modern.produce import ACKS_ALL, ProducePartition, ProduceRequest, ProduceTopic
from consumerd.wire.modern.record_set import decode_record_set
from consumerd.wire.modern.transaction_units import walk_units
from consumerd.wire.records import NewRecord, RecordBatch

T = TypeVar("T")

_FETCH_BYTES: Final = 1 << 20
_WAIT_MS: Final = 100
"""Longest time that a broker waits for records that are acknowledged, and not below its high watermark yet."""
_FIRST_WITH_ISOLATION: Final = 4
_FIRST_WITH_TRANSACTIONS: Final = 3


class PositionsPartitionReader:
    """Reads one partition of the positions topic into the index.

    The first read begins at the log start, the others where the one before has ended.

    Args:
        partition: The partition.
        connections: Pool of connections to the target's brokers.
        directory: Directory of the target's leaders.
        ranges: Looks up the start and end of the log.
        index: Takes what is read.
        random: Returns floats in [0, 1), for backoffs.
        request_timeout_s: Time limit of each request, in seconds.
        patience_s: Time limit for one request and its retries, in seconds.
    """

    def __init__(
        self,
        partition: TopicPartition,
        connections: Connections,
        directory: MetadataDirectory,
        ranges: LogRangeReader,
        index: PositionsIndex,
        *,
        random: Callable[[], float],
        request_timeout_s: float,
        patience_s: float,
    ) -> None:
        self._partition: Final = partition
        self._connections = connections
        self._directory = directory
        self._ranges = ranges
        self._index = index
        self._random = random
        self._request_timeout_s = request_timeout_s
        self._patience_s = patience_s
        self._next: int | None = None
        """Offset from which the first part of the next read begins; None before the first read."""
        self._reading = asyncio.Lock()
        self._begun = 0
        self._ended = 0

    @property
    def _number(self) -> int:
        return self._partition.partition.number

    async def refresh(self, *, marks: bool) -> None:
        """Read what was added before this call.

        Args:
            marks: True to write a mark first, and to read up to it.

        Raises BrokerError, ConnectionLost, ProtocolError, CorruptMessageError.
        """
        target = self._begun + 1  # a read that is running already may have begun too early
        async with self._reading:
            if self._ended < target:
                self._begun = number = self._begun + 1
                try:
                    await self._read(marks=marks)
                except BrokerError as error:
                    if error.code != ErrorCode.OFFSET_OUT_OF_RANGE:
                        raise
                    # the topic was created anew, or an unclean leader election has cut the log
                    self._next = None
                    await self._read(marks=marks)
                self._ended = number

    async def _read(self, *, marks: bool) -> None:
        end = 0
        if self._next is None or not marks:
            log = (await self._ranges.read([self._partition]))[self._partition]
            end = log.latest
            if self._next is None:
                self._index.forget(self._number)
                self._next = log.earliest
        if marks:
            end = 1 + await self._write_mark()
        position = await self._read_stable(self._next)
        tail = PositionsTail(self._number)
        while position < end:
            async with self._limit(position):
                before = position
                while position == before:  # empty answers: the high watermark is not there yet
                    fetched = await self._fetch(position, READ_UNCOMMITTED)
                    position = self._add_tail(tail, position, fetched)
        self._index.set_tail(tail)

    @asynccontextmanager
    async def _limit(self, position: int) -> AsyncIterator[None]:
        """Limit the time for one step forward. Raises RequestTimedOut."""
        try:
            async with timeout(self._patience_s):
                yield
        except TimeoutError:
            raise RequestTimedOut(
                f"{self._partition} ends at {position}, and has acknowledged records behind it that are not there "
                f"within {self._patience_s:g} s"
            ) from None

    async def _read_stable(self, position: int) -> int:
        """Read up to the last stable offset; return the position behind what was read."""
        while True:
            async with self._limit(position):
                while True:
                    fetched = await self._fetch(position, READ_COMMITTED)
                    if position >= fetched.last_stable_offset:
                        return position
                    if fetched.record_set:
                        break
            batch = decode_record_set(
                fetched.record_set,
                partition=self._partition,
                start=position,
                read_committed=True,
                aborted=fetched.aborted_transactions,
                high_watermark=fetched.high_watermark,
            )
            self._index.add(self._number, _pairs(batch))
            self._next = position = batch.next_offset

    def _add_tail(self, tail: PositionsTail, position: int, fetched: FetchedPartition) -> int:
        """Add what was fetched to the tail; return the position behind it."""
        if not fetched.record_set:
            return position
        # decoded as a whole, markers included, which checks their checksums; headers tell whose the records are
        batch = decode_record_set(fetched.record_set, partition=self._partition, start=position)
        pairs, row = list(_pairs(batch)), 0
        for unit in walk_units(fetched.record_set):
            if unit.next_offset <= position:
                continue
            if unit.next_offset > batch.next_offset:
                break  # unreadable: the next fetch begins with it, and says so
            if unit.commits is not None and unit.producer_id is not None:
                tail.end(unit.producer_id, commits=unit.commits)
            else:
                stop = bisect_left(batch.offsets, unit.next_offset, row)
                tail.add(unit.producer_id, pairs[row:stop])
                row = stop
            position = unit.next_offset
        return position

    # -- requests

    async def _fetch(self, offset: int, isolation: int) -> FetchedPartition:
        line = FetchPartition(partition=self._number, fetch_offset=offset, partition_max_bytes=_FETCH_BYTES)
        request = FetchRequest(
            max_wait_ms=_WAIT_MS if isolation == READ_UNCOMMITTED else 0,
            min_bytes=1,
            max_bytes=_FETCH_BYTES,
            isolation_level=isolation,
            topics=(FetchTopic(topic=self._partition.topic, partitions=(line,)),),
        )

        async def ask(connection: BrokerConnection) -> FetchedPartition:
            context = f"Fetch of {self._partition} from {offset} at {connection.address}"
            version = connection.version_of(FetchRequest)
            if version < _FIRST_WITH_ISOLATION:
                raise _too_old("FETCH", connection, version)
            response = await connection.request(request, timeout_s=self._request_timeout_s, version=version)
            answers = {(topic.topic, one.partition): one for topic in response.topics for one in topic.partitions}
            answer = answers.get((self._partition.topic, self._number))
            if code := response.error_code or (0 if answer is None else answer.error_code):
                raise broker_error(code, context)
            if answer is None:
                raise ConnectionLost(f"{context}: the partition is missing from the answer")
            return answer

        return await self._ask_leader(Purpose.FETCH, ask)

    async def _write_mark(self) -> int:
        """Write a mark, and return its offset once all in-sync replicas have it."""
        line = ProducePartition(
            partition=self._number, record_set=build_record_set([NewRecord(key=MARK, value=None)], magic=2)
        )
        request = ProduceRequest(
            acks=ACKS_ALL,
            timeout_ms=round(self._request_timeout_s * 1000),
            topics=(ProduceTopic(topic=self._partition.topic, partitions=(line,)),),
        )

        async def ask(connection: BrokerConnection) -> int:
            context = f"Produce of a mark for {self._partition} at {connection.address}"
            version = connection.version_of(ProduceRequest)
            if version < _FIRST_WITH_TRANSACTIONS:
                raise _too_old("PRODUCE", connection, version)
            response = await connection.request(request, timeout_s=self._request_timeout_s, version=version)
            answers = [one for topic in response.topics for one in topic.partitions]
            if not answers:
                raise ConnectionLost(f"{context}: the partition is missing from the answer")
            if answers[0].error_code:
                raise broker_error(answers[0].error_code, context)
            return answers[0].base_offset

        return await self._ask_leader(Purpose.PRODUCE, ask)

    async def _ask_leader(self, purpose: Purpose, ask: Callable[[BrokerConnection], Awaitable[T]]) -> T:
        """Send a request to the partition's leader until it succeeds; return its result.

        Raises BrokerError, ProtocolError; RequestTimedOut with the last failure.
        """
        partition = self._partition

        async def ask_once() -> T:
            leader = self._directory.find_leader(partition)
            if leader is None:
                view = await self._directory.refresh(f"no leader of {partition}")
                leader = view.find_leader(partition)
            if leader is None:
                raise ConnectionLost(f"{partition} has no leader")
            try:
                return await ask(await self._connections.get(leader, purpose))
            except (BrokerError, ConnectionLost) as error:
                if isinstance(error, ConnectionLost) or error.refresh:
                    await self._directory.refresh(f"leader of {partition}: {error}")
                raise

        return await retry_passing(
            ask_once, who=f"leader of {partition}", patience_s=self._patience_s, random=self._random
        )


def _pairs(batch: RecordBatch) -> Iterable[tuple[bytes | None, bytes | None]]:
    return zip(batch.keys(), batch.values(), strict=True)


def _too_old(request: str, connection: BrokerConnection, version: int) -> UnsupportedVersion:
    return UnsupportedVersion(
        f"{request}: broker {connection.address} speaks v{version}; a mirror's positions need transactions (Kafka 0.11)"
    )
