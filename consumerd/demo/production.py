# SPDX-License-Identifier: Apache-2.0
"""Sends the demo's events at their rate, and notes acknowledged records.

Each service has a producer with its own codec. The ledger has the acknowledged records; brokers of Kafka 0.6 and 0.7
acknowledge only that they have worked on a request (``client.legacy_producer``).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Final, TypeAlias

from consumerd.access.address import ClusterAddress
from consumerd.client.delivery import RecordMetadata
from consumerd.client.opening import open_producer
from consumerd.client.producer import Producer
from consumerd.client.producer_settings import ProducerSettings
from consumerd.demo.ledger import ProducedRecords, RecordPlace
from consumerd.demo.stream import Event, Service
from consumerd.model import PartitionKey
from consumerd.wire.compression import Codec

_TICK_S: Final = 0.02
_LINGER_S: Final = 0.05
_CLOSE_TIMEOUT_S: Final = 1.0
"""Time limit, in seconds, of closing the producers.

In a successful run all records are acknowledged before; in a failed one, the rest does not matter.
"""

Producers = Mapping[Service, Producer]

_Waiting: TypeAlias = "asyncio.Queue[tuple[Event, Awaitable[RecordMetadata]] | None]"


class Production:
    """Producers of all services of the demo.

    They send ``per_second`` events per second, and pause at the share of all events that :meth:`allow` has set (at
    first none).
    """

    def __init__(
        self,
        events: Sequence[Event],
        producers: Producers,
        ledger: ProducedRecords,
        *,
        per_second: float,
        now: Callable[[], float],
    ) -> None:
        self._events = events
        self._producers = producers
        self._ledger = ledger
        self._per_second = per_second
        self._now = now
        self._allowed = 0
        self._more = asyncio.Event()

    def allow(self, share: float) -> None:
        """Allow the producers to send up to this share (0 to 1) of all events."""
        self._allowed = max(self._allowed, round(share * len(self._events)))
        self._more.set()

    async def run(self) -> None:
        """Send all events at the given rate; return when brokers have acknowledged them.

        Pauses, without a timeout, when the share given to :meth:`allow` is sent. Raises the producer's error for a
        record that was not written, and AcknowledgedTwice for two records at one offset.
        """
        # bounded by the producers' buffers of unacknowledged records
        waiting: dict[Service, _Waiting] = {service: asyncio.Queue() for service in self._producers}
        async with asyncio.TaskGroup() as tasks:
            for service, queue in waiting.items():
                tasks.create_task(self._note(queue), name=f"acknowledgements of {service.name}")
            sent = 0
            tick = self._now()
            due = 0.0
            while sent < len(self._events):
                if sent >= self._allowed:
                    self._more.clear()
                    await self._more.wait()
                    tick, due = self._now(), 0.0
                now = self._now()
                due += (now - tick) * self._per_second
                tick = now
                until = min(sent + int(due), self._allowed)
                due -= until - sent
                for event in self._events[sent:until]:
                    acknowledged = await self._producers[event.service].enqueue(
                        event.topic, event.value, key=event.key, timestamp_ms=event.timestamp_ms
                    )
                    waiting[event.service].put_nowait((event, acknowledged))
                sent = until
                await asyncio.sleep(_TICK_S)
            for service, producer in self._producers.items():
                await producer.flush()
                waiting[service].put_nowait(None)

    async def _note(self, waiting: _Waiting) -> None:
        while (one := await waiting.get()) is not None:
            event, acknowledged = one
            written = await acknowledged
            partition = PartitionKey(written.partition, written.broker)
            self._ledger.note(RecordPlace(written.topic, partition, written.offset), event.key, event.value)


@asynccontextmanager
async def open_producers(address: ClusterAddress, services: Sequence[Service]) -> AsyncIterator[Producers]:
    """Run a producer for each service while the block runs; yield them by service.

    Every producer asks brokers for acknowledgements. Raises ConfigError, CoordinationError, ConnectionLost.
    """
    async with AsyncExitStack() as stack:
        producers: dict[Service, Producer] = {}
        for service in services:
            settings = ProducerSettings(
                codec=Codec[service.codec.upper()], linger_s=_LINGER_S, close_timeout_s=_CLOSE_TIMEOUT_S
            )
            producers[service] = await stack.enter_async_context(
                open_producer(replace(address, client_id=f"demo-{service.name}"), settings=settings)
            )
        yield producers
