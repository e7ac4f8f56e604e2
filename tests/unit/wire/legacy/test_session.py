# SPDX-License-Identifier: Apache-2.0
"""Requests without ids: responses come in the order of the requests, and some requests have none."""

from __future__ import annotations

import pytest

from consumerd.errors import LocalProtocolError, RemoteProtocolError
from consumerd.net.session import ConnectionSession
from consumerd.wire.apikeys import ApiKey
from consumerd.wire.errorcodes import ErrorCode
from consumerd.wire.legacy.messages import (
    REQUEST_CLASSES,
    LegacyErrorCode,
    LegacyFetchRequest,
    LegacyFetchResponse,
    LegacyMultiFetchRequest,
    LegacyMultiFetchResponse,
    LegacyMultiProduceRequest,
    LegacyOffsetsRequest,
    LegacyOffsetsResponse,
    LegacyProduceRequest,
)
from consumerd.wire.legacy.session import (
    LegacyClientSession,
    encode_legacy_request,
    encode_legacy_response,
    read_legacy_request,
)
from consumerd.wire.modern.metadata import MetadataRequest
from consumerd.wire.server_session import UnreadableRequest

FETCH = LegacyFetchRequest(topic="t", partition=0, offset=0, max_size=100)
PRODUCE = LegacyProduceRequest(topic="t", partition=0, messages=b"")
OFFSETS = LegacyOffsetsRequest(topic="t", partition=0, time=-1, max_number=1)


@pytest.fixture
def session() -> LegacyClientSession:
    return LegacyClientSession()


def body_of(response: object) -> memoryview:
    """Return a response frame without its size."""
    return memoryview(encode_legacy_response(response))[4:]


def test_session_can_stand_for_that_of_later_releases(session: LegacyClientSession) -> None:
    """The connection knows only the interface."""
    chosen: ConnectionSession = session

    assert (0, encode_legacy_request(FETCH)) == chosen.send(FETCH, 0)


def test_responses_belong_to_the_requests_in_order(session: LegacyClientSession) -> None:
    """PRODUCE waits for nothing, so the second response is that of OFFSETS."""
    keys = [session.send(request)[0] for request in (FETCH, PRODUCE, OFFSETS)]
    fetched, offsets = LegacyFetchResponse(messages=b"m"), LegacyOffsetsResponse(offsets=(7, 0))
    waiting = session.in_flight

    frames = [session.receive_frame(body_of(response)) for response in (fetched, offsets)]

    assert ([0, 1, 2], 2, 0) == (keys, waiting, session.in_flight)
    assert [0, 2] == [frame.key for frame in frames]
    assert fetched == FETCH.decode_response(0, frames[0].body)
    assert offsets == OFFSETS.decode_response(0, frames[1].body)


def test_response_that_nothing_waits_for_poisons_the_session(session: LegacyClientSession) -> None:
    """Without ids, one response too many shifts all that follow."""
    session.send(PRODUCE)
    body = body_of(LegacyFetchResponse())

    with pytest.raises(RemoteProtocolError, match="response frame of 2 bytes: no request waits for one") as first:
        session.receive_frame(body)

    with pytest.raises(RemoteProtocolError) as again:
        session.receive_frame(body)
    assert again.value is first.value is session.fault
    with pytest.raises(LocalProtocolError, match="unusable"):
        session.send(FETCH)


def test_response_without_an_error_code_poisons_the_session(session: LegacyClientSession) -> None:
    """A broker answers so to FETCH of -1 bytes: what follows the one byte is not known."""
    session.send(FETCH)
    session.send(FETCH)

    with pytest.raises(RemoteProtocolError, match="response frame of 1 bytes: needs an error code"):
        session.receive_frame(memoryview(b"\0"))
    assert session.fault is not None


def test_bad_body_fails_its_request_alone(session: LegacyClientSession) -> None:
    """The frames are intact, so the next response is read."""
    session.send(OFFSETS)
    session.send(FETCH)
    bad, good = session.receive_frame(memoryview(b"\0\0\0\0\0\1")), session.receive_frame(memoryview(b"\0\0"))

    with pytest.raises(RemoteProtocolError, match="offsets: byte 6 of 6: needs 8 bytes, 0 are left"):
        OFFSETS.decode_response(0, bad.body)
    assert LegacyFetchResponse() == FETCH.decode_response(0, good.body)


def test_request_of_a_later_release_is_refused(session: LegacyClientSession) -> None:
    """A 0.7 broker would take it for MULTIPRODUCE."""
    for request, version in ((MetadataRequest(topics=None), 0), (FETCH, 1)):
        with pytest.raises(LocalProtocolError, match=r"Kafka 0\.6 and 0\.7 do not have it"):
            session.send(request, version)
    assert 0 == session.in_flight
    assert 0 == session.send(FETCH)[0]


