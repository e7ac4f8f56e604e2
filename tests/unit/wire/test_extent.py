# SPDX-License-Identifier: Apache-2.0
"""How far a unit that cannot be read reaches: two witnesses or nobody, whatever is damaged."""

from __future__ import annotations

import struct

import pytest

from consumerd.errors import CorruptMessageError
from consumerd.model import TopicPartition
from consumerd.wire.compression import Codec
from consumerd.wire.modern.extent import HEAD_BYTES, find_next_offset, read_claim
from consumerd.wire.modern.record_set import decode_record_set
from tests.support.record_sets import RecordSpec, batch, message, wrapper

pytestmark = pytest.mark.usefixtures("each_path")

PARTITION = TopicPartition.modern("t", 0)
END = 100
INNER = message(0, b"inner")


def renumber(unit: bytes, offset: int) -> bytes:
    return struct.pack(">q", offset) + unit[8:]


def resize(unit: bytes, size: int) -> bytes:
    return unit[:8] + struct.pack(">i", size) + unit[12:]


def plain(offset: int) -> bytes:
    return message(offset, b"value")


def records(offset: int, count: int = 1) -> bytes:
    return batch(offset, [RecordSpec(delta=delta, value=b"value") for delta in range(count)])


def damaged(unit: bytes) -> bytes:
    return unit[:-1] + b"\xff"


def compressed(offset: int) -> bytes:
    return wrapper(offset, INNER, Codec.GZIP)


def fault(data: bytes, start: int, following: bytes = b"") -> CorruptMessageError:
    with pytest.raises(CorruptMessageError) as caught:
        decode_record_set(data, partition=PARTITION, start=start, high_watermark=END, following=following)
    return caught.value


@pytest.mark.parametrize(
    ("unit", "behind", "start", "expected"),
    [
        # what was due is what it claims
        pytest.param(plain(5), b"", 5, 6, id="due"),
        pytest.param(records(5, 3), b"", 5, 8, id="batch due"),
        # compacted: only what follows says that the claim is right
        pytest.param(plain(9), b"", 5, None, id="compacted alone"),
        pytest.param(plain(9), plain(10), 5, 10, id="compacted before the next"),
        pytest.param(plain(9), plain(12), 5, 10, id="compacted before a hole"),
        pytest.param(plain(9), compressed(20), 5, 10, id="compacted before a wrapper"),
        # the end of the log is a witness too
        pytest.param(plain(END - 1), b"", 5, END, id="end of the log"),
        # its own offset is damaged: what follows begins with its first
        pytest.param(plain(1 << 60), plain(6), 5, 6, id="offset beyond"),
        pytest.param(plain(1), plain(6), 5, 6, id="offset below"),
        pytest.param(records(1 << 60, 3), records(8), 5, 8, id="batch offset beyond"),
        # but a wrapper only says its last
        pytest.param(plain(1 << 60), compressed(8), 5, None, id="offset beyond before a wrapper"),
        # what follows cannot be: its offset is damaged, or its bytes are no unit
        pytest.param(plain(9), plain(1 << 60), 5, None, id="next beyond the log"),
        pytest.param(plain(9), plain(3), 5, None, id="next below"),
        pytest.param(plain(9), b"\xff" * 40, 5, None, id="next is no unit"),
        pytest.param(plain(9), b"\0" * 40, 5, None, id="next is zeros"),
        pytest.param(plain(9), plain(10)[:10], 5, None, id="next is cut off"),
        # its size is damaged: what seems to follow is from the middle of something
        pytest.param(resize(plain(9), 30), plain(10), 5, None, id="size too small by some"),
        pytest.param(resize(plain(5), -1), plain(6), 5, None, id="size negative"),
        pytest.param(resize(plain(5), 3), plain(6), 5, None, id="size of nothing"),
    ],
)
def test_the_end_of_a_damaged_unit_needs_two_witnesses(
    unit: bytes, behind: bytes, start: int, expected: int | None
) -> None:
    """A wrong answer skips records that are fine; no answer costs a search."""
    assert expected == find_next_offset(unit + behind, 0, start, END)


def test_without_the_log_s_end_offsets_behind_are_no_witness_of_their_own() -> None:
    """Nothing then tells a damaged offset from a true one."""
    assert None is find_next_offset(plain(1 << 60) + plain(6), 0, 5)


@pytest.mark.parametrize("unit", [plain(5), records(5, 3), compressed(7)])
def test_every_cut_of_a_unit_is_answered_without_an_error(unit: bytes) -> None:
    """Bytes of a log come in any length, and any of them may be the last."""
    ends = {6} if unit == plain(5) else {8}
    for length in range(len(unit) + 1):
        assert find_next_offset(unit[:length], 0, 5, END) in {None, *ends}
        assert read_claim(unit[:length], 0, 5, END) in {None, *ends}
    assert read_claim(unit[:HEAD_BYTES], 0, 5, END) in ends


def test_a_claim_outside_the_log_is_none() -> None:
    """Where only the head came along, the log's end is all there is to hold it against."""
    assert None is read_claim(plain(END), 0, 5, END)
    assert None is read_claim(plain(4), 0, 5, END)
    assert END == read_claim(plain(END - 1), 0, 5, END)


@pytest.mark.parametrize(("unit", "good"), [(plain, plain), (records, records)])
def test_a_unit_with_an_offset_beyond_the_log_is_told_apart_from_those_around_it(unit: object, good: object) -> None:
    """Its checksum is right; believed, it would lose everything up to its offset."""
    assert callable(unit)
    assert callable(good)
    stray = renumber(unit(6), 1 << 60)
    data = good(5) + stray + good(7)

    before = decode_record_set(data, partition=PARTITION, start=5, high_watermark=END)
    error = fault(data[len(good(5)) :], 6)

    assert ([5], 6) == (list(before.offsets), before.next_offset)
    assert (6, 7, stray) == (error.offset, error.next_offset, error.raw)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (damaged(plain(9)), (9, None, 10)),
        (damaged(records(5, 3)), (5, 8, 8)),
        (damaged(compressed(9)), (5, None, 10)),
        (damaged(renumber(plain(9), 1 << 60)), (5, None, None)),
    ],
    ids=["compacted", "batch due", "wrapper", "beyond the log"],
)
def test_the_header_s_own_claim_is_kept_for_the_operator(data: bytes, expected: tuple[int | None, ...]) -> None:
    """Nothing is skipped on its word, but it is better than none for the one who decides."""
    error = fault(data, 5)

    assert expected == (error.offset, error.next_offset, error.claimed_end)


def test_what_follows_in_another_piece_is_a_witness() -> None:
    """A record set is decoded in pieces, and a unit may be the last of one."""
    error = fault(damaged(plain(9)), 5, following=plain(10)[:HEAD_BYTES])

    assert (9, 10) == (error.offset, error.next_offset)
    assert None is fault(damaged(plain(9)), 5).next_offset


def test_a_wrapper_that_cannot_be_read_is_passed_over_as_a_whole() -> None:
    """It is the smallest thing that can be told apart, and its head has the offset of its last message."""
    unit = wrapper(7, message(0, b"a") + message(1, b"b"), Codec.GZIP)
    error = fault(damaged(unit) + plain(8), 5)

    assert (5, 8) == (error.offset, error.next_offset)
    assert len(unit) == len(error.raw)
