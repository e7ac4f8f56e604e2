# SPDX-License-Identifier: Apache-2.0
"""Everything that decoding a message set of Kafka 0.6 or 0.7 gives, to compare the native kernel with pure Python."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, TypeVar

from consumerd.errors import CorruptMessageError, forget_frames
from consumerd.wire.checksum import crc32
from consumerd.wire.kernel import Buffer
from consumerd.wire.legacy.extent import cut_message_set
from consumerd.wire.legacy.message_set import check_message_set, decode_message_set
from consumerd.wire.legacy.stored_message import read_header
from consumerd.wire.pieces import Piece
from consumerd.wire.records import Limits
from tests.support.legacy_frames import PARTITION
from tests.support.pure import without_kernel

T = TypeVar("T")

LIMITS: Final = Limits(decompressed_bytes=1 << 21, nesting=2)
FEW: Final = Limits(decompressed_bytes=250, nesting=2)


def see_decoded(data: Buffer, start: int, *, limits: Limits = LIMITS, room: int | None = None) -> tuple[object, ...]:
    """Return all of the batch, or all of the error; the last is the memory that the batch holds.

    Args:
        room: Size of the memory for decompressed data, in bytes; None for none.
    """
    try:
        found = decode_message_set(
            data,
            partition=PARTITION,
            start=start,
            limits=limits,
            make_room=None if room is None else lambda: memoryview(bytearray(room)),
        )
    except CorruptMessageError as error:
        forget_frames(error)
        known = (error.partition, error.offset, error.next_offset, error.claimed_end, error.raw)
        return type(error), str(error), *known, 0
    return (
        *(found.start, found.next_offset, bytes(found.buffer), found.offsets, found.next_offsets, found.indexes),
        *(found.timestamps, found.timestamp_types, found.key_starts, found.key_ends, found.value_starts),
        *(found.value_ends, found.header_starts, found.header_ends, found.gaps, found.size_bytes),
    )


def see_checked(data: bytes, *, limits: Limits = LIMITS) -> object:
    """Return the size of a producer's whole messages, or the error."""
    try:
        return check_message_set(data, limits=limits)
    except CorruptMessageError as error:
        return type(error), str(error)


def see_cut(data: Buffer, start: int) -> list[list[Piece]]:
    """Return the pieces into which data is cut, for different sizes and expansions."""
    return [
        cut_message_set(data, start, slice_bytes=slice_bytes, expansion=expansion)
        for slice_bytes in (1, 150, 1 << 22)
        for expansion in (None, 0.3, 7.0)
    ]


def compare_paths(data: bytes, start: int) -> tuple[object, ...]:
    """Return what the kernel gives; raise AssertionError if Python gives anything else.

    Memory for decompressed data is absent, ample, and of sizes that suffice for some messages only.
    """
    padded = b"\0" + data + b"\0"
    found = _agree(lambda: see_decoded(data, start))
    _agree(lambda: (see_checked(data), see_checked(data, limits=FEW), see_cut(data, start)))
    assert found == see_decoded(memoryview(padded)[1:-1], start)
    for room in (1 << 21, 1 << 16, 300, 90):
        assert found[:-1] == see_decoded(data, start, room=room)[:-1]
    with without_kernel():
        expected = see_decoded(data, start, limits=FEW)
    assert expected[:-1] == see_decoded(data, start, limits=FEW, room=1 << 16)[:-1]
    return found


def _agree(see: Callable[[], T]) -> T:
    found = see()
    with without_kernel():
        expected = see()
    assert expected == found
    return found


def read_either_way(data: bytes) -> None:
    """Decode a message set with little memory, with the kernel and in Python.

    Raises CorruptMessageError if the first message is corrupt, AssertionError if the two ways differ.
    """
    limits, room = Limits(decompressed_bytes=1 << 18, nesting=2), 1 << 12
    _agree(lambda: (see_checked(data, limits=limits), see_cut(data, 7)))
    found = _agree(lambda: see_decoded(data, 7, limits=limits))
    assert found[:-1] == see_decoded(data, 7, limits=limits, room=room)[:-1]
    decode_message_set(data, partition=PARTITION, start=7, limits=limits)


def mend_messages(data: bytearray) -> None:
    """Write the right checksum into each message that follows from the lengths."""
    at = 0
    while (header := _find_header(data, at)) is not None:
        struct.pack_into(">I", data, header[0] - 4, crc32(data[header[0] : header[1]]))
        at = header[1]


def _find_header(data: bytearray, at: int) -> tuple[int, int] | None:
    try:
        header = read_header(data, at)
    except CorruptMessageError:
        return None
    return None if header is None else (header.payload_at, header.stop)
