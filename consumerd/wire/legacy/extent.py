# SPDX-License-Identifier: Apache-2.0
"""Ends of fetched messages of Kafka 0.6 and 0.7, as their headers say.

Pure. Reads headers, and verifies no checksum. Offsets count bytes, so the end of a message is also the offset of the
next one. No checksum covers the length of a message: what a header says is a *claim*. How an end is proved after damage
is in :mod:`consumerd.wire.legacy.boundaries`.
"""

from __future__ import annotations

from typing import Final

from consumerd.errors import CorruptMessageError
from consumerd.wire import kernel
from consumerd.wire.compression import expected_size
from consumerd.wire.kernel import Buffer
from consumerd.wire.legacy.stored_message import (
    LEAST_MESSAGE_BYTES,
    LENGTH_BYTES,
    find_stop,
    read_header,
    read_length,
)
from consumerd.wire.pieces import Piece

_DOUBT: Final = 4
"""Divisor of the decompressed size that a message claims, used once the partition's expansion is known.

It is that of ``modern.slices``: blocks of snappy tell how many there are, full or not.
"""


def first_message_bytes(data: Buffer) -> int | None:
    """Return the size in bytes of the first message, by its header.

    None if ``data`` ends before the length field, 0 if the header is impossible. That is the case for nearly all
    offsets inside of a message: brokers send the bytes from there on without an error.
    """
    try:
        return find_stop(data, 0)
    except CorruptMessageError:
        return 0


def read_claim(data: Buffer, start: int) -> int | None:
    """Return the offset after the first message, as its length claims.

    None if the length is impossible or cut off. Magic and codec may be damaged, and are not considered.

    Args:
        start: offset of the first byte of ``data``.
    """
    length = read_length(data, 0)
    is_possible = length is not None and length >= LEAST_MESSAGE_BYTES - LENGTH_BYTES
    return start + LENGTH_BYTES + length if is_possible and length is not None else None


def cut_message_set(data: Buffer, start: int, *, slice_bytes: int, expansion: float | None) -> list[Piece]:
    """Cut a fetched message set into pieces of about ``slice_bytes`` once decompressed.

    A piece consists of whole messages, at least one. Bytes after the last whole one are in no piece; nor is anything
    from a message with an impossible header on. Checksums are not verified.

    Args:
        start: offset of the first byte of ``data``.
        slice_bytes: decompressed size that a piece should have, in bytes.
        expansion: decompressed size divided by fetched size, learned from earlier pieces; None before anything was
            decoded.
    """
    factor, doubt = (1.0, 1) if expansion is None else (expansion, _DOUBT)
    view, native = memoryview(data), kernel.legacy
    pieces: list[Piece] = []
    begin = at = expanded = 0
    weight = 0.0
    compressed = False
    while True:
        if native is not None:
            at, weight, said, packed = native.step_stored(data, at, weight, slice_bytes, factor, doubt)
            expanded += said
            compressed |= packed
        try:
            header = read_header(data, at)
        except CorruptMessageError:
            header = None
        if at > begin and (header is None or weight >= slice_bytes):
            pieces.append(Piece(begin, at, start + at, compressed, expanded))
            begin, weight, expanded, compressed = at, 0.0, 0, False
        if header is None:
            return pieces
        size = header.stop - at
        if header.codec:
            said = expected_size(header.codec, view[header.payload_at : header.stop])
            expanded += said
            compressed = True
            weight += max(size * factor, said / doubt)
        else:
            weight += size
        at = header.stop
