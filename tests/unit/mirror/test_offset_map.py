# SPDX-License-Identifier: Apache-2.0
"""The map between the offsets of a source and of a target partition."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumerd.errors import CorruptMessageError
from consumerd.mirror.offset_map import (
    MapPlace,
    MapWriter,
    MirrorPosition,
    NotMirrored,
    OffsetMap,
    Translation,
)
from consumerd.mirror.runs import Run, find_runs
from consumerd.mirror.segment import MOST_RUNS, decode_segment, encode_segment, read_starts


@dataclass
class Mirrored:
    """What a mirror wrote, kept as a plain list, and its map."""

    counts_bytes: bool = False
    most_runs: int = MOST_RUNS
    source: int = 0
    target: int = 0
    log_end: int = 0
    """Of the target, behind the last marker."""
    pairs: list[tuple[int, int]] = field(default_factory=list)
    """Source and target offset of each record."""
    stored: dict[int, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.writer = MapWriter(counts_bytes=self.counts_bytes, most_runs=self.most_runs)

    def commit(self, records: Sequence[tuple[int, int]], position: int) -> None:
        """Write records (offset and next offset in the source) in one transaction, whose marker follows them."""
        start = self.log_end
        self.pairs += [(at, start + number) for number, (at, _) in enumerate(records)]
        offsets, nexts = [at for at, _ in records], [behind for _, behind in records]
        self.writer.add(find_runs(offsets, nexts, start, counts_bytes=self.counts_bytes))
        self.stored.update(self.writer.take_changed())
        self.log_end += len(records) + 1
        self.source = position
        if records:
            self.target = self.log_end - 1

    def map(self) -> OffsetMap:
        """Return the map, read from what was stored."""
        segments = [self.stored[number] for number in sorted(self.stored)]
        return OffsetMap(segments, MirrorPosition(source=self.source, target=self.target))

    def expect(self, position: int) -> Translation:
        """Return what a position translates to, by looking at every record."""
        behind = [target for source, target in self.pairs if source >= position]
        if not behind:
            return Translation(self.target, MapPlace.END)
        if position < self.pairs[0][0]:
            return Translation(self.pairs[0][1], MapPlace.BEFORE)
        return Translation(behind[0], MapPlace.RECORD)

    def expect_back(self, offset: int) -> Translation:
        behind = [source for source, target in self.pairs if target >= offset]
        if not behind:
            return Translation(self.source, MapPlace.END)
        if offset < self.pairs[0][1]:
            return Translation(self.pairs[0][0], MapPlace.BEFORE)
        return Translation(behind[0], MapPlace.RECORD)


def consecutive(first: int, count: int) -> list[tuple[int, int]]:
    return [(at, at + 1) for at in range(first, first + count)]


def test_the_example_of_the_module() -> None:
    mirrored = Mirrored(log_end=7000)
    mirrored.commit(consecutive(100, 5), 105)
    mirrored.commit([(105, 106), (108, 109)], 110)
    found = mirrored.map()

    assert [found.translate(at) for at in (99, 100, 104, 105, 106, 107, 108)] == [
        (7000, MapPlace.BEFORE),
        (7000, MapPlace.RECORD),
        (7004, MapPlace.RECORD),
        (7006, MapPlace.RECORD),
        (7007, MapPlace.RECORD),
        (7007, MapPlace.RECORD),
        (7007, MapPlace.RECORD),
    ]
    assert found.translate(109) == found.translate(110) == (7008, MapPlace.END)
    with pytest.raises(NotMirrored, match=r"111 is above 110.*wait"):
        found.translate(111)
    assert [found.translate_back(at).offset for at in (6999, 7000, 7005, 7006, 7007, 7008, 7009)] == [
        100, 100, 105, 105, 108, 110, 110,
    ]  # fmt: skip


def test_a_mirror_that_has_written_nothing_ends_where_it_began() -> None:
    found = OffsetMap((), MirrorPosition(source=50, target=7))

    assert found.translate(50) == found.translate(20) == (7, MapPlace.END)
    assert found.translate_back(7) == found.translate_back(0) == (50, MapPlace.END)
    with pytest.raises(NotMirrored):
        found.translate(51)


def test_records_of_a_compressed_message_share_its_offset() -> None:
    """Translating back into the middle of such a message gives its begin: nothing else can be read from."""
    mirrored = Mirrored(counts_bytes=True)
    mirrored.commit([(1000, 1040), (1040, 1300), (1040, 1300), (1040, 1300), (1300, 1310)], 1310)
    found = mirrored.map()

    assert [found.translate(at).offset for at in (1000, 1001, 1040, 1041, 1300)] == [0, 1, 1, 4, 4]
    assert [found.translate_back(at).offset for at in range(6)] == [1000, 1040, 1040, 1040, 1300, 1310]


steps = st.lists(
    st.tuples(
        st.lists(st.tuples(st.integers(0, 3), st.integers(1, 400), st.integers(1, 4)), max_size=8), st.integers(0, 3)
    ),
    max_size=12,
)


@settings(max_examples=200, deadline=None)
@given(
    steps=steps,
    counts_bytes=st.booleans(),
    source=st.integers(0, 50),
    target=st.integers(0, 50),
    most_runs=st.sampled_from((1, 2, 5, MOST_RUNS)),
)
def test_any_map_agrees_with_a_look_at_every_record(
    steps: list[tuple[list[tuple[int, int, int]], int]], counts_bytes: bool, source: int, target: int, most_runs: int
) -> None:
    """With a few runs a segment, a map has many."""
    mirrored = Mirrored(counts_bytes=counts_bytes, most_runs=most_runs, source=source, target=target, log_end=target)
    at = source
    for messages, hole_behind in steps:
        records: list[tuple[int, int]] = []
        for hole, length, count in messages:
            at += hole
            if counts_bytes:
                records += [(at, at + length)] * count
                at += length
            else:
                records += consecutive(at, count)
                at += count
        at += hole_behind
        mirrored.commit(records, at)
    found = mirrored.map()

    positions = range(max(0, source - 2), min(at, source + 600) + 1)
    assert [found.translate(one) for one in positions] == [mirrored.expect(one) for one in positions]
    offsets = range(max(0, target - 2), mirrored.log_end + 2)
    assert [found.translate_back(one) for one in offsets] == [mirrored.expect_back(one) for one in offsets]
    for one, _ in mirrored.pairs:
        assert found.translate_back(found.translate(one).offset).offset == one


@settings(max_examples=100, deadline=None)
@given(cuts=st.lists(st.integers(1, 30), min_size=1, max_size=30), again=st.integers(0, 29))
def test_a_writer_that_goes_on_after_a_restart_writes_what_one_writes_that_ran_on(cuts: list[int], again: int) -> None:
    ran_on, restarted = Mirrored(), Mirrored()
    at = 0
    for number, count in enumerate(cuts):
        if number == again and restarted.stored:
            last = max(restarted.stored)
            restarted.writer = MapWriter(counts_bytes=False, number=last, last=restarted.stored[last])
        for one in (ran_on, restarted):
            one.commit(consecutive(at, count), at + count)
        at += count
    assert restarted.stored == ran_on.stored


def test_full_segments_never_change_and_each_transaction_writes_little() -> None:
    writer, dice, at, target = MapWriter(counts_bytes=False), random.Random(7), 0, 0
    stored: dict[int, bytes] = {}
    for _ in range(20_000):
        count = dice.randrange(1, 200)
        writer.add([Run(at, at + count, target, count)])
        at, target = at + count, target + count + 1
        for number, data in writer.take_changed().items():
            assert number >= len(stored) - 1, "a full segment was written again"
            stored[number] = data

    assert max(map(len, stored.values())) < 4 * MOST_RUNS
    assert sum(map(len, stored.values())) < 3.1 * 20_000


def test_messages_of_0_7_are_spread_over_segments() -> None:
    writer, dice, at = MapWriter(counts_bytes=True), random.Random(8), 0
    lengths = [dice.randrange(20, 2000) for _ in range(20_000)]
    for number, length in enumerate(lengths):
        writer.add([Run(at, at + length, number, 1)])
        at += length
    stored = writer.take_changed()

    assert max(map(len, stored.values())) < 5 * MOST_RUNS
    assert sum(map(len, stored.values())) < 3.1 * len(lengths)
    assert sum(len(decode_segment(data).runs) for data in stored.values()) == len(lengths)


def test_segments_whose_records_the_target_has_deleted_can_be_removed() -> None:
    mirrored = Mirrored()
    while len(mirrored.stored) < 4:
        mirrored.commit(consecutive(mirrored.source, 3), mirrored.source + 3)
    found = mirrored.map()
    starts = [read_starts(data)[1] for data in mirrored.stored.values()]

    assert [found.count_removable(at) for at in (0, starts[1] - 1, starts[1], starts[2], starts[3], 10**9)] == [
        0, 0, 1, 2, 3, 3,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        ([Run(5, 10, 5, 5), Run(9, 10, 20, 1)], "lie behind"),
        ([Run(5, 10, 5, 5), Run(10, 11, 9, 1)], "lie behind"),
        ([Run(5, 5, 5, 0)], "have records"),
        ([Run(5, 10, 5, 4)], "another number"),
        ([], "at least one run"),
    ],
)
def test_runs_that_contradict_each_other_make_no_segment(runs: list[Run], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        encode_segment(runs, counts_bytes=False)


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=60), cut=st.integers(0, 60), flip=st.integers(0, 500))
def test_any_bytes_are_a_segment_or_a_named_error(data: bytes, cut: int, flip: int) -> None:
    whole = bytearray(encode_segment([Run(5, 300, 70, 295), Run(301, 303, 366, 2)], counts_bytes=False))
    whole[flip % len(whole)] ^= 1 + flip % 255
    for one in (data, bytes(whole), bytes(whole[:cut])):
        try:
            segment = decode_segment(one)
        except CorruptMessageError:
            continue
        assert all(run.records > 0 for run in segment.runs)


def test_bytes_behind_a_segment_are_damage() -> None:
    with pytest.raises(CorruptMessageError, match="does not fit its columns"):
        decode_segment(encode_segment([Run(5, 300, 70, 295)], counts_bytes=False) + b"\0")
