# SPDX-License-Identifier: Apache-2.0
"""Frames recorded from Kafka 0.7.2 and Jafka 3.0.6: each decodes to what its file says."""

from __future__ import annotations

from typing import Any

import pytest

from consumerd.errors import CorruptMessageError, RemoteProtocolError
from consumerd.wire.compression import Codec
from consumerd.wire.legacy.message_set import build_message_set, compress_message_set, decode_message_set
from consumerd.wire.legacy.messages import (
    EARLIEST_TIME,
    LATEST_TIME,
    LegacyErrorCode,
    LegacyFetchRequest,
    LegacyFetchResponse,
    LegacyMultiFetchRequest,
    LegacyMultiFetchResponse,
    LegacyMultiProduceRequest,
    LegacyOffsetsRequest,
    LegacyOffsetsResponse,
    LegacyProduceRequest,
    LegacyRequest,
)
from consumerd.wire.legacy.session import (
    LegacyClientSession,
    encode_legacy_request,
    encode_legacy_response,
    read_legacy_request,
)
from consumerd.wire.server_session import UnknownRequest, UnreadableRequest
from tests.support.legacy_frames import (
    MALFORMED,
    PARTITION,
    LegacyExchange,
    expect_rows,
    get_exchange,
    list_rows,
    load_exchanges,
    split_frames,
)

pytestmark = pytest.mark.usefixtures("each_path")

REQUESTED = [one for one in load_exchanges() if one.short_name not in MALFORMED]
INSIDE_PARTIAL = 50
"""Bytes that the recorder took for a partial message in the only response with more: a fetch from inside of one."""
ANSWERED = [one for one in REQUESTED if one.response is not None and not one.is_malformed_response]


def receive(exchange: LegacyExchange, frame: bytes) -> tuple[LegacyRequest[Any], Any]:
    """Send the recorded request through a session, and return it with its decoded response."""
    request = read_legacy_request(exchange.request[4:])
    session = LegacyClientSession()
    key, sent = session.send(request)
    assert sent == exchange.request
    answer = session.receive_frame(memoryview(frame))
    assert (key, 0) == (answer.key, session.in_flight)
    return request, request.decode_response(0, answer.body)


def check_fetched(request: LegacyFetchRequest, response: LegacyFetchResponse, decoded: dict[str, Any]) -> None:
    """Compare a decoded response to FETCH with the recorder's."""
    assert response.error_code == LegacyErrorCode(decoded["error_code"])
    expected = expect_rows(decoded["messages"], request.offset)
    partial = sum(one.get("partial_bytes", 0) for one in decoded["messages"])
    if partial > INSIDE_PARTIAL:
        with pytest.raises(
            CorruptMessageError, match=f"t/0-1: the message set fetched at byte offset {request.offset}"
        ):
            decode_message_set(response.messages, partition=PARTITION, start=request.offset)
        return

    batch = decode_message_set(response.messages, partition=PARTITION, start=request.offset)

    assert expected == list_rows(batch)
    assert request.offset + len(response.messages) - partial == batch.next_offset


def check(exchange: LegacyExchange, frame: bytes) -> None:
    """Compare a response with what its file says."""
    request, response = receive(exchange, frame)
    decoded = exchange.decoded
    if isinstance(request, LegacyOffsetsRequest):
        assert isinstance(response, LegacyOffsetsResponse)
        assert (decoded["error_code"], tuple(decoded["offsets"])) == (response.error_code, response.offsets)
    elif isinstance(request, LegacyMultiFetchRequest):
        assert isinstance(response, LegacyMultiFetchResponse)
        assert decoded["error_code"] == response.error_code
        for one, part, said in zip(request.requests, response.responses, decoded["sets"], strict=True):
            check_fetched(one, part, said)
    else:
        assert isinstance(request, LegacyFetchRequest)
        assert isinstance(response, LegacyFetchResponse)
        check_fetched(request, response, decoded)


@pytest.mark.parametrize("exchange", ANSWERED, ids=str)
def test_response_decodes_to_what_its_file_says(exchange: LegacyExchange) -> None:
    """The oracle is another program's reading of what a real broker sent."""
    assert exchange.response is not None
    check(exchange, exchange.response[4:])


@pytest.mark.parametrize("exchange", ANSWERED, ids=str)
def test_response_decodes_byte_by_byte_and_before_other_bytes(exchange: LegacyExchange) -> None:
    """A stream has no boundaries: the next response may begin in the same segment."""
    assert exchange.response is not None

    for data, step in (
        (exchange.response, 1),
        (exchange.response + b"\0\0\0\x02\0", 1),
        (exchange.response + exchange.response, len(exchange.response) + 3),
    ):
        frames = split_frames(data, step)
        assert {exchange.response[4:]} == set(frames)
        check(exchange, frames[0])

    assert all(split_frames(exchange.response[:cut], 7) == [] for cut in range(len(exchange.response)))


@pytest.mark.parametrize("exchange", ANSWERED, ids=str)
def test_response_encodes_to_the_recorded_bytes(exchange: LegacyExchange) -> None:
    """The embedded broker's responses are those of a real one."""
    assert exchange.response is not None
    _, response = receive(exchange, exchange.response[4:])

    assert exchange.response == encode_legacy_response(response)


