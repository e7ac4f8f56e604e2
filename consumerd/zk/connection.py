# SPDX-License-Identifier: Apache-2.0
"""One TCP connection to a ZooKeeper server: frames, and responses in the order of requests.

The module knows the framing (an int32 length; a response begins with int32 xid, int64 zxid, int32 error), and no
particular request. A connection belongs to one session for its whole life, so a request written to it reaches the
server in that session or not at all. :meth:`ZkConnection.submit` writes at once and never waits. When the connection
ends, the future of each request without a response gets the result ``None`` at once.

Source: ZooKeeper's ``ClientCnxn.java`` and ``zookeeper.jute`` (ReplyHeader).
"""

from __future__ import annotations

import asyncio
import itertools
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol, cast

from consumerd.errors import CoordinationError

MAX_REQUEST_BYTES: Final = 0xFFFFF
"""Largest request that a server reads (``jute.maxbuffer``).

It drops the connection of a larger one, without an answer.
"""

_MAX_ANSWER_BYTES: Final = 1 << 26
_LENGTH: Final = struct.Struct("!i")
_HEADER: Final = struct.Struct("!iqi")
_WATCH_XID: Final = -1
_XIDS: Final = 0x7FFFFFFF


class RequestTooLarge(CoordinationError):
    """Raised for a request above the size that ZooKeeper servers read; nothing was sent."""


class ZkRequest(Protocol):
    """A ZooKeeper request that can be serialised."""

    def serialize(self, xid: int) -> bytes:
        """Return the request's frame without its length.

        Args:
            xid: Number of the request on its connection; the response repeats it.
        """


@dataclass(frozen=True, slots=True)
class ZkReply:
    """A ZooKeeper response: the server's last zxid, the error code (0: none), and the body.

    ``body`` has the bytes after the response header, undecoded.
    """

    zxid: int
    error: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Listener:
    """Callbacks of a connection to a ZooKeeper server.

    They are called on the event loop, and must not raise.
    """

    answered: Callable[[ZkReply, float | None], None]
    """Called when a response has arrived.

    The second argument is the time when its request was sent, if the response proves that the session lived then; else
    None.
    """
    changed: Callable[[bytes], None]
    """Called when a watch has fired; the argument is the body of its event."""
    lost: Callable[[], None]
    """Called when the connection has ended."""


@dataclass(frozen=True, slots=True)
class _Pending:
    """A pending request."""

    answer: asyncio.Future[ZkReply | None]
    sent_at: float
    proves_session: bool


