# SPDX-License-Identifier: Apache-2.0
"""The map of a partition after 1,000,000 transactions: small, exact, and quick to read."""

from __future__ import annotations

import random
import tracemalloc
from time import process_time

import pytest

from consumerd.mirror.offset_map import MapPlace, OffsetMap, count_removable
from consumerd.mirror.positions_index import MirrorState, PositionsIndex
from consumerd.mirror.records import SegmentKey, encode_key
from consumerd.mirror.segment import MOST_RUNS, decode_segment, read_starts
from tests.support.long_map import LOG, LongMap
from tests.support.seeds import draw_seed, some_of

TRANSACTIONS = 1_000_000
_ONE_BY_ONE = 5_000
"""Transactions of which each write of the last segment is read, as before compaction."""
_POSITIONS = 10_000
_MOST_BYTES_OF_RUN = 4.1
_MOST_MEMORY = 48 << 20

pytestmark = pytest.mark.timeout(600)


def fill(counts_bytes: bool) -> tuple[LongMap, dict[bytes, bytes]]:
    """Return a map and its last values by key, after reading which an index holds just these."""
    long = LongMap(counts_bytes)
    written = [*long.grow(_ONE_BY_ONE, stores_each=1), *long.grow(TRANSACTIONS - _ONE_BY_ONE)]
    index = PositionsIndex()
    index.add(0, [*written, long.position()])
    assert list(state_of(index).segments.values()) == list(dict(written).values())
    return long, dict(written)


def state_of(index: PositionsIndex) -> MirrorState:
    state = index.find(LOG)
    assert state is not None
    return state


def check(long: LongMap, found: OffsetMap, from_position: int, dice: random.Random) -> None:
    """Compare random positions, and those at the edges of segments, with the records themselves."""
    edges = [
        long.source_starts[number] + beside
        for number in range(0, TRANSACTIONS, MOST_RUNS)
        for beside in (-1, 0, 1)
        if long.source_starts[number] + beside >= from_position
    ]
    random_ones = [dice.randrange(from_position, long.source_end + 1) for _ in range(_POSITIONS)]
    for position in (*edges, *random_ones, from_position, long.source_end - 1, long.source_end):
        target = found.translate(position)
        assert target.offset == long.expect(position)
        assert target.place is (MapPlace.END if target.offset == long.target_end else MapPlace.RECORD)
        back = found.translate_back(target.offset).offset
        assert back == long.expect_back(target.offset) >= position
        assert found.translate(back).offset == target.offset


@pytest.mark.drawn
@pytest.mark.parametrize("counts_bytes", some_of("generation of a long map", (False, True), 1))
def test_the_map_of_a_million_transactions_is_small_and_exact(counts_bytes: bool) -> None:
    """Also where retention has taken the first third: what is left of the map is exact for all that is left."""
    long, written = fill(counts_bytes)
    dice = random.Random(draw_seed("positions of a long map"))
    assert sum(map(len, written.values())) < _MOST_BYTES_OF_RUN * TRANSACTIONS

    tracemalloc.start()
    index = PositionsIndex()
    index.add(0, ((bytes(bytearray(key)), bytes(bytearray(value))) for key, value in written.items()))
    index.add(0, [long.position()])
    whole = state_of(index).offset_map()
    shuffled = [dice.randrange(long.source_end) for _ in range(_POSITIONS)]
    for position in shuffled:
        whole.translate(position)
    _, memory = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert memory < _MOST_MEMORY
    check(long, whole, 0, dice)

    log_start = long.target_starts[TRANSACTIONS // 3]
    removed = count_removable([read_starts(value)[1] for value in written.values()], log_start)
    assert removed == TRANSACTIONS // 3 // MOST_RUNS
    index.add(0, [(encode_key(SegmentKey(LOG, number)), None) for number in range(removed)])
    index.add(0, [long.position(first_segment=removed)])
    thinned = state_of(index)
    assert len(thinned.segments) == len(written) - removed
    check(long, thinned.offset_map(), long.source_starts[TRANSACTIONS // 3], dice)
    assert thinned.offset_map().translate(0).place is MapPlace.BEFORE


def test_positions_in_any_order_decode_each_segment_once() -> None:
    """By processor time: a map that forgot segments would decode one for nearly each position."""
    long = LongMap(counts_bytes=False)
    segments = list(dict(long.grow(200 * MOST_RUNS)).values())
    index = PositionsIndex()
    index.add(0, [(encode_key(SegmentKey(LOG, number)), data) for number, data in enumerate(segments)])
    index.add(0, [long.position()])
    found, dice = state_of(index).offset_map(), random.Random(3)
    positions = [dice.randrange(long.source_end) for _ in range(20 * len(segments))]

    began = process_time()
    for data in segments:
        decode_segment(data)
    decoded = process_time()
    for position in positions:
        found.translate(position)

    assert process_time() - decoded < 6 * (decoded - began)
