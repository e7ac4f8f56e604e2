"""The HTTP surface: metrics, health, status. Reads the status; changes nothing.

``/livez`` answers whenever the event loop turns; a rebalance or a ZooKeeper outage never fails it. ``/readyz`` is 200 when
registered and every assigned partition is claimed and not stopped, else 503 with the reasons.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from consumerd.daemon.page import render_page
from consumerd.daemon.status import DaemonStatus
from consumerd.errors import ConfigError


def make_application(status: Callable[[], DaemonStatus], registry: CollectorRegistry) -> web.Application:
    """Return the application; each request takes a fresh status."""

    async def page(_request: web.Request) -> web.Response:
        return web.Response(text=render_page(status()), content_type="text/html")

    async def api(_request: web.Request) -> web.Response:
        return web.json_response(asdict(status()))

    async def live(_request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def ready(_request: web.Request) -> web.Response:
        now = status()
        if now.ready:
            return web.Response(text="ok\n")
        return web.Response(status=503, text="".join(f"{reason}\n" for reason in now.not_ready))

    async def metrics(_request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    application = web.Application()
    application.router.add_get("/", page)
    application.router.add_get("/api/v1/status", api)
    application.router.add_get("/livez", live)
    application.router.add_get("/readyz", ready)
    application.router.add_get("/metrics", metrics)
    return application


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
