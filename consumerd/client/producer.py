# SPDX-License-Identifier: Apache-2.0
"""The producer: records in, acknowledgements out.

One :class:`Producer` for both of Kafka's modes: ``await producer.send(...)`` returns once the record is acknowledged (sync),
``await producer.enqueue(...)`` once it is buffered (async), with its :class:`~consumerd.client.delivery.Delivery`. Records are
batched by partition, in the order of the calls, and sent by ``client.sender``, which owns retries.

- Nothing is buffered beyond ``buffer_bytes``: calls wait for room, first come first served, ``max_block_s`` at most.
- A topic that is not there is asked for, which makes brokers with ``auto.create.topics.enable`` create it, and waited for.
  One that nobody uses any more is not asked about: naming it would bring it back after somebody has deleted it.
- A call that is cancelled before its record is buffered leaves nothing behind. A ``send`` that is cancelled afterwards waits no
  more; the record goes its way and may be written.
- :meth:`Producer.close` (and the end of ``async with``, whatever ended the block) flushes for ``close_timeout_s`` at most;
  what is not acknowledged by then is given up. With acks 0 it waits until brokers have worked on what they were sent.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

import structlog

from consumerd.aio.tasks import unless
from consumerd.aio.timeouts import timeout, timeout_at
from consumerd.client.accumulator import Accumulator, Batch, PartitionQueue, wire_size
from consumerd.client.delivery import Delivery, RecordMetadata, wait_settled
from consumerd.client.partitioner import PARTITIONERS, Candidates, Partitioner
from consumerd.client.produce_handler import ProduceConnections, ProduceRequests
from consumerd.client.producer_counts import ProducerCounts
from consumerd.client.producer_hooks import (
    Encoder,
    EventHandler,
    ProducerHooks,
    ProducerRecord,
    encode_nothing,
    encode_text,
)
from consumerd.client.producer_settings import ProducerSettings
from consumerd.client.room import Room
from consumerd.client.sender import ProduceSender
from consumerd.client.topics import TopicDirectory
from consumerd.cluster.view import ClusterView, TopicView
from consumerd.errors import BufferFull, OversizedRecord, ProduceError, ProducerClosed, TopicMissing
from consumerd.model import TopicPartition, find_topic_fault
from consumerd.telemetry.wording import counted
from consumerd.wire.errorcodes import ErrorCode
from consumerd.wire.modern.building import NewRecord
from consumerd.wire.records import NO_TIMESTAMP, Headers

DEFAULT_SETTINGS: Final = ProducerSettings()

_TOPIC_IDLE_S: Final = 300.0
"""A topic that was not used for so long, and at most for twice as long, is forgotten; as Java's producer does."""
_TURN_BYTES: Final = 64 << 10
"""What a caller in a tight loop may buffer before others have a turn, some 2 ms: several small batches then share a request."""
_MOST_TIMESTAMP_MS: Final = (1 << 62) - 1

_HOPELESS: Final = frozenset({ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.TOPIC_AUTHORIZATION_FAILED})


@dataclass(frozen=True, slots=True)
class _Route:
    """A topic as calls need it: the queue of each partition, by its number, and what a partitioner chooses from."""

    queues: tuple[PartitionQueue, ...]
    candidates: Candidates

    def get_queue(self, number: int) -> PartitionQueue:
        """Return a partition's queue. Raises TopicMissing."""
        if 0 <= number < len(self.queues):
            return self.queues[number]
        topic = self.candidates.topic
        raise TopicMissing(
            f"{topic}/{number}: no such partition; {topic} has {len(self.queues)}, from 0 on",
            partition=TopicPartition.modern(topic, number),
        )


