# SPDX-License-Identifier: Apache-2.0
"""A server that speaks ZooKeeper's frames and answers as a test tells it."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Callable
from typing import Final

EXISTS: Final = 3
GET: Final = 4
SET: Final = 5
SYNC: Final = 9
STAT: Final = bytes(68)

Answer = Callable[[int, int], bytes]
"""From xid and opcode to the answer's frame."""


def reply(xid: int, error: int = 0, body: bytes = b"") -> bytes:
    """Frame an answer."""
    return frame(struct.pack("!iqi", xid, 7, error) + (body if not error else b""))


def frame(body: bytes) -> bytes:
    """Prefix a length."""
    return struct.pack("!i", len(body)) + body


def sound(xid: int, opcode: int) -> bytes:
    """Answer as a server with an empty, willing tree."""
    return reply(xid, body=struct.pack("!i", 1) + b"x" + STAT if opcode == GET else STAT)


class ScriptedZooKeeper:
    """Greets with session 1, 2, ...; answers as told. Knows no tree."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        """For the next requests of ours, one each; then all goes well."""
        self.greetings: list[bytes] = []
        self.asked: list[tuple[int, int]] = []
        """Session id and opcode of each connection's first frame and of each request of ours."""
        self.refused = 0
        """Error that answers our first request of a connection, which asks for the chroot; 0: it is there."""
        self.sessions = 0
        self.port = 0

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        """Listen; gives the connect string."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        async with server:
            self.port = server.sockets[0].getsockname()[1]
            yield f"127.0.0.1:{self.port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            hello = await self._read(reader)
            (session,) = struct.unpack_from("!q", hello, 16)
            if self.greetings:
                writer.write(self.greetings.pop(0))
            else:
                if session == 0:
                    self.sessions += 1
                    session = self.sessions
                writer.write(frame(struct.pack("!iiqi", 0, 6000, session, 16) + bytes(17)))
            self.asked.append((session, 0))
            while True:
                xid, opcode = struct.unpack_from("!ii", await self._read(reader))
                if opcode in {EXISTS, SYNC}:
                    writer.write(reply(xid, self.refused, STAT) if opcode == EXISTS else sound(xid, opcode))
                    continue
                self.asked.append((session, opcode))
                writer.write((self.answers.pop(0) if self.answers else sound)(xid, opcode))
        writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> bytes:
        (length,) = struct.unpack("!i", await reader.readexactly(4))
        return await reader.readexactly(length)
