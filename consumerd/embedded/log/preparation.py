"""What becomes of a produced record set before it is written: checked, and given its offsets. Pure.

What a broker requires of it: Kafka's Log.analyzeAndValidateRecords and LogValidator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from consumerd.embedded.log.errors import InvalidTimestamp, RecordTooLarge
from consumerd.embedded.log.headers import UnitHeader, UnitWalker
from consumerd.embedded.log.settings import LogSettings
from consumerd.errors import CorruptMessageError
from consumerd.model import TimestampType, TopicPartition
from consumerd.wire.modern.entry import LOG_APPEND_TIME_FLAG
from consumerd.wire.modern.record_batch import HEADER


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What is to be written: whole units, whose positions count from the first."""

    data: bytearray
    units: Sequence[UnitHeader]
    base_offset: int
    count: int
    log_append_time_ms: int | None


def prepare(
    record_set: bytes | bytearray | memoryview,
    partition: TopicPartition,
    next_offset: int,
    settings: LogSettings,
    now_ms: int,
) -> Prepared:
    """Check a record set as it was sent, and give it offsets from ``next_offset`` on.

    Raises CorruptMessageError, RecordTooLarge, InvalidTimestamp.
    """
    data = bytearray(record_set)
    view = bytes(data)
    walker = UnitWalker(lambda position, size: view[position : position + size], 0, len(data))
    units: list[UnitHeader] = []
    offset = next_offset
    for unit in walker:
        if unit.size > settings.max_message_bytes:
            raise RecordTooLarge(partition, unit.size, settings.max_message_bytes)
        if not walker.is_intact(unit):
            raise CorruptMessageError("the checksum is wrong", partition=partition)
        if unit.magic == 2 and view[unit.position + 22] & LOG_APPEND_TIME_FLAG:
            raise InvalidTimestamp("producers may not claim LogAppendTime")
        if unit.magic != 2 and view[unit.position + 17] & 7:
            raise CorruptMessageError("compressed messages of magic 0 and 1 are not taken", partition=partition)
        count = HEADER.unpack_from(view, unit.position)[12] if unit.magic == 2 else 1
        data[unit.position : unit.position + 8] = offset.to_bytes(8, "big")
        if unit.magic == 2:
            data[unit.position + 12 : unit.position + 16] = bytes(4)
        units.append(unit._replace(offset=offset, last_offset=offset + count - 1))
        offset += count
    del data[units[-1].end if units else 0 :]
    return Prepared(
        data=data,
        units=units,
        base_offset=next_offset,
        count=offset - next_offset,
        log_append_time_ms=now_ms if settings.timestamp_type is TimestampType.LOG_APPEND_TIME else None,
    )