class Producer:
    """Writes records to topics; ``async with`` runs it. For use on one event loop, by any number of tasks.

    ``client.opening`` makes one from addresses. ``now`` is a monotonic clock in seconds, ``wall_ms`` the calendar's in ms,
    for records that come without a time. ``partitioner`` belongs to this producer alone; ``handler`` sends in the place of
    :class:`~consumerd.client.produce_handler.ProduceRequests`.
    """

    def __init__(
        self,
        connections: ProduceConnections,
        directory: TopicDirectory,
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
    ) -> None:
        self.settings = settings
        self._directory = directory
        self._now = now
        self._wall_ms = wall_ms
        self._partitioner = partitioner or PARTITIONERS["murmur2"](random, now)
        self._encode_key = _checked(key_encoder)
        self._encode_value = _checked(value_encoder)
        self._hooks = hooks or ProducerHooks()
        self._watched = _watches_enqueuing(self._hooks)
        self._accumulator = Accumulator(
            batch_bytes=settings.batch_bytes, linger_s=settings.linger_s, buffer_bytes=settings.buffer_bytes
        )
        self._room = Room(self._accumulator)
        self._handler = handler or ProduceRequests(connections, directory, settings)
        self._sender = ProduceSender(
            self._accumulator,
            self._room,
            directory,
            connections,
            self._handler,
            self._partitioner,
            self._hooks,
            settings,
            now=now,
            random=random,
        )
        self._routes: dict[str, _Route] = {}
        self._queues: dict[str, list[PartitionQueue]] = {}
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
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self.close()
        finally:
            if isinstance(error, Exception):
                # the block's failure comes out as it is; the group would wrap it
                await self._tasks.__aexit__(None, None, None)
            else:
                await self._tasks.__aexit__(kind, error, traceback)

    @property
    def buffered_bytes(self) -> int:
        """What is on its way, in memory."""
        return self._accumulator.used_bytes

    def counts(self) -> ProducerCounts:
        """Return how it does."""
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
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers = (),
    ) -> RecordMetadata:
        """Write a record and return where it is, once it is acknowledged. See :meth:`enqueue` and ``Delivery``."""
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
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers = (),
    ) -> Coroutine[Any, Any, Delivery]:
        """Buffer a record, and return its delivery; to be awaited.

        ``value`` None is a tombstone. ``partition`` None leaves the choice to the partitioner, ``timestamp_ms`` None is the
        time of the call. Waits ``max_block_s`` at most. Cancel freely: then nothing was buffered.

        Raises TopicMissing, OversizedRecord, BufferFull, ProducerClosed, what an encoder raises, and TypeError or ValueError
        for a timestamp or headers that cannot be written.
        """
        enqueue = self._enqueue_watched if self._watched else self._enqueue
        return enqueue(topic, value, key, partition, timestamp_ms, headers)

    async def _enqueue_watched(
        self,
        topic: str,
        value: object,
        key: object,
        partition: int | None,
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
        partition: int | None,
        timestamp_ms: int | None,
        headers: Headers,
    ) -> Delivery:
        """Encode, choose the partition, find room, buffer. The path of every record: quick where nothing is missing."""
        if self._since_turn_bytes >= self._turn_bytes:
            # a caller in a tight loop would let nobody send until the buffer is full; nothing of the record is held yet
            self._since_turn_bytes = 0
            await asyncio.sleep(0)
        key_bytes = None if key is None else self._encode_key(key)
        value_bytes = None if value is None else self._encode_value(value)
        if timestamp_ms is None:
            timestamp_ms = self._wall_ms()
        else:
            _check_timestamp(timestamp_ms)
        if headers:
            headers = _checked_headers(headers)
        size = wire_size(key_bytes, value_bytes, headers)
        if size > self.settings.max_request_bytes:
            raise OversizedRecord(
                f"{topic}: a record of {size} bytes, the limit is {self.settings.max_request_bytes}; raise max_request_bytes, "
                "and the broker's message.max.bytes (or the topic's max.message.bytes) with it, or write smaller records"
            )
        route = self._routes.get(topic)
        if route is None:
            route = await self._find_route(topic)
        queue = self._choose(route, key, key_bytes, partition, size)
        if not self._room.take(size):
            await self._wait_room(queue.partition, size)
            self._follow((topic,))  # it may have been forgotten meanwhile
        if self._closing.is_set():
            self._room.give_back(size)
            raise _closed(topic)
        record = NewRecord(key=key_bytes, value=value_bytes, timestamp=timestamp_ms, headers=headers)
        return self._append(queue, record, size)

    def _append(self, queue: PartitionQueue, record: NewRecord, size: int) -> Delivery:
        batch = self._accumulator.append(queue, record, size, self._now())
        index = len(batch.records) - 1
        self._since_turn_bytes += size
        if index == 0 or batch.sealed:
            self._sender.wake()
        return Delivery(batch, index)

    def _choose(
        self, route: _Route, key: object, key_bytes: bytes | None, partition: int | None, size: int
    ) -> PartitionQueue:
        if partition is not None:
            return route.get_queue(partition)
        candidates = route.candidates
        queue = route.get_queue(self._partitioner.choose(key, key_bytes, candidates))
        if key_bytes is None and self._accumulator.opens_batch(queue, size):
            # whoever is bound to no partition leaves it with a full batch, not with one record in the next
            self._partitioner.batch_closed(candidates.topic, queue.partition.partition.number)
            queue = route.get_queue(self._partitioner.choose(key, key_bytes, candidates))
        return queue

    async def _wait_room(self, partition: TopicPartition, size: int) -> None:
        # what is open goes out: it holds the room that is waited for
        self._accumulator.seal_all()
        self._sender.wake()
        try:
            async with timeout(self.settings.max_block_s):
                admitted = await self._room.wait(size)
        except TimeoutError:
            raise BufferFull(
                f"{partition}: no room for a record of {size} bytes within {self.settings.max_block_s:g} s; "
                f"{self._accumulator.used_bytes} of {self.settings.buffer_bytes} bytes are on their way. Brokers take records "
                "more slowly than they come: write less, add partitions, or raise buffer_bytes or max_block_s",
                partition=partition,
            ) from None
        if not admitted:
            raise _closed(str(partition))

    # -- topics

    async def _find_route(self, topic: str) -> _Route:
        if self._closing.is_set():
            raise _closed(topic)
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
                if topic not in self._routes:
                    self._forget((topic,))

    async def _wait_route(self, topic: str) -> _Route:
        try:
            async with timeout(self.settings.max_block_s):
                found = await unless(
                    self._closing, self._directory.views.wait(lambda view: _settled(view.topics.get(topic)))
                )
        except TimeoutError:
            waited = f"within {self.settings.max_block_s:g} s"
            if (failure := self._directory.failure) is not None:
                raise TopicMissing(
                    f"{topic}: no broker could be asked about it {waited}; check the addresses and that they are up: {failure}"
                ) from failure
            raise TopicMissing(
                f"{topic}: no such topic with a leader {waited}; create it, or let brokers do so (auto.create.topics.enable)"
            ) from None
        if found is None:
            raise _closed(topic)
        known = found.topics[topic]
        if not known.partitions:
            raise TopicMissing(f"{topic}: the broker answered error {known.error} ({ErrorCode(known.error).name})")
        return self._make_route(topic, known, found)

    def _follow(self, topics: Iterable[str]) -> None:
        """Have topics kept in the view."""
        if not self._followed.issuperset(topics):
            self._followed.update(topics)
            self._directory.follow(self._followed)

    def _forget(self, topics: Iterable[str]) -> None:
        """Have topics kept out of the view, but for those that records or callers wait for."""
        busy = {batch.partition.topic for batch in self._accumulator.unfinished()}
        if idle := self._followed.intersection(topics) - busy - self._awaited.keys():
            self._followed -= idle
            self._directory.follow(self._followed)

    def _make_route(self, topic: str, known: TopicView, view: ClusterView) -> _Route:
        # numbers have no holes; a topic that was made again may have fewer than before, whose queues are kept
        count = len(known.partitions)
        queues = self._queues.setdefault(topic, [])
        queues += [PartitionQueue(TopicPartition.modern(topic, number)) for number in range(len(queues), count)]
        usable = tuple(queues[:count])
        available: Sequence[int] = [
            queue.partition.partition.number for queue in usable if view.find_leader(queue.partition)
        ]
        if len(available) == count:
            available = range(count)  # in which a number is found at once
        route = self._routes[topic] = _Route(usable, Candidates(topic=topic, count=count, available=available))
        return route

    async def _follow_view(self) -> None:
        """Take note of each change of the cluster, and forget topics that are out of use, until cancelled."""
        seen = self._directory.views.value
        used: set[str] = set()
        look_at = self._now() + _TOPIC_IDLE_S
        while True:
            used.update(self._routes)
            self._routes.clear()
            self._sender.wake()
            if self._now() >= look_at:
                self._forget(self._followed - used)
                used.clear()
                look_at = self._now() + _TOPIC_IDLE_S
            with contextlib.suppress(TimeoutError):
                async with timeout(look_at - self._now()):
                    seen = await self._directory.views.wait(lambda view, seen=seen: view is not seen)  # type: ignore[misc]  # a default binds it

    # -- the end

    async def flush(self, timeout_s: float | None = None) -> None:
        """Wait until all that was buffered before this call is acknowledged or given up; failures are the deliveries'.

        Bounded by the delivery timeout, and one request's. Raises TimeoutError after ``timeout_s``. Cancel freely.
        """
        self._accumulator.seal_all()
        self._sender.wake()
        async with timeout(timeout_s):
            for batch in self._accumulator.unfinished():
                await wait_settled(batch)

    async def close(self, timeout_s: float | None = None) -> None:
        """Take no more records, flush, and give up what is not acknowledged in time; None: ``close_timeout_s``.

        A second call waits for the first. Bounded by the time given, and by what requests take to be cancelled.
        """
        if self._ending:
            await self._done.wait()
            return
        self._ending = True
        deadline = asyncio.get_running_loop().time() + (
            self.settings.close_timeout_s if timeout_s is None else timeout_s
        )
        try:
            with contextlib.suppress(TimeoutError):  # what is left then is given up, and its deliveries say so
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
                # whoever waits for it runs after what follows, and must not wait on if a hook fails in it
                self._done.set()
                self._sender.give_up(_explain_giving_up)
                self._hooks.closed()

    async def _send_last(self) -> None:
        """Send the hooks' last records, and all that is buffered. Cancel freely."""
        if not self._running or any(task.done() for task in self._running):
            return  # never begun, or the sender has failed: the block that owns it says why
        try:
            for record in self._hooks.last_batch_before_close():
                await self._enqueue(
                    record.topic, record.value, record.key, record.partition, record.timestamp_ms, record.headers
                )
        except ProduceError as error:
            self._log.warning("last_batch_not_buffered", reason=str(error))
        self._refuse()
        await self.flush()
        await self._handler.drain()

    def _refuse(self) -> None:
        self._closing.set()
        self._room.close()


