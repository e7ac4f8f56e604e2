"""Frames: an int32 size, then so many bytes (Kafka protocol guide, "Common Request and Response Structure").

Owns where a frame begins and ends, and how large it may be. Knows nothing of what is inside.

Once a size has been refused nothing after it can be told apart any more: a :class:`FrameReader` then raises the same
fault for ever.
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


class FrameReader:
    """Cuts a stream of bytes, fed as they come, into the bodies of frames.

    Take frames until there is none after each :meth:`feed`. A frame that arrived in one piece is a view into it; the
    pieces of others are joined as they come, so that what is held is one frame and what was fed last, however small
    the pieces are.
    """

    def __init__(self, max_frame_bytes: int) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._start = bytearray()
        """Of a prefix or a body that is not whole yet."""
        self._rest = memoryview(b"")
        """Fed and not looked at; follows ``_start`` in the stream."""
        self._size: int | None = None
        self._fault: RemoteProtocolError | None = None

    @property
    def buffered(self) -> int:
        """Bytes that were fed and are not part of a frame taken yet."""
        return len(self._start) + len(self._rest)

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the stream; they must not change afterwards."""
        self._rest = memoryview(bytes(self._rest) + data if self._rest else data)

    def next_frame(self) -> memoryview | None:
        """Return the body of the next whole frame, read-only; None when more is needed.

        Raises RemoteProtocolError for a size that cannot be; then again at every call.
        """
        if self._fault is not None:
            raise self._fault
        if self._size is None:
            prefix = self._take(SIZE_BYTES)
            if prefix is None:
                return None
            try:
                self._size = decode_frame_size(prefix, self._max_frame_bytes)
            except RemoteProtocolError as fault:
                self._fault = fault
                raise
        body = self._take(self._size)
        if body is not None:
            self._size = None
        return body

    def _take(self, count: int) -> memoryview | None:
        """Remove the first ``count`` bytes if they are there, else collect what is."""
        missing = count - len(self._start)
        part, self._rest = self._rest[:missing], self._rest[missing:]
        if not self._start and len(part) == count:
            return part
        self._start += part
        if len(part) < missing:
            return None
        whole, self._start = self._start, bytearray()
        return memoryview(whole).toreadonly()
