# SPDX-License-Identifier: Apache-2.0
"""Assignment of offsets, and of the broker's timestamp, to a record set from a producer.

Offsets are overwritten in place where possible, as by LogValidator of Kafka 0.8.2 to 1.1. A wrapper is a message whose
value is a compressed message set, with *inner* offsets:

==================================  =========================================================
unit                                change
==================================  =========================================================
messages, batch                     offsets in place
wrapper of magic 1, inner from 0    the wrapper's offset in place
wrapper of magic 1, inner others    compressed again, with inner offsets from 0
wrapper of magic 0                  compressed again, since inner offsets are absolute
==================================  =========================================================

Checksums of magic 0 and 1 do not cover the offset, and that of a batch not its base offset. If a timestamp or an
attribute changes, the checksum is computed anew.

Example: the log ends at 200. A wrapper of magic 1 with three messages and inner offsets 0, 1 and 2 gets offset 202.

Difference to Kafka: when Kafka has to compress again, it puts all compressed messages of a set into one wrapper. Here
each wrapper stays separate.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from consumerd.errors import CorruptMessageError
from consumerd.wire.checksum import crc32, crc32c
from consumerd.wire.modern import record_batch
from consumerd.wire.modern.building import build_wrapper
from consumerd.wire.modern.checking import Part, check
from consumerd.wire.modern.entry import ENTRY, ENTRY_BYTES, INT32, INT64, LOG_APPEND_TIME_FLAG, MAGIC_AT, UINT32
from consumerd.wire.modern.extent import BATCH_MAGIC
from consumerd.wire.modern.message_reader import CHECKED_FROM
from consumerd.wire.modern.message_row import write_offsets

_LEADER_EPOCH_AT: Final = ENTRY_BYTES
_TIMESTAMP_AT: Final = MAGIC_AT + 2
_BATCH_STAMP: Final = struct.Struct(">hiqq")
"""Attributes, last offset delta, base and max timestamp: the first fields covered by a batch's checksum."""


def assign_offsets(
    data: bytearray,
    next_offset: int,
    *,
    log_append_time_ms: int | None = None,
    leader_epoch: int = 0,
    parts: Sequence[Part] | None = None,
) -> bytearray:
    """Write offsets, from ``next_offset`` on, into a producer's record set.

    Returns ``data`` itself, modified, unless a wrapper had to be compressed again. Raises CorruptMessageError.

    Args:
        log_append_time_ms: the broker's timestamp for all records, in ms since the epoch; None keeps their own.
        leader_epoch: written into batches.
        parts: the result of ``checking.check`` for this set; None checks it here.
    """
    pieces: list[bytes | bytearray] = []
    done = 0
    for part in check(data) if parts is None else parts:
        last_offset = next_offset + part.count - 1
        if part.inner is not None:
            pieces += (data[done : part.at], _wrap(part, part.inner, last_offset, log_append_time_ms))
            done = part.end
        elif part.magic == BATCH_MAGIC:
            INT64.pack_into(data, part.at, next_offset)
            INT32.pack_into(data, part.at + _LEADER_EPOCH_AT, leader_epoch)
            _stamp_batch(data, part, log_append_time_ms)
        elif part.codec:
            INT64.pack_into(data, part.at, last_offset)
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
    """Compress a wrapper's messages again, after renumbering them."""
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
    """Write the broker's timestamp into a batch, or correct its max timestamp.

    The producer may have written a wrong max timestamp.
    """
    at = part.at + record_batch.CHECKED_FROM
    attributes, last_delta, base_timestamp, max_timestamp = _BATCH_STAMP.unpack_from(data, at)
    if log_append_time_ms is not None:
        attributes |= LOG_APPEND_TIME_FLAG
    elif max_timestamp == part.max_timestamp:
        return
    latest = part.max_timestamp if log_append_time_ms is None else log_append_time_ms
    _BATCH_STAMP.pack_into(data, at, attributes, last_delta, base_timestamp, latest)
    UINT32.pack_into(data, at - UINT32.size, crc32c(bytes(memoryview(data)[at : part.end])))


def _stamp_row(data: bytearray, at: int, end: int, log_append_time_ms: int) -> None:
    while at < end:
        stop = at + ENTRY_BYTES + ENTRY.unpack_from(data, at)[1]
        _stamp_message(data, at, stop, log_append_time_ms, log_append_time_ms)
        at = stop


def _stamp_message(data: bytearray, at: int, end: int, latest: int, log_append_time_ms: int | None) -> None:
    """Write the broker's timestamp into a message of magic 1.

    Without one, ``latest`` is written into a wrapper that has another timestamp.
    """
    if log_append_time_ms is not None:
        data[at + MAGIC_AT + 1] |= LOG_APPEND_TIME_FLAG
        latest = log_append_time_ms
    elif latest == INT64.unpack_from(data, at + _TIMESTAMP_AT)[0]:
        return
    INT64.pack_into(data, at + _TIMESTAMP_AT, latest)
    UINT32.pack_into(data, at + ENTRY_BYTES, crc32(memoryview(data)[at + CHECKED_FROM : end]))


def mend_checksum(unit: bytes) -> bytes:
    """Return a message or batch with the checksum that is right for its present bytes.

    A damaged message or batch can be read with its new checksum. A message of magic 0 or 1, also a compressed wrapper,
    has a CRC-32 after its size; a batch has a CRC-32C after its magic. Raises CorruptMessageError if ``unit`` is too
    short.
    """
    if len(unit) <= MAGIC_AT:
        raise CorruptMessageError(f"{len(unit)} bytes are no unit")
    at, checksum = ENTRY_BYTES, crc32(unit[CHECKED_FROM:])
    if unit[MAGIC_AT] == BATCH_MAGIC:
        at, checksum = record_batch.CHECKSUM_AT, crc32c(unit[record_batch.CHECKED_FROM :])
    return unit[:at] + UINT32.pack(checksum) + unit[at + UINT32.size :]


assert record_batch.LAST_OFFSET_DELTA_AT == record_batch.CHECKED_FROM + 2
