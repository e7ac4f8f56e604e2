# SPDX-License-Identifier: Apache-2.0
"""One accepted connection of the broker: splits its input into requests, and sends replies.

Requests are handed out in the order in which they arrive. The caller sends each response before it takes the next
request, which keeps responses in order.

Reading ahead
    While a request is handled, the next ones are read, up to a limit of frames and bytes. At the limit, the socket is
    not read any more, so that TCP slows the peer down.

Memory
    A request above 16 KiB takes memory that all connections share (``request_memory``), step by step as its bytes
    arrive. It is released when the next request is taken. While others wait for memory, a peer that sends a large
    request at less than 64 KiB/s is disconnected.

End of the stream
    It is noticed while a request is handled, unless the limit of reading ahead is reached.
    :attr:`ServedConnection.hangup` then ends long polls and other waits for this peer. Complete requests before the end
    are still handed out, since a peer may close only its sending side.

A silent peer without a pending request is disconnected after a time (Kafka's ``connections.max.idle.ms``).
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import socket
from collections import deque
from typing import Final

from consumerd.embedded.handlers.context import Hangup
from consumerd.embedded.reply import FramedReply
from consumerd.embedded.request_memory import MemoryClaim, RequestMemory
from consumerd.embedded.sending import ReplySender
from consumerd.errors import ConnectionLost, ConsumerdError, RemoteProtocolError
from consumerd.net.frames import FrameAssembler

_AHEAD_FRAMES: Final = 2
_AHEAD_BYTES: Final = 32 * 1024
_AHEAD_SMALL_FRAMES: Final = 200
"""Reading ahead stops at 200 frames, or at two or more frames of 32 KiB together.

