# SPDX-License-Identifier: Apache-2.0
"""Judgement if groups may move to the target of a mirror."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from consumerd.daemon.mirror import describe_mirror
from consumerd.daemon.status import MirrorStatus, MirrorTopicStatus, Moment, PartitionReport

DONE = PartitionReport(
    topic="orders",
    partition="0",
    sink="new",
    state="running",
    reason=None,
    since=Moment(ago_s=1, at="", timestamp_s=1),
    position=100,
    acknowledged=100,
    committed=90,
    high_watermark=100,
    lag=0,
    lag_seconds=0.0,
    records_per_second=0.0,
)


def judge(*partitions: PartitionReport, **fields: Any) -> MirrorStatus:
    given: dict[str, Any] = {"mirrors": {"new"}, "not_ready": (), "group_partitions": len(partitions), "absent": ()}
    found = describe_mirror(partitions, **{**given, **fields})
    assert found is not None
    return found


def test_it_is_safe_when_all_that_was_read_is_in_the_target() -> None:
    """A commit to the source's store may come later: the target has the mirror's own position."""
    found = judge(DONE, replace(DONE, topic="clicks"))
    topics = tuple(MirrorTopicStatus(topic=name, partitions=1, lag=0) for name in ("clicks", "orders"))
    assert found == MirrorStatus(safe_to_cut_over=True, unsafe=(), topics=topics)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"lag": 7}, "orders/0 is 7 behind"),
        ({"acknowledged": 80}, "orders/0 is 20 behind"),
        ({"acknowledged": 80, "lag": 7}, "orders/0 is 27 behind"),
        ({"lag": None}, "lag unknown: orders/0"),
        ({"acknowledged": None}, "lag unknown: orders/0"),
        ({"state": "stopped", "reason": "corrupt at 5"}, "orders/0 is stopped: corrupt at 5"),
        ({"state": "failing"}, "orders/0 is failing"),
        ({"state": "starting"}, "orders/0 is starting"),
    ],
)
def test_a_partition_that_is_not_all_there_is_told(change: dict[str, Any], reason: str) -> None:
    """What the last transaction has not committed is not there, although the lag of delivery is 0."""
    found = judge(DONE, replace(DONE, **change))
    assert (False, (reason,)) == (found.safe_to_cut_over, found.unsafe)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"group_partitions": 4}, "3 partitions of the group are not owned here: look at the other members, too"),
        ({"not_ready": ("no session",)}, "not ready: no session"),
        ({"absent": ("clicks",)}, "cannot be read: clicks"),
        ({"mirrors": {"other"}}, "this process owns no partition of it"),
    ],
)
def test_partitions_that_cannot_be_seen_are_told(fields: dict[str, Any], reason: str) -> None:
    """Nobody must move a group on the word of one member of several."""
    found = judge(DONE, **fields)
    assert (False, (reason,)) == (found.safe_to_cut_over, found.unsafe)


def test_thousands_of_partitions_make_few_lines() -> None:
    """The page and the log show them."""
    stopped = [replace(DONE, partition=str(number), state="stopped", reason="x") for number in range(100)]
    behind = [replace(DONE, partition=str(number), lag=1) for number in range(100)]
    found = judge(*stopped, *behind)
    assert len(found.unsafe) == 7
    assert found.unsafe[5] == "95 more partitions stopped"
    assert found.unsafe[6].endswith("and 95 more")
    assert found.topics == (MirrorTopicStatus(topic="orders", partitions=200, lag=100),)


def test_lag_of_a_topic_is_unknown_with_that_of_a_partition() -> None:
    assert judge(DONE, replace(DONE, lag=None)).topics[0].lag is None


def test_process_without_a_mirror_has_no_verdict() -> None:
    assert describe_mirror([DONE], mirrors=(), not_ready=(), group_partitions=1, absent=()) is None
