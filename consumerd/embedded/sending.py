# SPDX-License-Identifier: Apache-2.0
"""Sends a reply on a non-blocking socket: bytes by ``send``, ranges of files by ``sendfile``.

``sendfile`` moves pages from the file to the socket inside the kernel, as Kafka's ``FileRecords.writeTo`` does ("The
sendfile implementation", Kafka's documentation, Implementation: Network Layer). Where the system or the file system has no
such call, the file is read and written in steps.

What the socket does not take at once goes out as the loop finds it writable, step by step without waking a task: an answer
of some megabytes takes dozens of steps. A reader that is slow is waited for as long as it takes *something* within the
time given; meanwhile nothing is held but the reply, whose file ranges take no memory.

A step is on the event loop, as Kafka's is on a network thread: where the file's pages are not in memory it waits for the
disk, for a megabyte at most.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections import deque
from typing import Final

from consumerd.embedded.reply import FileRange, FramedReply, Piece
from consumerd.errors import ConnectionLost

_STEP_BYTES: Final = 1024 * 1024
"""What one step sends at most, before others have their turn: a reader on the same machine may take as fast as we give."""

_COPY_BYTES: Final = 256 * 1024

_NO_SENDFILE: Final = frozenset({errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOTSOCK})
_MORE: Final = getattr(socket, "MSG_MORE", 0)
"""More follows at once: the head of an answer waits for its records, and shares a segment with them."""


class ReplySender:
    """Sends one reply at a time on ``sock``. A peer that takes nothing for ``stall_s`` seconds is given up."""

    def __init__(self, sock: socket.socket, *, stall_s: float, use_sendfile: bool = hasattr(os, "sendfile")) -> None:
        self._sock = sock
        self._stall_s = stall_s
        self._use_sendfile = use_sendfile
        self._pieces: deque[Piece] = deque()
        self._sent_s = 0.0
        """When the peer took something last."""

    async def send(self, reply: FramedReply) -> None:
        """Send all of it. Bounded by the peer's taking something every ``stall_s`` seconds. Raises ConnectionLost."""
        self._pieces.extend(reply.pieces)
        try:
            self._step()
            if self._pieces:
                await self._send_rest()
        except OSError as error:
            raise ConnectionLost(f"cannot send: {error}") from error
        finally:
            self._pieces.clear()

    async def _send_rest(self) -> None:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        descriptor = self._sock.fileno()
        self._sent_s = loop.time()

        def on_writable() -> None:
            if done.done():
                return
            try:
                if self._step():
                    self._sent_s = loop.time()
            except (OSError, ConnectionLost) as error:
                done.set_exception(error)
            else:
                if not self._pieces:
                    done.set_result(None)

        loop.add_writer(descriptor, on_writable)
        try:
            while not done.done():
                left_s = self._sent_s + self._stall_s - loop.time()
                if left_s <= 0:
                    raise ConnectionLost(f"the peer has taken nothing for {self._stall_s:g} s")
                await asyncio.wait([done], timeout=left_s)
        finally:
            loop.remove_writer(descriptor)
        done.result()

    # -- steps: each sends what the socket takes now, and says how much

    def _step(self) -> int:
        """Send up to :data:`_STEP_BYTES` of what is left. Raises OSError, ConnectionLost."""
        total = 0
        pieces = self._pieces
        while pieces and total < _STEP_BYTES:
            piece = pieces[0]
            try:
                if isinstance(piece, FileRange):
                    sent = self._send_file(piece)
                else:
                    sent = self._sock.send(piece, _MORE if len(pieces) > 1 else 0)
            except BlockingIOError:
                return total
            total += sent
            if sent == len(piece):
                pieces.popleft()
            elif isinstance(piece, FileRange):
                pieces[0] = FileRange(piece.descriptor, piece.position + sent, piece.size - sent)
            else:
                pieces[0] = memoryview(piece)[sent:]
        return total

    def _send_file(self, piece: FileRange) -> int:
        size = min(piece.size, _STEP_BYTES)
        if self._use_sendfile:
            try:
                sent = os.sendfile(self._sock.fileno(), piece.descriptor, piece.position, size)
            except BlockingIOError:
                raise
            except OSError as error:
                if error.errno not in _NO_SENDFILE:
                    raise
                self._use_sendfile = False
        if not self._use_sendfile:
            data = os.pread(piece.descriptor, min(size, _COPY_BYTES), piece.position)
            sent = self._sock.send(data) if data else 0
        if not sent:
            raise ConnectionLost(f"a log's file ends at {piece.position}, {piece.size} bytes before what was promised")
        return sent
