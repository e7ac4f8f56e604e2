"""One accepted connection: requests in, cut into frames as they arrive, replies out.

At most a few frames are read ahead of the one that is worked on; then nothing more is read, and the peer's own writes
wait. Requests are handed out in the order in which they came, so whoever answers each before it takes the next one
answers in order.

The end of the stream is noticed while a request is worked on: :attr:`Connection.hangup` then ends what waits for the
peer's sake. What arrived in full before it is still handed out, since a peer may close its sending half alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import socket
from collections import deque
from typing import Final

from consumerd.embedded.handlers.context import Hangup
from consumerd.embedded.reply import Reply
from consumerd.embedded.sending import Sender
from consumerd.errors import RemoteProtocolError
from consumerd.net.frames import FrameAssembler

_READ_AHEAD: Final = 2
"""Frames that may wait; small ones that arrive together may be a few more."""

_RECEIVED_AT_ONCE: Final = 4
"""Calls that bring bytes before others have their turn: the first one of a request brings its beginning only."""

_BETWEEN_BYTES: Final = 16 * 1024
_LARGE_BYTES: Final = 1024 * 1024


def allocate_frame(size: int) -> memoryview:
    """Return memory for a frame; of a large one no page is taken before bytes arrive for it, whatever its size says."""
    return memoryview(bytearray(size)) if size < _LARGE_BYTES else memoryview(mmap.mmap(-1, size))


class Connection:
    """Owns ``sock``, which is non-blocking. Made and used on one running loop; :meth:`close` must be called."""

    def __init__(self, sock: socket.socket, *, name: str, peer_host: str, max_frame_bytes: int, stall_s: float) -> None:
        self.name = name
        self.peer_host = peer_host
        self.hangup = Hangup()
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._assembler = FrameAssembler(max_frame_bytes, between_bytes=_BETWEEN_BYTES, allocate=allocate_frame)
        self._sender = Sender(sock, stall_s=stall_s)
        self._frames: deque[memoryview] = deque()
        self._arrival: asyncio.Future[None] | None = None
        self._fault: RemoteProtocolError | None = None
        self._reading = False
        self._discarding = False
        self._ended = False
        self._read_on()

    @property
    def has_frame(self) -> bool:
        """Whether :meth:`next_frame` would return at once."""
        return bool(self._frames)

    async def next_frame(self) -> memoryview | None:
        """Return the next request's frame, without its size; None once the peer has ended the stream.

        Unbounded: a client may be idle for as long as it likes. Raises RemoteProtocolError once framing is lost.
        """
        while not self._frames:
            if self._fault is not None:
                raise self._fault
            if self._ended:
                return None
            self._arrival = self._loop.create_future()
            await self._arrival
        frame = self._frames.popleft()
        if not self._reading and len(self._frames) < _READ_AHEAD:
            self._read_on()
        return frame

    async def send(self, reply: Reply) -> None:
        """Send a reply and close what it is in. Bounded as :meth:`Sender.send` is. Raises ConnectionLost."""
        try:
            await self._sender.send(reply)
        finally:
            reply.close()

    async def fall_silent(self) -> None:
        """Answer nothing more: take and forget what comes, until the peer goes. Unbounded."""
        self._discarding = True
        while await self.next_frame() is not None:
            pass

    def close(self) -> None:
        """Close the socket, what has not been sent included. Idempotent."""
        self._stop_reading()
        self._ended = True
        self._frames.clear()
        with contextlib.suppress(OSError):  # it may be gone already
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    # -- reading

    def _read_on(self) -> None:
        if not self._ended and self._fault is None:
            self._reading = True
            self._loop.add_reader(self._sock.fileno(), self._receive)

    def _stop_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._sock.fileno())

    def _receive(self) -> None:
        """Take what the socket has; called by the loop."""
        for _ in range(_RECEIVED_AT_ONCE):
            buffer = self._assembler.buffer()
            try:
                count = self._sock.recv_into(buffer)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                count = 0
                self._frames.clear()  # reset: nobody is there to be answered
            if count == 0:
                self._end()
                return
            try:
                for frame in self._assembler.advance(count):
                    if not self._discarding:
                        self._frames.append(frame)
            except RemoteProtocolError as fault:
                self._fault = fault
                self._end()
                return
            if len(self._frames) >= _READ_AHEAD:
                self._stop_reading()
                break
            if count < len(buffer):
                break  # that was all
        self._tell()

    def _end(self) -> None:
        self._stop_reading()
        self._ended = True
        self._tell()
        self.hangup.happen()

    def _tell(self) -> None:
        """Wake who waits for a frame, if there is one, or none will come."""
        if self._frames or self._ended:
            arrival, self._arrival = self._arrival, None
            if arrival is not None and not arrival.done():
                arrival.set_result(None)
