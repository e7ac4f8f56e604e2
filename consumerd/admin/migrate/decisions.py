# SPDX-License-Identifier: Apache-2.0
"""Decides which target offset each position of a group becomes, or why none. Pure.

A position is the offset of the next record that the group reads. The target offset is that of the same record, so the
group goes on with it in the target. Some positions have no such record:

| situation | example | decision |
|---|---|---|
| the mirror has not come so far | position 120, the mirror is at 100 | wait |
| it was never mirrored, and the source has it | position 10, the mirror began at 50, the source's log at 0 | refused |
| the target has deleted it, and the source has it | translated to 30, the target's log begins at 40 | refused |
| both clusters have deleted it | as above, the source's log begins behind it | the target's first record |
| the position is of a deleted topic of the same name | | left out, always |
| it is above the source's log | position 120, the log ends at 100 | refused |

A refused position may be moved to the next record that the target has, if the operator accepts what is missing.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

from consumerd.mirror.offset_map import NotMirrored
from consumerd.mirror.partition_map import PartitionMap
from consumerd.model import LogRange, TopicPartition
from consumerd.offsets.positions import Position
from consumerd.offsets.store import Validity
from consumerd.telemetry.wording import counted, join_shown

_SHOWN: Final = 5
"""Partitions that a text names."""


class MoveVerdict(enum.StrEnum):
    """Decision about a position."""

    READY = "ready"
    """It is translated, and the target has none or a smaller one."""
    SAME = "same"
    """The target has it already."""
    AHEAD = "ahead"
    """The target has a larger one."""
    WAITING = "waiting"
    """The mirror has not come so far."""
    REFUSED = "refused"
    """It cannot be translated."""
    LEFT_OUT = "left out"
    """There is nothing to move."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveOptions:
    """Decisions of the operator.

    Attributes:
        allow_backwards: write also where the target has a larger position.
        accept_missing: move also where records that the group has not read are in the source only.
    """

    allow_backwards: bool = False
    accept_missing: bool = False


CAREFUL: Final = MoveOptions()
"""Neither backwards, nor with missing records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFacts:
    """Facts about a group's position in one partition.

    Attributes:
        position: the position in the source that counts.
        problem: why the position is not known for certain, for the operator; else empty.
        source: the source's log; None if its leader has not told.
        offsets: the mirror's position and offset maps; None if the mirror has stored nothing of the partition.
        goal: partition of the target; None if it is not known, since the topic is not mirrored.
        target: the target's log; None if its leader has not told, or the partition does not exist.
        committed: the group's position in the target; None if there is none.
        gap_is_empty: True if the source has no record in :attr:`gap`.
    """

    partition: TopicPartition
    position: Position
    problem: str = ""
    source: LogRange | None = None
    offsets: PartitionMap | None = None
    goal: TopicPartition | None = None
    target: LogRange | None = None
    committed: int | None = None
    gap_is_empty: bool = False

    @property
    def first_unread(self) -> int | None:
        """First unread offset that the source's log still has; None without a position."""
        position = self.position.believed
        if position is None or self.source is None:
            return position
        return max(position, self.source.earliest)

    @property
    def gap(self) -> tuple[int, int] | None:
        """Source offsets between position and offset map, which may be missing in the target.

        The mirror notes no position where there are only markers and aborted records. So a gap may be empty, and the
        position is translated all the same. Without an offset map it is the whole log: nothing says where the mirror
        will begin.
        """
        start = self.first_unread
        if start is None or self.source is None:
            return None
        if self.offsets is None:
            return (self.source.earliest, self.source.latest) if self.source.earliest < self.source.latest else None
        if start < self.offsets.source_start:
            return start, self.offsets.source_start
        mirrored = self.offsets.stored.source
        return (mirrored, start) if start > mirrored else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionMove:
    """Decision about a group's position in one partition.

    Attributes:
        position: position in the source; None if none is stored, or it is no number.
        end: end of the source's log; None if it is not known.
        mirrored: source offset up to which the mirror has come; None if the partition is not mirrored.
        goal: partition of the target; None if the partition is not mirrored.
        translated: offset there; None if the position cannot be translated.
        committed: the group's present position there; None if there is none.
        why: reason why the position is not moved; empty if it is.
        note: remark for the operator; empty if there is none.
        metadata: text that the group has committed with its position.
    """

    partition: TopicPartition
    position: int | None
    verdict: MoveVerdict
    end: int | None = None
    mirrored: int | None = None
    goal: TopicPartition | None = None
    translated: int | None = None
    committed: int | None = None
    why: str = ""
    note: str = ""
    metadata: str = ""

    @property
    def mirror_lag(self) -> int | None:
        """Distance from the mirror's position to the source's end; None if it is not known."""
        return None if self.end is None or self.mirrored is None else max(0, self.end - self.mirrored)


