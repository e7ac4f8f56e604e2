# SPDX-License-Identifier: Apache-2.0
"""Previews of rebalances, for operators who plan one.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from consumerd.group.assignors import Assignment, Strategy
from consumerd.group.identity import consumer_of
from consumerd.group.plan import Disagreement, GroupSnapshot, MemberView, plan_assignment, plan_disagreements
from consumerd.group.settings import RebalanceSettings
from consumerd.group.subscription import Subscription
from consumerd.model import ConsumerId, ThreadId, TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A partition that changes owners; None stands for no owner."""

    partition: TopicPartition
    before: ThreadId | None
    after: ThreadId | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The assignment now and after a change, with the partitions that move between members.

    Partitions that move between threads of one member are not in ``moves``.
    """

    now: Assignment
    then: Assignment
    moves: tuple[Move, ...]
    counts: Mapping[ConsumerId, int]
    """Number of partitions per member after the change, including members with none."""
    disagreements: tuple[Disagreement, ...]


def plan_explanation(
    snapshot: GroupSnapshot,
    strategy: Strategy,
    *,
    joining: Sequence[ConsumerId] = (),
    leaving: Sequence[ConsumerId] = (),
    subscription: Subscription | None = None,
) -> Explanation:
    """Compute the assignment after members joined with ``subscription``, or left.

    A member's partitions depend on the sort order of its id, so ``joining`` must have the ids that will be used.
    """
    members = [member for member in snapshot.members if member.consumer not in leaving]
    if joining:
        if subscription is None:
            raise ValueError("members that join need a subscription")
        registration = subscription.register(0)
        members += [MemberView(consumer=name, session_id=0, registration=registration) for name in joining]
    changed = GroupSnapshot(stamp=snapshot.stamp, members=tuple(members), topics=snapshot.topics, names=snapshot.names)
    now, then = plan_assignment(snapshot, strategy), plan_assignment(changed, strategy)
    counts = {member.consumer: 0 for member in sorted(members, key=lambda one: one.consumer)}
    for thread in then.values():
        counts[consumer_of(thread)] += 1
    return Explanation(
        now=now,
        then=then,
        moves=tuple(
            Move(partition=partition, before=now.get(partition), after=then.get(partition))
            for partition in sorted(now.keys() | then.keys())
            if _find_consumer(now.get(partition)) != _find_consumer(then.get(partition))
        ),
        counts=counts,
        disagreements=plan_disagreements(changed, strategy),
    )


def lint_patience(
    *, retries: int, backoff_ms: int, session_timeout_ms: int, settings: RebalanceSettings
) -> tuple[str, ...]:
    """Return the problems of a Java member's ``rebalance.*`` settings.

    A Java member tries ``retries`` times, ``backoff_ms`` apart, and then owns nothing until the next change. Its last
    try is ``(retries - 1) * backoff_ms`` after its first.

    Args:
        session_timeout_ms: The session timeout of the group's members.
        settings: Our own rebalance settings.
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
