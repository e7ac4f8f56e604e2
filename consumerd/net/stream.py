# SPDX-License-Identifier: Apache-2.0
"""Interface to a connection's bytes, with TCP and TLS behind it.

A :class:`Stream` hands each frame to its :class:`FrameReceiver` as soon as it is complete: there is no task, queue or
copy between the socket and the waiter of a response. Reading needs no flow control, since a broker sends only responses
to our requests; anything else closes the connection. Writing has back-pressure.

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
    """Receiver of a stream's frames. Both methods return at once and do not raise."""

    def frame_received(self, body: memoryview) -> None:
        """Take a frame's body, without its length prefix; the receiver may keep it."""

    def stream_closed(self, cause: ConsumerdError) -> None:
        """Take the cause of the stream's end; called once, after the last frame.

        The peer has closed the connection, the connection broke, or a frame had an impossible size.
        """


class Stream(Protocol):
    """An open connection that carries frames."""

    def write(self, data: bytes) -> None:
        """Send bytes after all that were written before; nothing happens on a closed stream."""

    async def drain(self) -> None:
        """Wait until the operating system has taken all written bytes, or the stream is closed.

        The operating system sends the bytes that it has taken even after a close. No timeout of its own. Safe to
        cancel.
        """

    def close(self) -> None:
        """Close the connection at once; bytes that were not sent are dropped. Idempotent.

        The receiver's ``stream_closed`` is called.
        """

    async def wait_closed(self) -> None:
        """Wait until the socket is closed: one turn of the loop after :meth:`close`."""


class StreamConnector(Protocol):
    """Function that opens streams; tests replace it to work without sockets."""

    async def __call__(self, address: Address, receiver: FrameReceiver) -> Stream:
        """Connect to an address; return the stream, after the TLS handshake if there is one.

        Bounded by the connector's own timeout. Raises ConnectionLost.

        Args:
            receiver: Gets the frames.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class TcpConnector:
    """Connects over TCP, with TLS if the address asks for it.

    Attributes:
        max_frame_bytes: Largest size of a frame that a peer may send.
        timeout_s: Time limit of a connection attempt, in seconds, with the TLS handshake.
        tls: Context for TLS; None if no address asks for TLS. Names in certificates are checked against the address's
            host, unless the context says otherwise.
        receive_buffer_bytes: Fixed ``SO_RCVBUF``; None leaves the size to the kernel.
        allocate: Function that allocates the memory of frames, for all connections of this connector.
    """

    max_frame_bytes: int
    timeout_s: float = 10.0
    tls: ssl.SSLContext | None = None
    receive_buffer_bytes: int | None = None
    allocate: Allocate = field(default_factory=frame_memory)

    async def __call__(self, address: Address, receiver: FrameReceiver) -> Stream:
        """Connect to an address within ``timeout_s``; return the stream.

        Raises ConnectionLost; ConfigError if the address asks for TLS and ``tls`` is None.

        Args:
            receiver: Gets the frames.
        """
        if address.tls and self.tls is None:
            raise ConfigError(f"{address}: the listener speaks TLS; set cluster.tls")
        loop = asyncio.get_running_loop()
        try:
            async with timeout(self.timeout_s):
                # some addresses of a host may be unreachable; uvloop's create_connection tries them one after the other
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
        """Send bytes after all that were written before; do nothing on a closed stream."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    async def drain(self) -> None:
        """Wait until the system has taken all written bytes, or the stream is closed."""
        await self._writable.wait()

    def close(self) -> None:
        """Close the connection at once; bytes that were not sent are dropped. Idempotent."""
        if self._transport is not None:
            self._transport.abort()
        self._end(ConnectionLost(f"{self._address}: closed by us"))

    async def wait_closed(self) -> None:
        """Wait until the socket is closed: one turn of the loop after :meth:`close`."""
        await self._closed.wait()

    def tune(self, receive_buffer_bytes: int | None) -> None:
        """Set socket options: keep-alive, TCP_NODELAY, and the receive buffer.

        Keep-alive finds peers that vanished while the connection was idle.
        """
        assert self._transport is not None
        sock = self._transport.get_extra_info("socket")
        if sock is None:
            return
        with contextlib.suppress(OSError):  # the peer may be gone already; the transport reports it
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if receive_buffer_bytes is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)

    # -- asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport of the new connection; called by asyncio."""
        # uvloop's transports have the methods, and another base class
        self._transport = transport = cast("asyncio.Transport", transport)
        # drained means that the buffer is empty; a TLS transport pauses at the high mark, others above it
        transport.set_write_buffer_limits(high=1 if self._address.tls else 0, low=0)
        self._writable.set()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the hint is 64 KiB at most; frames know better
        """Return the memory into which asyncio receives the next bytes."""
        return self._frames.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Hand the frames that ``nbytes`` received bytes complete to the receiver; called by asyncio."""
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
        """Close the connection, because the peer did; called by asyncio."""
        return False

    def pause_writing(self) -> None:
        """Make :meth:`drain` wait, because the transport's buffer is full; called by asyncio."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Let :meth:`drain` return, because the transport's buffer has room; called by asyncio."""
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the receiver, and all that wait, that the connection has ended; called by asyncio."""
        self._end(ConnectionLost(f"{self._address}: {f'connection lost: {exc}' if exc else 'closed by the broker'}"))
        self._closed.set()

    def _end(self, cause: ConsumerdError) -> None:
        self._writable.set()
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.stream_closed(cause)
