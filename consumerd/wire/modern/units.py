# SPDX-License-Identifier: Apache-2.0
"""Record sets as a broker's log takes them and keeps them: checked, numbered, and cut into units.

A *unit* is what a log stores and serves undivided: a message, a compressed wrapper of messages, or a record batch.

Owns their heads; what a log asks of the set that a producer sent is in ``checking`` and ``assigning``, and here for it to
call.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from consumerd.errors import CorruptMessageError
from consumerd.wire.modern import record_batch
from consumerd.wire.modern.assigning import assign_offsets
from consumerd.wire.modern.checking import Part, Rules, TimestampRefused, UnsupportedForFormat, check
from consumerd.wire.modern.entry import CODEC_MASK, ENTRY, MAGIC_AT, find_end
from consumerd.wire.modern.extent import BATCH_MAGIC, UNIT_SIZES
from consumerd.wire.records import NO_TIMESTAMP

__all__ = [
    "Part",
    "Rules",
    "TimestampRefused",
    "Unit",
    "UnsupportedForFormat",
    "assign_offsets",
    "check",
    "walk_units",
]

_TIMESTAMP: Final = struct.Struct(">q")
_TIMESTAMP_AT: Final = MAGIC_AT + 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A unit by its head alone, ``size`` bytes in all; ``max_timestamp`` in ms, -1 for none.

    The head of a wrapper has only the last offset of what is in it: ``base_offset`` is that, too, and ``count`` is 1.
    """

    at: int
    size: int
    magic: int
    attributes: int
    base_offset: int
    last_offset: int
    count: int
    max_timestamp: int

    @property
    def codec(self) -> int:
        """How it is compressed."""
        return self.attributes & CODEC_MASK

    @property
    def end(self) -> int:
        """Where it ends."""
        return self.at + self.size


def walk_units(data: bytes | bytearray | memoryview, at: int = 0) -> Iterator[Unit]:
    """Go through the whole units from ``at`` on; one that is cut off at the end is left out.

    Nothing is verified. Raises CorruptMessageError, with the byte, for what cannot be a unit.
    """
    length = len(data)
    while True:
        try:
            stop = find_end(data, at, UNIT_SIZES)
        except CorruptMessageError as error:
            raise CorruptMessageError(f"byte {at} of {length}: {error}") from None
        if stop is None or stop > length:
            return
        yield _read_head(data, at, stop)
        at = stop


def _read_head(data: bytes | bytearray | memoryview, at: int, stop: int) -> Unit:
    magic = data[at + MAGIC_AT]
    if magic == BATCH_MAGIC:
        base_offset, _, _, _, _, attributes, last_delta, _, max_timestamp, _, _, _, count = (
            record_batch.HEADER.unpack_from(data, at)
        )
        last_offset = base_offset + last_delta
    else:
        (base_offset, _) = ENTRY.unpack_from(data, at)
        last_offset, attributes, count = base_offset, data[at + MAGIC_AT + 1], 1
        max_timestamp = _TIMESTAMP.unpack_from(data, at + _TIMESTAMP_AT)[0] if magic else NO_TIMESTAMP
    return Unit(
        at=at,
        size=stop - at,
        magic=magic,
        attributes=attributes,
        base_offset=base_offset,
        last_offset=last_offset,
        count=count,
        max_timestamp=max_timestamp,
    )
