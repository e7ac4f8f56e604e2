# SPDX-License-Identifier: Apache-2.0
"""Down-conversion of log slices for clients that read older message formats.

KIP-32 and KIP-98 define which magic a version of Fetch may return. If an old client cannot get a whole unit, its bytes
are returned unchanged, as in FileRecords.downConvert: the client reads the size, finds too few bytes, and requests
more.
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
    """Return the newest magic that clients of this Fetch version read."""
    if version < _FIRST_WITH_MAGIC_1:
        return 0
    return 1 if version < _FIRST_WITH_MAGIC_2 else NEWEST_MAGIC


def needs_conversion(found: LogSlice, log: PartitionLog, version: int) -> bool:
    """Return True if a slice may hold records that the client cannot read. Raises OSError.

    A log whose format was changed holds both formats: the newer one at the end if the format was raised, at the
    beginning if it was lowered.
    """
    magic = magic_read_by(version)
    if magic == NEWEST_MAGIC:
        return False
    if log.settings.message_format > magic:
        return True
    head = found.read(_HEAD_BYTES)
    return len(head) == _HEAD_BYTES and head[_MAGIC_AT] > magic


def is_cut(found: LogSlice) -> bool:
    """Return True if not even the first unit is complete. Raises OSError."""
    head = found.read(_OFFSET_AND_SIZE_BYTES)
    if len(head) < _OFFSET_AND_SIZE_BYTES:
        return True
    return _OFFSET_AND_SIZE_BYTES + int.from_bytes(head[_SIZE_AT], "big", signed=True) > found.size


def convert_slice(found: LogSlice, start: int, version: int, most_bytes: int) -> bytes:
    """Return a slice from offset ``start`` on, converted for a Fetch version. Blocks.

    The result has whole units up to ``most_bytes``, but at least one. Raises CorruptMessageError, LocalProtocolError
    for records that no older format can hold, and OSError.
    """
    data = found.read()
    end = 0
    for unit in walk_units(data):
        end = unit.end
    if not end:
        return data
    return convert_down(memoryview(data)[:end], magic=magic_read_by(version), start=start, most_bytes=most_bytes)
