# SPDX-License-Identifier: Apache-2.0
"""Reads groups of the source, and decides what becomes of their positions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from consumerd.admin.group_facts import GroupFacts, GroupsReading, read_all_groups
from consumerd.admin.inspection import choose_places, follow_topics, require_group
from consumerd.admin.lag import find_counted
from consumerd.admin.migrate.comparing import LONGEST_RECORD_BYTES, find_first_record
from consumerd.admin.migrate.decisions import CAREFUL, GroupMove, MoveOptions, PartitionFacts, PartitionMove, decide
from consumerd.admin.migrate.mirrored import MirroredPartitions
from consumerd.aio.parallel import map_bounded
from consumerd.client.group_coordinators import NO_GROUP
from consumerd.client.opening import ClusterAccess, make_simple_consumer
from consumerd.errors import ConsumerdError, CorruptMessageError
from consumerd.model import LogRange, TopicPartition
from consumerd.offsets.opening import open_positions
from consumerd.offsets.positions import describe_ahead, find_outrun
from consumerd.offsets.store import Place

PATIENCE_S: Final = 5.0
"""Time limit, in seconds, for brokers that do not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MirroredClusters:
    """Source and target, with the mirror between them.

    Attributes:
        mirrored: what the mirror has stored in the target.
        places: where members of groups in ZooKeeper read their positions: ZooKeeper, Kafka, or both.
        mirror_group: the group that mirrors, which is not moved.
    """

    source: ClusterAccess
    target: ClusterAccess
    mirrored: MirroredPartitions
    places: Collection[Place]
    mirror_group: str


async def read_groups(
    clusters: MirroredClusters,
    groups: Collection[str] = (),
    topics: Collection[str] = (),
    options: MoveOptions = CAREFUL,
) -> list[GroupMove]:
    """Read groups, and decide what becomes of their positions.

    Args:
        groups: groups to read; empty for all but the one that mirrors.
        topics: topics to read; empty for all of each group's.

    Raises NotFound for a group that does not exist, ConfigError for a topic that does not exist, CoordinationError,
    ConnectionLost.
    """
    await clusters.mirrored.refresh()
    reading = await read_all_groups(clusters.source, PATIENCE_S, topics)
    names = list(groups) or [name for name in reading.names if name != clusters.mirror_group]
    facts = [await reading.read_group(name) for name in names] if groups else await _read_all(reading, names)
    for one in facts:
        if not one.is_there:
            await require_group(clusters.source, open_positions(clusters.source.cluster, one.group))
    there = await read_all_groups(clusters.target, PATIENCE_S)
    in_target = [await there.read_group(one.group) for one in facts]
    found = [_list_facts(clusters, one, topics) for one in facts]
    goals = {one.goal for of_group in found for one in of_group if one.goal is not None}
    # before the source's logs: what is produced and mirrored meanwhile is behind these ends
    logs = await find_target_ranges(clusters.target, goals)
    ranges = (await reading.find_ranges(facts, topics)).ranges
    return [
        await _decide_group(
            clusters,
            one,
            [replace(each, source=ranges.get(each.partition)) for each in of_group],
            options,
            logs,
            of_target,
        )
        for one, of_group, of_target in zip(facts, found, in_target, strict=True)
    ]


async def _read_all(reading: GroupsReading, names: Collection[str]) -> list[GroupFacts]:
    return [one for one in await reading.read_groups() if one.group in names]


