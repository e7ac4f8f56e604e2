"""Whatever the values, whatever the bytes: codecs, frames and sessions keep their promises."""

from __future__ import annotations

import contextlib
import itertools
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumerd.errors import RemoteProtocolError
from consumerd.wire.framing import FrameReader, encode_frame
from consumerd.wire.modern.api_versions import ApiVersionsRequest, ApiVersionsResponse
from consumerd.wire.schema import compile_codec
from consumerd.wire.session import HEADER_CODEC, ClientSession, RequestHeader, ResponseFrame
from tests.support.frames import VERSIONS, load_frames
from tests.support.messages import messages

CODECS = [
    compile_codec(HEADER_CODEC.message, 0),
    *(compile_codec(cls, version) for request, version in VERSIONS for cls in (request, request.response)),
]
every_codec = pytest.mark.parametrize("codec", CODECS, ids=lambda one: f"{one.message.__name__}-v{one.version}")

BODIES = sorted(
    {(one.request_class, one.response_version, one.response[8:]) for one in load_frames() if one.response}, key=str
)


def check_decoder(codec: Any, data: bytes) -> None:
    """Any bytes give a value that can be written again, or the peer's error; nothing else."""
    with contextlib.suppress(RemoteProtocolError):
        value = codec.decode(data)
        assert codec.decode(codec.encode(value)) == value


@every_codec
@settings(max_examples=25)
@given(data=st.data())
def test_any_value_comes_back(codec: Any, data: st.DataObject) -> None:
    """Encoded and decoded it is the same, and every byte of it was read."""
    value = data.draw(messages(codec.message, codec.version))
    encoded = codec.encode(value)

    assert codec.decode(encoded) == value
    assert codec.read(memoryview(encoded + b"more"), 0, len(encoded) + 4)[1] == len(encoded)
    assert len(encoded) >= codec.least_bytes


@every_codec
@settings(max_examples=25)
@given(data=st.data())
def test_any_prefix_is_refused(codec: Any, data: st.DataObject) -> None:
    """A message that was cut anywhere never passes for a shorter one."""
    encoded = codec.encode(data.draw(messages(codec.message, codec.version)))
    if encoded:
        end = data.draw(st.integers(0, len(encoded) - 1))
        with pytest.raises(RemoteProtocolError, match=r"byte \d+ of \d+"):
            codec.decode(encoded[:end])


@every_codec
@settings(max_examples=50)
@given(data=st.binary(max_size=200))
def test_random_bytes_are_read_or_refused(codec: Any, data: bytes) -> None:
    """No other exception, and no memory for lengths that are only announced."""
    check_decoder(codec, data)


@given(data=st.data())
def test_mutated_answers_are_read_or_refused(data: st.DataObject) -> None:
    """Real answers with bytes overwritten, inserted and removed get further into the decoders than random bytes."""
    request, version, body = data.draw(st.sampled_from(BODIES))
    mutated = bytearray(body)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(mutated)))
        removed = data.draw(st.integers(0, 8))
        mutated[at : at + removed] = data.draw(
            st.binary(max_size=8) | st.sampled_from([b"\x7f\xff\xff\xff", b"\xff" * 4])
        )
    check_decoder(compile_codec(request.response, version), bytes(mutated))


def cut(stream: bytes, at: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(one, len(stream)) for one in at), len(stream)]
    return [stream[start:end] for start, end in itertools.pairwise(edges)]


@given(bodies=st.lists(st.binary(max_size=30), max_size=6), at=st.lists(st.integers(0, 200), max_size=12))
def test_frames_do_not_depend_on_how_the_stream_is_cut(bodies: list[bytes], at: list[int]) -> None:
    """TCP keeps the order of bytes and nothing else."""
    frames, received = FrameReader(100), []
    for piece in cut(b"".join(map(encode_frame, bodies)), at):
        frames.feed(piece)
        while (frame := frames.next_frame()) is not None:
            received.append(bytes(frame))

    assert (bodies, 0) == (received, frames.buffered)


@given(pieces=st.lists(st.binary(max_size=30), max_size=8), sent=st.integers(0, 4))
def test_session_gives_answers_or_a_fault(pieces: list[bytes], sent: int) -> None:
    """Whatever a broker sends, it is an answer to the oldest request or the end of the session."""
    session = ClientSession("me", 64)
    for _ in range(sent):
        session.send(ApiVersionsRequest(), 0)
    received: list[ResponseFrame] = []
    for piece in pieces:
        with contextlib.suppress(RemoteProtocolError):
            received.extend(session.receive_data(piece))

    assert list(range(len(received))) == [frame.correlation_id for frame in received]
    assert sent - len(received) == session.in_flight


@given(at=st.lists(st.integers(0, 200), max_size=12), good=st.integers(0, 4), fault=st.sampled_from([b"\xff" * 4, b""]))
def test_answers_do_not_depend_on_how_the_stream_is_cut(at: list[int], good: int, fault: bytes) -> None:
    """With a fault behind them or not, all answers before it are given out."""
    session = ClientSession("me", 64)
    answer = compile_codec(ApiVersionsResponse, 0).encode(ApiVersionsResponse(api_versions=()))
    stream = b"".join(
        encode_frame(struct.pack(">i", session.send(ApiVersionsRequest(), 0)[0]) + answer) for _ in range(good)
    )
    received: list[ResponseFrame] = []
    for piece in cut(stream + fault, at):
        with contextlib.suppress(RemoteProtocolError):
            received.extend(session.receive_data(piece))

    assert list(range(good)) == [frame.correlation_id for frame in received]
    assert bool(fault) == (session.fault is not None)


@given(header=messages(RequestHeader, 0))
def test_header_is_as_long_as_the_guide_says(header: RequestHeader) -> None:
    """Two int16, an int32 and a string."""
    client_id = (header.client_id or "").encode()

    assert len(HEADER_CODEC.encode(header)) == 2 + 2 + 4 + 2 + len(client_id)
