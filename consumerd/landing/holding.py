# SPDX-License-Identifier: Apache-2.0
"""Offsets for which a landed file has records, by its metadata. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from consumerd.landing.chain import FileMetadata
from consumerd.landing.ranges import EMPTY, RangeSet
from consumerd.model import GapReason

RECORDLESS: Final = frozenset({GapReason.CONTROL, GapReason.ERASED})
"""Reasons of gaps whose offsets count as landed: no file will ever have records for them."""
FEW_PIECES: Final = 8
"""Largest number of a file's ranges of offsets that are kept in memory one by one."""


@dataclass(frozen=True, slots=True)
class Holding:
    """Offsets for which one landed file has records, or had them before they were erased.

    Attributes:
        certain: offsets for which no record may be taken from another chain of files. They are the offsets of records
            in the file, of transaction markers, and of erased records.
        doubtful: offsets of which the file has some. Its metadata do not tell which, because they have only the sum of
            several gaps.
    """

    certain: RangeSet
    doubtful: RangeSet

    @classmethod
    def of(cls, metadata: FileMetadata) -> Holding:
        """Return the offsets of a file, computed from its metadata alone."""
        if metadata.count == 0 and all(gap.reason is not GapReason.ERASED for gap in metadata.gaps):
            return cls(EMPTY, EMPTY)
        span = RangeSet.of([(metadata.position, metadata.next_offset)])
        lacking = [gap for gap in metadata.gaps if gap.reason not in RECORDLESS]
        absent = RangeSet.of((gap.start, gap.end) for gap in lacking if gap.offsets >= gap.end - gap.start)
        doubtful = RangeSet.of((gap.start, gap.end) for gap in lacking if gap.offsets < gap.end - gap.start)
        held = span - absent
        return cls(held - doubtful, held & doubtful)

    def sum_up(self, most_pieces: int) -> Holding:
        """Return these offsets as at most ``most_pieces`` ranges, to save memory.

        If there are more ranges, the result has one doubtful range from the first offset to the last. Only the file
        itself, or a table with its rows, then tells which of these offsets have records. Example: offsets 0, 2 and 5
        with ``most_pieces`` 2 become the doubtful range 0 to 5.
        """
        if len(self.certain.spans) + len(self.doubtful.spans) <= most_pieces:
            return self
        held = self.certain | self.doubtful
        return Holding(EMPTY, RangeSet.of([(held.spans[0].start, held.spans[-1].end)]))
