"""Sends a reply on a non-blocking socket: bytes by ``send``, ranges of files by ``sendfile``.

``sendfile`` moves pages from the file to the socket inside the kernel, as Kafka's ``FileRecords.writeTo`` does ("The
sendfile implementation", Kafka's documentation, Implementation: Network Layer). Where the system or the file system has no
such call, the file is read and written in steps.

A reader that is slow is waited for as long as it takes *something* within the time given; meanwhile nothing is held but
the reply, whose file ranges take no memory.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from typing import Final

from consumerd.aio.timeouts import timeout
from consumerd.embedded.reply import FileRange, Reply
from consumerd.errors import ConnectionLost

_STEP_BYTES: Final = 1024 * 1024
"""What one call sends at most, before others have their turn."""

_COPY_BYTES: Final = 256 * 1024

_NO_SENDFILE: Final = frozenset({errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOTSOCK})
_MORE: Final = getattr(socket, "MSG_MORE", 0)
"""More follows at once: the head of an answer waits for its records, and shares a segment with them."""


class Sender:
    """Sends one reply at a time on ``sock``. A peer that takes nothing for ``stall_s`` seconds is given up."""

    def __init__(self, sock: socket.socket, *, stall_s: float, use_sendfile: bool = hasattr(os, "sendfile")) -> None:
        self._sock = sock
        self._stall_s = stall_s
        self._use_sendfile = use_sendfile

    async def send(self, reply: Reply) -> None:
        """Send all of it. Bounded by the peer's taking something every ``stall_s`` seconds. Raises ConnectionLost."""
        last = len(reply.pieces) - 1
        try:
            for number, piece in enumerate(reply.pieces):
                if isinstance(piece, FileRange):
                    await self._send_file(piece)
                else:
                    await self._send_bytes(piece, _MORE if number < last else 0)
        except OSError as error:
            raise ConnectionLost(f"cannot send: {error}") from error

    async def _send_bytes(self, data: bytes | memoryview, flags: int) -> None:
        try:
            sent = self._sock.send(data, flags)
        except BlockingIOError:
            sent = 0
        view = memoryview(data)[sent:]
        while view:
            await self._wait_writable()
            try:
                view = view[self._sock.send(view, flags) :]
            except BlockingIOError:
                continue

    async def _send_file(self, piece: FileRange) -> None:
        position, end = piece.position, piece.position + piece.size
        waited = False
        while position < end:
            if not self._use_sendfile:
                await self._copy(piece.descriptor, position, end)
                return
            try:
                sent = os.sendfile(self._sock.fileno(), piece.descriptor, position, min(end - position, _STEP_BYTES))
            except BlockingIOError:
                await self._wait_writable()
                waited = True
                continue
            except OSError as error:
                if error.errno not in _NO_SENDFILE:
                    raise
                self._use_sendfile = False
                continue
            if sent == 0:
                raise ConnectionLost(
                    f"the log's file ends at {position}, {end - position} bytes before what was promised"
                )
            position += sent
            if not waited and position < end:
                # a reader on the same machine may take as fast as we give, and nobody else would have a turn
                await asyncio.sleep(0)
            waited = False

    async def _copy(self, descriptor: int, position: int, end: int) -> None:
        while position < end:
            data = os.pread(descriptor, min(end - position, _COPY_BYTES), position)
            if not data:
                raise ConnectionLost(
                    f"the log's file ends at {position}, {end - position} bytes before what was promised"
                )
            await self._send_bytes(data, 0)
            position += len(data)

    async def _wait_writable(self) -> None:
        loop = asyncio.get_running_loop()
        writable: asyncio.Future[None] = loop.create_future()
        descriptor = self._sock.fileno()
        if descriptor < 0:
            raise ConnectionLost("cannot send: the connection is closed")
        loop.add_writer(descriptor, _wake, writable)
        try:
            async with timeout(self._stall_s):
                await writable
        except TimeoutError as error:
            raise ConnectionLost(f"the peer has taken nothing for {self._stall_s:g} s") from error
        finally:
            loop.remove_writer(descriptor)


def _wake(writable: asyncio.Future[None]) -> None:
    if not writable.done():
        writable.set_result(None)
