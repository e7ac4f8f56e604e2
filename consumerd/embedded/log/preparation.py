# SPDX-License-Identifier: Apache-2.0
"""Preparation of produced records for a log: checks, offsets, conversion. Pure.

Requirements are those of Kafka's Log.analyzeAndValidateRecords and LogValidator. ``wire.modern.checking`` implements
them; this module applies a log's settings.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from consumerd.embedded.log.errors import InvalidTimestamp, LogRecordTooLarge
from consumerd.embedded.log.expansion import Expansion, most_decompressed
from consumerd.embedded.log.headers import UnitHeader, walk_headers
from consumerd.embedded.log.settings import LogSettings
from consumerd.errors import CorruptMessageError
from consumerd.model import TimestampType, TopicPartition
from consumerd.wire.modern.assigning import assign_offsets
from consumerd.wire.modern.checking import Part, Rules, TimestampRefused, check
from consumerd.wire.modern.conversion import convert
from consumerd.wire.modern.entry import ENTRY_BYTES, LEAST_SIZES
from consumerd.wire.modern.extent import BATCH_MAGIC
from consumerd.wire.modern.record_reader import LEAST_RECORD_BYTES
from consumerd.wire.records import Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Records as they are to be appended to a log: bytes and headers.

    Attributes:
        data: whole messages or batches.
        units: their headers, with positions relative to the start of ``data``.
        base_offset: offset of the first record.
        count: number of records.
        log_append_time_ms: the broker's time, if it is the records' timestamp, else None.
    """

    data: bytes | bytearray
    units: Sequence[UnitHeader]
    base_offset: int
    count: int
    log_append_time_ms: int | None


_LEADER_EPOCH_AT: Final = slice(12, 16)
_FIRST_LEADER_EPOCH: Final = bytes(4)
"""The leader epoch in accepted batches: with one replica, the leader never changes."""


def prepare(
    record_set: bytes | bytearray | memoryview,
    partition: TopicPartition,
    next_offset: int,
    settings: LogSettings,
    now_ms: int,
    expansion: Expansion | None = None,
) -> Prepared:
    """Check produced records, and assign offsets from ``next_offset`` on.

    ``expansion`` limits the decompressed size of all records of the request. Raises CorruptMessageError
    (UnsupportedForFormat, DecompressedTooLarge), LogRecordTooLarge, InvalidTimestamp.
    """
    by_broker = settings.timestamp_type is TimestampType.LOG_APPEND_TIME
    most_bytes = most_decompressed(settings.max_message_bytes)
    if expansion is not None:
        most_bytes = min(most_bytes, expansion.left_bytes)
    rules = Rules(
        keys_required=settings.cleanup_policy.compacts,
        now_ms=now_ms,
        max_difference_ms=None if by_broker else settings.max_timestamp_difference_ms,
        stored_magic=settings.message_format,
        limits=Limits(decompressed_bytes=most_bytes),
    )
    try:
        if len(record_set) > settings.max_message_bytes:  # otherwise no unit in it can be larger
            _check_sizes(walk_headers(record_set), partition, settings)
        parts = check(record_set, rules)
    except CorruptMessageError as error:
        if expansion is not None:
            expansion.spend(most_bytes)  # the size decompressed before the error is unknown
        if isinstance(error, TimestampRefused):
            raise InvalidTimestamp(f"{partition}: {error}") from error
        raise type(error)(f"{partition}: a record set was refused: {error}", partition=partition) from error
    if expansion is not None:
        expansion.spend(sum(part.decompressed_bytes for part in parts))
    log_append_time_ms = now_ms if by_broker else None
    data: bytes | bytearray
    if all(part.magic == settings.message_format for part in parts):
        data = assign_offsets(bytearray(record_set), next_offset, log_append_time_ms=log_append_time_ms, parts=parts)
    else:
        _check_converted_sizes(parts, partition, settings)
        data = _convert(record_set, parts, next_offset, settings.message_format, log_append_time_ms)
    units = list(walk_headers(data))
    _check_sizes(units, partition, settings)
    return Prepared(
        data=data,
        units=units,
        base_offset=next_offset,
        count=sum(part.count for part in parts),
        log_append_time_ms=log_append_time_ms,
    )


def _check_sizes(units: Iterable[UnitHeader], partition: TopicPartition, settings: LogSettings) -> None:
    largest = max((unit.size for unit in units), default=0)
    if largest > settings.max_message_bytes:
        raise LogRecordTooLarge(partition, largest, settings.max_message_bytes)


def _check_converted_sizes(parts: Iterable[Part], partition: TopicPartition, settings: LogSettings) -> None:
    """Refuse messages that would not fit into one converted batch, before conversion."""
    if settings.message_format < BATCH_MAGIC:
        return
    for part in parts:
        if part.magic < BATCH_MAGIC and not part.codec:
            payload_bytes = part.end - part.at - part.count * (ENTRY_BYTES + LEAST_SIZES[part.magic])
            least_bytes = payload_bytes + part.count * LEAST_RECORD_BYTES
            if least_bytes > settings.max_message_bytes:
                raise LogRecordTooLarge(partition, least_bytes, settings.max_message_bytes)


def _convert(
    record_set: bytes | bytearray | memoryview,
    parts: Sequence[Part],
    next_offset: int,
    magic: int,
    log_append_time_ms: int | None,
) -> bytes:
    """Assign offsets, convert, and then set the broker's time.

    Conversion keeps offsets. The time comes last, since magic 0 has no field for it.
    """
    pieces: list[bytes | bytearray] = []
    for part in parts:
        piece = bytearray(record_set[part.at : part.end])
        part = replace(part, at=0, end=len(piece))
        if part.magic == magic:
            pieces.append(assign_offsets(piece, next_offset, log_append_time_ms=log_append_time_ms, parts=(part,)))
        else:
            converted = bytearray(convert(assign_offsets(piece, next_offset, parts=(part,)), magic=magic))
            if magic and log_append_time_ms is not None:
                part = replace(part, end=len(converted), magic=magic, inner=None)
                assign_offsets(converted, next_offset, log_append_time_ms=log_append_time_ms, parts=(part,))
            if magic == BATCH_MAGIC:
                converted[_LEADER_EPOCH_AT] = _FIRST_LEADER_EPOCH
            pieces.append(converted)
        next_offset += part.count
    return b"".join(pieces)
