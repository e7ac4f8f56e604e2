"""Record sets as a broker's log takes and keeps them: cut into units, checked, given their offsets.

A *unit* is what a log stores and serves undivided: a message, a compressed wrapper of messages, or a record batch.

:func:`check` finds whatever Kafka's own log refuses from a producer (Log.analyzeAndValidateRecords and LogValidator of
1.1): checksums, of messages in wrappers, too; sizes and lengths; sets within sets; magics that do not match; batches
whose counts and offsets disagree, whose offsets do not begin at 0, or that only brokers may write; timestamps, and keys
where they are required. Stricter than Kafka in two things: nothing may be left over at the end, which Kafka drops
silently, and offsets in a batch have no gaps, which it overlooks when the batch is not compressed.

:func:`assign_offsets` writes offsets where they can be written: in the head of each message and batch, and for a wrapper
of magic 1, inside which they count from 0, in its head, too. Inside a wrapper of magic 0 they are absolute, so that it is
compressed anew, and so is one of magic 1 whose offsets count otherwise. No checksum of magic 0 and 1 covers the offset, that of a batch does not
cover its base.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from consumerd.errors import CorruptMessageError
from consumerd.model import TopicPartition
from consumerd.wire.checksum import crc32, crc32c
from consumerd.wire.columns import ColumnBuilder
from consumerd.wire.compression import Codec, decompress
from consumerd.wire.modern import record_batch
from consumerd.wire.modern.building import build_wrapper
from consumerd.wire.modern.entry import CODEC_MASK, ENTRY, ENTRY_BYTES, LOG_APPEND_TIME_FLAG, MAGIC_AT, find_end
from consumerd.wire.modern.extent import BATCH_MAGIC, UNIT_SIZES
from consumerd.wire.modern.message_reader import CHECKED_FROM, HEADS, MessageReader, crc_fault
from consumerd.wire.modern.message_set import read_wrapper_value
from consumerd.wire.records import NO_TIMESTAMP, NULL_SPAN, Limits

_LIMITS: Final = Limits()
_NOWHERE: Final = TopicPartition.modern("", 0)


class TimestampRefused(CorruptMessageError):
    """A timestamp outside the range allowed, or one that claims to be the broker's; the broker's error is another one."""


# -- units


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A unit by its head alone. ``size`` in bytes with offset and size fields, ``max_timestamp`` in ms, -1 for none.

    The head of a wrapper has only the last offset of what is in it: ``base_offset`` is that, too, and ``count`` is 1.
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
        """How it is compressed."""
        return self.attributes & CODEC_MASK

    @property
    def end(self) -> int:
        """Where it ends."""
        return self.at + self.size


def walk_units(data: bytes | bytearray | memoryview, at: int = 0) -> Iterator[Unit]:
    """Go through the whole units from ``at`` on; one that is cut off at the end is left out.

    Raises CorruptMessageError for what cannot be a unit.
    """
    length = len(data)
    while True:
        try:
            stop = find_end(data, at, UNIT_SIZES)
        except CorruptMessageError as error:
            raise _located(error, at, length) from None
        if stop is None or stop > length:
            return
        yield _unit(data, at, stop)
        at = stop


def _unit(data: bytes | bytearray | memoryview, at: int, stop: int) -> Unit:
    magic = data[at + MAGIC_AT]
    if magic == BATCH_MAGIC:
        base_offset, _, _, _, _, attributes, last_delta, _, max_timestamp, _, _, _, count = (
            record_batch.HEADER.unpack_from(data, at)
        )
        last_offset = base_offset + last_delta
    else:
        (base_offset,) = _INT64.unpack_from(data, at)
        last_offset, attributes, count = base_offset, data[at + MAGIC_AT + 1], 1
        max_timestamp = _INT64.unpack_from(data, at + _TIMESTAMP_AT)[0] if magic else NO_TIMESTAMP
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


def verify(data: bytes | bytearray | memoryview, unit: Unit) -> None:
    """Compare a unit with its checksum. Raises CorruptMessageError.

    That is all that Kafka does when it recovers a segment.
    """
    raw = bytes(data[unit.at : unit.end])
    if unit.magic == BATCH_MAGIC:
        (checksum,) = _UINT32.unpack_from(raw, record_batch.CHECKED_FROM - _UINT32.size)
        computed = crc32c(raw[record_batch.CHECKED_FROM :])
        if computed != checksum:
            raise _fault(f"CRC-32C is {computed:#010x}, the header says {checksum:#010x}", unit.at, len(data))
    else:
        (checksum,) = _UINT32.unpack_from(raw, ENTRY_BYTES)
        if crc32(raw[CHECKED_FROM:]) != checksum:
            raise _fault(crc_fault(raw, 0, len(raw), checksum), unit.at, len(data))


_INT64: Final = struct.Struct(">q")
_UINT32: Final = struct.Struct(">I")
_TIMESTAMP_AT: Final = MAGIC_AT + 2


def _fault(what: str, at: int, length: int) -> CorruptMessageError:
    return CorruptMessageError(f"byte {at} of {length}: {what}")


def _located(error: CorruptMessageError, at: int, length: int) -> CorruptMessageError:
    return type(error)(f"byte {at} of {length}: {error}")


# -- checking


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What is asked of a record set beyond its format.

    With ``max_difference_ms`` no timestamp may be further than that from ``now_ms``. ``codecs`` are those that are taken.
    """

    keys_required: bool = False
    now_ms: int = 0
    max_difference_ms: int | None = None
    codecs: Collection[int] = tuple(Codec)
    limits: Limits = _LIMITS


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Checked bytes ``[at, end)``: messages of one magic side by side, a wrapper, or a batch.

    ``count`` records, ``max_timestamp`` the latest of them. ``inner`` is a wrapper's set, kept where its offsets must be
    written anew.
    """

    at: int
    end: int
    magic: int
    codec: int
    count: int
    max_timestamp: int
    inner: bytes | None = None


_ANY: Final = Rules()


def check(data: bytes | bytearray | memoryview, rules: Rules = _ANY) -> list[Part]:
    """Check all of what a producer sent. Offsets in it mean nothing, but those of a batch.

    Raises CorruptMessageError with the byte, TimestampRefused, which is one, and DecompressedTooLarge, which is one.
    """
    raw = bytes(data)
    end = len(raw)
    parts: list[Part] = []
    at = 0
    while at < end:
        try:
            part = _check_part(raw, at, rules)
        except CorruptMessageError as error:
            raise _located(error, at, end) from None
        parts.append(part)
        at = part.end
    return parts


def _check_part(raw: bytes, at: int, rules: Rules) -> Part:
    stop = find_end(raw, at, UNIT_SIZES)
    if stop is None or stop > len(raw):
        raise CorruptMessageError(f"the last unit is cut off, {len(raw) - at} bytes are left of it")
    if raw[at + MAGIC_AT] == BATCH_MAGIC:
        return _check_batch(raw, at, stop, rules)
    if raw[at + MAGIC_AT + 1] & CODEC_MASK:
        return _check_wrapper(raw, at, stop, rules)
    return _check_messages(raw, at, rules)


def _check_messages(raw: bytes, at: int, rules: Rules) -> Part:
    """Check the message at ``at`` and those of its kind that follow."""
    run = bytearray(_plain_run(raw, at))
    count = _number(run, 0, len(run), 0)
    columns = _read(bytes(run), rules)
    magic = raw[at + MAGIC_AT]
    return Part(at=at, end=at + len(run), magic=magic, codec=0, count=count, max_timestamp=_latest(columns.timestamps))


def _plain_run(raw: bytes, at: int) -> bytes:
    """Return the uncompressed message at ``at`` and those behind it that have its magic and attributes."""
    kind = raw[at + MAGIC_AT : at + MAGIC_AT + 2]
    least = UNIT_SIZES[kind[0]]
    end = len(raw)
    stop = at
    while end - stop > MAGIC_AT + 1 and raw[stop + MAGIC_AT : stop + MAGIC_AT + 2] == kind:
        (_, size) = ENTRY.unpack_from(raw, stop)
        if size < least or stop + ENTRY_BYTES + size > end:
            break
        stop += ENTRY_BYTES + size
    return raw[at:stop]


def _number(data: bytearray, at: int, end: int, offset: int) -> int:
    """Write offsets from ``offset`` on into the messages in ``[at, end)``; returns how many there are."""
    first = offset
    while at < end:
        _INT64.pack_into(data, at, offset)
        at += ENTRY_BYTES + ENTRY.unpack_from(data, at)[1]
        offset += 1
    return offset - first


def _read(run: bytes, rules: Rules, *, wrapped: bool = False) -> ColumnBuilder:
    """Read messages of one kind that are numbered from 0 on, and check what is in them."""
    columns = ColumnBuilder(run, _NOWHERE, 0)
    reader = MessageReader(run, 0, len(run), 0, columns, 0)
    stop = reader.read(0)
    while stop < len(run):  # the reader stops before what it finds fault with, and says what when it is asked for that
        reader = MessageReader(run, stop, len(run), 0, columns, reader.following)
        stop = reader.read(stop)
    magic, attributes = run[MAGIC_AT], run[MAGIC_AT + 1]
    if magic and attributes & LOG_APPEND_TIME_FLAG and not wrapped:
        raise TimestampRefused("a producer's timestamp must not be the broker's")
    _check_columns(columns, rules)
    return columns


def _check_columns(columns: ColumnBuilder, rules: Rules) -> None:
    if rules.keys_required and NULL_SPAN in columns.key_starts:
        raise CorruptMessageError("a record without a key, which a compacted topic cannot take")
    if rules.max_difference_ms is not None:
        least, most = rules.now_ms - rules.max_difference_ms, rules.now_ms + rules.max_difference_ms
        for timestamp in columns.timestamps:
            if timestamp != NO_TIMESTAMP and not least <= timestamp <= most:
                raise TimestampRefused(f"timestamp {timestamp} is outside [{least}, {most}]")


def _latest(timestamps: array[int]) -> int:
    return max(max(timestamps, default=NO_TIMESTAMP), NO_TIMESTAMP)


def _check_wrapper(raw: bytes, at: int, stop: int, rules: Rules) -> Part:
    """Check a wrapper and what is in it."""
    magic, attributes = raw[at + MAGIC_AT], raw[at + MAGIC_AT + 1]
    (checksum,) = _UINT32.unpack_from(raw, at + ENTRY_BYTES)
    if crc32(raw[at + CHECKED_FROM : stop]) != checksum:
        raise CorruptMessageError(crc_fault(raw, at, stop, checksum))
    if magic and attributes & LOG_APPEND_TIME_FLAG:
        raise TimestampRefused("a producer's timestamp must not be the broker's")
    codec = attributes & CODEC_MASK
    _check_codec(codec, rules)
    value = read_wrapper_value(raw, at + HEADS[magic].size - 8, stop)
    block = decompress(codec, value, limit=rules.limits.decompressed_bytes, magic=magic)
    if not block:
        raise CorruptMessageError("a compressed set without messages")
    run = bytearray(block)
    count = _number_inner(run, block, magic)
    columns = _read(bytes(run), rules, wrapped=True)
    return Part(
        at=at,
        end=stop,
        magic=magic,
        codec=codec,
        count=count,
        max_timestamp=_latest(columns.timestamps),
        inner=None if magic and run == block else bytes(run),
    )


def _number_inner(run: bytearray, block: bytes, magic: int) -> int:
    at = count = 0
    while at < len(block):
        stop = find_end(block, at)
        if stop is None or stop > len(block):
            raise CorruptMessageError(f"the compressed set ends in the middle of a message, at byte {len(block)}")
        if block[at + MAGIC_AT] != magic:
            raise CorruptMessageError(f"a message of magic {block[at + MAGIC_AT]} in a wrapper of magic {magic}")
        if block[at + MAGIC_AT + 1] & CODEC_MASK:
            raise CorruptMessageError("a compressed set within a compressed set")
        _INT64.pack_into(run, at, count)
        count += 1
        at = stop
    return count


def _check_codec(codec: int, rules: Rules) -> None:
    if codec not in rules.codecs:
        raise CorruptMessageError(f"compression codec {codec} is not taken")


def _check_batch(raw: bytes, at: int, stop: int, rules: Rules) -> Part:
    (
        base_offset, _, _, _, _, attributes, last_delta, _, _, producer_id, _, sequence, count
    ) = record_batch.HEADER.unpack_from(raw, at)  # fmt: skip
    codec = attributes & CODEC_MASK
    columns = ColumnBuilder(raw, _NOWHERE, 0)
    if not attributes & record_batch.CONTROL_FLAG:
        _check_codec(codec, rules)
    if base_offset:
        raise CorruptMessageError(f"a batch with base offset {base_offset}, expected 0")
    record_batch.read_batch(raw, at, stop, columns, rules.limits, None)
    if attributes & record_batch.CONTROL_FLAG:
        raise CorruptMessageError("a control batch, which only brokers write")
    if not count or last_delta + 1 != count or columns.offsets[-1] != last_delta:
        raise CorruptMessageError(f"{count} records up to offset delta {last_delta}")
    if producer_id >= 0 and sequence < 0:
        raise CorruptMessageError(f"sequence {sequence} of producer {producer_id}")
    if attributes & LOG_APPEND_TIME_FLAG:
        raise TimestampRefused("a producer's timestamp must not be the broker's")
    _check_columns(columns, rules)
    return Part(at=at, end=stop, magic=BATCH_MAGIC, codec=codec, count=count, max_timestamp=_latest(columns.timestamps))


# -- assigning


def assign_offsets(
    data: bytearray,
    next_offset: int,
    *,
    log_append_time_ms: int | None = None,
    leader_epoch: int = 0,
    parts: Sequence[Part] | None = None,
) -> bytearray:
    """Give the records of a checked set their offsets, and their broker's time if there is one.

    ``parts`` are what :func:`check` returned for it; without them it is checked here. Returns ``data`` itself, changed in
    place, unless a wrapper had to be compressed anew. Raises CorruptMessageError.
    """
    rebuilt: list[bytes | bytearray] = []
    done = 0
    for part in check(data) if parts is None else parts:
        last_offset = next_offset + part.count - 1
        if part.inner is not None:
            rebuilt += (data[done : part.at], _rebuild(part, next_offset, log_append_time_ms))
            done = part.end
        elif part.magic == BATCH_MAGIC:
            _INT64.pack_into(data, part.at, next_offset)
            _LEADER_EPOCH.pack_into(data, part.at + ENTRY_BYTES, leader_epoch)
            _stamp_batch(data, part, log_append_time_ms)
        elif part.codec:
            _INT64.pack_into(data, part.at, last_offset)
            if part.magic:
                _stamp_message(data, part.at, part.end, part.max_timestamp, log_append_time_ms)
        else:
            _number(data, part.at, part.end, next_offset)
            if part.magic and log_append_time_ms is not None:
                for unit in walk_units(memoryview(data)[: part.end], part.at):
                    _stamp_message(data, unit.at, unit.end, NO_TIMESTAMP, log_append_time_ms)
        next_offset = last_offset + 1
    if not rebuilt:
        return data
    rebuilt.append(data[done:])
    return bytearray().join(rebuilt)


_LEADER_EPOCH: Final = struct.Struct(">i")
_BATCH_STAMP: Final = struct.Struct(">hiqq")
"""Attributes, last offset delta, base and max timestamp of a batch."""


def _rebuild(part: Part, next_offset: int, log_append_time_ms: int | None) -> bytes:
    assert part.inner is not None, "only wrappers whose set was kept are built anew"
    inner = bytearray(part.inner)
    attributes, timestamp = 0, part.max_timestamp
    if part.magic == 0:
        _number(inner, 0, len(inner), next_offset)
    elif log_append_time_ms is not None:
        attributes, timestamp = LOG_APPEND_TIME_FLAG, log_append_time_ms
    last_offset = next_offset + part.count - 1
    return build_wrapper(
        bytes(inner), last_offset, magic=part.magic, codec=part.codec, timestamp=timestamp, attributes=attributes
    )


def _stamp_batch(data: bytearray, part: Part, log_append_time_ms: int | None) -> None:
    at = part.at + record_batch.CHECKED_FROM
    attributes, last_delta, base_timestamp, max_timestamp = _BATCH_STAMP.unpack_from(data, at)
    if log_append_time_ms is not None:
        attributes |= LOG_APPEND_TIME_FLAG
        latest = log_append_time_ms
    else:
        latest = part.max_timestamp
        if latest == max_timestamp:
            return
    _BATCH_STAMP.pack_into(data, at, attributes, last_delta, base_timestamp, latest)
    _UINT32.pack_into(data, at - _UINT32.size, crc32c(bytes(data[at : part.end])))


def _stamp_message(data: bytearray, at: int, end: int, timestamp: int, log_append_time_ms: int | None) -> None:
    """Write a message's timestamp, or its broker's, and its checksum with that."""
    if log_append_time_ms is not None:
        data[at + MAGIC_AT + 1] |= LOG_APPEND_TIME_FLAG
        timestamp = log_append_time_ms
    elif _INT64.unpack_from(data, at + _TIMESTAMP_AT)[0] == timestamp:
        return
    _INT64.pack_into(data, at + _TIMESTAMP_AT, timestamp)
    _UINT32.pack_into(data, at + ENTRY_BYTES, crc32(memoryview(data)[at + CHECKED_FROM : end]))
