# SPDX-License-Identifier: Apache-2.0
"""The two sparse indexes of a segment, as in Kafka (OffsetIndex, TimeIndex; KIP-33).

``.index``: entries of 8 bytes, an offset relative to the segment's first, and the position of its unit in the segment.
``.timeindex``: entries of 12 bytes, a timestamp, and the relative offset of the unit in which it was first reached;
nothing up to that offset is newer. Both are sorted. A file that Kafka has not closed ends in zeros, so it is not
sorted.

Example: a segment with base offset 1,000 has an index entry (40, 4160): the unit of offset 1,040 begins at byte 4,160.
To read offset 1,050, reading begins there.

An index is kept in memory, and written when its segment is closed. It can be rebuilt from the segment, which is done
after an unclean shutdown.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

OFFSET_ENTRY_BYTES: Final = 8
TIME_ENTRY: Final = struct.Struct(">qi")
MOST_RELATIVE: Final = (1 << 31) - 1
"""The largest relative offset, and the largest position, of an entry."""

_LITTLE: Final = sys.byteorder == "little"


class OffsetIndex:
    """The positions of some offsets in a segment, in memory.

    Offsets are relative to the segment's first one, positions are in bytes.
    """

    def __init__(self) -> None:
        self.offsets = array("i")
        self.positions = array("i")

    def __len__(self) -> int:
        return len(self.offsets)

    def append(self, relative_offset: int, position: int) -> None:
        """Add the position of an offset, if that is above the last entry's."""
        if self.offsets and relative_offset <= self.offsets[-1]:
            return
        self.positions.append(position)  # before the offset: a concurrent reader that finds the offset needs it
        self.offsets.append(relative_offset)

    def find(self, relative_offset: int) -> int:
        """Return a position in the segment at or before the data of ``relative_offset``.

        It is that of the last entry at or below the offset; 0 without one. Reading begins there.
        """
        at = bisect_right(self.offsets, relative_offset)
        return self.positions[at - 1] if at else 0

    def encode(self) -> bytes:
        """Return the content of the segment's ``.index`` file."""
        entries = array("i", bytes(OFFSET_ENTRY_BYTES * len(self.offsets)))
        entries[0::2] = self.offsets
        entries[1::2] = self.positions
        if _LITTLE:
            entries.byteswap()
        return entries.tobytes()

    @classmethod
    def decode(cls, data: bytes, *, segment_bytes: int, most_relative: int) -> OffsetIndex | None:
        """Return the index in a segment's ``.index`` file, or None if it is invalid.

        Args:
            segment_bytes: Size of the segment.
            most_relative: The last relative offset of the segment.
        """
        if len(data) % OFFSET_ENTRY_BYTES:
            return None
        entries = array("i", data)
        if _LITTLE:
            entries.byteswap()
        index = cls()
        index.offsets = entries[0::2]
        index.positions = entries[1::2]
        if not index:
            return index
        offsets, positions = index.offsets, index.positions
        if offsets[0] < 0 or positions[0] <= 0 or offsets[-1] > most_relative or positions[-1] >= segment_bytes:
            return None
        return index if _is_rising(offsets) and _is_rising(positions) else None


class TimeIndex:
    """Timestamps of a segment in rising order, each with the offset that first reached it.

    Offsets are relative to the segment's first one. Records below an entry's offset are not newer than its timestamp.
    """

    def __init__(self) -> None:
        self.timestamps = array("q")
        self.offsets = array("i")

    def __len__(self) -> int:
        return len(self.timestamps)

    def append(self, timestamp: int, relative_offset: int) -> None:
        """Add a timestamp and its relative offset, if it is newer than the last entry's.

        A missing timestamp (-1) adds none.
        """
        if timestamp > (self.timestamps[-1] if self.timestamps else -1):
            self.offsets.append(relative_offset)
            self.timestamps.append(timestamp)

    def find(self, timestamp: int) -> int:
        """Return a relative offset below which all records are older than ``timestamp``."""
        at = bisect_right(self.timestamps, timestamp - 1)
        return self.offsets[at - 1] if at else 0

    def encode(self) -> bytes:
        """Return the content of the segment's ``.timeindex`` file."""
        return b"".join(map(TIME_ENTRY.pack, self.timestamps, self.offsets))

    @classmethod
    def decode(cls, data: bytes, *, most_relative: int) -> TimeIndex | None:
        """Return the index in a segment's ``.timeindex`` file, or None if it is invalid.

        ``most_relative`` is the last relative offset of the segment.
        """
        if len(data) % TIME_ENTRY.size:
            return None
        index = cls()
        for timestamp, offset in TIME_ENTRY.iter_unpack(data):
            index.timestamps.append(timestamp)
            index.offsets.append(offset)
        if not index:
            return index
        offsets = index.offsets
        if index.timestamps[0] < 0 or offsets[0] < 0 or offsets[-1] > most_relative:
            return None
        in_order = all(before <= after for before, after in pairwise(offsets))
        return index if in_order and _is_rising(index.timestamps) else None


def _is_rising(numbers: Sequence[int]) -> bool:
    return all(before < after for before, after in pairwise(numbers))
