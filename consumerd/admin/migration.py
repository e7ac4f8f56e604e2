# SPDX-License-Identifier: Apache-2.0
"""Compares a group's positions in ZooKeeper and in Kafka, and plans what a migration writes.

The *target* is the store (ZooKeeper or Kafka) that the group moves to, the *source* the other one. While members commit
to both stores, the larger position counts, so the target needs each position that is missing or smaller there:

============================  ==========================================================================================
source, target                what follows
============================  ==========================================================================================
200, none or 150              200 is written to the target
200, 200                      nothing
none, 200                     nothing
200, 300                      refused: read from both stores, 300 counts. If the source was moved back on purpose, that
                              would be undone. ``replace_larger`` writes 200
200 of a deleted topic, any   nothing: it is not a position of this topic
200 above the log's end       refused: it is of a deleted topic of the same name, or the log was truncated
============================  ==========================================================================================

A partition of a topic that live members consume is not written. They may commit between a read and a write, and Kafka
compares nothing, so the write would set them back. With commits to both stores, they write the target themselves.
"""

from __future__ import annotations

import asyncio
import enum
import random
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from consumerd.admin.inspection import check_topics, follow_topics, list_group_topics, require_group
from consumerd.admin.migration_file import AppliedMigration, ReplacedOffset
from consumerd.admin.operations import Plan, PlannedMove, Way
from consumerd.admin.positions import read_cluster
from consumerd.client.opening import ClusterAccess
from consumerd.errors import OffsetError
from consumerd.group.registry import GroupRegistry
from consumerd.model import Incarnation, LogRange, TopicPartition
from consumerd.offsets.opening import find_kafka_obstacle, open_positions
from consumerd.offsets.positions import NO_POSITION, KeptPositions, Position, node_version
from consumerd.offsets.store import ZOOKEEPER_ONLY, Place, Validity, is_larger
from consumerd.telemetry.wording import counted, join_shown

_SHOWN: Final = 5
_POLL_S: Final = 1.0
"""Interval, in seconds, at which ``verify`` reads both places again."""
_NONE_IN_KAFKA: Final = Position(value=None, validity=Validity.ABSENT, place=Place.KAFKA)


