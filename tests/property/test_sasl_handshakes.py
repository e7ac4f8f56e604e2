# SPDX-License-Identifier: Apache-2.0
"""Authentications with brokers that answer anything, or stop anywhere: a connection or a lost one, within bounded time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

from consumerd.errors import ConnectionLost
from consumerd.net.address import Address
from consumerd.net.sasl_dialer import SaslDialer
from consumerd.sasl.client import SaslClient
from consumerd.wire.apikeys import ApiKey
from consumerd.wire.modern.api_versions import ApiVersionsRequest
from consumerd.wire.modern.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from consumerd.wire.modern.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from tests.property.test_sasl_mechanisms import CHALLENGES, CLIENTS
from tests.support import virtual_time
from tests.support.sasl_broker import authenticate_as
from tests.support.scripted_broker import Body, FakeNetwork, Late, Raw, Reaction, ScriptedBroker, listing

ADDRESS = Address(host="b", port=9093)
LONGEST_S = 16 * 10.0 + 40.0
"""Each of at most 16 tokens, the versions, the handshake and the first request have ten seconds."""

MOST_TOKENS = 16

MISBEHAVIOUR = st.one_of(
    st.sampled_from(Reaction),
    st.binary(max_size=60).map(Body),
    st.builds(Raw, st.binary(max_size=40).map(lambda body: len(body).to_bytes(4) + body), st.booleans()),
    st.floats(0.0, 20.0).map(lambda delay_s: Late(Body(b""), delay_s)),
)
CODES = st.sampled_from([0, 0, 0, 33, 34, 58, -1, 999])
RANGES = st.sampled_from(
    [
        {ApiKey.LIST_OFFSETS: (0, 2), ApiKey.SASL_HANDSHAKE: (0, 1), ApiKey.SASL_AUTHENTICATE: (0, 2)},
        {ApiKey.LIST_OFFSETS: (0, 1), ApiKey.SASL_HANDSHAKE: (0, 0)},
        {ApiKey.SASL_HANDSHAKE: (0, 1), ApiKey.SASL_AUTHENTICATE: (0, 1)},
        {ApiKey.FETCH: (0, 1)},
    ]
)
ANSWERS = st.fixed_dictionaries(
    {
        ApiVersionsRequest: RANGES.map(listing) | MISBEHAVIOUR,
        SaslHandshakeRequest: MISBEHAVIOUR
        | st.builds(SaslHandshakeResponse, error_code=CODES, mechanisms=st.lists(st.text(max_size=400)).map(tuple)),
        ListOffsetsRequest: MISBEHAVIOUR | st.just(ListOffsetsResponse(topics=())),
    }
)
TOKENS = st.lists(
    MISBEHAVIOUR
    | st.builds(
        SaslAuthenticateResponse,
        error_code=CODES,
        error_message=st.none() | st.text(max_size=1000),
        auth_bytes=CHALLENGES,
        session_lifetime_ms=st.sampled_from([0, 1, -1, (1 << 63) - 1]),
    ),
    min_size=1,
    max_size=6,
)


class Hostile(ScriptedBroker):
    """A broker by script that takes tokens in frames of their own, too, and answers them with challenges."""

    def __init__(self, answers: dict[type[Any], Any], tokens: list[Any]) -> None:
        queue = list(tokens)
        super().__init__({kind: lambda _request, _version, answer=answer: answer for kind, answer in answers.items()})
        self.handlers[SaslAuthenticateRequest] = lambda _request, version: self._take(queue, version)
        self._queue = queue
        self.taken = 0

    def react(self, body: bytes) -> tuple[bytes | Reaction, float, bool]:
        try:
            return super().react(body)
        except Exception:  # noqa: BLE001 - no request: a token in a frame of its own
            answer = self._take(self._queue, 1)
            if isinstance(answer, SaslAuthenticateResponse):
                data = answer.auth_bytes
                return len(data).to_bytes(4) + data, 0.0, bool(answer.error_code)
            if isinstance(answer, Raw):
                return answer.data, 0.0, answer.then_close
            return answer if isinstance(answer, Reaction) else Reaction.CLOSE, 0.0, False

    def _take(self, queue: list[Any], version: int) -> Any:
        self.taken += 1
        answer = queue.pop(0) if len(queue) > 1 else queue[0]
        if version == 0 and isinstance(answer, SaslAuthenticateResponse):
            return SaslAuthenticateResponse(
                error_code=answer.error_code, error_message=answer.error_message, auth_bytes=answer.auth_bytes
            )
        return answer


def dial(mechanism: str, answers: dict[type[Any], Any], tokens: list[Any]) -> Hostile:
    """Check that there is no other exception, nothing left open, no password in the message, and an end in time."""
    broker = Hostile(answers, tokens)

    async def play() -> None:
        network = FakeNetwork()
        network.brokers[ADDRESS] = broker
        client: SaslClient = CLIENTS[mechanism]()
        now = asyncio.get_running_loop().time
        dialer = SaslDialer(network, authenticate_as(lambda _address: client, mechanism), client_id="t", now=now)
        left, said = 0, ""
        try:
            connection = await dialer.dial(ADDRESS)
            left = not connection.closed
        except ConnectionLost as error:
            said = str(error)
        assert now() <= LONGEST_S
        assert sum(not stream.closed for stream in network.streams) == left
        assert "pencil" not in said
        assert len(said) < 5000

    with structlog.testing.capture_logs():
        virtual_time.run(play())
    return broker


@pytest.mark.parametrize("mechanism", sorted(CLIENTS.keys() - {"DIGEST-MD5"}))
@given(answers=ANSWERS, tokens=TOKENS)
@settings(deadline=None)  # a valid first message of SCRAM is hashed 4096 times, which is not fast everywhere
def test_any_broker_ends_in_a_connection_or_in_a_lost_one(
    mechanism: str, answers: dict[type[Any], Any], tokens: list[Any]
) -> None:
    """Whatever releases and mechanisms it claims to have."""
    dial(mechanism, answers, tokens)


@pytest.mark.parametrize(
    ("release", "mechanism"),
    [
        ("0.9", "GSSAPI"),
        *((release, one) for release in ("0.10", "1.1") for one in sorted(CLIENTS.keys() - {"DIGEST-MD5"})),
    ],
)
@given(tokens=TOKENS, first=MISBEHAVIOUR | st.just(ListOffsetsResponse(topics=())))
@settings(deadline=None, max_examples=50)  # as above
def test_any_tokens_end_in_each_framing(release: str, mechanism: str, tokens: list[Any], first: Any) -> None:
    """Up to the tokens all goes well, so that each run gets to them; the last one is repeated for ever."""
    ranges = {ApiKey.LIST_OFFSETS: (0, 1), ApiKey.SASL_HANDSHAKE: (0, 0)}
    if release == "1.1":
        ranges |= {ApiKey.SASL_HANDSHAKE: (0, 1), ApiKey.SASL_AUTHENTICATE: (0, 0)}
    answers = {
        # brokers of 0.9 take ApiVersions for a token
        ApiVersionsRequest: Reaction.CLOSE if release == "0.9" else listing(ranges),
        SaslHandshakeRequest: SaslHandshakeResponse(mechanisms=(mechanism,)),
        ListOffsetsRequest: first,
    }

    broker = dial(mechanism, answers, tokens)

    assert 1 <= broker.taken <= MOST_TOKENS
