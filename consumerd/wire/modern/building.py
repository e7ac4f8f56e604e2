# SPDX-License-Identifier: Apache-2.0
"""Encoding of records as record sets, for producers, conversion and offset assignment.

Owns writing all three formats, as Kafka's MemoryRecordsBuilder does. The layouts are in ``message_reader``,
``message_set``, ``record_reader`` and ``record_batch``.

- Magic 0 and 1, uncompressed: messages one after the other.
- Magic 0 and 1, compressed: one wrapper message with the offset of the last message and the greatest timestamp. Inner
  offsets are absolute in magic 0 and count from 0 in magic 1.
- Magic 2: one batch, with or without a codec.

Example: two records with base offset 50 and gzip are a wrapper with offset 51 in magic 1, which holds messages 0 and 1.
In magic 2 they are a batch with base offset 50 and last offset delta 1.

The native kernel encodes the records of producers, and columns. What it does not take is encoded here, to the same
bytes: rows with offsets of their own, and values that are no ``bytes``.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Final

from consumerd.errors import LocalProtocolError
from consumerd.wire import kernel
from consumerd.wire.checksum import crc32, crc32c
from consumerd.wire.compression import Codec, compress
from consumerd.wire.modern.entry import ENTRY_BYTES, INT32, LOG_APPEND_TIME_FLAG
from consumerd.wire.modern.record_batch import (
    ABORT_MARKER,
    COMMIT_MARKER,
    CONTROL_FLAG,
    CONTROL_KEY,
    TRANSACTIONAL_FLAG,
)
from consumerd.wire.modern.record_batch import CHECKED_FROM as BATCH_CHECKED_FROM
from consumerd.wire.modern.record_batch import HEADER as _BATCH_HEADER
from consumerd.wire.primitives import MAX_INT32
from consumerd.wire.record_fields import NO_TIMESTAMP, Headers
from consumerd.wire.records import NewRecord, RecordBatch
from consumerd.wire.varint import encode_varint

MAGICS: Final = (0, 1, 2)
NO_LEADER_EPOCH: Final = -1
NO_PRODUCER: Final = (-1, -1, -1)
"""Producer id, producer epoch and base sequence of a batch from a producer without id."""


Row = tuple[int, int, bytes | None, bytes | None]
"""A record for :func:`build_messages`: offset, timestamp, key, value."""
BatchRow = tuple[int, int, bytes | None, bytes | None, bytes]
"""A record for :func:`build_batch`: offset, timestamp, key, value and encoded headers."""
NO_HEADERS: Final = b"\0"
"""Encoded list of headers of a record without headers."""


def build_record_set(
    records: Sequence[NewRecord],
    *,
    magic: int,
    codec: int = 0,
    base_offset: int = 0,
    producer: tuple[int, int, int] = NO_PRODUCER,
    transactional: bool = False,
) -> bytes:
    """Encode records as a record set.

    No records give no bytes. Raises LocalProtocolError for an unknown magic or codec, for headers or a producer id
    below magic 2, and for a value that does not fit its field.

    Args:
        base_offset: offset of the first record; producers send 0.
        producer: producer id, producer epoch and base sequence.
        transactional: True if the records belong to a transaction of the producer.
    """
    if magic not in MAGICS:
        raise LocalProtocolError(f"magic {magic}: expected 0, 1 or 2")
    if not records:
        return b""
    if magic == 2:
        encoded, base_timestamp, max_timestamp = _encode_new(records)
        return frame_batch(
            encoded,
            len(records),
            base_timestamp=base_timestamp,
            max_timestamp=max_timestamp,
            base_offset=base_offset,
            codec=codec,
            producer=producer,
            transactional=transactional,
        )
    if producer != NO_PRODUCER:
        raise LocalProtocolError(f"a producer id cannot be written in magic {magic}")
    if any(one.headers for one in records):
        raise LocalProtocolError(f"headers cannot be written in magic {magic}")
    rows = [(offset, one.timestamp, one.key, one.value) for offset, one in enumerate(records, base_offset)]
    return build_messages(rows, magic=magic, codec=codec)


# -- magic 0 and 1

_ENTRY: Final = struct.Struct(">qiI")
_HEADS: Final = (struct.Struct(">BB0si"), struct.Struct(">BBqi"))
"""Magic, attributes, timestamp (not in magic 0) and key length."""
_NULL: Final = INT32.pack(-1)


def build_messages(rows: Sequence[Row], *, magic: int, codec: int = 0, log_append_time_ms: int | None = None) -> bytes:
    """Encode messages of magic 0 or 1; with a codec, in one compressed wrapper message.

    The offsets of the rows are kept, including gaps.

    Args:
        rows: the messages, in ascending order of offsets.
        codec: number of the compression codec; 0 for none.
        log_append_time_ms: the broker's timestamp for all messages, in ms since the epoch; None keeps their own.

    Raises LocalProtocolError for a value that does not fit its field.
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
    """Compress a message set and return it as the value of one wrapper message.

    Args:
        messages: the encoded message set, not compressed.
        last_offset: offset of the last message, which becomes the wrapper's.
        timestamp: the wrapper's timestamp in magic 1, in ms since the epoch.
        attributes: further bits of the wrapper's attributes, besides the codec.

    Raises LocalProtocolError.
    """
    row = (last_offset, timestamp, None, compress(codec, messages, magic=magic))
    return b"".join(_encode_messages((row,), magic, attributes | codec))


