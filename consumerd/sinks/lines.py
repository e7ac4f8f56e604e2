# SPDX-License-Identifier: Apache-2.0
"""Encodes records as JSON lines. Pure.

Example of a line::

    {"topic":"orders","partition":0,"timestamp_type":0,"offset":7,"next_offset":8,"index":0,"timestamp":1763800000000,
     "headers":[],"key":"a","value":"paid"}

``key``, ``value``  text if they are UTF-8, else ``key_base64`` and ``value_base64``; null stays null.
``timestamp_type``  as in Parquet files: 0 the producer's time, 1 the broker's, -1 none. Old files lack it.
``broker``          only for partitions that belong to a broker (0.7), after ``partition``.

The native kernel encodes without a Python object per record. Without it a line is formatted around the standard
library's encoder of strings, which is several times as fast as a dictionary and ``json.dumps``.
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
from consumerd.wire.kernel_sinks import LinesKernel
from consumerd.wire.record_fields import NO_TIMESTAMP, Headers, decode_headers
from consumerd.wire.records import RecordBatch

PIECE_BYTES: Final = 1 << 20
"""Approximate size, in bytes, of the parts in which lines are returned."""
WORKING_COPIES: Final = 6
"""Copies of a record while it is encoded, each a third larger.

They are its value as base64, as text, in the line, in all lines, and as bytes.
"""
_PIECE_RECORDS: Final = 4096
"""Largest number of records in one such part."""


def encode_lines(batch: RecordBatch) -> Iterator[bytes]:
    """Yield a batch's JSON lines, in parts of about 1 MiB that have whole lines.

    Raises CorruptMessageError for unreadable headers of any record, before the first part is yielded.
    """
    headers = _encode_headers(batch)  # of all records first, because written lines could not be taken back
    for begin, end, kind in _find_runs(batch.timestamp_types, len(batch)):
        part = batch if end - begin == len(batch) else batch.rows(begin, end)
        yield from _encode_run(part, kind, headers[begin:end])


def _find_runs(types: bytes, count: int) -> Iterator[tuple[int, int, TimestampType]]:
    """Yield begin, end and type of runs of rows with the same timestamp type."""
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
    # a batch has one byte per record, the type + 1, or no bytes if no record has a timestamp
    return TimestampType(types[0] - 1) if types else TimestampType.NONE


def _encode_run(batch: RecordBatch, kind: TimestampType, headers: list[str]) -> Iterator[bytes]:
    key = batch.partition.partition
    broker = "" if key.broker is None else f'"broker":{key.broker},'
    # fields that are the same in every line come first, and are encoded once
    head = (
        f'{{"topic":{encode_basestring(batch.partition.topic)},"partition":{key.number},{broker}'
        f'"timestamp_type":{kind.value},"offset":'
    )
    row = 0
    if kernel.lines is not None and len(batch):
        row = yield from _encode_natively(kernel.lines, batch, head.encode(), headers)
    yield from _encode_purely(batch, row, head, headers)


def _encode_natively(
    native: LinesKernel, batch: RecordBatch, head: bytes, headers: list[str]
) -> Generator[bytes, None, int]:
    """Yield lines until the native kernel stops; return the first unencoded row."""
    columns = (batch.offsets, batch.next_offsets or None, batch.indexes or None, batch.timestamps)
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
    """Join texts; return their bytes, the start of each, and the end of the last."""
    parts = [text.encode() for text in texts]
    return b"".join(parts), array("q", accumulate(map(len, parts), initial=0))


def _encode_purely(batch: RecordBatch, row: int, head: str, headers: list[str]) -> Iterator[bytes]:
    """Yield the lines from ``row`` on, encoded in Python."""
    for start, end in _pieces(batch, row):
        here = slice(start, end)
        rows = zip(
            batch.offsets[here],
            batch.list_following(here),
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
    """Return each record's headers as JSON; an empty list if the batch has none."""
    return [
        _encode_header_list(decode_headers(batch.buffer, start, end)) if start >= 0 else "[]"
        for start, end in zip(batch.header_starts, batch.header_ends, strict=True)
    ]


def _encode_header_list(headers: Headers) -> str:
    fields = (f'{{"key":{encode_basestring(key)},{_encode_field("value", value)}}}' for key, value in headers)
    return f"[{','.join(fields)}]"