async def _decide_group(
    clusters: MirroredClusters,
    facts: GroupFacts,
    found: Sequence[PartitionFacts],
    options: MoveOptions,
    logs: Mapping[TopicPartition, LogRange],
    in_target: GroupFacts,
) -> GroupMove:
    committed = in_target.kept.kafka
    gaps = {one.partition: one.gap for one in found if one.gap is not None and one.source is not None}
    is_empty = await look_into_gaps(clusters.source, gaps)
    partitions: list[PartitionMove] = []
    for one in found:
        goal = one.goal
        kept = None if goal is None else committed.get(goal)
        full = replace(
            one,
            target=None if goal is None else logs.get(goal),
            committed=None if kept is None else kept.value,
            gap_is_empty=is_empty.get(one.partition, False),
        )
        partitions.append(decide(full, facts.group, options))
    problems = [facts.problem]
    if facts.coordinated is not None and facts.coordinated.failure:
        problems.append(f"its members in the source are unknown: {facts.coordinated.failure}")
    if in_target.kept.unknown:
        problems.append(f"its positions in the target are unknown: {in_target.kept.unknown}")
    if in_target.coordinated is not None and in_target.coordinated.failure:
        problems.append(f"its members in the target are unknown: {in_target.coordinated.failure}")
    return GroupMove(
        group=facts.group,
        places=tuple(sorted(place.value for place in _find_places(facts))),
        members=len(facts.snapshot.members) + len(facts.coordinated_members),
        target_members=len(in_target.coordinated_members),
        partitions=partitions,
        problem="; ".join(filter(None, problems)),
    )


def _find_places(facts: GroupFacts) -> set[Place]:
    """Return the stores in which the group has positions."""
    return {
        place
        for place, kept in ((Place.ZOOKEEPER, facts.kept.zookeeper), (Place.KAFKA, facts.kept.kafka))
        if any(one.value is not None for one in kept.values())
    }


def _list_facts(
    clusters: MirroredClusters,
    facts: GroupFacts,
    topics: Collection[str],
) -> list[PartitionFacts]:
    """Return the group's positions in the source, with the mirror's; logs are not read yet."""
    coordinated = NO_GROUP if facts.coordinated is None or facts.snapshot.members else facts.coordinated
    places = choose_places(coordinated, clusters.places)
    outrun = find_outrun(facts.kept, places)
    found = []
    for partition in sorted({*facts.kept.zookeeper, *facts.kept.kafka}):
        if topics and partition.topic not in topics:
            continue
        position = find_counted(facts.kept, partition, places)
        problem = ""
        if facts.kept.is_unknown(partition, places):
            problem = f"its position in Kafka is unknown: {facts.kept.unknown}"
        elif partition in outrun and outrun[partition].place is not position.place:
            ahead = describe_ahead(partition, position, outrun[partition])
            problem = f"two positions: {ahead}. Where members keep them: --set offsets.storage=kafka, or zookeeper"
        offsets = None
        try:
            offsets = clusters.mirrored.find(partition, position.incarnation)
        except CorruptMessageError as error:
            problem = str(error)
        found.append(
            PartitionFacts(
                partition=partition,
                position=position,
                problem=problem,
                offsets=offsets,
                goal=clusters.mirrored.find_goal(partition, offsets),
            )
        )
    return found


async def look_into_gaps(
    source: ClusterAccess, gaps: Mapping[TopicPartition, tuple[int, int]]
) -> Mapping[TopicPartition, bool]:
    """Return for each partition whether the source has no committed record in its gap.

    False for a partition that cannot be read: its gap may have records.

    Args:
        gaps: first offset of each gap, and the first one behind it.
    """
    if not gaps:
        return {}
    consumer = make_simple_consumer(
        source, max_message_bytes=LONGEST_RECORD_BYTES, timeout_s=PATIENCE_S, read_committed=True
    )

    async def look(partition: TopicPartition) -> bool:
        start, end = gaps[partition]
        try:
            return await find_first_record(consumer, partition, start, end) is None
        except ConsumerdError:
            return False

    return await map_bounded(gaps, look)


async def find_target_ranges(
    target: ClusterAccess, partitions: Collection[TopicPartition]
) -> Mapping[TopicPartition, LogRange]:
    """Return the logs of partitions of the target.

    A partition that does not exist, or whose leader does not answer, is missing.
    """
    if not partitions:
        return {}
    await follow_topics(target, {one.topic for one in partitions}, missing_ok=True)
    view = target.directory.view
    return await target.ranges.find([one for one in set(partitions) if view.find_leader(one) is not None])
