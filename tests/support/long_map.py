# SPDX-License-Identifier: Apache-2.0
"""Offset map of a partition that a mirror has filled in many transactions, with the records as the known answer."""

from __future__ import annotations

import random
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from consumerd.mirror.offset_map import MapWriter
from consumerd.mirror.records import PositionKey, SegmentKey, SourceLog, StoredPosition, encode_key, encode_position
from consumerd.mirror.runs import Run

LOG: Final = SourceLog("cluster", "mirror", "orders", "0", "7")
_MOST_RECORDS: Final = 2000
_MESSAGE_BYTES: Final = (20, 2000)
_MOST_IN_MESSAGE: Final = 3


@dataclass
class LongMap:
    """What a mirror has written in one partition, transaction by transaction.

    With offsets that count records, a transaction has up to 2,000 of them, and the source lacks offsets before each
    tenth one. For Kafka 0.6 and 0.7 it has one message of up to 2,000 bytes, with up to three records.

    Args:
        counts_bytes: True if source offsets count bytes (Kafka 0.6 and 0.7).
    """

    counts_bytes: bool
    source_end: int = 0
    target_end: int = 0
    """Target offset behind the last record."""
    last_segment: int = -1
    source_starts: array[int] = field(default_factory=lambda: array("q"))
    """First source offset of each transaction."""
    target_starts: array[int] = field(default_factory=lambda: array("q"))
    counts: array[int] = field(default_factory=lambda: array("q"))
    """Number of records of each transaction."""

    def __post_init__(self) -> None:
        self._writer = MapWriter(counts_bytes=self.counts_bytes)
        self._dice = random.Random(11)

    def grow(self, transactions: int, *, stores_each: int = 1000) -> Iterator[tuple[bytes, bytes]]:
        """Add transactions; yield keys and values of the segments, as the positions topic has them.

        Args:
            stores_each: number of transactions between two writes of the last segment. The mirror writes it with each
                one; compaction leaves the last.
        """
        for number in range(transactions):
            self._writer.add([self._next_run()])
            if number % stores_each == stores_each - 1 or number == transactions - 1:
                for segment, data in self._writer.take_changed().items():
                    self.last_segment = segment
                    yield encode_key(SegmentKey(LOG, segment)), data

    def _next_run(self) -> Run:
        dice = self._dice
        if self.counts_bytes:
            count, length = dice.randint(1, _MOST_IN_MESSAGE), dice.randint(*_MESSAGE_BYTES)
        else:
            count = length = dice.randint(1, _MOST_RECORDS)
            self.source_end += dice.randint(1, 200) if len(self.counts) % 10 == 9 else 0
        target = self.target_end + 1 if self.counts else 0  # behind the marker
        self.source_starts.append(self.source_end)
        self.target_starts.append(target)
        self.counts.append(count)
        run = Run(self.source_end, self.source_end + length, target, count)
        self.source_end, self.target_end = run.source_end, run.target_end
        return run

    def position(self, first_segment: int = 0) -> tuple[bytes, bytes]:
        """Return key and value of the position.

        Args:
            first_segment: number of the first segment that was not removed.
        """
        stored = StoredPosition(
            source=self.source_end,
            target=self.target_end,
            target_topic="orders",
            target_partition=0,
            counts_bytes=self.counts_bytes,
            first_segment=first_segment,
            last_segment=self.last_segment,
        )
        return encode_key(PositionKey(LOG)), encode_position(stored)

    def expect(self, position: int) -> int:
        """Return the target offset of the first record at or after a source position."""
        if self.counts_bytes:
            number, inside = bisect_left(self.source_starts, position), 0
        else:
            number = max(0, bisect_right(self.source_starts, position) - 1)
            inside = max(0, position - self.source_starts[number])
            if inside >= self.counts[number]:
                number, inside = number + 1, 0
        return self.target_end if number == len(self.counts) else self.target_starts[number] + inside

    def expect_back(self, offset: int) -> int:
        """Return the source position of the first record at or after a target offset."""
        number = max(0, bisect_right(self.target_starts, offset) - 1)
        inside = max(0, offset - self.target_starts[number])
        if inside >= self.counts[number]:
            number, inside = number + 1, 0
        if number == len(self.counts):
            return self.source_end
        return self.source_starts[number] + (0 if self.counts_bytes else inside)