class Comparison(enum.Enum):
    """Result of comparing a partition's positions in ZooKeeper and in Kafka, for a migration.

    ``MISSING``, ``SMALLER`` and ``LARGER`` speak of the position in the store that the group moves to. ``ONLY_TARGET``:
    only the store that the group moves to has a position. The values appear in the output.
    """

    SAME = "same"
    MISSING = "missing"
    SMALLER = "smaller"
    LARGER = "larger"
    ONLY_TARGET = "only there"
    NONE = "none"
    UNUSABLE = "unusable"
    """The position to be copied is unknown, malformed, or above the log's end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionMigration:
    """Positions of one partition in ZooKeeper and Kafka, and what a migration does about them.

    The *target* is the store that the group moves to, the *source* the other one.

    Args:
        incarnation: Identity of the topic since its creation; None if the topic does not exist.
        source: Position in the source.
        target: Position in the target.
        counts: Position from which members with these settings continue.
        comparison: Result of comparing the two positions.
        is_consumed: True if live members consume the topic; then nothing is written.
        writes: Position to be written to the target; None if none is.
        refusal: Reason why nothing can be written though the positions differ; else empty.
        note: Remark for the operator; empty if there is none.
    """

    partition: TopicPartition
    incarnation: Incarnation | None
    source: Position
    target: Position
    counts: Position
    comparison: Comparison
    is_consumed: bool
    writes: int | None
    refusal: str
    note: str

    @property
    def pair(self) -> tuple[int, int]:
        """Positions before a migration: in the store to leave, and in the new one.

        The value is -1 for a position that is missing or unusable.
        """
        return _number(self.source), _number(self.target)


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """Positions of a group in ZooKeeper and Kafka at one moment, compared for a migration.

    Args:
        cluster: Identity of the cluster: a file of positions made for another cluster has another one.
        to: Store that the group moves to, ZooKeeper or Kafka.
        members: Number of live members in ZooKeeper.
        ids: Creation zxid and child version of the group's znode ``ids``, to notice members that join; None without it.
        obstacle: Reason why Kafka accepts no committed positions for the group; empty if it accepts them.
        partitions: Both positions of each partition, and what is to be written.
    """

    group: str
    cluster: str
    to: Place
    members: int
    ids: tuple[int, int] | None
    obstacle: str
    partitions: Sequence[PartitionMigration]

    @property
    def writes(self) -> Sequence[PartitionMigration]:
        """Partitions whose position is written to the store that the group moves to."""
        return [one for one in self.partitions if one.writes is not None]

    @property
    def left(self) -> Sequence[PartitionMigration]:
        """Partitions that a migration does not write, since live members consume and commit them."""
        behind = {Comparison.MISSING, Comparison.SMALLER}
        return [one for one in self.partitions if one.is_consumed and one.comparison in behind]

    def find_refusal(self) -> str:
        """Return the reason why the migration cannot be applied; empty if it can."""
        if self.obstacle:
            return self.obstacle
        refused = [one for one in self.partitions if one.refusal and not one.is_consumed]
        return "\n".join(
            [
                *(f"{one.partition}: {one.refusal}" for one in refused[:_SHOWN]),
                *([f"and {len(refused) - _SHOWN} more"] if len(refused) > _SHOWN else []),
            ]
        )

    def explain_left(self) -> str:
        """Explain which partitions are not written because live members consume them.

        Returns an empty text if there are none.
        """
        if not self.left:
            return ""
        return (
            f"{counted(len(self.left), 'partition')} of topics that live members consume left alone "
            f"({join_shown([one.partition for one in self.left], _SHOWN)}): members may commit meanwhile, and would be "
            "set back. Members that commit to both places write them within a commit interval (step 1 of migrate "
            "plan); or stop the members first"
        )

    def plan(self) -> Plan:
        """Return the position changes that the migration makes, as a plan of direct writes."""
        return Plan(
            moves=[self._plan_move(one, one.writes) for one in self.writes if one.writes is not None], ids=self.ids
        )

    def _plan_move(self, one: PartitionMigration, position: int) -> PlannedMove:
        return PlannedMove(
            partition=one.partition,
            position=one.target.believed,
            version=node_version(one.target),
            target=position,
            owner=None,
            way=Way.DIRECTLY,
            why="",
            earlier=None,
            places=frozenset({self.to}),
            incarnation=one.incarnation,
        )

    def describe_applied(self, now_ms: int) -> AppliedMigration:
        """Return the record of written and replaced positions, from which ``rollback`` restores them.

        Args:
            now_ms: Present time, in ms since the epoch.
        """
        return AppliedMigration(
            group=self.group,
            cluster=self.cluster,
            to=self.to,
            applied_ms=now_ms,
            offsets=[
                ReplacedOffset(
                    partition=one.partition,
                    incarnation=None if one.incarnation is None else str(one.incarnation),
                    before=one.target.value,
                    validity=one.target.validity,
                    written=one.writes,
                )
                for one in self.writes
                if one.writes is not None
            ],
        )


def other_place(place: Place) -> Place:
    """Return Kafka for ZooKeeper, and ZooKeeper for Kafka: the other store of committed positions."""
    return Place.KAFKA if place is Place.ZOOKEEPER else Place.ZOOKEEPER


def _number(position: Position) -> int:
    return -1 if position.believed is None else position.believed


# -- reading


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveMembers:
    """Members of a group that are registered in ZooKeeper.

    Args:
        count: Number of members.
        topics: Topics that they consume; None if a registration cannot be read: then any topic may be consumed.
        ids: Creation zxid and child version of the group's znode ``ids``; None if the znode does not exist.
    """

    count: int
    topics: frozenset[str] | None
    ids: tuple[int, int] | None

    def consume(self, topic: str) -> bool:
        """Return True if a live member may consume the topic."""
        return self.count > 0 and (self.topics is None or topic in self.topics)


async def read_members(access: ClusterAccess, group: str) -> LiveMembers:
    """Read the members of a group from ZooKeeper. Raises CoordinationError."""
    registry = GroupRegistry(access.zk, group, wall_ms=lambda: 0, random=random.Random(0), layout=access.layout)
    found = await registry.read(None, lambda _topics: None)
    is_readable = all(member.registration is not None for member in found.members)
    return LiveMembers(
        count=len(found.members),
        topics=frozenset(found.topics) if is_readable else None,
        ids=found.stamp.ids if found.stamp.ids != (0, 0) else None,
    )


async def read_migration(
    access: ClusterAccess,
    group: str,
    wanted: Collection[str],
    to: Place,
    places: Collection[Place] = ZOOKEEPER_ONLY,
    *,
    replace_larger: bool = False,
) -> Migration:
    """Compare a group's positions in ZooKeeper and Kafka, and plan what a migration writes.

    Args:
        wanted: Topics; empty for all of the group's.
        to: Store that the group moves to.
        places: Stores in which members with these settings read committed positions.
        replace_larger: True to replace also larger positions in the store that the group moves to.

    Raises NotFound if there is no such group, ConfigError for a topic that does not exist, CoordinationError.
    """
    positions = open_positions(access.cluster, group)
    await require_group(access, positions)
    await check_topics(access.topics, wanted)
    topics = set(wanted) or await list_group_topics(access, positions) | await positions.list_kafka_topics()
    members = await read_members(access, group)
    kept = await positions.read_kept(topics)
    known = sorted(one for one in kept.zookeeper.keys() | kept.kafka.keys() if not one.is_legacy)
    made = await positions.find_incarnations({one.topic for one in known})
    if known:  # without a name, all topics of the cluster would be followed
        await follow_topics(access, {one.topic for one in known}, missing_ok=True)
    there = [one for one in known if access.directory.view.find_leader(one) is not None]
    ranges = await access.ranges.find(there)
    return Migration(
        group=group,
        cluster=await read_cluster(access),
        to=to,
        members=members.count,
        ids=members.ids,
        obstacle=await find_kafka_obstacle(access.cluster, group),
        partitions=[
            plan_partition(
                group,
                one,
                kept,
                to,
                places,
                incarnation=made[one.topic],
                log=ranges.get(one),
                is_consumed=members.consume(one.topic),
                replace_larger=replace_larger,
            )
            for one in known
        ],
    )


# -- what follows


def plan_partition(
    group: str,
    partition: TopicPartition,
    kept: KeptPositions,
    to: Place,
    places: Collection[Place],
    *,
    incarnation: Incarnation | None,
    log: LogRange | None,
    is_consumed: bool,
    replace_larger: bool,
) -> PartitionMigration:
    """Compare one partition's positions in ZooKeeper and Kafka, and decide what a migration writes.

    A position is copied to the store that the group moves to if it is missing or smaller there. A larger one there is
    refused, or replaced with ``replace_larger``.

    Args:
        group: Name of the group, for the advice to the operator.
        kept: Committed positions in both stores.
        to: Store that the group moves to.
        places: Stores in which members read committed positions.
        incarnation: Identity of the topic since its creation; None if the topic does not exist.
        log: Start and end of the partition's log; None if its leader did not answer.
        is_consumed: True if live members consume the topic; then nothing is written.
        replace_larger: True to replace also a larger position in the store that the group moves to.
    """
    found = {
        Place.ZOOKEEPER: kept.zookeeper.get(partition, NO_POSITION),
        Place.KAFKA: kept.kafka.get(partition, _NONE_IN_KAFKA),
    }
    source, target = found[other_place(to)], found[to]
    comparison = _compare(source, target)
    refusal = ""
    if incarnation is None:
        comparison = Comparison.NONE
    elif not kept.is_told(partition):
        comparison, refusal = Comparison.UNUSABLE, f"its position in Kafka is unknown: {kept.unknown}"
    else:
        refusal = _find_source_problem(source, target, comparison, log, f"-g {group} {partition}")
        if refusal:
            comparison = Comparison.UNUSABLE
    is_written = comparison in {Comparison.MISSING, Comparison.SMALLER}
    if comparison is Comparison.LARGER:
        if replace_larger:
            is_written = not is_consumed
        if not is_written and not is_consumed:
            refusal = _explain_larger(source, target, log)
    return PartitionMigration(
        partition=partition,
        incarnation=incarnation,
        source=source,
        target=target,
        counts=kept.find_counting(partition, places),
        comparison=comparison,
        is_consumed=is_consumed,
        writes=source.believed if is_written and not is_consumed else None,
        refusal=refusal,
        note=_find_note(source, target, comparison, log, incarnation),
    )


def _compare(source: Position, target: Position) -> Comparison:
    if source.believed is None:
        return Comparison.NONE if target.believed is None else Comparison.ONLY_TARGET
    if target.believed is None:
        return Comparison.MISSING
    if source.believed == target.believed:
        return Comparison.SAME
    return Comparison.SMALLER if is_larger(source.believed, target.believed) else Comparison.LARGER


def _find_source_problem(
    source: Position, target: Position, comparison: Comparison, log: LogRange | None, named: str
) -> str:
    """Explain why the source's position must not be copied; empty if it may be."""
    if source.malformed and target.believed is None:
        return f"{source.explain()}: say where to go on: consumerd offsets set {named}=POSITION"
    if comparison not in {Comparison.MISSING, Comparison.SMALLER}:
        return ""
    if log is None:
        return "its leader has not told the range of its log, so the position cannot be checked; try again"
    if source.believed is not None and source.believed > log.latest:
        return (
            f"position {source.believed} in {source.place.label} is above the log [{log.earliest}, {log.latest}]: it "
            "is of a deleted topic of the same name, or the log was truncated. Say where to go on: consumerd offsets "
            f"reset {named} --to earliest (or latest, or a time)"
        )
    return ""


