# SPDX-License-Identifier: Apache-2.0
"""What all record sets have in common: entries, which are messages of magic 0 and 1 or record batches of magic 2.

Owns the place of offset, size and magic, which is the same in all of them (Kafka's ByteBufferLogInputStream)::

    offset int64, size int32 (of all that follows), 4 bytes, magic int8
"""

from __future__ import annotations

import struct
from typing import Final

from consumerd.errors import CorruptMessageError

ENTRY: Final = struct.Struct(">qi")
"""What an entry begins with: its offset and its size."""
ENTRY_BYTES: Final = ENTRY.size
MAGIC_AT: Final = 16
LEAST_SIZES: Final = (14, 22)
"""The size of a message without key and value, by magic."""

CODEC_MASK: Final = 0x07
LOG_APPEND_TIME_FLAG: Final = 0x08
"""Of the attributes, in every magic."""


def find_end(data: bytes | bytearray | memoryview, at: int, least_sizes: tuple[int, ...] = LEAST_SIZES) -> int | None:
    """Return where the entry at ``at`` ends by its own account, or None where too little of it is there to tell.

    ``least_sizes`` are the smallest sizes by magic. Raises CorruptMessageError for an entry that cannot be one.
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
