# SPDX-License-Identifier: Apache-2.0
"""Checks of a producer's record set before it is appended to a log.

Detects what Kafka's own log refuses (Log.analyzeAndValidateRecords and LogValidator of 1.1):

- wrong checksums, also of the messages inside of a wrapper; wrong sizes and lengths;
- nested wrappers; messages of another magic inside of a wrapper;
- batches whose count and offsets disagree, whose base offset is not 0, or that only brokers write;
- timestamps out of range; missing keys where they are required.

Stricter than Kafka in two points: leftover bytes at the end, which Kafka drops silently, and gaps in the offsets of a
batch, which Kafka below 2.4 does not notice or corrects.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Final

from consumerd.errors import CorruptMessageError, DecompressedTooLarge
from consumerd.model import TopicPartition
from consumerd.wire.checksum import crc32
from consumerd.wire.columns import ColumnBuilder
from consumerd.wire.compression import Codec, decompress, expected_size
from consumerd.wire.modern import record_batch
from consumerd.wire.modern.entry import CODEC_MASK, ENTRY, ENTRY_BYTES, LOG_APPEND_TIME_FLAG, MAGIC_AT, UINT32, find_end
from consumerd.wire.modern.extent import BATCH_MAGIC, UNIT_SIZES
from consumerd.wire.modern.message_reader import CHECKED_FROM, HEADS, MessageReader, crc_fault
from consumerd.wire.modern.message_row import measure_row, write_offsets
from consumerd.wire.modern.message_set import read_wrapper_value
from consumerd.wire.record_fields import NO_TIMESTAMP, NULL_SPAN
from consumerd.wire.records import Limits

_LIMITS: Final = Limits()
_NOWHERE: Final = TopicPartition.modern("", 0)


class TimestampRefused(CorruptMessageError):
    """Raised for a timestamp out of range, or with the broker's timestamp type.

    Brokers respond INVALID_TIMESTAMP.
    """


class UnsupportedForFormat(CorruptMessageError):
    """Raised for a batch with headers or a producer id that the log's format lacks.

    Brokers respond UNSUPPORTED_FOR_MESSAGE_FORMAT.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Requirements of a log on record sets, beyond their format.

    Args:
        keys_required: whether every record needs a key, as in compacted topics.
        now_ms: the broker's time.
        max_difference_ms: largest distance of a timestamp from ``now_ms``; None does not check it.
        codecs: accepted codecs. zstd came with 2.1 and is not accepted by default.
        stored_magic: the log's message format. Below 2 it has no headers and no producer ids.
    """

    keys_required: bool = False
    now_ms: int = 0
    max_difference_ms: int | None = None
    codecs: Collection[int] = (Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4)
    stored_magic: int = BATCH_MAGIC
    limits: Limits = _LIMITS


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Checked part of a producer's record set, in bytes ``[at, end)``.

    It is a batch, a compressed wrapper, or a run of plain messages of one magic.

    Args:
        count: number of records.
        max_timestamp: greatest timestamp of the records; -1 for none.
        inner: decompressed messages of a wrapper, with offsets from 0 on; set only if its offsets must be rewritten.
        decompressed_bytes: bytes that were decompressed for the check.
    """

    at: int
    end: int
    magic: int
    codec: int
    count: int
    max_timestamp: int
    inner: bytes | None = None
    decompressed_bytes: int = 0


_ANY: Final = Rules()


def check(data: bytes | bytearray | memoryview, rules: Rules = _ANY) -> list[Part]:
    """Check a producer's record set; return its parts: batches, wrappers, runs of messages.

    A producer's offsets are ignored, except for those in a batch, which must begin with 0. Raises CorruptMessageError
    with the byte position, or its subclasses TimestampRefused, UnsupportedForFormat and DecompressedTooLarge.
    """
    raw = bytes(data)
    checker = _Checker(raw, rules)
    parts: list[Part] = []
    at = 0
    while at < len(raw):
        try:
            part = checker.check_part(at)
        except CorruptMessageError as error:
            raise type(error)(f"byte {at} of {len(raw)}: {error}") from None
        parts.append(part)
        at = part.end
    return parts


