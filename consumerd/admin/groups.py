# SPDX-License-Identifier: Apache-2.0
"""All consumer groups of a cluster, with members, committed positions and lag. Read only.

A group is known from three sources: its znode below ``/consumers``, the brokers' lists of groups, and its positions in
``__consumer_offsets``. A name that appears in several of them is one row. The result names everything that could not be
read:

- A group whose coordinator does not answer is shown with what ZooKeeper has of it.
- Brokers that did not list their groups, and partitions of ``__consumer_offsets`` without a leader, are problems of the
  whole result.

Example: ``lake`` has two members in ZooKeeper, which commit to ZooKeeper and Kafka; ``web`` has three members that
broker 1 coordinates. The row of ``lake`` says registered ``zookeeper``, positions ``both``; that of ``web`` says
registered ``kafka``, positions ``kafka``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from consumerd.admin.group_facts import GroupFacts, RegisteredIn, read_all_groups
from consumerd.admin.lag import LagBasis, LagRow, LagRowOfBoth, explain_kept, read_fields
from consumerd.client.group_coordinators import (
    NO_MEMBERS,
    MemberDetails,
)
from consumerd.client.opening import ClusterAccess
from consumerd.errors import NotFound
from consumerd.group.admission import find_our_sessions
from consumerd.group.identity import consumer_of, find_host, thread_ids
from consumerd.group.plan import MemberView
from consumerd.model import ThreadId, TopicPartition
from consumerd.offsets.store import ZOOKEEPER_ONLY, Place
from consumerd.telemetry.wording import counted, join_shown

_UNKNOWN: Final = "unknown"
_STABLE: Final = "Stable"
_UNOWNED: Final = "Unowned"
"""State of a group in ZooKeeper some of whose partitions have no owner, during a rebalance or for longer."""
_SHOWN: Final = 3
"""Brokers or topics that a text names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRow:
    """One consumer group, as ``consumerd groups`` lists it.

    Attributes:
        registered: System in which its members are registered: zookeeper, kafka (a broker coordinates them), both,
            none.
        members: Number of members; None if unknown.
        state: For a group that a broker coordinates, Kafka's name of its state. In ZooKeeper ``Stable`` if each
            partition of the members' topics has an owner, ``Unowned`` if one has none, ``Empty`` without members.
        positions: Stores of its committed positions: zookeeper, kafka, both, none; ``unknown`` if Kafka's could not be
            read and ZooKeeper has none.
        topics: Topics that members subscribe to or that have positions.
        partitions: Number of partitions of these topics.
        lag: Sum over all partitions, in offsets; None if it is unknown in one of them.
        known_lag: Sum over the partitions whose lag is known, in offsets.
        note: Remark for the operator; empty if there is none.
    """

    group: str
    registered: str
    members: int | None
    state: str
    positions: str
    topics: tuple[str, ...]
    partitions: int
    lag: int | None
    known_lag: int
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterGroups:
    """All consumer groups of a cluster.

    Attributes:
        notes: Remarks that concern all groups.
        problems: Reasons why groups may be missing or incomplete; empty if all was read.
    """

    rows: Sequence[GroupRow]
    notes: Sequence[str] = ()
    problems: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LagRowOfGroup(LagRowOfBoth):
    """Lag of one group in one partition, in a list of several groups.

    ``seconds``, the age of the next record to be read, is always None here.
    """

    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LagOfGroups:
    """Lag of all consumer groups of a cluster.

    Attributes:
        rows: One per group and partition.
        groups: Number of groups, including those without partitions.
        problems: Reasons why groups may be missing or incomplete; empty if all was read.
    """

    rows: Sequence[LagRowOfGroup]
    groups: int
    notes: Sequence[str] = ()
    problems: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMemberRow:
    """One member of a consumer group.

    Attributes:
        member: Member id.
        registered: System in which it is registered: zookeeper, or kafka if a broker coordinates it.
        client_id: Name that it gives to brokers; None for a member in ZooKeeper.
        host: Host that it runs on; None if its member id in ZooKeeper does not tell it.
        session: Its ZooKeeper session id, in hexadecimal digits; None for a member that a broker coordinates.
        threads: Its thread ids in ZooKeeper; empty for a member that a broker coordinates.
        topics: Its subscription: topics, or one regular expression.
        owned: Partitions that it owns, or that are assigned to it.
        note: Remark for the operator, such as ``consumerd`` for a consumerd member; empty if there is none.
    """

    member: str
    registered: str
    client_id: str | None
    host: str | None
    session: str | None
    threads: tuple[str, ...]
    topics: tuple[str, ...]
    owned: tuple[str, ...]
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReport:
    """One consumer group with its members and partitions.

    Attributes:
        protocol_type: ``consumer`` for consumers, ``connect`` for Kafka Connect; None if no broker coordinates the
            group.
        protocol: Name of the assignor that its members use; None if no broker coordinates the group.
        coordinator: Broker that coordinates the group; None if none does.
        partitions: Lag in each partition.
        problems: Reasons why the report may be incomplete; empty if all was read.
    """

    summary: GroupRow
    protocol_type: str | None
    protocol: str | None
    coordinator: str | None
    members: Sequence[GroupMemberRow]
    partitions: Sequence[LagRowOfBoth]
    notes: Sequence[str] = ()
    problems: Sequence[str] = ()


