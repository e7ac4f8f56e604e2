# SPDX-License-Identifier: Apache-2.0
"""Steps with which an operator moves a group's positions between ZooKeeper and Kafka.

Members' settings are not stored anywhere. The step that a group has reached is seen from its commits: positions that
move, or are equal in both stores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from consumerd.admin.migration import Comparison, Migration, PartitionMigration, other_place
from consumerd.model import TopicPartition
from consumerd.offsets.positions import Position
from consumerd.offsets.store import Place
from consumerd.telemetry.wording import counted, join_shown

_SHOWN: Final = 5

RETENTION: Final = (
    "brokers forget a position in Kafka that was not committed again for offsets.retention.minutes, their setting: a "
    "day by default before 2.0, seven days since. A position in ZooKeeper stays"
)


def list_steps(to: Place) -> Sequence[str]:
    """Return the steps with which an operator moves a group's positions, as text.

    They name the settings of consumerd members and of Kafka's Java consumer.

    Args:
        to: Store that the group moves to, ZooKeeper or Kafka.
    """
    both = (
        "offsets.storage: kafka and offsets.dual_commit: true",
        "offsets.storage=kafka and dual.commit.enabled=true",
    )
    last = (
        ("offsets.storage: kafka and offsets.dual_commit: false", "offsets.storage=kafka and dual.commit.enabled=false")
        if to is Place.KAFKA
        else ("offsets.storage: zookeeper", "offsets.storage=zookeeper")
    )
    return (
        f"step 1: restart each member, one after the other, with {both[0]} (Java: {both[1]})",
        f"step 2: wait one commit interval; go on when `migrate verify --to {to.value}` ends with 0",
        f"step 3: restart each member, one after the other, with {last[0]} (Java: {last[1]})",
    )


def describe_road(first: Migration, second: Migration | None = None, seconds: float = 0.0) -> str:
    """Describe in words to which stores (ZooKeeper, Kafka) the group commits now.

    A position that has moved between two readings was committed in between.

    Args:
        first: Positions in both stores.
        second: Positions in both stores, read later; None if they were read once only. Then the text is based on equal
            and different positions alone.
        seconds: Time between the two readings.
    """
    if second is not None:
        return _describe_moves(first, second, seconds)
    if not first.members:
        return "no member is alive in ZooKeeper: nothing is committed, unless by clients elsewhere"
    alive = f"{counted(first.members, 'member')} alive"
    counts = {result: sum(one.comparison is result for one in first.partitions) for result in Comparison}
    source, target = other_place(first.to).label, first.to.label
    behind = counts[Comparison.MISSING] + counts[Comparison.SMALLER]
    ahead = counts[Comparison.LARGER] + counts[Comparison.ONLY_TARGET]
    known = behind + ahead + counts[Comparison.SAME]
    told = "--observe 60 tells more, by what moves"
    if not known:
        return f"{alive}, no positions yet"
    if behind == known:
        return f"{alive}. They commit to {source} alone, it seems: step 1 is to be done. {told}"
    if ahead == known:
        return f"{alive}. They commit to {target} alone, it seems: step 3 is done. {told}"
    if counts[Comparison.SAME] == known:
        return f"{alive}. Both places hold the same positions: members commit to both, or none has moved. {told}"
    return (
        f"{alive}. {counted(counts[Comparison.SAME], 'partition')} with the same position in both places, {behind} "
        f"with a larger one in {source}, {ahead} with a larger one in {target}: commits are under way, or some "
        f"members commit to one place. {told}"
    )


def _describe_moves(first: Migration, second: Migration, seconds: float) -> str:
    before = {one.partition: one for one in first.partitions}
    moved = {
        place: [one.partition for one in second.partitions if _has_moved(before, one, place, first.to)]
        for place in Place
    }
    in_both = set(moved[Place.ZOOKEEPER]) & set(moved[Place.KAFKA])
    alone = {place: [one for one in partitions if one not in in_both] for place, partitions in moved.items()}
    if not any(moved.values()):
        return (
            f"no position has moved in {seconds:g} s: nothing was consumed, or the commit interval is longer (Java's "
            "auto.commit.interval.ms is 60 s by default)"
        )
    elsewhere = "" if second.members else ". No member is alive in this ZooKeeper: the group is alive elsewhere"
    if not any(alone.values()):
        return f"positions move in both places: members commit to both, and step 1 is done{elsewhere}"
    if not in_both and not (alone[Place.ZOOKEEPER] and alone[Place.KAFKA]):
        (place,) = (place for place, partitions in alone.items() if partitions)
        step = "step 3 is done" if place is first.to else "step 1 is to be done"
        return f"positions move in {place.label} alone: {step}{elsewhere}"
    parts = [
        f"in {place.label} alone: {join_shown(partitions, _SHOWN)}" for place, partitions in alone.items() if partitions
    ]
    parts += [f"in both: {join_shown(sorted(in_both), _SHOWN)}"] if in_both else []
    return f"some members commit to one place, others to both: positions move {'; '.join(parts)}{elsewhere}"


def _has_moved(
    before: Mapping[TopicPartition, PartitionMigration], now: PartitionMigration, place: Place, to: Place
) -> bool:
    old = before.get(now.partition)
    was = None if old is None else _find(old, place, to).token
    return _find(now, place, to).token != was


def _find(one: PartitionMigration, place: Place, to: Place) -> Position:
    return one.target if place is to else one.source
