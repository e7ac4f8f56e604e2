# SPDX-License-Identifier: Apache-2.0
"""Carries out ``consumerd migrate translate`` and ``cutover``: writes positions, and waits where it must."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Final

from consumerd.admin.inspection import follow_topics
from consumerd.admin.migrate.comparing import CopyComparison, PartitionPair
from consumerd.admin.migrate.cutover import CutoverStep, choose_step, find_moved, note_positions
from consumerd.admin.migrate.decisions import GroupMove, MoveOptions, PartitionMove
from consumerd.admin.migrate.opening import OpenMigration
from consumerd.admin.migrate.reading import find_target_ranges, read_groups
from consumerd.client.opening import ClusterAccess
from consumerd.client.topic_admin import TopicAdmin
from consumerd.errors import ConsumerdError, OffsetError
from consumerd.mirror.checkpoint import Checkpoint
from consumerd.mirror.journal import CutoverEntry, CutoverState
from consumerd.model import TopicPartition
from consumerd.telemetry.wording import join_shown

_POLL_S: Final = 1.0
"""Interval, in seconds, at which the command looks again while it waits."""
_SHOWN: Final = 5
_DONE_BY: Final = {
    CutoverStep.NOTE_MIRRORED: CutoverState.MIRRORED,
    CutoverStep.TRANSLATE: CutoverState.TRANSLATED,
    CutoverStep.VERIFY: CutoverState.VERIFIED,
    CutoverStep.FINISH: CutoverState.DONE,
}


async def write_group(opened: OpenMigration, group: GroupMove, alias: str | None) -> None:
    """Write a group's translated positions into the target, and its checkpoints.

    Args:
        group: the group; its positions must not be refused.
        alias: name of the source in checkpoints; None to write none.

    Raises OffsetError if the coordinator refuses a position; CoordinationError; ProduceError.
    """
    positions = {one.goal: (one.translated or 0, one.metadata) for one in group.writes if one.goal is not None}
    if positions:
        await opened.writer.commit(group.group, positions)
    if alias is not None:
        await opened.writer.write_checkpoints(alias, make_checkpoints(group))


def check_written(before: GroupMove, after: GroupMove) -> None:
    """Check that the target has what was written.

    Args:
        before: the group as it was written.
        after: the group as it was read since.

    Raises OffsetError.
    """
    now = {one.partition: one for one in after.partitions}
    other = [
        f"{one.partition} ({now[one.partition].committed} there, {one.translated} was written)"
        for one in before.writes
        if one.partition not in now or now[one.partition].committed != one.translated
    ]
    if other:
        raise OffsetError(
            f"the target does not tell what was written for group {before.group}; does another client commit for it? "
            f"{join_shown(other, _SHOWN)}"
        )


def make_checkpoints(group: GroupMove) -> list[Checkpoint]:
    """Return MirrorMaker 2's checkpoints of a group's translated positions."""
    return [
        Checkpoint(
            group=group.group,
            topic=one.goal.topic,
            partition=one.goal.partition.number,
            source=one.position,
            target=one.translated,
        )
        for one in group.moved
        if one.goal is not None and one.position is not None and one.translated is not None
    ]


async def find_compacted(access: ClusterAccess, topics: Collection[str]) -> frozenset[str]:
    """Return those of the topics that are compacted.

    Raises ConsumerdError if a topic's settings cannot be read.
    """
    if not topics:
        return frozenset()
    admin = TopicAdmin(access.pool, access.directory, random=random.random)
    found = await admin.describe_topics(sorted(topics), ["cleanup.policy"])
    compacted = set()
    for topic, settings in found.items():
        if isinstance(settings, ConsumerdError):
            raise settings
        policy = settings.get("cleanup.policy")
        if policy is not None and "compact" in (policy.value or ""):
            compacted.add(topic)
    return frozenset(compacted)


class Cutover:
    """Cut-over of one group.

    Args:
        topics: topics of the group to move; empty for all.
        alias: name of the source in checkpoints; None to write none.
        wall_ms: Present time, in ms since the epoch.
        now: Monotonic clock, in seconds.
        show: Called with each step as it begins, and its reason.
    """

    def __init__(
        self,
        opened: OpenMigration,
        group: str,
        *,
        topics: Collection[str] = (),
        options: MoveOptions,
        alias: str | None,
        wall_ms: Callable[[], int],
        now: Callable[[], float],
        show: Callable[[CutoverStep, str], None],
    ) -> None:
        self._opened = opened
        self._group = group
        self._topics = topics
        self._options = options
        self._alias = alias
        self._wall_ms = wall_ms
        self._now = now
        self._show = show
        self._key = opened.find_key(group)
        self._shown: tuple[CutoverStep, str] | None = None

    async def look(self) -> GroupMove:
        """Read the group from both clusters."""
        (found,) = await read_groups(self._opened.clusters, [self._group], self._topics, self._options)
        return found

    async def run(self, wait_s: float) -> GroupMove:
        """Carry out all steps that are left, and return the group as it is then.

        Args:
            wait_s: Time limit, in seconds, for members to stop, and for the mirror.

        Raises OffsetError if a step is refused, or the time is over; it can be run again. ConsumerdError.
        """
        until = self._now() + wait_s
        entry = await self._opened.writer.find_entry(self._key)
        if entry is None:
            entry = await self._note(CutoverEntry(state=CutoverState.PLANNED, written_ms=0))
        before: GroupMove | None = None
        while True:
            group = await self.look()
            step, why = choose_step(entry, group)
            self._tell(step, why)
            if step is CutoverStep.TRANSLATE and before is not None:
                check_written(before, group)
            before = group if step is CutoverStep.TRANSLATE else None
            if step is CutoverStep.NOTHING:
                return group
            if step is CutoverStep.REFUSE:
                raise OffsetError(f"group {self._group}: {why}")
            if step in {CutoverStep.WAIT_FOR_STOP, CutoverStep.WAIT_FOR_MIRROR}:
                if self._now() >= until:
                    raise OffsetError(f"group {self._group}: still to {step.value} after {wait_s:g} s: {why}")
                await asyncio.sleep(_POLL_S)
                continue
            entry = await self._carry_out(step, entry, group)

    async def _carry_out(self, step: CutoverStep, entry: CutoverEntry, group: GroupMove) -> CutoverEntry:
        if step is CutoverStep.NOTE_POSITIONS:
            places, positions = group.places, note_positions(group)
            return await self._note(
                CutoverEntry(state=CutoverState.STOPPED, written_ms=0, places=places, positions=positions)
            )
        if step is CutoverStep.TRANSLATE:
            await write_group(self._opened, group, self._alias)
        elif step is CutoverStep.VERIFY:
            await self._verify(group)
        elif step is CutoverStep.FINISH:
            last = await self.look()
            if last.members or find_moved(entry.positions, last):
                return entry  # members were started again: the next round finds the step
        return await self._note(replace(entry, state=_DONE_BY[step], positions=note_positions(group)))

    async def _verify(self, group: GroupMove) -> None:
        comparer, results = self._opened.make_comparer(), list[CopyComparison]()
        pairs = await list_pairs(self._opened, [one for one in group.moved if one.mirrored is not None])
        for move, pair in pairs:
            result = CopyComparison(partition=move.partition)
            await comparer.compare_at(pair, move.position or 0, result)
            results.append(result)
        if different := [text for result in results for text in result.differences]:
            raise OffsetError(f"group {self._group} must not start in the target: {join_shown(different, _SHOWN)}")

    async def _note(self, entry: CutoverEntry) -> CutoverEntry:
        noted = replace(entry, written_ms=self._wall_ms())
        await self._opened.writer.note(self._key, noted)
        return noted

    def _tell(self, step: CutoverStep, why: str) -> None:
        if self._shown != (step, why):
            self._shown = (step, why)
            self._show(step, why)


async def list_pairs(
    opened: OpenMigration, moves: Sequence[PartitionMove]
) -> list[tuple[PartitionMove, PartitionPair]]:
    """Return each moved partition with its copy, to be compared.

    Raises OffsetError for one that is not mirrored, or whose log cannot be read; ConsumerdError.
    """
    partitions = [one.partition for one in moves]
    pairs = await find_pairs(opened, partitions)
    if missing := [one for one in partitions if one not in pairs]:
        raise OffsetError(f"{join_shown(missing, _SHOWN)}: not mirrored, or without a leader in one of both clusters")
    return [(one, pairs[one.partition]) for one in moves]


async def find_pairs(
    opened: OpenMigration, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, PartitionPair]:
    """Return partitions with their copies.

    Those that are not mirrored, or have no leader in one of both clusters, are missing.

    Raises ConsumerdError.
    """
    clusters, topics = opened.clusters, {one.topic for one in partitions}
    if not topics:
        return {}
    await follow_topics(clusters.source, topics, missing_ok=True)
    view = clusters.source.directory.view
    incarnations = await clusters.source.topics.find_incarnations(topics)
    logs = await clusters.source.ranges.find([one for one in partitions if view.find_leader(one) is not None])
    maps = {one: clusters.mirrored.find(one, incarnations[one.topic]) for one in partitions}
    goals = {
        one: TopicPartition.modern(found.stored.target_topic, found.stored.target_partition)
        for one, found in maps.items()
        if found is not None
    }
    target_logs = await find_target_ranges(clusters.target, list(goals.values()))
    compacted = await find_compacted(clusters.target, {one.topic for one in goals.values()})
    pairs = {}
    for one, goal in goals.items():
        found, source_log, target_log = maps[one], logs.get(one), target_logs.get(goal)
        if found is not None and source_log is not None and target_log is not None:
            pairs[one] = PartitionPair(
                source=one,
                source_log=source_log,
                target=goal,
                target_log=target_log,
                offsets=found,
                is_compacted=goal.topic in compacted,
            )
    return pairs
