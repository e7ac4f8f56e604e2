# SPDX-License-Identifier: Apache-2.0
"""Up to which offsets a trigger of a stream reads. Pure.

A trigger reads from one checkpointed set of offsets to the next. Both name partitions and the offset that comes next in each, and
the first of them is all that a query that is started again knows, so that what lies between two sets must follow from them
alone, whenever it is asked for::

    in both, the second one greater   the offsets between them
    in both, the second one less      nothing: the log is another one, or has lost its end; the second says where to go on
    in the second only                nothing: a partition that is new; the second says where it begins
    in the first only                 nothing: the partition is gone

So where a query or a partition begins is a step of its own, without rows. Spark keeps the first offsets of a query nowhere: it asks
for them again when the first trigger is repeated, and by then ``latest``, a time or a group's position may mean others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from consumerd.errors import OffsetError, OffsetOutOfRange
from consumerd.model import LogRange, TopicPartition
from consumerd.spark.datasource.offsets import PartitionOffsets
from consumerd.spark.datasource.planning import OffsetRange, limit_ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerPlan:
    """Where a trigger ends, how many offsets of the logs it takes, and what can never be read.

    ``available`` is how many offsets there would be without a limit. A loss names its partition and offsets.
    """

    end: PartitionOffsets
    taken: int = 0
    available: int = 0
    losses: tuple[OffsetError, ...] = ()


def plan_trigger(
    start: PartitionOffsets,
    logs: Mapping[TopicPartition, LogRange],
    *,
    most: int | None = None,
    target: PartitionOffsets | None = None,
    remade: Collection[str] = (),
) -> TriggerPlan:
    """Plan a trigger from ``start`` over the logs as they are now.

    Partitions of topics that were ``remade`` are gone with this trigger, and new ones with the next. It takes ``most`` offsets (None: all), but one at least of each partition that has some, and none from ``target`` on, where
    there is one; partitions that it does not name are left as they are. Offsets that a log has lost do not count.
    """
    end: dict[TopicPartition, int] = {}
    losses: list[OffsetError] = []
    ranges: list[OffsetRange] = []
    for partition in sorted(start.keys() | logs.keys()):
        position, log = start.get(partition), logs.get(partition)
        if partition.topic in remade:
            if position is not None:
                losses.append(
                    OffsetError(
                        f"{partition}: the topic was deleted and made again since it was read up to {position}; what was not read of "
                        "the old one is gone, and the new one is read from its beginning"
                    )
                )
            continue
        if log is None:
            losses.append(
                OffsetError(f"{partition}: the partition is not there any more; it was read up to {position}")
            )
            continue
        if position is None:
            if target is None or partition in target:
                end[partition] = log.earliest
                if log.earliest > 0:
                    losses.append(
                        OffsetError(
                            f"{partition}: a new partition that begins with offset {log.earliest}; what was before it is gone"
                        )
                    )
            continue
        end[partition] = position
        if position > log.latest:
            losses.append(OffsetOutOfRange(partition, position, log.earliest, log.latest))
            end[partition] = log.latest
            continue
        if position < log.earliest:
            losses.append(OffsetOutOfRange(partition, position, log.earliest, log.latest))
        last = log.latest if target is None else min(log.latest, target.get(partition, position))
        if last > position:
            # what is lost is passed over at once, and no limit is spent on it
            end[partition] = first = min(max(position, log.earliest), last)
            if last > first:
                ranges.append(OffsetRange(partition=partition, start=first, end=last))
    taken = ranges if most is None else limit_ranges(ranges, most)
    end |= {one.partition: one.end for one in taken}
    return TriggerPlan(end=end, taken=sum(map(len, taken)), available=sum(map(len, ranges)), losses=tuple(losses))


def ranges_between(start: PartitionOffsets, end: PartitionOffsets) -> list[OffsetRange]:
    """Return the ranges of the trigger from ``start`` to ``end``, by the rules above, in the order of partitions."""
    return [
        OffsetRange(partition=partition, start=start[partition], end=end[partition])
        for partition in sorted(start.keys() & end.keys())
        if end[partition] > start[partition]
    ]
