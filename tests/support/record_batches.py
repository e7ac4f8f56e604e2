# SPDX-License-Identifier: Apache-2.0
"""Builds columnar record batches from plain values, as a decoder would, with framing bytes between the fields."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

from consumerd.model import Gap, TimestampType, TopicPartition
from consumerd.wire.record_fields import NULL_SPAN, Headers
from consumerd.wire.records import Record, RecordBatch


def record(
    offset: int,
    value: bytes | None = b"value",
    *,
    key: bytes | None = None,
    timestamp: int = -1,
    headers: Headers = (),
    index: int = 0,
) -> Record:
    """Make a record; its timestamp type follows from whether it has a timestamp."""
    kind = TimestampType.NONE if timestamp < 0 else TimestampType.CREATE_TIME
    return Record(
        offset=offset, timestamp=timestamp, timestamp_type=kind, key=key, value=value, headers=headers, index=index
    )


def build_batch(
    partition: TopicPartition,
    records: Iterable[Record],
    *,
    start: int | None = None,
    next_offset: int | None = None,
    gaps: Sequence[Gap] = (),
    next_offsets: Sequence[int] = (),
    framing: bytes = b"\xff\x00",
) -> RecordBatch:
    """Make a batch of these records. ``framing`` stands between the fields in the buffer and belongs to none.

    ``next_offsets`` are the offsets after the records, where these are not each record's offset plus one.
    """
    rows = list(records)
    first = start if start is not None else rows[0].offset
    end = next_offset if next_offset is not None else rows[-1].offset + 1
    buffer = bytearray()
    spans: list[tuple[array[int], array[int]]] = [(array("q"), array("q")) for _ in range(3)]
    with_headers = any(row.headers for row in rows)
    for row in rows:
        fields = (row.key, row.value, _encode_headers(row.headers) if with_headers else None)
        for (starts, ends), field in zip(spans, fields, strict=True):
            buffer += framing
            starts.append(NULL_SPAN if field is None else len(buffer))
            buffer += field or b""
            ends.append(NULL_SPAN if field is None else len(buffer))
    (key_starts, key_ends), (value_starts, value_ends), (header_starts, header_ends) = spans
    timed = any(row.timestamp_type is not TimestampType.NONE for row in rows)
    return RecordBatch(
        partition=partition,
        start=first,
        next_offset=end,
        buffer=bytes(buffer),
        offsets=array("q", [row.offset for row in rows]),
        timestamps=array("q", [row.timestamp for row in rows]),
        timestamp_types=bytes(row.timestamp_type + 1 for row in rows) if timed else b"",
        key_starts=key_starts,
        key_ends=key_ends,
        value_starts=value_starts,
        value_ends=value_ends,
        header_starts=header_starts if with_headers else array("q"),
        header_ends=header_ends if with_headers else array("q"),
        indexes=array("q", [row.index for row in rows]) if any(row.index for row in rows) else array("q"),
        next_offsets=array("q", next_offsets),
        gaps=tuple(gaps),
        size_bytes=len(buffer),
    )


def _encode_headers(headers: Headers) -> bytes:
    parts = [_varint(len(headers))]
    for key, value in headers:
        name = key.encode()
        parts += [_varint(len(name)), name, _varint(-1 if value is None else len(value)), value or b""]
    return b"".join(parts)


def _varint(value: int) -> bytes:
    rest = (value << 1) ^ (value >> 63)
    data = bytearray()
    while rest > 0x7F:
        data.append(rest & 0x7F | 0x80)
        rest >>= 7
    data.append(rest)
    return bytes(data)
