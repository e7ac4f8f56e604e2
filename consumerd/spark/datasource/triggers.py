# SPDX-License-Identifier: Apache-2.0
"""Plans the triggers of a stream: the offsets up to which each reads. Pure.

A trigger reads from one set of offsets in the checkpoint, its start, to the next, its end. Each set has the next offset
of each partition. After a restart a query knows nothing else, so the rows of a trigger follow from these two sets
alone:

==============================  ===================  ===========================================================
partition                       example              rows of the trigger
==============================  ===================  ===========================================================
in both, end above start        ``5`` to ``9``       offsets 5, 6, 7, 8
in both, end below start        ``9`` to ``3``       none: the log was truncated; the next trigger goes on from 3
in the end only                 nothing to ``0``     none: a new partition, which begins at 0
in the start only               ``5`` to nothing     none: the partition was deleted (never one of Kafka 0.6 or 0.7)
==============================  ===================  ===========================================================

So the begin of a query, or of a partition, is a trigger without rows. The reason: Spark does not store a query's first
offsets. It asks for them again when it repeats the first trigger, and by then ``latest``, a timestamp or a group's
position may mean other offsets.

Example with ``most`` 10: the start is ``{0: 100, 1: 50}``, and the logs hold 0-499 and 60-64. Partition 1 has lost 50
to 59, which is reported as a loss. 400 and 5 offsets are available; the trigger takes 8 of partition 0 and 1 of
partition 1, and ends at ``{0: 108, 1: 61}``.
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
    """Plan of one trigger of a stream: the offsets at which it ends.

    Attributes:
        end: next offset of each partition after the trigger. In partitions of ``cuts`` it may be inside of a message.
        taken: number of offsets that it reads.
        available: number of offsets that it would read without a limit.
        losses: records that can never be read, with their partitions and offsets.
        away: partitions of Kafka 0.6 and 0.7 that are not there now. They are on one broker only, and come back with
            it, so they stay where they are.
        cuts: ranges of Kafka 0.6 and 0.7 that the limit shortens, uncut. Their offsets count bytes, so their ends in
            ``end`` must be moved on to where a message begins.
    """

    end: PartitionOffsets
    taken: int = 0
    available: int = 0
    losses: tuple[OffsetError, ...] = ()
    away: tuple[TopicPartition, ...] = ()
    cuts: tuple[OffsetRange, ...] = ()


def plan_trigger(
    start: PartitionOffsets,
    logs: Mapping[TopicPartition, LogRange],
    *,
    most: int | None = None,
    target: PartitionOffsets | None = None,
    remade: Collection[str] = (),
) -> TriggerPlan:
    """Return the plan of a trigger from ``start`` over the logs as they are now.

    Args:
        most: limit of offsets, None for no limit. Each partition with records gets at least one. Offsets that the log
            has lost do not count.
        target: offsets at which to stop, None for the ends of the logs. Partitions that it does not name stay as they
            are.
        remade: topics that were deleted and re-created. This trigger removes their partitions, and the next one adds
            them as new.
    """
    end: dict[TopicPartition, int] = {}
    losses: list[OffsetError] = []
    ranges: list[OffsetRange] = []
    away: list[TopicPartition] = []
    for partition in sorted(start.keys() | logs.keys()):
        position, log = start.get(partition), logs.get(partition)
        if partition.topic in remade:
            if position is not None:
                losses.append(
                    OffsetError(
                        f"{partition}: the topic was deleted and re-created since it was read up to {position}; "
                        "what was not read of the old one is gone, and the new one is read from its beginning"
                    )
                )
            continue
        if log is None and position is not None and partition.is_legacy:
            end[partition] = position
            away.append(partition)
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
                            f"{partition}: a new partition that begins with offset {log.earliest}; "
                            "what was before it is gone"
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
            # lost offsets are skipped in this trigger, and do not count towards the limit
            end[partition] = first = min(max(position, log.earliest), last)
            if last > first:
                ranges.append(OffsetRange(partition=partition, start=first, end=last))
    taken = ranges if most is None else limit_ranges(ranges, most)
    end |= {one.partition: one.end for one in taken}
    cuts = [
        whole for whole, part in zip(ranges, taken, strict=True) if whole.partition.is_legacy and part.end < whole.end
    ]
    return TriggerPlan(
        end=end,
        taken=sum(map(len, taken)),
        available=sum(map(len, ranges)),
        losses=tuple(losses),
        away=tuple(away),
        cuts=tuple(cuts),
    )


def ranges_between(start: PartitionOffsets, end: PartitionOffsets) -> list[OffsetRange]:
    """Return the ranges of offsets that a trigger reads, in the order of partitions.

    ``start`` and ``end`` are the next offsets before and after the trigger. A partition that is in one of them only has
    no range.
    """
    return [
        OffsetRange(partition=partition, start=start[partition], end=end[partition])
        for partition in sorted(start.keys() & end.keys())
        if end[partition] > start[partition]
    ]