async def find_groups(
    access: ClusterAccess, places: Collection[Place] = ZOOKEEPER_ONLY, *, patience_s: float
) -> ClusterGroups:
    """Return all consumer groups of the cluster, sorted by name.

    Args:
        places: Stores in which members in ZooKeeper read committed positions: ZooKeeper, Kafka, or both.
        patience_s: Time limit for brokers that do not answer, in seconds.

    Raises CoordinationError if ZooKeeper cannot be read.
    """
    reading = await read_all_groups(access, patience_s)
    facts = await reading.read_groups()
    ranges = await reading.find_ranges(facts, ())
    rows = [_make_row(one, one.make_basis(places, ranges, reading)) for one in facts]
    return ClusterGroups(rows=rows, notes=reading.notes, problems=reading.problems)


async def find_lag_of_groups(
    access: ClusterAccess,
    wanted: Collection[str],
    places: Collection[Place] = ZOOKEEPER_ONLY,
    *,
    patience_s: float,
) -> LagOfGroups:
    """Return the lag of all consumer groups in each of their partitions, sorted by group.

    Args:
        wanted: Topics; empty for all.
        places: Stores in which members in ZooKeeper read committed positions: ZooKeeper, Kafka, or both.
        patience_s: Time limit for brokers that do not answer, in seconds.

    Raises CoordinationError, ConfigError for a wanted topic that does not exist.
    """
    reading = await read_all_groups(access, patience_s, wanted)
    facts = await reading.read_groups()
    ranges = await reading.find_ranges(facts, wanted)
    rows: list[LagRowOfGroup] = []
    for one in facts:
        basis = one.make_basis(places, ranges, reading, wanted)
        rows += [LagRowOfGroup(**read_fields(row), group=one.group) for row in basis.add_kafka(basis.make_rows({}))]
    unread = [f"group {one.group}: {one.problem}" for one in facts if one.problem]
    return LagOfGroups(rows=rows, groups=len(facts), notes=reading.notes, problems=[*reading.problems, *unread])


async def describe_group(
    access: ClusterAccess, group: str, places: Collection[Place] = ZOOKEEPER_ONLY, *, patience_s: float
) -> GroupReport:
    """Return one consumer group with its members and partitions.

    Args:
        places: Stores in which members in ZooKeeper read committed positions: ZooKeeper, Kafka, or both.
        patience_s: Time limit for brokers that do not answer, in seconds.

    Raises NotFound if there is no such group, CoordinationError.
    """
    reading = await read_all_groups(access, patience_s)
    facts = await reading.read_group(group)
    if not facts.is_there:
        unknown = join_shown([*reading.problems, *filter(None, [facts.kept.unknown])], _SHOWN)
        doubt = f", and not all brokers have told theirs ({unknown})" if unknown else ""
        raise NotFound(f"there is no group {group!r}{doubt}; the groups there: {', '.join(reading.names) or 'none'}")
    basis = facts.make_basis(places, await reading.find_ranges([facts], ()), reading)
    ours = await find_our_sessions(access.zk, group) if access.has_zookeeper else frozenset[int]()
    details = facts.coordinated
    members = [_make_member(group, one, basis.owners, ours) for one in facts.snapshot.members]
    members += [_make_coordinated_member(one) for one in (details.members if details is not None else ())]
    return GroupReport(
        summary=_make_row(facts, basis),
        protocol_type=details.protocol_type if details is not None else None,
        protocol=details.protocol if details is not None else None,
        coordinator=str(details.coordinator) if details is not None else None,
        members=members,
        partitions=basis.add_kafka(basis.make_rows({})),
        notes=[*reading.notes, *explain_kept(facts.kept, basis.places)],
        problems=reading.problems,
    )


