# SPDX-License-Identifier: Apache-2.0
"""Producer: writes records to topics, and reports their acknowledgement.

One :class:`Producer` has both of Kafka's modes. ``await producer.send(...)`` returns when the record is acknowledged
(sync). ``await producer.enqueue(...)`` returns when it is buffered (async), with its
:class:`~consumerd.client.delivery.Delivery`. Records are batched by partition in the order of the calls, and sent by
``client.sender``, which owns retries. With other parts it writes to Kafka 0.6 and 0.7 (``client.legacy_producer``).

- Memory: at most ``buffer_bytes`` are buffered. Calls wait for memory in their order, at most ``max_block_s``.
- Topics: a missing topic is requested, so that brokers with ``auto.create.topics.enable`` create it, and waited for. A
  topic that is no longer used is not requested any more, since that would create it again after its deletion.
- Cancellation: a call that is cancelled before its record is buffered has no effect. A ``send`` that is cancelled later
  stops waiting; the record may still be written.
- Closing: :meth:`Producer.close`, and the end of ``async with`` after any exit, flush for at most ``close_timeout_s``.
  Records that are not acknowledged by then fail. With acks 0, closing waits until brokers have processed what was sent.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping
from types import TracebackType
from typing import Any, Final, Self

import structlog

from consumerd.access.principal import OUR_PRINCIPAL, Principal
from consumerd.aio.tasks import unless
from consumerd.aio.timeouts import timeout, timeout_at
from consumerd.client.accumulator import Accumulator, PartitionQueue, wire_size
from consumerd.client.delivery import Delivery, RecordMetadata, wait_settled
from consumerd.client.partitioner import PARTITIONERS, Partitioner
from consumerd.client.produce_handler import ProduceConnections, ProduceRequests
from consumerd.client.producer_actions import TransactionOffsets
from consumerd.client.producer_checks import (
    check_timestamp,
    checked_encoder,
    checked_headers,
    explain_closed,
    explain_giving_up,
    explain_unusable,
    watches_enqueuing,
)
from consumerd.client.producer_counts import ProducerCounts
from consumerd.client.producer_hooks import (
    Encoder,
    EventHandler,
    ProducerHooks,
    ProducerRecord,
    encode_nothing,
)
from consumerd.client.producer_rules import ModernProducerRules, ProducerRules
from consumerd.client.producer_settings import ProducerSettings
from consumerd.client.producer_state import ProducerState
from consumerd.client.room import Room
from consumerd.client.routes import Route, Routes
from consumerd.client.sender import ProduceSender
from consumerd.client.topics import MetadataDirectory
from consumerd.client.transaction_requests import TransactionRequests
from consumerd.client.transactions import Transactions
from consumerd.cluster.view import TopicView
from consumerd.errors import BufferFull, ConfigError, ConsumerdError, LocalProtocolError, ProduceError, TopicMissing
from consumerd.model import PartitionKey, TopicPartition, find_topic_fault
from consumerd.wire.errorcodes import ErrorCode
from consumerd.wire.record_fields import Headers
from consumerd.wire.records import NewRecord

DEFAULT_SETTINGS: Final = ProducerSettings()

_TOPIC_IDLE_S: Final = 300.0
"""Time without use after which a topic is forgotten, as in Java's producer; at most twice as long, in seconds."""
_TURN_BYTES: Final = 64 << 10
"""Bytes that a tight loop may buffer before other tasks run, about 2 ms; lets small batches share a request."""

_HOPELESS: Final = frozenset({ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.TOPIC_AUTHORIZATION_FAILED})