def _explain_larger(source: Position, target: Position, log: LogRange | None) -> str:
    here, there = source.place.label, target.place.label
    if log is not None and target.believed is not None and target.believed > log.latest:
        return (
            f"{there} holds {target.believed}, above the log [{log.earliest}, {log.latest}]: a position of a deleted "
            f"topic of the same name. Members that read both places would take it for the larger one. Write "
            f"{source.believed} over it: --replace-larger"
        )
    return (
        f"{there} holds {target.believed}, {here} {source.believed}: members that read both places go on at the larger "
        f"one. If the position in {here} was moved back on purpose, write it over the other one: --replace-larger. If "
        f"members commit to {there} already, nothing is to be written: leave the topic out"
    )


def _find_note(
    source: Position,
    target: Position,
    comparison: Comparison,
    log: LogRange | None,
    incarnation: Incarnation | None,
) -> str:
    if incarnation is None:
        return "topic deleted"
    older = [
        f"not copied: {one.explain()} ({one.place.label})"
        for one in (source, target)
        if one.validity is Validity.ANOTHER_INCARNATION
    ]
    if comparison is Comparison.MISSING and source.validity is Validity.UNKNOWN_AGE:
        older.append("of unknown age")
    if log is not None and source.believed is not None and source.believed < log.earliest:
        older.append(f"below the log by {log.earliest - source.believed}")
    return "; ".join(older)


