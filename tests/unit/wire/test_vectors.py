# SPDX-License-Identifier: Apache-2.0
"""Every recorded frame is read, and written again byte for byte."""

from __future__ import annotations

import pytest

from consumerd.errors import RemoteProtocolError
from consumerd.net.frames import FrameAssembler
from consumerd.wire.framing import SIZE_BYTES
from consumerd.wire.schema import MessageCodec, compile_codec
from consumerd.wire.session import encode_request
from tests.support.frames import VERSIONS, RecordedFrame, load_frames, split_request
from tests.support.streams import feed

FRAMES = load_frames()
ANSWERED = [frame for frame in FRAMES if frame.response is not None]
DECLARED = [frame for frame in FRAMES if frame.version in frame.request_class.versions]
every_request = pytest.mark.parametrize("frame", DECLARED, ids=str)
every_answer = pytest.mark.parametrize("frame", ANSWERED, ids=str)


def response_of(frame: RecordedFrame) -> tuple[MessageCodec[object], bytes]:
    """Return the codec and the body of a response frame."""
    return compile_codec(frame.request_class.response, frame.response_version), frame.response_body


def prefixes(body: bytes) -> list[bytes]:
    """Every prefix of a short message; of a long one those around its fields, which stand at its beginning."""
    return [body[:end] for end in {*range(min(len(body), 200)), len(body) - 1} if end >= 0]


def test_every_declared_version_was_recorded() -> None:
    """A version that no real broker has confirmed would be a guess."""
    recorded = {(frame.request_class, frame.version) for frame in ANSWERED if frame in DECLARED}

    assert set(VERSIONS) == recorded


@every_request
def test_request_is_read_and_written_back(frame: RecordedFrame) -> None:
    """What a real client sent is exactly what we would send for the values read from it."""
    header, body = split_request(frame)
    request = compile_codec(frame.request_class, frame.version).decode(body)

    assert (frame.api, frame.version) == (header.api_key, header.api_version)
    assert frame.request == encode_request(
        request, frame.version, correlation_id=header.correlation_id, client_id=header.client_id
    )


@every_answer
def test_response_is_read_and_written_back(frame: RecordedFrame) -> None:
    """Nothing that a real broker said is lost in reading it."""
    codec, body = response_of(frame)

    assert body == codec.encode(codec.decode(body))


@every_answer
def test_truncated_response_names_the_byte(frame: RecordedFrame) -> None:
    """A body that ends too early fails as the peer's fault, wherever it ends."""
    codec, body = response_of(frame)

    for prefix in prefixes(body):
        with pytest.raises(RemoteProtocolError, match=r"byte \d+ of \d+"):
            codec.decode(prefix)


@every_answer
def test_response_with_trailing_bytes_is_refused(frame: RecordedFrame) -> None:
    """Left-over bytes mean that the two sides speak of different versions."""
    codec, body = response_of(frame)

    with pytest.raises(RemoteProtocolError, match="1 bytes are left over"):
        codec.decode(body + b"\0")


@every_answer
def test_frame_is_cut_however_it_arrives(frame: RecordedFrame) -> None:
    """Whole, byte by byte, or with the next frame behind it: the same body; any prefix: need more."""
    whole = frame.response
    assert whole is not None
    body, trailing = whole[SIZE_BYTES:], b"\0\0\0\x05ab"

    assert [body] == feed(FrameAssembler(1 << 20), whole, len(whole))
    assert [body] == feed(FrameAssembler(1 << 20), whole + trailing, len(whole + trailing))

    drop_by_drop = FrameAssembler(1 << 20)
    assert [] == feed(drop_by_drop, whole[:-1], 1)
    assert [body] == feed(drop_by_drop, whole[-1:], 1)