class Producer:
    """Writes records to topics while its ``async with`` block runs.

    Any number of tasks of one event loop may use it. ``client.opening`` creates a producer from addresses.

    Args:
        directory: Topics, their partitions and leaders.
        now: Monotonic clock, in seconds.
        wall_ms: Calendar clock, in ms since the epoch, for records without a timestamp.
        random: Returns floats in [0, 1).
        partitioner: Chooses partitions, for this producer only. The default is ``murmur2``.
        key_encoder: Turns keys into bytes; the default accepts bytes only.
        value_encoder: Turns values into bytes; the default accepts bytes only.
        hooks: Called at each stage of a record.
        handler: Sends batches instead of :class:`~consumerd.client.produce_handler.ProduceRequests`.
        rules: Records and partitions of the brokers' generation; the default is for Kafka 0.8 and later.
        principal: Our identity at the brokers, for advice.
    """

    def __init__(
        self,
        connections: ProduceConnections,
        directory: MetadataDirectory,
        *,
        now: Callable[[], float],
        wall_ms: Callable[[], int],
        random: Callable[[], float],
        settings: ProducerSettings = DEFAULT_SETTINGS,
        partitioner: Partitioner | None = None,
        key_encoder: Encoder = encode_nothing,
        value_encoder: Encoder = encode_nothing,
        hooks: ProducerHooks | None = None,
        handler: EventHandler | None = None,
        rules: ProducerRules | None = None,
        principal: Principal = OUR_PRINCIPAL,
    ) -> None:
        self._principal = principal
        self.settings = settings
        self._rules = rules or ModernProducerRules(settings.max_request_bytes)
        self._directory = directory
        self._now = now
        self._wall_ms = wall_ms
        self._partitioner = partitioner or PARTITIONERS["murmur2"](random, now)
        self._encode_key = checked_encoder(key_encoder)
        self._encode_value = checked_encoder(value_encoder)
        self._hooks = hooks or ProducerHooks()
        self._watched = watches_enqueuing(self._hooks)
        self._accumulator = Accumulator(
            batch_bytes=settings.batch_bytes, linger_s=settings.linger_s, buffer_bytes=settings.buffer_bytes
        )
        self._room = Room(self._accumulator)
        if handler is not None and settings.is_idempotent:
            raise ConfigError("handler: enable_idempotence and transactional_id need the producer's own requests")
        self._handler = handler or ProduceRequests(connections, directory, settings)
        self._transactions: Transactions | None = None
        if settings.is_idempotent:
            self._transactions = Transactions(
                ProducerState(settings.transactional_id),
                TransactionRequests(connections, directory, settings, random=random),
                directory,
                settings,
                wake_sender=self._wake_sender,
                random=random,
            )
        self._sender = ProduceSender(
            self._accumulator,
            self._room,
            directory,
            connections,
            self._handler,
            self._partitioner,
            self._hooks,
            settings,
            rules=self._rules,
            now=now,
            random=random,
            transactions=self._transactions,
            principal=principal,
        )
        self._routes = Routes(self._rules)
        self._followed: set[str] = set()
        self._awaited: Counter[str] = Counter()
        self._tasks = asyncio.TaskGroup()
        self._running: list[asyncio.Task[None]] = []
        self._closing = asyncio.Event()
        self._done = asyncio.Event()
        self._ending = False
        self._since_turn_bytes = 0
        self._turn_bytes = max(settings.batch_bytes, _TURN_BYTES)
        self._log = structlog.get_logger(__name__)

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self._running = [
            self._tasks.create_task(self._sender.run(), name="send batches"),
            self._tasks.create_task(self._follow_view(), name="follow the cluster"),
        ]
        if self._transactions is not None:
            self._running.append(self._tasks.create_task(self._transactions.run(), name="keep the producer id"))
        return self

    def _wake_sender(self) -> None:
        self._sender.wake()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self.close()
        finally:
            if isinstance(error, Exception):
                # raise the block's own exception, which the task group would wrap in an exception group
                await self._tasks.__aexit__(None, None, None)
            else:
                await self._tasks.__aexit__(kind, error, traceback)

    def counts(self) -> ProducerCounts:
        """Return the producer's present counters, for metrics."""
        sender = self._sender
        return ProducerCounts(
            written_records=sender.written_records,
            written_bytes=sender.written_bytes,
            failed_records=sender.failed_records,
            requests=sender.requests,
            retries=sender.retries,
            open_records=sum(len(batch.to_send) for batch in self._accumulator.unfinished()),
            open_bytes=self._accumulator.used_bytes,
            waiting_callers=self._room.waiting,
        )

    # -- records in

    async def send(
        self,
        topic: str,
        value: object,
        *,
        key: object = None,
        partition: int | PartitionKey | None = None,
        timestamp_ms: int | None = None,
        headers: Headers = (),
    ) -> RecordMetadata:
        """Write a record; return its partition and offset after the broker's acknowledgement.

        Arguments and exceptions are those of :meth:`enqueue`; also raises ProduceError if the record was not written.
        If cancelled after the record was buffered, the record may still be written.
        """
        delivery = await self.enqueue(
            topic, value, key=key, partition=partition, timestamp_ms=timestamp_ms, headers=headers
        )
        return await delivery

    def enqueue(
        self,
        topic: str,
        value: object,
        *,
        key: object = None,
        partition: int | PartitionKey | None = None,
        timestamp_ms: int | None = None,
        headers: Headers = (),
    ) -> Coroutine[Any, Any, Delivery]:
        """Buffer a record; when awaited, return its :class:`~consumerd.client.delivery.Delivery`.

        Waits at most ``max_block_s`` for the topic and for memory. If cancelled, nothing is buffered.

        Args:
            value: Value, which the encoder turns into bytes; None is a tombstone.
            key: Key, which the encoder turns into bytes; None for no key.
            partition: Partition number, or in Kafka 0.6 and 0.7 its key, BROKER-N; None lets the partitioner choose.
            timestamp_ms: In ms since the epoch; None is the time of the call.

        Raises TopicMissing, OversizedRecord, BufferFull, ProducerClosed, exceptions of an encoder, and TypeError or
        ValueError for a timestamp or headers that cannot be encoded.
        """
        enqueue = self._enqueue_watched if self._watched else self._enqueue
        return enqueue(topic, value, key, partition, timestamp_ms, headers)

    async def _enqueue_watched(
        self,
        topic: str,
        value: object,
        key: object,
        partition: int | PartitionKey | None,
        timestamp_ms: int | None,
        headers: Headers,
    ) -> Delivery:
        record = self._hooks.before_enqueue(
            ProducerRecord(
                topic=topic, value=value, key=key, partition=partition, timestamp_ms=timestamp_ms, headers=headers
            )
        )
        added = False
        try:
            delivery = await self._enqueue(
                record.topic, record.value, record.key, record.partition, record.timestamp_ms, record.headers
            )
            added = True
        finally:
            self._hooks.after_enqueue(record, added=added)
        return delivery

    async def _enqueue(
        self,
        topic: str,
        value: object,
        key: object,
        partition: int | PartitionKey | None,
        timestamp_ms: int | None,
        headers: Headers,
    ) -> Delivery:
        """Encode a record, choose its partition, reserve memory, and append it.

        The hot path of every record.
        """
        if self._since_turn_bytes >= self._turn_bytes:
            # A tight loop of calls never yields: without this, nothing would be sent before the buffer is full. A
            # cancellation here is harmless, as nothing of the record is held yet.
            self._since_turn_bytes = 0
            await asyncio.sleep(0)
        key_bytes = None if key is None else self._encode_key(key)
        value_bytes = None if value is None else self._encode_value(value)
        if timestamp_ms is None:
            timestamp_ms = self._wall_ms()
        else:
            check_timestamp(timestamp_ms)
        if headers:
            headers = checked_headers(headers)
        size = wire_size(key_bytes, value_bytes, headers)
        self._rules.check(topic, value_bytes, headers, size)
        route = self._routes.by_topic.get(topic)
        if route is None:
            route = await self._find_route(topic)
        queue = self._choose(route, key, key_bytes, partition, size)
        if not self._room.take(size):
            await self._wait_room(queue.partition, size)
            self._follow((topic,))  # during the wait it may have been forgotten as unused
        if self._closing.is_set():
            self._room.give_back(size)
            raise explain_closed(topic)
        if self._transactions is not None:
            self._check_open(self._transactions, size)
        record = NewRecord(value_bytes, key_bytes, timestamp_ms, headers)
        return self._append(queue, record, size)

    def _append(self, queue: PartitionQueue, record: NewRecord, size: int) -> Delivery:
        batch = self._accumulator.append(queue, record, size, self._now)
        index = len(batch.records) - 1
        self._since_turn_bytes += size
        if index == 0 or batch.sealed:
            if index == 0 and self._transactions is not None:
                self._transactions.state.want(queue.partition)
                self._transactions.wake()
            self._sender.wake()
        return Delivery(batch, index)

    def _check_open(self, transactions: Transactions, size: int) -> None:
        """Raise the error, and release the memory, if records may not be written now."""
        try:
            transactions.state.check_open()
        except ConsumerdError:
            self._room.give_back(size)
            raise

    def _choose(
        self, route: Route, key: object, key_bytes: bytes | None, partition: int | PartitionKey | None, size: int
    ) -> PartitionQueue:
        if partition is not None:
            named = partition if isinstance(partition, PartitionKey) else PartitionKey(partition)
            return self._get_queue(route, route.by_key.get(named), named)
        candidates = route.candidates
        index = self._partitioner.choose(key, key_bytes, candidates)
        queue = route.find_chosen(index) or self._get_queue(route, None, PartitionKey(index))
        if key_bytes is None and self._accumulator.opens_batch(queue, size):
            # A record without a key that would begin a new batch goes to another partition instead. Otherwise each full
            # batch would be followed by one with a single record.
            self._partitioner.batch_closed(candidates.topic, queue.index)
            index = self._partitioner.choose(None, None, candidates)
            queue = route.find_chosen(index) or self._get_queue(route, None, PartitionKey(index))
        return queue

    def _get_queue(self, route: Route, queue: PartitionQueue | None, wanted: PartitionKey) -> PartitionQueue:
        """Return the queue. Raises TopicMissing if it is None."""
        if queue is None:
            partition = TopicPartition(route.candidates.topic, wanted)
            known = [one.partition.partition for one in route.queues]
            raise TopicMissing(
                f"{partition}: no such partition; {self._rules.explain_partition(partition.topic, known)}",
                partition=partition,
            )
        return queue

    async def _wait_room(self, partition: TopicPartition, size: int) -> None:
        # open batches hold the memory that this call waits for: send them
        self._accumulator.seal_all()
        self._sender.wake()
        try:
            async with timeout(self.settings.max_block_s):
                admitted = await self._room.wait(size)
        except TimeoutError:
            raise BufferFull(
                f"{partition}: no room for a record of {size} bytes within {self.settings.max_block_s:g} s; "
                f"{self._accumulator.used_bytes} of {self.settings.buffer_bytes} bytes are on their way. Brokers take "
                f"records "
                "more slowly than they come: write less, add partitions, or raise buffer_bytes or max_block_s",
                partition=partition,
            ) from None
        if not admitted:
            raise explain_closed(str(partition))

    # -- transactions

    @property
    def _transactional(self) -> Transactions:
        if self._transactions is None or self.settings.transactional_id is None:
            raise LocalProtocolError("the producer has no transactional_id, so it cannot write in transactions")
        return self._transactions

    async def init_transactions(self, timeout_s: float | None = None) -> None:
        """Get a producer id for the transactional id; fence earlier producers, and end their transactions.

        Call it once, before the first transaction. After an error that is not fatal it may be called again.

        Args:
            timeout_s: Time limit, in seconds; None for ``max_block_s``. The same holds for the other calls.

        Raises TransactionFailed, RequestTimedOut; LocalProtocolError without a transactional id.
        """
        await self._transactional.init(timeout_s)

    def begin_transaction(self) -> None:
        """Begin a transaction, to which all records belong until it is committed or aborted.

        Raises TransactionFailed if the producer has failed or is fenced, LocalProtocolError in a wrong order of calls.
        """
        self._transactional.state.begin()

    async def commit_transaction(self, timeout_s: float | None = None) -> None:
        """Flush, and commit the transaction: readers of committed records see its records.

        Raises TransactionFailed if a record was not written, after which the transaction must be aborted;
        ProducerFenced; DeliveryTimedOut if the outcome is unknown, after which the call must be repeated.
        """
        await self._transactional.commit(self.flush, timeout_s)

    async def abort_transaction(self, timeout_s: float | None = None) -> None:
        """Abort the transaction: its records are never visible to readers of committed records.

        Records that are not sent yet fail. Raises TransactionFailed, ProducerFenced; DeliveryTimedOut if there is no
        answer in time, after which the call must be repeated.
        """
        await self._transactional.abort(self.flush, timeout_s)

    async def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, int | tuple[int, str]],
        group_id: str,
        *,
        generation_id: int = -1,
        member_id: str = "",
        timeout_s: float | None = None,
    ) -> None:
        """Commit a consumer group's offsets with the transaction.

        Args:
            offsets: By partition the offset of the next record to read, or that and metadata of at most 4096
                characters. Each partition must exist in the cluster that is written to.
            generation_id: With ``member_id``, the producer's membership of the group, so that a former member's offsets
                are refused (brokers from 2.5 on).

        Raises TransactionFailed, after which the transaction must be aborted; ProducerFenced.
        """
        kept = {partition: one if isinstance(one, tuple) else (one, "") for partition, one in offsets.items()}
        await self._transactional.send_offsets(
            TransactionOffsets(group_id, kept, generation_id=generation_id, member_id=member_id), timeout_s
        )

    # -- topics

    async def _find_route(self, topic: str) -> Route:
        if self._closing.is_set():
            raise explain_closed(topic)
        if fault := find_topic_fault(topic):
            raise TopicMissing(f"no topic can have this name: {fault}")
        self._awaited[topic] += 1
        self._follow((topic,))
        try:
            return await self._wait_route(topic)
        finally:
            self._awaited[topic] -= 1
            if not self._awaited[topic]:
                del self._awaited[topic]
                if topic not in self._routes.by_topic:
                    self._forget((topic,))

    async def _wait_route(self, topic: str) -> Route:
        try:
            async with timeout(self.settings.max_block_s):
                found = await unless(
                    self._closing, self._directory.views.wait(lambda view: _settled(view.topics.get(topic)))
                )
        except TimeoutError:
            failure = self._directory.failure
            reason = self._rules.explain_missing(failure, f"within {self.settings.max_block_s:g} s")
            raise TopicMissing(f"{topic}: {reason}") from failure
        if found is None:
            raise explain_closed(topic)
        known = found.topics[topic]
        if not known.partitions:
            raise TopicMissing(explain_unusable(topic, known.error, self._principal))
        return self._routes.make(topic, known, found)

    def _follow(self, topics: Iterable[str]) -> None:
        """Add topics to the followed ones of the directory."""
        if not self._followed.issuperset(topics):
            self._followed.update(topics)
            self._directory.follow(self._followed)

    def _forget(self, topics: Iterable[str]) -> None:
        """Remove topics from the followed ones, unless records or callers wait for them."""
        busy = {batch.partition.topic for batch in self._accumulator.unfinished()}
        if idle := self._followed.intersection(topics) - busy - self._awaited.keys():
            self._followed -= idle
            self._directory.follow(self._followed)

    async def _follow_view(self) -> None:
        """Discard routes on each change of the cluster, and forget unused topics, until cancelled."""
        seen = self._directory.views.value
        used: set[str] = set()
        look_at = self._now() + _TOPIC_IDLE_S
        while True:
            used.update(self._routes.by_topic)
            self._routes.by_topic.clear()
            self._sender.wake()
            if self._now() >= look_at:
                self._forget(self._followed - used)
                used.clear()
                look_at = self._now() + _TOPIC_IDLE_S
            with contextlib.suppress(TimeoutError):
                async with timeout(look_at - self._now()):
                    # a default binds it
                    seen = await self._directory.views.wait(lambda view, seen=seen: view is not seen)  # type: ignore[misc]

    # -- the end

    async def flush(self, timeout_s: float | None = None) -> None:
        """Wait until all records buffered before this call are acknowledged or have failed.

        Failures are raised by the records' deliveries, not here. Takes at most the delivery timeout plus one request
        timeout. Can be cancelled.

        Args:
            timeout_s: Time limit, in seconds, after which TimeoutError is raised; None for none.
        """
        self._accumulator.seal_all()
        self._sender.wake()
        async with timeout(timeout_s):
            for batch in self._accumulator.unfinished():
                await wait_settled(batch)

    async def close(self, timeout_s: float | None = None) -> None:
        """Refuse further records, wait for acknowledgements, and fail records without one in time.

        A second call waits for the first one.

        Args:
            timeout_s: Time limit, in seconds, to which the time to cancel requests is added; None for
                ``close_timeout_s``.
        """
        if self._ending:
            await self._done.wait()
            return
        self._ending = True
        deadline = asyncio.get_running_loop().time() + (
            self.settings.close_timeout_s if timeout_s is None else timeout_s
        )
        try:
            with contextlib.suppress(TimeoutError):  # give_up() below fails what is left
                async with timeout_at(deadline):
                    await self._send_last()
        finally:
            self._refuse()
            for task in self._running:
                task.cancel()
            try:
                if self._running:
                    await asyncio.wait(self._running)
            finally:
                # set first: tasks that wait for it run after the next lines, and a hook in these may raise
                self._done.set()
                self._sender.give_up(explain_giving_up)
                self._hooks.closed()

    async def _send_last(self) -> None:
        """Send the last records of the hooks, and everything buffered. Can be cancelled."""
        if not self._running or any(task.done() for task in self._running):
            return  # never started, or the sender has failed, which the owning block raises
        try:
            for record in self._hooks.last_batch_before_close():
                await self._enqueue(
                    record.topic, record.value, record.key, record.partition, record.timestamp_ms, record.headers
                )
        except ProduceError as error:
            self._log.warning("last_batch_not_buffered", reason=str(error))
        if self._transactions is not None and self._transactions.is_open:
            # its records are void, and readers of committed records would wait for its end
            with contextlib.suppress(ConsumerdError):
                await self.abort_transaction()
        self._refuse()
        await self.flush()
        await self._handler.drain()

    def _refuse(self) -> None:
        self._closing.set()
        self._room.close()


def _settled(topic: TopicView | None) -> bool:
    """Return True if a topic can be written to, or has a permanent error."""
    return topic is not None and (bool(topic.partitions) or topic.error in _HOPELESS)
