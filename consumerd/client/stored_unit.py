# SPDX-License-Identifier: Apache-2.0
"""Reads the bytes of one stored message, compressed wrapper or record batch, even if damaged.

Operators' commands show quarantined messages with it.
"""

from __future__ import annotations

from dataclasses import dataclass

from consumerd.errors import CorruptMessageError
from consumerd.model import TopicPartition
from consumerd.wire.modern.assigning import mend_checksum
from consumerd.wire.modern.extent import find_stop
from consumerd.wire.modern.record_set import decode_record_set
from consumerd.wire.records import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitReading:
    """Readable records of one stored message, compressed wrapper or record batch.

    Attributes:
        note: Sentence that says which records are missing or doubtful; None if none is.
    """

    records: tuple[Record, ...]
    note: str | None


def read_unit(raw: bytes, partition: TopicPartition) -> UnitReading:
    """Read the records of one stored message or batch, even if its checksum is wrong.

    The result's note reports a wrong checksum: the records may then differ from those that were produced.

    Args:
        raw: Bytes of the message, compressed wrapper or record batch.
    """
    size = find_stop(raw, 0)
    if size is not None and size > len(raw):
        return UnitReading(records=(), note=f"cut off: {len(raw)} of {size} bytes are here")
    try:
        return UnitReading(records=_decode(raw, partition), note=None)
    except CorruptMessageError as error:
        problem = str(error)
    try:
        records = _decode(mend_checksum(raw), partition)
    except CorruptMessageError as error:
        return UnitReading(records=(), note=str(error))
    return UnitReading(records=records, note=f"{problem}. Read in spite of the checksum, not to be trusted")


def _decode(raw: bytes, partition: TopicPartition) -> tuple[Record, ...]:
    return tuple(decode_record_set(raw, partition=partition, start=0).records())
