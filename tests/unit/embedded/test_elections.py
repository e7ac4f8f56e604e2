# SPDX-License-Identifier: Apache-2.0
"""Elections, state by state: who leads, who is in sync, and which epoch it takes."""

from __future__ import annotations

import pytest

from consumerd.embedded.elections import assign_replicas, next_state, prefer_first
from consumerd.model import BrokerId
from consumerd.zk.znodes import PartitionStateNode

A, B, C, STRANGER = BrokerId(0), BrokerId(1), BrokerId(2), BrokerId(9)
KNOWN = frozenset({A, B, C})


def state(leader: BrokerId | None, epoch: int, *isr: BrokerId) -> PartitionStateNode:
    return PartitionStateNode(leader=leader, leader_epoch=epoch, isr=isr, controller_epoch=3)


@pytest.mark.parametrize(
    ("before", "live", "after"),
    [
        pytest.param(state(A, 4, A, B), {A, B}, None, id="nothing has changed"),
        pytest.param(state(A, 4, A, B), {B}, state(B, 5, B), id="the leader has died"),
        pytest.param(state(A, 4, A, B), {A}, state(A, 5, A), id="a follower has died"),
        pytest.param(state(B, 5, B), {A, B}, state(B, 5, B, A), id="a follower has caught up"),
        pytest.param(state(A, 4, A), {B}, state(None, 5, A), id="the only replica in sync has died"),
        pytest.param(state(None, 5, A), {B}, None, id="no unclean election"),
        pytest.param(state(None, 5, A), {A, B}, state(A, 6, A), id="the last replica is back"),
        pytest.param(state(None, 1), {B}, state(B, 2, B), id="a state that names no replica"),
        pytest.param(state(STRANGER, 1, STRANGER), {A, B}, state(A, 2, A), id="a leader that was never here"),
        pytest.param(state(A, 1, A, STRANGER, B), {A, B}, None, id="a replica that was never here"),
        pytest.param(state(A, 2**31 - 1, A, B), {B}, state(B, 2**31 - 1, B), id="the last epoch of 32 bits"),
    ],
)
def test_the_next_state_is_the_one_that_kafka_writes(
    before: PartitionStateNode, live: set[BrokerId], after: PartitionStateNode | None
) -> None:
    """The controller's writes take an epoch, the leader's keep it; nothing is written without need."""
    assert after == next_state(before, (A, B), live=live, known=KNOWN)


def test_a_new_controller_leaves_dead_followers_to_the_leader() -> None:
    """The leader's write keeps the leader epoch; a dead leader is the controller's matter all the same."""
    assert state(A, 4, A) == next_state(state(A, 4, A, B), (A, B), live={A}, known=KNOWN, failed_over=True)
    assert state(B, 5, B) == next_state(state(A, 4, A, B), (A, B), live={B}, known=KNOWN, failed_over=True)


def test_a_new_partition_waits_for_a_live_replica() -> None:
    """It is led by the first one, and all that live are in sync."""
    assert next_state(None, (A, B), live=set(), known=KNOWN) is None
    made = next_state(None, (A, B, C), live={B, C}, known=KNOWN)

    assert made is not None
    assert (B, 0, (B, C)) == (made.leader, made.leader_epoch, made.isr)


@pytest.mark.parametrize(
    ("before", "live", "after"),
    [
        (state(B, 5, B, A), {A, B}, state(A, 6, B, A)),
        (state(A, 5, B, A), {A, B}, state(A, 6, B, A)),
        (state(B, 5, B, A), {B}, None),
        (state(B, 5, B), {A, B}, None),
    ],
    ids=["moves", "leads already", "is dead", "is out of sync"],
)
def test_the_preferred_leader_is_elected_if_it_is_alive_and_in_sync(
    before: PartitionStateNode, live: set[BrokerId], after: PartitionStateNode | None
) -> None:
    """The ISR stays as it is."""
    assert after == prefer_first(before, (A, B), live=live)


def test_replicas_go_round() -> None:
    """Leaders in turn; behind each round, the followers are shifted."""
    assert {0: (A,), 1: (A,)} == assign_replicas(range(2), (A,), 1)
    assert {0: (A, B), 1: (B, A), 2: (A, B)} == assign_replicas(range(3), (A, B), 2)
    assert {0: (A, B), 1: (B, C), 2: (C, A), 3: (A, C)} == assign_replicas(range(4), (A, B, C), 2)