# -- what is shown


def _make_row(facts: GroupFacts, basis: LagBasis) -> GroupRow:
    rows = [row for row in basis.make_rows({}) if not row.deleted]
    known = [row.lag for row in rows if row.lag is not None]
    is_whole = not facts.problem and len(known) == len(rows)
    return GroupRow(
        group=facts.group,
        registered=_UNKNOWN if facts.problem else facts.registered.value,
        members=_count_members(facts),
        state=_find_state(facts, basis),
        positions=_name_positions(facts),
        topics=tuple(sorted(facts.topics)),
        partitions=len(rows),
        lag=sum(known) if is_whole else None,
        known_lag=sum(known),
        note="; ".join(_explain(facts, rows)),
    )


def _count_members(facts: GroupFacts) -> int | None:
    details = facts.coordinated
    if facts.problem or (details is not None and details.failure):
        return None
    return len(facts.snapshot.members) + len(facts.coordinated_members)


def _find_state(facts: GroupFacts, basis: LagBasis) -> str:
    details = facts.coordinated
    if facts.problem or (details is not None and details.failure):
        return _UNKNOWN
    subscribed = [
        TopicPartition(topic, key) for topic, view in facts.snapshot.topics.items() for key in view.partitions
    ]
    in_zookeeper = _STABLE if all(one in basis.owners for one in subscribed) else _UNOWNED
    match facts.registered:
        case RegisteredIn.BOTH:
            assert details is not None
            return f"{in_zookeeper}, {details.state} in Kafka"
        case RegisteredIn.ZOOKEEPER:
            return in_zookeeper
        case _:
            return details.state if details is not None and details.protocol_type else NO_MEMBERS


def _name_positions(facts: GroupFacts) -> str:
    kept = facts.kept
    if kept.kafka:
        return "both" if kept.zookeeper else Place.KAFKA.value
    if kept.zookeeper:
        return Place.ZOOKEEPER.value
    return _UNKNOWN if kept.unknown or facts.problem else "none"


def _explain(facts: GroupFacts, rows: Sequence[LagRow]) -> list[str]:
    if facts.problem:
        return [facts.problem]
    known = [row.lag for row in rows if row.lag is not None]
    unknown, away = len(rows) - len(known), sum(row.away for row in rows)
    details = facts.coordinated
    notes = []
    if facts.registered is RegisteredIn.BOTH:
        notes.append(
            "two groups of one name: members in ZooKeeper and members that a broker coordinates do not see each other, "
            "and both consume the partitions"
        )
    if details is not None and details.failure:
        notes.append(details.failure)
    if facts.coordinated_members and details is not None and not details.is_consumer:
        notes.append(f"protocol type {details.protocol_type}: subscriptions and assignments are not decoded")
    if facts.kept.unknown:
        notes.append(f"positions in Kafka are unknown: {facts.kept.unknown}")
    if unknown:
        partitions = counted(len(rows), "partition")
        notes.append(f"lag unknown: at least {sum(known)}, unknown in {unknown} of {partitions}")
    if away:
        notes.append(f"{away} away")
    return notes


def _make_member(
    group: str, member: MemberView, owners: Mapping[TopicPartition, str], ours: Collection[int]
) -> GroupMemberRow:
    registration = member.registration
    streams = max(registration.subscription.values(), default=0) if registration is not None else 0
    return GroupMemberRow(
        member=member.consumer,
        registered=RegisteredIn.ZOOKEEPER.value,
        client_id=None,
        host=find_host(group, member.consumer),
        session=f"{member.session_id:x}",
        threads=thread_ids(member.consumer, streams),
        topics=tuple(sorted(registration.subscription)) if registration is not None else (),
        owned=tuple(
            str(one) for one, owner in sorted(owners.items()) if consumer_of(ThreadId(owner)) == member.consumer
        ),
        note=member.problem or ("consumerd" if member.session_id in ours else ""),
    )


def _make_coordinated_member(member: MemberDetails) -> GroupMemberRow:
    return GroupMemberRow(
        member=member.member_id,
        registered=RegisteredIn.KAFKA.value,
        client_id=member.client_id,
        host=member.host,
        session=None,
        threads=(),
        topics=member.topics,
        owned=tuple(map(str, member.partitions)),
        note=member.problem,
    )
