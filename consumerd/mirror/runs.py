# SPDX-License-Identifier: Apache-2.0
"""Runs of records that are consecutive in a source partition and in its target partition.

A mirror copies each record of a source partition once and in order. So its offsets in the target follow from those in
the source, but for two things: the source may lack offsets (compaction, aborted transactions, damage that was passed
over), and a transaction's marker takes an offset in the target. Between two of them lies a run.

Example: source offsets 100 to 104 were written to 7000 to 7004, the marker of the transaction took 7005, and the next
transaction has 105 and 108. The runs are (100, 7000, 5 records), (105, 7006, 1 record), (108, 7007, 1 record).

Kafka 0.6 and 0.7
    Offsets count bytes there, so each message is a run of its own. All records of a compressed message have its offset,
    and a position is always that of a whole message.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Run(NamedTuple):
    """Records that are consecutive in source and target.

    Attributes:
        source_start: source offset of the first record.
        source_end: source offset behind the last record.
        target_start: target offset of the first record.
        records: number of records. It is ``source_end - source_start``, but for Kafka 0.6 and 0.7.
    """

    source_start: int
    source_end: int
    target_start: int
    records: int

    @property
    def target_end(self) -> int:
        """Target offset behind the last record."""
        return self.target_start + self.records


def find_runs(
    offsets: Sequence[int], next_offsets: Sequence[int], target_start: int, *, counts_bytes: bool
) -> Iterator[Run]:
    """Yield the runs of records that were written to the target one after the other.

    Args:
        offsets: source offset of each record; ascending.
        next_offsets: source offset behind each record, for Kafka 0.6 and 0.7 only. There, records of one message have
            the same two offsets, and are all there.
        target_start: target offset of the first record.
        counts_bytes: True for Kafka 0.6 and 0.7.
    """
    if not counts_bytes and offsets and offsets[-1] - offsets[0] == len(offsets) - 1:
        # the common case, in one step: ascending offsets without a hole
        yield Run(offsets[0], offsets[-1] + 1, target_start, len(offsets))
        return
    first = 0
    for number in range(1, len(offsets) + 1):
        expected = offsets[first] if counts_bytes else offsets[number - 1] + 1
        if number == len(offsets) or offsets[number] != expected:
            end = next_offsets[first] if counts_bytes else offsets[number - 1] + 1
            yield Run(offsets[first], end, target_start + first, number - first)
            first = number
