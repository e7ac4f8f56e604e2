# SPDX-License-Identifier: Apache-2.0
"""Sends replies on a non-blocking socket: bytes by ``send``, file ranges by ``sendfile``.

``sendfile`` moves pages from the file to the socket inside the kernel, as Kafka's ``FileRecords.writeTo`` does ("The
sendfile implementation", Kafka's documentation, Implementation: Network Layer). Without such a call, the file is read
and written in steps.

Bytes that the socket does not accept at once are sent as it becomes writable, step by step, without waking a task: a
response of some megabytes takes dozens of steps. A slow reader is waited for as long as it accepts *something* within
the time limit; meanwhile only the reply is held, whose file ranges take no memory.

Steps run on the event loop, as Kafka's run on a network thread: if the file's pages are not in memory, a step waits for
the disk, for one megabyte at most.
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
"""Bytes that one step sends at most, so that other connections get a turn: a local reader may accept without limit."""

_COPY_BYTES: Final = 256 * 1024

_NO_SENDFILE: Final = frozenset({errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOTSOCK})
_MORE: Final = getattr(socket, "MSG_MORE", 0)
"""Tells the kernel that more data follows: the header of a response shares a packet with its records."""


class ReplySender:
    """Sends the replies of one connection on ``sock``, one at a time."""

    def __init__(self, sock: socket.socket, *, stall_s: float, use_sendfile: bool = hasattr(os, "sendfile")) -> None:
        self._sock = sock
        self._stall_s = stall_s
        self._use_sendfile = use_sendfile
        self._pieces: deque[Piece] = deque()
        self._sent_s = 0.0
        """Loop time at which the peer last accepted something."""

    async def send(self, reply: FramedReply) -> None:
        """Send a whole reply, however long the client takes to read it.

        Raises ConnectionLost if the client disconnects, or accepts no bytes for ``stall_s`` seconds.
        """
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

    # -- steps: each sends as much as the socket accepts now

    def _step(self) -> int:
        """Send up to :data:`_STEP_BYTES`; return the bytes sent. Raises OSError, ConnectionLost."""
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
