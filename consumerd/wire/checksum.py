# SPDX-License-Identifier: Apache-2.0
"""Checksums of stored messages, and the hash of a Java string.

- CRC-32 (IEEE 802.3) covers messages of magic 0 and 1. It is zlib's.
- CRC-32C (Castagnoli) covers record batches, magic 2. It is computed by the native kernel; else by google-crc32c if
  that package has its compiled part; else byte by byte, by a table in this module. Tests compare the other two with the
  table.
- xxHash-32 covers the header of an LZ4 frame. Only the algorithm for inputs below 16 bytes is here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from zlib import crc32

from consumerd.wire import kernel
from consumerd.wire.kernel import Buffer

__all__ = ["crc32", "crc32c", "crc32c_reference", "java_hash", "span_crc32", "span_crc32c", "xxh32_short"]

_CASTAGNOLI: Final = 0x82F63B78
_MASK: Final = 0xFFFFFFFF


def _table(polynomial: int) -> tuple[int, ...]:
    """Return the CRC register after each single byte, for a reflected polynomial."""
    table = []
    for byte in range(256):
        register = byte
        for _ in range(8):
            register = register >> 1 ^ (polynomial if register & 1 else 0)
        table.append(register)
    return tuple(table)


_CASTAGNOLI_TABLE: Final = _table(_CASTAGNOLI)


def crc32c_reference(data: bytes) -> int:
    """Return the CRC-32C of ``data``, one byte at a time (RFC 3720, B.4)."""
    table = _CASTAGNOLI_TABLE
    register = _MASK
    for byte in data:
        register = register >> 8 ^ table[(register ^ byte) & 0xFF]
    return register ^ _MASK


def _choose_crc32c() -> Callable[[bytes], int]:
    """Return the fastest CRC-32C outside of the kernel."""
    try:
        import google_crc32c
    except ImportError:
        return crc32c_reference
    value: Callable[[bytes], int] = google_crc32c.value
    # without its compiled part google-crc32c is slower than the reference
    return value if google_crc32c.implementation == "c" else crc32c_reference


crc32c: Final[Callable[[bytes], int]] = _choose_crc32c() if kernel.records is None else kernel.records.crc32c
"""Function that returns the CRC-32C of ``bytes``. Other buffers may not be accepted."""


def span_crc32c(data: Buffer, begin: int, end: int) -> int:
    """Return the CRC-32C of ``data[begin:end]``.

    The native kernel reads the bytes in place; without it they are copied first.
    """
    if (native := kernel.records) is not None:
        return native.crc32c(data, begin, end)
    return crc32c(bytes(data[begin:end]))


def span_crc32(data: Buffer, begin: int, end: int) -> int:
    """Return the CRC-32 of ``data[begin:end]`` without copying it."""
    native = kernel.messages
    return crc32(memoryview(data)[begin:end]) if native is None else native.crc32(data, begin, end)


_PRIME_2: Final = 2246822519
_PRIME_3: Final = 3266489917
_PRIME_4: Final = 668265263
_PRIME_5: Final = 374761393


def _rotate(value: int, bits: int) -> int:
    value &= _MASK
    return (value << bits | value >> 32 - bits) & _MASK


def xxh32_short(data: bytes) -> int:
    """Return the xxHash-32 with seed 0 of fewer than 16 bytes."""
    assert len(data) < 16, "longer input has stripes, which a frame header never has"
    value = _PRIME_5 + len(data)
    words = len(data) & ~3
    for at in range(0, words, 4):
        value = _rotate(value + int.from_bytes(data[at : at + 4], "little") * _PRIME_3, 17) * _PRIME_4
    for byte in data[words:]:
        value = _rotate(value + byte * _PRIME_5, 11) * 2654435761
    value &= _MASK
    value = (value ^ value >> 15) * _PRIME_2 & _MASK
    value = (value ^ value >> 13) * _PRIME_3 & _MASK
    return value ^ value >> 16


def java_hash(text: str) -> int:
    """Return ``String.hashCode`` of a text, as Java computes it: a signed 32-bit number."""
    value = 0
    data = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(data), 2):
        value = (31 * value + (data[at] << 8 | data[at + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value
