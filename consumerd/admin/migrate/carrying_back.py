# SPDX-License-Identifier: Apache-2.0
"""Carries out ``consumerd migrate rollback``: writes a group's positions of the target into the source.

They go where the group had them before: ZooKeeper, Kafka, or both, as the journal of its cut-over says. Both clusters
must have no live members of the group. Members of ours that keep files get a request, as ``consumerd offsets set``
leaves it: only a member can begin a new chain.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

from consumerd.admin.group_facts import GroupFacts, read_all_groups
from consumerd.admin.inspection import find_coordinated, follow_topics
from consumerd.admin.kafka_moves import move_in_kafka, plan_kafka_moves
from consumerd.admin.lag import find_counted
from consumerd.admin.migrate.opening import OpenMigration
from consumerd.admin.migrate.reading import PATIENCE_S, find_target_ranges, look_into_gaps
from consumerd.admin.migrate.returning import PartitionReturn, ReturnFacts, ReturnVerdict, decide_return, match_goals
from consumerd.admin.operations import OffsetMover, Plan, PositionMoveRow, Target, plan_moves
from consumerd.errors import NotFound, OffsetError
from consumerd.mirror.journal import CutoverEntry, CutoverState
from consumerd.model import PartitionKey, TopicPartition
from consumerd.offsets.opening import open_kafka_writer, open_positions
from consumerd.offsets.store import Place
from consumerd.telemetry.wording import counted, join_shown

_SHOWN: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReturn:
    """Positions that a group gets in the source.

    Attributes:
        partitions: decision about each position in the target.
        places: stores that are written.
        plan: writes, as ``consumerd offsets set`` makes them.
        refusal: why nothing may be written; empty if it may.
    """

    group: str
    partitions: Sequence[PartitionReturn]
    places: Collection[Place]
    plan: Plan
    refusal: str


async def read_return(
    opened: OpenMigration, group: str, topics: Collection[str] = (), *, allow_backwards: bool = False
) -> GroupReturn:
    """Read a group's positions in the target, and plan the writes into the source.

    Args:
        topics: topics of the source to read; empty for all that are mirrored.

    Raises NotFound if the group has no position in the target, of a topic that the mirror writes; CoordinationError,
    ConnectionLost, CorruptMessageError.
    """
    clusters = opened.clusters
    await clusters.mirrored.refresh()
    there = await (await read_all_groups(clusters.target, PATIENCE_S)).read_group(group)
    here = await (await read_all_groups(clusters.source, PATIENCE_S)).read_group(group)
    entry = await opened.writer.find_entry(opened.find_key(group))
    places = _choose_places(entry, here, clusters.places)
    found = await _decide(opened, here, there, topics, places, allow_backwards=allow_backwards)
    if not found:
        raise NotFound(f"group {group!r} has no position in the target, of a topic that the mirror writes")
    targets = [
        Target(partition=one.partition, position=one.returned) for one in found if one.verdict is ReturnVerdict.READY
    ]
    return GroupReturn(
        group=group,
        partitions=found,
        places=places,
        plan=await _plan(opened, group, targets, places),
        refusal=_find_refusal(group, here, there, found),
    )


def _choose_places(entry: CutoverEntry | None, here: GroupFacts, settings: Collection[Place]) -> frozenset[Place]:
    """Return the stores that had the group's positions at its cut-over, or have them now."""
    if entry is not None and entry.places:
        return frozenset(map(Place, entry.places))
    kept = ((Place.ZOOKEEPER, here.kept.zookeeper), (Place.KAFKA, here.kept.kafka))
    found = frozenset(place for place, positions in kept if any(one.value is not None for one in positions.values()))
    return found or frozenset(settings)