Frames that arrive in one call may exceed these limits.
"""

_RECEIVED_AT_ONCE: Final = 4
"""Receive calls before other connections get a turn. The first call for a large request returns only its beginning."""

_BETWEEN_BYTES: Final = 16 * 1024
"""Frames up to this size take no shared memory."""
_LARGE_BYTES: Final = 256 * 1024
"""Frames from this size on are memory-mapped."""

_PROGRESS_S: Final = 10.0
"""Interval, in seconds, at which the progress of a large request is checked."""
_LEAST_PROGRESS_BYTES: Final = 640 * 1024
"""Bytes that must arrive in that interval while others wait for memory."""


def allocate_frame(size: int) -> memoryview:
    """Return memory for a request of ``size`` bytes.

    Large requests are memory-mapped: they get pages of memory only as bytes arrive.
    """
    return memoryview(bytearray(size)) if size < _LARGE_BYTES else memoryview(mmap.mmap(-1, size))


class ServedConnection:
    """A client's connection to the broker, for use on one event loop.

    The connection owns the non-blocking socket ``sock``, and closes it in :meth:`close`, which must be called.
    """

    def __init__(
        self,
        sock: socket.socket,
        *,
        name: str,
        peer_host: str,
        max_frame_bytes: int,
        memory: RequestMemory,
        stall_s: float,
        idle_s: float,
        progress_s: float = _PROGRESS_S,
    ) -> None:
        self.name = name
        self.peer_host = peer_host
        self.hangup = Hangup()
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._assembler = FrameAssembler(max_frame_bytes, between_bytes=_BETWEEN_BYTES, allocate=self._allocate)
        self._sender = ReplySender(sock, stall_s=stall_s)
        self._memory = memory
        self._arriving: MemoryClaim | None = None
        """Memory of the large frame that is arriving."""
        self._missing_bytes: int | None = None
        """Missing bytes of that frame at the last check; None if it began, or got more memory, since then."""
        self._progress_s = progress_s
        self._progress_timer: asyncio.TimerHandle | None = None
        self._frames: deque[tuple[memoryview, MemoryClaim | None]] = deque()
        self._waiting_bytes = 0
        self._worked_on: MemoryClaim | None = None
        self._arrival: asyncio.Future[None] | None = None
        self._fault: ConsumerdError | None = None
        self._reading = False
        self._discarding = False
        self._ended = False
        self._idle_s = idle_s
        self._active_s = self._loop.time()
        """Loop time of the peer's last input, or of the last response to it."""
        self._idle_timer = self._loop.call_later(idle_s, self._check_idle)
        self._read_on()

    @property
    def has_frame(self) -> bool:
        """True if :meth:`next_frame` would return at once."""
        return bool(self._frames)

    async def next_frame(self) -> memoryview | None:
        """Return the bytes of the next request, without its size; None at the stream's end.

        The memory of the previous request must not be used any more. Raises RemoteProtocolError if the size of a
        request is invalid, ConnectionLost if the client is silent for too long.
        """
        self._finish_work()
        self._active_s = self._loop.time()
        while not self._frames:
            if self._fault is not None:
                raise self._fault
            if self._ended:
                return None
            self._arrival = self._loop.create_future()
            await self._arrival
        frame, self._worked_on = self._frames.popleft()
        self._waiting_bytes -= len(frame)
        self._read_on()
        return frame

    async def send(self, reply: FramedReply) -> None:
        """Send a reply, and close the files that it refers to.

        Raises ConnectionLost if the client disconnects, or accepts no bytes for too long.
        """
        try:
            await self._sender.send(reply)
        finally:
            reply.close()

    async def fall_silent(self) -> None:
        """Send no more responses: read and discard requests until the client disconnects.

        Raises RemoteProtocolError if the size of a request is invalid, ConnectionLost if the client is silent for too
        long.
        """
        self._discarding = True
        while await self.next_frame() is not None:
            pass

    def close(self) -> None:
        """Close the socket, discarding unsent bytes. Idempotent."""
        self._stop_reading()
        self._idle_timer.cancel()
        self._ended = True
        self._drop_frames()
        self._finish_work()
        if self._progress_timer is not None:
            self._progress_timer.cancel()
        if self._arriving is not None:
            self._arriving.release()
            self._arriving = None
        with contextlib.suppress(OSError):  # the peer may have disconnected already
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    # -- reading

    @property
    def _is_ahead(self) -> bool:
        return len(self._frames) >= _AHEAD_FRAMES and (
            self._waiting_bytes >= _AHEAD_BYTES or len(self._frames) >= _AHEAD_SMALL_FRAMES
        )

    @property
    def _waits_for_room(self) -> bool:
        return self._arriving is not None and not self._arriving.held

    def _read_on(self) -> None:
        """Register the socket with the loop, if there is memory for more input."""
        if not (self._reading or self._ended or self._is_ahead or self._waits_for_room):
            self._reading = True
            self._loop.add_reader(self._sock.fileno(), self._receive)

    def _stop_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._sock.fileno())

    def _allocate(self, size: int) -> memoryview:
        if size > _BETWEEN_BYTES:
            self._arriving = self._memory.take(size, self._enter)
            self._missing_bytes = None
            if self._progress_timer is None:
                self._progress_timer = self._loop.call_later(self._progress_s, self._check_progress)
        return allocate_frame(size)

    def _enter(self) -> None:
        """Continue reading, after more memory was reserved for the arriving frame."""
        self._active_s = self._loop.time()
        self._missing_bytes = None
        self._read_on()

    def _check_progress(self) -> None:
        """Disconnect a peer that holds memory others wait for, and sends too slowly."""
        self._progress_timer = None
        if self._arriving is None:
            return
        before, self._missing_bytes = self._missing_bytes, len(self._assembler.buffer())
        is_slow = before is not None and before - self._missing_bytes < _LEAST_PROGRESS_BYTES
        if is_slow and self._arriving.held and self._memory.contended:
            self._end(ConnectionLost("a large request came too slowly, while others waited for room"))
            return
        self._progress_timer = self._loop.call_later(self._progress_s, self._check_progress)

    def _reserved_part(self, buffer: memoryview) -> memoryview:
        """Return the part of the buffer that may be filled now.

        For a large frame, that is the part whose memory is reserved (perhaps none); otherwise all of it.
        """
        claim = self._arriving
        if claim is None:
            return buffer
        missing_bytes = len(buffer)
        if claim.reserved_bytes == claim.size - missing_bytes:
            claim.reserve_more()
        return buffer[: claim.reserved_bytes - (claim.size - missing_bytes)]

    def _receive(self) -> None:
        """Receive from the socket; called by the loop."""
        self._active_s = self._loop.time()
        for _ in range(_RECEIVED_AT_ONCE):
            buffer = self._reserved_part(self._assembler.buffer())
            if not buffer:
                self._stop_reading()  # until memory is reserved
                break
            try:
                count = self._sock.recv_into(buffer)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                count = 0
                self._drop_frames()  # connection reset: there is no peer to respond to
            if count == 0:
                self._end()
                return
            try:
                for frame in self._assembler.advance(count):
                    self._add(frame)
            except RemoteProtocolError as fault:
                self._end(fault)
                return
            except (MemoryError, OSError) as error:
                self._end(ConnectionLost(f"no memory for a request: {error}"))
                return
            if self._is_ahead or self._waits_for_room:
                self._stop_reading()
                break
            if count < len(buffer):
                break  # the socket is empty
        self._tell()

    def _add(self, frame: memoryview) -> None:
        claim = None
        if len(frame) > _BETWEEN_BYTES:
            claim, self._arriving = self._arriving, None
            if claim is not None:
                claim.finish()
        if not self._discarding:
            self._frames.append((frame, claim))
            self._waiting_bytes += len(frame)
        elif claim is not None:
            claim.release()

    def _drop_frames(self) -> None:
        for _, claim in self._frames:
            if claim is not None:
                claim.release()
        self._frames.clear()
        self._waiting_bytes = 0

    def _finish_work(self) -> None:
        claim, self._worked_on = self._worked_on, None
        if claim is not None:
            claim.release()

    def _check_idle(self) -> None:
        """Disconnect a peer that was silent for too long without a pending request.

        Otherwise, schedule the next check.
        """
        now_s = self._loop.time()
        waits_for_us = self._arrival is None or self._waits_for_room
        ends_s = (now_s if waits_for_us else self._active_s) + self._idle_s
        if ends_s <= now_s:
            self._end(ConnectionLost(f"the peer has said nothing for {self._idle_s:g} s"))
        else:
            self._idle_timer = self._loop.call_at(ends_s, self._check_idle)

    def _end(self, fault: ConsumerdError | None = None) -> None:
        self._fault = fault
        self._stop_reading()
        self._ended = True
        self._tell()
        self.hangup.happen()

    def _tell(self) -> None:
        """Wake the waiter for a frame, if there is one or none will come."""
        if self._frames or self._ended:
            arrival, self._arrival = self._arrival, None
            if arrival is not None and not arrival.done():
                arrival.set_result(None)
