# SPDX-License-Identifier: Apache-2.0
"""The HTTP server: metrics, health and status. All requests only read.

Endpoints
    ``/livez``           200 while the event loop runs; a rebalance or a ZooKeeper outage does not change it.
    ``/readyz``          200 if registered and all assigned partitions are claimed, else 503 with the reasons. Stopped
                         and failing partitions are listed, and do not change the code: another process would have the
                         same trouble, and a roll-out, which waits for readiness, may bring the fix.
    ``/metrics``         Prometheus's text format.
    ``/api/v1/status``   the status as JSON.
    ``/``                the status page.

Documents
    The status is read on the event loop. With many partitions it is rendered in a thread. One document of each kind is
    made at a time, and requests that came before it was begun share it. So any number of scrapers takes one thread.

    Example: scrapers A, B and C ask for metrics. A's document is being made when B and C arrive. They wait, and then
    share a second document, because the first one was begun before they asked.

Protection
    With a token, all but the probes need it; with a certificate, the listener speaks https (``daemon.http_guard``).

Connections
    Above :data:`_MOST_CONNECTIONS` the oldest connection is closed. So slow or silent clients cannot keep probes out,
    or take the descriptors that files and brokers need. The first response after :data:`_LAST_ANSWER_S` has
    ``Connection: close``, and the client opens a new connection for its next request. A connection that is still open
    after :data:`_LIFETIME_S` sends nothing, or does not read its response; it is aborted. aiohttp limits the headers.

The Host header is not checked. By DNS rebinding a page of another origin could read the status, and change nothing.
Any request that changes something would have to check it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from consumerd.aio.tasks import alongside
from consumerd.daemon.http_guard import ServerCertificate, TokenGuard
from consumerd.daemon.page import render_page
from consumerd.daemon.readings import read_gauges
from consumerd.daemon.status import DaemonStatus
from consumerd.errors import ConfigError
from consumerd.telemetry.metrics import write_metrics

_MOST_CONNECTIONS: Final = 64
"""Limit of open connections."""
_LAST_ANSWER_S: Final = 40.0
"""Age of a connection, in seconds, from which on the next response closes it.

A connection in use has a request in each ``_KEEPALIVE_S``, so one of them comes between this and ``_LIFETIME_S``.
"""
_LIFETIME_S: Final = 70.0
"""Age at which a connection is aborted, in seconds."""
_SWEEP_S: Final = 5.0
"""Interval of the checks of the connections' ages, in seconds."""
_BACKLOG: Final = 32
"""Limit of connections that wait to be accepted."""
_KEEPALIVE_S: Final = 30.0
"""Time without a request after which a connection is closed, in seconds."""
_HANDSHAKE_S: Final = 5.0
"""Time limit of a TLS handshake, in seconds; connections in it do not count in :data:`_MOST_CONNECTIONS`."""
_HEADER_BYTES: Final = 4096
"""Limit of a request's line, and of each header."""

_INLINE_PARTITIONS: Final = 50
"""Number of partitions up to which documents are rendered on the event loop, within milliseconds."""


