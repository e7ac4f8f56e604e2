# SPDX-License-Identifier: Apache-2.0
"""A broker by script: functions that answer requests, over a network in memory or on a real socket.

:class:`ScriptedBroker` decides what a request is answered with; :class:`FakeNetwork` carries frames on the loop's own
(virtual) time, and :class:`ScriptedServer` on loopback. Both speak the real bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import ssl
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Protocol, Self

from consumerd.errors import ConnectionLost, ConsumerdError
from consumerd.net.address import Address
from consumerd.net.frames import FrameAssembler
from consumerd.net.stream import FrameReceiver
from consumerd.wire.apikeys import ApiKey
from consumerd.wire.framing import encode_frame
from consumerd.wire.modern.api_versions import ApiVersionRange, ApiVersionsRequest, ApiVersionsResponse
from consumerd.wire.schema import Request, compile_codec
from consumerd.wire.session import HEADER_CODEC
from tests.support.frames import REQUESTS
from tests.support.streams import receive

_CORRELATION_BYTES: Final = 4


class Reaction(enum.Enum):
    """What a broker does instead of answering."""

    SILENT = "silent"
    CLOSE = "close"


@dataclass(frozen=True, slots=True)
class Raw:
    """Bytes to send as they are; ``then_close`` ends the connection after them."""

    data: bytes
    then_close: bool = False


@dataclass(frozen=True, slots=True)
class Body:
    """A response body to send, unlike what the request asks for, under the right correlation id."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Late:
    """An answer that comes after a while; those behind it wait."""

    answer: object
    delay_s: float


Answer = object
"""A response message, or one of the above."""

Handler = Callable[[Any, int], Answer]
"""``(request, version) -> answer``."""


def encode_response(correlation_id: int, request: Request[Any], version: int, response: object) -> bytes:
    """Return a whole response frame."""
    codec = compile_codec(type(request).response, version)
    return encode_frame(correlation_id.to_bytes(_CORRELATION_BYTES) + codec.header_tags + codec.encode(response))


def listing(ranges: Mapping[ApiKey, tuple[int, int]]) -> ApiVersionsResponse:
    """Return an ApiVersions answer."""
    return ApiVersionsResponse(
        api_versions=tuple(
            ApiVersionRange(api_key=key, min_version=first, max_version=last) for key, (first, last) in ranges.items()
        )
    )


class Peer(Protocol):
    """The other side of a connection in memory, such as :class:`ScriptedBroker`."""

    def react(self, body: bytes) -> tuple[bytes | Reaction, float, bool]:
        """Take a request's frame body; return what to send, after how long, and whether to close then."""

    def asked(self, kind: type[Any]) -> list[Any]:
        """Return the requests of one kind so far."""


@dataclass
class ScriptedBroker:
    """Answers by ``handlers``; what has none closes the connection, as releases up to 0.8 do with the unknown.

    ``ranges`` is what it lists when asked for its versions, None to not know that question.
    """

    handlers: dict[type[Request[Any]], Handler] = field(default_factory=dict)
    ranges: Mapping[ApiKey, tuple[int, int]] | None = None
    requests: list[tuple[Request[Any], int]] = field(default_factory=list)
    correlation_ids: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.ranges is not None:
            self.handlers.setdefault(ApiVersionsRequest, lambda _request, _version: listing(self.ranges or {}))

    def asked(self, kind: type[Request[Any]]) -> list[tuple[Any, int]]:
        """Return the requests of one kind so far, with their versions."""
        return [(request, version) for request, version in self.requests if isinstance(request, kind)]

    def react(self, body: bytes) -> tuple[bytes | Reaction, float, bool]:
        """Take a request's frame body; return what to send, after how long, and whether to close then."""
        view = memoryview(body)
        header, at = HEADER_CODEC.read(view, 0, len(view))
        kind = REQUESTS[ApiKey(header.api_key)]
        codec = compile_codec(kind, header.api_version)
        request = codec.decode(codec.skip_header_tags(view[at:]))
        self.requests.append((request, header.api_version))
        self.correlation_ids.append(header.correlation_id)
        handler = self.handlers.get(kind)
        answer = Reaction.CLOSE if handler is None else handler(request, header.api_version)
        delay_s = 0.0
        if isinstance(answer, Late):
            delay_s = answer.delay_s
            answer = answer.answer
        if isinstance(answer, Reaction):
            return answer, delay_s, False
        if isinstance(answer, Raw):
            return answer.data, delay_s, answer.then_close
        if isinstance(answer, Body):
            return encode_frame(header.correlation_id.to_bytes(_CORRELATION_BYTES) + answer.data), delay_s, False
        return encode_response(header.correlation_id, request, header.api_version, answer), delay_s, False


