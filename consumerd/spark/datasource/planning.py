"""Which ranges of offsets a read consists of, and how they are divided among tasks.

Pure. A range goes to one task as a whole unless ``minPartitions`` or ``maxRecordsPerPartition`` asks for more; offsets are
what is counted, since nobody knows how many of them still hold a record before they are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from consumerd.model import TopicPartition
from consumerd.spark.datasource.offsets import PartitionOffsets


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

    Every partition of ``ends`` must have a start. Raises OffsetError that names the partition where an end is below its start.
    """
    raise NotImplementedError


def divide_ranges(
    ranges: Sequence[OffsetRange], *, min_partitions: int | None = None, max_records: int | None = None
) -> list[OffsetRange]:
    """Divide ranges so that there are at least ``min_partitions`` (as far as there are offsets) of about one size, none
    of which has more than ``max_records`` offsets. Parts of a partition stay in order.
    """
    raise NotImplementedError


def limit_ranges(ranges: Sequence[OffsetRange], most: int) -> list[OffsetRange]:
    """Shorten ranges so that they have ``most`` offsets together: each its share, one at least, the earliest offsets first."""
    raise NotImplementedError