def _encode_messages(rows: Iterable[Row], magic: int, attributes: int) -> list[bytes]:
    pieces: list[bytes] = []
    append = pieces.append
    pack_head, pack_entry, pack_length = _HEADS[magic].pack, _ENTRY.pack, INT32.pack
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

_MARKER_VALUE: Final = struct.pack(">hi", 0, 0)
"""Value of a marker: its version, and the coordinator's epoch."""

_BATCH_HEAD: Final = struct.Struct(">qiiBI")
_BATCH_REST: Final = struct.Struct(">hiqqqhii")
_DELTA_END: Final = 1 << 63
"""End of the numbers that fit a timestamp delta, an int64."""
_SMALL: Final = tuple(encode_varint(value) for value in range(1 << 13))
"""Encoded varints of one and two bytes, for numbers from 0 on."""


def build_batch(
    rows: Sequence[BatchRow],
    *,
    base_offset: int,
    codec: int = 0,
    log_append_time_ms: int | None = None,
    leader_epoch: int = NO_LEADER_EPOCH,
    producer: tuple[int, int, int] = NO_PRODUCER,
    transactional: bool = False,
    control: bool = False,
    last_offset: int | None = None,
) -> bytes:
    """Return a record batch (magic 2) with these records.

    Offsets are kept, including gaps.

    Args:
        log_append_time_ms: the broker's timestamp for all records, in ms since the epoch; None keeps their own.
        producer: producer id, producer epoch and base sequence.
        transactional: True if the records belong to a transaction of the producer.
        control: True for a batch of control records, which only brokers write.
        last_offset: last offset of the batch; None if that is the last record's.

    Raises LocalProtocolError for a value that does not fit its field.
    """
    base_timestamp = rows[0][1] if rows else NO_TIMESTAMP
    return frame_batch(
        b"".join(encode_rows(rows, base_offset, base_timestamp)),
        len(rows),
        base_timestamp=base_timestamp,
        max_timestamp=max((row[1] for row in rows), default=NO_TIMESTAMP),
        base_offset=base_offset,
        last_offset=rows[-1][0] if last_offset is None else last_offset,
        codec=codec,
        log_append_time_ms=log_append_time_ms,
        leader_epoch=leader_epoch,
        producer=producer,
        transactional=transactional,
        control=control,
    )


def frame_batch(
    records: bytes,
    count: int,
    *,
    base_timestamp: int,
    max_timestamp: int,
    base_offset: int = 0,
    last_offset: int | None = None,
    codec: int = 0,
    log_append_time_ms: int | None = None,
    leader_epoch: int = NO_LEADER_EPOCH,
    producer: tuple[int, int, int] = NO_PRODUCER,
    transactional: bool = False,
    control: bool = False,
) -> bytes:
    """Compress encoded records, and return them as a record batch (magic 2).

    Args:
        records: the records one after the other, not compressed.
        count: number of the records.
        base_timestamp: timestamp to which the records' timestamp deltas were computed, in ms since the epoch.
        max_timestamp: greatest timestamp of the records.
        base_offset: offset to which the records' offset deltas were computed.
        last_offset: last offset of the batch; None if offsets have no gaps.

    The other arguments, and the errors, are those of :func:`build_batch`.
    """
    attributes = codec | (TRANSACTIONAL_FLAG if transactional else 0) | (CONTROL_FLAG if control else 0)
    if log_append_time_ms is not None:
        attributes |= LOG_APPEND_TIME_FLAG
        max_timestamp = log_append_time_ms
    if codec != Codec.NONE:
        records = compress(codec, records, magic=2)
    last_delta = count - 1 if last_offset is None else last_offset - base_offset
    try:
        rest = _BATCH_REST.pack(attributes, last_delta, base_timestamp, max_timestamp, *producer, count)
        checked = rest + records
        head = _BATCH_HEAD.pack(
            base_offset, len(checked) + BATCH_CHECKED_FROM - ENTRY_BYTES, leader_epoch, 2, crc32c(checked)
        )
    except struct.error as error:
        raise LocalProtocolError(f"a batch of {count} records cannot be encoded: {error}") from error
    return head + checked


