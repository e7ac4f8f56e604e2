# SPDX-License-Identifier: Apache-2.0
"""Cutting any bytes at all: pieces follow each other, and nothing raises."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumerd.wire.modern.slices import cut_record_set, first_unit_bytes
from tests.support.record_sets import RecordSpec, batch, message, wrapper

pytestmark = pytest.mark.usefixtures("each_path")

VALUES = st.binary(max_size=60)


@st.composite
def record_sets(draw: st.DrawFn) -> tuple[bytes, list[int], int]:
    """Draw units of all formats in offset order, perhaps cut off; with the ends of the units, and the next offset."""
    data, ends, offset = b"", [], draw(st.integers(0, 1 << 40))
    for _ in range(draw(st.integers(0, 12))):
        values = draw(st.lists(VALUES, min_size=1, max_size=5))
        kind = draw(st.sampled_from(["v0", "v1", "wrapper", "batch", "gzip batch"]))
        if kind in {"v0", "v1"}:
            data += message(offset, values[0], magic=int(kind[1]))
            offset += 1
        elif kind == "wrapper":
            inner = b"".join(message(index, value) for index, value in enumerate(values))
            offset += len(values)
            data += wrapper(offset - 1, inner, 1)
        else:
            specs = [RecordSpec(delta=index, value=value) for index, value in enumerate(values)]
            data += batch(offset, specs, codec=int(kind != "batch"))
            offset += len(values)
        ends.append(len(data))
    return data, ends, offset


@given(
    made=record_sets(), cut=st.integers(0, 40), slice_bytes=st.integers(1, 500), expansion=st.none() | st.floats(1, 20)
)
def test_pieces_cover_exactly_the_whole_units(
    made: tuple[bytes, list[int], int], cut: int, slice_bytes: int, expansion: float | None
) -> None:
    """What is left over is the unit that was cut off; the last piece says where to go on."""
    data, ends, next_offset = made
    data = data[: max(0, len(data) - cut)]
    whole = [end for end in ends if end <= len(data)]
    pieces = cut_record_set(data, slice_bytes=slice_bytes, expansion=expansion)

    assert (pieces[-1].end if pieces else 0) == (whole[-1] if whole else 0)
    assert [piece.begin for piece in pieces] == [0, *(piece.end for piece in pieces[:-1])][: len(pieces)]
    assert {piece.end for piece in pieces} <= set(whole)
    if pieces and len(whole) == len(ends):
        assert pieces[-1].next_offset == next_offset


@given(data=st.binary(max_size=300), slice_bytes=st.integers(1, 400), expansion=st.none() | st.floats(1, 20))
def test_any_bytes_give_pieces_in_order(data: bytes, slice_bytes: int, expansion: float | None) -> None:
    """Garbage gives garbage pieces, for the decoder to refuse; never an exception, never a piece without bytes."""
    pieces = cut_record_set(data, slice_bytes=slice_bytes, expansion=expansion)
    at = 0
    for piece in pieces:
        assert piece.begin == at < piece.end <= len(data)
        at = piece.end
    first_unit_bytes(data)
