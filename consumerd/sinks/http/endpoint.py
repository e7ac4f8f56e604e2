# SPDX-License-Identifier: Apache-2.0
"""Sends requests to one HTTP endpoint: connections, limits, and pauses that the server asks for.

Only the origin of the URL (``https://host:port``) is ever shown: path and query may be secrets, as with web hooks.
Texts of aiohttp's errors may hold the whole URL, so they are not shown, and not chained either.

A pause that the server asks for (``Retry-After``) holds for all partitions. Example: at 12:00:00 a request of
partition 3 is answered with 429 and ``Retry-After: 30``. A request of partition 5 that is due at 12:00:10 is not
sent; its error asks for 20 s more.

Faults of the endpoint have the same text for all partitions, so that the status page can show them as one. Only a
refused record is named.

Connections are kept for the next request, for a shorter time than usual servers keep them. A request on a connection
that the server closes at that moment fails, and is sent again.
"""

from __future__ import annotations

import asyncio
import io
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Final
from urllib.parse import urlsplit
from urllib.request import proxy_bypass

import aiohttp

from consumerd import __version__
from consumerd.errors import ConfigError, PermanentSinkError, RetriableSinkError
from consumerd.landing.line_compression import compress_lines
from consumerd.sinks.base import SinkContext
from consumerd.sinks.http.answers import AnswerKind, describe_status, judge_status, name_class, read_retry_after
from consumerd.sinks.http.options import HttpOptions
from consumerd.telemetry.wording import format_time

_KEEPALIVE_S: Final = 4.0
"""Time without a request after which a connection is closed, in seconds. Servers do so after 5 s or more."""
_MOST_ANSWER_BYTES: Final = 64 << 10
"""Bytes of a response that are read, and dropped; the connection of a longer one is closed."""
_CONTENT_TYPES: Final = {"lines": "application/x-ndjson", "array": "application/json"}
_ADVICE: Final = {
    401: "check auth",
    403: "check auth, and the rights that it has",
    404: "check url",
    405: "check url and method",
    407: "the proxy wants a password: write it into its variable (http://user:password@host:port)",
    410: "check url",
    415: "check format and compression",
}
_HOST: Final = re.compile(r"[A-Za-z0-9.:\[\]-]{1,255}")
_NO_ANSWER: Final = "none"
_ABANDONED: Final = "abandoned"


