# SPDX-License-Identifier: Apache-2.0
"""The HTTP surface: metrics, health, status. Reads the status; changes nothing.

``/livez`` answers whenever the event loop turns; a rebalance or a ZooKeeper outage never fails it. ``/readyz`` is 200 when
registered and every assigned partition is claimed, else 503 with the reasons. Partitions that are stopped or failing are
listed in its body and do not change the code: another process would have the same trouble with them, and a roll-out, which
waits for readiness, must be able to bring the mend.

The status is read on the event loop; what takes its time with thousands of partitions, which is to write it down, is done
in threads. The registry's counters lock themselves. Of each document one is made at a time; requests that came before
that began share it, so that any number of scrapers costs one thread.

Bounds. Connections beyond :data:`_MOST_CONNECTIONS` close the oldest one, so that clients which are slow, or silent,
cannot keep a probe out or take the descriptors that files and brokers need. An answer on a connection that has been in
use for :data:`_LAST_ANSWER_S` says ``Connection: close`` and is the last one, so that the client sends its next request
elsewhere. A connection that is still open at :data:`_LIFETIME_S` sends nothing, or does not read its answer, and is
aborted. aiohttp bounds the headers.

No Host header is looked at: a page of another origin that had its name point here could read the status, and change
nothing. Requests that change anything must check it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from consumerd.aio.tasks import alongside
from consumerd.daemon.page import render_page
from consumerd.daemon.readings import read_gauges
from consumerd.daemon.status import DaemonStatus
from consumerd.errors import ConfigError
from consumerd.telemetry.metrics import write_metrics

_MOST_CONNECTIONS: Final = 64
_LAST_ANSWER_S: Final = 40.0
"""Time from a connection's first request to its last one, in seconds; Prometheus opens another one.

A connection in use has a request in each ``_KEEPALIVE_S``, so one of them comes between this and ``_LIFETIME_S``.
"""
_LIFETIME_S: Final = 70.0
"""Age at which a connection is cut off, in seconds."""
_SWEEP_S: Final = 5.0
"""Interval between two looks at the connections' ages, in seconds."""
_BACKLOG: Final = 32
_KEEPALIVE_S: Final = 30.0
_HEADER_BYTES: Final = 4096

_INLINE_PARTITIONS: Final = 50
"""The status of so few is written within milliseconds; a thread would cost more."""


def make_application(status: Callable[[], Awaitable[DaemonStatus]], registry: CollectorRegistry) -> web.Application:
    """Return the application; each request takes a fresh status."""

    page_document = Document(status, _write_page)
    api_document = Document(status, _write_json)
    metrics_document = Document(status, lambda now: write_metrics(registry, read_gauges(now)))

    async def page(_request: web.Request) -> web.Response:
        return web.Response(body=await page_document.make(), content_type="text/html", charset="utf-8")

    async def api(_request: web.Request) -> web.Response:
        return web.Response(body=await api_document.make(), content_type="application/json", charset="utf-8")

    async def live(_request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def ready(_request: web.Request) -> web.Response:
        now = await status()
        lines = [*(("ok",) if now.ready else now.not_ready), *now.problems]
        return web.Response(
            status=200 if now.ready else 503,
            body="".join(f"{line}\n" for line in lines).encode(errors="backslashreplace"),
            content_type="text/plain",
            charset="utf-8",
        )

    async def metrics(_request: web.Request) -> web.Response:
        return web.Response(body=await metrics_document.make(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    application = web.Application()
    application.router.add_get("/", page)
    application.router.add_get("/api/v1/status", api)
    application.router.add_get("/livez", live)
    application.router.add_get("/readyz", ready)
    application.router.add_get("/metrics", metrics)
    return application


class Document:
    """A document about the status, made anew for each request, or for several that wait at the same time."""

    def __init__(self, status: Callable[[], Awaitable[DaemonStatus]], write: Callable[[DaemonStatus], bytes]) -> None:
        self._status = status
        self._write = write
        self._turn = asyncio.Lock()
        self._begun = 0
        self._made = 0
        """Which of those that have begun :attr:`_body` is."""
        self._body = b""

    async def make(self) -> bytes:
        """Return the document as of now or later. Cancel freely."""
        begun_before = self._begun
        async with self._turn:
            if self._made <= begun_before:  # else one that began after our call was made while we waited
                self._begun = number = self._begun + 1
                self._body = await self._make()
                self._made = number
            return self._body

    async def _make(self) -> bytes:
        now = await self._status()
        if len(now.partitions) <= _INLINE_PARTITIONS:
            return self._write(now)
        return await asyncio.to_thread(self._write, now)


def _write_page(status: DaemonStatus) -> bytes:
    return render_page(status).encode(errors="backslashreplace")  # whatever text has come in


def _write_json(status: DaemonStatus) -> bytes:
    return json.dumps(asdict(status)).encode()


@asynccontextmanager
async def serve(application: web.Application, host: str, port: int) -> AsyncIterator[tuple[str, int]]:
    """Listen while the block runs; gives the address (port 0 asks for a free one). Raises ConfigError if it is taken."""
    ages = ConnectionAges()
    runner = make_runner(application, ages)
    await runner.setup()
    try:
        connections = runner.server
        assert connections is not None, "set up"
        loop = asyncio.get_running_loop()

        def admit() -> asyncio.Protocol:
            for oldest in connections.connections[: 1 - _MOST_CONNECTIONS]:
                _cut(oldest)
            return connections()

        try:
            listener = await loop.create_server(admit, host, port, backlog=_BACKLOG)
        except OSError as error:
            raise ConfigError(f"http.listen: cannot listen on {host}:{port}: {error.strerror or error}") from error
        async with alongside(ages.cut_older(connections), name="http connections"):
            try:
                yield listener.sockets[0].getsockname()[:2]
            finally:
                listener.close()
    finally:
        await runner.cleanup()


def make_runner(application: web.Application, ages: ConnectionAges) -> web.AppRunner:
    """Return the server's runner. It announces the last answer on each connection, by ``ages``."""
    application.middlewares.append(ages.end_old)
    return web.AppRunner(
        application,
        access_log=None,
        shutdown_timeout=1.0,
        keepalive_timeout=_KEEPALIVE_S,
        lingering_time=0.0,
        max_line_size=_HEADER_BYTES,
        max_field_size=_HEADER_BYTES,
    )


class ConnectionAges:
    """Ages of connections, by which each is ended.

    A client must be told before its connection ends, else its next request is lost. ``RequestHandler.close`` does not
    tell: while a connection waits for a request, it ends the task and leaves the socket open. The next request is then
    received and never answered.
    """

    def __init__(self) -> None:
        self._since: dict[asyncio.BaseProtocol, float] = {}

    @web.middleware
    async def end_old(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Add ``Connection: close`` to the answer if the connection is old."""
        response = await handler(request)
        now = asyncio.get_running_loop().time()
        if now - self._since.setdefault(request.protocol, now) >= _LAST_ANSWER_S:
            response.force_close()
        return response

    async def cut_older(self, connections: web.Server) -> None:
        """Abort connections older than ``_LIFETIME_S``, until cancelled."""
        now = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(_SWEEP_S)
            self._since = {one: self._since.get(one, now()) for one in connections.connections}
            for one in connections.connections:
                if now() - self._since[one] >= _LIFETIME_S:
                    _cut(one)


def _cut(connection: web.RequestHandler) -> None:
    """Cut a connection off; what was not taken of an answer would keep it from closing."""
    if connection.transport is not None:
        connection.transport.abort()
