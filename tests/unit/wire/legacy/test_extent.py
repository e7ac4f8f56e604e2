# SPDX-License-Identifier: Apache-2.0
"""Ends of messages by their headers, and pieces of a message set."""

from __future__ import annotations

import struct

import pytest

from consumerd.wire.compression import Codec
from consumerd.wire.legacy.extent import (
    cut_message_set,
    first_message_bytes,
    read_claim,
)
from consumerd.wire.legacy.message_set import build_message_set
from consumerd.wire.legacy.stored_message import HEAD_BYTES
from consumerd.wire.pieces import Piece

START = 1000
MOST = 1 << 20
ONE = build_message_set([b"x" * 30])
NOISE = bytes(range(2, 102))
"""Bytes that no message begins in."""


def test_size_of_the_first_message_is_told_before_all_of_it_is_there() -> None:
    """The next fetch asks for that many bytes."""
    assert [None, len(ONE), len(ONE)] == [first_message_bytes(ONE[:cut]) for cut in (3, 4, HEAD_BYTES)]
    assert [None, START + len(ONE)] == [read_claim(ONE[:cut], START) for cut in (3, 4)]


@pytest.mark.parametrize(
    "data", [struct.pack(">i", 4), struct.pack(">iB", 100, 2), struct.pack(">iB", 5, 1), struct.pack(">iBB", 9, 1, 3)]
)
def test_impossible_header_has_no_size(data: bytes) -> None:
    """More bytes would not help: what was fetched is given to the decoder, which names the damage."""
    assert 0 == first_message_bytes(data)


def test_pieces_are_whole_messages_and_end_at_offsets() -> None:
    """Each piece is decoded alone, and the next request leaves before that."""
    size = len(ONE)

    pieces = cut_message_set(ONE * 5 + ONE[:-1], START, slice_bytes=2 * size, expansion=None)

    assert [
        Piece(0, 2 * size, START + 2 * size, compressed=False),
        Piece(2 * size, 4 * size, START + 4 * size, compressed=False),
        Piece(4 * size, 5 * size, START + 5 * size, compressed=False),
    ] == pieces
    assert [] == cut_message_set(ONE[:-1], START, slice_bytes=size, expansion=None)


def test_pieces_end_before_an_impossible_header() -> None:
    """The next fetch begins there, and meets it first."""
    pieces = cut_message_set(ONE + NOISE, START, slice_bytes=MOST, expansion=1.0)

    assert [Piece(0, len(ONE), START + len(ONE), compressed=False)] == pieces
    assert [] == cut_message_set(NOISE, START, slice_bytes=MOST, expansion=None)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY])
def test_compressed_messages_count_by_their_declared_size(codec: Codec) -> None:
    """A piece needs memory for what comes out of it."""
    wrapper = build_message_set([bytes(10_000)], codec=codec)

    whole = cut_message_set(ONE + wrapper * 4, START, slice_bytes=MOST, expansion=None)
    single = cut_message_set(wrapper * 4, START, slice_bytes=10_000, expansion=None)

    assert [(True, 40_040)] == [(piece.compressed, piece.expanded_bytes) for piece in whole]
    assert [(True, 10_010)] * 4 == [(piece.compressed, piece.expanded_bytes) for piece in single]
    assert 2 == len(cut_message_set(wrapper * 8, START, slice_bytes=10_000, expansion=2.0)), "claims count a quarter"