def show_origin(url: str) -> str:
    """Return scheme, host and port of a URL, all that may be shown of it."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def encode_body(options: HttpOptions, lines: Sequence[bytes]) -> bytes:
    """Return a request's body with these records. Blocks for some milliseconds.

    Args:
        options: The sink's settings, of which ``format`` and ``compression`` count.
        lines: Each record as JSON, without a line end.
    """
    body = b"[%b]" % b",".join(lines) if options.format == "array" else b"%b\n" % b"\n".join(lines)
    return body if options.compression == "none" else b"".join(compress_lines(options.compression, [body]))


class HttpEndpoint:
    """The destination of all requests of a sink.

    Args:
        wall: Wall clock in seconds since the epoch, for dates in ``Retry-After``.
        proxies: URL of the proxy by scheme, and the hosts without one as ``no``; empty for none.
    """

    def __init__(
        self,
        context: SinkContext,
        options: HttpOptions,
        *,
        wall: Callable[[], float],
        proxies: Mapping[str, str],
    ) -> None:
        self._url: Final = options.url.get_secret_value()
        self.name: Final = f"sink {context.sink_name}: {show_origin(self._url)}"
        """The sink and the origin of its URL, with which error messages begin."""
        self._setting = f"sinks.{context.sink_name}"
        self._context = context
        self._options = options
        self._wall = wall
        self._proxy = _find_proxy(self._url, proxies)
        self._credential = None if options.auth is None else options.auth.locate(f"{self._setting}.auth")
        self._headers = self._plan_headers()
        self._session: aiohttp.ClientSession | None = None
        self._opening = asyncio.Lock()
        self._stack = AsyncExitStack()
        self._paused_until = float("-inf")
        self._pause = ""
        self._in_flight = 0

    def __repr__(self) -> str:
        return f"<HttpEndpoint {self.name}>"

    async def check(self) -> None:
        """Load the TLS files and read the credential.

        Raises ConfigError that names the setting and the file.
        """
        if self._credential is not None:
            await asyncio.to_thread(self._credential.read)
        await self.prepare()

    async def prepare(self) -> None:
        """Load the TLS files, unless that is done; connections are opened by requests.

        Raises ConfigError that names the setting and the file.
        """
        async with self._opening:
            if self._session is not None:
                return
            tls = self._options.tls
            context = None if tls is None else await asyncio.to_thread(tls.locate(f"{self._setting}.tls").make_context)
            self._session = await self._stack.enter_async_context(
                aiohttp.ClientSession(
                    connector=aiohttp.TCPConnector(
                        limit=self._options.max_in_flight,
                        keepalive_timeout=_KEEPALIVE_S,
                        ssl=True if context is None else context,
                    ),
                    cookie_jar=aiohttp.DummyCookieJar(),
                    auto_decompress=False,
                    timeout=aiohttp.ClientTimeout(total=self._options.timeout_ms / 1000),
                )
            )

    async def close(self) -> None:
        """Close all connections. Idempotent."""
        await self._stack.aclose()
        self._session = None

    def check_pause(self) -> None:
        """Raise RetriableSinkError while the server wants no requests."""
        left_s = self._paused_until - self._context.now()
        if left_s > 0:
            raise RetriableSinkError(self._pause, retry_after_s=left_s)

    async def send(self, body: bytes, *, key: str, what: str, is_retry: bool) -> str | None:
        """Send a request; return None, or the reason why the server refuses it.

        A reason means that a record of the request is refused. Takes at most ``timeout_ms``. Cancelling it closes the
        connection; the server may have the request all the same.

        Args:
            body: The records, encoded.
            key: The idempotency key.
            what: The records in words, for the reason.
            is_retry: True if the same records were sent before.

        Raises RetriableSinkError if the request should be sent again, PermanentSinkError if no request can succeed
        with these settings.
        """
        status, headers = await self._request(body, self._complete(key), is_retry=is_retry)
        kind = judge_status(status)
        if kind is AnswerKind.ACCEPTED:
            return None
        told = f"{self.name} answered {describe_status(status)}"
        if kind is AnswerKind.RECORD_REFUSED:
            return f"{told} to {what}"
        if kind is AnswerKind.RETRY:
            asked_s = self._note_pause(told, headers)
            raise RetriableSinkError(self._pause if asked_s else f"{told}; it is tried again", retry_after_s=asked_s)
        if status == 401 and self._options.auth is not None:
            # usual while a token is replaced: the server has the new one before the file, or after it
            raise RetriableSinkError(f"{told}: put a valid credential into {self._options.auth.credential_file}")
        raise PermanentSinkError(f"{told}: {_advise(status, headers)}")

    async def _request(
        self, body: bytes, headers: Mapping[str, str], *, is_retry: bool
    ) -> tuple[int, Mapping[str, str]]:
        """Send a request and read the response to its end; return status code and headers."""
        if self._session is None:
            raise RetriableSinkError(f"{self.name}: the sink is closed")
        begun = self._context.now()
        result = _ABANDONED
        self._count(1)
        try:
            async with self._session.request(
                self._options.method,
                self._url,
                data=io.BytesIO(body),
                headers=headers,
                proxy=self._proxy,
                allow_redirects=False,
            ) as response:
                await _drop_content(response)
                result = name_class(response.status)
                return response.status, response.headers
        except (aiohttp.ClientError, OSError) as error:  # TimeoutError is an OSError
            result = _NO_ANSWER
            raise RetriableSinkError(f"{self.name}: {self._describe(error)}; it is tried again") from None
        finally:
            self._count(-1)
            self._context.hooks.sink_request_finished(
                self._context.sink_name, result=result, seconds=self._context.now() - begun, is_retry=is_retry
            )

    def _count(self, change: int) -> None:
        self._in_flight += change
        self._context.hooks.sink_requests_changed(self._context.sink_name, self._in_flight)

    def _describe(self, error: Exception) -> str:
        if isinstance(error, TimeoutError):
            return f"no complete answer within {self._options.timeout_ms} ms (timeout_ms)"
        if isinstance(error, aiohttp.ClientConnectorCertificateError):
            fault = getattr(error.certificate_error, "verify_message", "") or type(error.certificate_error).__name__
            return f"its certificate is refused: {fault}: check tls"
        if isinstance(error, aiohttp.ClientHttpProxyError):
            return f"the proxy answered {describe_status(error.status)}"
        if isinstance(error, aiohttp.ClientConnectorError):
            return f"no connection: {error.os_error.strerror or type(error.os_error).__name__}"
        if isinstance(error, (aiohttp.ClientPayloadError, aiohttp.ServerDisconnectedError, OSError)):
            return "the connection ended before a complete answer"
        return f"no usable answer ({type(error).__name__})"

    def _note_pause(self, told: str, headers: Mapping[str, str]) -> float:
        """Return the seconds to wait by ``Retry-After``, and keep all partitions waiting; 0 without it.

        ``told`` is the response in words.
        """
        asked_s = read_retry_after(headers, now_s=self._wall())
        if asked_s is None:
            return 0.0
        asked_s = min(asked_s, self._options.max_retry_after_ms / 1000)
        until = self._context.now() + asked_s
        if until > self._paused_until:
            self._paused_until = until
            # the end, not what is left, so that the text is the same for all partitions that wait
            self._pause = f"{told}; it asks for a pause until {format_time(round((self._wall() + asked_s) * 1000))}"
        return asked_s

    # -- headers

    def _plan_headers(self) -> dict[str, str]:
        """Return the headers that all requests have in common; the user's own win."""
        headers = {"Content-Type": _CONTENT_TYPES[self._options.format], "User-Agent": f"consumerd/{__version__}"}
        given = {name: value.get_secret_value() for name, value in self._options.headers.items()}
        names = {name.lower() for name in given}
        headers = {name: value for name, value in headers.items() if name.lower() not in names} | given
        if self._options.compression != "none":
            headers["Content-Encoding"] = self._options.compression
        return headers

    def _complete(self, key: str) -> dict[str, str]:
        headers = dict(self._headers)
        if self._options.idempotency_header is not None:
            headers[self._options.idempotency_header] = f'"{key}"'  # a string of RFC 9651, as the draft wants it
        if self._credential is not None:
            try:
                headers["Authorization"] = self._credential.read()
            except ConfigError as error:
                # a fault at the start ends the process; later the file may come back
                raise RetriableSinkError(f"{self.name}: {error}") from error
        return headers


async def _drop_content(response: aiohttp.ClientResponse) -> None:
    """Read the response's content to its end, so that the connection can be used again.

    A response that is cut off is no answer: ClientPayloadError is raised. The connection of a long one is closed.
    """
    size = 0
    async for chunk in response.content.iter_any():
        size += len(chunk)
        if size > _MOST_ANSWER_BYTES:
            response.close()
            return


def _find_proxy(url: str, proxies: Mapping[str, str]) -> str | None:
    parts = urlsplit(url)
    proxy = proxies.get(parts.scheme)
    if proxy is None or proxy_bypass(parts.netloc, dict(proxies)):
        return None
    return proxy


def _advise(status: int, headers: Mapping[str, str]) -> str:
    if 300 <= status < 400:
        place = show_origin(headers.get("Location", ""))
        _, _, host = place.partition("://")
        # the path may be a secret, and the text is the peer's: only what looks like a host is shown
        at = f" at {place}" if _HOST.fullmatch(host) else ""
        return f"redirects are not followed: set url to the address{at} that Location names"
    return _ADVICE.get(status, "check url, method and headers")
