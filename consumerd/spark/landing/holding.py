"""What offsets a file holds records of, by its own word. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from consumerd.model import GapReason
from consumerd.sinks.chain import FileMetadata
from consumerd.spark.landing.ranges import EMPTY, RangeSet


@dataclass(frozen=True, slots=True)
class Holding:
    """``certain``: each of these offsets has its record in the file, or is a transaction marker, which is nobody's record.
    ``doubtful``: some of these have, and the file does not say which, since it has summed its gaps up.
    """

    certain: RangeSet
    doubtful: RangeSet

    @classmethod
    def of(cls, metadata: FileMetadata) -> Holding:
        """Read it off a file's metadata."""
        if metadata.count == 0:
            return cls(EMPTY, EMPTY)
        span = RangeSet.of([(metadata.position, metadata.next_offset)])
        lacking = [gap for gap in metadata.gaps if gap.reason is not GapReason.CONTROL]
        absent = RangeSet.of((gap.start, gap.end) for gap in lacking if gap.offsets >= gap.end - gap.start)
        doubtful = RangeSet.of((gap.start, gap.end) for gap in lacking if gap.offsets < gap.end - gap.start)
        held = span - absent
        return cls(held - doubtful, held & doubtful)
