# SPDX-License-Identifier: Apache-2.0
"""Range of records that an operator asks ``consumerd tail`` to print.

Example: ``--from -10`` of a log that holds offsets [50, 300). The last ten records are those at offsets 290 to 299,
unless offsets are missing there. After a compaction the log may end with 280, 285, 299. :class:`RecentOffsets` then
finds that more must be read, below 290.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from consumerd.errors import OffsetOutOfRange
from consumerd.model import LogRange, TopicPartition
from consumerd.wire.records import RecordBatch


class LogEdge(enum.Enum):
    """Start or end of a partition's log, as the start of a range to print."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class AtOffset:
    """Start or end of a range to print: the same offset in every partition."""

    offset: int


@dataclass(frozen=True, slots=True)
class AtTime:
    """Start or end of a range to print: a time.

    In each partition it is the first record with the timestamp ``time_ms`` or a later one. ``time_ms`` is in ms since
    the epoch.
    """

    time_ms: int


@dataclass(frozen=True, slots=True)
class LastRecords:
    """Start of a range to print: the last ``count`` records of each partition."""

    count: int


Start = LogEdge | AtOffset | AtTime | LastRecords
End = AtOffset | AtTime


@dataclass(frozen=True, slots=True, kw_only=True)
class TailRequest:
    """Topics, and the range of their records that ``consumerd tail`` prints.

    Args:
        partitions: Numbers of the partitions of each topic; empty for all.
        start: First record: a log's start or end, an offset, a time, or the last records.
        end: Offset or time at which each partition ends; None for the log end offset of now, or with ``follow`` for no
            end.
        count: Number of records in all; None for no limit.
        follow: True to wait for new records at the end of the logs.
        patience_s: Without ``follow``, time limit in seconds for a partition from which no records come.
    """

    topics: Sequence[str]
    partitions: frozenset[int] = frozenset()
    start: Start
    end: End | None = None
    count: int | None = None
    follow: bool = False
    patience_s: float


class OutsideLog(OffsetOutOfRange):
    """Error for a requested start offset that the partition's log does not hold."""

    def __str__(self) -> str:
        return (
            f"{self.partition}: offset {self.offset} is outside the log: log_start_offset is {self.earliest}, "
            f"log_end_offset is {self.latest}; use --from {self.earliest}, EARLIEST or LATEST, or --partition for "
            f"those "
            "that hold it"
        )


def check_start(partition: TopicPartition, offset: int, log: LogRange) -> int:
    """Return ``offset`` if the log has it, or ends there; else raise OutsideLog."""
    if not log.earliest <= offset <= log.latest:
        raise OutsideLog(partition, offset, log.earliest, log.latest)
    return offset


class RecentOffsets:
    """Keeps the last offsets of those added, as runs of consecutive ones.

    A log without missing offsets is one run, so memory does not grow with the number of offsets.

    Example: keep 3; added are 5, 6, 7, 20 and 30. The runs are [6, 8), [20, 21) and [30, 31), of which the last three
    offsets are 7, 20 and 30.

    Args:
        keep: Number of offsets to keep.
    """

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._runs: list[tuple[int, int]] = []
        self.count = 0
        """Number of the offsets added."""

    def add(self, batch: RecordBatch) -> None:
        """Add the offsets of a batch's records, all above those added before."""
        offsets = batch.offsets
        if not offsets:
            return
        self.count += len(offsets)
        # offsets of Kafka 0.7 count bytes, and may be repeated: 0, 0, 0 and 3 are not the run [0, 4)
        is_run = not batch.next_offsets and offsets[-1] - offsets[0] + 1 == len(offsets)
        if is_run:
            self._append(offsets[0], offsets[-1] + 1)
        else:
            for offset in offsets[-self._keep :]:
                self._append(offset, offset + 1)
        if len(self._runs) > 2 * self._keep:
            del self._runs[: -self._keep]  # each run has one offset at least

    def _append(self, start: int, end: int) -> None:
        if self._runs and self._runs[-1][1] == start:
            start = self._runs.pop()[0]
        self._runs.append((start, end))

    def find_first(self) -> int | None:
        """Return the first of the last ``keep`` offsets; None if fewer were added."""
        left = self._keep
        for start, end in reversed(self._runs):
            if end - start >= left:
                return end - left
            left -= end - start
        return None
