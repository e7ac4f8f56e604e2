# SPDX-License-Identifier: Apache-2.0
"""Connections over real sockets, to brokers that misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trustme

from consumerd.aio.timeouts import timeout
from consumerd.errors import ConfigError, ConnectionLost, RemoteProtocolError, RequestTimedOut
from consumerd.net.address import Address
from consumerd.net.connection import BrokerConnection
from consumerd.net.dialer import Dialer
from consumerd.net.stream import TcpConnector
from consumerd.net.versions import Origin, assume_release
from consumerd.telemetry.hooks import Hooks
from consumerd.wire.apikeys import ApiKey
from consumerd.wire.modern.fetch import FetchedPartition, FetchedTopic, FetchRequest, FetchResponse
from consumerd.wire.modern.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from consumerd.wire.modern.metadata import MetadataBroker, MetadataRequest, MetadataResponse
from consumerd.wire.session import ClientSession
from tests.support.scripted_broker import Answer, Late, Raw, Reaction, ScriptedBroker, ScriptedServer, encode_response
from tests.support.served_logs import served_logs

MAX_FRAME = 1 << 24
METADATA = MetadataRequest(topics=None)
MADE = MetadataResponse(brokers=(MetadataBroker(node_id=1, host="b", port=1),), topics=())
LISTED = ListOffsetsResponse(topics=())
RANGES = {ApiKey.METADATA: (0, 5), ApiKey.LIST_OFFSETS: (0, 2), ApiKey.FETCH: (0, 7)}


def answering(answer: Answer) -> ScriptedBroker:
    return ScriptedBroker(
        {
            MetadataRequest: lambda _request, _version: answer,
            ListOffsetsRequest: lambda _request, _version: LISTED,
        },
        ranges=RANGES,
    )


def frame_of_made() -> bytes:
    """Return the whole answer to the first request of a connection."""
    return encode_response(0, METADATA, 5, MADE)


@contextlib.asynccontextmanager
async def connected(
    address: Address, *, tls: ssl.SSLContext | None = None, max_frame_bytes: int = MAX_FRAME
) -> AsyncIterator[BrokerConnection]:
    """Connect to a broker of 1.1 without asking what it is."""
    connection = await BrokerConnection.open(
        TcpConnector(max_frame_bytes=max_frame_bytes, tls=tls, timeout_s=5),
        ClientSession("test"),
        address,
        broker=None,
        now=time.monotonic,
        hooks=Hooks(),
    )
    connection.adopt(assume_release((1, 1)))
    try:
        yield connection
    finally:
        connection.close()
        async with timeout(5):
            await connection.wait_closed()


async def test_answer_cut_at_any_byte_is_a_lost_connection() -> None:
    """Wherever a broker dies in the middle of an answer, the caller learns that the outcome is unknown."""
    whole = frame_of_made()
    pieces = [whole[:size] for size in range(len(whole))]
    broker = answering(None)
    broker.handlers[MetadataRequest] = lambda _request, _version: Raw(pieces.pop(0), then_close=True)

    async with ScriptedServer(broker) as server:
        for size in range(len(whole)):
            async with connected(server.address) as connection:
                with pytest.raises(ConnectionLost, match="closed by the broker") as lost:
                    await connection.request(METADATA, timeout_s=10)
                assert not isinstance(lost.value, RequestTimedOut), size
                assert connection.closed


async def test_answer_that_dribbles_in_is_read() -> None:
    """Byte by byte is a stream, too."""
    whole = frame_of_made()

    async def dribble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(4)
        for byte in whole:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0)
        await reader.read()
        writer.close()

    server = await asyncio.start_server(dribble, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        async with connected(Address(host="127.0.0.1", port=port)) as connection:
            assert await connection.request(METADATA, timeout_s=10) == MADE


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (Raw((MAX_FRAME + 1).to_bytes(4)), f"at most {MAX_FRAME}"),
        (Raw((-5).to_bytes(4, signed=True)), "-5"),
        (Raw((3).to_bytes(4) + b"abc"), "needs a correlation id"),
        (Raw((4).to_bytes(4) + (7).to_bytes(4)), "correlation id 7"),
        (Raw(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "HTTP"),
    ],
)
async def test_lost_framing_poisons_the_connection(answer: Raw, reason: str) -> None:
    """Every waiter hears the one cause, and the socket is gone."""
    async with ScriptedServer(answering(answer)) as server, connected(server.address) as connection:
        outcomes = await asyncio.gather(
            *(connection.request(METADATA, timeout_s=10) for _ in range(3)), return_exceptions=True
        )

    causes = set()
    for outcome in outcomes:
        assert isinstance(outcome, ConnectionLost)
        assert reason in str(outcome)
        causes.add(outcome.__cause__)
    assert len(causes) == 1
    assert isinstance(causes.pop(), RemoteProtocolError)


async def test_unasked_bytes_poison_an_idle_connection() -> None:
    """Brokers speak only when spoken to."""

    async def blurt(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((8).to_bytes(4) + bytes(8))
        await reader.read()
        writer.close()

    server = await asyncio.start_server(blurt, "127.0.0.1", 0)
    async with server, connected(Address(host="127.0.0.1", port=server.sockets[0].getsockname()[1])) as connection:
        async with timeout(5):
            await connection.wait_closed()
        assert connection.closed


async def test_close_while_idle_is_noticed_at_once() -> None:
    """So that the pool gives nobody a dead connection."""
    farewell = Raw(frame_of_made(), then_close=True)
    async with ScriptedServer(answering(farewell)) as server, connected(server.address) as connection:
        await connection.request(METADATA, timeout_s=5)
        async with timeout(5):
            await connection.wait_closed()
        assert connection.closed


async def test_silent_server_costs_the_deadline_and_no_more() -> None:
    """The connection closes with the request, since answers come in order."""
    async with ScriptedServer(answering(Reaction.SILENT)) as server, connected(server.address) as connection:
        loop = asyncio.get_running_loop()
        started = loop.time()
        with pytest.raises(RequestTimedOut):
            await connection.request(METADATA, timeout_s=0.2)
        # uvloop's timers count milliseconds from one that has begun
        assert 0.2 <= round(loop.time() - started, 3) < 2.0
        assert connection.closed


async def test_cancelled_request_is_answered_into_the_void() -> None:
    """The next request gets its own answer."""
    async with ScriptedServer(answering(Late(MADE, 0.2))) as server, connected(server.address) as connection:
        with pytest.raises(TimeoutError):
            async with timeout(0.05):
                await connection.request(METADATA, timeout_s=5)
        assert await connection.request(ListOffsetsRequest(topics=()), timeout_s=5) == LISTED


async def test_large_answers_arrive_whole() -> None:
    """Record sets are views into the frame; many megabytes in flight mix nothing up."""
    payload = bytes(range(256)) * (8 << 12)
    response = FetchResponse(
        topics=(
            FetchedTopic(topic="t", partitions=(FetchedPartition(partition=0, high_watermark=1, record_set=payload),)),
        )
    )
    broker = answering(MADE)
    broker.handlers[FetchRequest] = lambda _request, _version: response
    request = FetchRequest(max_wait_ms=0, min_bytes=0, topics=())

    async with ScriptedServer(broker) as server, connected(server.address) as connection:
        answers = await asyncio.gather(*(connection.request(request, timeout_s=20) for _ in range(6)))

    for answer in answers:
        (topic,) = answer.topics
        assert isinstance(topic.partitions[0].record_set, memoryview)
        assert bytes(topic.partitions[0].record_set) == payload


async def test_peer_that_takes_nothing_holds_writers_back() -> None:
    """What is not taken is not piled up without end, and the deadline holds."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with connected(Address(host="127.0.0.1", port=listener.getsockname()[1])) as connection:
            accepted, _ = listener.accept()
            with accepted:
                big = MetadataRequest(topics=("t" * 30_000,) * 1000)
                with pytest.raises(RequestTimedOut):
                    await connection.request(big, timeout_s=0.3)


