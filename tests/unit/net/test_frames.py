# SPDX-License-Identifier: Apache-2.0
"""Frames out of a byte stream."""

from __future__ import annotations

import pytest

from consumerd.errors import RemoteProtocolError
from consumerd.net.frames import FrameAssembler
from tests.support.streams import feed, receive

pytestmark = pytest.mark.usefixtures("each_path")


def frame(body: bytes) -> bytes:
    return len(body).to_bytes(4) + body


def test_frames_in_one_read_come_out_in_order() -> None:
    """Small answers to pipelined requests share a segment."""
    found = feed(FrameAssembler(100), frame(b"one") + frame(b"") + frame(b"three"), 1000)

    assert found == [b"one", b"", b"three"]


def test_large_frame_is_received_into_its_own_memory() -> None:
    """The bulk of a fetch must not be copied: the buffer offered is the rest of the frame itself."""
    assembler = FrameAssembler(1 << 20)
    start = frame(bytes(1 << 20))[:10]
    assembler.buffer()[:10] = start

    assert list(assembler.advance(10)) == []
    assert len(assembler.buffer()) == (1 << 20) - 6


def test_frames_taken_are_not_written_again() -> None:
    """A record batch keeps its frame while the next one is being received."""
    assembler = FrameAssembler(1 << 20)
    body = bytes(range(256)) * 1024
    (first,) = receive(assembler, frame(body), 100_000)

    feed(assembler, frame(bytes(len(body))), 100_000)

    assert body == first


def test_frame_is_read_only() -> None:
    """Whoever takes a view cannot change what another reads."""
    (body,) = receive(FrameAssembler(100), frame(b"abc"), 100)

    assert body.readonly


@pytest.mark.parametrize("size", [-1, -(2**31), 101, 2**31 - 1])
def test_impossible_size_is_refused(size: int) -> None:
    """Nothing is allocated for a size that a peer makes up."""
    with pytest.raises(RemoteProtocolError, match=str(size)):
        feed(FrameAssembler(100), size.to_bytes(4, signed=True), 4)


@pytest.mark.parametrize(
    ("start", "hint"),
    [(bytes.fromhex("1503010002"), "wants TLS"), (b"HTTP/1.1 400", "no broker listens")],
)
def test_other_protocols_are_recognised(start: bytes, hint: str) -> None:
    """A wrong port or a forgotten TLS setting is the usual cause, and the error says so."""
    with pytest.raises(RemoteProtocolError, match=hint):
        feed(FrameAssembler(1 << 20), start, 100)
