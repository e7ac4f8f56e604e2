# SPDX-License-Identifier: Apache-2.0
"""One connection to one broker: requests out, each answer to its waiter.

Owns the waiters, the deadline of each request, and the end of the connection. Bytes belong to ``net.stream``; headers,
and which request an answer belongs to, to the session (``net.session``).

- Concurrent requests are pipelined: each is written at once, and a broker answers them in that order. A request behind
  a long poll waits for it, so give long polls a connection of their own.
- A fault of the connection (closed, framing lost, an answer to no request, a request past its deadline) *poisons* it:
  it is closed, and every waiter gets ConnectionLost, with that fault as its ``__cause__``. A late answer is a fault
  because all answers behind it are late too, and may never come.
- A body that cannot be read fails its own request with RemoteProtocolError. The connection stays open.
- A cancelled waiter leaves the connection open. Its answer is dropped, undecoded, when it arrives.

No task runs here: the socket's callback hands answers to their waiters.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any, Final, Self, TypeVar

from consumerd.aio.timeouts import timeout
from consumerd.errors import ConnectionLost, ConsumerdError, RemoteProtocolError, RequestTimedOut
from consumerd.model import BrokerId
from consumerd.net.address import Address
from consumerd.net.session import AnswerFrame, ConnectionSession, SpokenVersions
from consumerd.net.stream import Stream, StreamConnector
from consumerd.telemetry.hooks import Hooks
from consumerd.wire.apikeys import ApiKey
from consumerd.wire.schema import Request

R = TypeVar("R")

LONGEST_THROTTLE_S: Final = 60.0
"""Longest delay of requests, in seconds, for a throttle time that a broker names.

