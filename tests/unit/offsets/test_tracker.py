# SPDX-License-Identifier: Apache-2.0
"""The tracker: what may be committed, and what may never go back."""

import pytest

from consumerd.errors import OffsetError
from consumerd.offsets.tracker import OffsetTracker


def test_only_the_acknowledged_position_is_offered_for_a_commit():
    """A commit ahead of the sink's acknowledgement loses records in a crash."""
    tracker = OffsetTracker(10, committed=10)
    tracker.deliver(10, 20)
    assert tracker.pending is None
    assert tracker.unacknowledged
    tracker.acknowledge(15)
    assert tracker.pending == 15


def test_a_committed_position_is_not_offered_again():
    """Unchanged commits are nothing but load on ZooKeeper."""
    tracker = OffsetTracker(10, committed=None)
    assert tracker.pending == 10
    tracker.commit(10)
    assert tracker.pending is None


def test_a_committed_position_ahead_is_not_moved_back():
    """Another member consumed further than our sink has landed: nothing is committed until we have passed it."""
    tracker = OffsetTracker(10, committed=50)
    tracker.deliver(10, 40)
    tracker.acknowledge(40)
    assert tracker.pending is None
    tracker.deliver(40, 60)
    tracker.acknowledge(60)
    assert tracker.pending == 60


@pytest.mark.parametrize(("start", "end"), [(9, 20), (11, 20), (10, 9)])
def test_a_hole_a_repetition_or_a_step_back_is_refused(start, end):
    """Positions are contiguous: a batch that does not follow the last one must not move them."""
    tracker = OffsetTracker(10)
    with pytest.raises(OffsetError):
        tracker.deliver(start, end)
    assert tracker.delivered == 10


def test_an_older_acknowledgement_changes_nothing():
    """A sink that buffers answers a write with the position before it."""
    tracker = OffsetTracker(10)
    tracker.deliver(10, 20)
    assert tracker.acknowledge(20)
    assert not tracker.acknowledge(12)
    assert tracker.acknowledged == 20


def test_an_acknowledgement_beyond_what_was_delivered_moves_delivery_on():
    """The sink may hold more from an earlier writer: those records need not be read again."""
    tracker = OffsetTracker(10)
    tracker.acknowledge(30)
    assert (tracker.acknowledged, tracker.delivered) == (30, 30)


def test_a_rewind_goes_back_to_what_is_safe_and_no_further():
    """A sink may drop what it has not acknowledged; what it has acknowledged stays committed."""
    tracker = OffsetTracker(10)
    tracker.deliver(10, 30)
    tracker.acknowledge(20)
    tracker.rewind(20)
    assert tracker.delivered == 20
    with pytest.raises(OffsetError):
        tracker.rewind(19)


def test_lag_counts_from_the_delivered_position():
    """A sink that keeps a large open file is not behind: what it has been given is no longer waiting in the log."""
    tracker = OffsetTracker(10)
    tracker.deliver(10, 18)
    assert tracker.acknowledged == 10
    assert tracker.lag(20) == 2


def test_lag_is_unknown_without_a_log_end_and_never_negative():
    """A lag of 0 for "unknown" is the lie that users of such daemons complain about."""
    tracker = OffsetTracker(10)
    assert tracker.lag(None) is None
    assert tracker.lag(15) == 5
    assert tracker.lag(3) == 0


def test_a_negative_start_is_refused():
    """Real stores hold -1 for "none" now and then; it must not become a position."""
    with pytest.raises(OffsetError):
        OffsetTracker(-1)


def test_an_older_answer_does_not_undo_a_newer_commit():
    """Answers are noted in any order."""
    tracker = OffsetTracker(0)
    tracker.commit(20)
    tracker.commit(10)
    assert tracker.committed == 20
    assert "committed=20" in repr(tracker)
    assert tracker.start == 0


def deliver(tracker: OffsetTracker, end: int, record: tuple[int, int] | None) -> None:
    tracker.offer(record)
    tracker.deliver(tracker.delivered, end)


def test_the_oldest_record_is_the_first_that_is_not_acknowledged():
    """Its age is the lag in seconds."""
    tracker = OffsetTracker(0)
    before = tracker.oldest_ms
    deliver(tracker, 10, (0, 1000))
    deliver(tracker, 20, (12, 2000))  # compaction left a hole before it
    first = tracker.oldest_ms
    tracker.acknowledge(10)
    second = tracker.oldest_ms
    tracker.acknowledge(20)

    assert [before, first, second, tracker.oldest_ms] == [None, 1000, 2000, None]


def test_a_record_that_a_sink_does_not_take_is_the_oldest():
    """A sink that hangs in a write keeps it waiting."""
    tracker = OffsetTracker(0)
    tracker.offer((0, 1000))

    assert tracker.oldest_ms == 1000


def test_offsets_without_records_have_no_age():
    """Control records and compaction holes are acknowledged with the next file; nobody waits for them."""
    tracker = OffsetTracker(0)
    tracker.offer((0, 1000))  # refused by the sink, and passed over
    deliver(tracker, 10, None)

    assert tracker.unacknowledged
    assert tracker.oldest_ms is None


def test_an_age_in_the_middle_of_a_batch_is_unknown():
    """Only its first record was looked at: the time of another one would be guessed."""
    tracker = OffsetTracker(0)
    deliver(tracker, 10, (0, 1000))
    tracker.acknowledge(5)

    assert tracker.oldest_ms == -1


def test_a_rewind_keeps_the_age_of_what_is_read_again():
    """A full disk drops the open file; its records are as old as before."""
    tracker = OffsetTracker(0)
    deliver(tracker, 10, (0, 1000))
    deliver(tracker, 20, (10, 2000))
    tracker.rewind(10)
    kept = tracker.oldest_ms
    tracker.acknowledge(10)
    waiting = tracker.oldest_ms
    tracker.rewind(15)

    assert (kept, waiting) == (1000, 2000)
    assert tracker.oldest_ms == 2000
    tracker.acknowledge(15)
    assert tracker.oldest_ms is None


def test_the_batches_that_an_acknowledgement_completes_are_told():
    """The delay from append to landed is measured by them; without a timestamp there is none."""
    tracker = OffsetTracker(0)
    deliver(tracker, 10, (0, 1000))
    deliver(tracker, 20, (10, -1))
    deliver(tracker, 30, (20, 3000))

    assert tracker.timestamps_below(9) == []
    assert tracker.timestamps_below(29) == [1000]
    assert tracker.timestamps_below(30) == [1000, 3000]


def test_a_slow_file_does_not_keep_a_timestamp_for_each_of_its_batches():
    """A file of a minute may hold thousands of batches, in each of a thousand partitions."""
    tracker = OffsetTracker(0)
    for number in range(10_000):
        deliver(tracker, number + 1, (number, 1000 + number))

    assert len(tracker.timestamps_below(10_000)) <= 128
    assert tracker.oldest_ms == 1000
    tracker.acknowledge(9_999)
    assert tracker.oldest_ms in (-1, 10_999)
    tracker.acknowledge(10_000)
    assert tracker.oldest_ms is None
