# SPDX-License-Identifier: Apache-2.0
"""Where a unit that cannot be read, or is too large to be fetched, ends: offsets that one may go on from.

Pure. No checksum covers offset and size of magic 0 and 1, and one that fails says nothing of those in magic 2. So what a
head claims is believed only with a second witness: the unit behind it, the count of a batch, the position that was asked
for, the end of the log. A wrong answer would skip records that are fine; None says that nobody can tell.

What stands behind a unit in a log has greater offsets. A plain message or a batch begins with its first, a compressed
wrapper of magic 0 and 1 says only its last.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from consumerd.errors import CorruptMessageError
from consumerd.wire.kernel import Buffer
from consumerd.wire.modern.entry import CODEC_MASK, ENTRY, LEAST_SIZES, MAGIC_AT, find_end
from consumerd.wire.modern.record_batch import HEADER, HEADER_BYTES, LAST_OFFSET_DELTA, LAST_OFFSET_DELTA_AT
from consumerd.wire.modern.record_batch import LEAST_LENGTH as _LEAST_BATCH

BATCH_MAGIC: Final = 2
UNIT_SIZES: Final = (*LEAST_SIZES, _LEAST_BATCH)
"""The smallest sizes of units, by magic."""
HEAD_BYTES: Final = HEADER_BYTES
"""The longest head; what is read of a unit is no more."""


def find_stop(data: Buffer, at: int) -> int | None:
    """Return where the unit at ``at`` ends if it has a size that may be right."""
    try:
        return find_end(data, at, UNIT_SIZES)
    except CorruptMessageError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitOffsets:
    """The offsets that a unit has by its own head; ``first`` is None in a compressed wrapper, which says only its last."""

    first: int | None
    last: int

    @property
    def least(self) -> int:
        """The least that is known of the unit."""
        return self.last if self.first is None else self.first


def read_offsets(data: Buffer, at: int, high_watermark: int | None) -> UnitOffsets | None:
    """Return what the head at ``at`` claims, if it is there and possible."""
    if find_stop(data, at) is None or len(data) - at <= MAGIC_AT + 1:
        return None
    (offset, _) = ENTRY.unpack_from(data, at)
    first, last = offset, offset
    if data[at + MAGIC_AT] == BATCH_MAGIC:
        if len(data) - at < LAST_OFFSET_DELTA_AT + LAST_OFFSET_DELTA.size:
            return None
        last += LAST_OFFSET_DELTA.unpack_from(data, at + LAST_OFFSET_DELTA_AT)[0]
    elif data[at + MAGIC_AT + 1] & CODEC_MASK:
        first = None
    if last < max(offset, 0) or (high_watermark is not None and last >= high_watermark):
        return None
    return UnitOffsets(first=first, last=last)


def read_claim(data: Buffer, at: int, start: int, high_watermark: int | None) -> int | None:
    """Return the offset behind the unit at ``at`` by its own head, if that is there and possible."""
    if find_stop(data, at) is None or len(data) - at <= MAGIC_AT:
        return None
    (offset, _) = ENTRY.unpack_from(data, at)
    if data[at + MAGIC_AT] == BATCH_MAGIC:
        if len(data) - at < LAST_OFFSET_DELTA_AT + LAST_OFFSET_DELTA.size:
            return None
        offset += LAST_OFFSET_DELTA.unpack_from(data, at + LAST_OFFSET_DELTA_AT)[0]
    claimed = int(offset) + 1
    return claimed if start < claimed and (high_watermark is None or claimed <= high_watermark) else None


def find_next_offset(data: Buffer, at: int, start: int, high_watermark: int | None = None) -> int | None:
    """Return the offset behind the unit at ``at``, which cannot be read, if two witnesses agree on it.

    ``data`` may go on behind the unit; of what follows only the head is looked at.
    """
    stop = find_stop(data, at)
    if stop is None or len(data) - at <= MAGIC_AT:
        return None
    claimed = read_claim(data, at, start, high_watermark)
    behind = read_offsets(data, stop, high_watermark)
    if claimed is not None and behind is not None and start <= behind.last < claimed:
        claimed = None
    if claimed is not None and (claimed == high_watermark or _is_consistent(data, at, start, claimed)):
        return claimed
    if find_stop(data, stop) is None:
        return None
    (following, _) = ENTRY.unpack_from(data, stop)
    if claimed is not None and claimed <= following and (high_watermark is None or following < high_watermark):
        return claimed
    if high_watermark is not None and _begins_with_its_first(data, stop) and start < following < high_watermark:
        return int(following)
    return None


def _is_consistent(data: Buffer, at: int, start: int, claimed: int) -> bool:
    """Tell whether something else in the unit's own head agrees with what it claims."""
    if data[at + MAGIC_AT] != BATCH_MAGIC:
        return claimed == start + 1
    if len(data) - at < HEADER_BYTES:
        return False
    header = HEADER.unpack_from(data, at)
    return bool(header[-1] == header[6] + 1)


def _begins_with_its_first(data: Buffer, at: int) -> bool:
    if len(data) - at <= MAGIC_AT + 1:
        return False
    return data[at + MAGIC_AT] == BATCH_MAGIC or not data[at + MAGIC_AT + 1] & CODEC_MASK