class _Checker:
    """Checks a record set part by part; the decompression limit applies to all parts together."""

    def __init__(self, raw: bytes, rules: Rules) -> None:
        self._raw = raw
        self._rules = rules
        self._limits = rules.limits

    def check_part(self, at: int) -> Part:
        """Check the part at ``at``. Raises CorruptMessageError without the byte position."""
        raw = self._raw
        stop = find_end(raw, at, UNIT_SIZES)
        if stop is None or stop > len(raw):
            raise CorruptMessageError(f"the last unit is cut off, {len(raw) - at} bytes of it are there")
        if raw[at + MAGIC_AT] == BATCH_MAGIC:
            return self._check_batch(at, stop)
        if raw[at + MAGIC_AT + 1] & CODEC_MASK:
            return self._check_wrapper(at, stop)
        return self._check_row(at)

    def _refuse_expansion(self, codec: int, packed: memoryview) -> None:
        """Raise DecompressedTooLarge for data whose declared size exceeds the limit, before it is decompressed."""
        declared = expected_size(codec, packed)
        if declared > self._limits.decompressed_bytes:
            raise DecompressedTooLarge(
                f"{declared} bytes when decompressed, expected {self._limits.decompressed_bytes} or less"
            )

    def _spend(self, decompressed_bytes: int) -> None:
        left = self._limits.decompressed_bytes - decompressed_bytes
        self._limits = replace(self._limits, decompressed_bytes=left)

    # -- magic 0 and 1

    def _check_row(self, at: int) -> Part:
        """Check messages from ``at`` on.

        A faulty message ends the part; it is then the first of the next part, where its fault is raised.
        """
        raw = self._raw
        _refuse_log_append_time(raw, at)
        _, end = measure_row(raw, at)
        numbered = bytearray(raw[at:end])
        write_offsets(numbered, 0, len(numbered), 0)
        row = bytes(numbered)
        columns = ColumnBuilder(row, _NOWHERE, 0)
        stop = MessageReader(row, 0, len(row), 0, columns, 0).read(0)
        _check_columns(columns, self._rules)
        return Part(
            at=at,
            end=at + stop,
            magic=raw[at + MAGIC_AT],
            codec=0,
            count=len(columns),
            max_timestamp=_latest(columns.timestamps),
        )

    def _check_wrapper(self, at: int, stop: int) -> Part:
        """Check a wrapper message, and its inner messages as if they were plain ones."""
        raw, rules = self._raw, self._rules
        (checksum,) = UINT32.unpack_from(raw, at + ENTRY_BYTES)
        if crc32(memoryview(raw)[at + CHECKED_FROM : stop]) != checksum:
            raise CorruptMessageError(crc_fault(raw, at, stop, checksum))
        _refuse_log_append_time(raw, at)
        magic, codec = raw[at + MAGIC_AT], raw[at + MAGIC_AT + 1] & CODEC_MASK
        _check_codec(codec, rules)
        value = read_wrapper_value(raw, at + HEADS[magic].size - 8, stop)
        self._refuse_expansion(codec, memoryview(value))
        block = decompress(codec, value, limit=self._limits.decompressed_bytes, magic=magic)
        self._spend(len(block))
        if not block:
            raise CorruptMessageError("a compressed set without messages")
        last_inner = _check_inner_heads(block, magic)
        numbered = bytearray(block)
        count = write_offsets(numbered, 0, len(block), 0)
        whole = bytes(numbered)
        columns = ColumnBuilder(whole, _NOWHERE, 0)
        done = 0
        while done < len(whole):  # one run of equal attributes after the other; except for the codec they are ignored
            done = MessageReader(whole, done, len(whole), 0, columns, len(columns)).read(done)
        _check_columns(columns, rules)
        offset = ENTRY.unpack_from(raw, at)[0]
        # a wrapper of magic 1 has the offset of its last message; librdkafka sends 0, which Kafka accepts
        # (see AbstractLegacyRecordBatch)
        if magic and offset and offset < last_inner:
            raise CorruptMessageError(f"offset {offset} of a wrapper, less than the last one in it, {last_inner}")
        return Part(
            at=at,
            end=stop,
            magic=magic,
            codec=codec,
            count=count,
            max_timestamp=_latest(columns.timestamps),
            inner=None if magic and whole == block else whole,
            decompressed_bytes=len(block),
        )

    # -- magic 2

    def _check_batch(self, at: int, stop: int) -> Part:
        raw, rules = self._raw, self._rules
        (
            base_offset, _, _, _, _, attributes, last_delta, _, _, producer_id, _, sequence, count
        ) = record_batch.HEADER.unpack_from(raw, at)  # fmt: skip
        codec = attributes & CODEC_MASK
        columns = ColumnBuilder(raw, _NOWHERE, base_offset)
        if codec:
            self._refuse_expansion(codec, memoryview(raw)[at + record_batch.HEADER_BYTES : stop])
        record_batch.read_batch(raw, at, stop, columns, self._limits, None)
        self._spend(columns.decompressed_bytes)
        if attributes & record_batch.CONTROL_FLAG:
            raise CorruptMessageError("a control batch, which only brokers write")
        _check_codec(codec, rules)
        if base_offset:
            raise CorruptMessageError(f"a batch with base offset {base_offset}, expected 0")
        if not count or last_delta + 1 != count:  # offsets ascend, so equality excludes gaps
            raise CorruptMessageError(f"{count} records up to offset delta {last_delta}")
        if producer_id >= 0 and sequence < 0:
            raise CorruptMessageError(f"sequence {sequence} of producer {producer_id}")
        if attributes & LOG_APPEND_TIME_FLAG:
            raise TimestampRefused("a producer's timestamp that claims to be the broker's")
        if rules.stored_magic < BATCH_MAGIC:
            if producer_id >= 0 or attributes & record_batch.TRANSACTIONAL_FLAG:
                raise UnsupportedForFormat(f"a producer's id or a transaction, which magic {rules.stored_magic} lacks")
            if columns.header_starts:
                raise UnsupportedForFormat(f"headers, which magic {rules.stored_magic} lacks")
        _check_columns(columns, rules)
        return Part(
            at=at,
            end=stop,
            magic=BATCH_MAGIC,
            codec=codec,
            count=count,
            max_timestamp=_latest(columns.timestamps),
            decompressed_bytes=columns.decompressed_bytes,
        )


