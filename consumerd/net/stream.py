# SPDX-License-Identifier: Apache-2.0
"""The port to a connection's bytes, and TCP and TLS behind it.

A :class:`Stream` hands every whole frame to its :class:`FrameReceiver` the moment it is complete: no task, no queue and
no copy lie between the socket and whoever waits for the answer. What is received is bounded by what was asked for,
since brokers speak only when spoken to; anything else closes the connection. Writing has back-pressure.

Receive buffers are left to the kernel by default: a fixed ``SO_RCVBUF`` switches its auto-tuning off and is capped by
``net.core.rmem_max``, which is often smaller than what auto-tuning reaches.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from dataclasses import dataclass, field
from typing import Final, Protocol, cast

from aiohappyeyeballs import start_connection

from consumerd.aio.timeouts import timeout
from consumerd.errors import ConfigError, ConnectionLost, ConsumerdError, RemoteProtocolError
from consumerd.net.address import Address
from consumerd.net.frames import Allocate, FrameAssembler, frame_memory

_HAPPY_EYEBALLS_S: Final = 0.25


class FrameReceiver(Protocol):
    """Who a stream's frames go to. Both calls return at once and do not raise."""

    def frame_received(self, body: memoryview) -> None:
        """Take a frame's body, without its length prefix; it is the receiver's to keep."""

    def stream_closed(self, cause: ConsumerdError) -> None:
        """Hear, once, that no more frames come: the peer closed, the connection broke, or framing is lost."""


class Stream(Protocol):
    """An open connection that carries frames."""

    def write(self, data: bytes) -> None:
        """Send bytes after all that were written before; nothing happens on a closed stream."""

    async def drain(self) -> None:
        """Wait until the system has taken what was written, and sends it even if we close; returns when the stream closes, too.

        Unbounded: the caller's deadline applies. Cancel freely.
        """

    def close(self) -> None:
        """Drop the connection at once, unsent bytes included. Idempotent; the receiver hears of it."""

    async def wait_closed(self) -> None:
        """Wait until the socket is closed; after :meth:`close` that is the next turn of the loop."""


class StreamConnector(Protocol):
    """Opens streams; the seam for tests without sockets."""

    async def __call__(self, address: Address, receiver: FrameReceiver) -> Stream:
        """Connect, TLS handshake included. Bounded by the connector's own timeout. Raises ConnectionLost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TcpConnector:
    """Connects over TCP, with TLS where the address asks for it.

    ``tls`` is the context for such addresses; names in certificates are checked against the address's host unless the
    context says otherwise. ``receive_buffer_bytes`` fixes ``SO_RCVBUF``. ``allocate`` gives the memory of frames, for all
    connections of this connector.
    """

    max_frame_bytes: int
    timeout_s: float = 10.0
    tls: ssl.SSLContext | None = None
    receive_buffer_bytes: int | None = None
    allocate: Allocate = field(default_factory=frame_memory)

    async def __call__(self, address: Address, receiver: FrameReceiver) -> Stream:
        """Connect within ``timeout_s``. Raises ConnectionLost, and ConfigError where TLS is asked for but not set up."""
        if address.tls and self.tls is None:
            raise ConfigError(f"{address}: the listener speaks TLS; set cluster.tls")
        loop = asyncio.get_running_loop()
        try:
            async with timeout(self.timeout_s):
                # a host may have addresses that lead nowhere; uvloop's create_connection tries them one after the other
                found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
                sock = await start_connection(found, happy_eyeballs_delay=_HAPPY_EYEBALLS_S)
                _, stream = await loop.create_connection(
                    lambda: TransportStream(address, receiver, self.max_frame_bytes, self.allocate),
                    sock=sock,
                    ssl=self.tls if address.tls else None,
                    server_hostname=address.host if address.tls else None,
                )
        except TimeoutError as error:
            raise ConnectionLost(f"{address}: no connection within {self.timeout_s:g} s") from error
        except (OSError, UnicodeError) as error:
            # UnicodeError: a host name that IDNA cannot encode
            raise ConnectionLost(f"{address}: cannot connect: {error}") from error
        stream.tune(self.receive_buffer_bytes)
        return stream


class TransportStream(asyncio.BufferedProtocol):
    """A :class:`Stream` over an asyncio transport."""

    def __init__(self, address: Address, receiver: FrameReceiver, max_frame_bytes: int, allocate: Allocate) -> None:
        self._address = address
        self._receiver: FrameReceiver | None = receiver
        self._frames = FrameAssembler(max_frame_bytes, allocate=allocate)
        self._transport: asyncio.Transport | None = None
        self._writable = asyncio.Event()
        self._closed = asyncio.Event()

    # -- Stream

    def write(self, data: bytes) -> None:
        """Send bytes; see :class:`Stream`."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    async def drain(self) -> None:
        """Wait for room; see :class:`Stream`."""
        await self._writable.wait()

    def close(self) -> None:
        """Drop the connection; see :class:`Stream`."""
        if self._transport is not None:
            self._transport.abort()
        self._end(ConnectionLost(f"{self._address}: closed by us"))

    async def wait_closed(self) -> None:
        """Wait for the socket's end; see :class:`Stream`."""
        await self._closed.wait()

    def tune(self, receive_buffer_bytes: int | None) -> None:
        """Set socket options: keep-alive finds peers that vanished while idle, requests are small and not delayed."""
        assert self._transport is not None
        sock = self._transport.get_extra_info("socket")
        if sock is None:
            return
        with contextlib.suppress(OSError):  # the peer may be gone already, which the transport tells
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if receive_buffer_bytes is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)

    # -- asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        # uvloop's transports are such without being derived from it
        self._transport = transport = cast("asyncio.Transport", transport)
        # nothing is left here once drained; a TLS transport counts "as much as high" as too much already
        transport.set_write_buffer_limits(high=1 if self._address.tls else 0, low=0)
        self._writable.set()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the hint is 64 KiB at most; frames know better
        """Say where to receive into."""
        return self._frames.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Hand over the frames that the received bytes complete."""
        try:
            for body in self._frames.advance(nbytes):
                if self._receiver is None:
                    return  # closed by the receiver of an earlier frame
                self._receiver.frame_received(body)
        except RemoteProtocolError as error:
            self._end(RemoteProtocolError(f"{self._address}: {error}"))
            if self._transport is not None:
                self._transport.abort()

    def eof_received(self) -> bool:
        """Close when the peer does."""
        return False

    def pause_writing(self) -> None:
        """Hold writers back."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Let writers go on."""
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the receiver and whoever waits."""
        self._end(ConnectionLost(f"{self._address}: {f'connection lost: {exc}' if exc else 'closed by the broker'}"))
        self._closed.set()

    def _end(self, cause: ConsumerdError) -> None:
        self._writable.set()
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.stream_closed(cause)
