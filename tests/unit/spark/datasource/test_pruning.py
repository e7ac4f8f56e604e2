# SPDX-License-Identifier: Apache-2.0
"""Filters of a query: what they leave out is never wanted, whatever they are."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from consumerd.model import BrokerId, PartitionKey, TopicPartition
from consumerd.spark.datasource.planning import OffsetRange
from consumerd.spark.datasource.pruning import begin_later, find_wanted

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
TOPICS: Final = ("a", "b")

COMPARES: Final[Mapping[type[Filter], Callable[[Any, Any], bool]]] = {
    EqualTo: operator.eq,
    EqualNullSafe: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
    In: lambda value, among: value in among,
}


def filters() -> st.SearchStrategy[Filter]:
    """Return filters on each column, of each kind, with values that the columns have and with others."""
    times = st.integers(-5, 12).map(lambda ms: EPOCH + timedelta(microseconds=500 * ms))
    of_column = {
        "topic": st.sampled_from(("a", "b", "c")),
        "partition": st.integers(-1, 3),
        "offset": st.integers(-1, 12),
        "timestamp": times,
    }
    compared = [
        st.builds(kind, st.just((column,)), st.tuples(values, values) if kind is In else values)
        for column, values in of_column.items()
        for kind in COMPARES
    ]
    return st.one_of(*compared, *(one.map(Not) for one in compared), st.just(IsNotNull(("key",))))


def holds(one: Filter, row: Mapping[str, Any]) -> bool:
    if isinstance(one, Not):
        return not holds(one.child, row)
    if isinstance(one, IsNotNull):
        return True
    return COMPARES[type(one)](row[one.attribute[0]], one.value)  # type: ignore[attr-defined]


@given(st.lists(filters(), max_size=4), st.lists(st.integers(-1, 6), min_size=10, max_size=10))
def test_no_record_that_a_query_wants_is_left_out(asked: list[Filter], times_ms: list[int]) -> None:
    """Two topics of two partitions, whose records' times are in no order: judged by the filters themselves."""
    ranges = [
        OffsetRange(partition=TopicPartition.modern(topic, partition), start=2, end=10)
        for topic in TOPICS
        for partition in (0, 1)
    ]
    wanted = find_wanted(asked)

    kept = wanted.clip(ranges)
    if wanted.first_ms is not None:
        later = [at for at, ms in enumerate(times_ms) if ms >= wanted.first_ms]
        kept = begin_later(kept, {one.partition: min(later, default=None) for one in kept})

    read = {(one.partition, at) for one in kept for at in range(one.start, one.end)}
    for one in ranges:
        for at in range(one.start, one.end):
            row = {
                "topic": one.partition.topic,
                "partition": one.partition.partition.number,
                "offset": at,
                "timestamp": EPOCH + timedelta(milliseconds=times_ms[at]),
            }
            assert (one.partition, at) in read or not all(holds(each, row) for each in asked), row
    assert read <= {(one.partition, at) for one in ranges for at in range(one.start, one.end)}


RANGES: Final = [
    OffsetRange(partition=TopicPartition.modern("a", 0), start=5, end=20),
    OffsetRange(partition=TopicPartition.modern("a", 3), start=0, end=9),
    OffsetRange(partition=TopicPartition.modern("b", 3), start=0, end=10),
]


@pytest.mark.parametrize(
    ("asked", "left"),
    [
        ([], ["a/0 [5, 20)", "a/3 [0, 9)", "b/3 [0, 10)"]),
        ([EqualTo(("partition",), 3)], ["a/3 [0, 9)", "b/3 [0, 10)"]),
        ([In(("partition",), (0, 7, None))], ["a/0 [5, 20)"]),
        ([GreaterThan(("partition",), 0), LessThan(("partition",), 3)], []),
        ([EqualTo(("topic",), "b")], ["b/3 [0, 10)"]),
        ([In(("topic",), ("a", "b")), In(("topic",), ("b", "c"))], ["b/3 [0, 10)"]),
        ([EqualTo(("offset",), 9)], ["a/0 [9, 10)", "b/3 [9, 10)"]),
        ([GreaterThanOrEqual(("offset",), 7), LessThanOrEqual(("offset",), 8)], ["a/0 [7, 9)", "a/3 [7, 9)", "b/3 [7, 9)"]),
        ([In(("offset",), (1, 8))], ["a/0 [5, 9)", "a/3 [1, 9)", "b/3 [1, 9)"]),
        ([EqualTo(("offset",), 1), EqualTo(("offset",), 2)], []),
        ([EqualTo(("offset",), None)], []),
        ([EqualTo(("partition",), 3.0), IsNull(("key",)), StringStartsWith(("topic",), "b")], RANGES),
        ([Not(EqualTo(("partition",), 3)), EqualTo(("value", "partition"), 1)], RANGES),
    ],
)  # fmt: skip
def test_what_filters_leave(asked: list[Filter], left: list[object]) -> None:
    """Partitions and bounds of offsets; what is not understood leaves everything."""
    assert [str(one) for one in find_wanted(asked).clip(RANGES)] == [str(one) for one in left]


def test_times_leave_what_comes_before_them() -> None:
    """The later of two lower bounds counts, rounded down to ms; upper ones, times without a zone and those before 1970 do not."""
    at = EPOCH + timedelta(microseconds=7_500)
    earlier = EPOCH + timedelta(milliseconds=3)

    assert find_wanted([GreaterThan(("timestamp",), earlier), GreaterThanOrEqual(("timestamp",), at)]).first_ms == 7
    assert find_wanted([In(("timestamp",), (at, earlier))]).first_ms == 3
    for one in (
        LessThan(("timestamp",), at),
        GreaterThan(("timestamp",), at.replace(tzinfo=None)),
        GreaterThan(("timestamp",), EPOCH - timedelta(days=1)),
        In(("timestamp",), (at, None)),
    ):
        assert find_wanted([one]).first_ms is None, one


def test_ranges_begin_where_their_times_do() -> None:
    """A partition without such a record is left out; one of which nothing is known is read as a whole."""
    first = {RANGES[0].partition: 7, RANGES[1].partition: None}

    assert [str(one) for one in begin_later(RANGES, first)] == ["a/0 [7, 20)", "b/3 [0, 10)"]
    assert begin_later(RANGES[:1], {RANGES[0].partition: 1}) == RANGES[:1]
    assert begin_later(RANGES[:1], {RANGES[0].partition: 20}) == []


def test_ranges_of_kafka_0_7_begin_with_a_message_whatever_a_filter_says() -> None:
    """An offset of a filter may be inside of one. Filters on brokers leave partitions out, but none of later releases."""
    ranges = [
        OffsetRange(
            partition=TopicPartition("a", PartitionKey(0, None if broker is None else BrokerId(broker))),
            start=5,
            end=20,
        )
        for broker in (0, 1, None)
    ]
    between = [GreaterThan(("offset",), 7), LessThan(("offset",), 12)]

    assert [str(one) for one in find_wanted(between).clip(ranges)] == ["a/0-0 [5, 12)", "a/1-0 [5, 12)", "a/0 [8, 12)"]
    assert [str(one) for one in find_wanted([EqualTo(("broker",), 1)]).clip(ranges)] == ["a/1-0 [5, 20)", "a/0 [5, 20)"]
