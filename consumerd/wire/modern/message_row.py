# SPDX-License-Identifier: Apache-2.0
"""Uncompressed messages that stand side by side: where such a row ends, and new offsets for it.

Their offsets are outside of every checksum (Kafka protocol guide, "Message sets"), so that they are written in place.
Most rows hold messages of one size: of these, offsets are written a column of bytes at a time.
"""

from __future__ import annotations

import struct
from typing import Final

from consumerd.wire.columns import agreement
from consumerd.wire.modern.entry import ENTRY, ENTRY_BYTES, LEAST_SIZES, MAGIC_AT
from consumerd.wire.modern.message_reader import CYCLE, HIGH, LOW

_OFFSET: Final = struct.Struct(">q")
_SIZE: Final = struct.Struct(">i")
_SIZE_AT: Final = 8
_SIZE_PLACES: Final = range(_SIZE_AT, ENTRY_BYTES)
_ALIKE_PLACES: Final = (*_SIZE_PLACES, MAGIC_AT, MAGIC_AT + 1)
_FIRST_SKIP: Final = 64
"""How many messages are taken at once at first; eight times as many after each success."""
_LEAST_SKIP: Final = 8
"""Fewer messages at once are not worth it."""


def measure_row(data: bytes, at: int) -> tuple[int, int]:
    """Return where the last message of a row begins, and where it ends.

    The row begins with the whole message at ``at``; what follows belongs to it if it has its magic and its attributes, and
    is neither cut off nor too small.
    """
    kind = data[at + MAGIC_AT : at + MAGIC_AT + 2]
    least = LEAST_SIZES[kind[0]]
    end = len(data)
    last_at, last_size, most = at, 0, _FIRST_SKIP
    while end - at > MAGIC_AT + 1 and data[at + MAGIC_AT : at + MAGIC_AT + 2] == kind:
        (size,) = _SIZE.unpack_from(data, at + _SIZE_AT)
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
    """Write offsets from ``offset`` on into the messages that fill ``[at, end)``; returns how many there are."""
    first = offset
    last_size, most = 0, _FIRST_SKIP
    while at < end:
        (size,) = _SIZE.unpack_from(data, at + _SIZE_AT)
        stride = ENTRY_BYTES + size
        count = 1
        if size == last_size:
            room = min((end - at) // stride, most, CYCLE - offset % CYCLE)
            count = count_alike(data, at, stride, room, _SIZE_PLACES)
            most = most * 8 if count == most else _FIRST_SKIP
            size = size if count >= _LEAST_SKIP else 0  # not to try again at once
        if count < _LEAST_SKIP:
            count = 1
            _OFFSET.pack_into(data, at, offset)
        else:
            _write_columns(data, at, at + count * stride, stride, offset, count)
        at += count * stride
        offset += count
        last_size = size
    return offset - first


def _write_columns(data: bytearray, at: int, stop: int, stride: int, offset: int, count: int) -> None:
    """Write ``count`` offsets that differ in their two lowest bytes only."""
    low = offset % CYCLE
    for place, byte in enumerate(_OFFSET.pack(offset)[:6], at):
        data[place:stop:stride] = bytes((byte,)) * count
    data[at + 6 : stop : stride] = HIGH[low : low + count]
    data[at + 7 : stop : stride] = LOW[low : low + count]


def count_alike(
    data: bytes | bytearray, at: int, stride: int, most: int, places: tuple[int, ...] | range = _ALIKE_PLACES
) -> int:
    """Return how many messages in a row at ``at`` have the first one's size, magic and attributes, one at least.

    ``places`` are the bytes of a message that are compared. There are ``most`` of them, by their size.
    """
    count = most
    for place in places:
        column = bytes(data[at + place : at + count * stride : stride])
        count = agreement(column, column[:1] * len(column))
    return count


assert ENTRY.size == _SIZE_AT + _SIZE.size
