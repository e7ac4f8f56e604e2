# SPDX-License-Identifier: Apache-2.0
"""Requests go out with ids, answers come back in order, and a fault ends it all."""

from __future__ import annotations

import struct

import pytest

from consumerd.errors import LocalProtocolError, RemoteProtocolError
from consumerd.wire.apikeys import ApiKey
from consumerd.wire.declaration import message
from consumerd.wire.modern.api_versions import ApiVersionsRequest, ApiVersionsResponse
from consumerd.wire.modern.metadata import MetadataRequest, MetadataResponse
from consumerd.wire.schema import compile_codec
from consumerd.wire.session import HEADER_CODEC, ClientSession, RequestHeader

ANSWER = compile_codec(ApiVersionsResponse, 0).encode(ApiVersionsResponse(api_versions=()))


def answer_to(correlation_id: int, body: bytes = ANSWER) -> memoryview:
    return memoryview(struct.pack(">i", correlation_id) + body)


@message
class SilentRequest(ApiVersionsRequest):
    """A request without an answer, as Produce is with acks 0."""

    @property
    def expects_response(self) -> bool:
        return False


@pytest.fixture
def session() -> ClientSession:
    return ClientSession("me")


def test_request_carries_key_version_id_and_client(session: ClientSession) -> None:
    """The header is what a broker needs to answer at all."""
    first, frame = session.send(MetadataRequest(topics=None), 1)
    second, _ = session.send(MetadataRequest(topics=None), 1)
    data = memoryview(frame)[4:]
    header, at = HEADER_CODEC.read(data, 0, len(data))

    assert (first, second, session.in_flight) == (0, 1, 2)
    assert header == RequestHeader(api_key=ApiKey.METADATA, api_version=1, correlation_id=0, client_id="me")
    assert bytes(data[at:]) == b"\xff\xff\xff\xff"


def test_client_id_may_be_absent() -> None:
    """Null is a client id to brokers."""
    _, frame = ClientSession(None).send(ApiVersionsRequest(), 0)

    assert frame.endswith(b"\xff\xff")


def test_correlation_ids_wrap(session: ClientSession) -> None:
    """They are an int32 and never negative."""
    session._next_id = 2**31 - 1

    assert [session.send(ApiVersionsRequest(), 0)[0] for _ in range(2)] == [2**31 - 1, 0]


def test_answers_belong_to_the_requests_in_order(session: ClientSession) -> None:
    """Each is read as the response of the request and the version that it answers."""
    requests = [(ApiVersionsRequest(), 0), (MetadataRequest(topics=()), 1)]
    for request, version in requests:
        session.send(request, version)
    metadata = MetadataResponse(brokers=(), topics=())
    answers = [answer_to(0), answer_to(1, compile_codec(MetadataResponse, 1).encode(metadata))]

    frames = [session.receive_frame(answer) for answer in answers]

    assert [frame.key for frame in frames] == [0, 1]
    assert [ApiVersionsResponse(api_versions=()), metadata] == [
        request.decode_response(version, frame.body) for (request, version), frame in zip(requests, frames, strict=True)
    ]
    assert session.in_flight == 0


def test_request_without_answer_waits_for_none(session: ClientSession) -> None:
    """The next answer is the next request's."""
    assert session.send(SilentRequest(), 0)[0] == 0
    session.send(ApiVersionsRequest(), 0)

    frame = session.receive_frame(answer_to(1))

    assert (frame.key, session.in_flight) == (1, 0)


def test_what_cannot_be_sent_changes_nothing(session: ClientSession) -> None:
    """The id is not used up, and no answer is waited for."""
    with pytest.raises(LocalProtocolError, match="MetadataRequest v13: not among the versions known, 0 to 12"):
        session.send(MetadataRequest(topics=None), 13)

    assert session.in_flight == 0
    assert session.send(ApiVersionsRequest(), 0)[0] == 0


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        (answer_to(1), "correlation id 1 at byte 0: expected 0"),
        (answer_to(-1), "correlation id -1 at byte 0: expected 0"),
        (memoryview(b"\0\0\0"), "response frame of 3 bytes"),
    ],
)
def test_fault_poisons_the_session(session: ClientSession, body: memoryview, cause: str) -> None:
    """Out of step once, out of step for good: the one cause is what everybody hears."""
    session.send(ApiVersionsRequest(), 0)
    with pytest.raises(RemoteProtocolError, match=cause) as first:
        session.receive_frame(body)

    assert session.fault is first.value
    with pytest.raises(RemoteProtocolError) as again:
        session.receive_frame(answer_to(0))
    assert again.value is first.value
    with pytest.raises(LocalProtocolError, match="unusable") as refused:
        session.send(ApiVersionsRequest(), 0)
    assert refused.value.__cause__ is first.value


def test_answer_that_nobody_asked_for_is_a_fault(session: ClientSession) -> None:
    """A broker never speaks first."""
    with pytest.raises(RemoteProtocolError, match="correlation id 0 at byte 0: expected none"):
        session.receive_frame(memoryview(b"\0\0\0\0"))


def test_bad_body_fails_its_request_alone(session: ClientSession) -> None:
    """Framing is intact, so the next answer is read as if nothing had happened."""
    session.send(ApiVersionsRequest(), 0)
    session.send(ApiVersionsRequest(), 0)
    bad, good = session.receive_frame(answer_to(0, b"\0")), session.receive_frame(answer_to(1))

    with pytest.raises(RemoteProtocolError, match="ApiVersionsResponse v0: error_code: byte 0 of 1"):
        ApiVersionsRequest().decode_response(0, bad.body)
    assert ApiVersionsRequest().decode_response(0, good.body) == ApiVersionsResponse(api_versions=())
    assert session.fault is None
