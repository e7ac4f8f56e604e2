# SPDX-License-Identifier: Apache-2.0
"""The group as read from ZooKeeper, and the assignments that follow from it.

Pure. A :class:`GroupSnapshot` holds what was read; its :class:`Stamp` is compared to find out whether it is still
current. The ``plan_*`` functions compute assignments, the partitions of this member, and reports on members that cannot
agree.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from consumerd.group.assignors import Assignment, Member, Strategy, assign, find_objection
from consumerd.group.identity import consumer_of
from consumerd.group.java_regex import UnsupportedPattern
from consumerd.group.subscription import needs_topic_names, plan_streams
from consumerd.model import ConsumerId, Incarnation, PartitionKey, Partitions, ThreadId, TopicPartition
from consumerd.telemetry.wording import join_shown
from consumerd.zk.znodes import MemberRegistration, Pattern

_DISAGREEMENTS_SHOWN: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTopic:
    """A topic's node: its incarnation (``czxid``) and its partitions in order.

    ``problem`` says why the node cannot be read; then ``partitions`` is empty, as Java members take it to be.
    """

    czxid: int
    version: int
    partitions: tuple[PartitionKey, ...]
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberView:
    """A member's node under ``ids``.

    ``registration`` is None if it cannot be read, and ``problem`` says why. ``legacy`` is true for a registration of
    Kafka 0.6 or 0.7.
    """

    consumer: ConsumerId
    session_id: int
    registration: MemberRegistration | None
    problem: str | None = None
    legacy: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """Counters that change whenever a snapshot is out of date.

    Each pair is the creating transaction (``czxid``) and the child-change counter, or a topic's data version. ``names``
    is None if no member subscribes by a list. A topic that does not exist has None.
    """

    ids: tuple[int, int]
    names: tuple[int, int] | None
    topics: Mapping[str, tuple[int, int] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSnapshot:
    """The group and its topics at one moment.

    ``names`` has all topics if some member subscribes by a list.
    """

    stamp: Stamp
    members: tuple[MemberView, ...]
    topics: Mapping[str, GroupTopic]
    names: frozenset[str] = frozenset()

    @property
    def partitions(self) -> Partitions:
        """The partitions of each topic read."""
        return {topic: view.partitions for topic, view in self.topics.items()}

    @property
    def unreadable(self) -> Mapping[str, str]:
        """Topics whose node exists but cannot be read, each with the reason."""
        return {topic: view.problem for topic, view in self.topics.items() if view.problem is not None}

    def find_member(self, consumer: ConsumerId) -> MemberView | None:
        """Return the member's node, or None."""
        return next((member for member in self.members if member.consumer == consumer), None)


@dataclass(frozen=True, slots=True)
class Grant:
    """A partition given to one of our threads, with the incarnation of its topic."""

    thread: ThreadId
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class Holder:
    """The content of an owner node: its thread, and the session that keeps it alive.

    Session 0 is none: the node is not ephemeral, and stays.
    """

    thread: str
    session_id: int


class DisagreementKind(enum.StrEnum):
    """A reason why members of a group may compute different assignments."""

    UNREADABLE = "unreadable member"
    """A node under ``ids`` that no member can read; every Java member's rebalance fails because of it."""
    PATTERN = "pattern"
    """An expression that cannot be evaluated here, or that a client escaped twice."""
    SUBSCRIPTION = "subscription"
    """Subscriptions that differ in a way that some members refuse."""
    STRATEGY = "strategy"
    """Owners that differ from the assignment of our assignor."""
    UNOWNED = "unowned"
    """Partitions that another member does not claim although our assignor gives them to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    """A reason why members do not agree; ``member`` is its cause, if known."""

    kind: DisagreementKind
    detail: str
    member: str | None = None

    def __str__(self) -> str:
        return ": ".join(part for part in (self.kind.value, self.member, self.detail) if part is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedGroup:
    """Members with their topics, lists resolved, and the problems of the other members."""

    members: tuple[Member, ...]
    disagreements: tuple[Disagreement, ...] = field(default=())


def resolve_members(members: Collection[MemberView], names: Collection[str]) -> ResolvedGroup:
    """Compute each member's topics; a member that cannot be read takes no part."""
    resolved, disagreements = [], []
    for member in sorted(members, key=lambda one: one.consumer):
        registration = member.registration
        if registration is None:
            detail = f"{member.problem}; every Java member's rebalance fails until the node is gone"
            disagreements.append(Disagreement(kind=DisagreementKind.UNREADABLE, detail=detail, member=member.consumer))
            continue
        try:
            streams = plan_streams(registration, names)
        except UnsupportedPattern as error:
            detail = f"its expression cannot be evaluated here, so it is taken to own nothing: {error}"
            disagreements.append(Disagreement(kind=DisagreementKind.PATTERN, detail=detail, member=member.consumer))
            continue
        if registration.escaped_twice and not streams and registration.pattern is Pattern.WHITE_LIST:
            detail = (
                "its expression matches no topic; clients of 1.0 and 1.1 escape backslashes twice, use [.] or [0-9]"
            )
            disagreements.append(Disagreement(kind=DisagreementKind.PATTERN, detail=detail, member=member.consumer))
        resolved.append(Member(consumer=member.consumer, streams=streams))
    return ResolvedGroup(members=tuple(resolved), disagreements=tuple(disagreements))


def plan_topics_to_read(
    members: Collection[MemberView], names: Collection[str], consumer: ConsumerId | None = None
) -> frozenset[str]:
    """Return the topics that ``consumer``, or with None any member, subscribes to.

    ``range`` assigns one topic at a time, so our own topics suffice; ``roundrobin`` deals out the partitions of all
    topics at once.
    """
    return frozenset(
        topic
        for member in resolve_members(members, names).members
        if consumer is None or member.consumer == consumer
        for topic in member.streams
    )


