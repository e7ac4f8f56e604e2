# SPDX-License-Identifier: Apache-2.0
"""Cut-over of a group: members stop in the source, and start in the target. Pure.

Steps, each of which may be run again:

1. **planned**: the journal has an entry.
2. **stopped**: the group has no members in the source. Its positions are final now, and are noted.
3. **mirrored**: the mirror has passed them.
4. **translated**: they are committed in the target. It is refused while the group has members there.
5. **verified**: for each of them, the next record is read in both clusters and compared.
6. **done**: the final positions are read once more. If one has moved, the group is alive elsewhere.

The journal is in the target, so the command goes on after a crash, also on another machine. Every step looks at both
clusters again, and does not trust the journal where they tell otherwise.

Example: the command was killed after step 4, and members were started in the source again. They have moved on from 120
to 150. The next run finds 150, not the noted 120, and goes back to step 2: it waits until they are stopped again.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Final

from consumerd.admin.migrate.decisions import GroupMove, MoveVerdict, PartitionMove, explain_each
from consumerd.mirror.journal import CutoverEntry, CutoverState, MovedPosition
from consumerd.telemetry.wording import counted, join_shown

_SHOWN: Final = 5


class CutoverStep(enum.Enum):
    """Next action of the command."""

    WAIT_FOR_STOP = "wait until the group has no members in the source"
    NOTE_POSITIONS = "note the final positions"
    WAIT_FOR_MIRROR = "wait until the mirror has passed the final positions"
    NOTE_MIRRORED = "note that the mirror has passed them"
    TRANSLATE = "commit the translated positions in the target"
    VERIFY = "compare the next records of both clusters"
    FINISH = "note that members may start in the target"
    NOTHING = "nothing: members may start in the target"
    REFUSE = "refuse"


def choose_step(entry: CutoverEntry | None, group: GroupMove) -> tuple[CutoverStep, str]:
    """Choose the next step of a cut-over, and the reason for it.

    Args:
        entry: the journal's entry; None if there is none.
        group: the group, as both clusters show it now.
    """
    state = CutoverState.PLANNED if entry is None or entry.state is CutoverState.RETURNED else entry.state
    noted = () if entry is None or state is CutoverState.PLANNED else entry.positions
    if group.problem:
        return CutoverStep.REFUSE, group.problem
    if state is CutoverState.DONE and group.target_members and not group.members:
        members = counted(group.target_members, "member")
        return CutoverStep.NOTHING, f"the group is cut over, and has {members} in the target"
    if group.target_members:
        members = counted(group.target_members, "live member")
        return CutoverStep.REFUSE, f"the group has {members} in the target already: stop them, or leave it where it is"
    if refused := [one for one in group.partitions if one.verdict is MoveVerdict.REFUSED]:
        return CutoverStep.REFUSE, "\n".join(explain_each(refused))
    if group.members:
        return CutoverStep.WAIT_FOR_STOP, f"{counted(group.members, 'live member')} in the source: stop them"
    moved = find_moved(noted, group)
    if state is CutoverState.PLANNED or moved:
        again = f"moved since they were noted: {join_shown(moved, _SHOWN)}" if moved else ""
        return CutoverStep.NOTE_POSITIONS, again
    if state is CutoverState.DONE and not has_lost_all(group):
        return CutoverStep.NOTHING, "the group is cut over: members may start in the target"
    if waiting := [one for one in group.partitions if one.verdict is MoveVerdict.WAITING]:
        return CutoverStep.WAIT_FOR_MIRROR, "\n".join(explain_each(waiting))
    if ahead := [one for one in group.partitions if one.verdict is MoveVerdict.AHEAD]:
        return CutoverStep.REFUSE, "\n".join(explain_each(ahead))
    if state is CutoverState.STOPPED:
        return CutoverStep.NOTE_MIRRORED, ""
    if state is CutoverState.DONE:
        return CutoverStep.TRANSLATE, "the target has none of the group's positions any more"
    if state is CutoverState.MIRRORED or group.writes:
        return CutoverStep.TRANSLATE, ""
    return (CutoverStep.VERIFY if state is CutoverState.TRANSLATED else CutoverStep.FINISH), ""


def has_lost_all(group: GroupMove) -> bool:
    """Return True if the target has no position of the group, and should have some.

    The group was deleted there. A group that is behind in some partitions was set back by its operator.
    """
    return bool(group.writes) and all(one.committed is None for one in group.moved)


def find_moved(noted: Sequence[MovedPosition], group: GroupMove) -> list[str]:
    """Return the partitions whose positions in the source differ from the noted ones."""
    before = {(one.topic, one.partition): one.source for one in noted}
    now = {
        (one.partition.topic, str(one.partition.partition)): one.position
        for one in group.partitions
        if one.verdict is not MoveVerdict.LEFT_OUT and one.position is not None
    }
    moved = sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
    return [f"{topic}/{partition}" for topic, partition in moved] if noted else []


def note_positions(group: GroupMove) -> tuple[MovedPosition, ...]:
    """Return a group's positions, with known translations, for the journal."""
    return tuple(
        MovedPosition(
            one.partition.topic,
            str(one.partition.partition),
            one.position,
            one.goal.topic,
            one.goal.partition.number,
            one.translated,
        )
        for one in group.partitions
        if one.verdict is not MoveVerdict.LEFT_OUT and one.position is not None and one.goal is not None
    )


def describe_start(group: str, bootstrap: str, moves: Sequence[PartitionMove]) -> str:
    """Return the text that says what to start after a cut-over."""
    topics = sorted({one.goal.topic for one in moves if one.goal is not None})
    return (
        f"start the members of group {group} in the target: bootstrap.servers={bootstrap}, group.id={group}, "
        f"isolation.level=read_committed, topics {join_shown(topics, _SHOWN)}. They go on with the record that the "
        "group would have read next in the source. Do not start members in the source any more"
    )
