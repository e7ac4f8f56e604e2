# SPDX-License-Identifier: Apache-2.0
"""Sends the stream at its rate, and enters acknowledged records into the ledger."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, Protocol, TypeAlias

from consumerd.client.delivery import RecordMetadata
from consumerd.demo.ledger import Ledger, RecordPlace
from consumerd.demo.stream import Event, Service

_TICK_S: Final = 0.02


class Outlet(Protocol):
    """One service's producer: the methods of ``client.producer.Producer`` that are used here."""

    async def enqueue(
        self, topic: str, value: object, *, key: object = None, timestamp_ms: int | None = None
    ) -> Awaitable[RecordMetadata]:
        """Accept a record, waiting while the buffer is full; await the result for its acknowledgement."""

    async def flush(self) -> None:
        """Return when all accepted records are acknowledged or given up."""


_Waiting: TypeAlias = "asyncio.Queue[tuple[Event, Awaitable[RecordMetadata]] | None]"


class Production:
    """All services together: a number of events per second, up to the allowed share."""

    def __init__(
        self,
        events: Sequence[Event],
        outlets: Mapping[Service, Outlet],
        ledger: Ledger,
        *,
        per_second: float,
        now: Callable[[], float],
    ) -> None:
        self._events = events
        self._outlets = outlets
        self._ledger = ledger
        self._per_second = per_second
        self._now = now
        self._allowed = 0
        self._more = asyncio.Event()

    def allow(self, share: float) -> None:
        """Allow the stream to continue up to this share of it (0 to 1)."""
        self._allowed = max(self._allowed, round(share * len(self._events)))
        self._more.set()

    async def run(self) -> None:
        """Send all events; return when they are acknowledged.

        Unbounded: others decide on the rate and the allowed share. Raises the producer's error for a record that was
        not written, and AcknowledgedTwice.
        """
        # bounded by the producers' buffers of unacknowledged records
        waiting: dict[Service, _Waiting] = {service: asyncio.Queue() for service in self._outlets}
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
                    acknowledged = await self._outlets[event.service].enqueue(
                        event.topic, event.value, key=event.key, timestamp_ms=event.timestamp_ms
                    )
                    waiting[event.service].put_nowait((event, acknowledged))
                sent = until
                await asyncio.sleep(_TICK_S)
            for service, outlet in self._outlets.items():
                await outlet.flush()
                waiting[service].put_nowait(None)

    async def _note(self, waiting: _Waiting) -> None:
        while (one := await waiting.get()) is not None:
            event, acknowledged = one
            written = await acknowledged
            assert written.offset is not None, "the producers ask for acknowledgements"
            self._ledger.note(RecordPlace(written.topic, written.partition, written.offset), event.key, event.value)
