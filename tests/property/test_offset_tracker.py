# SPDX-License-Identifier: Apache-2.0
"""The tracker against random histories: its invariants hold after every step, refused steps included."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumerd.errors import OffsetError
from consumerd.offsets.tracker import OffsetTracker

pytestmark = pytest.mark.records

OFFSETS = st.integers(0, 60)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("deliver"), st.integers(0, 20)),
        st.tuples(st.just("deliver_at"), st.tuples(OFFSETS, OFFSETS)),
        st.tuples(st.just("acknowledge"), OFFSETS),
        st.tuples(st.just("rewind"), OFFSETS),
        st.tuples(st.just("commit"), st.none()),
    ),
    max_size=40,
)


@given(start=OFFSETS, committed=st.none() | OFFSETS, steps=STEPS)
def test_nothing_safe_goes_back_and_only_what_is_safe_is_offered(start, committed, steps):
    """Whatever a feed, a sink and a store do, a commit is never ahead of the sink and never goes back."""
    tracker = OffsetTracker(start, committed)
    safe = start
    for step, argument in steps:
        before = (tracker.delivered, tracker.acknowledged, tracker.committed)
        with suppress(OffsetError):
            if step == "deliver":
                offset = tracker.delivered + argument // 3  # a hole before it
                tracker.offer((offset, 1000 + offset) if argument else None)
                tracker.deliver(tracker.delivered, tracker.delivered + argument)
            elif step == "deliver_at":
                tracker.offer(None)
                tracker.deliver(*argument)
                assert argument[0] == before[0]
            elif step == "acknowledge":
                tracker.acknowledge(argument)
                safe = max(safe, argument)
            elif step == "rewind":
                tracker.rewind(argument)
            elif (pending := tracker.pending) is not None:
                tracker.commit(pending)
                assert tracker.pending is None
        assert start <= tracker.acknowledged <= tracker.delivered
        assert safe == tracker.acknowledged
        # records carry their offsets as timestamps: an age that is told is that of a record that waits
        assert tracker.oldest_ms in (None, -1) or tracker.oldest_ms >= 1000 + safe
        assert step == "rewind" or before[0] <= tracker.delivered
        assert before[2] is None or before[2] <= tracker.committed
        assert tracker.pending in (None, tracker.acknowledged)
        assert tracker.pending is None or tracker.committed is None or tracker.pending > tracker.committed
