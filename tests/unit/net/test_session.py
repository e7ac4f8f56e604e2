# SPDX-License-Identifier: Apache-2.0
"""A connection over a first-in-first-out session without correlation ids, as brokers of 0.6/0.7 need it."""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from consumerd.aio.timeouts import timeout
from consumerd.errors import ConnectionLost, LocalProtocolError, RemoteProtocolError, RequestTimedOut
from consumerd.model import BrokerId
from consumerd.net.address import Address
from consumerd.net.connection import BrokerConnection
from consumerd.net.frames import FrameAssembler
from consumerd.net.stream import FrameReceiver
from consumerd.telemetry.hooks import Hooks
from consumerd.wire.apikeys import ApiKey
from consumerd.wire.framing import encode_frame
from consumerd.wire.schema import Request
from tests.support import virtual_time
from tests.support.streams import receive

ADDRESS = Address(host="b", port=9092)
LATENCY_S = 0.001
NUMBER = struct.Struct(">i")


@dataclass(frozen=True)
class Square(Request[int]):
    """Asks for the square of a number."""

    api: ClassVar[ApiKey] = ApiKey.LIST_OFFSETS
    versions: ClassVar[range] = range(1)

    number: int

    def encode(self, version: int) -> bytes:
        if self.number < 0:
            raise LocalProtocolError("a negative number")
        return NUMBER.pack(self.number)

    def decode_response(self, version: int, body: memoryview) -> int:
        if len(body) != NUMBER.size:
            raise RemoteProtocolError(f"a number of {len(body)} bytes")
        (square,) = NUMBER.unpack(body)
        return int(square)


@dataclass(frozen=True)
class Note(Square):
    """Is not answered, like a Produce of 0.7."""

    api: ClassVar[ApiKey] = ApiKey.PRODUCE

    @property
    def expects_response(self) -> bool:
        return False


@dataclass(frozen=True)
class Frame:
    key: int
    body: memoryview


class FifoSession:
    """Matches answers to requests by their order alone."""

    def __init__(self) -> None:
        self._pending: deque[int] = deque()
        self._sent = 0

    @property
    def in_flight(self) -> int:
        return len(self._pending)

    def send(self, request: Request[Any], version: int) -> tuple[int, bytes]:
        frame = encode_frame(bytes([request.api]) + request.encode(version))
        key = self._sent
        self._sent += 1
        if request.expects_response:
            self._pending.append(key)
        return key, frame

    def receive_frame(self, body: memoryview) -> Frame:
        if not self._pending:
            raise RemoteProtocolError("an answer to no request")
        return Frame(self._pending.popleft(), body)


class OneVersion:
    """Has one version of each request."""

    mutes_after_answer = False

    def choose(self, request: type[Request[Any]], *, at_most: int | None = None) -> int:
        return 0


class Network:
    """A broker that answers with squares, in the order of the requests; it is also the stream to it."""

    def __init__(
        self, *, delays_s: tuple[float, ...] = (), answers: Callable[[int], bytes | None] | None = None
    ) -> None:
        self.noted: list[int] = []
        self.closed = False
        self._delays_s = deque(delays_s)
        self._answers: deque[bytes] = deque()
        self._answer = answers or (lambda number: NUMBER.pack(number * number))
        self._requests = FrameAssembler(1 << 20)
        self._receiver: FrameReceiver | None = None
        self._free_at = 0.0

    async def __call__(self, address: Address, receiver: FrameReceiver) -> Network:
        self._receiver = receiver
        return self

    def write(self, data: bytes) -> None:
        loop = asyncio.get_running_loop()
        for body in receive(self._requests, data, len(data)):
            (number,) = NUMBER.unpack(body[1:])
            if body[0] == ApiKey.PRODUCE:
                self.noted.append(number)
                continue
            answer = self._answer(number)
            delay_s = self._delays_s.popleft() if self._delays_s else 0.0
            self._free_at = max(self._free_at, loop.time()) + delay_s
            if answer is not None:
                self._answers.append(answer)
                loop.call_at(self._free_at + LATENCY_S, self._deliver_next)

    def _deliver_next(self) -> None:
        self.deliver(self._answers.popleft())  # in order, also where several are due at once

    def deliver(self, body: bytes) -> None:
        assert self._receiver is not None
        if not self.closed:
            self._receiver.frame_received(memoryview(body))

    async def drain(self) -> None:
        """Nothing to wait for."""

    def close(self) -> None:
        if not self.closed and self._receiver is not None:
            self.closed = True
            self._receiver.stream_closed(ConnectionLost("closed"))

    async def wait_closed(self) -> None:
        """There is no socket."""


