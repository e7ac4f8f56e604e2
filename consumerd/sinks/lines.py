# SPDX-License-Identifier: Apache-2.0
"""Records as JSON lines. Pure.

The native kernel writes them without an object a record. Without it a line is written piece by piece around the standard
library's own string literal encoder, which is several times as fast as building an object for ``json.dumps``. Keys and values are strings where they are UTF-8 and ``key_base64``,
``value_base64`` where they are not; null stays null. ``partition`` is a number. ``broker`` stands beside it only where a
partition lives on a broker (0.7): a key that is null in every line of every other file would be bytes for nothing.
``timestamp_type`` is as in Parquet: 0 the producer's time, 1 the broker's, -1 none. Files of releases before this field lack it.
"""

from __future__ import annotations

import base64
from array import array
from collections.abc import Generator, Iterator
from itertools import accumulate, groupby
from json.encoder import encode_basestring
from typing import Final

from consumerd.model import TimestampType
from consumerd.wire import kernel
from consumerd.wire.records import NO_TIMESTAMP, Headers, RecordBatch, decode_headers

PIECE_BYTES: Final = 1 << 20
_PIECE_RECORDS: Final = 4096


def encode_lines(batch: RecordBatch) -> Iterator[bytes]:
    """Yield a batch's lines, whole ones, in pieces of about ``PIECE_BYTES`` or a few thousand records.

    Raises CorruptMessageError, before the first piece, where headers cannot be read.
    """
    headers = _encode_headers(batch)  # all of them first: a half-written batch could not be taken back
    for begin, end, kind in _find_runs(batch.timestamp_types, len(batch)):
        part = batch if end - begin == len(batch) else batch.rows(begin, end)
        yield from _encode_run(part, kind, headers[begin:end])


def _find_runs(types: bytes, count: int) -> Iterator[tuple[int, int, TimestampType]]:
    """Yield the rows in a row that have timestamps of one type; nearly always all of a batch."""
    if not types or types.count(types[:1]) == len(types):
        if count:
            yield 0, count, _to_type(types)
        return
    begin = 0
    for _, run in groupby(types):
        end = begin + sum(1 for _ in run)
        yield begin, end, _to_type(types[begin:end])
        begin = end


def _to_type(types: bytes) -> TimestampType:
    # a batch has one byte a record, the type + 1, and none where no record has a timestamp
    return TimestampType(types[0] - 1) if types else TimestampType.NONE


def _encode_run(batch: RecordBatch, kind: TimestampType, headers: list[str]) -> Iterator[bytes]:
    next_offsets = _next_offsets(batch)
    key = batch.partition.partition
    broker = "" if key.broker is None else f'"broker":{key.broker},'
    # what is the same in every line comes first, and is encoded once
    head = (
        f'{{"topic":{encode_basestring(batch.partition.topic)},"partition":{key.number},{broker}'
        f'"timestamp_type":{kind.value},"offset":'
    )
    row = 0
    if kernel.lines is not None and len(batch):
        row = yield from _encode_natively(kernel.lines, batch, head.encode(), next_offsets, headers)
    yield from _encode_purely(batch, row, head, next_offsets, headers)


def _encode_natively(
    native: kernel.LinesKernel, batch: RecordBatch, head: bytes, next_offsets: array[int] | None, headers: list[str]
) -> Generator[bytes, None, int]:
    """Yield lines as far as the kernel goes; return the row behind them."""
    columns = (batch.offsets, next_offsets, batch.indexes or None, batch.timestamps)
    keys, values = (batch.key_starts, batch.key_ends), (batch.value_starts, batch.value_ends)
    fields = _join(headers) if headers else None
    row = 0
    while row < len(batch):
        written = native.encode_lines(batch.buffer, head, columns, keys, values, fields, row, PIECE_BYTES)
        if written is None:
            break
        piece, row = written
        yield piece
    return row


def _join(texts: list[str]) -> tuple[bytes, array[int]]:
    """Return the texts in a row, where each begins, and where the last ends."""
    parts = [text.encode() for text in texts]
    return b"".join(parts), array("q", accumulate(map(len, parts), initial=0))


def _encode_purely(
    batch: RecordBatch, row: int, head: str, next_offsets: array[int] | None, headers: list[str]
) -> Iterator[bytes]:
    """Yield the lines from ``row`` on."""
    for start, end in _pieces(batch, row):
        here = slice(start, end)
        rows = zip(
            batch.offsets[here],
            next_offsets[here] if next_offsets is not None else [offset + 1 for offset in batch.offsets[here]],
            batch.indexes[here] or bytes(end - start),
            batch.timestamps[here],
            headers[here] if headers else ["[]"] * (end - start),
            _encode_texts("key", batch.buffer, batch.key_starts[here], batch.key_ends[here]),
            _encode_texts("value", batch.buffer, batch.value_starts[here], batch.value_ends[here]),
            strict=True,
        )
        lines = [
            f'{head}{offset},"next_offset":{next_offset},"index":{index},'
            f'"timestamp":{"null" if timestamp == NO_TIMESTAMP else timestamp},"headers":{fields},{key},{value}}}\n'
            for offset, next_offset, index, timestamp, fields, key, value in rows
        ]
        yield "".join(lines).encode()


def _pieces(batch: RecordBatch, start: int) -> Iterator[tuple[int, int]]:
    size = 0
    spans = zip(batch.value_starts[start:], batch.value_ends[start:], strict=True)
    for row, (value_start, value_end) in enumerate(spans, start + 1):
        size += value_end - value_start
        if size >= PIECE_BYTES or row - start >= _PIECE_RECORDS:
            yield start, row
            start, size = row, 0
    if start < len(batch):
        yield start, len(batch)


def _next_offsets(batch: RecordBatch) -> array[int] | None:
    """Return, for each record, where to go on after it: the next message where offsets are bytes, None for one further."""
    if batch.partition.partition.broker is None:
        return None
    behind = array("q", batch.offsets)
    following = current = batch.next_offset
    for row in range(len(behind) - 1, -1, -1):
        if behind[row] != current:
            following, current = (current if row + 1 < len(behind) else batch.next_offset), behind[row]
        behind[row] = following
    return behind


def _encode_texts(name: str, buffer: bytes | bytearray | memoryview, starts: array[int], ends: array[int]) -> list[str]:
    if max(ends) < 0:
        return [f'"{name}":null'] * len(ends)
    head = f'"{name}":'
    if min(starts) >= 0:
        try:
            return [head + encode_basestring(str(buffer[s:e], "utf-8")) for s, e in zip(starts, ends, strict=True)]
        except UnicodeDecodeError:
            pass
    return [_encode_field(name, None if s < 0 else bytes(buffer[s:e])) for s, e in zip(starts, ends, strict=True)]


def _encode_field(name: str, data: bytes | None) -> str:
    if data is None:
        return f'"{name}":null'
    try:
        return f'"{name}":{encode_basestring(data.decode())}'
    except UnicodeDecodeError:
        return f'"{name}_base64":"{base64.b64encode(data).decode()}"'


def _encode_headers(batch: RecordBatch) -> list[str]:
    """Return each record's headers, or nothing where the batch has none."""
    return [
        _encode_header_list(decode_headers(batch.buffer, start, end)) if start >= 0 else "[]"
        for start, end in zip(batch.header_starts, batch.header_ends, strict=True)
    ]


def _encode_header_list(headers: Headers) -> str:
    fields = (f'{{"key":{encode_basestring(key)},{_encode_field("value", value)}}}' for key, value in headers)
    return f"[{','.join(fields)}]"
