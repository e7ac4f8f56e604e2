# SPDX-License-Identifier: Apache-2.0
"""Message sets: magic 0 (0.8, 0.9) and magic 1 (0.10), and what newer brokers keep of them after an upgrade.

Owns the compressed wrappers that hold sets of messages; plain messages belong to ``message_reader``. Source: Kafka
protocol guide ("Message sets", "Compression"), KIP-31 (relative offsets), KIP-32 (timestamps).

A wrapper's value is a compressed message set, and its offset that of the set's last message. Inner offsets are absolute
in a wrapper of magic 0; in one of magic 1 they count from any base, usually 0, and the last of them stands for the
wrapper's own. With LOG_APPEND_TIME on the wrapper its timestamp holds for all inner messages.
"""

from __future__ import annotations

import struct
from array import array
from typing import Final

from consumerd.errors import CorruptMessageError
from consumerd.wire.columns import LOG_APPEND_TIME, ColumnBuilder, Segment
from consumerd.wire.compression import decompress
from consumerd.wire.kernel import Buffer
from consumerd.wire.modern.entry import CODEC_MASK, ENTRY, ENTRY_BYTES, LOG_APPEND_TIME_FLAG, MAGIC_AT, find_end
from consumerd.wire.modern.message_reader import CHECKED_FROM, HEADS, MessageReader, crc_fault, span_crc32
from consumerd.wire.records import NULL_SPAN, Limits

_WRAPPER: Final = struct.Struct(">qiIBB")
"""An entry and its message up to what the magic decides."""
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")
_LEAST_OFFSET: Final = -(1 << 63)


def read_messages(data: Buffer, at: int, end: int, columns: ColumnBuilder, limits: Limits) -> int:
    """Read what stands at ``at``, which is a whole message of magic 0 or 1, and what follows of the same kind.

    Commits what it reads and returns the position behind it. Raises CorruptMessageError (without coordinates) when the
    message at ``at`` is corrupt; another one that is ends the reading before it.
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
    """Reads the compressed set at ``unit_at`` of the fetched data, and those that stand in it."""

    def __init__(self, unit_at: int, columns: ColumnBuilder, limits: Limits) -> None:
        self._unit_at = unit_at
        self._columns = columns
        self._limits = limits

    def read(self, data: Buffer, at: int, stop: int, level: int = 1) -> list[Segment]:
        """Read the messages in the wrapper that fills ``[at, stop)`` and return their offsets, one segment at least."""
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
            columns.timestamps[rows:] = array("q", _INT64.unpack_from(data, at + MAGIC_AT + 2)) * count
            columns.timestamp_types[rows:] = LOG_APPEND_TIME * count
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
    """Return the value of the message whose key begins at ``at`` with its length."""
    (key_length,) = _INT32.unpack_from(data, at)
    at += 4 + max(key_length, 0)
    if key_length < NULL_SPAN or stop - at < 4:
        raise CorruptMessageError(f"a key of {key_length} bytes in a wrapper")
    (value_length,) = _INT32.unpack_from(data, at)
    if value_length != stop - at - 4:
        raise CorruptMessageError(f"a value of {value_length} bytes where {stop - at - 4} are left")
    return memoryview(data)[at + 4 : stop]
