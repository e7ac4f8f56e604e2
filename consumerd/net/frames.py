# SPDX-License-Identifier: Apache-2.0
"""Length-prefixed frames out of a byte stream, received straight into the buffers that they stay in.

Sans-IO: :meth:`FrameAssembler.buffer` says where the next bytes are to be written and :meth:`FrameAssembler.advance`
how many were. Between frames that is a small buffer of the assembler's own, so that one receive call brings a length
prefix, or many small frames; once a frame's length is known the rest of it is received into its own memory, without a
copy. A frame's memory belongs to whoever takes it and is never written again, until the last view of it is gone: then a
pool (:func:`frame_memory`) may receive another frame into it.

What a frame is, and which sizes are refused, is ``wire.framing``'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from consumerd.errors import RemoteProtocolError
from consumerd.wire import kernel
from consumerd.wire.framing import SIZE_BYTES, decode_frame_size

_TLS_RECORDS: Final = (0x15, 0x16)
"""Alert and handshake: what a TLS server answers to plain text."""
_TLS_MAJOR: Final = 0x03

_BETWEEN_BYTES: Final = 64 * 1024

Allocate = Callable[[int], memoryview]
"""Gives writable memory of so many bytes; what stands in it is undefined."""

IDLE_BYTES: Final = 17 << 20
"""So much memory of frames is kept for the next ones: enough for the largest answer that is asked for by default. It is part of
the constant beyond the memory budget.
"""


def frame_memory(idle_bytes: int = IDLE_BYTES) -> Allocate:
    """Return where frames get their memory from: a pool where there is a kernel, memory of their own otherwise."""
    memory = kernel.memory
    return _zeroed if memory is None else memory.ReceivePool(idle_bytes).allocate


def _zeroed(size: int) -> memoryview:
    return memoryview(bytearray(size))


class FrameAssembler:
    """Assembles frames of at most ``max_frame_bytes``, which bounds what a peer can make us allocate.

    ``between_bytes`` is the size of the buffer between frames; ``allocate`` gives the memory of a frame of that many
    bytes. After a RemoteProtocolError the stream is out of step for good; the assembler must not be used again.
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
        """Return where to receive into next; never empty, valid until the next call of :meth:`advance`."""
        if self._frame is not None:
            return self._frame[self._filled :]
        return self._between[self._held :]

    def advance(self, count: int) -> Iterator[memoryview]:
        """Take ``count`` more bytes as received and yield the bodies that they complete, read-only, in order.

        Must be iterated to its end. Raises RemoteProtocolError for a size that is negative or above the limit.
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
        """Cut what lies between frames into whole ones; the start of a larger one moves to memory of its own."""
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
