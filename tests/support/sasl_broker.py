# SPDX-License-Identifier: Apache-2.0
"""A broker with SASL in memory that plays a recording, and clients for it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from consumerd.net.address import Address
from consumerd.net.authentication import Authenticator
from consumerd.sasl.client import SaslClient, Token
from consumerd.sasl.plain import PlainClient
from consumerd.wire.apikeys import ApiKey
from consumerd.wire.framing import encode_frame
from consumerd.wire.modern.list_offsets import ListOffsetsResponse
from consumerd.wire.modern.sasl import SaslAuthenticateRequest
from consumerd.wire.schema import compile_codec
from consumerd.wire.session import HEADER_CODEC
from tests.support.sasl_recordings import RecordedFrame, read_broker
from tests.support.scripted_broker import Reaction

T = TypeVar("T")

_CORRELATION_BYTES: Final = 4
_PLAIN: Final = "handshake v1, SaslAuthenticate v0: PLAIN, with ApiVersions"
_OLD_PLAIN: Final = "handshake v0, raw tokens: PLAIN, with ApiVersions"


class Inline:
    """Runs a mechanism's computations at once, after ``delay_s`` of the loop's time."""

    def __init__(self) -> None:
        self.delay_s = 0.0
        self.closed = False

    async def run(self, work: Callable[[], T]) -> T:
        """Run it."""
        await asyncio.sleep(self.delay_s)
        return work()

    async def close(self, *, timeout_s: float) -> None:
        """Note it."""
        self.closed = True


class PlayedClient:
    """Gives tokens one after the other, whatever the server says; ``answered`` is False for the last of GSSAPI."""

    def __init__(self, mechanism: str, tokens: Iterable[bytes]) -> None:
        self.mechanism = mechanism
        self._tokens = deque(tokens)
        self.challenges: list[bytes] = []

    def first(self) -> Token:
        """Return the first one."""
        return self._token()

    def next(self, challenge: bytes) -> Token | None:
        """Return the next one."""
        self.challenges.append(challenge)
        return self._token() if self._tokens else None

    def _token(self) -> Token:
        data = self._tokens.popleft()
        return Token(data=data, answered=self.mechanism != "GSSAPI" or bool(self._tokens))


def authenticate_as(
    make_client: Callable[[Address], SaslClient] | None = None, mechanism: str = "PLAIN"
) -> Authenticator:
    """Return what authenticates without threads; as alice by PLAIN, unless told otherwise."""
    made = make_client or (lambda _address: PlainClient("alice", "alice-secret"))
    return Authenticator(made, mechanism, threads=Inline())


@dataclass
class RecordedBroker:
    """Answers the requests and tokens of one scenario as a real broker did, in their order.

    ApiVersions is answered as by that release, and ListOffsets, which no recording has, with nothing in it.
    """

    release: str
    scenario: str
    tokens: list[bytes] = field(default_factory=list)
    others: list[RecordedFrame] = field(default_factory=list)

    def __post_init__(self) -> None:
        frames = read_broker(self.release)[self.scenario]
        self.left = deque(one for one in frames if one.api not in (ApiKey.API_VERSIONS, ApiKey.METADATA))

    def asked(self, kind: type[Any]) -> list[Any]:
        """There is no list."""
        return []

    def react(self, body: bytes) -> tuple[bytes | Reaction, float, bool]:
        """Take a frame; assert that it is the one that was recorded, but for client id and correlation id."""
        if self.left and self.left[0].api is None and not self._is_request(body):
            frame = self.left.popleft()
            self.tokens.append(body)
            return self._answer(frame.response, None, frame)
        view = memoryview(body)
        header, at = HEADER_CODEC.read(view, 0, len(view))
        if header.api_key == ApiKey.API_VERSIONS:
            return self._list_versions(header.correlation_id)
        if header.api_key == ApiKey.LIST_OFFSETS:
            empty = compile_codec(ListOffsetsResponse, header.api_version).encode(ListOffsetsResponse(topics=()))
            return encode_frame(header.correlation_id.to_bytes(_CORRELATION_BYTES) + empty), 0.0, False
        frame = self.left.popleft()
        assert (frame.api, frame.version) == (header.api_key, header.api_version)
        recorded = memoryview(frame.request)
        _, recorded_at = HEADER_CODEC.read(recorded, 0, len(recorded))
        assert recorded[recorded_at:] == view[at:]
        if header.api_key == ApiKey.SASL_AUTHENTICATE:
            request = compile_codec(SaslAuthenticateRequest, header.api_version).decode(view[at:])
            self.tokens.append(request.auth_bytes)
        return self._answer(frame.response, header.correlation_id, frame)

    def _is_request(self, body: bytes) -> bool:
        """Tell the requests that come beside the tokens; no token begins like them."""
        return body[:2] in (ApiKey.API_VERSIONS.to_bytes(2), ApiKey.LIST_OFFSETS.to_bytes(2))

    def _list_versions(self, correlation_id: int) -> tuple[bytes | Reaction, float, bool]:
        if self.release == "0.9.0.1":
            return Reaction.CLOSE, 0.0, False
        scenario = _OLD_PLAIN if self.release.startswith("0.10") else _PLAIN
        answer = read_broker(self.release)[scenario][0].response
        assert answer is not None
        return encode_frame(correlation_id.to_bytes(_CORRELATION_BYTES) + answer[_CORRELATION_BYTES:]), 0.0, False

    def _answer(
        self, response: bytes | None, correlation_id: int | None, frame: RecordedFrame
    ) -> tuple[bytes | Reaction, float, bool]:
        if response is None:
            return (Reaction.CLOSE if frame.closed else b""), 0.0, False
        if correlation_id is None:
            return encode_frame(response), 0.0, False
        response = correlation_id.to_bytes(_CORRELATION_BYTES) + response[_CORRELATION_BYTES:]
        # after a refusal the broker closes, which recordings show only if something was sent after it
        return encode_frame(response), 0.0, response[4:6] != bytes(2)
