# SPDX-License-Identifier: Apache-2.0
"""A byte of a broker's log that its disk has changed."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

_HEAD_BYTES = 12
_MAGIC_AT, _LAST_DELTA_AT = 16, 23
_STORED_HEAD_BYTES = 10
"""Length, magic, attributes and CRC of a message of magic 1 in the log of Kafka 0.7."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedUnit:
    """The message or batch that the byte is in, as it is in the log now."""

    first: int
    end: int
    raw: bytes
    changed_value: bytes


def flip_byte(segment: Path, value: bytes) -> DamagedUnit:
    """Change one byte in the middle of a value, in the file as it is, and return the unit that it is in."""
    data = bytearray(segment.read_bytes())
    start = data.index(value)
    place = start + len(value) // 2
    data[place] ^= 0x04
    with segment.open("r+b") as file:
        file.seek(place)
        file.write(data[place : place + 1])
    at = 0
    while True:
        offset, size = struct.unpack_from(">qi", data, at)
        end = at + _HEAD_BYTES + size
        if at <= place < end:
            last = struct.unpack_from(">i", data, at + _LAST_DELTA_AT)[0] if data[at + _MAGIC_AT] == 2 else 0
            changed = bytes(data[start : start + len(value)])
            return DamagedUnit(first=offset, end=offset + last + 1, raw=bytes(data[at:end]), changed_value=changed)
        at = end


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMessage:
    """A message in a log of Kafka 0.7, as it is now; ``value`` is what it was."""

    start: int
    end: int
    raw: bytes
    value: bytes
    later_values: tuple[bytes, ...]
    """Values of the messages behind it."""


def flip_stored_byte(segment: Path, *, number: int) -> StoredMessage:
    """Change one byte in the value of a message (magic 1, not compressed) of a segment of Kafka 0.7.

    Args:
        segment: first segment of a log.
        number: which message, counted from 0.
    """
    data = segment.read_bytes()
    messages, at = [], 0
    while at < len(data):
        (length,) = struct.unpack_from(">i", data, at)
        messages.append((at, at + 4 + length))
        at += 4 + length
    start, end = messages[number]
    place = start + _STORED_HEAD_BYTES
    with segment.open("r+b") as file:
        file.seek(place)
        file.write(bytes([data[place] ^ 0x04]))
    return StoredMessage(
        start=start,
        end=end,
        raw=segment.read_bytes()[start:end],
        value=data[place:end],
        later_values=tuple(data[at + _STORED_HEAD_BYTES : stop] for at, stop in messages[number + 1 :]),
    )