class FakeStream:
    """A ``net.stream.Stream`` without a socket: frames written go to a broker, its answers to the receiver.

    ``stalled`` makes :meth:`drain` wait, as a peer that takes nothing does.
    """

    def __init__(self, address: Address, receiver: FrameReceiver, broker: Peer, latency_s: float) -> None:
        self.address = address
        self.closed = False
        self.written: list[bytes] = []
        self.stalled = False
        self._receiver = receiver
        self._broker = broker
        self._latency_s = latency_s
        self._requests = FrameAssembler(1 << 31)
        self._out: deque[tuple[bytes | Reaction, float, bool]] = deque()
        self._sending = False
        self._unstalled = asyncio.Event()

    def write(self, data: bytes) -> None:
        """Give request frames to the broker."""
        if self.closed:
            return
        self.written.append(data)
        for body in receive(self._requests, data, len(data)):
            self._out.append(self._broker.react(bytes(body)))
        self._send_next()

    async def drain(self) -> None:
        """Wait while stalled."""
        while self.stalled and not self.closed:
            await self._unstalled.wait()

    def close(self) -> None:
        """End it from our side."""
        self.end(ConnectionLost(f"{self.address}: closed by us"))

    async def wait_closed(self) -> None:
        """Return at once: there is no socket."""

    def deliver(self, data: bytes) -> None:
        """Send bytes to the receiver, whole frames."""
        for body in receive(FrameAssembler(1 << 31), data, len(data)):
            if self.closed:
                return
            self._receiver.frame_received(body)

    def end(self, cause: ConsumerdError) -> None:
        """End it, from either side."""
        if not self.closed:
            self.closed = True
            self._unstalled.set()
            self._receiver.stream_closed(cause)

    def _send_next(self) -> None:
        if self._sending or not self._out or self.closed:
            return
        self._sending = True
        _, delay_s, _ = self._out[0]
        asyncio.get_running_loop().call_later(self._latency_s + delay_s, self._send)

    def _send(self) -> None:
        data, _, then_close = self._out.popleft()
        if data is Reaction.SILENT:
            return  # still sending: nothing after it either, whenever it is asked, as 0.9 does
        self._sending = False
        if isinstance(data, bytes):
            self.deliver(data)
        if then_close or data is Reaction.CLOSE:
            self.end(ConnectionLost(f"{self.address}: closed by the broker"))
        self._send_next()


class FakeNetwork:
    """A ``net.stream.StreamConnector`` over scripted brokers; an address without one refuses."""

    def __init__(self, *, latency_s: float = 0.001) -> None:
        self.brokers: dict[Address, Peer] = {}
        self.streams: list[FakeStream] = []
        self.attempts: list[tuple[float, Address]] = []
        self.connect_s = 0.0
        self._latency_s = latency_s

    async def __call__(self, address: Address, receiver: FrameReceiver) -> FakeStream:
        """Connect after ``connect_s``."""
        self.attempts.append((asyncio.get_running_loop().time(), address))
        await asyncio.sleep(self.connect_s)
        broker = self.brokers.get(address)
        if broker is None:
            raise ConnectionLost(f"{address}: cannot connect: refused")
        stream = FakeStream(address, receiver, broker, self._latency_s)
        self.streams.append(stream)
        return stream


class ScriptedServer:
    """A scripted broker on a loopback port; ``async with`` listens and closes all connections."""

    def __init__(self, broker: ScriptedBroker, *, tls: ssl.SSLContext | None = None) -> None:
        self._broker = broker
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._tasks = asyncio.TaskGroup()
        self._connections: set[asyncio.Task[None]] = set()
        self.accepted = 0
        self.port = 0

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._connections:
            task.cancel()
        await self._tasks.__aexit__(None, None, None)

    @property
    def address(self) -> Address:
        """Where it listens."""
        return Address(host="127.0.0.1", port=self.port, tls=self._tls is not None)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        task = self._tasks.create_task(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                while True:
                    size = int.from_bytes(await reader.readexactly(4))
                    data, delay_s, then_close = self._broker.react(await reader.readexactly(size))
                    await asyncio.sleep(delay_s)
                    if isinstance(data, bytes):
                        writer.write(data)
                        await writer.drain()
                    if then_close or data is Reaction.CLOSE:
                        return
                    if data is Reaction.SILENT:
                        await asyncio.get_running_loop().create_future()  # until the server ends
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
