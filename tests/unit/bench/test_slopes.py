# SPDX-License-Identifier: Apache-2.0
"""Rates are slopes between the same marks for everybody, however a reader tells how far it is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.slopes import Marks, TooFewRecords, slope_between, spread_of

MARKS = Marks(low=4_000, high=16_000)


def steady(rate: float, *, start: float, until: int, step: int) -> list[tuple[float, int]]:
    """Counts that grow evenly from ``start`` on."""
    return [(start + count / rate, count) for count in range(step, until + 1, step)]


def test_warm_up_before_the_lower_mark_does_not_count() -> None:
    """A reader that was slow at first is as fast as it is later."""
    slow = [(10.0 + count / 100, count) for count in range(0, 4_001, 100)]
    fast = [(50.0 + count / 1000, count + 4_000) for count in range(100, 13_000, 100)]
    assert slope_between(slow + fast, MARKS).records_per_s == pytest.approx(1000)


def test_leaps_are_worth_no_more_than_what_trickles() -> None:
    """Published files: 5,000 records every 5 s are 1,000 a second, wherever the marks lie between."""
    leaps = [(100.0 + 5 * number, 5_000 * number) for number in range(1, 5)]
    found = slope_between(leaps, MARKS)
    assert found.records_per_s == pytest.approx(1000)
    assert (found.low, found.high) == (5_000, 16_000)


def test_a_count_that_stays_is_known_from_its_first_moment() -> None:
    """Reading a counter more often changes nothing."""
    leaps = [(float(second), 2_000 * (second // 2)) for second in range(2, 20)]
    assert slope_between(leaps, MARKS).records_per_s == pytest.approx(1000)


def test_who_does_not_come_to_the_upper_mark_is_measured_up_to_where_it_came() -> None:
    """From the same part of it on."""
    found = slope_between(steady(100, start=5.0, until=8_000, step=50), MARKS)
    assert (found.low, found.high) == (2_000, 8_000)
    assert found.records_per_s == pytest.approx(100)


@pytest.mark.parametrize("series", [[], [(1.0, 0)], [(1.0, 5)], [(1.0, 20_000)], [(1.0, 5_000), (1.0, 20_000)]])
def test_no_slope_without_two_moments(series: list[tuple[float, int]]) -> None:
    """A single leap over both marks says nothing of speed."""
    with pytest.raises(TooFewRecords):
        slope_between(series, MARKS)


@given(
    rate=st.floats(1, 1e6),
    start=st.floats(0, 1e4),
    step=st.integers(1, 3_000),
    extra=st.integers(0, 50_000),
)
def test_an_even_series_has_its_own_rate(rate: float, start: float, step: int, extra: int) -> None:
    """Whatever its steps, its beginning, and what is read beyond the marks."""
    found = slope_between(steady(rate, start=start, until=16_000 + step + extra, step=step), MARKS)
    assert found.records_per_s == pytest.approx(rate, rel=1e-3)
    assert found.low <= max(MARKS.low, step)
    assert found.high == MARKS.high
    assert found.seconds == pytest.approx((found.high - found.low) / rate, rel=1e-3)


def test_marks_shrink_with_larger_records() -> None:
    """As many bytes, in fewer records."""
    assert Marks(low=4_000, high=16_000).shrunk(4) == Marks(low=1_000, high=4_000)


@pytest.mark.parametrize(("low", "high"), [(0, 1), (2, 2), (3, 2)])
def test_marks_are_in_order(low: int, high: int) -> None:
    """Nothing is divided by nothing."""
    with pytest.raises(ValueError, match="expected 0 < low < high"):
        Marks(low=low, high=high)


def test_spread() -> None:
    """The median and the ends."""
    spread = spread_of([3.0, 1.0, 2.0])
    assert (spread.median, spread.least, spread.most, spread.rounds) == (2.0, 1.0, 3.0, 3)
