# SPDX-License-Identifier: Apache-2.0
"""One connection to one broker: requests out, their answers to whoever asked.

Owns which caller waits for which answer, each request's deadline, and what happens when the connection ends. Bytes are
``net.stream``'s, headers and correlation ids ``wire.session``'s.

- Concurrent requests pipeline: each is written at once, and a broker answers them in that order. So a request behind a
  long poll waits for it; give long polls a connection of their own.
- A fault of the connection (broken, framing lost, an answer that nobody asked for, a request past its deadline)
  *poisons* it: it is closed, and every waiter hears ConnectionLost with the one cause as its ``__cause__``. A late
  answer poisons because everything behind it is late as well, and might never come.
- A body that cannot be read fails its own request with RemoteProtocolError; the connection goes on.
- A waiter that is cancelled leaves the connection as it is: its answer is dropped when it comes, undecoded.

There is no task in here: answers are handed to their waiters from the socket's own callback.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, Self, TypeVar

from consumerd.aio.timeouts import timeout
from consumerd.errors import ConnectionLost, ConsumerdError, RemoteProtocolError, RequestTimedOut
from consumerd.model import BrokerId
from consumerd.net.address import Address
from consumerd.net.stream import Stream, StreamConnector
from consumerd.net.versions import BrokerVersions
from consumerd.telemetry.hooks import Hooks
from consumerd.wire.apikeys import ApiKey
from consumerd.wire.schema import Request
from consumerd.wire.session import ClientSession, ResponseFrame

R = TypeVar("R")

LONGEST_THROTTLE_S: Final = 60.0
"""What we wait for at most when a broker names a throttle time; quotas are counted over windows of seconds."""

_LARGE_BODY_BYTES: Final = 256 * 1024
"""Response bodies above this are decoded in a thread: Metadata of 100,000 partitions takes half a second."""


class BrokerConnection:
    """An open connection that several callers may use at once. Made by :meth:`open`."""

    def __init__(
        self, session: ClientSession, address: Address, broker: BrokerId | None, now: Callable[[], float], hooks: Hooks
    ) -> None:
        self.address = address
        self.broker = broker
        self._session = session
        self._now = now
        self._hooks = hooks
        self._stream: Stream | None = None
        self._versions: BrokerVersions | None = None
        self._refused: Callable[[], None] | None = None
        self._waiters: dict[int, asyncio.Future[ResponseFrame | None]] = {}
        self._cause: ConsumerdError | None = None
        self._silent_until = 0.0
        self._last_used = now()

    @classmethod
    async def open(
        cls,
        connector: StreamConnector,
        session: ClientSession,
        address: Address,
        *,
        broker: BrokerId | None,
        now: Callable[[], float],
        hooks: Hooks,
    ) -> Self:
        """Connect. Bounded by the connector. Raises ConnectionLost."""
        connection = cls(session, address, broker, now, hooks)
        connection._stream = await connector(address, connection)
        if connection.closed:
            # the peer's first bytes, which nobody had asked for, were here before the stream was ours to close
            connection._stream.close()
        return connection

    def __repr__(self) -> str:
        state = f"closed: {self._cause}" if self._cause else f"{self._session.in_flight} in flight"
        return f"<BrokerConnection {self.address} {self._versions}, {state}>"

    # -- versions

    @property
    def versions(self) -> BrokerVersions:
        """What the broker speaks."""
        assert self._versions is not None, "versions are settled before a connection is given away"
        return self._versions

    def adopt(self, versions: BrokerVersions, *, refused: Callable[[], None] | None = None) -> None:
        """Settle the broker's versions, once, before the connection is given away.

        Args:
            refused: called if the broker shows that it does not speak them. It closes the connection while it owes an
                answer, as brokers of 0.8 to 0.10 do on a request that they do not know. Or its answer cannot be read:
                0.8.2 answers Fetch v1 as if it were v0.
        """
        self._versions = versions
        self._refused = refused

    def version_of(self, request: type[Request[Any]]) -> int:
        """Return the newest version of a request that both sides speak. Raises UnsupportedVersion."""
        return self.versions.choose(request)

    # -- state

    @property
    def closed(self) -> bool:
        """Whether no more requests can be sent."""
        return self._cause is not None

    @property
    def in_flight(self) -> int:
        """How many answers are still to come, those of cancelled waiters included."""
        return self._session.in_flight

    @property
    def idle_s(self) -> float:
        """For how long nothing was asked and nothing was awaited, in seconds."""
        return 0.0 if self.in_flight else self._now() - self._last_used

    # -- requests

    async def request(self, request: Request[R], *, timeout_s: float, version: int | None = None) -> R:
        """Send a request and return its answer; ``version`` None is the newest that both sides speak.

        ``timeout_s`` runs from the moment of sending; before that, a throttle time that the broker named is waited for,
        :data:`LONGEST_THROTTLE_S` at most. Cancel freely.

        Raises RequestTimedOut, ConnectionLost (the outcome is unknown), RemoteProtocolError (this answer is unreadable),
        UnsupportedVersion, and LocalProtocolError for what the version cannot say; nothing was sent in the last two.
        """
        if version is None:
            version = self.version_of(type(request))
        await self._wait_throttle()
        self._raise_closed()
        correlation_id, data = self._session.send(request, version)
        waiter = asyncio.get_running_loop().create_future()
        self._waiters[correlation_id] = waiter
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
            self._waiters.pop(correlation_id, None)
        if frame is None:
            self._hooks.request_failed(self.broker, request.api.name, type(self._cause).__name__)
            self._raise_closed()
        assert frame is not None
        self._last_used = self._now()
        return await self._decode(request, frame, self._last_used - started)

    async def send(self, request: Request[Any], *, timeout_s: float, version: int | None = None) -> None:
        """Send a request that brokers do not answer (``expects_response`` is false), and return when the peer takes it.

        Nobody learns whether the broker has acted upon it; one that could not closes the connection. ``timeout_s`` bounds
        the wait for room, as a throttle time is waited for first. Cancel freely. Raises as :meth:`request` does.
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

    async def _decode(self, request: Request[R], frame: ResponseFrame, seconds: float) -> R:
        try:
            # record sets are only cut out of a Fetch response, however large
            if len(frame.body) > _LARGE_BODY_BYTES and request.api is not ApiKey.FETCH:
                response = await asyncio.to_thread(request.decode_response, frame.version, frame.body)
            else:
                response = request.decode_response(frame.version, frame.body)
        except RemoteProtocolError as error:
            self._hooks.request_failed(self.broker, request.api.name, "RemoteProtocolError")
            unreadable = RemoteProtocolError(f"{self.address}: {error}")
            if self._refused is not None:
                # other versions must be tried, and this connection keeps those that it has
                self._refused()
                self._poison(unreadable)
            raise unreadable from error
        self._hooks.request_finished(self.broker, request.api.name, seconds)
        self._note_throttle(getattr(response, "throttle_time_ms", 0) / 1000)
        return response

    def _note_throttle(self, seconds: float) -> None:
        """Heed a throttle time, in the way that the broker's release means it (``BrokerVersions.mutes_after_answer``)."""
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
        """Close at once; whoever waits hears ConnectionLost. Idempotent."""
        self._poison(ConnectionLost(f"{self.address}: closed by us"))

    async def wait_closed(self) -> None:
        """Wait until the socket is closed; after :meth:`close` that is the next turn of the loop."""
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
            # a new one for each waiter: an exception that is raised twice mixes up its tracebacks
            raise ConnectionLost(str(self._cause)) from self._cause

    # -- FrameReceiver

    def frame_received(self, body: memoryview) -> None:
        """Hand an answer to whoever waits for it."""
        try:
            frame = self._session.receive_frame(body)
        except RemoteProtocolError as error:
            self._poison(RemoteProtocolError(f"{self.address}: {error}"))
            return
        waiter = self._waiters.get(frame.correlation_id)
        if waiter is not None and not waiter.done():
            waiter.set_result(frame)

    def stream_closed(self, cause: ConsumerdError) -> None:
        """Poison: the stream is gone, and says why."""
        if self._refused is not None and self._cause is None and self.in_flight:
            self._refused()
        self._poison(cause)