def make_application(
    status: Callable[[], Awaitable[DaemonStatus]], registry: CollectorRegistry, guard: TokenGuard | None = None
) -> web.Application:
    """Return the aiohttp application with metrics, health and status.

    Args:
        status: reads the current status.
        registry: counters and histograms for ``/metrics``.
        guard: refuses requests without the token; None to answer all.
    """

    page_document = Document(status, _write_page)
    api_document = Document(status, _write_json)
    metrics_document = Document(status, lambda now: write_metrics(registry, read_gauges(now)))

    async def page(_request: web.Request) -> web.Response:
        return web.Response(body=await page_document.make(), content_type="text/html", charset="utf-8")

    async def api(_request: web.Request) -> web.Response:
        return web.Response(body=await api_document.make(), content_type="application/json", charset="utf-8")

    async def live(_request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def ready(request: web.Request) -> web.Response:
        now = await status()
        if guard is None or guard.admits(request):
            lines = [*(("ok",) if now.ready else now.not_ready), *now.problems]
        else:
            lines = ["ok" if now.ready else "not ready"]  # reasons name topics and hosts
        return web.Response(
            status=200 if now.ready else 503,
            body="".join(f"{line}\n" for line in lines).encode(errors="backslashreplace"),
            content_type="text/plain",
            charset="utf-8",
        )

    async def metrics(_request: web.Request) -> web.Response:
        return web.Response(body=await metrics_document.make(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    application = web.Application(middlewares=[] if guard is None else [guard.guard])
    application.router.add_get("/", page)
    application.router.add_get("/api/v1/status", api)
    application.router.add_get("/livez", live)
    application.router.add_get("/readyz", ready)
    application.router.add_get("/metrics", metrics)
    return application


class Document:
    """A rendering of the daemon's status for HTTP: metrics, JSON or HTML.

    Each call of :meth:`make` renders the present status; calls that wait at the same time share one rendering.
    """

    def __init__(self, status: Callable[[], Awaitable[DaemonStatus]], write: Callable[[DaemonStatus], bytes]) -> None:
        self._status = status
        self._write = write
        self._turn = asyncio.Lock()
        self._begun = 0
        self._made = 0
        """Serial number of the document in :attr:`_body`; ``_begun`` is that of the newest one begun."""
        self._body = b""

    async def make(self) -> bytes:
        """Return the rendered status as bytes, for one HTTP request.

        The status is read after this call began. If another rendering is being made, this call waits for its end, and
        then shares the next one with all other waiting calls. Cancelling a call does not disturb the others.
        """
        begun_before = self._begun
        async with self._turn:
            if self._made <= begun_before:  # else another request has made one while we waited, begun after our call
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
    return render_page(status).encode(errors="backslashreplace")  # names from outside may have lone surrogates


def _write_json(status: DaemonStatus) -> bytes:
    return json.dumps(asdict(status)).encode()


@asynccontextmanager
async def serve(
    application: web.Application, host: str, port: int, certificate: ServerCertificate | None = None
) -> AsyncIterator[tuple[str, int]]:
    """Serve HTTP while the block runs; yield the listener's host and port.

    Port 0 chooses a free port. Raises ConfigError if it cannot listen there, for example because the port is taken.

    Args:
        certificate: Certificate for https; None for http.
    """
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
            listener = await loop.create_server(
                admit,
                host,
                port,
                backlog=_BACKLOG,
                ssl=None if certificate is None else certificate.context,
                ssl_handshake_timeout=None if certificate is None else _HANDSHAKE_S,
            )
        except OSError as error:
            raise ConfigError(f"http.listen: cannot listen on {host}:{port}: {error.strerror or error}") from error
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(alongside(ages.cut_older(connections), name="http connections"))
            if certificate is not None:
                await stack.enter_async_context(alongside(certificate.follow(), name="http certificate"))
            try:
                yield listener.sockets[0].getsockname()[:2]
            finally:
                listener.close()
    finally:
        await runner.cleanup()


def make_runner(application: web.Application, ages: ConnectionAges) -> web.AppRunner:
    """Return aiohttp's runner of the application, which closes old connections.

    Args:
        ages: the ages of the connections; it marks the last response of an old one.
    """
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
    """Ages of the HTTP server's connections, and the closing of old ones.

    An old connection is closed with a response: the header ``Connection: close`` tells the client to send no further
    request on it. Otherwise a request sent at the moment of the closing would be lost. aiohttp's
    ``RequestHandler.close`` is not used: on a connection without a pending request it leaves the socket open, and later
    requests are never answered.
    """

    def __init__(self) -> None:
        self._since: dict[asyncio.BaseProtocol, float] = {}

    @web.middleware
    async def end_old(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Handle a request; add ``Connection: close`` to the response of an old connection.

        Old is a connection that was opened :data:`_LAST_ANSWER_S` seconds ago or earlier.
        """
        response = await handler(request)
        now = asyncio.get_running_loop().time()
        if now - self._since.setdefault(request.protocol, now) >= _LAST_ANSWER_S:
            response.force_close()
        return response

    async def cut_older(self, connections: web.Server) -> None:
        """Abort HTTP connections older than ``_LIFETIME_S`` seconds, until cancelled."""
        now = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(_SWEEP_S)
            self._since = {one: self._since.get(one, now()) for one in connections.connections}
            for one in connections.connections:
                if now() - self._since[one] >= _LIFETIME_S:
                    _cut(one)


def _cut(connection: web.RequestHandler) -> None:
    """Abort a connection. Closing it would wait until the client has read the response."""
    if connection.transport is not None:
        connection.transport.abort()
