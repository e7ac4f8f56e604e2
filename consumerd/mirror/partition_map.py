# SPDX-License-Identifier: Apache-2.0
"""Translation of positions in one source partition, over truncations of its log.

A mirror begins a new log of the same topic where an unclean leader election has cut the source's log. Each log has an
offset map of its own, and the later one counts from its first offset on.

Example: the mirror had copied offsets 0 to 99, then the log was cut at 80, and 80 to 90 were written anew. The first
log's map has 0 to 99, the second one's begins at 80. Position 50 is translated by the first, 85 by the second. Target
offsets of the lost records 80 to 99 translate back to 80.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from consumerd.mirror.offset_map import MapPlace, OffsetMap, Translation
from consumerd.mirror.records import SourceLog, StoredPosition


@dataclass(frozen=True, slots=True)
class MirroredLog:
    """A log of the source, with the mirror's position in it and its offset map."""

    log: SourceLog
    stored: StoredPosition
    offsets: OffsetMap

    @property
    def has_records(self) -> bool:
        """True if the offset map has a segment."""
        return self.stored.last_segment >= self.stored.first_segment

    @property
    def source_start(self) -> int:
        """Source offset of the first mirrored record, or of the coming one."""
        return self.offsets.translate_back(0).offset

    @property
    def target_start(self) -> int:
        """Target offset of the first mirrored record, or of the coming one."""
        return self.offsets.translate(self.source_start).offset


class PartitionMap:
    """Translates positions of one partition, through the maps of its logs.

    Args:
        logs: The logs of one topic's partition, in their order; at least one, and all in one partition of the target.
    """

    def __init__(self, logs: Sequence[MirroredLog]) -> None:
        self._logs: Final = tuple(logs)
        starts = [log.source_start for log in logs]
        self._source_starts: Final = starts
        self._target_starts: Final = [log.target_start for log in logs]
        self._cuts: Final = [min(starts[number:]) for number in range(1, len(logs))]
        """Source offset from which each log but the last was lost."""

    @property
    def stored(self) -> StoredPosition:
        """The mirror's present position, and where its records are in the target."""
        return self._logs[-1].stored

    @property
    def source_start(self) -> int:
        """Source offset of the first mirrored record, or of the coming one."""
        return self._source_starts[0]

    @property
    def target_start(self) -> int:
        """Target offset of the first mirrored record, or of the coming one."""
        return self._target_starts[0]

    def translate(self, position: int) -> Translation:
        """Return the target offset of the first mirrored record at or after a source position.

        Raises NotMirrored for a position above the mirror's; CorruptMessageError for a damaged segment.
        """
        number, wanted = _find_last(self._source_starts, position), position
        for log, later, cut in zip(self._logs[number:], self._logs[number + 1 :], self._cuts[number:], strict=False):
            if wanted <= log.stored.source:
                found = log.offsets.translate(wanted)
                if found.place is not MapPlace.END and log.offsets.translate_back(found.offset).offset < cut:
                    return found
            wanted = max(position, later.source_start)
        return self._logs[-1].offsets.translate(wanted)

    def translate_back(self, offset: int) -> Translation:
        """Return the source position of the first mirrored record at or after a target offset.

        Behind the last mirrored record it is the mirror's position. Raises CorruptMessageError for a damaged segment.
        """
        number = _find_last(self._target_starts, offset)
        for log, later, cut in zip(self._logs[number:], self._logs[number + 1 :], self._cuts[number:], strict=False):
            found = log.offsets.translate_back(offset)
            if found.place is not MapPlace.END and found.offset < cut:
                return found
            offset = max(offset, later.target_start)
        return self._logs[-1].offsets.translate_back(offset)


def _find_last(starts: Sequence[int], position: int) -> int:
    """Return the number of the last log that begins at or below a position.

    That of the first log if none does.
    """
    return max((number for number, start in enumerate(starts) if start <= position), default=0)
