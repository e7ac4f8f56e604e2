# SPDX-License-Identifier: Apache-2.0
"""Cutting record sets by their headers."""

import itertools

import pytest

from consumerd.wire.modern.slices import cut_record_set, first_unit_bytes
from consumerd.wire.pieces import Piece
from tests.support.record_sets import RecordSpec, batch, message, wrapper

pytestmark = pytest.mark.usefixtures("each_path")

GZIP = 1


def units_of(magic: int, count: int) -> list[bytes]:
    if magic == 2:
        return [batch(2 * n, [RecordSpec(delta=d, value=b"x" * 50) for d in range(2)]) for n in range(count)]
    return [message(n, b"x" * (50 + n % 7), magic=magic) for n in range(count)]


def cut(data: bytes, slice_bytes: int = 1 << 18, expansion: float | None = 1.0) -> list[Piece]:
    return cut_record_set(data, slice_bytes=slice_bytes, expansion=expansion)


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_pieces_are_whole_units_that_cover_the_set(magic: int) -> None:
    """Nothing is lost between two pieces, and each can be decoded by itself."""
    units = units_of(magic, 40)
    data = b"".join(units)
    borders = {sum(map(len, units[:n])) for n in range(41)}
    pieces = cut(data, slice_bytes=300)

    assert len(pieces) > 5
    assert [piece.begin for piece in pieces] == [0, *(piece.end for piece in pieces[:-1])]
    assert pieces[-1].end == len(data)
    assert {piece.end for piece in pieces} <= borders


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_the_next_offset_follows_the_last_unit(magic: int) -> None:
    """It is what the next request asks for, before anything was decoded."""
    records = 40 * (2 if magic == 2 else 1)
    pieces = cut(b"".join(units_of(magic, 40)), slice_bytes=300)

    assert pieces[-1].next_offset == records
    assert all(one.next_offset < other.next_offset for one, other in itertools.pairwise(pieces))


def test_a_compacted_batch_ends_at_its_last_offset_delta() -> None:
    """The records at its end are gone, their offsets are not."""
    data = batch(10, [RecordSpec(delta=0, value=b"x")], last_delta=8)

    assert cut(data)[-1].next_offset == 19


def test_a_wrapper_has_the_offset_of_its_last_message() -> None:
    """So its header alone says where to go on."""
    inner = b"".join(message(n, b"x") for n in range(5))

    data = wrapper(24, inner, GZIP)

    assert cut(data) == [Piece(0, len(data), 25, compressed=True, expanded_bytes=len(inner))]


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_every_prefix_gives_the_whole_units_in_it(magic: int) -> None:
    """Brokers cut a set off anywhere."""
    units = units_of(magic, 3)
    data = b"".join(units)
    for length in range(len(data)):
        whole = max(n for n in range(4) if sum(map(len, units[:n])) <= length)
        pieces = cut(data[:length])
        assert (pieces[-1].end if pieces else 0) == sum(map(len, units[:whole]))


def test_large_units_are_cut_one_by_one_and_small_ones_together() -> None:
    """A unit cannot be cut; a piece is at least one."""
    units = [message(0, b"x" * 1000), message(1, b"x" * 10), message(2, b"x" * 10)]
    pieces = cut(b"".join(units), slice_bytes=500)

    assert [piece.next_offset for piece in pieces] == [1, 3]


def test_compressed_units_weigh_what_they_will_expand_to() -> None:
    """The aim is to bound the time that decoding takes."""
    data = b"".join(batch(n, [RecordSpec(delta=0, value=b"x" * 500)], codec=GZIP) for n in range(20))

    assert len(cut(data, slice_bytes=1000, expansion=1.0)) < len(cut(data, slice_bytes=1000, expansion=20.0)) == 20
    assert all(piece.compressed for piece in cut(data))


def test_compressed_units_weigh_all_that_they_say_before_anything_was_decoded() -> None:
    """Blocks may be full or not; a first batch four times as large as the others would be four times a fair share."""
    data = b"".join(batch(n, [RecordSpec(delta=0, value=b"x" * 500)], codec=GZIP) for n in range(16))
    said = cut(data)[0].expanded_bytes // 16

    assert [piece.expanded_bytes for piece in cut(data, slice_bytes=4 * said, expansion=None)] == [4 * said] * 4
    assert [piece.expanded_bytes for piece in cut(data, slice_bytes=4 * said, expansion=1.0)] == [16 * said]


def test_a_set_of_mixed_formats_is_cut_like_any_other() -> None:
    """A topic that has seen an upgrade holds several in one segment."""
    data = message(0, b"a", magic=0) + message(1, b"b", magic=1) + batch(2, [RecordSpec(delta=0, value=b"c")])

    assert cut(data, slice_bytes=1)[-1].next_offset == 3


def test_first_unit_size() -> None:
    """Known with its first twelve bytes; a size that no unit has is told apart."""
    unit = message(0, b"x" * 100)

    assert first_unit_bytes(unit[:11]) is None
    assert first_unit_bytes(unit[:12]) == len(unit)
    assert first_unit_bytes(b"\0" * 12) == 0
    assert first_unit_bytes(b"\0" * 8 + b"\xff" * 4) == 0


@pytest.mark.parametrize("codec", [1, 2, 3])
@pytest.mark.parametrize("magic", [0, 1, 2])
def test_what_a_unit_expands_to_is_known_before_it_is_decompressed(codec: int, magic: int) -> None:
    """Room for it is reserved first; and units that expand much are decoded one by one."""
    values = [bytes(100_000)] * 3
    if magic == 2:
        units = [batch(n, [RecordSpec(delta=0, value=value)], codec=codec) for n, value in enumerate(values)]
    else:
        units = [wrapper(n, message(n, v, magic=magic), codec, key=b"k", magic=magic) for n, v in enumerate(values)]
    pieces = cut(b"".join(units), slice_bytes=10_000)

    assert len(pieces) == 3
    assert all(100_000 < piece.expanded_bytes <= 2 * 65536 for piece in pieces)
