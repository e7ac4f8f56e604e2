# SPDX-License-Identifier: Apache-2.0
"""The history of events: what is one row, and what is dropped."""

from __future__ import annotations

from consumerd.daemon.events import EventHistory
from consumerd.model import TopicPartition
from tests.support.clocks import ManualClock


def _partition(number: int) -> TopicPartition:
    return TopicPartition.modern("orders", number)


def test_what_is_told_again_is_counted_and_comes_first() -> None:
    """The row says when it was told first, and how often."""
    clock = ManualClock(0.0)
    history = EventHistory(20, clock)
    for clock.seconds in (0.0, 60.0, 120.0):
        history.note("delivery failing", "refused", _partition(0))
        history.note("zookeeper", f"session is {clock.seconds}")
    history.note("delivery failing", "refused", _partition(1))
    clock.seconds = 130.0

    newest = next(iter(history.describe()))
    assert (newest.what, newest.count, newest.partitions) == ("orders/0, orders/1: refused", 4, 2)
    assert (newest.ago_s, newest.first_ago_s) == (10.0, 130.0)


def test_what_is_told_again_much_later_is_another_event() -> None:
    """Two outages of one night are two rows."""
    clock = ManualClock(0.0)
    history = EventHistory(20, clock)
    for clock.seconds in (0.0, 601.0):
        history.note("delivery failing", "refused", _partition(0))

    assert [one.count for one in history.describe()] == [1, 1]


def test_no_kind_pushes_all_others_out() -> None:
    """The oldest of the most frequent kind goes."""
    history = EventHistory(20, ManualClock(0.0))
    history.note("gap", "[5, 9) retention", _partition(3))
    for number in range(1000):
        history.note("position reset", f"from {number} to 0", _partition(number))

    kinds = [one.kind for one in history.describe()]
    assert (len(kinds), kinds.count("gap"), kinds[-1]) == (20, 1, "gap")


def test_text_from_elsewhere_is_shown_in_part_and_made_printable() -> None:
    """Names of brokers and members may be anything."""
    history = EventHistory(20, ManualClock(0.0))
    history.note("zookeeper", "\x1b[31m" + "x" * 5000)

    (event,) = history.describe()
    assert len(event.what) < 1010
    assert "\x1b" not in event.what
