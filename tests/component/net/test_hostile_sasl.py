# SPDX-License-Identifier: Apache-2.0
"""Handshakes with hostile servers on real sockets: bounded time, bounded memory, and the loop goes on meanwhile.

``tests/property/test_sasl_handshakes.py`` has servers that answer anything, in virtual time.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import pytest

from consumerd.aio.timeouts import timeout
from consumerd.errors import ConnectionLost
from consumerd.net.address import Address
from consumerd.net.authentication import Authenticator
from consumerd.net.sasl_dialer import SaslDialer
from consumerd.net.stream import TcpConnector
from consumerd.sasl.scram import MOST_ITERATIONS, SCRAM_SHA_256, ScramClient
from consumerd.sasl.server import ScramServer, make_credential
from consumerd.wire.apikeys import ApiKey
from consumerd.wire.modern.api_versions import ApiVersionRange, ApiVersionsRequest, ApiVersionsResponse
from consumerd.wire.modern.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from consumerd.wire.server_session import encode_response_pieces, read_request

MIB: Final = 1 << 20
MOST_FRAME_BYTES: Final = 4 * MIB
STEP_S: Final = 1.0
"""Time limit of each step of the client."""
END_S: Final = 40.0
"""Within this a dial ends on a busy machine: 16 tokens of at most a step each, and more."""
NONCE: Final = "clientnonceclientnonce"
ACCEPTED: Final[dict[type[Any], range]] = {
    ApiVersionsRequest: range(1),
    SaslHandshakeRequest: range(2),
    SaslAuthenticateRequest: range(1),
}
KEYS: Final = (ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE, ApiKey.LIST_OFFSETS)
Answer = Callable[[bytes], bytes | SaslAuthenticateResponse]
"""Answers a token: with a response, or with raw bytes in its place."""


class Server:
    """Shakes hands as a broker of a release does, and answers each token as told.

    Args:
        cut: Number of bytes after which it ends every connection; None to send everything.
        release: ``1.1``, or ``0.10``, whose tokens are in frames of their own.
    """

    def __init__(self, answer: Answer, cut: int | None = None, release: str = "1.1") -> None:
        self._answer = answer
        self._left = cut
        self._bare = release == "0.10"
        self._agreed = False
        self.tokens = 0
        self.sent = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._agreed = False
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                size = int.from_bytes(await reader.readexactly(4))
                data = self.react(await reader.readexactly(size))
                if self._left is not None:
                    data = data[: self._left]
                    self._left -= len(data)
                self.sent += len(data)
                writer.write(data)
                await writer.drain()
                if self._left == 0:
                    break
        writer.close()

    def react(self, frame: bytes) -> bytes:
        if self._bare and self._agreed:
            self.tokens += 1
            said = self._answer(frame)
            return said if isinstance(said, bytes) else len(said.auth_bytes).to_bytes(4) + said.auth_bytes
        received = read_request(frame, ACCEPTED)
        request: Any = received.request
        if isinstance(request, ApiVersionsRequest):
            keys = KEYS[:2] if self._bare else KEYS
            most = {ApiKey.SASL_AUTHENTICATE: 0, ApiKey.SASL_HANDSHAKE: 0 if self._bare else 1}
            ranges = (ApiVersionRange(api_key=key, min_version=0, max_version=most.get(key, 1)) for key in keys)
            response: Any = ApiVersionsResponse(api_versions=tuple(ranges))
        elif isinstance(request, SaslHandshakeRequest):
            response = SaslHandshakeResponse(mechanisms=(SCRAM_SHA_256,))
            self._agreed = True
        else:
            self.tokens += 1
            response = self._answer(bytes(request.auth_bytes))
            if isinstance(response, bytes):
                return response
        version = received.header.api_version
        return b"".join(encode_response_pieces(received.header.correlation_id, response, version))


@asynccontextmanager
async def listening(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[Address]:
    tasks: set[asyncio.Task[Any]] = set()

    async def run(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await serve(reader, writer)
        except asyncio.CancelledError:
            pass
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(run, "127.0.0.1", 0)
    try:
        yield Address(host="127.0.0.1", port=server.sockets[0].getsockname()[1])
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def dial(address: Address) -> str:
    """Return what is said when the dial has failed, in time."""
    authenticator = Authenticator(
        lambda _address: ScramClient(SCRAM_SHA_256, "user", "pencil-secret", lambda: NONCE), SCRAM_SHA_256,
        timeout_s=STEP_S,
    )  # fmt: skip
    connector = TcpConnector(max_frame_bytes=MOST_FRAME_BYTES)
    now = asyncio.get_running_loop().time
    dialer = SaslDialer(connector, authenticator, client_id="t", now=now, probe_timeout_s=STEP_S)
    try:
        async with timeout(END_S):
            with pytest.raises(ConnectionLost) as lost:
                (await dialer.dial(address)).close()
    finally:
        await authenticator.aclose()
    assert "pencil-secret" not in str(lost.value)
    assert len(str(lost.value)) < 5000
    return str(lost.value)


def first_message(iterations: int = 4096, nonce: str = NONCE + "servers") -> SaslAuthenticateResponse:
    salt = base64.b64encode(b"salt").decode()
    return SaslAuthenticateResponse(auth_bytes=f"r={nonce},s={salt},i={iterations}".encode())


RELEASES = pytest.mark.parametrize("release", ["0.10", "1.1"])


@RELEASES
@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda _token: (2**31 - 1).to_bytes(4) + bytes(64), "at most"),
        (lambda _token: b"\xff\xff\xff\xff", "frame size"),
        (lambda _token: SaslAuthenticateResponse(auth_bytes=bytes(3 * MIB)), "a token of"),
        (lambda _token: SaslAuthenticateResponse(error_code=58, error_message="x" * 30_000), "error 58"),
        (lambda _token: first_message(10**9), "1000000000 iterations"),
        (lambda _token: first_message(nonce=NONCE + "x" * 2000), "expected a first message"),
    ],
    ids=["2 GiB are announced", "a negative size", "3 MiB", "a long refusal", "endless hashing", "a long nonce"],
)
async def test_what_is_too_large_is_refused_before_it_costs(answer: Answer, said: str, release: str) -> None:
    """The largest frame that answers may have bounds the memory; the text is short."""
    server = Server(answer, release=release)
    async with listening(server.serve) as address:
        await dial(address)  # what is loaded at the first time does not count
        tracemalloc.start()
        try:
            found = await dial(address)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    if said != "error 58" or release == "1.1":  # bare tokens have no code: an empty one is no first message
        assert said in found
    # both ends are in this process: each has the frame about twice
    assert peak < 5 * MOST_FRAME_BYTES


async def test_the_most_iterations_that_are_taken_block_nothing_else() -> None:
    """They are hashed in a thread; heartbeats go on."""
    ticks = itertools.count()

    async def tick() -> None:
        while True:
            next(ticks)
            await asyncio.sleep(0.001)

    server = Server(lambda _token: first_message(MOST_ITERATIONS))
    async with listening(server.serve) as address:
        ticking = asyncio.get_running_loop().create_task(tick())
        try:
            assert "expected a last message" in await dial(address)
        finally:
            ticking.cancel()
    assert server.tokens == 2
    assert next(ticks) > 20


async def test_a_server_that_drips_is_left() -> None:
    """Bytes that come do not extend the time."""

    async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            writer.write((MIB).to_bytes(4))
            while True:
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.01)

    async with listening(serve) as address:
        assert await dial(address)


@RELEASES
async def test_an_exchange_that_is_cut_anywhere_ends(release: str) -> None:
    """After each byte of a right one, up to the signature, which is wrong here: no dial hangs, or is taken for a success."""

    def make(cut: int | None) -> Server:
        scram = ScramServer(
            SCRAM_SHA_256, {"user": make_credential(SCRAM_SHA_256, "pencil-secret", b"salt")}, lambda: "servers"
        )

        def answer(token: bytes) -> SaslAuthenticateResponse:
            said = scram.next(token)
            return SaslAuthenticateResponse(auth_bytes=said.replace(b"v=", b"v=AAAA"))

        return Server(answer, cut, release)

    whole = make(None)
    async with listening(whole.serve) as address:
        assert "signature is wrong" in await dial(address)
    assert whole.sent > (100 if release == "0.10" else 150)
    for cut in range(1, whole.sent, 3):
        async with listening(make(cut).serve) as address:
            assert await dial(address)