@pytest.mark.parametrize("exchange", ANSWERED, ids=str)
def test_cut_off_response_is_a_named_error_or_fewer_records(exchange: LegacyExchange) -> None:
    """A frame whose contents are shorter than its fields say is refused, not guessed."""
    assert exchange.response is not None
    body = exchange.response[4:]
    request = read_legacy_request(exchange.request[4:])

    for cut in range(len(body)):
        try:
            response = request.decode_response(0, memoryview(body)[:cut])
        except RemoteProtocolError:
            continue
        assert isinstance(response, LegacyFetchResponse), "other responses state their size"
        assert body[2:cut] == response.messages


@pytest.mark.parametrize("exchange", REQUESTED, ids=str)
def test_request_encodes_to_the_recorded_bytes(exchange: LegacyExchange) -> None:
    """Every recorded request can be read, also by fields that are cut out of a longer frame, and written again."""
    request = read_legacy_request(exchange.request[4:])

    assert exchange.request == encode_legacy_request(request)
    assert request == read_legacy_request(exchange.request[4:] + b"ignored")


@pytest.mark.parametrize("exchange", REQUESTED, ids=str)
def test_cut_off_request_is_unreadable(exchange: LegacyExchange) -> None:
    """No prefix of a request is a request."""
    for cut in range(4, len(exchange.request)):
        with pytest.raises(UnreadableRequest):
            read_legacy_request(exchange.request[4:cut])


@pytest.mark.parametrize("prefix", ["k072", "jafka"])
@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("truncated_request", "topic: byte 4 of 8: needs 32 bytes, 4 are left"),
        ("zero_length", "request frame of 0 bytes: needs a request type"),
    ],
)
def test_malformed_request_is_unreadable(prefix: str, name: str, cause: str) -> None:
    """A real broker was sent these: it closes the connection, or answers nothing."""
    request = get_exchange(f"{prefix}_{name}").request

    with pytest.raises(UnreadableRequest, match=cause):
        read_legacy_request(request[4:][: int.from_bytes(request[:4], "big")])


def test_unknown_request_type_is_named() -> None:
    """Later releases have other requests under the same and under higher numbers."""
    with pytest.raises(UnknownRequest, match="request type 9 at byte 0: expected 0 to 4"):
        read_legacy_request(get_exchange("k072_unknown_request_type").request[4:])


def test_oversized_frame_is_refused_by_its_size() -> None:
    """A size of 2 GiB must not become a buffer of 2 GiB."""
    with pytest.raises(RemoteProtocolError, match="frame size 2147483647"):
        split_frames(get_exchange("k072_oversize_length").request, 1)


def topic_of(name: str) -> str:
    """Return the topic in a recorded request."""
    request: Any = read_legacy_request(get_exchange(name).request[4:])
    topic: str = (request.requests[0] if hasattr(request, "requests") else request).topic
    return topic


def make_requests() -> dict[str, LegacyRequest[Any]]:
    """Return requests by the name under which the same request was recorded; topics are those of the recordings."""
    plain, segments = topic_of("k072_fetch_plain"), topic_of("k072_offsets_latest_2")
    mpa, mpb = "vKAFampa", "vKAFampb"
    inner = build_message_set([b"in-1", b"in-2", b"in-3"])
    return {
        "fetch_plain": LegacyFetchRequest(topic=plain, partition=0, offset=0, max_size=100000),
        "fetch_second": LegacyFetchRequest(topic=plain, partition=0, offset=15, max_size=100000),
        "fetch_max_negative": LegacyFetchRequest(topic=plain, partition=0, offset=0, max_size=-1),
        "offsets_latest_2": LegacyOffsetsRequest(topic=segments, partition=0, time=LATEST_TIME, max_number=2),
        "offsets_earliest_1": LegacyOffsetsRequest(topic=segments, partition=0, time=EARLIEST_TIME, max_number=1),
        "produce_gzip": LegacyProduceRequest(
            topic=topic_of("k072_produce_gzip"),
            partition=0,
            messages=build_message_set([b"in-1", b"in-2", b"in-3"], codec=1),
        ),
        "produce_magic0": LegacyProduceRequest(
            topic=topic_of("k072_produce_magic0"),
            partition=0,
            messages=build_message_set([b"old one", b"old two"], magic=0),
        ),
        "produce_snappy_xerial": LegacyProduceRequest(
            topic=topic_of("k072_produce_snappy_xerial"),
            partition=0,
            messages=compress_message_set(inner, Codec.SNAPPY),
        ),
        "multiproduce": LegacyMultiProduceRequest(
            requests=tuple(
                LegacyProduceRequest(topic=topic, partition=0, messages=build_message_set(payloads))
                for topic, payloads in ((mpa, [b"A"]), (mpb, [b"B1", b"B2"]), (mpa, [b"A2"]))
            )
        ),
        "multifetch_ok": LegacyMultiFetchRequest(
            requests=tuple(
                LegacyFetchRequest(topic=topic, partition=0, offset=0, max_size=1000) for topic in (mpa, mpb)
            )
        ),
        "multifetch_zero": LegacyMultiFetchRequest(requests=()),
    }


@pytest.mark.parametrize("name", make_requests())
def test_made_request_equals_the_recorded_one(name: str) -> None:
    """Requests are made from values here, not from recorded bytes."""
    assert get_exchange(f"k072_{name}").request == encode_legacy_request(make_requests()[name])
