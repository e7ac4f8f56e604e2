# SPDX-License-Identifier: Apache-2.0
"""Message sets of magic 0 (Kafka 0.8, 0.9) and magic 1 (0.10).

Newer brokers keep them after an upgrade.

Owns compressed wrapper messages; plain messages belong to ``message_reader``. Sources: Kafka protocol guide ("Message
sets", "Compression"), KIP-31 (relative offsets), KIP-32 (timestamps).

The value of a wrapper message is a compressed message set. The wrapper's offset is that of its last message. Offsets of
the inner messages are absolute in magic 0. In magic 1 they are relative, usually from 0, and the last one corresponds
to the wrapper's offset. A wrapper with LOG_APPEND_TIME passes its own timestamp on to all inner messages.

Example: messages 105, 106 and 107 in one wrapper, and the same after compaction removed 106:

=====  ==============  ==================  ========================  =================
magic  wrapper offset  inner offsets       inner, after compaction   decoded
=====  ==============  ==================  ========================  =================
0      107             105, 106, 107       105, 107                  105, (106), 107
1      107             0, 1, 2             0, 2                      105, (106), 107
=====  ==============  ==================  ========================  =================
"""

from __future__ import annotations

import struct
from array import array
from typing import Final

from consumerd.errors import CorruptMessageError
from consumerd.wire.checksum import span_crc32
from consumerd.wire.columns import LOG_APPEND_TIME, ColumnBuilder, Segment
from consumerd.wire.compression import decompress
from consumerd.wire.kernel import Buffer
from consumerd.wire.modern.entry import (
    CODEC_MASK,
    ENTRY,
    ENTRY_BYTES,
    INT32,
    INT64,
    LOG_APPEND_TIME_FLAG,
    MAGIC_AT,
    find_end,
)
from consumerd.wire.modern.message_reader import CHECKED_FROM, HEADS, MessageReader, crc_fault
from consumerd.wire.record_fields import NULL_SPAN
from consumerd.wire.records import Limits

_WRAPPER: Final = struct.Struct(">qiIBB")
"""Entry and message header, up to the fields that differ by magic."""
_LEAST_OFFSET: Final = -(1 << 63)


def read_messages(data: Buffer, at: int, end: int, columns: ColumnBuilder, limits: Limits) -> int:
    """Decode the message at ``at``, and those of the same kind that follow, into ``columns``.

    The first one must be complete, and of magic 0 or 1. If it is a compressed wrapper, only the wrapper is decoded.
    Returns the position after the decoded messages. Raises CorruptMessageError (without partition and offset) if the
    first one is corrupt; a later corrupt one ends the run before it.

    Args:
        at: position of the first message in ``data``, the fetched bytes.
        end: position in ``data`` at which to stop.
        columns: receives the messages.
    """
    if data[at + MAGIC_AT + 1] & CODEC_MASK:
        offset, size = ENTRY.unpack_from(data, at)
        stop = at + ENTRY_BYTES + size
        segments = _WrapperReader(at, columns, limits).read(data, at, stop)
        columns.commit(segments, max(segments[-1][1], offset + 1))
        return int(stop)
    reader = MessageReader(data, at, end, columns.plain_shift(at), columns, columns.end)
    stop = reader.read(at)
    columns.commit_messages(reader.segments, reader.following)
    return stop


class _WrapperReader:
    """Decodes the wrapper message at ``unit_at`` of the fetched data, and wrappers nested in it."""

    def __init__(self, unit_at: int, columns: ColumnBuilder, limits: Limits) -> None:
        self._unit_at = unit_at
        self._columns = columns
        self._limits = limits

    def read(self, data: Buffer, at: int, stop: int, level: int = 1) -> list[Segment]:
        """Decode the messages of the wrapper that fills ``[at, stop)``.

        Returns one or more segments of offsets.
        """
        columns = self._columns
        if level > self._limits.nesting:
            raise CorruptMessageError(f"compressed sets stand more than {self._limits.nesting} deep in each other")
        offset, _, checksum, magic, attributes = _WRAPPER.unpack_from(data, at)
        if span_crc32(data, at + CHECKED_FROM, stop) != checksum:
            raise CorruptMessageError(crc_fault(data, at, stop, checksum))
        value = read_wrapper_value(data, at + HEADS[magic].size - 8, stop)
        budget = self._limits.decompressed_bytes - columns.decompressed_bytes
        room = columns.free_room(self._unit_at)
        block = decompress(attributes & CODEC_MASK, value, limit=budget, magic=magic, room=room)
        rows = len(columns)
        segments = self._read_set(block, columns.add_block(self._unit_at, block), level)
        if magic == 0:
            return segments
        if attributes & LOG_APPEND_TIME_FLAG:
            count = len(columns) - rows
            columns.timestamps[rows:] = array("q", INT64.unpack_from(data, at + MAGIC_AT + 2)) * count
            columns.timestamp_types[rows:] = LOG_APPEND_TIME * count
        # relative offsets: the last inner message has the wrapper's own
        ahead = offset + 1 - segments[-1][1]
        return [(first + ahead, last + ahead) for first, last in segments]

    def _read_set(self, block: Buffer, shift: int, level: int) -> list[Segment]:
        segments: list[Segment] = []
        at = 0
        while at < len(block):
            stop = find_end(block, at)
            if stop is None or stop > len(block):
                raise CorruptMessageError(f"the compressed set ends in the middle of a message, at byte {len(block)}")
            if block[at + MAGIC_AT + 1] & CODEC_MASK:
                segments += self.read(block, at, stop, level + 1)
                at = stop
            else:
                reader = MessageReader(block, at, len(block), shift, self._columns, _LEAST_OFFSET)
                at = reader.read(at)
                segments += reader.segments
        if not segments:
            raise CorruptMessageError("a compressed set without messages")
        return segments


def read_wrapper_value(data: Buffer, at: int, stop: int) -> memoryview:
    """Return the value of a wrapper message, which ends at ``stop``.

    Its key length field is at ``at``. Raises CorruptMessageError if key and value do not end at ``stop``.
    """
    (key_length,) = INT32.unpack_from(data, at)
    at += 4 + max(key_length, 0)
    if key_length < NULL_SPAN or stop - at < 4:
        raise CorruptMessageError(f"a key of {key_length} bytes in a wrapper")
    (value_length,) = INT32.unpack_from(data, at)
    if value_length != stop - at - 4:
        raise CorruptMessageError(f"a value of {value_length} bytes where {stop - at - 4} are left")
    return memoryview(data)[at + 4 : stop]
