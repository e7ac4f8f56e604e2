# SPDX-License-Identifier: Apache-2.0
"""Brings a group that has consumed in the target back to the source.

Its position in the target is translated back: to the source offset of the first mirrored record that it has not read.
The way is exact in both directions. What others than the mirror have written into the target is not in the source.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from consumerd.mirror.offset_map import MapPlace
from consumerd.mirror.partition_map import PartitionMap
from consumerd.model import LogRange, TopicPartition


class ReturnVerdict(enum.StrEnum):
    """Decision about a position in the target."""

    READY = "ready"
    SAME = "same"
    BACKWARDS = "backwards"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReturnFacts:
    """Facts about a group's position in one partition of the target.

    Attributes:
        partition: partition of the source.
        goal: its copy in the target.
        committed: the group's position in the target.
        offsets: the mirror's offset maps.
        source: the source's log; None if its leader has not told.
        target: the target's log; None if its leader has not told.
        position: the group's position in the source that counts; None if there is none.
        is_everywhere: True if all stores that are written have this position.
        gap_is_empty: True if the source has no record from the translated offset up to this position.
    """

    partition: TopicPartition
    goal: TopicPartition
    committed: int
    offsets: PartitionMap
    source: LogRange | None
    target: LogRange | None
    position: int | None
    is_everywhere: bool = True
    gap_is_empty: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionReturn:
    """Decision about one position.

    Attributes:
        returned: position to be written into the source.
        why: reason why it is not written; empty if it is.
        note: remark for the operator; empty if there is none.
    """

    partition: TopicPartition
    goal: TopicPartition
    committed: int
    position: int | None
    returned: int
    verdict: ReturnVerdict
    why: str = ""
    note: str = ""


def decide_return(facts: ReturnFacts, *, allow_backwards: bool = False) -> PartitionReturn:
    """Decide which position a group gets in the source.

    Args:
        allow_backwards: True to write a smaller position than the source has.

    Raises CorruptMessageError for a damaged offset map.
    """
    found = facts.offsets.translate_back(facts.committed)
    returned, notes, why = found.offset, list[str](), ""
    behind = facts.committed - facts.offsets.stored.target
    if found.place is MapPlace.END and behind > 0:
        notes.append(f"{behind} offsets behind the mirror's last record are in the target only")
    if facts.source is None:
        why = "its leader in the source has not told the range of its log; try again"
    elif returned > facts.source.latest:
        why = f"position {returned} is above the source's log, which ends at {facts.source.latest}"
    elif returned < facts.source.earliest:
        notes.append(f"the source has deleted {returned} to {facts.source.earliest - 1}")
        returned = facts.source.earliest
    if not why and facts.target is not None and facts.committed > facts.target.latest:
        why = f"position {facts.committed} is above the target's log, which ends at {facts.target.latest}"
    if facts.gap_is_empty and facts.position is not None and facts.position > returned:
        # markers and aborted records: both name the same next record, and the group is behind them already
        returned = facts.position
    verdict = ReturnVerdict.REFUSED if why else ReturnVerdict.READY
    if not why and facts.position == returned:
        if facts.is_everywhere:
            verdict = ReturnVerdict.SAME
        else:
            # a command that ended between its writes to ZooKeeper and Kafka is given again
            notes.append("only one of ZooKeeper and Kafka has it")
    elif not why and facts.position is not None and returned < facts.position:
        if allow_backwards:
            notes.append(f"reads {facts.position - returned} again")
        else:
            verdict = ReturnVerdict.BACKWARDS
            why = f"the source has {facts.position} already. Write the smaller one: --allow-backwards"
    return PartitionReturn(
        partition=facts.partition,
        goal=facts.goal,
        committed=facts.committed,
        position=facts.position,
        returned=returned,
        verdict=verdict,
        why=why,
        note="; ".join(notes),
    )


def match_goals(
    partitions: Collection[TopicPartition], maps: Mapping[TopicPartition, PartitionMap | None]
) -> Sequence[tuple[TopicPartition, TopicPartition, PartitionMap]]:
    """Return source partition, target partition and offset maps of what is mirrored.

    Args:
        partitions: partitions of the source.
    """
    found = []
    for one in sorted(partitions):
        offsets = maps.get(one)
        if offsets is not None:
            stored = offsets.stored
            found.append((one, TopicPartition.modern(stored.target_topic, stored.target_partition), offsets))
    return found
