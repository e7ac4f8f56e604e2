# SPDX-License-Identifier: Apache-2.0
"""Record sets of one magic made into those of another: for clients and for logs of other releases.

As in Kafka (AbstractRecords.downConvert and LogValidator of 1.1), records keep their offsets, gaps and all; what is
compressed stays so, with the same codec; timestamps keep their type where the magic has one; headers, the producer's id
and control batches are gone below magic 2. Each wrapper becomes a batch and the other way round, a row of messages becomes
one batch, and an uncompressed batch a row of messages.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from consumerd.errors import CorruptMessageError, DecompressedTooLarge
from consumerd.model import TimestampType, TopicPartition
from consumerd.wire.columns import ColumnBuilder
from consumerd.wire.modern import message_set, record_batch
from consumerd.wire.modern.building import NO_HEADERS, build_batch, build_messages
from consumerd.wire.modern.entry import CODEC_MASK, MAGIC_AT, find_end
from consumerd.wire.modern.extent import BATCH_MAGIC, UNIT_SIZES
from consumerd.wire.modern.message_row import measure_row
from consumerd.wire.records import Limits, RecordBatch

_LIMITS: Final = Limits()
_NOWHERE: Final = TopicPartition.modern("", 0)
_BATCH_ATTRIBUTES_AT: Final = record_batch.CHECKED_FROM + 1
_BY_BROKER: Final = TimestampType.LOG_APPEND_TIME + 1


def convert(
    data: bytes | bytearray | memoryview,
    *,
    magic: int,
    log_append_time_ms: int | None = None,
    leader_epoch: int = 0,
    limits: Limits = _LIMITS,
) -> bytes:
    """Return all records of whole units, whose offsets are right, in ``magic``, as a log keeps them.

    ``log_append_time_ms`` becomes the time of those that are converted, as on their way into a log whose topic has the
    broker's time; ``leader_epoch`` goes into batches that are made. Raises CorruptMessageError with the byte,
    LocalProtocolError for zstd below magic 2.
    """
    raw = bytes(data)
    pieces = []
    at = 0
    while at < len(raw):
        end = _find_end(raw, at)
        if raw[at + MAGIC_AT] == magic:
            pieces.append(raw[at:end])
        else:
            batch, limits = _read(raw, at, end, limits)
            pieces.append(_build(batch, _codec(raw, at), magic, log_append_time_ms, leader_epoch))
        at = end
    return b"".join(pieces)


def convert_down(
    data: bytes | bytearray | memoryview,
    *,
    magic: int,
    start: int = 0,
    limits: Limits = _LIMITS,
    most_bytes: int | None = None,
) -> bytes:
    """Return whole units for a client that reads nothing above ``magic``; those that it reads are left as they are.

    Of a converted batch that is not compressed, records below ``start``, from where the client wants to read, are left
    out. The answer ends before a unit that would take more than ``limits`` to decompress, or make it longer than
    ``most_bytes``, unless it is the first one: the client asks for it next. Raises as :func:`convert`.
    """
    raw = bytes(data)
    pieces: list[bytes] = []
    at = size = 0
    while at < len(raw):
        end = _find_end(raw, at)
        if raw[at + MAGIC_AT] <= magic:
            piece = raw[at:end]
        else:
            codec = _codec(raw, at)
            try:
                batch, limits = _read(raw, at, end, limits)
            except DecompressedTooLarge:
                if not any(pieces):
                    raise
                break
            piece = _build(batch if codec else batch.slice_from(start), codec, magic)
        if most_bytes is not None and size and size + len(piece) > most_bytes:
            break
        pieces.append(piece)
        size += len(piece)
        at = end
    return b"".join(pieces)


def _find_end(raw: bytes, at: int) -> int:
    """Return where a row of messages, a wrapper or a batch ends. Raises CorruptMessageError."""
    try:
        end = find_end(raw, at, UNIT_SIZES)
    except CorruptMessageError as error:
        raise CorruptMessageError(f"byte {at} of {len(raw)}: {error}") from None
    if end is None or end > len(raw):
        raise CorruptMessageError(f"byte {at} of {len(raw)}: the last unit is cut off")
    if raw[at + MAGIC_AT] < BATCH_MAGIC and not _codec(raw, at):
        return measure_row(raw, at)[1]
    return end


def _codec(raw: bytes, at: int) -> int:
    is_batch = raw[at + MAGIC_AT] == BATCH_MAGIC
    return raw[at + (_BATCH_ATTRIBUTES_AT if is_batch else MAGIC_AT + 1)] & CODEC_MASK


def _read(raw: bytes, at: int, end: int, limits: Limits) -> tuple[RecordBatch, Limits]:
    """Read the records in ``[at, end)``, none of a control batch; returns what may be decompressed behind it, too."""
    piece = raw[at:end]
    columns = ColumnBuilder(piece, _NOWHERE, 0)
    place = 0
    try:
        while place < len(piece):
            if piece[MAGIC_AT] == BATCH_MAGIC:
                record_batch.read_batch(piece, 0, len(piece), columns, limits, None)
                place = len(piece)
            else:
                place = message_set.read_messages(piece, place, len(piece), columns, limits)
    except CorruptMessageError as error:
        raise type(error)(f"byte {at + place} of {len(raw)}: {error}") from None
    left = limits.decompressed_bytes - columns.decompressed_bytes
    return columns.finish(len(piece)), replace(limits, decompressed_bytes=left)


def _build(
    batch: RecordBatch, codec: int, magic: int, log_append_time_ms: int | None = None, leader_epoch: int = 0
) -> bytes:
    """Write records, which all have one type of timestamp, in another magic."""
    if not len(batch):
        return b""
    if log_append_time_ms is None and batch.timestamp_types[:1] == bytes((_BY_BROKER,)):
        log_append_time_ms = batch.timestamps[0]
    keys, values = batch.keys(), batch.values()
    if magic < BATCH_MAGIC:
        rows = list(zip(batch.offsets, batch.timestamps, keys, values, strict=True))
        return build_messages(rows, magic=magic, codec=codec, log_append_time_ms=log_append_time_ms)
    headed = [
        (offset, timestamp, key, value, NO_HEADERS)
        for offset, timestamp, key, value in zip(batch.offsets, batch.timestamps, keys, values, strict=True)
    ]
    return build_batch(
        headed,
        base_offset=batch.offsets[0],
        codec=codec,
        log_append_time_ms=log_append_time_ms,
        leader_epoch=leader_epoch,
    )
