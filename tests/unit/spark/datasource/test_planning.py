# SPDX-License-Identifier: Apache-2.0
"""Which ranges a read consists of, and how they are divided: nothing twice, nothing left out."""

from __future__ import annotations

from itertools import groupby, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumerd.errors import ConfigError, OffsetError, OffsetOutOfRange
from consumerd.model import BrokerId, LogRange, PartitionKey, TopicPartition
from consumerd.spark.datasource.planning import Lost, OffsetRange, divide_ranges, fit_ranges, limit_ranges, plan_ranges

T0, T1, T2 = (TopicPartition.modern("t", number) for number in range(3))


def of(partition: TopicPartition, start: int, end: int) -> OffsetRange:
    return OffsetRange(partition=partition, start=start, end=end)


@st.composite
def several_ranges(draw: st.DrawFn) -> list[OffsetRange]:
    sizes = draw(st.lists(st.integers(1, 3000), max_size=8))
    return [
        of(TopicPartition.modern("t", at), start := draw(st.integers(0, 50)), start + size)
        for at, size in enumerate(sizes)
    ]


def test_ranges_lie_between_two_sets_of_offsets() -> None:
    """In the order of partitions, and without what is empty."""
    assert plan_ranges({T1: 5, T0: 7, T2: 0}, {T2: 0, T1: 9, T0: 8}) == [of(T0, 7, 8), of(T1, 5, 9)]


def test_an_end_below_its_start_is_named() -> None:
    """Rather than that nothing is read."""
    with pytest.raises(OffsetError, match="t/1: the end, offset 4, lies below the start, offset 5"):
        plan_ranges({T1: 5}, {T1: 4})


@given(several_ranges(), st.none() | st.integers(1, 40), st.none() | st.integers(1, 1000))
def test_parts_are_the_whole(ranges: list[OffsetRange], min_partitions: int | None, most: int | None) -> None:
    """Each partition's parts follow each other from its start to its end, are as many as asked for, and small enough."""
    parts = divide_ranges(ranges, min_partitions=min_partitions, max_records=most)
    for (_, group), whole in zip(groupby(parts, key=lambda part: part.partition), ranges, strict=True):
        own = list(group)
        assert (own[0].start, own[-1].end) == (whole.start, whole.end)
        assert all(before.end == after.start for before, after in pairwise(own))
    assert all(len(part) >= 1 for part in parts)
    if most is not None:
        assert all(len(part) <= most for part in parts)
    if min_partitions is not None:
        assert len(parts) >= min(min_partitions, sum(map(len, ranges)))


L0, L1 = (TopicPartition("t", PartitionKey(number, BrokerId(0))) for number in range(2))


