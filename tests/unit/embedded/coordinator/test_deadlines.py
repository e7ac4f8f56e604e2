# SPDX-License-Identifier: Apache-2.0
"""Deadlines of many groups: none is missed, and moving one back costs nothing."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from consumerd.embedded.coordinator.deadlines import Deadlines


def test_the_nearest_deadline_is_next() -> None:
    """What the timer waits for."""
    deadlines = Deadlines()
    empty = deadlines.next
    deadlines.set("a", 5)
    deadlines.set("b", 3)

    assert (math.inf, 3) == (empty, deadlines.next)
    assert (["b"], ["a"], []) == (deadlines.pop_due(4), deadlines.pop_due(5), deadlines.pop_due(99))


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 20) | st.just(math.inf), st.integers(0, 3)), max_size=40)
)
def test_every_deadline_is_told_once_and_never_before_its_time(steps: list[tuple[str, float, int]]) -> None:
    """Whatever is set and reset meanwhile: against a plain dictionary."""
    deadlines, plain, now = Deadlines(), dict[str, float](), 0.0
    for key, when, passing in steps:
        deadlines.set(key, when)
        plain[key] = when
        assert deadlines.next <= min(plain.values())
        now += passing
        due = sorted(key for key, when in plain.items() if when <= now)
        assert due == sorted(deadlines.pop_due(now))
        for key in due:
            plain[key] = math.inf
