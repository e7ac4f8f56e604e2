# SPDX-License-Identifier: Apache-2.0
"""Messages of Kafka 0.6 and 0.7 of all shapes, whole and damaged: records, more bytes needed, or a named error."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumerd.errors import CorruptMessageError, RemoteProtocolError
from consumerd.wire.compression import Codec
from consumerd.wire.legacy.extent import cut_message_set, first_message_bytes, read_claim
from consumerd.wire.legacy.message_set import (
    build_message_set,
    check_message_set,
    compress_message_set,
    decode_message_set,
)
from consumerd.wire.legacy.messages import (
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
from consumerd.wire.records import Limits
from tests.support.legacy_frames import PARTITION, Row, list_rows

pytestmark = [pytest.mark.usefixtures("each_path"), pytest.mark.records]

LIMITS = Limits(decompressed_bytes=1 << 20)
PAYLOADS = st.lists(st.binary(max_size=60), max_size=6)
CODECS = st.sampled_from([Codec.GZIP, Codec.SNAPPY])


@st.composite
def units(draw: st.DrawFn, depth: int = 3) -> tuple[bytes, list[bytes]]:
    """Draw one message, and the payloads of its records."""
    if depth and draw(st.booleans()):
        inner = draw(st.lists(units(depth - 1), max_size=3))
        messages = b"".join(message for message, _ in inner)
        payloads = [payload for _, each in inner for payload in each]
        return compress_message_set(messages, draw(CODECS)), payloads
    payload = draw(st.binary(max_size=60))
    return build_message_set([payload], magic=draw(st.integers(0, 1))), [payload]


SETS = st.lists(units(), max_size=5)
OFFSETS = st.integers(0, 1 << 62)


def expect(drawn: list[tuple[bytes, list[bytes]]], start: int) -> list[Row]:
    rows = []
    for message, payloads in drawn:
        stop = start + len(message)
        rows += [(start, index, stop, payload) for index, payload in enumerate(payloads)]
        start = stop
    return rows


@given(drawn=SETS, start=OFFSETS, cut=st.integers(0, 200))
def test_message_set_decodes_to_what_was_built(drawn: list[tuple[bytes, list[bytes]]], start: int, cut: int) -> None:
    """Whole, and up to the last whole message wherever it is cut; each offset is explained once."""
    data = b"".join(message for message, _ in drawn)
    expected = expect(drawn, start)
    assert len(data) == check_message_set(data)
    assert expected == list_rows(decode_message_set(data, partition=PARTITION, start=start, limits=LIMITS))

    data = data[: max(0, len(data) - cut)]
    batch = decode_message_set(data, partition=PARTITION, start=start, limits=LIMITS)

    assert [row for row in expected if row[2] <= start + len(data)] == list_rows(batch)
    spans = {(offset, batch.following(row)) for row, offset in enumerate(batch.offsets)}
    spans |= {(gap.start, gap.end) for gap in batch.gaps}
    assert batch.next_offset - start == sum(end - begin for begin, end in spans)
    if batch.next_offset == start and len(data) >= 4:
        size = first_message_bytes(data)
        assert size is not None
        assert size > len(data)


@given(drawn=SETS, start=OFFSETS, slice_bytes=st.integers(1, 300), expansion=st.none() | st.floats(0.5, 20))
def test_pieces_hold_the_records_of_the_whole(
    drawn: list[tuple[bytes, list[bytes]]], start: int, slice_bytes: int, expansion: float | None
) -> None:
    """A piece is decoded alone, from the offset that was predicted for it."""
    data = b"".join(message for message, _ in drawn)
    rows: list[Row] = []
    position = start
    for piece in cut_message_set(data + b"\0\0\0", start, slice_bytes=slice_bytes, expansion=expansion):
        batch = decode_message_set(data[piece.begin : piece.end], partition=PARTITION, start=position)
        assert piece.next_offset == batch.next_offset
        position = batch.next_offset
        rows += list_rows(batch)

    assert expect(drawn, start) == rows


@given(drawn=SETS, start=OFFSETS, data=st.data())
def test_damaged_message_set_gives_whole_messages_or_a_named_error(
    drawn: list[tuple[bytes, list[bytes]]], start: int, data: st.DataObject
) -> None:
    """A record before the damage is never lost, and one with a wrong checksum never delivered."""
    damaged = bytearray(b"".join(message for message, _ in drawn))
    at = data.draw(st.integers(0, max(0, len(damaged) - 1)))
    damaged[at : at + 1] = data.draw(st.binary(max_size=3))
    check_any_bytes(bytes(damaged), start)

    try:
        batch = decode_message_set(bytes(damaged), partition=PARTITION, start=start, limits=LIMITS)
    except CorruptMessageError:
        assert not drawn or at < len(drawn[0][0])
    else:
        before = [row for row in expect(drawn, start) if row[2] <= start + at]
        assert before == list_rows(batch)[: len(before)]


def check_any_bytes(data: bytes, start: int) -> None:
    """Call each reader of a message set with bytes that may be anything."""
    fault: CorruptMessageError | None = None
    try:
        batch = decode_message_set(data, partition=PARTITION, start=start, limits=LIMITS)
    except CorruptMessageError as error:
        fault = error
    if fault is not None:
        assert (PARTITION, start) == (fault.partition, fault.offset)
        assert fault.raw in data
        assert fault.next_offset is None or fault.next_offset > start
    else:
        assert start <= batch.next_offset <= start + len(data)
        assert len(batch) == len(list_rows(batch))
    claim, size = read_claim(data, start), first_message_bytes(data)
    assert claim is None or claim > start
    assert size is None or size >= 0
    for piece in cut_message_set(data, start, slice_bytes=100, expansion=None):
        assert 0 <= piece.begin < piece.end <= len(data)
    with contextlib.suppress(CorruptMessageError):
        assert 0 <= check_message_set(data, limits=LIMITS) <= len(data)


@given(data=st.binary(max_size=300), start=OFFSETS)
def test_any_bytes_are_records_or_a_named_error(data: bytes, start: int) -> None:
    """Nothing else may come out of bytes that a peer can choose."""
    check_any_bytes(data, start)


TOPICS = st.text(st.characters(codec="utf-8"), max_size=20)
INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
FETCHES = st.builds(LegacyFetchRequest, topic=TOPICS, partition=INT32, offset=INT64, max_size=INT32)
PRODUCES = st.builds(LegacyProduceRequest, topic=TOPICS, partition=INT32, messages=st.binary(max_size=50))
REQUESTS = st.one_of(
    FETCHES,
    PRODUCES,
    st.builds(LegacyMultiFetchRequest, requests=st.lists(FETCHES, max_size=4).map(tuple)),
    st.builds(LegacyMultiProduceRequest, requests=st.lists(PRODUCES, max_size=4).map(tuple)),
    st.builds(LegacyOffsetsRequest, topic=TOPICS, partition=INT32, time=INT64, max_number=INT32),
)
INT16 = st.integers(-(1 << 15), (1 << 15) - 1)
FETCHED = st.builds(LegacyFetchResponse, error_code=INT16, messages=st.binary(max_size=50))


@given(request=REQUESTS)
def test_request_round_trips(request: Any) -> None:
    """The embedded broker reads what clients write."""
    frame = encode_legacy_request(request)

    assert len(frame) == 4 + int.from_bytes(frame[:4], "big")
    assert request == read_legacy_request(frame[4:])


@given(
    response=st.one_of(
        FETCHED,
        st.builds(LegacyMultiFetchResponse, error_code=INT16, responses=st.lists(FETCHED, max_size=4).map(tuple)),
        st.builds(LegacyOffsetsResponse, error_code=INT16, offsets=st.lists(INT64, max_size=4).map(tuple)),
    )
)
def test_response_round_trips(response: Any) -> None:
    """Clients read what the embedded broker writes."""
    body = memoryview(encode_legacy_response(response))[4:]
    one = LegacyFetchRequest(topic="t", partition=0, offset=0, max_size=1)
    asked: Any = one
    if isinstance(response, LegacyOffsetsResponse):
        asked = LegacyOffsetsRequest(topic="t", partition=0, time=-1, max_number=1)
    elif isinstance(response, LegacyMultiFetchResponse):
        asked = LegacyMultiFetchRequest(requests=(one,) * len(response.responses))

    assert response == asked.decode_response(0, body)


@given(body=st.binary(max_size=100), request=REQUESTS)
def test_any_frame_is_a_message_or_a_named_error(body: bytes, request: Any) -> None:
    """On both sides of a connection."""
    with contextlib.suppress(RemoteProtocolError):
        read_legacy_request(body)
    session = LegacyClientSession()
    session.send(request)
    try:
        answer = session.receive_frame(memoryview(body))
        request.decode_response(0, answer.body)
    except RemoteProtocolError:
        pass