@given(
    st.sets(st.integers(1, 99), max_size=8),
    st.none() | st.integers(1, 20),
    st.none() | st.integers(1, 200),
)
def test_ranges_of_kafka_0_7_are_divided_at_segments_alone(
    segments: set[int], min_partitions: int | None, most: int | None
) -> None:
    """As far as there are any: another offset may be inside of a message."""
    ranges = [of(L0, 10, 90), of(L1, 5, 20), of(T0, 0, 10)]
    known = {L0: sorted(segments)}
    parts = divide_ranges(ranges, min_partitions=min_partitions, max_records=most, segments=known)
    first = [part for part in parts if part.partition == L0]
    inner = {one for one in segments if 10 < one < 90}
    assert {part.start for part in first} <= {10} | inner
    assert [part.end for part in first] == [*(part.start for part in first[1:]), 90]
    assert [of(L1, 5, 20)] == [part for part in parts if part.partition == L1]
    assert len(parts) >= min(min_partitions or 3, len(inner) + 1 + 1 + 10)
    assert len(first) >= min(-(-80 // (most or 80)), len(inner) + 1)


def test_parts_of_kafka_0_7_are_as_even_as_segments_allow() -> None:
    """The segment nearest to an even share, if it leaves enough for the other parts."""
    segments = {L0: [0, 300, 600, 990, 1000]}
    assert divide_ranges([of(L0, 0, 1000)], min_partitions=2, segments=segments) == [of(L0, 0, 600), of(L0, 600, 1000)]
    assert [part.start for part in divide_ranges([of(L0, 0, 1000)], max_records=1, segments=segments)] == [
        0,
        300,
        600,
        990,
    ]


def test_the_largest_ranges_are_divided_first() -> None:
    """So that tasks take about as long as each other."""
    parts = divide_ranges([of(T0, 0, 10), of(T1, 0, 1000)], min_partitions=6)
    assert [len(part) for part in parts] == [10, 200, 200, 200, 200, 200]


def test_without_limits_each_range_is_one_task() -> None:
    """As many Spark partitions as Kafka partitions."""
    ranges = [of(T0, 3, 4), of(T1, 0, 1 << 40)]
    assert divide_ranges(ranges) == ranges
    assert divide_ranges([], min_partitions=3) == []


@pytest.mark.parametrize(
    ("limits", "named"),
    [
        ({"max_records": 1 << 19}, "maxRecordsPerPartition: that makes 2,097,152 Spark"),
        ({"min_partitions": 1_000_001}, "minPartitions"),
    ],
)
def test_more_parts_than_can_be_planned_are_refused(limits: dict[str, int], named: str) -> None:
    """The driver would run out of memory over offsets that are far apart, and say nothing of why."""
    with pytest.raises(ConfigError, match=named):
        divide_ranges([of(T0, 0, 1 << 40)], **limits)
    assert len(divide_ranges([of(T0, 0, 7)], min_partitions=1 << 60)) == 7


@given(several_ranges(), st.integers(1, 5000))
def test_a_limit_shares_by_size(ranges: list[OffsetRange], most: int) -> None:
    """No range waits for ever, and no more are taken than allowed unless each has its one."""
    limited = limit_ranges(ranges, most)
    assert [one.start for one in limited] == [one.start for one in ranges]
    assert all(1 <= len(one) <= len(whole) for one, whole in zip(limited, ranges, strict=True))
    assert sum(map(len, limited)) <= max(most, 0) + len(ranges)
    if sum(map(len, ranges)) <= most:
        assert limited == ranges


def test_what_the_logs_hold_is_kept() -> None:
    """Nothing is reported where nothing is missing."""
    kept = [of(T0, 5, 9)]
    assert fit_ranges(kept, {T0: LogRange(5, 9)}, fail_on_data_loss=True) == (kept, [])


@pytest.mark.parametrize(
    ("log", "offset"), [(LogRange(6, 9), 5), (LogRange(0, 8), 9), (LogRange(20, 30), 5), (LogRange(0, 2), 9)]
)
def test_what_is_lost_is_an_error_by_name(log: LogRange, offset: int) -> None:
    """On the driver, before anything is read."""
    with pytest.raises(OffsetOutOfRange, match=rf"t/0: offset {offset} is outside"):
        fit_ranges([of(T0, 5, 9)], {T0: log}, fail_on_data_loss=True)


@pytest.mark.parametrize(
    ("log", "kept", "lost"),
    [
        (LogRange(6, 9), [of(T0, 6, 9)], [(5, 6)]),
        (LogRange(0, 8), [of(T0, 5, 8)], [(8, 9)]),
        (LogRange(6, 8), [of(T0, 6, 8)], [(5, 6), (8, 9)]),
        (LogRange(20, 30), [], [(5, 9)]),
        (LogRange(0, 2), [], [(5, 9)]),
    ],
)
def test_or_what_is_left_out_is_reported(log: LogRange, kept: list[OffsetRange], lost: list[tuple[int, int]]) -> None:
    """With failOnDataLoss=false every offset is read or reported."""
    ranges, found = fit_ranges([of(T0, 5, 9)], {T0: log}, fail_on_data_loss=False)
    assert (ranges, [(one.start, one.end) for one in found]) == (kept, lost)
    assert all(isinstance(one, Lost) and one.partition == T0 for one in found)
