# SPDX-License-Identifier: Apache-2.0
"""Offsets after messages and batches that are unreadable or too large to fetch.

Pure. A *unit* is a message, a compressed wrapper or a batch. A consumer that skips one needs to know the next offset.
If the answer is too high, valid records are skipped; so None is returned when in doubt.

A unit's header alone is no proof. No checksum covers the offset and the size of a unit. In magic 2 it covers the last
offset delta, but if it fails, it does not tell which bytes are damaged. The claim of a header needs a second witness:
the header of the unit after it, a batch's record count, the position that was asked for, or the high watermark.

Example: position 5 was asked for, the high watermark is 100, and the first unit is unreadable:

=====================  ==============  ======  ====================================================
unit, by its header    unit after it   result  reason
=====================  ==============  ======  ====================================================
message 5              none            6       it is the offset that was asked for
batch 5-7, count 3     none            8       count and offsets agree
message 99             none            100     it ends at the high watermark
message 9              none            None    either 5-8 were compacted, or 9 is damaged
message 9              message 12      10      12 confirms that 9 is possible
message 9              message 3       None    3 is impossible, and no witness
message 2**60          message 6       6       a message's header has its first offset, so 6 comes next
message 2**60          wrapper 8       None    a wrapper's header has its last offset; its first is unknown
=====================  ==============  ======  ====================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from consumerd.errors import CorruptMessageError
from consumerd.wire.kernel import Buffer
from consumerd.wire.modern.entry import ATTRIBUTES_AT, CODEC_MASK, ENTRY, INT32, LEAST_SIZES, MAGIC_AT, find_end
from consumerd.wire.modern.record_batch import ATTRIBUTES_AT as _BATCH_ATTRIBUTES_AT
from consumerd.wire.modern.record_batch import HEADER, HEADER_BYTES, LAST_OFFSET_DELTA_AT
from consumerd.wire.modern.record_batch import LEAST_LENGTH as _LEAST_BATCH

BATCH_MAGIC: Final = 2
UNIT_SIZES: Final = (*LEAST_SIZES, _LEAST_BATCH)
"""Smallest valid value of the size field of a message or batch, by magic."""
HEAD_BYTES: Final = HEADER_BYTES
"""Size in bytes of the longest header, that of a batch; this module reads no more of one."""


def find_stop(data: Buffer, at: int) -> int | None:
    """Return the position after the message or batch at ``at``, according to its size field.

    None if its size or magic is impossible, or if there are fewer than 12 bytes of it.
    """
    try:
        return find_end(data, at, UNIT_SIZES)
    except CorruptMessageError:
        return None


def following_offset(data: Buffer, at: int) -> int:
    """Return the offset after the message or batch at ``at``; its header is not verified."""
    (offset, _) = ENTRY.unpack_from(data, at)
    if at + HEADER_BYTES <= len(data) and data[at + MAGIC_AT] >= BATCH_MAGIC:
        offset += INT32.unpack_from(data, at + LAST_OFFSET_DELTA_AT)[0]
    return int(offset) + 1


def read_codec(data: Buffer, at: int) -> int:
    """Return the compression codec of the message or batch at ``at``.

    Its header must be in the data.
    """
    attributes_at = _BATCH_ATTRIBUTES_AT if data[at + MAGIC_AT] >= BATCH_MAGIC else ATTRIBUTES_AT
    return data[at + attributes_at] & CODEC_MASK


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitOffsets:
    """First and last offset of a message or batch, according to its header.

    ``first`` is None for a compressed wrapper, whose header has only its last offset.
    """

    first: int | None
    last: int

    @property
    def least(self) -> int:
        """The first offset if known, else the last."""
        return self.last if self.first is None else self.first


def read_offsets(data: Buffer, at: int, high_watermark: int | None) -> UnitOffsets | None:
    """Return the first and last offset in the header at ``at``, which are not verified.

    The header is that of a message or batch. Returns None if the header is cut off, or its offsets are negative or not
    below the high watermark.
    """
    if find_stop(data, at) is None or len(data) - at <= ATTRIBUTES_AT:
        return None
    (offset, _) = ENTRY.unpack_from(data, at)
    first, last = offset, offset
    if data[at + MAGIC_AT] == BATCH_MAGIC:
        if len(data) - at < LAST_OFFSET_DELTA_AT + INT32.size:
            return None
        last += INT32.unpack_from(data, at + LAST_OFFSET_DELTA_AT)[0]
    elif data[at + ATTRIBUTES_AT] & CODEC_MASK:
        first = None
    if last < max(offset, 0) or (high_watermark is not None and last >= high_watermark):
        return None
    return UnitOffsets(first=first, last=last)


def read_claim(data: Buffer, at: int, start: int, high_watermark: int | None) -> int | None:
    """Return the offset after the message or batch at ``at``, by its header alone.

    ``start`` is the offset that was fetched from. Returns None if the header is cut off, or if the result would be
    ``start`` or less, or above ``high_watermark``.
    """
    if find_stop(data, at) is None or len(data) - at <= MAGIC_AT:
        return None
    (offset, _) = ENTRY.unpack_from(data, at)
    if data[at + MAGIC_AT] == BATCH_MAGIC:
        if len(data) - at < LAST_OFFSET_DELTA_AT + INT32.size:
            return None
        offset += INT32.unpack_from(data, at + LAST_OFFSET_DELTA_AT)[0]
    claimed = int(offset) + 1
    return claimed if start < claimed and (high_watermark is None or claimed <= high_watermark) else None


def find_next_offset(data: Buffer, at: int, start: int, high_watermark: int | None = None) -> int | None:
    """Return the offset after the unreadable message or batch at ``at``.

    Its header may be damaged, too. So the offset must be confirmed: by the rest of the header, the high watermark, or
    the header of the next message or batch, if ``data`` has it. Returns None if nothing confirms an offset.

    Args:
        at: Position of the unreadable message or batch in ``data``.
        start: Offset that was fetched from.
        high_watermark: The partition's high watermark; None if unknown.
    """
    stop = find_stop(data, at)
    if stop is None or len(data) - at <= MAGIC_AT:
        return None
    claimed = read_claim(data, at, start, high_watermark)
    behind = read_offsets(data, stop, high_watermark)
    if claimed is not None and behind is not None and start <= behind.last < claimed:
        claimed = None  # the unit after it has a possible offset, and contradicts it
    if claimed is not None and (claimed == high_watermark or _is_consistent(data, at, start, claimed)):
        return claimed  # confirmed by the high watermark, or by the header itself
    if find_stop(data, stop) is None:
        return None
    (following, _) = ENTRY.unpack_from(data, stop)
    if claimed is not None and claimed <= following and (high_watermark is None or following < high_watermark):
        return claimed  # confirmed by the unit after it
    if high_watermark is not None and _begins_with_its_first(data, stop) and start < following < high_watermark:
        return int(following)  # the claim is wrong, but the next unit says where it begins
    return None


def _is_consistent(data: Buffer, at: int, start: int, claimed: int) -> bool:
    """Return whether the rest of the header, or the position asked for, confirms ``claimed``."""
    if data[at + MAGIC_AT] != BATCH_MAGIC:
        return claimed == start + 1
    if len(data) - at < HEADER_BYTES:
        return False
    header = HEADER.unpack_from(data, at)
    return bool(header[-1] == header[6] + 1)


def _begins_with_its_first(data: Buffer, at: int) -> bool:
    """Return whether the header at ``at`` has the first offset of its unit.

    A compressed wrapper's header has the last one.
    """
    if len(data) - at <= ATTRIBUTES_AT:
        return False
    return data[at + MAGIC_AT] == BATCH_MAGIC or not data[at + ATTRIBUTES_AT] & CODEC_MASK
