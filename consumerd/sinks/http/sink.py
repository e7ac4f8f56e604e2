# SPDX-License-Identifier: Apache-2.0
"""Sink ``http``: sends records to an HTTP endpoint, at least once.

The sink limits what its writers do together: requests in flight (``max_in_flight``), threads that encode, and memory
(``memory``).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Final
from urllib.request import getproxies_environment

from consumerd.aio.threads import WorkThreads
from consumerd.model import Claim
from consumerd.sinks.base import SinkContext
from consumerd.sinks.http.endpoint import HttpEndpoint, encode_body
from consumerd.sinks.http.memory import RunMemory
from consumerd.sinks.http.options import HttpOptions
from consumerd.sinks.http.outbox import RecordRun
from consumerd.sinks.http.writer import EncodedRows, HttpWriter
from consumerd.sinks.lines import WORKING_COPIES
from consumerd.wire.records import RecordBatch

_THREADS: Final = 2
"""Number of threads that encode records, and of batches that are encoded at the same time."""
_INLINE_BYTES: Final = 64 << 10
"""Size up to which records are encoded on the event loop: starting a thread would take as long."""
_BODY_COPIES: Final = 2
"""Copies of a run in memory while it is sent: its body, and its compressed body."""
_CLOSE_S: Final = 5.0
"""Longest time, in seconds, that closing waits for the threads."""


class HttpSink:
    """Sink that sends batches of records to an HTTP endpoint.

    Args:
        wall: Wall clock in seconds since the epoch.
        proxies: Proxy URLs by scheme, as ``urllib.request.getproxies_environment`` returns them. By default those of
            the environment, if the settings allow them.
    """

    Options = HttpOptions

    def __init__(
        self,
        context: SinkContext,
        options: HttpOptions,
        *,
        wall: Callable[[], float] = time.time,
        proxies: Mapping[str, str] | None = None,
    ) -> None:
        if proxies is None:
            proxies = getproxies_environment() if options.proxy_from_environment else {}
        self._context = context
        self._options = options
        self._endpoint = HttpEndpoint(context, options, wall=wall, proxies=proxies)
        self._threads = WorkThreads(name=f"sink-{context.sink_name}", count=_THREADS)
        self._encoding = asyncio.Semaphore(_THREADS)
        self._slots = asyncio.Semaphore(options.max_in_flight)
        self.memory = RunMemory(self._endpoint.name, limit=context.buffer_bytes, charge=context.charge)
        """Memory of the records that writers hold."""
        self.patience_s = options.timeout_ms / 1000
        """Longest time, in seconds, that a writer waits for room in that memory."""

    async def check(self) -> None:
        """Load the TLS files and the credential; no request is made. Raises ConfigError."""
        await self._endpoint.check()

    async def open(self, claim: Claim) -> HttpWriter:
        """Return a writer that sends the partition's records. Raises ConfigError."""
        await self._endpoint.prepare()
        return HttpWriter(
            claim,
            self,
            cluster_id=self._context.cluster_id,
            records=self._options.batch_records,
            size=self._options.batch_bytes,
            batch_s=self._options.batch_ms / 1000,
            at_once=self._options.max_in_flight_per_partition,
        )

    async def close(self) -> None:
        """Close the connections, and end the threads. Idempotent."""
        await self._endpoint.close()
        await self._threads.close(timeout_s=_CLOSE_S)

    # -- what writers share

    def now(self) -> float:
        """Return the time, in seconds of a monotonic clock."""
        return self._context.now()

    async def encode(self, batch: RecordBatch, work: Callable[[], EncodedRows | None]) -> EncodedRows | None:
        """Run ``work``, in a thread if the batch is large.

        ``work`` encodes a part of ``batch``. The memory that encoding takes is counted meanwhile.
        """
        if batch.size_bytes <= _INLINE_BYTES:
            return work()
        async with self._encoding:
            size = batch.size_bytes * WORKING_COPIES
            self._context.charge(size)
            try:
                return await self._threads.run(work)
            finally:
                self._context.charge(-size)

    async def send(self, run: RecordRun, *, key: str, what: str, claim: Claim) -> str | None:
        """Send a run; return None, or the reason why a record in it is refused.

        Waits, without a time limit of its own, until fewer than ``max_in_flight`` requests are under way; each of them
        has a time limit. Raises RetriableSinkError, PermanentSinkError, OwnershipLost, LeasePaused.
        """
        async with self._slots:
            self._endpoint.check_pause()
            size = run.size * _BODY_COPIES
            self._context.charge(size)
            try:
                if run.size <= _INLINE_BYTES:
                    body = encode_body(self._options, run.lines)
                else:
                    body = await self._threads.run(lambda: encode_body(self._options, run.lines))
                claim.check()  # right before the request: after it, records may be the next owner's
                is_retry = run.tries > 0
                run.tries += 1
                return await self._endpoint.send(body, key=key, what=what, is_retry=is_retry)
            finally:
                self._context.charge(-size)

    def report_relief(self) -> None:
        """Report to the hooks that a request is sent early to free memory, for metrics."""
        self._context.hooks.sink_relieved(self._context.sink_name, "request")
