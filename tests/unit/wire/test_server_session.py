# SPDX-License-Identifier: Apache-2.0
"""The server's side of a connection: what Java clients asked is read, what cannot be handled is told apart."""

from __future__ import annotations

import pytest

from consumerd.errors import LocalProtocolError, RemoteProtocolError
from consumerd.wire.apikeys import ApiKey
from consumerd.wire.framing import SIZE_BYTES
from consumerd.wire.modern.api_versions import ApiVersionsRequest
from consumerd.wire.modern.fetch import FetchedPartition, FetchedTopic, FetchResponse
from consumerd.wire.modern.find_coordinator import FindCoordinatorResponse
from consumerd.wire.modern.produce import ProduceRequest
from consumerd.wire.schema import Request, compile_codec
from consumerd.wire.server_session import (
    UnknownRequest,
    UnreadableRequest,
    VersionNotSpoken,
    encode_response_pieces,
    read_request,
)
from consumerd.wire.session import ClientSession
from tests.support.frames import REQUESTS, RecordedFrame, load_frames, split_request

ALL: dict[type[Request[object]], range] = {one: one.versions for one in REQUESTS.values()}
FRAMES = [frame for frame in load_frames() if frame.version in frame.request_class.versions]


def body_of(frame: RecordedFrame) -> bytes:
    return frame.request[SIZE_BYTES:]


def first(api: ApiKey) -> RecordedFrame:
    return next(frame for frame in FRAMES if frame.api is api)


@pytest.mark.parametrize("frame", FRAMES, ids=str)
def test_what_clients_asked_is_read(frame: RecordedFrame) -> None:
    """Header and body, and the body written again is the same."""
    received = read_request(body_of(frame), ALL)

    header, body = split_request(frame)
    assert (frame.api, frame.version, header) == (received.request.api, received.header.api_version, received.header)
    assert body == received.request.encode(received.header.api_version)


@pytest.mark.parametrize("frame", [one for one in FRAMES if one.response is not None], ids=str)
def test_what_brokers_answered_is_written(frame: RecordedFrame) -> None:
    """The whole frame, size and correlation id included."""
    assert frame.response is not None
    response = compile_codec(frame.request_class.response, frame.response_version).decode(frame.response_body)
    correlation_id = int.from_bytes(frame.response[4:8], "big", signed=True)

    assert frame.response == b"".join(encode_response_pieces(correlation_id, response, frame.response_version))


def test_an_api_that_is_not_accepted_is_named() -> None:
    """For the log; brokers close the connection."""
    accepted = {one: versions for one, versions in ALL.items() if one is not ProduceRequest}

    with pytest.raises(UnknownRequest, match=r"PRODUCE v\d"):
        read_request(body_of(first(ApiKey.PRODUCE)), accepted)

    with pytest.raises(UnknownRequest, match="request 99 v1"):
        read_request(bytes.fromhex("00630001000000050000"), ALL)


def test_a_version_that_is_not_accepted_is_told_without_reading_the_body() -> None:
    """ApiVersions is answered even so, with the correlation id from the header: clients of 2.4 begin with its version 3."""
    frame = next(one for one in load_frames() if one.note == "a version that it does not know")

    with pytest.raises(VersionNotSpoken, match="API_VERSIONS v9: accepted are 0 to 0") as caught:
        read_request(body_of(frame), ALL)

    header, _ = split_request(frame)
    assert (ApiVersionsRequest, header) == (caught.value.request_class, caught.value.header)


@pytest.mark.parametrize("frame", [first(api) for api in REQUESTS if api is not ApiKey.API_VERSIONS], ids=str)
def test_a_body_that_is_cut_is_unreadable_and_bytes_behind_it_are_ignored(frame: RecordedFrame) -> None:
    """Wherever the frame ends; brokers do not mind what follows, and librdkafka relies on it."""
    whole = body_of(frame)

    for end in range(len(whole)):
        with pytest.raises(UnreadableRequest) as caught:
            read_request(whole[:end], ALL)
        assert isinstance(caught.value, RemoteProtocolError)
    assert read_request(whole, ALL) == read_request(whole + bytes(3), ALL)


class Slice:
    """Stands for a part of a file: it has a length, and nobody but the sender looks inside."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size


def test_record_sets_are_pieces_of_their_own() -> None:
    """So that they are sent from the file; the frame around them is that of their bytes."""
    sizes = (300, 0, 70_000)
    slices = [Slice(size) for size in sizes]

    def response(record_sets: list[object]) -> FetchResponse:
        partitions = [
            FetchedPartition(partition=number, high_watermark=9, record_set=one)  # type: ignore[arg-type]  # has a length
            for number, one in enumerate(record_sets)
        ]
        return FetchResponse(
            topics=(
                FetchedTopic(topic="a", partitions=tuple(partitions[:2])),
                FetchedTopic(topic="b", partitions=tuple(partitions[2:])),
            )
        )

    pieces = encode_response_pieces(5, response(list(slices)), 3)

    assert [bytes, Slice, bytes, Slice, bytes, Slice] == [type(piece) for piece in pieces]
    assert slices == pieces[1::2]
    whole = encode_response_pieces(5, response([bytes(size) for size in sizes]), 3)
    assert b"".join(whole) == b"".join(piece if isinstance(piece, bytes) else bytes(len(piece)) for piece in pieces)


def test_a_client_reads_what_the_server_wrote() -> None:
    """The two sides of one protocol."""
    session = ClientSession("me")
    _, frame = session.send(ApiVersionsRequest(), 0)
    received = read_request(frame[SIZE_BYTES:], ALL)
    response = compile_codec(received.request.response, 0).decode(bytes.fromhex("0000000000000000"[:12]))

    answer = b"".join(encode_response_pieces(received.header.correlation_id, response, received.header.api_version))

    read = session.receive_frame(memoryview(answer)[SIZE_BYTES:])
    assert response == ApiVersionsRequest().decode_response(0, read.body)


def test_what_a_version_cannot_say_is_the_servers_own_error() -> None:
    """Nothing that was to be answered is left out silently."""
    response = FindCoordinatorResponse(error_message="why", node_id=0, host="h", port=1)

    with pytest.raises(LocalProtocolError, match="error_message"):
        encode_response_pieces(1, response, 0)


def test_a_response_too_large_for_a_frame_is_refused() -> None:
    """Before a byte of it is sent."""
    partition = FetchedPartition(partition=0, high_watermark=1, record_set=Slice((1 << 31) - 50))  # type: ignore[arg-type]  # has a length
    response = FetchResponse(topics=(FetchedTopic(topic="a long name" * 9, partitions=(partition,)),))

    with pytest.raises(LocalProtocolError, match="at most"):
        encode_response_pieces(1, response, 0)
