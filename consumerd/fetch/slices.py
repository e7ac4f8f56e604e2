# SPDX-License-Identifier: Apache-2.0
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

from consumerd.wire import kernel
from consumerd.wire.compression import expected_size
from consumerd.wire.kernel import Buffer

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
_DOUBT: Final = 4
"""Codecs with blocks tell how many there are, full or not: once it is known what units of the partition expand to, a unit
counts as this part of what it says at least. Before that it counts as all of it.
"""


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes ``[begin, end)`` of a record set, whole units only; ``next_offset`` follows the last of them.

    ``compressed`` is whether any of the units is, and ``expanded_bytes`` what the compressed ones give by their own
    account, which is not to be believed.
    """

    begin: int
    end: int
    next_offset: int
    compressed: bool
    expanded_bytes: int = 0


def cut_record_set(data: Buffer, *, slice_bytes: int, expansion: float | None) -> list[Piece]:
    """Cut whole units into pieces of about ``slice_bytes`` once decompressed, a unit at least.

    ``expansion`` is decompressed size by fetched size, as learned from earlier pieces; None where nothing was decoded yet.
    A unit that is cut off, or that cannot be one, ends the last piece.
    """
    pieces: list[Piece] = []
    begin = 0
    last_header = len(data) - _HEADER_BYTES
    while begin <= last_header:
        compressed, batch = bool(_codec(data, begin)), data[begin + _MAGIC_AT] >= _BATCH_MAGIC
        expanded = 0
        if compressed or batch:
            end, last, expanded = _walk_units(data, begin, slice_bytes, expansion)
            compressed = compressed or bool(_codec(data, last))
        else:
            end, last = _walk_messages(data, begin, slice_bytes)
        if end == begin:
            break
        pieces.append(Piece(begin, end, _following_offset(data, last), compressed, expanded))
        begin = end
    return pieces


def _walk_messages(data: Buffer, begin: int, slice_bytes: int) -> tuple[int, int]:
    """Return where whole units end and where the last of them begins, at about ``slice_bytes``.

    The loop runs once a message: it reads sizes and nothing else. An absurd one leads it astray, forwards, and the
    decoder finds that out.
    """
    if (native := kernel.records) is not None:
        return native.step_messages(data, begin, begin + slice_bytes)
    size_at = _UNSIGNED_SIZE
    until = min(begin + slice_bytes, len(data) - _PREFIX_BYTES)
    at, last, before = begin, begin, begin
    while at <= until:
        before, last = last, at
        at += _PREFIX_BYTES + size_at(data, at + 8)[0]
    return (at, last) if at <= len(data) else (last, before)


def _walk_units(data: Buffer, begin: int, slice_bytes: int, expansion: float | None) -> tuple[int, int, int]:
    """The same for units that are large, and what the compressed ones of them give by their own account.

    Those are counted by their expected size, or by a part of what they say, which may be far more than they have.
    """
    expansion, doubt = (1.0, 1) if expansion is None else (expansion, _DOUBT)
    at = last = begin
    expanded = 0
    weight = 0.0
    native = kernel.records
    while at <= len(data) - _HEADER_BYTES and weight < slice_bytes:
        if native is not None:
            stop, known, weight, said = native.step_units(data, at, weight, slice_bytes, expansion, doubt)
            if stop > at:
                last, at = known, stop
                expanded += said
                continue
        size = _UNSIGNED_SIZE(data, at + 8)[0]
        stop = at + _PREFIX_BYTES + size
        if size < _LEAST_SIZE or stop > len(data):
            break
        if codec := _codec(data, at):
            said = expected_size(codec, memoryview(data)[_payload_at(data, at) : stop])
            expanded += said
            weight += max(size * expansion, said / doubt)
        else:
            weight += size
        last, at = at, stop
    return at, last, expanded


def _codec(data: Buffer, at: int) -> int:
    codec_at = at + 22 if data[at + _MAGIC_AT] >= _BATCH_MAGIC else at + 17
    return data[codec_at] & _CODEC_MASK


def _payload_at(data: Buffer, at: int) -> int:
    """Return where the compressed bytes of a unit begin: behind the head of a batch, or a message's key and lengths."""
    magic = data[at + _MAGIC_AT]
    if magic >= _BATCH_MAGIC:
        return at + _BATCH_BYTES
    key_at = at + (26 if magic else 18)
    key_length: int = _SIZE(data, key_at)[0] if key_at + 4 <= len(data) else 0
    return key_at + 8 + max(key_length, 0)


def _following_offset(data: Buffer, at: int) -> int:
    offset: int = _OFFSET(data, at)[0]
    if at + _BATCH_BYTES > len(data) or data[at + _MAGIC_AT] < _BATCH_MAGIC:
        return offset + 1
    distance: int = _SIZE(data, at + 23)[0]
    return offset + distance + 1


def first_unit_bytes(data: Buffer) -> int | None:
    """Return the size of the first unit by its own header: None if that did not come along, 0 if it cannot be one."""
    if len(data) < _PREFIX_BYTES:
        return None
    size: int = _SIZE(data, 8)[0]
    return size + _PREFIX_BYTES if size >= _LEAST_SIZE else 0
