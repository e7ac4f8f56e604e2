# SPDX-License-Identifier: Apache-2.0
"""An HTTP server on loopback that takes records of the sink ``http``, and answers as a test says."""

from __future__ import annotations

import asyncio
import gzip
import json
import ssl
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self

from aiohttp import web

_HOST: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """One request, as the server got it."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def key(self) -> str:
        """The idempotency key, without its quotes."""
        return self.headers["Idempotency-Key"].removeprefix('"').removesuffix('"')

    @property
    def span(self) -> str:
        """The last part of the key: first and last record."""
        return self.key.rpartition("/")[2]

    @property
    def records(self) -> list[dict[str, Any]]:
        """The records of the body, decompressed."""
        body = gzip.decompress(self.body) if self.headers.get("Content-Encoding") == "gzip" else self.body
        if self.headers["Content-Type"] == "application/json":
            return list(json.loads(body))
        return [json.loads(line) for line in body.decode().split("\n")[:-1]]

    @property
    def offsets(self) -> list[int]:
        """The offsets of the records."""
        return [one["offset"] for one in self.records]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """How the server answers one request.

    ``cut`` ends the connection in the middle of the response, ``unread`` answers without reading the body; ``until``
    is waited for before the answer.
    """

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    cut: bool = False
    unread: bool = False
    until: asyncio.Event | None = None


OK: Final = Reply()


class HttpReceiver:
    """The server. ``replies`` are given first, one each; then ``rule`` answers, by default with 200.

    ``received`` has every request whose body was read, ``accepted`` those answered with 2xx. Without ``cancels``, a request
    is worked at to its end although its client is gone.
    """

    def __init__(
        self,
        *,
        tls: ssl.SSLContext | None = None,
        rule: Callable[[Received], Reply] | None = None,
        cancels: bool = True,
    ) -> None:
        self.cancels = cancels
        self.replies: deque[Reply] = deque()
        self.rule = rule or (lambda _: OK)
        self.received: list[Received] = []
        self.accepted: list[Received] = []
        self.in_flight = 0
        self.most_in_flight = 0
        self._tls = tls
        self._runner: web.ServerRunner | None = None
        self.port = 0

    @property
    def url(self) -> str:
        """The server's address, with a path and a query that nobody may show."""
        return f"{'http' if self._tls is None else 'https'}://{_HOST}:{self.port}/hooks/PATHSECRET?sig=QUERYSECRET"

    @property
    def offsets(self) -> list[int]:
        """The offsets of all accepted records, in the order of their arrival."""
        return [offset for one in self.accepted for offset in one.offsets]

    async def start(self, port: int = 0) -> None:
        """Listen, on a free port by default."""
        self._runner = web.ServerRunner(
            web.Server(self._handle, auto_decompress=False, handler_cancellation=self.cancels), shutdown_timeout=0.1
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, _HOST, port, ssl_context=self._tls)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Close all connections."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            return await self._answer(request)
        finally:
            self.in_flight -= 1

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if self.replies and self.replies[0].unread:
            reply = self.replies.popleft()
            return web.Response(status=reply.status, headers=reply.headers)
        one = Received(
            method=request.method,
            path=request.path_qs,
            headers=request.headers.copy(),
            body=await request.content.read(),
        )
        self.received.append(one)
        reply = self.replies.popleft() if self.replies else self.rule(one)
        if reply.until is not None:
            await reply.until.wait()
        if reply.cut:
            response = web.StreamResponse(status=reply.status, headers={"Content-Length": "100"})
            await response.prepare(request)
            await response.write(b"half")
            assert request.transport is not None
            request.transport.abort()
            return response
        if 200 <= reply.status < 300:
            self.accepted.append(one)
        return web.Response(status=reply.status, headers=reply.headers, body=reply.body)


class HttpReceiverThread:
    """A receiver in a thread of its own, beside daemons that are processes of their own."""

    def __init__(self, *, rule: Callable[[Received], Reply] | None = None) -> None:
        self.receiver = HttpReceiver(rule=rule, cancels=False)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="http receiver", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self.receiver.start(), self._loop).result(10)
        return self

    def set(self, event: asyncio.Event) -> None:
        """Set an event that replies wait for."""
        self._loop.call_soon_threadsafe(event.set)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self.receiver.stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()
