# SPDX-License-Identifier: Apache-2.0
"""A TCP proxy on loopback that misbehaves on request, between us and a real server.

It runs on the test's event loop and knows one thing of the protocols that it carries: frames begin with an int32
length (ZooKeeper and Kafka alike). What is not framed (a four-letter command, TLS) goes through as it comes.

What is held back by :meth:`TcpProxy.blackhole` is delivered by :meth:`TcpProxy.heal`, as a network that was partitioned
for a while does; new connections meanwhile are accepted and hear nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import socket
import ssl
import struct
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Final, Self

_HOST: Final = "127.0.0.1"
_LENGTH: Final = struct.Struct("!i")
_MAX_FRAME_BYTES: Final = 1 << 28
_CHUNK_BYTES: Final = 1 << 18


class Direction(enum.Enum):
    """Which way bytes go."""

    TO_SERVER = "to server"
    TO_CLIENT = "to client"


class Action(enum.Enum):
    """What becomes of a frame, and of what follows."""

    FORWARD = enum.auto()
    CUT = enum.auto()
    """Not forwarded; both sides see a reset."""
    CUT_AFTER = enum.auto()
    """Forwarded; then both sides see a reset."""
    BLACKHOLE = enum.auto()
    """Held back, and everything after it, until healed."""
    BLACKHOLE_AFTER = enum.auto()
    """Forwarded; everything after it is held back until healed."""
    HOLD = enum.auto()
    """Held back until healed, with what follows on its connection in this direction; other connections go on."""


FrameHook = Callable[[Direction, bytes], Action]
"""Decides on a whole frame, length prefix included."""


class _Stream:
    """One direction of one connection, cut into frames; bytes that are no frames come out as they are."""

    def __init__(self, *, framed: bool) -> None:
        self._buffer = bytearray()
        self._framed = framed

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bool]]:
        """Yield pieces, and whether each is a whole frame."""
        self._buffer += data
        while self._framed and len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if not 0 <= length <= _MAX_FRAME_BYTES:
                self._framed = False
                break
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                return
            frame = bytes(self._buffer[:end])
            del self._buffer[:end]
            yield frame, True
        if not self._framed and self._buffer:
            piece = bytes(self._buffer)
            self._buffer.clear()
            yield piece, False

    def rest(self) -> bytes:
        """What came before the end without making a frame."""
        return bytes(self._buffer)


class TcpProxy:
    """Forwards ``127.0.0.1:port`` to the target; ``async with`` listens and closes everything.

    ``on_frame`` and ``delay_s`` (how late answers are passed on, at least: what comes meanwhile waits behind them) may be
    set at any time. Every method acts at once, on all connections. A protocol without lengths needs ``framed=False``:
    then bytes are never kept back to make a frame. With ``tls`` clients speak TLS; the target is spoken to in plain text.
    """

    def __init__(
        self,
        target_port: int,
        *,
        target_host: str = _HOST,
        framed: bool = True,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._target = (target_host, target_port)
        self._tls = tls
        self._framed = framed
        self._port = 0
        self._server: asyncio.Server | None = None
        self._tasks = asyncio.TaskGroup()
        self._writers: dict[asyncio.Task[None], list[asyncio.StreamWriter]] = {}
        self._gates = {direction: asyncio.Event() for direction in Direction}
        self._healed = asyncio.Event()
        self._truncate_at: int | None = None
        self._cut_at: dict[Direction, int] = {}
        self.carried = dict.fromkeys(Direction, 0)
        """Bytes forwarded so far."""
        self.on_frame: FrameHook | None = None
        self.delay_s = 0.0
        self.accepted = 0
        """Connections accepted so far."""

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self.heal()
        await self.listen()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close_server()
        for task in list(self._writers):
            task.cancel()
        # the body's own failure is reported as it is, not in a group; a cancellation is the group's to judge
        cancelled = kind is not None and issubclass(kind, asyncio.CancelledError)
        await self._tasks.__aexit__(*((kind, error, traceback) if cancelled else (None, None, None)))

    @property
    def port(self) -> int:
        """Where it listens; the same over :meth:`refuse` and :meth:`listen`."""
        return self._port

    @property
    def target_port(self) -> int:
        """The port that it forwards to."""
        return self._target[1]

    @property
    def connect_string(self) -> str:
        """``127.0.0.1:<port>``."""
        return f"{_HOST}:{self._port}"

    @property
    def connections(self) -> int:
        """How many connections it carries now."""
        return len(self._writers)

    @property
    def cut_pending(self) -> bool:
        """Whether a cut that :meth:`cut_after` asked for is still to come."""
        return bool(self._cut_at)

    @property
    def held(self) -> bool:
        """Whether anything is held back now."""
        return not all(gate.is_set() for gate in self._gates.values())

    # -- modes

    def heal(self) -> None:
        """Forward again, beginning with what was held back."""
        for gate in self._gates.values():
            gate.set()
        self._healed.set()
        self._healed = asyncio.Event()

    def blackhole(self, *directions: Direction) -> None:
        """Hold back everything (or one direction only: half-open), closes included."""
        for direction in directions or Direction:
            self._gates[direction].clear()

    def refuse(self) -> None:
        """Refuse new connections; those that there are stay."""
        self._close_server()

    async def listen(self) -> None:
        """Accept connections (again)."""
        if self._server is None:
            self._server = await asyncio.start_server(
                self._accept, _HOST, self._port, limit=_CHUNK_BYTES, ssl=self._tls
            )
            self._port = self._server.sockets[0].getsockname()[1]

    # -- events

    def cut(self) -> None:
        """Reset all connections, on both sides."""
        for writers in self._writers.values():
            for writer in writers:
                _reset(writer)

    def fin(self) -> None:
        """Close all connections in order, on both sides."""
        for writers in self._writers.values():
            for writer in writers:
                writer.close()

    def truncate_next(self, size: int) -> None:
        """Forward ``size`` bytes of the next frame from the server, then close its connection in order."""
        self._truncate_at = size

    def cut_after(self, direction: Direction, size: int) -> None:
        """Forward ``size`` more bytes in one direction, whatever they are a part of, then reset all connections, once."""
        self._cut_at[direction] = size

    # -- connections

    def _close_server(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        task = self._tasks.create_task(self._carry(reader, writer), name="proxy-connection")
        self._writers[task] = [writer]
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        for writer in self._writers.pop(task):
            # one that is closing in order may still have bytes to flush
            if not writer.transport.is_closing():
                writer.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        await self._gates[Direction.TO_SERVER].wait()
        try:
            upstream_reader, upstream_writer = await asyncio.open_connection(*self._target, limit=_CHUNK_BYTES)
        except OSError:
            _reset(writer)
            return
        self._writers[task].append(upstream_writer)
        async with asyncio.TaskGroup() as pumps:
            pumps.create_task(self._pump(Direction.TO_SERVER, reader, upstream_writer))
            pumps.create_task(self._pump(Direction.TO_CLIENT, upstream_reader, writer))

    async def _pump(self, direction: Direction, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        stream = _Stream(framed=self._framed)
        with contextlib.suppress(OSError):
            while data := await source.read(_CHUNK_BYTES):
                if self.delay_s and direction is Direction.TO_CLIENT:
                    await asyncio.sleep(self.delay_s)
                for piece, whole in stream.feed(data):
                    await self._forward(direction, piece, sink, whole=whole)
            await self._gates[direction].wait()
            _write(sink, stream.rest())
        # the other side's pump ends when its own source does, which this close brings about
        with contextlib.suppress(OSError):
            sink.close()

    async def _forward(self, direction: Direction, piece: bytes, sink: asyncio.StreamWriter, *, whole: bool) -> None:
        action = self.on_frame(direction, piece) if whole and self.on_frame is not None else Action.FORWARD
        if action is Action.CUT:
            self.cut()
            return
        if action is Action.BLACKHOLE:
            self.blackhole()
        if action is Action.HOLD:
            await self._healed.wait()
        await self._gates[direction].wait()
        if direction is Direction.TO_CLIENT and self._truncate_at is not None:
            piece, self._truncate_at = piece[: self._truncate_at], None
            _write(sink, piece)
            self.fin()
            return
        if not self._spend(direction, piece, sink):
            self.cut()
            return
        if action is Action.BLACKHOLE_AFTER:
            self.blackhole()
        await sink.drain()
        if action is Action.CUT_AFTER:
            self.cut()

    def _spend(self, direction: Direction, piece: bytes, sink: asyncio.StreamWriter) -> bool:
        """Write as much as may go this way before a cut; return whether that was all."""
        left = self._cut_at.get(direction)
        if left is not None and left <= len(piece):
            del self._cut_at[direction]
            piece = piece[:left]
        elif left is not None:
            self._cut_at[direction] = left - len(piece)
            left = None
        self.carried[direction] += len(piece)
        _write(sink, piece)
        return left is None


def _write(sink: asyncio.StreamWriter, piece: bytes) -> None:
    """Write, unless the other side is gone: uvloop's transports refuse that."""
    if not sink.is_closing():
        sink.write(piece)


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close with a reset instead of an orderly end."""
    sock: socket.socket | None = writer.get_extra_info("socket")
    if sock is not None and not writer.transport.is_closing():
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
