"""Cuts a fetched record set into pieces that are quick to decode, by reading headers only.

Pure. Knows of the stored formats no more than where a unit (a message, a compressed wrapper, a batch) ends, which
offset follows it and whether it is compressed; everything else, checksums included, is for the decoder, whose word
counts where the two disagree. Layout (Kafka protocol guide, "Message sets" and "Record batch"): every unit begins with
an int64 offset and an int32 size of what follows; the magic byte is the 17th of every format. A batch (magic 2) has its
attributes at byte 21 and the distance to its last offset at byte 23; a message (magic 0 and 1) has its attributes at
byte 17, and the offset of a compressed wrapper is that of its last message.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

_OFFSET = struct.Struct(">q").unpack_from
_SIZE = struct.Struct(">i").unpack_from
_UNSIGNED_SIZE = struct.Struct(">I").unpack_from
_PREFIX_BYTES: Final = 12
_MAGIC_AT: Final = 16
_LEAST_SIZE: Final = 14
"""The size of a message with null key and null value; what says less is no unit of any format."""
_HEADER_BYTES: Final = _PREFIX_BYTES + _LEAST_SIZE
_BATCH_BYTES: Final = 61
_BATCH_MAGIC: Final = 2
_CODEC_MASK: Final = 0x07


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes ``[begin, end)`` of a record set, whole units only; ``next_offset`` follows the last of them.

    ``compressed`` is whether any of the units is.
    """

    begin: int
    end: int
    next_offset: int
    compressed: bool


def cut_record_set(data: bytes, *, slice_bytes: int, expansion: float) -> list[Piece]:
    """Cut whole units into pieces of about ``slice_bytes`` once decompressed, a unit at least.

    A unit that is cut off, or that cannot be one, ends the last piece.
    """
    pieces: list[Piece] = []
    begin = 0
    last_header = len(data) - _HEADER_BYTES
    while begin <= last_header:
        compressed, batch = _codec(data, begin), data[begin + _MAGIC_AT] >= _BATCH_MAGIC
        if compressed or batch:
            end, last = _walk_units(data, begin, slice_bytes, expansion)
            compressed = compressed or _codec(data, last)
        else:
            end, last = _walk_messages(data, begin, slice_bytes)
        if end == begin:
            break
        pieces.append(Piece(begin, end, _following_offset(data, last), compressed))
        begin = end
    return pieces


def _walk_messages(data: bytes, begin: int, slice_bytes: int) -> tuple[int, int]:
    """Return where whole units end and where the last of them begins, at about ``slice_bytes``.

    The loop runs once a message: it reads sizes and nothing else. An absurd one leads it astray, forwards, and the
    decoder finds that out.
    """
    size_at = _UNSIGNED_SIZE
    until = min(begin + slice_bytes, len(data) - _PREFIX_BYTES)
    at, last, before = begin, begin, begin
    while at <= until:
        before, last = last, at
        at += _PREFIX_BYTES + size_at(data, at + 8)[0]
    return (at, last) if at <= len(data) else (last, before)


def _walk_units(data: bytes, begin: int, slice_bytes: int, expansion: float) -> tuple[int, int]:
    """The same for units that are large, of which it counts the compressed ones by their expected size."""
    at = last = begin
    weight = 0.0
    while at <= len(data) - _HEADER_BYTES and weight < slice_bytes:
        size = _UNSIGNED_SIZE(data, at + 8)[0]
        if size < _LEAST_SIZE or at + _PREFIX_BYTES + size > len(data):
            break
        weight += size * expansion if _codec(data, at) else size
        last, at = at, at + _PREFIX_BYTES + size
    return at, last


def _codec(data: bytes, at: int) -> bool:
    codec_at = at + 22 if data[at + _MAGIC_AT] >= _BATCH_MAGIC else at + 17
    return bool(data[codec_at] & _CODEC_MASK)


def _following_offset(data: bytes, at: int) -> int:
    offset: int = _OFFSET(data, at)[0]
    if at + _BATCH_BYTES > len(data) or data[at + _MAGIC_AT] < _BATCH_MAGIC:
        return offset + 1
    distance: int = _SIZE(data, at + 23)[0]
    return offset + distance + 1


def first_unit_bytes(data: bytes) -> int | None:
    """Return the size of the first unit by its own header: None if that did not come along, 0 if it cannot be one."""
    if len(data) < _PREFIX_BYTES:
        return None
    size: int = _SIZE(data, 8)[0]
    return size + _PREFIX_BYTES if size >= _LEAST_SIZE else 0