def _watches_enqueuing(hooks: ProducerHooks) -> bool:
    kind = type(hooks)
    return (
        kind.before_enqueue is not ProducerHooks.before_enqueue or kind.after_enqueue is not ProducerHooks.after_enqueue
    )


def _checked(encoder: Encoder) -> Encoder:
    """Return an encoder that raises TypeError where this one does not return bytes."""
    if encoder in (encode_nothing, encode_text):
        return encoder

    def encode(data: object) -> bytes:
        encoded: object = encoder(data)
        if not isinstance(encoded, bytes):
            raise TypeError(f"expected the encoder to return bytes, got {type(encoded).__name__}")
        return encoded

    return encode


def _check_timestamp(timestamp_ms: object) -> None:
    """Raise TypeError or ValueError for what is no time of a record; NO_TIMESTAMP is one."""
    if not isinstance(timestamp_ms, int):
        raise TypeError(f"timestamp_ms: expected an int, got {type(timestamp_ms).__name__}")
    if not NO_TIMESTAMP <= timestamp_ms <= _MOST_TIMESTAMP_MS:
        raise ValueError(f"timestamp_ms: expected milliseconds since the epoch, got {timestamp_ms}")


def _checked_headers(headers: Iterable[tuple[object, object]]) -> Headers:
    """Return headers as they are now. Raises TypeError or ValueError for what is none."""
    found: list[tuple[str, bytes | None]] = []
    for name, value in headers:
        if not isinstance(name, str):
            raise TypeError(f"headers: expected names that are str, got {type(name).__name__}")
        if not (value is None or isinstance(value, bytes)):
            raise TypeError(f"header {name!r}: expected bytes or None, got {type(value).__name__}")
        name.encode()  # what is no text raises here, and not while a batch is built
        found.append((name, value))
    return tuple(found)


def _settled(topic: TopicView | None) -> bool:
    """Whether a topic can be written to, or never will be."""
    return topic is not None and (bool(topic.partitions) or topic.error in _HOPELESS)


def _explain_giving_up(batch: Batch) -> ProducerClosed:
    tried = f"tried {batch.attempts} times, they may have been written" if batch.attempts else "they were not sent"
    return ProducerClosed(
        f"{batch.partition}: {counted(len(batch.to_send), 'record')} not acknowledged when the producer was closed; {tried}. "
        "Give close() more time (close_timeout_s)",
        partition=batch.partition,
    )


def _closed(topic: str) -> ProducerClosed:
    return ProducerClosed(
        f"{topic}: the producer is closed and takes no more records; write before close(), or make another"
    )
