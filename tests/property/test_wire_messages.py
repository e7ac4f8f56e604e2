# SPDX-License-Identifier: Apache-2.0
"""Whatever the values, whatever the bytes: codecs, frames and sessions keep their promises."""

from __future__ import annotations

import contextlib
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumerd.errors import RemoteProtocolError
from consumerd.wire.modern.api_versions import ApiVersionsRequest
from consumerd.wire.schema import compile_codec
from consumerd.wire.session import HEADER_CODEC, ClientSession, RequestHeader
from tests.support.frames import VERSIONS, load_frames
from tests.support.messages import messages

CODECS = [
    compile_codec(HEADER_CODEC.message, 0),
    *(compile_codec(cls, version) for request, version in VERSIONS for cls in (request, request.response)),
]
every_codec = pytest.mark.parametrize("codec", CODECS, ids=lambda one: f"{one.message.__name__}-v{one.version}")

BODIES = sorted(
    {(one.request_class, one.response_version, one.response_body) for one in load_frames() if one.response}, key=str
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


@given(
    frames=st.lists(st.binary(max_size=30) | st.integers(-1, 4).map(struct.Struct(">i").pack), max_size=8),
    sent=st.integers(0, 4),
)
def test_session_gives_answers_or_a_fault(frames: list[bytes], sent: int) -> None:
    """Whatever a broker sends, it is an answer to the oldest request or the end of the session."""
    session = ClientSession("me")
    for _ in range(sent):
        session.send(ApiVersionsRequest(), 0)
    received: list[int] = []
    for frame in frames:
        with contextlib.suppress(RemoteProtocolError):
            received.append(session.receive_frame(memoryview(frame)).key)

    assert list(range(len(received))) == received
    assert sent - len(received) == session.in_flight
    assert (session.fault is None) == (len(received) == len(frames))


@given(header=messages(RequestHeader, 0))
def test_header_is_as_long_as_the_guide_says(header: RequestHeader) -> None:
    """Two int16, an int32 and a string."""
    client_id = (header.client_id or "").encode()

    assert len(HEADER_CODEC.encode(header)) == 2 + 2 + 4 + 2 + len(client_id)
