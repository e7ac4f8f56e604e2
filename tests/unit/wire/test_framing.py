# SPDX-License-Identifier: Apache-2.0
"""Sizes that cannot be are refused before anything is allocated."""

from __future__ import annotations

import pytest

from consumerd.errors import LocalProtocolError, RemoteProtocolError
from consumerd.wire import framing
from consumerd.wire.framing import decode_frame_size, encode_frame


def test_encoded_frame_has_its_size_in_front() -> None:
    """The size counts the body alone."""
    assert encode_frame(b"abc") == b"\0\0\0\x03abc"


def test_frame_too_large_for_its_size_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two gigabytes cannot be announced; tried with a smaller limit, to spare the memory."""
    monkeypatch.setattr(framing, "MAX_INT32", 2)

    with pytest.raises(LocalProtocolError, match="frame of 3 bytes: at most 2"):
        encode_frame(b"abc")


@pytest.mark.parametrize("size", [-1, -(2**31), 101, 2**31 - 1])
def test_impossible_size_is_refused(size: int) -> None:
    """It is told where, what was expected and what came."""
    with pytest.raises(RemoteProtocolError, match=rf"frame size {size} at byte 0"):
        decode_frame_size(size.to_bytes(4, "big", signed=True), 100)


@pytest.mark.parametrize("size", [0, 100])
def test_sizes_up_to_the_limit_are_accepted(size: int) -> None:
    """The limit itself is allowed, and so is an empty frame."""
    assert decode_frame_size(size.to_bytes(4, "big"), 100) == size