def decide(facts: PartitionFacts, group: str, options: MoveOptions = CAREFUL) -> PartitionMove:
    """Decide what becomes of a position.

    Args:
        group: the group's id, for advice to the operator.

    Raises CorruptMessageError for a damaged offset map.
    """
    position, offsets = facts.position, facts.offsets
    stored = None if offsets is None else offsets.stored
    move = PartitionMove(
        partition=facts.partition,
        position=position.value,
        verdict=MoveVerdict.REFUSED,
        end=None if facts.source is None else facts.source.latest,
        mirrored=None if stored is None else stored.source,
        goal=facts.goal,
        committed=facts.committed,
        note="of unknown age" if position.validity is Validity.UNKNOWN_AGE else "",
        metadata=position.metadata,
    )
    if position.incarnation is None and position.validity is not Validity.ABSENT:
        return replace(move, verdict=MoveVerdict.LEFT_OUT, why="topic deleted", note="")
    if position.validity in {Validity.ABSENT, Validity.ANOTHER_INCARNATION} and not facts.problem:
        return replace(move, verdict=MoveVerdict.LEFT_OUT, why=position.explain())
    if facts.problem:
        return replace(move, why=facts.problem)
    if position.believed is None:
        advice = f"consumerd offsets set -g {group} {facts.partition}=POSITION"
        return replace(move, why=f"{position.explain()}; say where to go on: {advice}")
    if facts.goal is None:
        return replace(move, why="not mirrored: the mirror has no position of this topic. Have it mirror the topic")
    if facts.source is not None and position.believed > facts.source.latest:
        log = f"[{facts.source.earliest}, {facts.source.latest}]"
        why = f"position {position.believed} is above the source's log {log}: say where to go on first"
        return replace(move, why=why)
    if facts.target is None:
        return replace(move, why=f"no leader of {facts.goal} in the target has told the range of its log; try again")
    if offsets is not None:
        return _translate(move, position.believed, offsets, facts, facts.target, options)
    # the target's log was read first, so what the mirror writes of a source without any record is behind its end
    if facts.source is None or (facts.gap is not None and not facts.gap_is_empty):
        why = "the mirror has stored no position of this partition yet"
        return replace(move, verdict=MoveVerdict.WAITING, why=why)
    return _compare(replace(move, translated=facts.target.latest), facts.target.latest, options)


def _translate(
    move: PartitionMove,
    position: int,
    offsets: PartitionMap,
    facts: PartitionFacts,
    target: LogRange,
    options: MoveOptions,
) -> PartitionMove:
    present = position if facts.first_unread is None else facts.first_unread
    mirrored = offsets.stored.source
    if facts.gap_is_empty and present > mirrored:
        position, present = min(position, mirrored), mirrored
    elif facts.gap_is_empty:
        present = max(present, offsets.source_start)
    try:
        found, needed = offsets.translate(position), offsets.translate(present).offset
    except NotMirrored:
        return replace(
            move,
            verdict=MoveVerdict.WAITING,
            why=f"the mirror is at {mirrored}, {present - mirrored} below",
        )
    if found.offset > target.latest:
        return replace(
            move,
            why=(
                f"the mirror has written {move.goal} up to {offsets.stored.target}, and its log ends at "
                f"{target.latest}: the topic was created again, or has lost its end. Mirror it anew"
            ),
        )
    if facts.source is not None and (below := facts.source.earliest - (move.position or 0)) > 0:
        move = _add_note(move, f"below the source's log by {below}")
    missing = _explain_missing(present, offsets, needed, target)
    if missing and not options.accept_missing:
        return replace(move, why=f"{missing}. Go on without them: --accept-missing")
    if missing:
        move = _add_note(move, missing)
    translated = max(found.offset, target.earliest)
    return _compare(replace(move, translated=translated), translated, options)


