# SPDX-License-Identifier: Apache-2.0
"""Common beginning of all messages and batches of a record set: offset, size and magic.

An *entry* is a message of magic 0 or 1, or a record batch of magic 2. All begin alike, see Kafka's
ByteBufferLogInputStream::

    offset int64, size int32 (of all that follows), 4 bytes, magic int8

Example: an entry at byte 100 with size 50 ends at byte 100 + 12 + 50 = 162, where the next one begins. Its magic is at
byte 116.
"""

from __future__ import annotations

import struct
from typing import Final

from consumerd.errors import CorruptMessageError

INT32: Final = struct.Struct(">i")
INT64: Final = struct.Struct(">q")
UINT32: Final = struct.Struct(">I")
"""Struct of an unsigned 32-bit number, such as a checksum."""
ENTRY: Final = struct.Struct(">qi")
"""Struct of the first fields of a message or batch: offset and size."""
ENTRY_BYTES: Final = ENTRY.size
SIZE_AT: Final = 8
MAGIC_AT: Final = 16
"""Position of the magic byte in a message or batch."""
ATTRIBUTES_AT: Final = MAGIC_AT + 1
"""Position of the attributes of a message of magic 0 or 1; a batch has them elsewhere."""
LEAST_SIZES: Final = (14, 22)
"""Value of the size field of a message without key and value, by magic."""

CODEC_MASK: Final = 0x07
"""Bits of the attributes that are the compression codec, in every magic."""
LOG_APPEND_TIME_FLAG: Final = 0x08
"""Bit of the attributes that is set if the broker has set the timestamp, in magic 1 and 2."""


def find_end(data: bytes | bytearray | memoryview, at: int, least_sizes: tuple[int, ...] = LEAST_SIZES) -> int | None:
    """Return the position after the message or batch at ``at``, according to its size field.

    Returns None if there are fewer than 12 bytes of it, which have the offset and the size. The returned position may
    lie beyond the end of ``data``.

    Args:
        least_sizes: smallest valid size, by magic.

    Raises CorruptMessageError for an impossible size or magic.
    """
    left = len(data) - at
    if left < ENTRY_BYTES:
        return None
    _, size = ENTRY.unpack_from(data, at)
    if size < least_sizes[0]:
        raise CorruptMessageError(f"a message of {size} bytes")
    if left <= MAGIC_AT:
        return at + ENTRY_BYTES + int(size)
    magic = data[at + MAGIC_AT]
    if magic >= len(least_sizes):
        raise CorruptMessageError(f"magic {magic} is unknown, expected 0 to {len(least_sizes) - 1}")
    if size < least_sizes[magic]:
        raise CorruptMessageError(f"a message of {size} bytes and magic {magic}")
    return at + ENTRY_BYTES + int(size)
