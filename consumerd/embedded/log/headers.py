# SPDX-License-Identifier: Apache-2.0
"""Parser of the headers of messages and record batches in a segment, without decompression.

A unit is a message or compressed wrapper of magic 0 and 1, or a record batch of magic 2. Layouts:
``wire.modern.entry``, ``message_reader`` and ``record_batch``. No checksum covers offset and size, so a reader that
does not trust a file compares them with the previous unit and the end of the file.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from consumerd.errors import CorruptMessageError
from consumerd.wire.checksum import crc32, crc32c
from consumerd.wire.modern.entry import ENTRY_BYTES, LEAST_SIZES
from consumerd.wire.modern.extent import BATCH_MAGIC, UNIT_SIZES

LEAST_UNIT_BYTES: Final = ENTRY_BYTES + LEAST_SIZES[0]

_HEAD: Final = struct.Struct(">qi4xBxq")
"""Offset, size, magic, and the field that is the timestamp in magic 1. Every unit has that many bytes."""
_BATCH: Final = struct.Struct(">iqq")
"""Last offset delta, base timestamp, max timestamp."""
_BATCH_AT: Final = 23
_BATCH_HEAD_BYTES: Final = _BATCH_AT + _BATCH.size
_CRC: Final = struct.Struct(">I")
_NO_TIMESTAMP: Final = -1

CHUNK_BYTES: Final = 1 << 20
"""Bytes per read when a segment is scanned."""
NEAR_BYTES: Final = 8 << 10
"""Bytes per read when one message or batch is searched from an index entry on."""


class UnitHeader(NamedTuple):
    """Header of a message or a record batch in a segment.

    It has the position and the size in bytes, the offset in the header, the last offset, and the newest timestamp in
    ms.
    """

    position: int
    size: int
    offset: int
    last_offset: int
    max_timestamp: int
    magic: int

    @property
    def end(self) -> int:
        """Position, in bytes, at which the message or batch ends."""
        return self.position + self.size


def parse_header(data: bytes | bytearray | memoryview, at: int, position: int) -> UnitHeader | None:
    """Return the header of the message or batch at ``data[at:]``.

    None if too few bytes are there. Raises CorruptMessageError for bytes that are neither.

    Args:
        position: Its position in the segment.
    """
    left = len(data) - at
    if left < LEAST_UNIT_BYTES:
        return None
    offset, length, magic, timestamp = _HEAD.unpack_from(data, at)
    if magic > BATCH_MAGIC or length < UNIT_SIZES[magic]:
        raise CorruptMessageError(f"a unit of {length} bytes and magic {magic}")
    size = ENTRY_BYTES + length
    if magic != BATCH_MAGIC:
        return UnitHeader(position, size, offset, offset, timestamp if magic else _NO_TIMESTAMP, magic)
    if left < _BATCH_HEAD_BYTES:
        return None
    delta, _, newest = _BATCH.unpack_from(data, at + _BATCH_AT)
    if delta < 0:
        raise CorruptMessageError(f"a last offset delta of {delta}")
    return UnitHeader(position, size, offset, offset + delta, newest, magic)


def walk_headers(data: bytes | bytearray | memoryview) -> Iterator[UnitHeader]:
    """Yield the headers of all whole messages and batches in a producer's record set.

    Positions are relative to its beginning. Raises CorruptMessageError for bytes that are neither.
    """
    at, end = 0, len(data)
    while (header := parse_header(data, at, at)) is not None:
        at += header.size
        if at > end:
            return
        yield header


class UnitWalker:
    """Iterator over the messages and batches of a segment between two positions.

    Args:
        read: Returns bytes of the segment: ``(position, size) -> bytes``.
    """

    def __init__(
        self, read: Callable[[int, int], bytes], start: int, end: int, *, chunk_bytes: int = CHUNK_BYTES
    ) -> None:
        self._read = read
        self._start = start
        self._end = end
        self._chunk_bytes = chunk_bytes
        self._chunk = b""
        self._chunk_at = start

    def __iter__(self) -> Iterator[UnitHeader]:
        """Yield the headers of messages and batches up to the end position.

        A message or batch that exceeds it ends the iteration, too. Raises CorruptMessageError for bytes that are
        neither, OSError.
        """
        position = self._start
        while self._end - position >= LEAST_UNIT_BYTES:
            header = parse_header(self._load(position, _BATCH_HEAD_BYTES), position - self._chunk_at, position)
            if header is None or header.end > self._end:
                return
            yield header
            position = header.end

    def is_intact(self, header: UnitHeader) -> bool:
        """Return True if the checksum of the message or batch is right. Raises OSError."""
        unit = self.unit(header)
        if len(unit) < header.size:
            return False
        if header.magic == BATCH_MAGIC:
            return bool(_CRC.unpack_from(unit, 17)[0] == crc32c(unit[21:]))
        return bool(_CRC.unpack_from(unit, 12)[0] == crc32(memoryview(unit)[16:]))

    def unit(self, header: UnitHeader) -> bytes:
        """Return the bytes of the message or batch with this header. Raises OSError.

        Fewer bytes only if the file has become shorter.
        """
        self._load(header.position, header.size)
        at = header.position - self._chunk_at
        return self._chunk[at : at + header.size]

    def _load(self, position: int, size: int) -> bytes:
        """Ensure that the chunk has ``size`` bytes from ``position`` on, if they exist."""
        if position < self._chunk_at or position + min(size, self._end - position) > self._chunk_at + len(self._chunk):
            self._chunk = self._read(position, min(self._end - position, max(size, self._chunk_bytes)))
            self._chunk_at = position
        return self._chunk