# -- after a write, and under load


def check_applied(before: Migration, after: Migration) -> None:
    """Check that no client has committed while a migration wrote positions.

    Args:
        before: Positions read before the writes, with the planned writes.
        after: Positions read after them.

    Raises OffsetError that names partitions with other positions than those written.
    """
    now = {one.partition: one for one in after.partitions}
    moved = [
        one.partition
        for one in before.writes
        if one.writes is not None and (one.partition not in now or now[one.partition].pair != (one.pair[0], one.writes))
    ]
    if moved:
        raise OffsetError(
            f"{join_shown(moved, _SHOWN)}: a client has committed while positions were written, though no member here "
            "consumes the topic: the group is alive elsewhere. Stop that client, and look again with: consumerd "
            "offsets migrate plan"
        )


async def wait_until_equal(
    read: Callable[[], Awaitable[Migration]], wait_s: float, now: Callable[[], float]
) -> tuple[Migration, Sequence[PartitionMigration]]:
    """Read a group's positions in ZooKeeper and Kafka until the two stores agree.

    Returns the last reading, and the partitions in which they still differ. They agree when each has reached the
    position that the other one held at first: commits go on all the time, so stores that are written one after the
    other are hardly ever equal in one reading. Example: ZooKeeper holds 200, and Kafka 150. A second later they hold
    260 and 210: Kafka has passed 200.

    Args:
        read: Reads the positions in both stores.
        wait_s: Time limit, in seconds, for a group with live members. Without members there is one reading.
        now: Monotonic clock, in seconds.
    """
    first = await read()
    pending = {one.partition: one for one in first.partitions if _differs(one)}
    last, until = first, now() + wait_s
    while pending and last.members and now() < until:
        await asyncio.sleep(_POLL_S)
        last = await read()
        pending = find_unreached(pending, last)
    return last, list(pending.values())


