# SPDX-License-Identifier: Apache-2.0
"""Offsets for a record set that a producer sent, and the broker's time if the topic has that.

Written is where it can be (LogValidator of Kafka 0.8.2 to 1.1): the heads of messages and batches, and of a wrapper of
magic 1, in which they count from 0. In a wrapper of magic 0 they are absolute, so that it is compressed anew, and so is
one of magic 1 in which they count otherwise. No checksum of magic 0 and 1 covers the offset, and that of a batch not its
base; where a timestamp or an attribute changes, the checksum does.

Kafka puts all that is compressed of a set into one wrapper when it compresses anew; here each stays by itself.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from consumerd.wire.checksum import crc32, crc32c
from consumerd.wire.modern import record_batch
from consumerd.wire.modern.building import build_wrapper
from consumerd.wire.modern.checking import Part, check
from consumerd.wire.modern.entry import ENTRY, ENTRY_BYTES, LOG_APPEND_TIME_FLAG, MAGIC_AT
from consumerd.wire.modern.extent import BATCH_MAGIC
from consumerd.wire.modern.message_reader import CHECKED_FROM
from consumerd.wire.modern.message_row import write_offsets

_INT64: Final = struct.Struct(">q")
_CHECKSUM: Final = struct.Struct(">I")
_LEADER_EPOCH: Final = struct.Struct(">i")
_LEADER_EPOCH_AT: Final = ENTRY_BYTES
_TIMESTAMP_AT: Final = MAGIC_AT + 2
_BATCH_STAMP: Final = struct.Struct(">hiqq")
"""The first that a batch's checksum covers: attributes, last offset delta, base and max timestamp."""


def assign_offsets(
    data: bytearray,
    next_offset: int,
    *,
    log_append_time_ms: int | None = None,
    leader_epoch: int = 0,
    parts: Sequence[Part] | None = None,
) -> bytearray:
    """Give the records of a set offsets from ``next_offset`` on, and with ``log_append_time_ms`` that time.

    ``parts`` are what ``check`` returned for the set; without them it is checked here. ``leader_epoch`` goes into batches.
    Returns ``data`` itself, changed, unless a wrapper was compressed anew. Raises CorruptMessageError.
    """
    pieces: list[bytes | bytearray] = []
    done = 0
    for part in check(data) if parts is None else parts:
        last_offset = next_offset + part.count - 1
        if part.inner is not None:
            pieces += (data[done : part.at], _wrap(part, part.inner, last_offset, log_append_time_ms))
            done = part.end
        elif part.magic == BATCH_MAGIC:
            _INT64.pack_into(data, part.at, next_offset)
            _LEADER_EPOCH.pack_into(data, part.at + _LEADER_EPOCH_AT, leader_epoch)
            _stamp_batch(data, part, log_append_time_ms)
        elif part.codec:
            _INT64.pack_into(data, part.at, last_offset)
            _stamp_message(data, part.at, part.end, part.max_timestamp, log_append_time_ms)
        else:
            write_offsets(data, part.at, part.end, next_offset)
            if part.magic and log_append_time_ms is not None:
                _stamp_row(data, part.at, part.end, log_append_time_ms)
        next_offset = last_offset + 1
    if not pieces:
        return data
    pieces.append(data[done:])
    return bytearray().join(pieces)


def _wrap(part: Part, inner: bytes, last_offset: int, log_append_time_ms: int | None) -> bytes:
    """Compress a wrapper's messages, which are numbered from 0 on."""
    attributes, timestamp = 0, part.max_timestamp
    if part.magic == 0:
        renumbered = bytearray(inner)
        write_offsets(renumbered, 0, len(inner), last_offset + 1 - part.count)
        inner = bytes(renumbered)
    elif log_append_time_ms is not None:
        attributes, timestamp = LOG_APPEND_TIME_FLAG, log_append_time_ms
    return build_wrapper(
        inner, last_offset, magic=part.magic, codec=part.codec, timestamp=timestamp, attributes=attributes
    )


def _stamp_batch(data: bytearray, part: Part, log_append_time_ms: int | None) -> None:
    """Write the broker's time into a batch, or the latest of its records', which its producer may have got wrong."""
    at = part.at + record_batch.CHECKED_FROM
    attributes, last_delta, base_timestamp, max_timestamp = _BATCH_STAMP.unpack_from(data, at)
    if log_append_time_ms is not None:
        attributes |= LOG_APPEND_TIME_FLAG
    elif max_timestamp == part.max_timestamp:
        return
    latest = part.max_timestamp if log_append_time_ms is None else log_append_time_ms
    _BATCH_STAMP.pack_into(data, at, attributes, last_delta, base_timestamp, latest)
    _CHECKSUM.pack_into(data, at - _CHECKSUM.size, crc32c(bytes(memoryview(data)[at : part.end])))


def _stamp_row(data: bytearray, at: int, end: int, log_append_time_ms: int) -> None:
    while at < end:
        stop = at + ENTRY_BYTES + ENTRY.unpack_from(data, at)[1]
        _stamp_message(data, at, stop, log_append_time_ms, log_append_time_ms)
        at = stop


def _stamp_message(data: bytearray, at: int, end: int, latest: int, log_append_time_ms: int | None) -> None:
    """Write the broker's time into a message of magic 1, or the ``latest`` of what it wraps."""
    if log_append_time_ms is not None:
        data[at + MAGIC_AT + 1] |= LOG_APPEND_TIME_FLAG
        latest = log_append_time_ms
    elif latest == _INT64.unpack_from(data, at + _TIMESTAMP_AT)[0]:
        return
    _INT64.pack_into(data, at + _TIMESTAMP_AT, latest)
    _CHECKSUM.pack_into(data, at + ENTRY_BYTES, crc32(memoryview(data)[at + CHECKED_FROM : end]))


assert record_batch.LAST_OFFSET_DELTA_AT == record_batch.CHECKED_FROM + 2
