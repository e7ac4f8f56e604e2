# SPDX-License-Identifier: Apache-2.0
"""Variable-length integers of record batches: zigzag encoding, 7 bits a byte, lowest bits first.

Zigzag maps 0, -1, 1, -2 to 0, 1, 2, 3, so that small negative numbers stay short too. Example: 100 becomes 200, which
is written as the two bytes ``c8 01``.

Source: Kafka's ByteUtils.readVarint and readVarlong (KIP-98). A varint has at most 5 bytes, a varlong at most 10.
"""

from __future__ import annotations

from typing import Final

from consumerd.errors import CorruptMessageError

MAX_VARINT_BYTES: Final = 5
MAX_VARLONG_BYTES: Final = 10


def read_varint(data: bytes | bytearray | memoryview, at: int, end: int) -> tuple[int, int]:
    """Read an int32 in varint encoding; return it and the position after it.

    Raises CorruptMessageError.
    """
    return _read(data, at, end, MAX_VARINT_BYTES, 32)


def read_varlong(data: bytes | bytearray | memoryview, at: int, end: int) -> tuple[int, int]:
    """Read an int64 in varint encoding; return it and the position after it.

    Raises CorruptMessageError.
    """
    return _read(data, at, end, MAX_VARLONG_BYTES, 64)


def _read(data: bytes | bytearray | memoryview, at: int, end: int, most: int, bits: int) -> tuple[int, int]:
    value = shift = 0
    stop = min(end, at + most)
    while at < stop:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> bits:
                raise CorruptMessageError(f"a number of more than {bits} bits")
            return value >> 1 ^ -(value & 1), at
        shift += 7
    raise CorruptMessageError("a number has no end" if at < end or stop < end else "a number is cut off")


def encode_varint(value: int) -> bytes:
    """Return an int32 or an int64 in varint encoding."""
    rest = value << 1 if value >= 0 else (-value << 1) - 1
    encoded = bytearray()
    while rest > 0x7F:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)