@pytest.mark.parametrize(
    "request_",
    [
        LegacyFetchRequest(topic="t" * 0x8000, partition=0, offset=0, max_size=1),
        LegacyFetchRequest(topic="\ud800", partition=0, offset=0, max_size=1),
        LegacyFetchRequest(topic="t", partition=0, offset=1 << 63, max_size=1),
        LegacyOffsetsRequest(topic="t", partition=1 << 31, time=-1, max_number=1),
        LegacyMultiFetchRequest(requests=(FETCH,) * 0x8000),
    ],
    ids=["long topic", "topic without UTF-8", "offset", "partition", "entries"],
)
def test_value_that_does_not_fit_changes_nothing(session: LegacyClientSession, request_: LegacyFetchRequest) -> None:
    """Nothing is sent, and no response is waited for."""
    with pytest.raises(LocalProtocolError):
        session.send(request_)
    assert 0 == session.in_flight
    assert 0 == session.send(FETCH)[0]


def test_produce_has_no_response_to_decode() -> None:
    """Whoever asks for one has lost count of the responses."""
    for request in (PRODUCE, LegacyMultiProduceRequest(requests=())):
        assert not request.expects_response
        with pytest.raises(LocalProtocolError, match="has no response"):
            request.decode_response(0, memoryview(b"\0\0"))


def test_multifetch_response_must_answer_each_request() -> None:
    """Entries are matched by their place alone."""
    request = LegacyMultiFetchRequest(requests=(FETCH, FETCH))
    one = LegacyMultiFetchResponse(responses=(LegacyFetchResponse(messages=b"m"),))

    with pytest.raises(RemoteProtocolError, match="1 entries, expected 2"):
        request.decode_response(0, body_of(one))
    failed = LegacyMultiFetchResponse(error_code=LegacyErrorCode.UNKNOWN, responses=())
    assert failed == request.decode_response(0, body_of(failed))


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        (b"\0\0\x7f\xff\xff\xff\0\0", "needs 2147483647 bytes, 2 are left"),
        (b"\0\0\xff\xff\xff\xff\0\0", "length -1, expected 0 or more"),
        (b"\0\0\0\0\0\1\0\0", "needs 2 bytes, 1 are left"),
        (b"\0\0\0\0\0\2\0", "needs 2 bytes, 1 are left"),
        (b"\0\0\0\0", "needs 4 bytes, 2 are left"),
    ],
)
def test_false_size_in_a_multifetch_response_is_named(body: bytes, cause: str) -> None:
    """Sizes are compared with the frame before anything is created."""
    with pytest.raises(RemoteProtocolError, match=cause):
        LegacyMultiFetchRequest(requests=(FETCH,)).decode_response(0, memoryview(body))


def test_entry_with_an_error_code_may_have_messages() -> None:
    """The rest of an entry is its message set, whatever the code says."""
    entry = body_of(LegacyFetchResponse(error_code=3, messages=b"partial"))
    response = LegacyMultiFetchRequest(requests=(FETCH,)).decode_response(
        0, memoryview(b"\0\0" + len(entry).to_bytes(4, "big") + entry)
    )

    assert [(3, b"partial")] == [(one.error_code, bytes(one.messages)) for one in response.responses]


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        (b"\0\2\xff\xff", "length -1, expected 0 or more"),
        (b"\0\2\x7f\xff" + bytes(100), "are left"),
        (b"\0\2\0", "needs 2 bytes, 1 are left"),
        (b"\0\3\0\1\0\1t\0\0\0\0\x7f\xff\xff\xff", "needs 2147483647 bytes, 0 are left"),
        (b"\0\0\0\1t\0\0\0\0\xff\xff\xff\xff", "length -1, expected 0 or more"),
        (b"\0\1\0\1\xff\0\0\0\0" + bytes(12), "not UTF-8"),
    ],
)
def test_malformed_request_costs_no_memory(body: bytes, cause: str) -> None:
    """A broker closes the connection after these, whatever their counts say."""
    with pytest.raises(UnreadableRequest, match=cause):
        read_legacy_request(body)


def test_error_codes_mean_the_same_in_later_releases() -> None:
    """So the fetcher needs one table of error codes."""
    assert [-1, 0, 1, 2, 3, 4] == [*LegacyErrorCode]
    assert [
        "UNKNOWN_SERVER_ERROR",
        "NONE",
        "OFFSET_OUT_OF_RANGE",
        "CORRUPT_MESSAGE",
        "UNKNOWN_TOPIC_OR_PARTITION",
        "INVALID_FETCH_SIZE",
    ] == [ErrorCode(code).name for code in LegacyErrorCode]


def test_each_request_has_its_number_and_its_kind() -> None:
    """Metrics name the kind; brokers are sent the number."""
    assert [
        (0, ApiKey.PRODUCE),
        (1, ApiKey.FETCH),
        (2, ApiKey.FETCH),
        (3, ApiKey.PRODUCE),
        (4, ApiKey.LIST_OFFSETS),
    ] == sorted((int(one.request_type), one.api) for one in REQUEST_CLASSES.values())
