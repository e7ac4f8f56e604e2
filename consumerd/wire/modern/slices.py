# SPDX-License-Identifier: Apache-2.0
"""Cuts a fetched record set into pieces for decoding, by reading headers only.

Pure. Reads where a unit (a message, a compressed wrapper or a batch) ends, which offset follows it, and its codec. It
checks nothing: the decoder does, checksums included, and its result overrides what is predicted here. The layout
belongs to ``entry``, ``message_reader`` and ``record_batch``.

Example: a record set of 10 MB holds batches of 1 MB, and ``slice_bytes`` is 4 MB. It is cut into pieces of 4, 4 and 2
batches. The next request can be sent for the last piece's ``next_offset`` before any batch is decoded.
"""

from __future__ import annotations

from typing import Final

from consumerd.wire import kernel
from consumerd.wire.compression import expected_size
from consumerd.wire.kernel import Buffer
from consumerd.wire.modern.entry import ENTRY_BYTES, INT32, LEAST_SIZES, MAGIC_AT, SIZE_AT, UINT32
from consumerd.wire.modern.extent import BATCH_MAGIC, following_offset, read_codec
from consumerd.wire.modern.message_reader import KEY_LENGTH_AT
from consumerd.wire.modern.record_batch import HEADER_BYTES
from consumerd.wire.pieces import Piece

_SIZE: Final = INT32.unpack_from
_UNSIGNED_SIZE: Final = UINT32.unpack_from
_LEAST_SIZE: Final = LEAST_SIZES[0]
"""The least size in a unit's head: a message of magic 0 with null key and null value."""
_LEAST_UNIT_BYTES: Final = ENTRY_BYTES + _LEAST_SIZE
_DOUBT: Final = 4
"""Divisor of the size that a compressed unit claims, used once the partition's expansion is known.

The blocks of LZ4 and snappy tell how many there are, full or not, so that the claim may be far too high. Before
anything was decoded it counts in full.
"""


def cut_record_set(data: Buffer, *, slice_bytes: int, expansion: float | None) -> list[Piece]:
    """Cut a fetched record set into pieces of about ``slice_bytes`` once decompressed.

    A piece consists of whole messages or batches, at least one. Bytes after the last whole one are in no piece; nor is
    anything from a message or batch with an impossible size on.

    Args:
        data: The record set as it was fetched.
        slice_bytes: Decompressed size that a piece should have, in bytes.
        expansion: Decompressed size divided by fetched size, learned from earlier pieces; None before anything was
            decoded.
    """
    pieces: list[Piece] = []
    begin = 0
    last_head = len(data) - _LEAST_UNIT_BYTES
    while begin <= last_head:
        compressed, batch = bool(read_codec(data, begin)), data[begin + MAGIC_AT] >= BATCH_MAGIC
        expanded = 0
        if compressed or batch:
            end, last, expanded = _walk_units(data, begin, slice_bytes, expansion)
            compressed = compressed or bool(read_codec(data, last))
        else:
            end, last = _walk_messages(data, begin, slice_bytes)
        if end == begin:
            break
        pieces.append(Piece(begin, end, following_offset(data, last), compressed, expanded))
        begin = end
    return pieces


def _walk_messages(data: Buffer, begin: int, slice_bytes: int) -> tuple[int, int]:
    """Return where about ``slice_bytes`` of whole messages end, and where the last of them begins."""
    if (native := kernel.records) is not None:
        return native.step_messages(data, begin, begin + slice_bytes)
    # The loop runs once a message and reads sizes only. An absurd size leads it astray, but forwards; the decoder sees.
    size_at = _UNSIGNED_SIZE
    until = min(begin + slice_bytes, len(data) - ENTRY_BYTES)
    at, last, before = begin, begin, begin
    while at <= until:
        before, last = last, at
        at += ENTRY_BYTES + size_at(data, at + SIZE_AT)[0]
    return (at, last) if at <= len(data) else (last, before)


def _walk_units(data: Buffer, begin: int, slice_bytes: int, expansion: float | None) -> tuple[int, int, int]:
    """Return where about ``slice_bytes`` end, where the last unit begins, and the decompressed size claimed.

    Units are batches and wrappers. A compressed unit counts as its expected size, or as a part of the size that it
    claims, whichever is greater.
    """
    expansion, doubt = (1.0, 1) if expansion is None else (expansion, _DOUBT)
    at = last = begin
    expanded = 0
    weight = 0.0
    native = kernel.records
    while at <= len(data) - _LEAST_UNIT_BYTES and weight < slice_bytes:
        if native is not None:
            stop, known, weight, said = native.step_units(data, at, weight, slice_bytes, expansion, doubt)
            if stop > at:
                last, at = known, stop
                expanded += said
                continue
        size = _UNSIGNED_SIZE(data, at + SIZE_AT)[0]
        stop = at + ENTRY_BYTES + size
        if size < _LEAST_SIZE or stop > len(data):
            break
        if codec := read_codec(data, at):
            said = expected_size(codec, memoryview(data)[_payload_at(data, at) : stop])
            expanded += said
            weight += max(size * expansion, said / doubt)
        else:
            weight += size
        last, at = at, stop
    return at, last, expanded


def _payload_at(data: Buffer, at: int) -> int:
    """Return where a unit's compressed bytes begin: behind a header or a key."""
    magic = data[at + MAGIC_AT]
    if magic >= BATCH_MAGIC:
        return at + HEADER_BYTES
    key_at = at + KEY_LENGTH_AT[magic]
    key_length: int = _SIZE(data, key_at)[0] if key_at + 4 <= len(data) else 0
    return key_at + 8 + max(key_length, 0)  # the lengths of key and value


def first_unit_bytes(data: Buffer) -> int | None:
    """Return the size in bytes of the first message or batch, by its own header.

    None if ``data`` has too few bytes of the header, 0 if the size is impossible.
    """
    if len(data) < ENTRY_BYTES:
        return None
    size: int = _SIZE(data, SIZE_AT)[0]
    return size + ENTRY_BYTES if size >= _LEAST_SIZE else 0
