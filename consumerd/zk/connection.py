# SPDX-License-Identifier: Apache-2.0
"""One TCP connection to one ZooKeeper server: frames, answers in order, and its end noticed at once.

Knows the framing (int32 length; an answer begins with int32 xid, int64 zxid, int32 error) and nothing of the requests
themselves. A connection belongs to one session for its whole life, so that what is written to it goes out in that
session or not at all. It never waits and never fails late: :meth:`ZkConnection.submit` writes at once, and every answer
that can no longer come is resolved as ``None`` the moment the connection ends.

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
"""What a server reads at most (``jute.maxbuffer``); it drops the connection of who sends more, without a word."""

_MAX_ANSWER_BYTES: Final = 1 << 26
_LENGTH: Final = struct.Struct("!i")
_HEADER: Final = struct.Struct("!iqi")
_WATCH_XID: Final = -1
_XIDS: Final = 0x7FFFFFFF


class RequestTooLarge(CoordinationError):
    """The request is larger than a server reads; nothing was sent."""


class ZkRequest(Protocol):
    """What can be sent."""

    def serialize(self, xid: int) -> bytes:
        """Return the request's frame without its length."""


@dataclass(frozen=True, slots=True)
class ZkReply:
    """An answer: the zxid that the server had seen, its error code (0: none), and the body."""

    zxid: int
    error: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Listener:
    """Who hears of a connection; each is called on the event loop and must not raise."""

    answered: Callable[[ZkReply, float | None], None]
    """An answer came; with the time when its request was sent if the answer proves that the session lived then."""
    changed: Callable[[bytes], None]
    """A watch fired; the body of its event."""
    lost: Callable[[], None]
    """The connection ended."""


@dataclass(frozen=True, slots=True)
class _Pending:
    """A request on its way."""

    answer: asyncio.Future[ZkReply | None]
    sent_at: float
    proves_session: bool


class ZkConnection(asyncio.Protocol):
    """Made by ``loop.create_connection``. The first frame of the server is its greeting, the others are answers.

    Requests are numbered from ``first_xid`` on, up to the largest int32 and then from 1 again: others have a meaning.
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
        self._reason = ""

    @property
    def lost(self) -> bool:
        """Whether it has ended."""
        return self._ended.is_set()

    @property
    def reason(self) -> str:
        """Why it ended."""
        return self._reason

    async def wait_lost(self) -> None:
        """Wait for its end. Unbounded; cancel freely."""
        await self._ended.wait()

    async def greet(self, frame: bytes) -> bytes | None:
        """Send the first frame and return the server's, or None if it hung up. The caller bounds it."""
        self._write(frame)
        return await self._greeting

    def submit(
        self, request: ZkRequest, *, proves_session: bool = False, xid: int | None = None
    ) -> asyncio.Future[ZkReply | None]:
        """Send a request now; the future is its answer, or None once none can come.

        ``proves_session`` is for requests that only the ensemble's leader can answer; ``xid`` for those that have a
        fixed one. Raises RequestTooLarge, before anything is sent.
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
        """Seconds for which something has been waiting and no answer has come, nor a piece of one; 0 if nothing waits.

        Answers that come slowly, to much that was asked at once, are no stall.
        """
        oldest = next(iter(self._pending.values()), None)
        return 0.0 if oldest is None else self._now() - max(oldest.sent_at, self._progress_at)

    def abort(self, reason: str) -> None:
        """End it at once: when this returns, it is lost and everybody concerned knows. Idempotent."""
        if self._transport is not None:
            self._transport.abort()
        self._end(reason)

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:  # noqa: D102
        # uvloop's transports are such without being derived from it
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
        self._reason = reason
        self._ended.set()
        # whoever is woken below must find the session without this connection
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
