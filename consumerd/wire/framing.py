# SPDX-License-Identifier: Apache-2.0
"""Frames: an int32 size, then so many bytes (Kafka protocol guide, "Common Request and Response Structure").

Owns how a frame begins, and how large it may be. Knows nothing of what is inside, nor how it arrives (``net.frames``).
"""

from __future__ import annotations

import struct
from typing import Final

from consumerd.errors import LocalProtocolError, RemoteProtocolError
from consumerd.wire.primitives import MAX_INT32

SIZE_BYTES: Final = 4

_SIZE: Final = struct.Struct(">i")


def encode_frame(body: bytes) -> bytes:
    """Put the size before a frame's body."""
    if len(body) > MAX_INT32:
        raise LocalProtocolError(f"frame of {len(body)} bytes: at most {MAX_INT32} can be sent")
    return _SIZE.pack(len(body)) + body


def decode_frame_size(prefix: bytes | bytearray | memoryview, max_frame_bytes: int) -> int:
    """Read a frame's size from its first 4 bytes, before anything is allocated for it.

    Raises RemoteProtocolError when it is negative or more than ``max_frame_bytes``.
    """
    (size,) = _SIZE.unpack_from(prefix)
    if size < 0:
        raise RemoteProtocolError(f"frame size {size} at byte 0: expected 0 or more")
    if size > max_frame_bytes:
        raise RemoteProtocolError(f"frame size {size} at byte 0: at most {max_frame_bytes} are accepted")
    return int(size)