async def test_refused_connection_says_where() -> None:
    """The address is what an operator looks for."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(ConnectionLost, match=f"127.0.0.1:{port}: cannot connect"):
        await TcpConnector(max_frame_bytes=MAX_FRAME)(Address(host="127.0.0.1", port=port), _Nobody())


@pytest.mark.parametrize("host", ["no-such-host.invalid", "x" * 64 + ".invalid"])
async def test_unknown_host_is_a_lost_connection(host: str) -> None:
    """A broker whose name is not known (yet) is tried again like any other."""
    with pytest.raises(ConnectionLost):
        await TcpConnector(max_frame_bytes=MAX_FRAME, timeout_s=20)(Address(host=host, port=1), _Nobody())


async def test_connect_timeout_is_bounded() -> None:
    """A full backlog looks like a host behind a firewall: nothing answers."""
    with socket.socket() as listener, contextlib.ExitStack() as fillers:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        for _ in range(3):
            filler = fillers.enter_context(socket.socket())
            filler.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                filler.connect(address)
        with pytest.raises(ConnectionLost, match=r"no connection within 0\.2 s"):
            await TcpConnector(max_frame_bytes=MAX_FRAME, timeout_s=0.2)(
                Address(host="127.0.0.1", port=address[1]), _Nobody()
            )


def dialer(tls: ssl.SSLContext | None = None) -> Dialer:
    return Dialer(
        TcpConnector(max_frame_bytes=MAX_FRAME, tls=tls, timeout_s=5),
        client_id="test",
        now=time.monotonic,
        probe_timeout_s=0.2,
    )


@pytest.mark.parametrize(("as_release", "release"), [("0.8.2", (0, 8, 2)), ("0.9", (0, 9))])
async def test_brokers_that_do_not_know_the_question(as_release: str, release: tuple[int, ...], tmp_path: Path) -> None:
    """0.8 closes, 0.9 says nothing; both answer what they know."""
    async with served_logs(tmp_path, as_release=as_release) as broker:
        connection = await dialer().dial(Address(host="127.0.0.1", port=broker.port))
        assert connection.versions.release == release
        answer = await connection.request(METADATA, timeout_s=5)
        assert [(one.host, one.port) for one in answer.brokers] == [("127.0.0.1", broker.port)]
        connection.close()
        await connection.wait_closed()


# -- TLS


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def server_context(authority: trustme.CA, name: str = "127.0.0.1") -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert(name).configure_cert(context)
    return context


def client_context(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


async def test_tls_carries_large_answers(authority: trustme.CA) -> None:
    """The same frames, through the TLS layer's buffers."""
    payload = bytes(range(256)) * (8 << 12)
    response = FetchResponse(
        topics=(
            FetchedTopic(topic="t", partitions=(FetchedPartition(partition=0, high_watermark=1, record_set=payload),)),
        )
    )
    broker = answering(MADE)
    broker.handlers[FetchRequest] = lambda _request, _version: response

    async with ScriptedServer(broker, tls=server_context(authority)) as server:
        connection = await dialer(client_context(authority)).dial(server.address)
        assert connection.versions.origin is Origin.NEGOTIATED
        answer = await connection.request(FetchRequest(max_wait_ms=0, min_bytes=0, topics=()), timeout_s=20)
        connection.close()
        await connection.wait_closed()

    record_set = answer.topics[0].partitions[0].record_set
    assert record_set is not None
    assert bytes(record_set) == payload


