# SPDX-License-Identifier: Apache-2.0
"""What the demo says of its group holds: it goes on only when every partition has one owner that is ready."""

from __future__ import annotations

import pytest

from consumerd.demo.group_watch import is_shared
from consumerd.demo.members import MemberStatus
from consumerd.model import PartitionKey, TopicPartition

A, B, C = (
    TopicPartition(topic, PartitionKey.parse(name))
    for topic, name in [("orders", "0"), ("orders", "1-0"), ("clicks", "0")]
)


def status(*owned: TopicPartition, ready: bool = True) -> MemberStatus:
    return MemberStatus(ready=ready, owned=frozenset(owned), acknowledged={})


def test_each_partition_by_one_member_that_is_ready_is_shared() -> None:
    """In any order."""
    assert is_shared([status(C, A), status(B)], [A, B, C])


@pytest.mark.parametrize(
    "statuses",
    [
        [status(A), status(B)],
        [status(A, C), status(B, C)],
        [status(A, B, C), status()],
        [status(A, C), status(B, ready=False)],
        [status(A, B, C), None],
        [],
    ],
    ids=["one without owner", "one with two owners", "an idle member", "not ready", "not heard of", "nobody"],
)
def test_anything_less_is_not(statuses: list[MemberStatus | None]) -> None:
    """The next disturbance would come too early."""
    assert not is_shared(statuses, [A, B, C])
