# SPDX-License-Identifier: Apache-2.0
"""Record sets out of records: what producers send, and what conversion and offset assignment write anew.

Owns the writing of all three formats; the layouts are those of ``message_reader``, ``message_set``, ``record_reader`` and
``record_batch``, as Kafka's MemoryRecordsBuilder writes them:

- Magic 0 and 1 uncompressed: messages side by side. Compressed: one wrapper, whose offset is that of the last message;
  inside, offsets are absolute in magic 0 and count from 0 in magic 1. The wrapper's timestamp is the greatest inside.
- Magic 2: one batch, with or without a codec.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from consumerd.errors import LocalProtocolError
from consumerd.wire.checksum import crc32, crc32c
from consumerd.wire.compression import Codec, compress
from consumerd.wire.modern.entry import ENTRY_BYTES, LOG_APPEND_TIME_FLAG
from consumerd.wire.modern.record_batch import CHECKED_FROM as BATCH_CHECKED_FROM
from consumerd.wire.modern.record_batch import HEADER as _BATCH_HEADER
from consumerd.wire.records import NO_TIMESTAMP, Headers
from consumerd.wire.varint import encode_varint

MAGICS: Final = (0, 1, 2)
NO_LEADER_EPOCH: Final = -1
NO_PRODUCER: Final = (-1, -1, -1)
"""Producer id, epoch and base sequence of a batch whose producer has none."""


@dataclass(slots=True, kw_only=True, unsafe_hash=True)
class NewRecord:
    """A record that has no offset yet; ``timestamp`` in ms since the epoch, which magic 0 cannot keep.

    A value like the others, and never changed; not frozen, since one is made for each record that is produced, and frozen
    ones take three times as long to make.
    """

    key: bytes | None = None
    value: bytes | None
    timestamp: int = NO_TIMESTAMP
    headers: Headers = ()


Row = tuple[int, int, bytes | None, bytes | None]
"""Offset, timestamp, key, value."""
BatchRow = tuple[int, int, bytes | None, bytes | None, bytes]
"""The same and the headers, as they stand on the wire: their count, then each."""
NO_HEADERS: Final = b"\0"


def build_record_set(records: Sequence[NewRecord], *, magic: int, codec: int = 0, base_offset: int = 0) -> bytes:
    """Return a record set of these records with offsets from ``base_offset`` on; producers leave it at 0.

    No records make no bytes. Raises LocalProtocolError for a magic or a codec that does not exist, for headers below
    magic 2, and for what does not fit its field.
    """
    if magic not in MAGICS:
        raise LocalProtocolError(f"magic {magic}: expected 0, 1 or 2")
    if not records:
        return b""
    if magic == 2:
        return build_batch(
            [
                (offset, one.timestamp, one.key, one.value, encode_headers(one.headers))
                for offset, one in enumerate(records, base_offset)
            ],
            base_offset=base_offset,
            codec=codec,
        )
    if any(one.headers for one in records):
        raise LocalProtocolError(f"headers cannot be written in magic {magic}")
    rows = [(offset, one.timestamp, one.key, one.value) for offset, one in enumerate(records, base_offset)]
    return build_messages(rows, magic=magic, codec=codec)


# -- magic 0 and 1

_ENTRY: Final = struct.Struct(">qiI")
_HEADS: Final = (struct.Struct(">BB0si"), struct.Struct(">BBqi"))
"""Magic, attributes, timestamp (nothing in magic 0) and the key's length."""
_INT32: Final = struct.Struct(">i")
_NULL: Final = _INT32.pack(-1)


def build_messages(rows: Sequence[Row], *, magic: int, codec: int = 0, log_append_time_ms: int | None = None) -> bytes:
    """Return messages of magic 0 or 1, in a wrapper if there is a codec; offsets are kept, gaps and all.

    ``log_append_time_ms`` makes the broker's time that of all the messages. Raises LocalProtocolError.
    """
    if log_append_time_ms is not None:
        rows = [(offset, log_append_time_ms, key, value) for offset, _, key, value in rows]
    attributes = LOG_APPEND_TIME_FLAG if magic and log_append_time_ms is not None else 0
    if codec == Codec.NONE:
        return b"".join(_encode_messages(rows, magic, attributes))
    last_offset = rows[-1][0]
    if magic:
        first = rows[0][0]
        rows = [(offset - first, timestamp, key, value) for offset, timestamp, key, value in rows]
    messages = b"".join(_encode_messages(rows, magic, attributes))
    timestamp = max(row[1] for row in rows)
    return build_wrapper(messages, last_offset, magic=magic, codec=codec, timestamp=timestamp, attributes=attributes)


