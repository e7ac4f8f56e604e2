# SPDX-License-Identifier: Apache-2.0
"""Parts of a log for clients that read older formats than it stores.

Which magic a version of Fetch may bring is KIP-32's and KIP-98's business; what Kafka does with a unit that a client of
that time cannot get whole is FileRecords.downConvert's: the bytes come as they are, so that the client reads the size,
finds too few bytes and asks for more.
"""

from __future__ import annotations

from typing import Final

from consumerd.embedded.log.partition_log import PartitionLog
from consumerd.embedded.log.slices import LogSlice
from consumerd.wire.modern.conversion import convert_down
from consumerd.wire.modern.units import walk_units

NEWEST_MAGIC: Final = 2

_FIRST_WITH_MAGIC_1: Final = 2
_FIRST_WITH_MAGIC_2: Final = 4

_OFFSET_AND_SIZE_BYTES: Final = 12
_SIZE_AT: Final = slice(8, 12)
_MAGIC_AT: Final = 16
_HEAD_BYTES: Final = _MAGIC_AT + 1


def magic_read_by(version: int) -> int:
    """Return the newest magic that a client reads who fetches with ``version``."""
    if version < _FIRST_WITH_MAGIC_1:
        return 0
    return 1 if version < _FIRST_WITH_MAGIC_2 else NEWEST_MAGIC


def needs_conversion(found: LogSlice, log: PartitionLog, version: int) -> bool:
    """Tell whether what was read may hold something that the client cannot read.

    A log whose format was changed holds both: what is newer is at the end when it was raised, and at the beginning when it
    was lowered. Raises OSError.
    """
    magic = magic_read_by(version)
    if magic == NEWEST_MAGIC:
        return False
    if log.settings.message_format > magic:
        return True
    head = found.read(_HEAD_BYTES)
    return len(head) == _HEAD_BYTES and head[_MAGIC_AT] > magic


def is_cut(found: LogSlice) -> bool:
    """Tell whether not even the first unit is whole. Raises OSError."""
    head = found.read(_OFFSET_AND_SIZE_BYTES)
    if len(head) < _OFFSET_AND_SIZE_BYTES:
        return True
    return _OFFSET_AND_SIZE_BYTES + int.from_bytes(head[_SIZE_AT], "big", signed=True) > found.size


def convert_slice(found: LogSlice, start: int, version: int, most_bytes: int) -> bytes:
    """Return what was read, from offset ``start`` on, as ``version`` may bring it: whole units up to ``most_bytes``, or one. Blocks.

    Raises CorruptMessageError, LocalProtocolError for what no older format can hold; OSError.
    """
    data = found.read()
    end = 0
    for unit in walk_units(data):
        end = unit.end
    if not end:
        return data
    return convert_down(memoryview(data)[:end], magic=magic_read_by(version), start=start, most_bytes=most_bytes)
