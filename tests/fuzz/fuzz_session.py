# SPDX-License-Identifier: Apache-2.0
"""Invariant: any stream of bytes gives answers in the order of the requests, then perhaps one fault, for ever."""

from __future__ import annotations

import contextlib

from consumerd.errors import RemoteProtocolError
from consumerd.net.frames import FrameAssembler
from consumerd.wire.modern.metadata import MetadataRequest
from consumerd.wire.session import ClientSession
from tests.support.frames import load_frames
from tests.support.streams import receive

SEEDS = [frame.response for frame in load_frames() if frame.response is not None]
REQUEST = MetadataRequest(topics=None)


def fuzz_one(data: bytes) -> None:
    """Check one input, fed in two pieces whose border its last byte tells."""
    frames, session = FrameAssembler(1 << 16), ClientSession("fuzz")
    for _ in range(3):
        session.send(REQUEST, 5)
    border = data[-1] if data else 0
    answered: list[int] = []
    with contextlib.suppress(RemoteProtocolError):
        for piece in (data[:border], data[border:]):
            bodies = receive(frames, piece, len(piece))
            answered.extend(session.receive_frame(body).key for body in bodies)
    assert list(range(3 - session.in_flight)) == answered