def build_wrapper(
    messages: bytes, last_offset: int, *, magic: int, codec: int, timestamp: int = NO_TIMESTAMP, attributes: int = 0
) -> bytes:
    """Return a message that holds a compressed set of messages. Raises LocalProtocolError."""
    row = (last_offset, timestamp, None, compress(codec, messages, magic=magic))
    return b"".join(_encode_messages((row,), magic, attributes | codec))


def _encode_messages(rows: Iterable[Row], magic: int, attributes: int) -> list[bytes]:
    pieces: list[bytes] = []
    append = pieces.append
    pack_head, pack_entry, pack_length = _HEADS[magic].pack, _ENTRY.pack, _INT32.pack
    try:
        for offset, timestamp, key, value in rows:
            body = pack_head(magic, attributes, timestamp if magic else b"", -1 if key is None else len(key))
            if key is not None:
                body += key
            body += _NULL if value is None else pack_length(len(value)) + value
            append(pack_entry(offset, len(body) + 4, crc32(body)))
            append(body)
    except struct.error as error:
        raise LocalProtocolError(f"a message of magic {magic} cannot be encoded: {error}") from error
    return pieces


# -- magic 2

_BATCH_HEAD: Final = struct.Struct(">qiiBI")
_BATCH_REST: Final = struct.Struct(">hiqqqhii")
_SMALL: Final = tuple(encode_varint(value) for value in range(1 << 13))
"""Varints of one and two bytes that are not negative."""


def build_batch(
    rows: Sequence[BatchRow],
    *,
    base_offset: int,
    codec: int = 0,
    log_append_time_ms: int | None = None,
    leader_epoch: int = NO_LEADER_EPOCH,
    producer: tuple[int, int, int] = NO_PRODUCER,
    last_offset: int | None = None,
) -> bytes:
    """Return one batch of magic 2; offsets are kept, gaps and all.

    ``last_offset`` says where it ends when that is not the last row's. Raises LocalProtocolError.
    """
    base_timestamp = rows[0][1] if rows else NO_TIMESTAMP
    records = b"".join(_encode_records(rows, base_offset, base_timestamp))
    attributes = codec
    max_timestamp = max((row[1] for row in rows), default=NO_TIMESTAMP)
    if log_append_time_ms is not None:
        attributes |= LOG_APPEND_TIME_FLAG
        max_timestamp = log_append_time_ms
    if codec != Codec.NONE:
        records = compress(codec, records, magic=2)
    if last_offset is None:
        last_offset = rows[-1][0]
    try:
        rest = _BATCH_REST.pack(
            attributes, last_offset - base_offset, base_timestamp, max_timestamp, *producer, len(rows)
        )
        checked = rest + records
        head = _BATCH_HEAD.pack(
            base_offset, len(checked) + BATCH_CHECKED_FROM - ENTRY_BYTES, leader_epoch, 2, crc32c(checked)
        )
    except struct.error as error:
        raise LocalProtocolError(f"a batch of {len(rows)} records cannot be encoded: {error}") from error
    return head + checked


def _encode_records(rows: Iterable[BatchRow], base_offset: int, base_timestamp: int) -> list[bytes]:
    pieces: list[bytes] = []
    append = pieces.append
    small, most = _SMALL, len(_SMALL)
    for offset, timestamp, key, value, headers in rows:
        late, delta = timestamp - base_timestamp, offset - base_offset
        body = b"\0" + (small[late] if 0 <= late < most else encode_varint(late))
        body += small[delta] if 0 <= delta < most else encode_varint(delta)
        if key is None:
            body += b"\1"
        else:
            length = len(key)
            body += (small[length] if length < most else encode_varint(length)) + key
        if value is None:
            body += b"\1" + headers
        else:
            length = len(value)
            body += (small[length] if length < most else encode_varint(length)) + value + headers
        length = len(body)
        append(small[length] if length < most else encode_varint(length))
        append(body)
    return pieces


def encode_headers(headers: Headers) -> bytes:
    """Write a record's headers: their count, then key and value of each."""
    if not headers:
        return NO_HEADERS
    pieces = [encode_varint(len(headers))]
    for name, value in headers:
        key = name.encode()
        pieces += (encode_varint(len(key)), key)
        pieces += (b"\1",) if value is None else (encode_varint(len(value)), value)
    return b"".join(pieces)


assert _BATCH_HEAD.size + _BATCH_REST.size == _BATCH_HEADER.size
