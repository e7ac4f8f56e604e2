# SPDX-License-Identifier: Apache-2.0
"""What a segment's units say of themselves, read from their headers alone; nothing is decompressed.

A unit is a message or compressed wrapper of magic 0 and 1, or a record batch of magic 2. Layouts: ``wire.modern.entry``,
``message_reader`` and ``record_batch``. Offset and size are outside of every checksum, so that a reader who does not
trust a file holds them against what was before and against the file's end.
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
"""Offset, size, magic, and what is the timestamp in magic 1; there are that many bytes in any unit."""
_BATCH: Final = struct.Struct(">iqq")
"""Last offset delta, base timestamp, max timestamp."""
_BATCH_AT: Final = 23
_BATCH_HEAD_BYTES: Final = _BATCH_AT + _BATCH.size
_CRC: Final = struct.Struct(">I")
_NO_TIMESTAMP: Final = -1

CHUNK_BYTES: Final = 1 << 20
"""How much is read at a time to go through a segment."""
NEAR_BYTES: Final = 8 << 10
"""How much is read at a time to look for one unit, which the index knows to be near."""


class UnitHeader(NamedTuple):
    """One unit: its place in the segment, the offset that its first bytes bear, its last offset, newest timestamp."""

    position: int
    size: int
    offset: int
    last_offset: int
    max_timestamp: int
    magic: int

    @property
    def end(self) -> int:
        """The position behind it."""
        return self.position + self.size


def parse_header(data: bytes | bytearray | memoryview, at: int, position: int) -> UnitHeader | None:
    """Read the header of the unit at ``data[at:]``, which is at ``position`` of its segment.

    None where too little is there to tell. Raises CorruptMessageError for what cannot be a unit.
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


def parse_headers(data: bytes | bytearray | memoryview) -> list[UnitHeader]:
    """Read the headers of all whole units of a record set, whose positions count from its beginning.

    Raises CorruptMessageError for what cannot be a unit.
    """
    return list(walk_headers(data))


def walk_headers(data: bytes | bytearray | memoryview) -> Iterator[UnitHeader]:
    """Give the same one by one."""
    at, end = 0, len(data)
    while (header := parse_header(data, at, at)) is not None:
        at += header.size
        if at > end:
            return
        yield header


class UnitWalker:
    """Goes through the units of a segment between two positions, ``read`` being ``(position, size) -> bytes``."""

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
        """Give the headers, up to the end or the first unit that is cut off by it.

        Raises CorruptMessageError for what cannot be a unit, OSError.
        """
        position = self._start
        while self._end - position >= LEAST_UNIT_BYTES:
            header = parse_header(self._load(position, _BATCH_HEAD_BYTES), position - self._chunk_at, position)
            if header is None or header.end > self._end:
                return
            yield header
            position = header.end

    def is_intact(self, header: UnitHeader) -> bool:
        """Check the unit's checksum. Raises OSError."""
        unit = self.unit(header)
        if len(unit) < header.size:
            return False
        if header.magic == BATCH_MAGIC:
            return bool(_CRC.unpack_from(unit, 17)[0] == crc32c(unit[21:]))
        return bool(_CRC.unpack_from(unit, 12)[0] == crc32(memoryview(unit)[16:]))

    def unit(self, header: UnitHeader) -> bytes:
        """Return the unit's bytes; fewer only where the file is shorter than it was. Raises OSError."""
        self._load(header.position, header.size)
        at = header.position - self._chunk_at
        return self._chunk[at : at + header.size]

    def _load(self, position: int, size: int) -> bytes:
        """Have ``size`` bytes from ``position`` on in the chunk, as far as there are any."""
        if position < self._chunk_at or position + min(size, self._end - position) > self._chunk_at + len(self._chunk):
            self._chunk = self._read(position, min(self._end - position, max(size, self._chunk_bytes)))
            self._chunk_at = position
        return self._chunk
