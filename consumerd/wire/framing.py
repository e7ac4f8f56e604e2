# SPDX-License-Identifier: Apache-2.0
"""Frames: an int32 size, followed by that number of bytes.

Owns the size prefix and the limit on it. The contents of a frame, and how it arrives (``net.frames``), are not known
here. Source: Kafka protocol guide, "Common Request and Response Structure".
"""

from __future__ import annotations

import struct
from typing import Final

from consumerd.errors import LocalProtocolError, RemoteProtocolError
from consumerd.wire.primitives import MAX_INT32

SIZE_BYTES: Final = 4

_SIZE: Final = struct.Struct(">i")


def encode_frame(body: bytes) -> bytes:
    """Return a frame: the size of ``body`` as an int32, then ``body``."""
    if len(body) > MAX_INT32:
        raise LocalProtocolError(f"frame of {len(body)} bytes: at most {MAX_INT32} can be sent")
    return _SIZE.pack(len(body)) + body


def decode_frame_size(prefix: bytes | bytearray | memoryview, max_frame_bytes: int) -> int:
    """Return the size in a frame's first 4 bytes: the number of bytes after them.

    Raises RemoteProtocolError if the size is negative or more than ``max_frame_bytes``, so that no memory is allocated
    for such a frame.
    """
    (size,) = _SIZE.unpack_from(prefix)
    if size < 0:
        raise RemoteProtocolError(f"frame size {size} at byte 0: expected 0 or more")
    if size > max_frame_bytes:
        raise RemoteProtocolError(f"frame size {size} at byte 0: at most {max_frame_bytes} are accepted")
    return int(size)
