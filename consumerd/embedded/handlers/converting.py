# SPDX-License-Identifier: Apache-2.0
"""Conversion of stored records to older message formats, for clients that cannot read newer ones.

KIP-32 and KIP-98 define which format (magic) a version of Fetch may return. A slice of a log without a whole message or
batch is returned unchanged, as in FileRecords.downConvert: the client reads its size, finds too few bytes, and requests
more.
"""

from __future__ import annotations

from typing import Final

from consumerd.embedded.log.partition_log import PartitionLog
from consumerd.embedded.log.slices import LogSlice
from consumerd.wire.modern.conversion import convert_down, find_whole_end
from consumerd.wire.modern.entry import ENTRY, ENTRY_BYTES, MAGIC_AT

NEWEST_MAGIC: Final = 2

_FIRST_WITH_MAGIC_1: Final = 2
_FIRST_WITH_MAGIC_2: Final = 4


def magic_read_by(version: int) -> int:
    """Return the newest message format (magic 0 to 2) that a Fetch version may return."""
    if version < _FIRST_WITH_MAGIC_1:
        return 0
    return 1 if version < _FIRST_WITH_MAGIC_2 else NEWEST_MAGIC


def needs_conversion(found: LogSlice, log: PartitionLog, version: int) -> bool:
    """Return True if a slice may hold records that the client cannot read.

    They have a newer message format then. A log whose format was changed holds both formats: the newer one at the end
    if the format was raised, at the beginning if it was lowered. Raises OSError.

    Args:
        found: Bytes of the log that were found for the request.
        log: The log.
        version: Version of the Fetch request.
    """
    magic = magic_read_by(version)
    if magic == NEWEST_MAGIC:
        return False
    if log.settings.message_format > magic:
        return True
    head = found.read(MAGIC_AT + 1)
    return len(head) > MAGIC_AT and head[MAGIC_AT] > magic


def is_cut(found: LogSlice) -> bool:
    """Return True if a slice holds no complete message or batch.

    Raises OSError.
    """
    head = found.read(ENTRY_BYTES)
    if len(head) < ENTRY_BYTES:
        return True
    _, size = ENTRY.unpack(head)
    return bool(ENTRY_BYTES + size > found.size)


def convert_slice(found: LogSlice, start: int, version: int, most_bytes: int) -> bytes:
    """Return the records of a slice in the format of a Fetch version. Blocks.

    Records below offset ``start`` are left out. The result has whole messages or batches: as many as fit into
    ``most_bytes``, at least one. A slice without a complete one is returned unchanged. Raises CorruptMessageError,
    OSError, and LocalProtocolError for records that the older format cannot hold.
    """
    data = found.read()
    end = find_whole_end(data)
    if not end:
        return data
    return convert_down(memoryview(data)[:end], magic=magic_read_by(version), start=start, most_bytes=most_bytes)