def needs_names(members: Collection[MemberView]) -> bool:
    """Return True if a member subscribes by a list, so that all topic names matter."""
    return any(member.registration is not None and needs_topic_names(member.registration) for member in members)


def plan_assignment(snapshot: GroupSnapshot, strategy: Strategy) -> Assignment:
    """Return which thread of the group consumes each partition."""
    return assign(strategy, resolve_members(snapshot.members, snapshot.names).members, snapshot.partitions)


def plan_grants(
    snapshot: GroupSnapshot, assignment: Assignment, consumer: ConsumerId
) -> Mapping[TopicPartition, Grant]:
    """Return the partitions that the assignment gives to one member."""
    return {
        partition: Grant(thread, Incarnation(snapshot.topics[partition.topic].czxid))
        for partition, thread in assignment.items()
        if consumer_of(thread) == consumer
    }


def plan_kept(snapshot: GroupSnapshot, owned: Mapping[TopicPartition, Grant]) -> Mapping[TopicPartition, Grant]:
    """Return the owned partitions of unreadable topics, which a member keeps unassigned.

    No member can assign such a topic, so no other member claims these partitions; giving them up would stop their
    delivery because of one damaged node. If the topic was re-created meanwhile, its partitions are not kept.
    """
    unreadable = snapshot.unreadable
    return {
        partition: grant
        for partition, grant in owned.items()
        if partition.topic in unreadable and grant.incarnation == Incarnation(snapshot.topics[partition.topic].czxid)
    }


def plan_disagreements(snapshot: GroupSnapshot, strategy: Strategy) -> tuple[Disagreement, ...]:
    """Return the disagreements that the registrations themselves show."""
    resolved = resolve_members(snapshot.members, snapshot.names)
    found = list(resolved.disagreements)
    if strategy is Strategy.ROUNDROBIN_0_8 and (objection := find_objection(resolved.members)) is not None:
        detail = f"Java members up to 0.10.1 refuse roundrobin here: {objection}"
        found.append(Disagreement(kind=DisagreementKind.SUBSCRIPTION, detail=detail))
    lists = {
        (registration.pattern.value, "|".join(registration.subscription))
        for member in snapshot.members
        if (registration := member.registration) is not None and registration.pattern is not Pattern.STATIC
    }
    if len(lists) > 1:
        shown = ", ".join(sorted(f"{pattern} {text!r}" for pattern, text in lists))
        detail = f"members subscribe by different expressions: {shown}"
        found.append(Disagreement(kind=DisagreementKind.SUBSCRIPTION, detail=detail))
    return tuple(found)


def plan_owner_disagreements(
    snapshot: GroupSnapshot,
    strategy: Strategy,
    owners: Mapping[TopicPartition, Holder],
    consumer: ConsumerId,
    there: Collection[TopicPartition] | None = None,
) -> tuple[Disagreement, ...]:
    """Return the disagreements between owner nodes and our assignor.

    If live members own partitions that belong to others, the strategies that would explain all owners are named.
    Otherwise, partitions that members other than ``consumer`` have not claimed are reported.

    Only meaningful while the group is at rest: during a rebalance, owners differ from the assignment all the time.

    Args:
        owners: The holders that were read.
        there: All partitions that have an owner node; None if ``owners`` has all of them.
    """
    assignment = plan_assignment(snapshot, strategy)
    unreadable = snapshot.unreadable  # no assignment says who should own these, so their owners stay
    owners = {partition: holder for partition, holder in owners.items() if partition.topic not in unreadable}
    wrong = _mismatches(assignment, owners)
    if not wrong:
        return _find_unowned(assignment, owners.keys() if there is None else there, consumer)
    explaining = [
        other.value
        for other in Strategy
        if other is not strategy and not _mismatches(plan_assignment(snapshot, other), owners)
    ]
    hint = f"; {' or '.join(explaining)} explains every owner: is group.assignor wrong?" if explaining else ""
    shown = join_shown(
        (
            f"{partition} is held by {owners[partition].thread} and belongs to {assignment.get(partition, 'no member')}"
            for partition in wrong
        ),
        _DISAGREEMENTS_SHOWN,
    )
    detail = f"owners that {strategy.value} would not have: {len(wrong)}{hint}: {shown}"
    return (Disagreement(kind=DisagreementKind.STRATEGY, detail=detail),)


def _find_unowned(
    assignment: Assignment, owned: Collection[TopicPartition], consumer: ConsumerId
) -> tuple[Disagreement, ...]:
    unowned: dict[ConsumerId, list[TopicPartition]] = {}
    for partition in sorted(assignment.keys() - owned):
        unowned.setdefault(consumer_of(assignment[partition]), []).append(partition)
    return tuple(
        Disagreement(
            kind=DisagreementKind.UNOWNED,
            member=member,
            detail=f"partitions that it has not claimed: {len(partitions)}; a Java member that has used up "
            "rebalance.max.retries claims nothing until the group changes again, and one with another "
            f"partition.assignment.strategy never claims these: {join_shown(partitions, _DISAGREEMENTS_SHOWN)}",
        )
        for member, partitions in sorted(unowned.items())
        if member != consumer
    )


def _mismatches(assignment: Assignment, owners: Mapping[TopicPartition, Holder]) -> list[TopicPartition]:
    return sorted(partition for partition, holder in owners.items() if assignment.get(partition) != holder.thread)
