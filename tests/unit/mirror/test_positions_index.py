# SPDX-License-Identifier: Apache-2.0
"""Content of the positions topic in memory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from consumerd.mirror.positions_index import MirrorState, PositionsIndex, PositionsTail
from consumerd.mirror.records import PositionKey, SegmentKey, SourceLog, StoredPosition, encode_key, encode_position
from consumerd.mirror.runs import Run
from consumerd.mirror.segment import encode_segment

A, B = (SourceLog("cluster", "group", "orders", name, "7") for name in "01")
Pair = tuple[bytes | None, bytes | None]


def position(log: SourceLog, source: int, first: int = 0, last: int = -1) -> Pair:
    stored = StoredPosition(
        source=source, target=source, target_topic="t", target_partition=0, first_segment=first, last_segment=last
    )
    return encode_key(PositionKey(log)), encode_position(stored)


def segment(log: SourceLog, number: int) -> Pair:
    run = Run(10 * number, 10 * number + 5, 100 * number, 5)
    return encode_key(SegmentKey(log, number)), encode_segment([run], counts_bytes=False)


def gone(log: SourceLog, number: int) -> Pair:
    return encode_key(SegmentKey(log, number)), None


def find(index: PositionsIndex, log: SourceLog) -> MirrorState:
    state = index.find(log)
    assert state is not None
    return state


def test_last_segment_is_kept_with_the_first_target_offsets_of_all() -> None:
    """What a mirror needs to go on, and to remove what the target has deleted."""
    index = PositionsIndex(whole_maps=False)
    index.add(0, [segment(A, 0), segment(A, 1), segment(A, 2), position(A, 30, 0, 2)])
    state = find(index, A)
    assert [2] == list(state.segments)
    assert (0, [0, 100, 200]) == (state.lowest_segment, list(state.target_starts))
    index.add(0, [gone(A, 0), position(A, 40, 1, 2)])
    state = find(index, A)
    assert (1, [100, 200]) == (state.lowest_segment, list(state.target_starts))


def test_a_map_that_begins_anew_leaves_segments_to_be_removed() -> None:
    """They are not part of the map, and are removed later."""
    index = PositionsIndex()
    index.add(0, [segment(A, 0), segment(A, 1), position(A, 20, 0, 1)])
    index.add(0, [segment(A, 2), position(A, 25, 2, 2)])
    state = find(index, A)
    assert [2] == list(state.segments)
    assert 0 == state.lowest_segment
    assert 200 == state.offset_map().translate(20).offset


def test_tail_counts_only_what_has_committed_and_is_replaced_as_a_whole() -> None:
    """Example of the module ``positions``: 7 is open, 8 has committed behind it."""
    index = PositionsIndex()
    index.add(3, [position(A, 1)])
    tail = PositionsTail(3)
    tail.add(7, [position(A, 2)])
    tail.add(8, [position(B, 5), segment(B, 0)])
    tail.end(8, commits=True)
    tail.add(9, [position(B, 6)])
    tail.end(9, commits=False)
    tail.end(10, commits=True)
    index.set_tail(tail)
    assert (1, 5) == (find(index, A).stored.source, find(index, B).stored.source)
    assert [A, B] == index.list()
    index.set_tail(PositionsTail(3))
    assert [A] == index.list()
    index.forget(3)
    assert [] == index.list()


def test_other_logs_take_no_memory() -> None:
    index = PositionsIndex(keeps=lambda log: log == B)
    index.add(0, [position(A, 1), position(B, 2)])
    assert [B] == index.list()
    assert index.find(A) is None


@given(
    steps=st.lists(
        st.tuples(st.sampled_from((A, B)), st.sampled_from(("segment", "gone", "position")), st.integers(0, 5))
    ),
    cut=st.integers(0, 40),
)
def test_a_tail_gives_the_same_as_the_log(steps: list[tuple[SourceLog, str, int]], cut: int) -> None:
    """Wherever the last stable offset lies."""
    made = {"segment": segment, "gone": gone, "position": lambda log, number: position(log, number, number, number)}
    records = [made[kind](log, number) for log, kind, number in steps]
    whole, split, tail = PositionsIndex(), PositionsIndex(), PositionsTail(0)
    whole.add(0, records)
    split.add(0, records[:cut])
    tail.add(None, records[cut:])
    split.set_tail(tail)
    assert whole.list() == split.list()
    for log in whole.list():
        assert whole.find(log) == split.find(log)
