# SPDX-License-Identifier: Apache-2.0
"""Invariant: any frame is a request that can be written again, or one of three errors that say how far it was read."""

from __future__ import annotations

from consumerd.wire.framing import SIZE_BYTES
from consumerd.wire.schema import compile_codec
from consumerd.wire.server_session import UnknownRequest, UnreadableRequest, VersionNotSpoken, read_request
from tests.support.frames import REQUESTS, load_frames

ACCEPTED = {request: request.versions for request in REQUESTS.values()}
SEEDS = [frame.request[SIZE_BYTES:] for frame in load_frames()]


def fuzz_one(data: bytes) -> None:
    """Check one input."""
    try:
        received = read_request(data, ACCEPTED)
    except (UnknownRequest, VersionNotSpoken, UnreadableRequest):
        return
    codec = compile_codec(type(received.request), received.header.api_version)
    assert codec.decode(codec.encode(received.request)) == received.request
