# SPDX-License-Identifier: Apache-2.0
"""Length-prefixed frames from a byte stream, received into the buffers where they stay.

Sans-IO: :meth:`FrameAssembler.buffer` returns where to write the next bytes, and :meth:`FrameAssembler.advance` takes
their number. Between frames, bytes go to a small buffer of the assembler, so that one receive call may bring a length
prefix or many small frames. Once the length of a frame is known, its rest is received into its own memory, without a
copy. That memory belongs to the owner of the frame. It is not written again until the last view of it is gone; then a
pool (:func:`frame_memory`) may receive another frame into it.

The format of frames, and which sizes are refused, is in ``wire.framing``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from consumerd.errors import RemoteProtocolError
from consumerd.wire import kernel
from consumerd.wire.framing import SIZE_BYTES, decode_frame_size

_TLS_RECORDS: Final = (0x15, 0x16)
"""TLS alert and handshake: a TLS server's answer to plain text."""
_TLS_MAJOR: Final = 0x03

_BETWEEN_BYTES: Final = 64 * 1024

Allocate = Callable[[int], memoryview]
"""Function that returns writable memory of the given size in bytes, with undefined content."""

IDLE_BYTES: Final = 17 << 20
"""Bytes of unused frame memory kept for later frames: enough for the largest default response.

They do not count against the memory budget.
"""


def frame_memory(idle_bytes: int = IDLE_BYTES) -> Allocate:
    """Return a function that allocates memory for frames.

    With the native kernel, memory of earlier frames is used again; at most ``idle_bytes`` are kept for that. Without
    the native kernel, each frame gets a new buffer.
    """
    memory = kernel.memory
    return _zeroed if memory is None else memory.ReceivePool(idle_bytes).allocate


def _zeroed(size: int) -> memoryview:
    return memoryview(bytearray(size))


class FrameAssembler:
    """Assembles length-prefixed frames from received bytes.

    After a RemoteProtocolError the boundaries of frames are lost, and the assembler must not be used again.

    Args:
        max_frame_bytes: Largest allowed size of a frame, which bounds the memory that a peer can claim.
        between_bytes: Size, in bytes, of the buffer that receives the beginnings of frames.
        allocate: Function that allocates the frames' memory.
    """

    def __init__(
        self,
        max_frame_bytes: int,
        *,
        between_bytes: int = _BETWEEN_BYTES,
        allocate: Allocate = _zeroed,
    ) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._allocate = allocate
        self._between = memoryview(bytearray(between_bytes))
        self._held = 0
        self._frame: memoryview | None = None
        self._filled = 0

    def buffer(self) -> memoryview:
        """Return the memory into which to receive the next bytes; never empty.

        Valid until the next call of :meth:`advance`.
        """
        if self._frame is not None:
            return self._frame[self._filled :]
        return self._between[self._held :]

    def advance(self, count: int) -> Iterator[memoryview]:
        """Take ``count`` received bytes; yield the bodies of the frames that they complete.

        Bodies are in order and read-only. The caller must iterate to the end. Raises RemoteProtocolError for a frame
        size that is negative or above the limit.
        """
        if self._frame is None:
            self._held += count
            yield from self._split()
            return
        self._filled += count
        if self._filled == len(self._frame):
            frame, self._frame = self._frame, None
            yield frame.toreadonly()

    def _split(self) -> Iterator[memoryview]:
        """Cut complete frames out of the buffer; an incomplete one moves to its own memory."""
        start, end = 0, self._held
        while end - start >= SIZE_BYTES:
            size = self._read_size(start)
            start += SIZE_BYTES
            frame = self._allocate(size)
            present = min(size, end - start)
            frame[:present] = self._between[start : start + present]
            start += present
            if present < size:
                self._frame, self._filled = frame, present
                break
            yield frame.toreadonly()
        self._held = end - start
        self._between[: self._held] = bytes(self._between[start:end])

    def _read_size(self, start: int) -> int:
        prefix = bytes(self._between[start : start + SIZE_BYTES])
        try:
            return decode_frame_size(prefix, self._max_frame_bytes)
        except RemoteProtocolError as error:
            if prefix[0] in _TLS_RECORDS and prefix[1] == _TLS_MAJOR:
                raise RemoteProtocolError(
                    f"{error}; it is the start of a TLS record: the listener wants TLS"
                ) from error
            if prefix == b"HTTP":
                raise RemoteProtocolError(
                    f"{error}; it is the start of an HTTP answer: no broker listens there"
                ) from error
            raise
