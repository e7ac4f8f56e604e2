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
from consumerd.group.subscription import find_unsupported, find_whole, needs_topic_names, plan_streams
from consumerd.model import ConsumerId, Incarnation, PartitionKey, Partitions, ThreadId, TopicPartition
from consumerd.telemetry.wording import join_shown
from consumerd.zk.registry_layout import NodeStamp
from consumerd.zk.znodes import MemberRegistration, Pattern

_DISAGREEMENTS_SHOWN: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTopic:
    """A topic's node in ZooKeeper, as read.

    Attributes:
        czxid: the transaction that created the node; it identifies the topic across re-creation.
        stamp: version numbers that change with the topic's partitions.
        partitions: in numerical order; empty if the node cannot be read, because Java members see none either.
        problem: why the node cannot be read; None if it can.
    """

    czxid: int
    stamp: NodeStamp
    partitions: tuple[PartitionKey, ...]
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberView:
    """The node of a member below ``/consumers/G/ids``, as read.

    Attributes:
        session_id: the ZooKeeper session that keeps the node alive.
        registration: the content of the node; None if it cannot be read.
        problem: why the node cannot be read; None if it can.
        legacy: True for a registration of Kafka 0.6 or 0.7.
    """

    consumer: ConsumerId
    session_id: int
    registration: MemberRegistration | None
    problem: str | None = None
    legacy: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """Version of a snapshot: ZooKeeper counters that change whenever the snapshot is out of date.

    Attributes:
        ids: creating transaction (``czxid``) and child-change counter of ``/consumers/G/ids``.
        names: both of them for ``/brokers/topics``; None if no member subscribes by a white or black list.
        topics: the version numbers of each topic's node; None for a topic that does not exist.
    """

    ids: NodeStamp
    names: NodeStamp | None
    topics: Mapping[str, NodeStamp | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSnapshot:
    """The members and topics of a group, as read from ZooKeeper at one moment.

    Attributes:
        stamp: versions of everything that was read; they tell if the snapshot is still current.
        topics: the topics that were read, by name.
        names: the names of all topics, if some member subscribes by a white or black list; else empty.
    """

    stamp: Stamp
    members: tuple[MemberView, ...]
    topics: Mapping[str, GroupTopic]
    names: frozenset[str] = frozenset()

    @property
    def partitions(self) -> Partitions:
        """The partitions of each topic that was read, by topic name."""
        return {topic: view.partitions for topic, view in self.topics.items()}

    @property
    def unreadable(self) -> Mapping[str, str]:
        """Topics whose node exists but cannot be read, each with the reason."""
        return {topic: view.problem for topic, view in self.topics.items() if view.problem is not None}

    def find_member(self, consumer: ConsumerId) -> MemberView | None:
        """Return the member's node as it was read; None if it was not registered."""
        return next((member for member in self.members if member.consumer == consumer), None)


@dataclass(frozen=True, slots=True)
class Grant:
    """The assignment of one partition to one of this member's threads.

    ``incarnation`` is the identity of the topic: a topic that is created again under the same name has another one.
    """

    thread: ThreadId
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class Holder:
    """The content of an owner node, and the session that keeps the node alive.

    Session id 0 stands for none: the node is persistent, and no session's end deletes it.
    """

    thread: str
    session_id: int


class DisagreementKind(enum.StrEnum):
    """A reason why members of a group compute different assignments, or seem to."""

    UNREADABLE = "unreadable member"
    """A node under ``ids`` that no member can read; every Java member's rebalance fails because of it."""
    PATTERN = "pattern"
    """A subscription's regular expression that cannot be evaluated here, or that a client escaped twice."""
    SUBSCRIPTION = "subscription"
    """Subscriptions that differ from each other, so that older members refuse to rebalance."""
    STRATEGY = "strategy"
    """Owners of partitions that differ from the result of the configured assignor."""
    UNOWNED = "unowned"
    """Partitions that another member does not own although the configured assignor gives them to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    """A reason why members may not agree on which of them owns a partition.

    Attributes:
        detail: the reason in words.
        member: the member that is the cause; None if it is unknown.
    """

    kind: DisagreementKind
    detail: str
    member: str | None = None

    def __str__(self) -> str:
        return ": ".join(part for part in (self.kind.value, self.member, self.detail) if part is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedGroup:
    """Members with the topics that they subscribe to, by name.

    ``disagreements`` has the members that could not be resolved: those whose node cannot be read, or whose expression
    cannot be evaluated (both are left out of ``members``), and those whose expression matches no topic by mistake.
    """

    members: tuple[Member, ...]
    disagreements: tuple[Disagreement, ...] = field(default=())


def resolve_members(members: Collection[MemberView], names: Collection[str]) -> ResolvedGroup:
    """Return the members with the topics that they subscribe to.

    A member whose node cannot be read, or whose expression cannot be evaluated, is left out; the result says why.

    Args:
        names: The names of all topics of the cluster, which expressions are matched with.
    """
    resolved, disagreements = [], []
    for member in sorted(members, key=lambda one: one.consumer):
        registration = member.registration
        if registration is None:
            detail = f"{member.problem}; every Java member's rebalance fails until the node is gone"
            disagreements.append(Disagreement(kind=DisagreementKind.UNREADABLE, detail=detail, member=member.consumer))
            continue
        try:
            streams = plan_streams(registration, names)
            unsupported = find_unsupported(registration, frozenset(names))
        except UnsupportedPattern as error:
            detail = f"its expression cannot be evaluated here, so it is taken to own nothing: {error}"
            disagreements.append(Disagreement(kind=DisagreementKind.PATTERN, detail=detail, member=member.consumer))
            continue
        if registration.escaped_twice and not streams and registration.pattern is Pattern.WHITE_LIST:
            detail = (
                "its expression matches no topic; clients of 1.0 and 1.1 escape backslashes twice, use [.] or [0-9]"
            )
            disagreements.append(Disagreement(kind=DisagreementKind.PATTERN, detail=detail, member=member.consumer))
        if unsupported:
            detail = (
                "its expression matches topics that this program cannot consume, since their names have other "
                "characters than letters, digits, '.', '_' and '-': "
                f"{join_shown(sorted(unsupported), _DISAGREEMENTS_SHOWN)}; Java "
                "members assign their partitions to all members, so exclude these topics in every member's expression"
            )
            disagreements.append(Disagreement(kind=DisagreementKind.PATTERN, detail=detail, member=member.consumer))
        resolved.append(Member(consumer=member.consumer, streams=streams))
    return ResolvedGroup(members=tuple(resolved), disagreements=tuple(disagreements))


def plan_topics_to_read(
    members: Collection[MemberView], names: Collection[str], consumer: ConsumerId | None = None
) -> frozenset[str]:
    """Return the topics to which ``consumer`` subscribes, or those of all members for None.

    With ``range``, a member needs to read its own topics only, because each topic is assigned on its own. With
    ``roundrobin``, it needs those of all members, because the partitions of all topics are dealt out together.

    Args:
        names: The names of all topics of the cluster, which expressions are matched with.
    """
    return frozenset(
        topic
        for member in resolve_members(members, names).members
        if consumer is None or member.consumer == consumer
        for topic in member.streams
    )


def needs_names(members: Collection[MemberView]) -> bool:
    """Return True if some member's white or black list requires all topic names."""
    return any(member.registration is not None and needs_topic_names(member.registration) for member in members)


def plan_assignment(snapshot: GroupSnapshot, strategy: Strategy) -> Assignment:
    """Return the thread that is to consume each partition of the group."""
    return assign(strategy, resolve_members(snapshot.members, snapshot.names).members, snapshot.partitions)


def plan_grants(
    snapshot: GroupSnapshot, assignment: Assignment, consumer: ConsumerId
) -> Mapping[TopicPartition, Grant]:
    """Return the partitions that the assignment gives to the member ``consumer``."""
    return {
        partition: Grant(thread, Incarnation(snapshot.topics[partition.topic].czxid))
        for partition, thread in assignment.items()
        if consumer_of(thread) == consumer
    }


def plan_kept(snapshot: GroupSnapshot, owned: Mapping[TopicPartition, Grant]) -> Mapping[TopicPartition, Grant]:
    """Return the partitions that a member keeps because their topic's node cannot be read.

    No member can assign such a topic, so no other member claims these partitions. To give them up would stop their
    delivery because of one damaged node. If the topic was re-created meanwhile, its partitions are not kept.

    Args:
        owned: The partitions that the member owns.
    """
    unreadable = snapshot.unreadable
    return {
        partition: grant
        for partition, grant in owned.items()
        if partition.topic in unreadable and grant.incarnation == Incarnation(snapshot.topics[partition.topic].czxid)
    }


def plan_disagreements(snapshot: GroupSnapshot, strategy: Strategy) -> tuple[Disagreement, ...]:
    """Return the reasons, visible in the registrations, for which members may compute different assignments."""
    resolved = resolve_members(snapshot.members, snapshot.names)
    found = list(resolved.disagreements)
    if strategy is Strategy.ROUNDROBIN_0_8 and (objection := find_objection(resolved.members)) is not None:
        detail = f"Java members up to 0.10.1 refuse roundrobin here: {objection}"
        found.append(Disagreement(kind=DisagreementKind.SUBSCRIPTION, detail=detail))
    lists = {
        # a topic that one member may not consume is told by itself
        (registration.pattern.value, find_whole(registration))
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
    """Return the differences between the owners of partitions and the configured assignor's result.

    If live members own partitions that the assignment gives to other members, the result names the assignors that would
    explain all owners. Otherwise, partitions that members other than ``consumer`` have not claimed are reported.

    Call this only while the group is at rest: during a rebalance, owners differ from the assignment all the time.

    Args:
        strategy: The configured assignor.
        owners: The content of the owner nodes that were read.
        consumer: This member's id.
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