_ROWS_A_STEP: Final = 256
"""Number of records that are encoded before their size is looked at."""


class ProducerBatch:
    """A producer's record batch (magic 2), which grows until it is sealed.

    Sealing adds the header. A batch that gets another sequence number is sealed again, and not encoded again.

    It takes new records, and records of fetched batches. Those keep key, value, timestamp and headers. Their offsets
    are new: they count from 0, and gaps disappear. Timestamps become those of a producer (CreateTime).

    Args:
        codec: number of the compression codec; 0 for none.
    """

    def __init__(self, *, codec: int = 0) -> None:
        self._codec = codec
        self._pieces: list[bytes] = []
        self._base_timestamp = NO_TIMESTAMP
        self._max_timestamp = NO_TIMESTAMP
        self.count = 0
        """Number of records."""
        self.size = 0
        """Size of the encoded records before compression, in bytes."""

    def add(self, rows: Sequence[BatchRow]) -> None:
        """Add records, whose offsets go on from :attr:`count`. Raises LocalProtocolError as :func:`build_batch`."""
        if rows:
            self._open(rows[0][1])
            self._take(b"".join(encode_rows(rows, 0, self._base_timestamp)), len(rows), max(row[1] for row in rows))

    def add_columns(
        self, batch: RecordBatch, begin: int, end: int, *, room: int = MAX_INT32, timestamps: array[int] | None = None
    ) -> int:
        """Add rows ``[begin, end)`` as far as they fit; return the row behind them.

        The first record of the batch always fits. A later one does not if it is beyond the room, or if its timestamp is
        more than an int64 away from the first record's. Keys, values and headers are copied; headers must have been
        checked (:func:`consumerd.wire.records.check_headers`).

        Args:
            room: most bytes to add.
            timestamps: timestamp of each row of the batch, in ms since the epoch; None for the batch's own.
        """
        if begin >= end:
            return begin
        timestamps = batch.timestamps if timestamps is None else timestamps
        self._open(timestamps[begin])
        encoded = None
        if (native := kernel.building) is not None:
            encoded = native.encode_rows(
                batch.buffer,
                (timestamps, batch.key_starts, batch.key_ends, batch.value_starts, batch.value_ends),
                (batch.header_starts, batch.header_ends) if batch.header_starts else None,
                begin,
                end,
                self.count,
                self._base_timestamp,
                room,
            )
        piece, stop, max_timestamp = encoded or self._encode_rows(batch, begin, end, room, timestamps)
        self._take(piece, stop - begin, max_timestamp)
        return stop

    def _encode_rows(
        self, batch: RecordBatch, begin: int, end: int, room: int, timestamps: array[int]
    ) -> tuple[bytes, int, int]:
        """Encode as the kernel does, in steps, so that few records are encoded in vain."""
        pieces: list[bytes] = []
        size, at = 0, begin
        while at < end:
            step = min(at + _ROWS_A_STEP, end)
            if (far := self._find_far(timestamps, at, step)) < step:
                end = step = far
            rows = _list_rows(batch.rows(at, step), timestamps[at:step], self.count + at - begin)
            encoded = encode_rows(rows, 0, self._base_timestamp)
            for head, body in zip(encoded[::2], encoded[1::2], strict=True):
                size += len(head) + len(body)
                if size > room and self.count + at > begin:
                    end = at
                    break
                pieces += (head, body)
                at += 1
        return b"".join(pieces), at, max(timestamps[begin:at], default=self._max_timestamp)

    def _find_far(self, timestamps: array[int], begin: int, end: int) -> int:
        """Return the first row whose timestamp delta does not fit its field; ``end`` without one."""
        base, some = self._base_timestamp, timestamps[begin:end]
        if _is_near(min(some), base) and _is_near(max(some), base):
            return end
        return next(row for row, one in enumerate(some, begin) if not _is_near(one, base))

    def _open(self, timestamp: int) -> None:
        if not self.count:
            self._base_timestamp = self._max_timestamp = timestamp

    def _take(self, piece: bytes, count: int, max_timestamp: int) -> None:
        self._pieces.append(piece)
        self._max_timestamp = max(self._max_timestamp, max_timestamp)
        self.count += count
        self.size += len(piece)

    def seal(self, producer: tuple[int, int, int], *, transactional: bool) -> bytes:
        """Return the record batch.

        Args:
            producer: producer id, producer epoch and base sequence.
            transactional: True if the records belong to a transaction of the producer.

        Raises LocalProtocolError for a batch that is too large for its length field.
        """
        return frame_batch(
            b"".join(self._pieces),
            self.count,
            base_timestamp=self._base_timestamp,
            max_timestamp=self._max_timestamp,
            codec=self._codec,
            producer=producer,
            transactional=transactional,
        )


