"""The HTTP surface: metrics, health, status. Reads the status; changes nothing.

``/livez`` answers whenever the event loop turns; a rebalance or a ZooKeeper outage never fails it. ``/readyz`` is 200 when
registered and every assigned partition is claimed and not stopped, else 503 with the reasons.

The status is read on the event loop; what takes its time with thousands of partitions, which is to write it down, is done
in threads. The registry's counters lock themselves.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Final

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from consumerd.daemon.page import render_page
from consumerd.daemon.readings import read_gauges
from consumerd.daemon.status import DaemonStatus
from consumerd.errors import ConfigError
from consumerd.telemetry.metrics import write_metrics

_INLINE_PARTITIONS: Final = 50
"""The status of so few is written within milliseconds; a thread would cost more."""


def make_application(status: Callable[[], Awaitable[DaemonStatus]], registry: CollectorRegistry) -> web.Application:
    """Return the application; each request takes a fresh status."""

    async def page(_request: web.Request) -> web.Response:
        return web.Response(body=await _write(await status(), _write_page), content_type="text/html", charset="utf-8")

    async def api(_request: web.Request) -> web.Response:
        return web.Response(
            body=await _write(await status(), _write_json), content_type="application/json", charset="utf-8"
        )

    async def live(_request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def ready(_request: web.Request) -> web.Response:
        now = await status()
        if now.ready:
            return web.Response(text="ok\n")
        return web.Response(status=503, text="".join(f"{reason}\n" for reason in now.not_ready))

    async def metrics(_request: web.Request) -> web.Response:
        body = await _write(await status(), lambda now: write_metrics(registry, read_gauges(now)))
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    application = web.Application()
    application.router.add_get("/", page)
    application.router.add_get("/api/v1/status", api)
    application.router.add_get("/livez", live)
    application.router.add_get("/readyz", ready)
    application.router.add_get("/metrics", metrics)
    return application


async def _write(status: DaemonStatus, write: Callable[[DaemonStatus], bytes]) -> bytes:
    """Write a status down: in a thread where it is long."""
    if len(status.partitions) <= _INLINE_PARTITIONS:
        return write(status)
    return await asyncio.to_thread(write, status)


def _write_page(status: DaemonStatus) -> bytes:
    return render_page(status).encode()


def _write_json(status: DaemonStatus) -> bytes:
    return json.dumps(asdict(status)).encode()


@asynccontextmanager
async def serve(application: web.Application, host: str, port: int) -> AsyncIterator[tuple[str, int]]:
    """Listen while the block runs; gives the address (port 0 asks for a free one). Raises ConfigError if it is taken."""
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        try:
            await site.start()
        except OSError as error:
            raise ConfigError(f"http.listen: cannot listen on {host}:{port}: {error.strerror or error}") from error
        yield runner.addresses[0][:2]
    finally:
        await runner.cleanup()