async def _decide(
    opened: OpenMigration,
    here: GroupFacts,
    there: GroupFacts,
    topics: Collection[str],
    places: Collection[Place],
    *,
    allow_backwards: bool,
) -> list[PartitionReturn]:
    clusters = opened.clusters
    partitions = [
        TopicPartition(topic, PartitionKey.parse(partition))
        for topic, partition in clusters.mirrored.partitions
        if not topics or topic in topics
    ]
    incarnations = await clusters.source.topics.find_incarnations({one.topic for one in partitions})
    maps = {one: clusters.mirrored.find(one, incarnations[one.topic]) for one in partitions}
    matched = [one for one in match_goals(partitions, maps) if one[1] in there.kept.kafka]
    if not matched:
        return []
    await follow_topics(clusters.source, {one.topic for one, _, _ in matched}, missing_ok=True)
    view = clusters.source.directory.view
    logs = await clusters.source.ranges.find([one for one, _, _ in matched if view.find_leader(one) is not None])
    target_logs = await find_target_ranges(clusters.target, [goal for _, goal, _ in matched])
    found = []
    for partition, goal, offsets in matched:
        position = find_counted(here.kept, partition, places).believed
        facts = ReturnFacts(
            partition=partition,
            goal=goal,
            committed=there.kept.kafka[goal].value or 0,
            offsets=offsets,
            source=logs.get(partition),
            target=target_logs.get(goal),
            position=position,
            is_everywhere=_is_everywhere(here, partition, places, position),
        )
        found.append(facts)
    gaps = {
        one.partition: (one.returned, one.position)
        for one in map(decide_return, found)
        if one.verdict is ReturnVerdict.BACKWARDS and one.position is not None
    }
    is_empty = await look_into_gaps(clusters.source, gaps)
    return [
        decide_return(replace(one, gap_is_empty=is_empty.get(one.partition, False)), allow_backwards=allow_backwards)
        for one in found
    ]


def _is_everywhere(
    here: GroupFacts, partition: TopicPartition, places: Collection[Place], position: int | None
) -> bool:
    """Return True if each of the stores has a position."""
    stores = {Place.ZOOKEEPER: here.kept.zookeeper, Place.KAFKA: here.kept.kafka}
    stored = [stores[place].get(partition) for place in places]
    return all(one is not None and one.believed == position for one in stored)


def _find_refusal(group: str, here: GroupFacts, there: GroupFacts, found: Sequence[PartitionReturn]) -> str:
    reasons = []
    for name, facts in (("source", here), ("target", there)):
        members = len(facts.snapshot.members) + len(facts.coordinated_members)
        if members:
            reasons.append(f"group {group} has {counted(members, 'live member')} in the {name}: stop them")
        unknown = facts.problem or (facts.coordinated.failure if facts.coordinated is not None else "")
        if unknown:
            reasons.append(f"group {group} is not known in full in the {name}: {unknown}")
        if facts.kept.unknown:
            reasons.append(f"its positions in Kafka are unknown in the {name}: {facts.kept.unknown}")
    refused = [one for one in found if one.why]
    reasons += [f"{one.partition}: {one.why}" for one in refused[:_SHOWN]]
    reasons += [f"and {len(refused) - _SHOWN} more"] if len(refused) > _SHOWN else []
    return "\n".join(reasons)


async def _plan(opened: OpenMigration, group: str, targets: Sequence[Target], places: Collection[Place]) -> Plan:
    source = opened.clusters.source
    positions = open_positions(source.cluster, group)
    if not targets:
        return Plan(moves=(), ids=None)
    if not source.has_zookeeper:
        return await plan_kafka_moves(positions, await find_coordinated(source, group), targets)
    return await plan_moves(source.zk, positions, targets, places, force=False)


async def carry_back(
    opened: OpenMigration,
    found: GroupReturn,
    make_mover: Callable[[], OffsetMover],
    show: Callable[[PositionMoveRow], None],
    wall_ms: Callable[[], int],
) -> None:
    """Write a group's positions into the source, and note that it has returned.

    Args:
        make_mover: makes what writes to ZooKeeper; not called for a source without it.
        show: called with the row of each written position.
        wall_ms: Present time, in ms since the epoch.

    Raises OffsetError if it is refused, or another client has written a position; CoordinationError; ProduceError.
    """
    if found.refusal:
        raise OffsetError(f"nothing was written\n{found.refusal}")
    if refusal := found.plan.refusal():
        raise OffsetError(f"nothing was written\n{refusal}")
    source, key = opened.clusters.source, opened.find_key(found.group)
    entry = await opened.writer.find_entry(key) or CutoverEntry(state=CutoverState.PLANNED, written_ms=0)
    if source.has_zookeeper:
        await make_mover().carry_out(found.plan, new_chain=False, wait_s=0.0, show=show)
    else:
        await move_in_kafka(open_kafka_writer(source.cluster, found.group), found.plan, show)
    if entry.state is not CutoverState.RETURNED:
        await opened.writer.note(key, replace(entry, state=CutoverState.RETURNED, written_ms=wall_ms()))


def describe_return(found: GroupReturn, place: str) -> str:
    """Return the text that says what to start after a way back.

    Args:
        place: address of the source, as its settings give it.
    """
    stores = " and ".join(sorted(one.label for one in found.places))
    topics = sorted({one.partition.topic for one in found.partitions})
    return (
        f"start the members of group {found.group} in the source again: {place}, positions are in {stores}, topics "
        f"{join_shown(topics, _SHOWN)}"
    )