def run(network: Network, scenario: Callable[[BrokerConnection], Awaitable[None]]) -> None:
    async def play() -> None:
        connection = await BrokerConnection.open(
            network,
            FifoSession(),
            ADDRESS,
            broker=BrokerId(1),
            now=asyncio.get_running_loop().time,
            hooks=Hooks(),
        )
        connection.adopt(OneVersion())
        await scenario(connection)

    virtual_time.run(play())


def test_answers_belong_to_requests_in_order() -> None:
    """Without ids, order is all there is; requests are pipelined all the same."""
    network = Network(delays_s=(1.0,))

    async def scenario(connection: BrokerConnection) -> None:
        async with asyncio.TaskGroup() as tasks:
            answers = [tasks.create_task(connection.request(Square(n), timeout_s=5)) for n in (2, 3, 4)]
            await asyncio.sleep(0.5)
            assert connection.in_flight == 3
        assert [4, 9, 16] == [answer.result() for answer in answers]
        assert asyncio.get_running_loop().time() == pytest.approx(1.0 + LATENCY_S)

    run(network, scenario)


def test_request_without_an_answer_takes_no_turn() -> None:
    """Else each answer behind it would go to the request before."""
    network = Network()

    async def scenario(connection: BrokerConnection) -> None:
        await connection.send(Note(7), timeout_s=1)
        assert connection.in_flight == 0
        assert await connection.request(Square(3), timeout_s=1) == 9

    run(network, scenario)
    assert network.noted == [7]


def test_request_past_its_deadline_poisons() -> None:
    """Its late answer would be taken for the next request's, so the whole connection has to go."""
    network = Network(delays_s=(60.0,))

    async def scenario(connection: BrokerConnection) -> None:
        async with asyncio.TaskGroup() as tasks:
            late = tasks.create_task(_outcome(connection.request(Square(2), timeout_s=1)))
            behind = tasks.create_task(_outcome(connection.request(Square(3), timeout_s=90)))
        assert type(late.result()) is RequestTimedOut
        lost = behind.result()
        assert type(lost) is ConnectionLost
        assert isinstance(lost.__cause__, RequestTimedOut)
        assert connection.closed
        assert asyncio.get_running_loop().time() == pytest.approx(1.0)

    run(network, scenario)


def test_cancelled_request_keeps_its_turn() -> None:
    """Its answer is still on the way: the next one must not take it."""
    network = Network(delays_s=(1.0,))

    async def scenario(connection: BrokerConnection) -> None:
        with pytest.raises(TimeoutError):
            async with timeout(0.5):
                await connection.request(Square(2), timeout_s=5)
        assert connection.in_flight == 1
        assert await connection.request(Square(3), timeout_s=5) == 9
        assert connection.in_flight == 0

    run(network, scenario)


def test_answer_to_no_request_poisons() -> None:
    """The two sides disagree on where they are."""
    network = Network()

    async def scenario(connection: BrokerConnection) -> None:
        await connection.request(Square(2), timeout_s=1)
        network.deliver(NUMBER.pack(1))
        assert connection.closed
        with pytest.raises(ConnectionLost, match="an answer to no request") as lost:
            await connection.request(Square(3), timeout_s=1)
        assert isinstance(lost.value.__cause__, RemoteProtocolError)

    run(network, scenario)


def test_unreadable_answer_fails_its_own_request_only() -> None:
    """The order is still known."""
    network = Network(answers=lambda number: b"?" if number == 2 else NUMBER.pack(number))

    async def scenario(connection: BrokerConnection) -> None:
        with pytest.raises(RemoteProtocolError, match="1 bytes"):
            await connection.request(Square(2), timeout_s=1)
        assert await connection.request(Square(3), timeout_s=1) == 3

    run(network, scenario)


def test_request_that_cannot_be_sent_takes_no_turn() -> None:
    """Our own mistake must not shift the answers."""

    async def scenario(connection: BrokerConnection) -> None:
        with pytest.raises(LocalProtocolError):
            await connection.request(Square(-1), timeout_s=1)
        assert await connection.request(Square(3), timeout_s=1) == 9

    run(Network(), scenario)


async def _outcome(request: Awaitable[object]) -> BaseException | None:
    try:
        await request
    except ConnectionLost as error:
        return error
    return None
