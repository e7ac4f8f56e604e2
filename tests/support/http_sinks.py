# SPDX-License-Identifier: Apache-2.0
"""Sinks of type ``http`` before a receiver under test control, alone or behind real deliveries."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from consumerd.delivery.policy import UnitPolicy
from consumerd.delivery.ports import DeliverySettings
from consumerd.model import TopicPartition
from consumerd.sinks.base import SinkContext, Start
from consumerd.sinks.http.options import HttpOptions
from consumerd.sinks.http.sink import HttpSink
from consumerd.sinks.http.writer import HttpWriter
from consumerd.telemetry.hooks import Hooks
from tests.support.claims import StubClaim
from tests.support.clocks import ManualClock
from tests.support.delivery import DeliveryRig
from tests.support.http_receiver import HttpReceiver
from tests.support.sinks import PARTITION


class RequestNotes(Hooks):
    """Notes what the sink tells of its requests."""

    def __init__(self) -> None:
        self.results: list[tuple[str, bool]] = []
        self.counts: list[int] = []
        self.relieved = 0

    def sink_request_finished(self, sink: str, *, result: str, seconds: float, is_retry: bool) -> None:
        """See Hooks."""
        assert sink == "api"
        assert seconds >= 0
        self.results.append((result, is_retry))

    def sink_relieved(self, sink: str, action: str) -> None:
        """See Hooks."""
        assert (sink, action) == ("api", "request")
        self.relieved += 1

    def sink_requests_changed(self, sink: str, count: int) -> None:
        """See Hooks."""
        self.counts.append(count)


@dataclass
class HttpRig:
    """A sink and what it was given; ``charged`` is the memory that it holds."""

    options: Mapping[str, Any]
    clock: ManualClock = field(default_factory=ManualClock)
    proxies: Mapping[str, str] | None = None
    buffer_bytes: int = 64 << 20
    wall_s: float = 784111777.0
    charged: int = 0
    notes: RequestNotes = field(default_factory=RequestNotes)
    sink: HttpSink = field(init=False)

    def __post_init__(self) -> None:
        context = SinkContext(
            sink_name="api",
            group="lake",
            cluster_id="2-1700000000000",
            writer_id="member1",
            now=self.clock,
            charge=self._charge,
            buffer_bytes=self.buffer_bytes,
            hooks=self.notes,
        )
        options = HttpOptions.model_validate(self.options)
        self.sink = HttpSink(context, options, wall=lambda: self.wall_s, proxies=self.proxies)

    def _charge(self, difference: int) -> None:
        self.charged += difference

    async def writer(
        self, position: int = 0, *, claim: StubClaim | None = None, partition: TopicPartition = PARTITION
    ) -> HttpWriter:
        """Open a partition and start at ``position``."""
        writer = await self.sink.open(claim or StubClaim(partition))
        await writer.start(Start(position=position, reason="committed"))
        return writer


@asynccontextmanager
async def open_rig(receiver: HttpReceiver, **given: Any) -> AsyncIterator[HttpRig]:
    """Make a sink that sends to the receiver, and close it; at the end it holds no memory.

    ``given`` are options of the sink, and fields of :class:`HttpRig`.
    """
    fields = {name: given.pop(name) for name in ("clock", "proxies", "buffer_bytes") if name in given}
    rig = HttpRig(options={"url": receiver.url, **given}, **fields)
    try:
        yield rig
    finally:
        await rig.sink.close()


@asynccontextmanager
async def deliver(
    rig: HttpRig, *, on_rejected: UnitPolicy = "stop", batch: int = 10, recheck_ms: int = 50
) -> AsyncIterator[DeliveryRig]:
    """Run deliveries into a sink."""
    settings = DeliverySettings(commit_interval_ms=10, recheck_ms=recheck_ms, retry_initial_ms=10, retry_maximum_ms=40)
    async with DeliveryRig(destination=rig.sink, settings=settings, on_rejected=on_rejected, batch=batch) as deliveries:
        yield deliveries