async def test_certificate_of_another_host_is_refused(authority: trustme.CA) -> None:
    """Names are checked against the address that we asked for."""
    async with ScriptedServer(answering(MADE), tls=server_context(authority, "elsewhere.example")) as server:
        with pytest.raises(ConnectionLost, match="certificate"):
            await dialer(client_context(authority)).dial(server.address)


async def test_unknown_authority_is_refused(authority: trustme.CA) -> None:
    """No silent fallback to an unverified connection."""
    async with ScriptedServer(answering(MADE), tls=server_context(authority)) as server:
        with pytest.raises(ConnectionLost, match="certificate"):
            await dialer(ssl.create_default_context()).dial(server.address)


async def test_plain_text_to_a_tls_listener_is_explained(authority: trustme.CA) -> None:
    """The commonest mistake of all; the broker's alert looks like an absurd frame size."""
    async with ScriptedServer(answering(MADE), tls=server_context(authority)) as server:
        plain = Address(host=server.address.host, port=server.address.port)
        with pytest.raises(ConnectionLost):
            await dialer().dial(plain)


async def test_tls_without_settings_is_a_configuration_error() -> None:
    """Retrying cannot help."""
    with pytest.raises(ConfigError, match=r"cluster\.tls"):
        await dialer().dial(Address(host="127.0.0.1", port=1, tls=True))


class _Nobody:
    """A receiver that hears nothing."""

    def frame_received(self, body: memoryview) -> None:
        raise AssertionError("no frame was asked for")

    def stream_closed(self, cause: Exception) -> None:
        pass