def _explain_missing(present: int, offsets: PartitionMap, target: int, log: LogRange) -> str:
    """Explain which records, not read yet, are in the source only; empty without any.

    Args:
        present: first offset in the source that the group has not read, and that is still in its log.
        target: its translation.
        log: the target's log.
    """
    if present < offsets.source_start:
        start = offsets.source_start
        return f"the mirror begins at {start}: {present} to {start - 1} are not in the target"
    # behind the last record there may be markers, which the target deletes with it
    if target < log.earliest and (first := offsets.translate_back(log.earliest).offset) > present:
        return f"the target's log begins at {log.earliest}: it has deleted source offsets {present} to {first - 1}"
    return ""


def _compare(move: PartitionMove, translated: int, options: MoveOptions) -> PartitionMove:
    if move.committed is None or move.committed < translated:
        return replace(move, verdict=MoveVerdict.READY)
    if move.committed == translated:
        return replace(move, verdict=MoveVerdict.SAME)
    if options.allow_backwards:
        return _add_note(replace(move, verdict=MoveVerdict.READY), f"reads {move.committed - translated} again")
    return replace(
        move,
        verdict=MoveVerdict.AHEAD,
        why=(
            f"the target holds {move.committed}, {move.committed - translated} further: the group has read there, or "
            "was set there. Write the smaller one: --allow-backwards"
        ),
    )


def _add_note(move: PartitionMove, note: str) -> PartitionMove:
    return replace(move, note="; ".join(filter(None, [move.note, note])))


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMove:
    """Decisions about all positions of a group.

    Attributes:
        places: where the source keeps its positions: ``zookeeper``, ``kafka``, or both.
        members: live members in the source.
        target_members: live members in the target.
        problem: why the group could not be read in full; else empty.
    """

    group: str
    places: tuple[str, ...]
    members: int
    target_members: int
    partitions: Sequence[PartitionMove]
    problem: str = ""

    @property
    def writes(self) -> list[PartitionMove]:
        """Positions to be written into the target."""
        return [one for one in self.partitions if one.verdict is MoveVerdict.READY]

    @property
    def moved(self) -> list[PartitionMove]:
        """Positions that the group will have in the target."""
        return [one for one in self.partitions if one.verdict in {MoveVerdict.READY, MoveVerdict.SAME}]

    def find_refusal(self) -> str:
        """Return why nothing may be written, one reason a line; empty if it may.

        One partition is enough: a group that has moved in part would read the rest from the beginning, or leave it out.
        """
        reasons = [self.problem] if self.problem else []
        if self.target_members:
            members = counted(self.target_members, "live member")
            reasons.append(f"group {self.group} has {members} in the target, which would commit over it: stop them")
        for verdict in (MoveVerdict.REFUSED, MoveVerdict.WAITING, MoveVerdict.AHEAD):
            reasons += explain_each([one for one in self.partitions if one.verdict is verdict])
        return "\n".join(reasons)

    def explain_unsafe(self) -> str:
        """Return in one line why the group cannot be cut over; empty if it can.

        Members in the source are no reason: the cut-over waits until they are stopped.
        """
        reasons = [self.problem] if self.problem else []
        if self.target_members:
            reasons.append(f"it has {counted(self.target_members, 'live member')} in the target")
        for verdict in (MoveVerdict.REFUSED, MoveVerdict.WAITING, MoveVerdict.AHEAD):
            found = [one for one in self.partitions if one.verdict is verdict]
            if found:
                shown = join_shown([f"{one.partition} ({one.why})" for one in found], 1)
                reasons.append(f"{counted(len(found), 'partition')} {verdict.value}: {shown}")
        if not self.moved and not reasons:
            reasons.append("it has no position to move")
        return "; ".join(reasons)


def explain_each(moves: Collection[PartitionMove]) -> list[str]:
    """Return a line for each of the first partitions, and one that counts the others."""
    lines = [f"{one.partition}: {one.why}" for one in list(moves)[:_SHOWN]]
    return [*lines, f"and {len(moves) - _SHOWN} more"] if len(moves) > _SHOWN else lines
