# SPDX-License-Identifier: Apache-2.0
"""What offsets a file holds records of, by its own word. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from consumerd.landing.chain import FileMetadata
from consumerd.landing.ranges import EMPTY, RangeSet
from consumerd.model import GapReason

RECORDLESS: Final = frozenset({GapReason.CONTROL, GapReason.ERASED})
"""Reasons of gaps whose offsets count as held: no other chain is to give their records."""
FEW_PIECES: Final = 8
"""How many ranges of a file are worth to be known one by one."""


@dataclass(frozen=True, slots=True)
class Holding:
    """Offsets that a file holds records of.

    Attributes:
        certain: each has its record in the file, or is a transaction marker, or was erased. Of the latter two no other
            chain is to give a record.
        doubtful: some have a record, and the file does not say which, since it has summed its gaps up.
    """

    certain: RangeSet
    doubtful: RangeSet

    @classmethod
    def of(cls, metadata: FileMetadata) -> Holding:
        """Read it off a file's metadata."""
        if metadata.count == 0 and all(gap.reason is not GapReason.ERASED for gap in metadata.gaps):
            return cls(EMPTY, EMPTY)
        span = RangeSet.of([(metadata.position, metadata.next_offset)])
        lacking = [gap for gap in metadata.gaps if gap.reason not in RECORDLESS]
        absent = RangeSet.of((gap.start, gap.end) for gap in lacking if gap.offsets >= gap.end - gap.start)
        doubtful = RangeSet.of((gap.start, gap.end) for gap in lacking if gap.offsets < gap.end - gap.start)
        held = span - absent
        return cls(held - doubtful, held & doubtful)

    def sum_up(self, most_pieces: int) -> Holding:
        """Return what is remembered of a file with more holes than that, as those of a compacted topic have: that only itself, or the
        table that has its rows, tells which offsets it holds. Ranges of each would fill a driver's memory for good.
        """
        if len(self.certain.spans) + len(self.doubtful.spans) <= most_pieces:
            return self
        held = self.certain | self.doubtful
        return Holding(EMPTY, RangeSet.of([(held.spans[0].start, held.spans[-1].end)]))
