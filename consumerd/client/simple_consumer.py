# SPDX-License-Identifier: Apache-2.0
"""Reads single records: enough to tell how old the next record of a group is.

Not a way to consume: no session, no pipelining, one small fetch a call. ``fetch`` is for that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from consumerd.aio.backoff import Backoff
from consumerd.aio.timeouts import timeout_at
from consumerd.client.leaders import Connections, Leaders
from consumerd.errors import BrokerError, ConnectionLost, RecordTooLarge, RequestTimedOut
from consumerd.model import TopicPartition
from consumerd.net.pool import Purpose
from consumerd.wire.errorcodes import broker_error
from consumerd.wire.modern.fetch import FetchedPartition, FetchPartition, FetchRequest, FetchTopic
from consumerd.wire.modern.record_set import decode_record_set, first_unit_size
from consumerd.wire.records import NO_TIMESTAMP, RecordBatch

_FIRST_FETCH_BYTES: Final = 64 * 1024


class SimpleConsumer:
    """Reads records by their offsets, from the leaders of their partitions.

    Each call takes ``timeout_s`` at most, each request in it ``request_timeout_s``. A record larger than
    ``max_message_bytes`` is not read.
    """

    def __init__(
        self,
        connections: Connections,
        leaders: Leaders,
        *,
        random: Callable[[], float],
        max_message_bytes: int,
        timeout_s: float = 30.0,
        request_timeout_s: float = 10.0,
    ) -> None:
        self._connections = connections
        self._leaders = leaders
        self._random = random
        self._max_message_bytes = max_message_bytes
        self._timeout_s = timeout_s
        self._request_timeout_s = request_timeout_s

    async def read_timestamp(self, partition: TopicPartition, offset: int) -> int | None:
        """Return the time, in ms since the epoch, of the first record at ``offset`` or after it.

        None where there is no such record yet, and where its format has no time (up to 0.9).

        Raises BrokerError (out of range among others), RecordTooLarge, CorruptMessageError, ProtocolError, and
        ConnectionLost when time ran out.
        """
        deadline = asyncio.get_running_loop().time() + self._timeout_s
        position = offset
        while True:
            batch = await self._fetch(partition, position, deadline)
            for timestamp in batch.timestamps:
                return None if timestamp == NO_TIMESTAMP else timestamp
            if batch.next_offset == position:
                return None
            position = batch.next_offset  # control batches, or what was compacted away

    async def _fetch(self, partition: TopicPartition, offset: int, deadline: float) -> RecordBatch:
        """Fetch until there is an answer that stands. Bounded by ``deadline``, on the loop's clock."""
        backoff = Backoff(initial_s=0.05, maximum_s=2.0, random=self._random)
        failure: Exception = RequestTimedOut(f"{partition}: no leader is known")
        size = _FIRST_FETCH_BYTES
        try:
            async with timeout_at(deadline):
                while True:
                    try:
                        fetched = await self._ask(partition, offset, size)
                    except ConnectionLost as error:
                        failure = error
                    except BrokerError as error:
                        if not error.retriable:
                            raise
                        failure = error
                    else:
                        data = fetched.record_set or b""
                        batch = decode_record_set(data, partition=partition, start=offset)
                        if batch.next_offset > offset or not data:
                            return batch
                        size = self._grow(partition, offset, size, data)
                        continue
                    await self._leaders.refresh(f"Fetch: {failure}")
                    await asyncio.sleep(backoff.next())
        except TimeoutError:
            raise RequestTimedOut(f"{partition}: nothing read within {self._timeout_s:g} s: {failure}") from failure

    def _grow(self, partition: TopicPartition, offset: int, size: int, data: memoryview | bytes) -> int:
        """Return the size to fetch with, after ``size`` did not hold the first unit."""
        unit = first_unit_size(data)
        if size >= self._max_message_bytes or (unit or 0) > self._max_message_bytes:
            raise RecordTooLarge(partition, offset, self._max_message_bytes, unit)
        return min(max(size * 2, unit or 0), self._max_message_bytes)

    async def _ask(self, partition: TopicPartition, offset: int, size: int) -> FetchedPartition:
        leader = self._leaders.find_leader(partition)
        if leader is None:
            raise ConnectionLost(f"{partition}: no leader is known")
        connection = await self._connections.get(leader, Purpose.CONTROL)
        wanted = FetchPartition(partition=partition.partition.number, fetch_offset=offset, partition_max_bytes=size)
        request = FetchRequest(
            max_wait_ms=0, min_bytes=0, topics=(FetchTopic(topic=partition.topic, partitions=(wanted,)),)
        )
        response = await connection.request(request, timeout_s=self._request_timeout_s)
        context = f"Fetch at broker {leader} for {partition} from {offset}"
        if response.error_code:
            raise broker_error(response.error_code, context)
        for topic in response.topics:
            for fetched in topic.partitions:
                if fetched.error_code:
                    raise broker_error(fetched.error_code, context)
                return fetched
        raise ConnectionLost(f"{context}: the partition is missing from the answer")
