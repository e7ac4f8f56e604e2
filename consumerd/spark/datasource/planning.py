# SPDX-License-Identifier: Apache-2.0
"""Which ranges of offsets a read consists of, and how they are divided among tasks.

Pure. A range goes to one task as a whole unless ``minPartitions`` or ``maxRecordsPerPartition`` asks for more; offsets
are what is counted, since nobody knows how many of them still hold a record before they are read.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from consumerd.errors import ConfigError, OffsetError, OffsetOutOfRange
from consumerd.model import LogRange, TopicPartition
from consumerd.spark.datasource.offsets import PartitionOffsets

_MOST_PARTS: Final = 1_000_000
"""Spark partitions of one read: each is an object on the driver, and a task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRange:
    """Offsets ``[start, end)`` of one partition."""

    partition: TopicPartition
    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.partition} [{self.start}, {self.end})"


def plan_ranges(starts: PartitionOffsets, ends: PartitionOffsets) -> list[OffsetRange]:
    """Return the ranges between two sets of offsets, in the order of partitions; empty ones are left out.

    Every partition of ``ends`` must have a start. Raises OffsetError that names the partition where an end is below its
    start.
    """
    ranges = []
    for partition in sorted(ends):
        start, end = starts[partition], ends[partition]
        if end < start:
            raise OffsetError(f"{partition}: the end, offset {end}, lies below the start, offset {start}")
        if end > start:
            ranges.append(OffsetRange(partition=partition, start=start, end=end))
    return ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """Offsets ``[start, end)`` that were to be read and that the log does not hold (any more), and why as text."""

    partition: TopicPartition
    start: int
    end: int
    reason: str

    def __str__(self) -> str:
        return f"{self.partition} [{self.start}, {self.end}): {self.reason}"


def fit_ranges(
    ranges: Sequence[OffsetRange], held: Mapping[TopicPartition, LogRange], *, fail_on_data_loss: bool
) -> tuple[list[OffsetRange], list[Lost]]:
    """Hold ranges against what the logs hold; returns those that can be read, and what is missing of them.

    Raises OffsetOutOfRange that names partition and offset where something is missing, with ``fail_on_data_loss``.
    """
    kept, lost = [], []
    for one in ranges:
        log = held[one.partition]
        start = min(max(one.start, log.earliest), one.end)
        end = max(min(one.end, log.latest), start)
        if start > one.start:
            if fail_on_data_loss:
                raise OffsetOutOfRange(one.partition, one.start, log.earliest, log.latest)
            lost.append(
                Lost(
                    partition=one.partition,
                    start=one.start,
                    end=start,
                    reason=f"the log begins with offset {log.earliest}",
                )
            )
        if end < one.end:
            if fail_on_data_loss:
                raise OffsetOutOfRange(one.partition, one.end, log.earliest, log.latest)
            lost.append(
                Lost(partition=one.partition, start=end, end=one.end, reason=f"the log ends at offset {log.latest}")
            )
        if start < end:
            kept.append(OffsetRange(partition=one.partition, start=start, end=end))
    return kept, lost


def divide_ranges(
    ranges: Sequence[OffsetRange], *, min_partitions: int | None = None, max_records: int | None = None
) -> list[OffsetRange]:
    """Divide ranges so that there are at least ``min_partitions`` (as far as there are offsets) of about one size, none
    of which has more than ``max_records`` offsets. Parts of a partition stay in order.

    Raises ConfigError where those would be more than a driver can plan.
    """
    counts = [1 if max_records is None else -(-len(one) // max_records) for one in ranges]
    asked = max(sum(counts), min(min_partitions or 0, sum(map(len, ranges))))
    if asked > _MOST_PARTS:
        name = "minPartitions" if asked > sum(counts) else "maxRecordsPerPartition"
        raise ConfigError(
            f"{name}: that makes {asked:,} Spark partitions of what is there; {_MOST_PARTS:,} are the most"
        )
    missing = (min_partitions or 0) - sum(counts)
    if missing > 0:
        # whoever has the largest parts gets one more
        largest = [(-len(one) / counts[at], at) for at, one in enumerate(ranges)]
        heapq.heapify(largest)
        while missing > 0 and largest and largest[0][0] < -1:
            _, at = largest[0]
            counts[at] += 1
            missing -= 1
            heapq.heapreplace(largest, (-len(ranges[at]) / counts[at], at))
    return [part for one, count in zip(ranges, counts, strict=True) for part in _cut(one, count)]


def limit_ranges(ranges: Sequence[OffsetRange], most: int) -> list[OffsetRange]:
    """Shorten ranges so that they have ``most`` offsets together: each its share, the earliest offsets first.

    Each keeps one offset at least, so that none waits for ever; only with fewer offsets than ranges that is more than
    ``most``.
    """
    total, count = sum(map(len, ranges)), len(ranges)
    if total <= most:
        return list(ranges)
    spare = max(0, most - count)  # beyond the first offset of each
    return [
        OffsetRange(
            partition=one.partition,
            start=one.start,
            end=one.start + 1 + (len(one) - 1) * spare // max(1, total - count),
        )
        for one in ranges
    ]


def _cut(whole: OffsetRange, count: int) -> list[OffsetRange]:
    """Cut a range into ``count`` parts that differ by one offset at most."""
    bounds = [whole.start + len(whole) * part // count for part in range(count + 1)]
    return [OffsetRange(partition=whole.partition, start=start, end=end) for start, end in pairwise(bounds)]