def find_unreached(
    pending: Mapping[TopicPartition, PartitionMigration], last: Migration
) -> dict[TopicPartition, PartitionMigration]:
    """Return the partitions whose positions in ZooKeeper and Kafka do not agree yet.

    They agree when each store has reached the position that the other one held before.

    Args:
        pending: Partitions that differed, with the positions of an earlier reading.
        last: Positions of the last reading.
    """
    found = {one.partition: one for one in last.partitions}
    return {
        partition: one
        for partition, one in pending.items()
        if partition in found and not _has_reached(one, found[partition])
    }


def _has_reached(first: PartitionMigration, last: PartitionMigration) -> bool:
    if last.comparison is Comparison.UNUSABLE:
        return False
    reached = max(first.pair)
    return not _differs(last) or min(last.pair) >= reached


def _differs(one: PartitionMigration) -> bool:
    # where the target alone has a position, members go on at it, from one place and from both
    return one.comparison not in {Comparison.SAME, Comparison.NONE, Comparison.ONLY_TARGET}


def explain_differences(differing: Collection[PartitionMigration], to: Place) -> str:
    """Explain why members must not be switched to one store of positions yet.

    Returns a text for the operator.

    Args:
        differing: Partitions whose positions in ZooKeeper and Kafka differ.
        to: Store that the group moves to.
    """
    here, there = other_place(to).label, to.label
    setting = (
        "offsets.dual_commit: false (Java: dual.commit.enabled=false)"
        if to is Place.KAFKA
        else "offsets.storage: zookeeper"
    )
    by_result: dict[Comparison, list[TopicPartition]] = {}
    for one in differing:
        by_result.setdefault(one.comparison, []).append(one.partition)
    behind = sorted([*by_result.get(Comparison.MISSING, ()), *by_result.get(Comparison.SMALLER, ())])
    ahead = by_result.get(Comparison.LARGER, [])
    unusable = by_result.get(Comparison.UNUSABLE, [])
    lines = [f"do not set {setting} yet"]
    if behind:
        lines.append(
            f"{counted(len(behind), 'partition')} without the position in {there} ({join_shown(behind, _SHOWN)}): "
            "members that commit to both places write it; where none consumes the topic: consumerd offsets migrate "
            "apply"
        )
    if ahead:
        lines.append(
            f"{counted(len(ahead), 'partition')} with a larger position in {there} ({join_shown(ahead, _SHOWN)}): "
            f"members commit there alone, or the position in {here} was moved back; consumerd offsets migrate plan "
            "tells more"
        )
    if unusable:
        lines.append(
            f"{counted(len(unusable), 'partition')} with a position that cannot be compared "
            f"({join_shown(unusable, _SHOWN)}): consumerd offsets migrate plan says why"
        )
    return "\n".join(lines)
