# SPDX-License-Identifier: Apache-2.0
"""Rows of uncompressed messages: finding their end, and writing new offsets into them.

A row is a run of messages of one magic with equal attributes. Checksums of messages do not cover their offsets (Kafka
protocol guide, "Message sets"), so offsets can be overwritten in place.

Performance: most rows hold messages of one size. Their offset fields are then at equal distances. All bytes at one
place of these fields are written in one step. Example: three messages of 42 bytes with offsets 255, 256 and 257. Bytes
7, 49 and 91 (the lowest of each offset) become ff 00 01, bytes 6, 48 and 90 become 00 01 01.
"""

from __future__ import annotations

from typing import Final

from consumerd.wire.columns import agreement
from consumerd.wire.modern.entry import ENTRY_BYTES, INT32, INT64, LEAST_SIZES, MAGIC_AT, SIZE_AT
from consumerd.wire.modern.message_reader import CYCLE, HIGH, LOW

_SIZE_PLACES: Final = range(SIZE_AT, ENTRY_BYTES)
_ALIKE_PLACES: Final = (*_SIZE_PLACES, MAGIC_AT, MAGIC_AT + 1)
_FIRST_SKIP: Final = 64
"""Messages compared at once at first; 8 times as many after each success."""
_LEAST_SKIP: Final = 8
"""Smallest number of messages for which writing by columns pays off."""


def measure_row(data: bytes, at: int) -> tuple[int, int]:
    """Return the position of a row's last message, and the position after it.

    A row is a run of uncompressed messages with equal magic and attributes. It begins with the complete message at
    ``at``. It ends before a message of another magic or other attributes, and before one that is cut off or too small.
    """
    kind = data[at + MAGIC_AT : at + MAGIC_AT + 2]
    least = LEAST_SIZES[kind[0]]
    end = len(data)
    last_at, last_size, most = at, 0, _FIRST_SKIP
    while end - at > MAGIC_AT + 1 and data[at + MAGIC_AT : at + MAGIC_AT + 2] == kind:
        (size,) = INT32.unpack_from(data, at + SIZE_AT)
        stride = ENTRY_BYTES + size
        if size < least or stride > end - at:
            break
        skipped = 1
        if size == last_size:
            skipped = count_alike(data, at, stride, min((end - at) // stride, most))
            most = most * 8 if skipped == most else _FIRST_SKIP
        at += skipped * stride
        last_at = at - stride
        last_size = size
    return last_at, at


def write_offsets(data: bytearray, at: int, end: int, offset: int) -> int:
    """Write consecutive offsets into messages, in place; return the number of messages.

    The uncompressed messages fill ``data[at:end]``. The first one gets ``offset``, the next one ``offset`` + 1...
    """
    first = offset
    last_size, most = 0, _FIRST_SKIP
    while at < end:
        (size,) = INT32.unpack_from(data, at + SIZE_AT)
        stride = ENTRY_BYTES + size
        count = 1
        if size == last_size:
            room = min((end - at) // stride, most, CYCLE - offset % CYCLE)
            count = count_alike(data, at, stride, room, _SIZE_PLACES)
            most = most * 8 if count == most else _FIRST_SKIP
            size = size if count >= _LEAST_SKIP else 0  # after a failure, do not compare again for the next message
        if count < _LEAST_SKIP:
            count = 1
            INT64.pack_into(data, at, offset)
        else:
            _write_columns(data, at, at + count * stride, stride, offset, count)
        at += count * stride
        offset += count
        last_size = size
    return offset - first


def _write_columns(data: bytearray, at: int, stop: int, stride: int, offset: int, count: int) -> None:
    """Write ``count`` consecutive offsets that differ only in their two lowest bytes."""
    low = offset % CYCLE
    for place, byte in enumerate(INT64.pack(offset)[:6], at):
        data[place:stop:stride] = bytes((byte,)) * count
    data[at + 6 : stop : stride] = HIGH[low : low + count]
    data[at + 7 : stop : stride] = LOW[low : low + count]


def count_alike(
    data: bytes | bytearray, at: int, stride: int, most: int, places: tuple[int, ...] | range = _ALIKE_PLACES
) -> int:
    """Return the number of messages from ``at`` on that are alike; at least 1.

    Messages are alike if they have the same bytes at ``places``: by default in size, magic and attributes.

    Args:
        stride: size of the first message in bytes, with its offset and size fields.
        most: number of messages to compare. ``data`` must have ``most * stride`` bytes from ``at`` on.
        places: positions within a message that are compared.
    """
    count = most
    for place in places:
        column = bytes(data[at + place : at + count * stride : stride])
        count = agreement(column, column[:1] * len(column))
    return count
