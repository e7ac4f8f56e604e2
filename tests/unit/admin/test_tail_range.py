# SPDX-License-Identifier: Apache-2.0
"""The last offsets of a log, as they are found batch by batch; starts that a log does not hold."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumerd.admin.tail_range import OutsideLog, RecentOffsets, check_start
from consumerd.model import LogRange, TopicPartition
from consumerd.wire.records import RecordBatch

P = TopicPartition.modern("orders", 3)


def batch_of(offsets: array[int], next_offsets: array[int] | None = None) -> RecordBatch:
    return RecordBatch(
        partition=P, start=0, next_offset=1 << 40, offsets=offsets, next_offsets=next_offsets or array("q")
    )


@given(st.lists(st.lists(st.integers(0, 5), max_size=30), max_size=10), st.integers(1, 40))
def test_the_first_of_the_last_offsets_is_found(steps: list[list[int]], keep: int) -> None:
    """However the offsets are spread over batches, and whichever are missing."""
    recent = RecentOffsets(keep)
    every: list[int] = []
    at = 0
    for batch in steps:
        offsets = array("q")
        for step in batch:
            at += step + 1
            offsets.append(at)
        recent.add(batch_of(offsets))
        every += offsets
    assert recent.count == len(every)
    assert recent.find_first() == (every[-keep] if len(every) >= keep else None)


def test_consecutive_offsets_take_no_memory() -> None:
    """A million records are one run."""
    recent = RecentOffsets(1_000_000)
    for start in range(0, 2_000_000, 1000):
        recent.add(batch_of(array("q", range(start, start + 1000))))
    assert recent.find_first() == 1_000_000
    assert recent._runs == [(0, 2_000_000)]


def test_offsets_that_count_bytes_are_never_a_run() -> None:
    """60 records over 60 bytes are none of 0, 1, ... 59: only 0 and 59 are starts of messages."""
    recent = RecentOffsets(5)
    recent.add(batch_of(array("q", [*[0] * 59, 59]), array("q", [*[59] * 59, 80])))
    assert recent.count == 60
    assert recent.find_first() == 0


@pytest.mark.parametrize("offset", [20, 40, 60])
def test_a_start_in_the_log_or_at_its_end_is_taken(offset: int) -> None:
    """At the end the next record is waited for."""
    assert check_start(P, offset, LogRange(20, 60)) == offset


@pytest.mark.parametrize("offset", [0, 19, 61])
def test_a_start_outside_the_log_is_told_with_its_ends(offset: int) -> None:
    """And with what to write instead."""
    with pytest.raises(OutsideLog) as refused:
        check_start(P, offset, LogRange(20, 60))
    assert str(refused.value) == (
        f"orders/3: offset {offset} is outside the log: log_start_offset is 20, log_end_offset is 60; use --from 20, "
        "EARLIEST or LATEST, or --partition for those that hold it"
    )
