# SPDX-License-Identifier: Apache-2.0
"""Invariant: any bytes after a correlation id are a response that can be written again, or RemoteProtocolError.

The first byte of an input says which response, of which version, the rest is read as.
"""

from __future__ import annotations

from consumerd.errors import RemoteProtocolError
from consumerd.wire.schema import compile_codec
from tests.support.frames import VERSIONS, load_frames

CODECS = [compile_codec(request.response, version) for request, version in VERSIONS]
SEEDS = [
    bytes([VERSIONS.index((frame.request_class, frame.response_version))]) + frame.response_body
    for frame in load_frames()
    if frame.response is not None
]


def fuzz_one(data: bytes) -> None:
    """Check one input."""
    if not data:
        return
    codec = CODECS[data[0] % len(CODECS)]
    try:
        value = codec.decode(data[1:])
    except RemoteProtocolError:
        return
    assert codec.decode(codec.encode(value)) == value
