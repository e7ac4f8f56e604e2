# SPDX-License-Identifier: Apache-2.0
"""Plans the ranges of offsets of a read, and divides them among tasks. Pure.

One task reads one range. A partition is one range, unless ``minPartitions`` or ``maxRecordsPerPartition`` asks for
more. Sizes are numbers of offsets: how many of them still hold a record (compaction) is only known after reading.

Example: offsets 100-999 of ``orders-0`` and 0-89 of ``orders-1``, with ``minPartitions`` 4. The larger range is divided
into 100-399, 400-699 and 700-999. With the 90 offsets of ``orders-1`` that makes four tasks.

Offsets of Kafka 0.6 and 0.7 count bytes, and a range may only begin and end where a message does. So ranges of such
partitions are divided at given offsets only, the starts of log segments. Example: a range of bytes 0 to 1000, with
segments that begin at 0, 300 and 600, is divided into at most three parts, and into 0-600 and 600-1000 for two.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Final

from consumerd.errors import ConfigError, OffsetError, OffsetOutOfRange
from consumerd.model import LogRange, TopicPartition
from consumerd.spark.datasource.offsets import PartitionOffsets

_MOST_PARTS: Final = 1_000_000
"""Limit of Spark partitions of one read: each is an object on the driver, and a task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRange:
    """Offsets from ``start`` to before ``end`` of one partition."""

    partition: TopicPartition
    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.partition} [{self.start}, {self.end})"


def plan_ranges(starts: PartitionOffsets, ends: PartitionOffsets) -> list[OffsetRange]:
    """Return the ranges between two sets of offsets, in the order of partitions.

    Empty ranges are left out. Every partition of ``ends`` must have a start. Raises OffsetError, which names the
    partition, if an end is below its start.
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
    """Range of requested offsets that the log does not have, from ``start`` to before ``end``.

    ``reason`` is a text for errors and logs.
    """

    partition: TopicPartition
    start: int
    end: int
    reason: str

    def __str__(self) -> str:
        return f"{self.partition} [{self.start}, {self.end}): {self.reason}"


def fit_ranges(
    ranges: Sequence[OffsetRange], held: Mapping[TopicPartition, LogRange], *, fail_on_data_loss: bool
) -> tuple[list[OffsetRange], list[Lost]]:
    """Return the parts of requested ranges that the logs have, and the lost parts.

    Example: of 100-999, a log that has 250-799 gives 250-799, and 100-249 and 800-999 are lost.

    Raises OffsetOutOfRange for the first lost part, with ``fail_on_data_loss``.

    Args:
        held: The earliest and the latest offset of each partition's log.
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
    ranges: Sequence[OffsetRange],
    *,
    min_partitions: int | None = None,
    max_records: int | None = None,
    segments: Mapping[TopicPartition, Sequence[int]] = MappingProxyType({}),
) -> list[OffsetRange]:
    """Divide ranges of offsets into parts, one for each task, in order.

    Args:
        min_partitions: least number of parts; fewer if there are fewer offsets.
        max_records: limit of offsets per part. A part of Kafka 0.6 or 0.7 is larger if its segment is.
        segments: offsets at which ranges of Kafka 0.6 and 0.7 can be divided, in order.

    Raises ConfigError for more parts than a driver can plan.
    """
    inner = [_find_cuts(one, segments) for one in ranges]
    largest_counts = [len(one) if cuts is None else len(cuts) + 1 for one, cuts in zip(ranges, inner, strict=True)]
    wanted = [1 if max_records is None else -(-len(one) // max_records) for one in ranges]
    counts = [min(pair) for pair in zip(wanted, largest_counts, strict=True)]
    asked = max(sum(counts), min(min_partitions or 0, sum(largest_counts)))
    if asked > _MOST_PARTS:
        name = "minPartitions" if asked > sum(counts) else "maxRecordsPerPartition"
        raise ConfigError(
            f"{name}: that makes {asked:,} Spark partitions of what is there; {_MOST_PARTS:,} are the most"
        )
    missing = (min_partitions or 0) - sum(counts)
    if missing > 0:
        # again and again, the range with the largest parts is divided into one more
        largest = [(-len(one) / counts[at], at) for at, one in enumerate(ranges)]
        heapq.heapify(largest)
        while missing > 0 and largest:
            _, at = heapq.heappop(largest)
            if counts[at] < largest_counts[at]:
                counts[at] += 1
                missing -= 1
                heapq.heappush(largest, (-len(ranges[at]) / counts[at], at))
    return [
        part
        for one, count, cuts in zip(ranges, counts, inner, strict=True)
        for part in (_cut(one, count) if cuts is None else _cut_at(one, count, cuts))
    ]


def limit_ranges(ranges: Sequence[OffsetRange], most: int) -> list[OffsetRange]:
    """Shorten ranges from their ends to ``most`` offsets in total, in proportion to their sizes.

    Each range keeps at least one offset, so that no partition starves. So if there are more ranges than ``most``, the
    total is their number. The ends of ranges of Kafka 0.6 and 0.7 may be inside of messages; the caller moves them.

    Example: ranges of 900 and 100 offsets with ``most`` 100 keep 89 and 10.
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


def _find_cuts(whole: OffsetRange, segments: Mapping[TopicPartition, Sequence[int]]) -> list[int] | None:
    """Return the offsets at which a range can be divided; None for all."""
    if not whole.partition.is_legacy:
        return None
    return [offset for offset in segments.get(whole.partition, ()) if whole.start < offset < whole.end]


def _cut_at(whole: OffsetRange, count: int, cuts: Sequence[int]) -> list[OffsetRange]:
    """Cut a range into ``count`` parts at some of ``cuts``, of which there are enough."""
    bounds = [whole.start]
    for part in range(1, count):
        # the cut nearest to the even share, of those that leave enough cuts for the other parts
        left = cuts[bisect_right(cuts, bounds[-1]) : len(cuts) - (count - 1 - part)]
        even = whole.start + len(whole) * part // count
        bounds.append(min(left, key=lambda cut, even=even: abs(cut - even)))  # type: ignore[misc]
    bounds.append(whole.end)
    return [OffsetRange(partition=whole.partition, start=start, end=end) for start, end in pairwise(bounds)]


def _cut(whole: OffsetRange, count: int) -> list[OffsetRange]:
    """Cut a range into ``count`` parts whose sizes differ by at most one offset."""
    bounds = [whole.start + len(whole) * part // count for part in range(count + 1)]
    return [OffsetRange(partition=whole.partition, start=start, end=end) for start, end in pairwise(bounds)]