def _list_rows(batch: RecordBatch, timestamps: Sequence[int], first: int) -> list[BatchRow]:
    """Return the records of a batch, numbered from ``first`` on."""
    headers: Iterable[bytes] = repeat(NO_HEADERS, len(batch))
    if batch.header_starts:
        spans = zip(batch.header_starts, batch.header_ends, strict=True)
        headers = (NO_HEADERS if start < 0 else bytes(batch.buffer[start:end]) for start, end in spans)
    numbers = range(first, first + len(batch))
    return list(zip(numbers, timestamps, batch.keys(), batch.values(), headers, strict=True))


def build_marker(base_offset: int, producer_id: int, epoch: int, *, commit: bool, timestamp: int) -> bytes:
    """Return the marker that ends a producer's transaction, as a control batch (EndTransactionMarker, KIP-98).

    ``timestamp`` is in ms since the epoch.
    """
    key = CONTROL_KEY.pack(0, COMMIT_MARKER if commit else ABORT_MARKER)
    row = (base_offset, timestamp, key, _MARKER_VALUE, NO_HEADERS)
    owner = (producer_id, epoch, -1)
    return build_batch(
        (row,), base_offset=base_offset, leader_epoch=0, producer=owner, transactional=True, control=True
    )


def _encode_new(records: Sequence[NewRecord]) -> tuple[bytes, int, int]:
    """Return records encoded one after the other, the first timestamp, and the greatest one.

    Their offset deltas count from 0.
    """
    if (native := kernel.building) is not None:
        encoded = native.encode_records(records, encode_headers)
        if encoded is not None:
            return encoded
    base_timestamp = records[0].timestamp
    rows = [
        (delta, one.timestamp, one.key, one.value, encode_headers(one.headers)) for delta, one in enumerate(records)
    ]
    return b"".join(encode_rows(rows, 0, base_timestamp)), base_timestamp, max(one.timestamp for one in records)


def encode_rows(rows: Iterable[BatchRow], base_offset: int, base_timestamp: int) -> list[bytes]:
    """Return records of magic 2 encoded, each as two pieces: its length, and the rest.

    Args:
        base_offset: offset from which the records' offset deltas count.
        base_timestamp: timestamp from which the records' timestamp deltas count.

    Raises LocalProtocolError for timestamps whose difference does not fit its field.
    """
    pieces: list[bytes] = []
    append = pieces.append
    small, most = _SMALL, len(_SMALL)
    for offset, timestamp, key, value, headers in rows:
        late, delta = timestamp - base_timestamp, offset - base_offset
        body = b"\0" + (small[late] if 0 <= late < most else _encode_lateness(late))
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


def _is_near(timestamp: int, base_timestamp: int) -> bool:
    return -_DELTA_END <= timestamp - base_timestamp < _DELTA_END


def _encode_lateness(delta: int) -> bytes:
    if not _is_near(delta, 0):
        raise LocalProtocolError(f"a timestamp {delta} ms from that of the batch's first record cannot be encoded")
    return encode_varint(delta)


def encode_headers(headers: Headers) -> bytes:
    """Return a record's headers encoded: their count, then key and value of each."""
    if not headers:
        return NO_HEADERS
    pieces = [encode_varint(len(headers))]
    for name, value in headers:
        key = name.encode()
        pieces += (encode_varint(len(key)), key)
        pieces += (b"\1",) if value is None else (encode_varint(len(value)), value)
    return b"".join(pieces)


assert _BATCH_HEAD.size + _BATCH_REST.size == _BATCH_HEADER.size