class ZkConnection(asyncio.Protocol):
    """A connection to one ZooKeeper server, as the protocol of ``loop.create_connection``.

    The server's first frame answers the request to connect; the others are responses and watch events. Requests are
    numbered from ``first_xid`` to the largest int32, and then from 1 again: ZooKeeper reserves 0 and negative numbers.

    Args:
        now: Clock in seconds, which never goes back.
        listener: Callbacks for responses, watch events and the end of the connection.
        first_xid: Number of the first request.
    """

    def __init__(self, now: Callable[[], float], listener: Listener, *, first_xid: int = 1) -> None:
        self._now = now
        self._listener = listener
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._greeting: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        self._xids = (1 + xid % _XIDS for xid in itertools.count(first_xid - 1))
        # in the order of sending, which is the order of the answers
        self._pending: dict[int, _Pending] = {}
        self._ended = asyncio.Event()
        self._progress_at = now()
        self.reason = ""
        """Reason for which the connection has ended; empty while it lives."""

    @property
    def lost(self) -> bool:
        """True once the connection has ended."""
        return self._ended.is_set()

    async def wait_lost(self) -> None:
        """Wait for the end of the connection. No timeout; safe to cancel."""
        await self._ended.wait()

    async def greet(self, frame: bytes) -> bytes | None:
        """Send the request to connect, and return the server's answer to it.

        Both are frames without their length. Returns None if the server closed the connection. Has no timeout of its
        own; the caller sets one.
        """
        self._write(frame)
        return await self._greeting

    def submit(
        self, request: ZkRequest, *, proves_session: bool = False, xid: int | None = None
    ) -> asyncio.Future[ZkReply | None]:
        """Send a request now; return a future of its response.

        The future's result is None if the connection ends before the response. Raises RequestTooLarge, before anything
        is sent.

        Args:
            proves_session: True for requests that only the ensemble's leader can answer. Their response proves that the
                session was alive when they were sent, so the listener gets the time of sending.
            xid: Number of the request, for kinds of requests that have a fixed one; None takes the next number.
        """
        future: asyncio.Future[ZkReply | None] = asyncio.get_running_loop().create_future()
        if self.lost or self._transport is None:
            future.set_result(None)
            return future
        xid = next(self._xids) if xid is None else xid
        frame = request.serialize(xid)
        if len(frame) > MAX_REQUEST_BYTES:
            raise RequestTooLarge(
                f"a request of {len(frame)} bytes: ZooKeeper reads at most {MAX_REQUEST_BYTES} (jute.maxbuffer)"
            )
        self._pending[xid] = _Pending(future, self._now(), proves_session)
        self._write(frame)
        return future

    def stalled_s(self) -> float:
        """Return the seconds without a received byte while a request waits for its response.

        They count from the later of two times: the last received byte, and the sending of the oldest such request. 0 if
        no request waits. Any byte counts, so a large response that arrives slowly is no stall.
        """
        oldest = next(iter(self._pending.values()), None)
        return 0.0 if oldest is None else self._now() - max(oldest.sent_at, self._progress_at)

    def abort(self, reason: str) -> None:
        """End the connection at once; its callbacks have been called on return. Idempotent.

        ``reason`` is the text for the attribute ``reason``, which logs and errors show.
        """
        if self._transport is not None:
            self._transport.abort()
        self._end(reason)

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:  # noqa: D102
        # uvloop's transports have the methods, and another base class
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:  # noqa: D102
        self._buffer += data
        start = 0
        while len(self._buffer) - start >= _LENGTH.size and not self.lost:
            (length,) = _LENGTH.unpack_from(self._buffer, start)
            if not 0 <= length <= _MAX_ANSWER_BYTES:
                self.abort(f"the server sent a frame of {length} bytes")
                break
            end = start + _LENGTH.size + length
            if len(self._buffer) < end:
                break
            self._take(bytes(memoryview(self._buffer)[start + _LENGTH.size : end]))
            start = end
        del self._buffer[:start]
        if self._buffer:
            self._progress_at = self._now()

    def eof_received(self) -> None:  # noqa: D102
        self.abort("the server closed the connection")

    def connection_lost(self, error: Exception | None) -> None:  # noqa: D102
        self._end(str(error or "the connection was closed"))

    def _end(self, reason: str) -> None:
        if self.lost:
            return
        self.reason = reason
        self._ended.set()
        # the waiters woken below must find the session without this connection
        self._listener.lost()
        if not self._greeting.done():
            self._greeting.set_result(None)
        pending, self._pending = self._pending, {}
        for request in pending.values():
            if not request.answer.done():
                request.answer.set_result(None)

    def _take(self, frame: bytes) -> None:
        if not self._greeting.done():
            self._greeting.set_result(frame)
            return
        if len(frame) < _HEADER.size:
            self.abort(f"the server sent an answer of {len(frame)} bytes")
            return
        xid, zxid, error = _HEADER.unpack_from(frame)
        body = frame[_HEADER.size :]
        if xid == _WATCH_XID:
            self._listener.changed(body)
            return
        request = self._pending.pop(xid, None)
        if request is None:
            self.abort(f"the server answered request {xid}, which was not asked")
            return
        self._progress_at = self._now()
        reply = ZkReply(zxid, error, body)
        self._listener.answered(reply, request.sent_at if request.proves_session else None)
        if not request.answer.done():
            request.answer.set_result(reply)

    def _write(self, frame: bytes) -> None:
        assert self._transport is not None
        self._transport.write(_LENGTH.pack(len(frame)) + frame)