def _refuse_log_append_time(raw: bytes, at: int) -> None:
    if raw[at + MAGIC_AT] and raw[at + MAGIC_AT + 1] & LOG_APPEND_TIME_FLAG:
        raise TimestampRefused("a producer's timestamp that claims to be the broker's")


def _check_inner_heads(block: bytes, magic: int) -> int:
    """Check the headers of a wrapper's inner messages; returns the offset of the last one."""
    at = last = 0
    while at < len(block):
        stop = find_end(block, at)
        if stop is None or stop > len(block):
            raise CorruptMessageError(f"the compressed set ends in the middle of a message, at byte {len(block)}")
        if block[at + MAGIC_AT] != magic:
            raise CorruptMessageError(f"a message of magic {block[at + MAGIC_AT]} in a wrapper of magic {magic}")
        if block[at + MAGIC_AT + 1] & CODEC_MASK:
            raise CorruptMessageError("a compressed set within a compressed set")
        last, at = measure_row(block, at)
    return int(ENTRY.unpack_from(block, last)[0])


def _check_codec(codec: int, rules: Rules) -> None:
    if codec not in rules.codecs:
        raise CorruptMessageError(f"compression codec {codec} is not taken")


def _check_columns(columns: ColumnBuilder, rules: Rules) -> None:
    """Check keys and timestamps of decoded records."""
    if rules.keys_required and NULL_SPAN in columns.key_starts:
        row = columns.key_starts.index(NULL_SPAN)
        raise CorruptMessageError(f"record {row} has no key, which a compacted topic requires")
    if rules.max_difference_ms is None:
        return
    least, most = rules.now_ms - rules.max_difference_ms, rules.now_ms + rules.max_difference_ms
    for row, timestamp in enumerate(columns.timestamps):
        if timestamp != NO_TIMESTAMP and not least <= timestamp <= most:
            raise TimestampRefused(f"record {row} has timestamp {timestamp}, outside [{least}, {most}]")


def _latest(timestamps: array[int]) -> int:
    latest = max(timestamps)
    return max(latest, NO_TIMESTAMP)
