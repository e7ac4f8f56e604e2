# SPDX-License-Identifier: Apache-2.0
"""Decodes record sets the slow and obvious way: one record after the other, nothing shared with the real decoder but
the codecs. What it says is what the real one must say, whatever the bytes.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field

from consumerd.errors import CorruptMessageError
from consumerd.wire.checksum import crc32c
from consumerd.wire.compression import decompress
from consumerd.wire.records import Limits

Headers = tuple[tuple[str, bytes | None], ...]
Row = tuple[int, int, int, bytes | None, bytes | None, Headers]
"""Offset, timestamp, type of the timestamp, key, value, headers."""


class Bad(Exception):
    """The unit cannot be read."""


@dataclass
class Decoded:
    """What a record set holds from ``start`` on; ``faulty`` when its first unit cannot be read."""

    rows: list[Row] = field(default_factory=list)
    next_offset: int = 0
    faulty: bool = False


def decode(data: bytes, start: int, limits: Limits) -> Decoded:
    """Decode as ``decode_record_set`` does under ``read_uncommitted``."""
    rows: list[Row] = []
    position = start
    end = 0
    used = 0
    at = 0
    try:
        while (unit := _unit(data, at, 2)) is not None:
            unit_rows, first, following, cost = _read_unit(unit, limits.decompressed_bytes - used, limits)
            _check_offsets([row[0] for row in unit_rows], first, end, following)
            rows += unit_rows
            used += cost
            end = following
            position = max(position, following)
            at += len(unit)
    except Bad:
        if position == start:
            return Decoded(next_offset=start, faulty=True)
    return Decoded([row for row in rows if row[0] >= start], position)


def claims(data: bytes, limits: Limits) -> list[tuple[int | None, int]]:
    """Return first and last offset of each unit by its head, which does not say a compressed wrapper's first one.

    The last is that of a wrapper's last message where this is higher than its head says.
    """
    found: list[tuple[int | None, int]] = []
    at = 0
    try:
        while len(data) - at > 17:
            unit = _unit(data, at, 2)
            offset, size = struct.unpack_from(">qi", data, at)
            is_batch = data[at + 16] == 2
            if is_batch and len(data) - at < 27:
                break
            last = offset + (struct.unpack_from(">i", data, at + 23)[0] if is_batch else 0)
            is_wrapper = not is_batch and data[at + 17] & 7 != 0
            found.append((None if is_wrapper else offset, last))
            if unit is None:
                break
            if is_wrapper:
                found[-1] = (None, _read_unit(unit, limits.decompressed_bytes, limits)[2] - 1)
            at += 12 + size
    except Bad:
        pass
    return found


def _check_offsets(offsets: list[int], first: int, end: int, following: int) -> None:
    if offsets != sorted(set(offsets)) or following > (1 << 63) - 1:
        raise Bad
    if min([first, *offsets]) < end or (offsets and offsets[-1] >= following):
        raise Bad


def _unit(data: bytes, at: int, most_magic: int) -> bytes | None:
    """Return the whole unit at ``at``, or None where it is cut off."""
    if len(data) - at < 12:
        return None
    (size,) = struct.unpack_from(">i", data, at + 8)
    if size < 14:
        raise Bad
    if len(data) - at >= 17:
        magic = data[at + 16]
        if magic > most_magic or size < (14, 22, 49)[magic]:
            raise Bad
    return data[at : at + 12 + size] if len(data) - at >= 12 + size else None


def _read_unit(unit: bytes, budget: int, limits: Limits) -> tuple[list[Row], int, int, int]:
    """Return rows, the first offset claimed, the offset behind, and how many bytes were decompressed."""
    if unit[16] == 2:
        return _read_batch(unit, budget)
    (offset,) = struct.unpack_from(">q", unit)
    meter = [budget]
    rows = _read_message(unit, meter, limits.nesting)
    following = offset + 1
    if unit[17] & 7:
        following = max(following, rows[-1][0] + 1)
    return rows, rows[0][0], following, budget - meter[0]


def _read_message(unit: bytes, meter: list[int], levels: int) -> list[Row]:
    """Return the message, or those in it; ``meter`` holds what may still be decompressed."""
    offset, _, checksum, magic, attributes = struct.unpack_from(">qiIBB", unit)
    if zlib.crc32(unit[16:]) != checksum:
        raise Bad
    at = 18
    timestamp = -1
    if magic == 1:
        (timestamp,) = struct.unpack_from(">q", unit, at)
        at += 8
    key, at = _sized(unit, at)
    value, at = _sized(unit, at)
    if at != len(unit):
        raise Bad
    kind = -1 if magic == 0 else attributes >> 3 & 1
    if not attributes & 7:
        return [(offset, timestamp, kind, key, value, ())]
    if value is None or not levels:
        raise Bad
    block = _decompress(attributes & 7, value, meter, magic)
    rows: list[Row] = []
    at = 0
    while at < len(block):
        inner = _unit(block, at, 1)
        if inner is None:
            raise Bad
        rows += _read_message(inner, meter, levels - 1)
        at += len(inner)
    if not rows:
        raise Bad
    if magic == 1:
        ahead = offset - rows[-1][0]
        rows = [(row[0] + ahead, *row[1:]) for row in rows]
        if kind == 1:
            rows = [(row[0], timestamp, 1, *row[3:]) for row in rows]
    return rows


def _decompress(codec: int, data: bytes, meter: list[int], magic: int) -> bytes:
    try:
        block = decompress(codec, data, limit=meter[0], magic=magic)
    except CorruptMessageError as error:
        raise Bad from error
    meter[0] -= len(block)
    return block


def _sized(unit: bytes, at: int) -> tuple[bytes | None, int]:
    if len(unit) - at < 4:
        raise Bad
    (length,) = struct.unpack_from(">i", unit, at)
    at += 4
    if length == -1:
        return None, at
    if not 0 <= length <= len(unit) - at:
        raise Bad
    return unit[at : at + length], at + length


def _read_batch(unit: bytes, budget: int) -> tuple[list[Row], int, int, int]:
    base, _, _, _, checksum, attributes, last, base_time, max_time, _, _, _, count = struct.unpack_from(
        ">qiiBIhiqqqhii", unit
    )
    if crc32c(unit[21:]) != checksum or last < 0 or count < 0:
        raise Bad
    if attributes & 0x20:
        return [], base, base + last + 1, 0
    records = unit[61:]
    meter = [budget]
    if attributes & 7:
        records = _decompress(attributes & 7, records, meter, 2) if count else b""
    rows: list[Row] = []
    at = 0
    if count * 7 > len(records):
        raise Bad
    for _ in range(count):
        length, at = _varint(records, at, 32)
        if length <= 0 or at + length > len(records):
            raise Bad
        rows.append(_read_record(records[at : at + length], base, base_time))
        at += length
    if at != len(records) or any(row[0] < base or not -(1 << 63) <= row[1] < 1 << 63 for row in rows):
        raise Bad
    if attributes & 8:
        rows = [(row[0], max_time, 1, *row[3:]) for row in rows]
    return rows, base, base + last + 1, budget - meter[0]


def _read_record(body: bytes, base: int, base_time: int) -> Row:
    timestamp, at = _varint(body, 1, 64)
    delta, at = _varint(body, at, 32)
    key, at = _varint_sized(body, at)
    value, at = _varint_sized(body, at)
    count, at = _varint(body, at, 32)
    if not 0 <= count <= len(body):
        raise Bad
    headers = []
    for _ in range(count):
        name, at = _varint_sized(body, at)
        content, at = _varint_sized(body, at)
        if name is None:
            raise Bad
        headers.append((name.decode(errors="replace"), content))
    if at != len(body):
        raise Bad
    return base + delta, base_time + timestamp, 0, key, value, tuple(headers)


def _varint(data: bytes, at: int, bits: int) -> tuple[int, int]:
    value = 0
    for number, byte in enumerate(data[at : at + (bits + 6) // 7]):
        value |= (byte & 0x7F) << 7 * number
        if byte < 0x80:
            if value >= 1 << bits:
                raise Bad
            return value >> 1 ^ -(value & 1), at + number + 1
    raise Bad


def _varint_sized(data: bytes, at: int) -> tuple[bytes | None, int]:
    length, at = _varint(data, at, 32)
    if length == -1:
        return None, at
    if not 0 <= length <= len(data) - at:
        raise Bad
    return data[at : at + length], at + length
