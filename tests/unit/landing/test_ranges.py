# SPDX-License-Identifier: Apache-2.0
"""Sets of offsets, against sets of numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumerd.landing.ranges import RangeSet, Span, union

spans = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=8)


def offsets(ranges: RangeSet) -> set[int]:
    return {offset for start, end in ranges for offset in range(start, end)}


def named(pairs: list[tuple[int, int]]) -> set[int]:
    return {offset for start, end in pairs for offset in range(start, end)}


@given(spans, spans)
def test_algebra_is_that_of_sets(left: list[tuple[int, int]], right: list[tuple[int, int]]) -> None:
    """What a table covers is added, compared and subtracted all the time: it must be exact."""
    a, b = RangeSet.of(left), RangeSet.of(right)

    assert named(left) == offsets(a)
    assert named(left) | named(right) == offsets(a | b) == offsets(union([a, b]))
    assert named(left) & named(right) == offsets(a & b)
    assert named(left) - named(right) == offsets(a - b)
    assert len(named(left)) == a.size
    assert bool(named(left)) == bool(a)


@given(spans, spans)
def test_results_are_normal(left: list[tuple[int, int]], right: list[tuple[int, int]]) -> None:
    """Equal sets are equal values, so that plans of the same content have the same id."""
    a, b = RangeSet.of(left), RangeSet.of(right)

    for result in (a, a | b, a & b, a - b):
        assert RangeSet.of(result.spans) == result
    assert RangeSet.parse(a.encode()) == a


@given(spans, st.integers(-1, 41))
def test_contains(pairs: list[tuple[int, int]], offset: int) -> None:
    """Membership finds the one span that may hold an offset."""
    assert (offset in named(pairs)) == (offset in RangeSet.of(pairs))


def test_what_is_no_offset_is_in_no_set() -> None:
    """A name is not an offset."""
    assert "1" not in RangeSet.of([(0, 5)])


@pytest.mark.parametrize("value", [None, 3, "ab", [1], [[1]], [[1, "2"]], [[True, 2]], [[1, 2, 3]]])
def test_parse_refuses_what_it_did_not_write(value: object) -> None:
    """A damaged commit is told from an empty one."""
    with pytest.raises(ValueError, match="expected a list of"):
        RangeSet.parse(value)


def test_span_says_what_it_is() -> None:
    """Messages show half-open ranges as such."""
    assert "[3, 7)" == str(Span(3, 7))
    assert 4 == Span(3, 7).size
