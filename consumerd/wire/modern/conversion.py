# SPDX-License-Identifier: Apache-2.0
"""Conversion of record sets between magics, for older clients and older log formats.

As in Kafka (AbstractRecords.downConvert and LogValidator of 1.1): records keep their offsets, including gaps. What is
compressed stays compressed with the same codec. Timestamps keep their type if the magic has one. Below magic 2 headers,
producer ids and control batches are dropped. A wrapper becomes a batch, and a compressed batch a wrapper; a row of
messages becomes one batch, and an uncompressed batch a row of messages.

Example: a gzip batch (magic 2) with records 10, 11 and 14

- becomes in magic 0 a gzip wrapper with offset 14, and inner messages 10, 11 and 14;
- becomes in magic 1 a gzip wrapper with offset 14, and inner messages 0, 1 and 4.

A control batch with offset 15 after it is dropped: the client sees a gap.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from consumerd.errors import CorruptMessageError, DecompressedTooLarge
from consumerd.model import TimestampType, TopicPartition
from consumerd.wire.columns import ColumnBuilder
from consumerd.wire.modern import message_set, record_batch
from consumerd.wire.modern.building import NO_HEADERS, build_batch, build_messages
from consumerd.wire.modern.entry import MAGIC_AT, find_end
from consumerd.wire.modern.extent import BATCH_MAGIC, UNIT_SIZES, read_codec
from consumerd.wire.modern.message_row import measure_row
from consumerd.wire.records import Limits, RecordBatch

_LIMITS: Final = Limits()
_NOWHERE: Final = TopicPartition.modern("", 0)
_BY_BROKER: Final = TimestampType.LOG_APPEND_TIME + 1


def convert(
    data: bytes | bytearray | memoryview,
    *,
    magic: int,
    log_append_time_ms: int | None = None,
    leader_epoch: int = 0,
    limits: Limits = _LIMITS,
) -> bytes:
    """Return messages and batches converted to message format ``magic``, for storage in a log.

    Args:
        data: complete messages and batches whose offsets are final.
        log_append_time_ms: timestamp of all converted records, for topics with LogAppendTime. None keeps timestamps.
        leader_epoch: leader epoch of created batches.

    Raises CorruptMessageError with the byte position, LocalProtocolError for zstd below magic 2.
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
            pieces.append(_build(batch, read_codec(raw, at), magic, log_append_time_ms, leader_epoch))
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
    """Return messages and batches converted for a client that reads formats up to ``magic``.

    Those that the client can read are unchanged. The result ends before a message or batch that exceeds the limits,
    unless it is the first one; the client asks for it next. Raises CorruptMessageError with the byte position.

    Args:
        start: position that the client asked for. Of converted uncompressed batches, records below it are left out.
        limits: limits of decompression.
        most_bytes: size limit of the result.
    """
    raw = bytes(data)
    pieces: list[bytes] = []
    at = size = 0
    while at < len(raw):
        end = _find_end(raw, at)
        if raw[at + MAGIC_AT] <= magic:
            piece = raw[at:end]
        else:
            codec = read_codec(raw, at)
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


def find_whole_end(data: bytes) -> int:
    """Return the position after the last complete message or batch in ``data``.

    The bytes from there on are a message or batch that is cut off. Only headers are read. Raises CorruptMessageError,
    with the byte position, for an impossible size or magic.
    """
    end = 0
    while (stop := _find_stop(data, end)) is not None and stop <= len(data):
        end = stop
    return end


def _find_stop(raw: bytes, at: int) -> int | None:
    try:
        return find_end(raw, at, UNIT_SIZES)
    except CorruptMessageError as error:
        raise CorruptMessageError(f"byte {at} of {len(raw)}: {error}") from None


def _find_end(raw: bytes, at: int) -> int:
    """Return the end of a row of messages, a wrapper or a batch. Raises CorruptMessageError."""
    end = _find_stop(raw, at)
    if end is None or end > len(raw):
        raise CorruptMessageError(f"byte {at} of {len(raw)}: the last unit is cut off")
    if raw[at + MAGIC_AT] < BATCH_MAGIC and not read_codec(raw, at):
        return measure_row(raw, at)[1]
    return end


def _read(raw: bytes, at: int, end: int, limits: Limits) -> tuple[RecordBatch, Limits]:
    """Decode the records in ``[at, end)``, except control records.

    Also returns the limits left for what follows.
    """
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
    """Encode records, which all have the same timestamp type, in another magic."""
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
