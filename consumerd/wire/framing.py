"""Frames: an int32 size, then so many bytes (Kafka protocol guide, "Common Request and Response Structure").

Owns where a frame begins and ends, and how large it may be. Knows nothing of what is inside.

Once a size has been refused nothing after it can be told apart any more: a :class:`FrameReader` then raises the same
fault for ever.
"""

from __future__ import annotations

import struct
from collections import deque
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


class FrameReader:
    """Cuts a stream of bytes, fed as they come, into the bodies of frames.

    What was fed is kept as it is until a frame is whole, and then copied at most once; a frame that arrived in one
    piece is a view into it. Never holds more than one frame beyond what was fed last.
    """

    def __init__(self, max_frame_bytes: int) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._pieces: deque[memoryview] = deque()
        self._buffered = 0
        self._size: int | None = None
        self._fault: RemoteProtocolError | None = None

    @property
    def buffered(self) -> int:
        """Bytes that were fed and are not part of a frame taken yet."""
        return self._buffered

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the stream; they must not change afterwards."""
        if data:
            self._pieces.append(memoryview(data))
            self._buffered += len(data)

    def next_frame(self) -> memoryview | None:
        """Return the body of the next whole frame, None when more is needed.

        Raises RemoteProtocolError for a size that cannot be; then again at every call.
        """
        if self._fault is not None:
            raise self._fault
        if self._size is None:
            if self._buffered < SIZE_BYTES:
                return None
            try:
                self._size = decode_frame_size(self._take(SIZE_BYTES), self._max_frame_bytes)
            except RemoteProtocolError as fault:
                self._fault = fault
                raise
        if self._buffered < self._size:
            return None
        size, self._size = self._size, None
        return self._take(size)

    def _take(self, count: int) -> memoryview:
        """Remove the first ``count`` bytes, which must be there."""
        self._buffered -= count
        taken: list[memoryview] = []
        while count > 0:
            piece = self._pieces.popleft()
            if len(piece) > count:
                self._pieces.appendleft(piece[count:])
                piece = piece[:count]
            taken.append(piece)
            count -= len(piece)
        return taken[0] if len(taken) == 1 else memoryview(b"".join(taken))