Quotas are counted over windows of seconds.
"""

_LARGE_BODY_BYTES: Final = 256 * 1024
"""Response bodies above this are decoded in a thread: Metadata of 100,000 partitions takes half a second."""


class BrokerConnection:
    """An open connection to one broker, which several callers may use at once.

    :meth:`open` makes it.
    """

    def __init__(
        self,
        session: ConnectionSession,
        address: Address,
        broker: BrokerId | None,
        now: Callable[[], float],
        hooks: Hooks,
    ) -> None:
        self.address = address
        self.broker = broker
        self._session = session
        self._now = now
        self._hooks = hooks
        self._stream: Stream | None = None
        self._versions: SpokenVersions | None = None
        self._refused: Callable[[], None] | None = None
        self._waiters: dict[int, asyncio.Future[AnswerFrame | None]] = {}
        self._cause: ConsumerdError | None = None
        self._silent_until = 0.0
        self._last_used = now()
        self._retire_at = math.inf

    @classmethod
    async def open(
        cls,
        connector: StreamConnector,
        session: ConnectionSession,
        address: Address,
        *,
        broker: BrokerId | None,
        now: Callable[[], float],
        hooks: Hooks,
    ) -> Self:
        """Connect to a broker; return the connection. Raises ConnectionLost, which is reported to ``hooks``.

        The connector limits the time.

        Args:
            session: Protocol state that encodes requests and matches responses.
            broker: Id of the broker, for reports; None if it is unknown.
            now: Monotonic clock, in seconds.
        """
        connection = cls(session, address, broker, now, hooks)
        try:
            connection._stream = await connector(address, connection)
        except ConnectionLost as error:
            hooks.request_failed(broker, "Connect", type(error).__name__)
            raise
        if connection.closed:
            # unrequested bytes of the peer had poisoned the connection before it had the stream to close
            connection._stream.close()
        return connection

    def __repr__(self) -> str:
        state = f"closed: {self._cause}" if self._cause else f"{self._session.in_flight} in flight"
        return f"<BrokerConnection {self.address} {self._versions}, {state}>"

    # -- versions

    @property
    def versions(self) -> SpokenVersions:
        """Versions of each kind of request that may be sent on this connection."""
        assert self._versions is not None, "versions are settled before a connection is given away"
        return self._versions

    def adopt(self, versions: SpokenVersions, *, refused: Callable[[], None] | None = None) -> None:
        """Set the request versions to use, once, before the connection is given away.

        Args:
            refused: Called if the broker seems not to support these versions: it closes the connection while a request
                is pending, or a response cannot be parsed. Brokers of 0.8 to 0.10 close the connection after an unknown
                request; brokers of 0.8.2 respond to Fetch v1 in the format of v0.
        """
        self._versions = versions
        self._refused = refused

    def version_of(self, request: type[Request[Any]], *, at_most: int | None = None) -> int:
        """Return the newest version of a request that both sides support, up to ``at_most``.

        None for ``at_most`` sets no limit. Raises UnsupportedVersion if there is no such version.
        """
        return self.versions.choose(request, at_most=at_most)

    # -- state

    @property
    def closed(self) -> bool:
        """True if no more requests can be sent."""
        return self._cause is not None

    @property
    def in_flight(self) -> int:
        """Number of requests without a response yet, including cancelled ones."""
        return self._session.in_flight

    @property
    def idle_s(self) -> float:
        """Seconds since the last request or response; 0 while a request waits for its response."""
        return 0.0 if self.in_flight else self._now() - self._last_used

    def retire_after(self, seconds: float) -> None:
        """Set the time after which the connection should be replaced, in seconds from now."""
        self._retire_at = self._now() + seconds

    @property
    def retiring(self) -> bool:
        """True if the connection should be replaced, because the broker closes it soon.

        Pending requests still get their responses.
        """
        return self._now() >= self._retire_at

    # -- requests

    async def request(self, request: Request[R], *, timeout_s: float, version: int | None = None) -> R:
        """Send a request and return its answer.

        Args:
            timeout_s: Time limit in seconds, from the sending of the request. If the broker has asked to wait (throttle
                time), the request is sent after that wait, of at most :data:`LONGEST_THROTTLE_S`.
            version: Version to send; None for the newest that both sides support.

        Safe to cancel. Raises RequestTimedOut and ConnectionLost, after which it is unknown if the broker has carried
        out the request; RemoteProtocolError for an answer that cannot be read; and, before anything is sent,
        UnsupportedVersion, and LocalProtocolError for a value that the version cannot hold.
        """
        if version is None:
            version = self.version_of(type(request))
        await self._wait_throttle()
        self._raise_closed()
        key, data = self._session.send(request, version)
        waiter = asyncio.get_running_loop().create_future()
        self._waiters[key] = waiter
        started = self._last_used = self._now()
        assert self._stream is not None
        self._stream.write(data)
        try:
            async with timeout(timeout_s):
                await self._stream.drain()
                frame = await waiter
        except TimeoutError as error:
            late = RequestTimedOut(f"{self.address}: no answer to {request.api.name} v{version} within {timeout_s:g} s")
            self._poison(late)
            self._hooks.request_failed(self.broker, request.api.name, "RequestTimedOut")
            raise late from error
        finally:
            self._waiters.pop(key, None)
        if frame is None:
            self._hooks.request_failed(self.broker, request.api.name, type(self._cause).__name__)
            self._raise_closed()
        assert frame is not None
        self._last_used = self._now()
        return await self._decode(request, version, frame.body, self._last_used - started)

    async def send(self, request: Request[Any], *, timeout_s: float, version: int | None = None) -> None:
        """Send a request that brokers do not answer: Produce with ``acks`` 0.

        Returns when the operating system has taken the bytes. The broker's result is not reported; a broker that fails
        to carry out the request closes the connection. Safe to cancel. Raises RequestTimedOut, ConnectionLost,
        UnsupportedVersion, LocalProtocolError.

        Args:
            timeout_s: Time limit in seconds for the operating system to take the bytes. If the broker has asked to wait
                (throttle time), this limit begins after that wait.
            version: Version to send; None for the newest that both sides support.
        """
        if version is None:
            version = self.version_of(type(request))
        await self._wait_throttle()
        self._raise_closed()
        _, data = self._session.send(request, version)
        self._last_used = self._now()
        assert self._stream is not None
        self._stream.write(data)
        try:
            async with timeout(timeout_s):
                await self._stream.drain()
        except TimeoutError as error:
            late = RequestTimedOut(
                f"{self.address}: {request.api.name} v{version} was not taken within {timeout_s:g} s"
            )
            self._poison(late)
            raise late from error
        self._raise_closed()

    async def _decode(self, request: Request[R], version: int, body: memoryview, seconds: float) -> R:
        try:
            # decoding a Fetch response only cuts record sets out, so its size does not matter
            if len(body) > _LARGE_BODY_BYTES and request.api is not ApiKey.FETCH:
                response = await asyncio.to_thread(request.decode_response, version, body)
            else:
                response = request.decode_response(version, body)
        except RemoteProtocolError as error:
            self._hooks.request_failed(self.broker, request.api.name, "RemoteProtocolError")
            unreadable = RemoteProtocolError(f"{self.address}: {error}")
            if self._refused is not None:
                # other versions must be tried, on another connection: this one keeps its versions
                self._refused()
                self._poison(unreadable)
            raise unreadable from error
        self._hooks.request_finished(self.broker, request.api.name, seconds)
        self._note_throttle(getattr(response, "throttle_time_ms", 0) / 1000)
        return response

    def _note_throttle(self, seconds: float) -> None:
        """Delay later requests by a throttle time if the broker's release expects that.

        ``SpokenVersions.mutes_after_answer`` tells if it does.
        """
        if seconds <= 0:
            return
        self._hooks.broker_throttled(self.broker, seconds)
        if self._versions is not None and self._versions.mutes_after_answer:
            self._silent_until = max(self._silent_until, self._now() + min(seconds, LONGEST_THROTTLE_S))

    async def _wait_throttle(self) -> None:
        rest = self._silent_until - self._now()
        if rest > 0 and not self.closed:
            await asyncio.sleep(rest)

    # -- the end

    def close(self) -> None:
        """Close the connection at once; pending requests raise ConnectionLost. Idempotent."""
        self._poison(ConnectionLost(f"{self.address}: closed by us"))

    async def wait_closed(self) -> None:
        """Wait until the socket is closed: one turn of the loop after :meth:`close`."""
        if self._stream is not None:
            await self._stream.wait_closed()

    def _poison(self, cause: ConsumerdError) -> None:
        if self._cause is not None:
            return
        self._cause = cause
        if self._stream is not None:
            self._stream.close()
        for waiter in self._waiters.values():
            if not waiter.done():
                waiter.set_result(None)

    def _raise_closed(self) -> None:
        if self._cause is not None:
            # a new exception for each waiter: raised twice, one would mix up its tracebacks
            raise ConnectionLost(str(self._cause)) from self._cause

    # -- FrameReceiver

    def frame_received(self, body: memoryview) -> None:
        """Hand a received response to the caller that waits for it; called by the stream."""
        try:
            frame = self._session.receive_frame(body)
        except RemoteProtocolError as error:
            self._poison(RemoteProtocolError(f"{self.address}: {error}"))
            return
        waiter = self._waiters.get(frame.key)
        if waiter is not None and not waiter.done():
            waiter.set_result(frame)

    def stream_closed(self, cause: ConsumerdError) -> None:
        """Fail all pending requests with ConnectionLost; called when the stream has ended.

        ``cause`` is why the stream has ended.
        """
        if self._refused is not None and self._cause is None and self.in_flight:
            self._refused()
        self._poison(cause)
