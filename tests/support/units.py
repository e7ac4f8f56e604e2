# SPDX-License-Identifier: Apache-2.0
"""Units of a broker's log: what tests see of a record set by its headers.

A *unit* is what a log stores and serves as a whole: a plain message, a compressed wrapper message, or a record batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from consumerd.errors import CorruptMessageError
from consumerd.wire.modern import record_batch
from consumerd.wire.modern.entry import CODEC_MASK, ENTRY, INT64, MAGIC_AT, find_end
from consumerd.wire.modern.extent import BATCH_MAGIC, UNIT_SIZES
from consumerd.wire.record_fields import NO_TIMESTAMP

_TIMESTAMP_AT: Final = MAGIC_AT + 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A unit as described by its header.

    A wrapper's header has only the last offset of its messages: ``base_offset`` equals it, and ``count`` is 1.

    Args:
        at: position in the data.
        size: bytes of the whole unit.
        max_timestamp: ms since the epoch; -1 for none.
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
        """The compression codec."""
        return self.attributes & CODEC_MASK

    @property
    def end(self) -> int:
        """Position after the unit."""
        return self.at + self.size


def walk_units(data: bytes | bytearray | memoryview, at: int = 0) -> Iterator[Unit]:
    """Yield the whole units from ``at`` on.

    A partial one at the end is left out. Only headers are read, and nothing is verified. Raises CorruptMessageError,
    with the byte position, for an impossible size or magic.
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
        max_timestamp = INT64.unpack_from(data, at + _TIMESTAMP_AT)[0] if magic else NO_TIMESTAMP
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
