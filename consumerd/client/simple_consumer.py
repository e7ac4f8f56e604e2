# SPDX-License-Identifier: Apache-2.0
"""The low-level consumer of the Kafka documentation: stateless fetches and lookups of offsets.

Calls are independent of each other: the caller keeps positions. There is no group, no fetch session and no pipelining;
the package ``fetch`` has those. Requests go to the leaders of the partitions: one request to each leader, all leaders
at once. Brokers of each generation are asked by its :mod:`~consumerd.client.fetch_protocol` and
:mod:`~consumerd.client.offset_lookup`.

If a leader has moved, is unknown or does not respond, the cluster view is refreshed and its partitions are asked again,
until the time limit of the call. A record that is larger than the limit of a fetch is fetched again with a larger one.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from consumerd.aio.backoff import Backoff
from consumerd.aio.clock import monotonic
from consumerd.aio.timeouts import timeout_at
from consumerd.client.consumer_records import ConsumerRecord, make_records
from consumerd.client.fetch_protocol import (
    FetchChannel,
    FetchExchange,
    FetchProtocol,
    FetchRequestSettings,
    Key,
    PartitionAnswer,
    RecordSet,
)
from consumerd.client.leaders import Connections, Leaders
from consumerd.client.log_range import ModernOffsetLookup
from consumerd.client.modern_fetch import ModernFetchProtocol
from consumerd.client.offset_lookup import EARLIEST_TIME, LATEST_TIME, OffsetLookup
from consumerd.cluster.view import Broker
from consumerd.errors import (
    BrokerError,
    ConfigError,
    ConnectionLost,
    ConsumerdError,
    CorruptMessageError,
    ProtocolError,
    RecordTooLarge,
    RequestTimedOut,
)
from consumerd.model import TopicPartition
from consumerd.wire.errorcodes import broker_error
from consumerd.wire.pieces import Piece
from consumerd.wire.primitives import MAX_INT32
from consumerd.wire.record_fields import NO_TIMESTAMP
from consumerd.wire.records import Limits, RecordBatch

EARLIEST: Final = EARLIEST_TIME
"""Special time, in lookups of offsets, that stands for the log start offset."""
LATEST: Final = LATEST_TIME
"""Special time, in lookups of offsets, that stands for the log end offset."""

_FIRST_FETCH_BYTES: Final = 64 * 1024
_POLL_INTERVAL_S: Final = 0.1
"""Interval of requests, in seconds, to brokers that respond at once also without records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedBatch:
    """Records of one partition that one fetch has returned.

    Attributes:
        batch: Records; ``batch.next_offset`` is the offset to fetch next.
        high_watermark: High watermark of the partition; None in Kafka 0.6 and 0.7, which have none.
    """

    batch: RecordBatch
    high_watermark: int | None

    def records(self) -> list[ConsumerRecord]:
        """Return the records with topic, partition and broker, as streams yield them.

        Raises CorruptMessageError for headers that cannot be decoded.
        """
        return make_records(self.batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiFetched:
    """Result of fetching several partitions: each has records or an error."""

    fetched: Mapping[TopicPartition, FetchedBatch]
    errors: Mapping[TopicPartition, ConsumerdError]


class _Reader:
    """Sequence of fetches of one partition without a gap or jump.

    Each begins where the one before has ended. A fetch protocol may check the first position of a reader, and need not
    check the others.
    """

    def __init__(self, key: Key) -> None:
        self.key = key
        self.next_offset: int | None = None


@dataclass(slots=True)
class _Wish:
    """A partition that is to be fetched, and the size to ask for."""

    partition: TopicPartition
    cursor: _Reader
    offset: int
    max_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Terms:
    """Conditions of all requests of one call."""

    min_bytes: int = 0
    max_wait_s: float = 0.0
    is_short: bool = False


_AT_ONCE: Final = _Terms(is_short=True)


@dataclass(slots=True)
class _Results:
    """Results so far, and the last error of each partition that is asked again."""

    fetched: dict[TopicPartition, FetchedBatch] = field(default_factory=dict)
    errors: dict[TopicPartition, ConsumerdError] = field(default_factory=dict)
    failures: dict[TopicPartition, ConsumerdError] = field(default_factory=dict)


class SimpleConsumer:
    """Low-level consumer: reads partitions at given offsets, and looks up offsets.

    Args:
        leaders: Directory of partition leaders.
        random: Returns floats in [0, 1), for backoffs.
        max_message_bytes: Size of the largest record that is read, in bytes.
        timeout_s: Time limit of each call, in seconds.
        request_timeout_s: Time limit of each request, in seconds.
        read_committed: True to leave out records of aborted and of open transactions.
        in_thread_bytes: Record sets above this size, in bytes, are decoded in a thread, the others on the event loop.
        follow: Makes ``leaders`` read the topics that it is called with; None if ``leaders`` reads all topics.
        protocol: Fetches from the brokers; None for those of Kafka 0.8 and later.
        lookup: Looks up offsets at single brokers; None for those of Kafka 0.8 and later.
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
        read_committed: bool = False,
        in_thread_bytes: int = 64 << 10,
        follow: Callable[[Collection[str]], None] | None = None,
        protocol: FetchProtocol | None = None,
        lookup: OffsetLookup | None = None,
    ) -> None:
        self._protocol = protocol or ModernFetchProtocol(connections, now=monotonic)
        self._lookup = lookup or ModernOffsetLookup(connections, request_timeout_s=request_timeout_s)
        self._leaders = leaders
        self._random = random
        self._max_message_bytes = max_message_bytes
        self._limits = Limits()
        self._timeout_s = timeout_s
        self._request_timeout_s = request_timeout_s
        self._read_committed = read_committed
        self._in_thread_bytes = in_thread_bytes
        self._follow_topics = follow
        self._followed: frozenset[str] = frozenset()
        self._channels: dict[tuple[Broker, FetchRequestSettings], FetchChannel] = {}
        self._readers: dict[TopicPartition, _Reader] = {}
        """The last reader of each partition."""

    async def fetch(
        self,
        partition: TopicPartition,
        offset: int,
        *,
        max_bytes: int = 1 << 20,
        min_bytes: int = 1,
        max_wait_s: float = 0.0,
    ) -> FetchedBatch:
        """Return a partition's records from ``offset`` on; none if the log ends there.

        Brokers of Kafka 0.6 and 0.7 do not wait. They are asked again until there are records, or ``max_wait_s`` is
        over. Their offsets count bytes: an ``offset`` inside of a message is a CorruptMessageError, whose
        ``next_offset`` is the end of that message if it is known.

        Args:
            max_bytes: Limit of the record set, in bytes. A first record that is larger is fetched whole.
            min_bytes: The broker waits until it has this number of bytes, for at most ``max_wait_s``.
            max_wait_s: Longest time that the broker waits, in seconds.

        Raises BrokerError (such as OFFSET_OUT_OF_RANGE), RecordTooLarge, CorruptMessageError, ProtocolError,
        RequestTimedOut when the time limit is exceeded, ConfigError if the library of a codec is missing.
        """
        result = await self.multifetch(
            {partition: offset}, max_bytes=max_bytes, min_bytes=min_bytes, max_wait_s=max_wait_s
        )
        for error in result.errors.values():
            raise error
        return result.fetched[partition]

    async def multifetch(
        self,
        positions: Mapping[TopicPartition, int],
        *,
        max_bytes: int = 1 << 20,
        min_bytes: int = 1,
        max_wait_s: float = 0.0,
    ) -> MultiFetched:
        """Fetch several partitions, each from its offset on; return records or an error for each.

        Partitions that would make an answer larger than the largest record come without records.

        Args:
            positions: Offset from which each partition is read.
            max_bytes: Limit of each partition's record set. A first record that is larger is fetched whole.
            min_bytes: Number of bytes, of all its partitions together, for which a broker waits.
            max_wait_s: Longest time that a broker waits for them, in seconds.
        """
        self._follow({partition.topic for partition in positions})
        wishes = [self._wish(one, offset, max_bytes) for one, offset in positions.items()]
        results = await self._fetch_all(wishes, _Terms(min_bytes=min_bytes, max_wait_s=max_wait_s))
        return MultiFetched(fetched=results.fetched, errors=results.errors)

    async def offsets_before(self, partition: TopicPartition, time_ms: int, max_offsets: int = 1) -> list[int]:
        """Return up to ``max_offsets`` offsets before a time, in descending order.

        They are the start offsets of log segments that were last written before that time, so they are as coarse as
        segments are long; :data:`LATEST` gives the log end offset as well, :data:`EARLIEST` the log start offset alone.
        Kafka 0.6 and 0.7 have the request OFFSETS for it. In later releases it is version 0 of ListOffsets, which
        brokers from 4.0 on do not support.

        Args:
            time_ms: In ms since the epoch, or LATEST or EARLIEST.

        Raises BrokerError, ProtocolError (UnsupportedVersion), RequestTimedOut when the time limit is exceeded.
        """
        self._follow({partition.topic})
        deadline = asyncio.get_running_loop().time() + self._timeout_s
        backoff = self._make_backoff()
        failure: ConsumerdError = RequestTimedOut(f"{partition}: no leader is known")
        try:
            async with timeout_at(deadline):
                while True:
                    try:
                        leader = self._get_leader(partition)
                        return await self._lookup.list_before(leader, partition, time_ms, max_offsets)
                    except (BrokerError, ConnectionLost) as error:
                        if not _may_pass(error):
                            raise
                        failure = error
                    await self._leaders.refresh(f"ListOffsets: {failure}")
                    await asyncio.sleep(backoff.next())
        except TimeoutError:
            raise self._time_out(partition, failure) from failure

    async def read_timestamp(self, partition: TopicPartition, offset: int) -> int | None:
        """Return the timestamp of the first record from ``offset`` on, in ms since the epoch.

        None if there is no such record yet, or if its format has no timestamp (up to Kafka 0.9; no request is sent to
        brokers of Kafka 0.6 and 0.7).

        Raises BrokerError (such as OFFSET_OUT_OF_RANGE), RecordTooLarge, CorruptMessageError, ProtocolError,
        RequestTimedOut when the consumer's ``timeout_s`` is exceeded.
        """
        if not self._protocol.has_timestamps:
            return None
        position = offset
        deadline = asyncio.get_running_loop().time() + self._timeout_s
        while True:
            wish = self._wish(partition, position, _FIRST_FETCH_BYTES)
            results = await self._fetch_all([wish], _AT_ONCE, deadline)
            for error in results.errors.values():
                raise error
            batch = results.fetched[partition].batch
            for timestamp in batch.timestamps:
                return None if timestamp == NO_TIMESTAMP else timestamp
            if batch.next_offset == position:
                return None
            position = batch.next_offset  # only control batches or compacted offsets: continue after them

    # -- fetching

    async def _fetch_all(self, wishes: Iterable[_Wish], terms: _Terms, deadline: float | None = None) -> _Results:
        """Fetch until each partition has records or a final error."""
        results = _Results()
        pending = {wish.partition: wish for wish in wishes}
        backoff = self._make_backoff()
        if deadline is None:
            deadline = asyncio.get_running_loop().time() + self._timeout_s + terms.max_wait_s
        try:
            async with timeout_at(deadline):
                while pending:
                    results.failures.clear()
                    await self._ask_leaders(pending.values(), terms, results)
                    pending = {
                        one: wish
                        for one, wish in pending.items()
                        if one not in results.fetched and one not in results.errors
                    }
                    if results.failures:
                        await self._leaders.refresh(f"Fetch: {next(iter(results.failures.values()))}")
                        await asyncio.sleep(backoff.next())
        except TimeoutError:
            for one in pending:
                failure = results.failures.get(one, RequestTimedOut(f"{one}: no answer"))
                late = results.errors[one] = self._time_out(one, failure)
                late.__cause__ = failure
        return results

    async def _ask_leaders(self, wishes: Iterable[_Wish], terms: _Terms, results: _Results) -> None:
        """Ask each leader once, all at the same time."""
        by_leader: dict[Broker, list[_Wish]] = defaultdict(list)
        for wish in wishes:
            try:
                by_leader[self._get_leader(wish.partition)].append(wish)
            except ConnectionLost as error:
                results.failures[wish.partition] = error
        if len(by_leader) == 1:
            ((leader, some),) = by_leader.items()
            await self._ask_leader(leader, some, terms, results)
            return
        async with asyncio.TaskGroup() as tasks:
            for leader, some in by_leader.items():
                tasks.create_task(self._ask_leader(leader, some, terms, results), name=f"fetch from {leader.id}")

    async def _ask_leader(self, leader: Broker, wishes: list[_Wish], terms: _Terms, results: _Results) -> None:
        """Send one request, and note what comes of it for each partition. Raises nothing."""
        context = f"Fetch at broker {leader}"
        try:
            answers = await self._request(leader, wishes, terms)
        except (BrokerError, ConnectionLost, ProtocolError) as error:
            noted = results.failures if _may_pass(error) else results.errors
            noted.update({wish.partition: error for wish in wishes})
            return
        for wish in wishes:
            try:
                await self._take(wish, answers.get(wish.cursor.key), context, results)
            except (BrokerError, ConnectionLost) as error:
                (results.failures if _may_pass(error) else results.errors)[wish.partition] = error
            except (CorruptMessageError, RecordTooLarge, ConfigError) as error:
                results.errors[wish.partition] = error

    async def _request(self, leader: Broker, wishes: list[_Wish], terms: _Terms) -> Mapping[Key, PartitionAnswer]:
        """Send a request and return the answer.

        A broker that does not wait for records is asked again, until there are some or the wait is over. Raises
        BrokerError, ConnectionLost, ProtocolError.
        """
        settings = FetchRequestSettings(
            min_bytes=terms.min_bytes,
            max_message_bytes=self._max_message_bytes,
            read_committed=self._read_committed,
            with_session=False,
            is_short=terms.is_short,
        )
        channel = self._channels.get((leader, settings))
        if channel is None:
            channel = self._channels[leader, settings] = self._protocol.open(leader, settings)
        loop = asyncio.get_running_loop()
        until = loop.time() + terms.max_wait_s
        while True:
            exchange = await channel.connect()
            answers = await self._exchange(exchange, wishes, terms)
            left_s = until - loop.time()
            if exchange.waits or left_s <= 0 or any(one.error_code or one.records for one in answers.values()):
                return answers
            await asyncio.sleep(min(_POLL_INTERVAL_S, left_s))

    async def _exchange(
        self, exchange: FetchExchange, wishes: list[_Wish], terms: _Terms
    ) -> Mapping[Key, PartitionAnswer]:
        asks = {wish.cursor.key: wish for wish in wishes}
        exchange.write(asks, None, max_bytes=self._max_message_bytes, wait_ms=int(terms.max_wait_s * 1000))
        answer = await exchange.send(timeout_s=self._request_timeout_s + terms.max_wait_s)
        assert answer is not None, "there is no fetch session that a broker could lose"
        return {one.key: one for one in answer.partitions()}

    async def _take(self, wish: _Wish, answer: PartitionAnswer | None, context: str, results: _Results) -> None:
        """Decode a partition's part of an answer.

        If it ends within the first record, the partition is asked again, for more.
        """
        context = f"{context} for {wish.partition} from {wish.offset}"
        if answer is None:
            raise ConnectionLost(f"{context}: the partition is missing from the answer")
        if answer.error_code:
            raise broker_error(answer.error_code, context)
        records = answer.records
        if records is None:
            batch = RecordBatch(partition=wish.partition, start=wish.offset, next_offset=wish.offset)
        else:
            decode = partial(self._decode, records, wish)
            size = len(records.data)
            found = await asyncio.to_thread(decode) if size > self._in_thread_bytes else decode()
            if found is None:
                wish.max_bytes = self._grow(wish, records)
                return
            batch = found
        wish.cursor.next_offset = batch.next_offset
        self._readers[wish.partition] = wish.cursor
        results.fetched[wish.partition] = FetchedBatch(batch=batch, high_watermark=answer.high_watermark)

    def _decode(self, records: RecordSet, wish: _Wish) -> RecordBatch | None:
        """Decode all whole messages of a record set.

        Returns None if it ends within the first one.
        """
        pieces = records.cut(slice_bytes=MAX_INT32, expansion=None)
        end = pieces[-1].end if pieces else len(records.data)
        unit = records.first_unit_bytes()
        if unit is None or unit > len(records.data):
            return None
        # with an impossible first size there is no piece, and the decoder tells the reason
        whole = Piece(0, end, wish.offset, compressed=False)
        batch = records.decode(whole, partition=wish.partition, start=wish.offset, limits=self._limits)
        return batch if batch.next_offset > wish.offset else None

    def _grow(self, wish: _Wish, records: RecordSet) -> int:
        """Return the next fetch size, after the last one was smaller than the first unit.

        Raises RecordTooLarge if that exceeds ``max_message_bytes``.
        """
        unit = records.first_unit_bytes()
        if wish.max_bytes >= self._max_message_bytes or (unit or 0) > self._max_message_bytes:
            raise RecordTooLarge(wish.partition, wish.offset, self._max_message_bytes, unit)
        return min(max(wish.max_bytes * 2, unit or 0), self._max_message_bytes)

    def _wish(self, partition: TopicPartition, offset: int, max_bytes: int) -> _Wish:
        reader = self._readers.get(partition)
        if reader is None or reader.next_offset != offset:
            reader = _Reader((partition.topic, partition.partition.number))
        return _Wish(partition, reader, offset, min(max_bytes, self._max_message_bytes))

    # --

    def _get_leader(self, partition: TopicPartition) -> Broker:
        """Return a partition's leader. Raises ConnectionLost if none is known."""
        leader = self._leaders.find_leader(partition)
        if leader is None:
            raise ConnectionLost(f"{partition}: no leader is known")
        return leader

    def _follow(self, topics: Collection[str]) -> None:
        if self._follow_topics is not None and not self._followed.issuperset(topics):
            self._followed |= frozenset(topics)
            self._follow_topics(self._followed)

    def _make_backoff(self) -> Backoff:
        return Backoff(initial_s=0.05, maximum_s=2.0, random=self._random)

    def _time_out(self, partition: TopicPartition, failure: ConsumerdError) -> RequestTimedOut:
        return RequestTimedOut(f"{partition}: no answer within {self._timeout_s:g} s: {failure}")


def _may_pass(error: ConsumerdError) -> bool:
    """Return whether a retry can help."""
    return isinstance(error, ConnectionLost) or (isinstance(error, BrokerError) and error.retriable)
