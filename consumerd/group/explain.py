# SPDX-License-Identifier: Apache-2.0
"""Previews of rebalances, for operators who plan to add or remove members. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from consumerd.group.assignors import Assignment, Strategy
from consumerd.group.identity import consumer_of
from consumerd.group.plan import Disagreement, GroupSnapshot, MemberView, plan_assignment, plan_disagreements
from consumerd.group.settings import RebalanceSettings
from consumerd.group.subscription import Subscription
from consumerd.model import ConsumerId, ThreadId, TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A partition whose owner would change: its thread before and after.

    A thread is None where the partition has no owner.
    """

    partition: TopicPartition
    before: ThreadId | None
    after: ThreadId | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A preview of a rebalance: two assignments, and their differences.

    Attributes:
        now: the assignment of the present members.
        then: the assignment after members have joined or left.
        moves: partitions that would go from one member to another. A change of the thread within a member is no move.
        disagreements: reasons why members may not agree on the new assignment, such as different topics.
    """

    now: Assignment
    then: Assignment
    moves: tuple[Move, ...]
    disagreements: tuple[Disagreement, ...]


def plan_explanation(
    snapshot: GroupSnapshot,
    strategy: Strategy,
    *,
    joining: Sequence[ConsumerId] = (),
    leaving: Sequence[ConsumerId] = (),
    subscription: Subscription | None = None,
) -> Explanation:
    """Return a preview of the assignment after members join or leave.

    Members in ``joining`` get ``subscription``. A member's partitions depend on the sort order of its id, so
    ``joining`` must have the ids that will be used.
    """
    members = [member for member in snapshot.members if member.consumer not in leaving]
    if joining:
        if subscription is None:
            raise ValueError("members that join need a subscription")
        registration = subscription.register(0)
        members += [MemberView(consumer=name, session_id=0, registration=registration) for name in joining]
    changed = GroupSnapshot(stamp=snapshot.stamp, members=tuple(members), topics=snapshot.topics, names=snapshot.names)
    now, then = plan_assignment(snapshot, strategy), plan_assignment(changed, strategy)
    return Explanation(
        now=now,
        then=then,
        moves=tuple(
            Move(partition=partition, before=now.get(partition), after=then.get(partition))
            for partition in sorted(now.keys() | then.keys())
            if _find_consumer(now.get(partition)) != _find_consumer(then.get(partition))
        ),
        disagreements=plan_disagreements(changed, strategy),
    )


def lint_patience(
    *, retries: int, backoff_ms: int, session_timeout_ms: int, settings: RebalanceSettings
) -> tuple[str, ...]:
    """Return the problems of a Java member's ``rebalance.*`` settings, one text each.

    A Java member tries ``retries`` times to claim its partitions, ``backoff_ms`` apart, and then owns nothing until the
    next change of the group. Its last try is ``(retries - 1) * backoff_ms`` after its first. A handover of this group
    must be over by then.

    Args:
        session_timeout_ms: The ZooKeeper session timeout of the group's members.
        settings: Rebalance settings of the group's consumerd members.
    """
    patience_ms = max(0, retries - 1) * backoff_ms
    found = []
    if retries * backoff_ms <= session_timeout_ms:
        found.append(
            f"rebalance.max.retries={retries} times rebalance.backoff.ms={backoff_ms} is {retries * backoff_ms} ms, "
            f"not more than the session timeout of {session_timeout_ms} ms: after a crash the dead member's partitions "
            "stay taken for longer than a Java member tries"
        )
    handover_ms = settings.settle_ms * 3 // 2 + settings.drain_timeout_ms + settings.release_grace_ms
    if handover_ms >= patience_ms:
        found.append(
            f"a handover from consumerd may take {handover_ms} ms (settle, drain, grace), and a Java member's last try "
            f"is after {patience_ms} ms: lower rebalance.drain_timeout_ms, or raise rebalance.max.retries there"
        )
    return tuple(found)


def _find_consumer(thread: ThreadId | None) -> ConsumerId | None:
    return None if thread is None else consumer_of(thread)
