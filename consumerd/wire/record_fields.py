# SPDX-License-Identifier: Apache-2.0
"""Constants for missing values of a record, the decoder of its headers, and sequence numbers.

A span is a range ``[start, end)`` of positions in a buffer. A null key or value has the span ``(-1, -1)``.
"""

from __future__ import annotations

from typing import Final

from consumerd.errors import CorruptMessageError
from consumerd.wire.primitives import MAX_INT32
from consumerd.wire.varint import read_varint

NULL_SPAN: Final = -1
"""Start and end position of a null key or value."""

NO_TIMESTAMP: Final = -1
"""Timestamp of a record without one: magic 0, or a producer that set none."""

Headers = tuple[tuple[str, bytes | None], ...]
"""A record's headers in order: name and value of each."""


def decode_headers(buffer: bytes | bytearray | memoryview, start: int, end: int) -> Headers:
    """Decode a record's headers.

    As in Java, header keys that are not UTF-8 get replacement characters. Raises CorruptMessageError unless the headers
    fill ``[start, end)`` exactly.
    """
    return tuple(
        (str(buffer[key_start:key_end], "utf-8", "replace"), None if s < 0 else bytes(buffer[s:e]))
        for key_start, key_end, s, e in header_spans(buffer, start, end)
    )


def header_spans(buffer: bytes | bytearray | memoryview, start: int, end: int) -> list[tuple[int, int, int, int]]:
    """Return the positions of the keys and values of a record's headers in the buffer.

    Each tuple has start and end of a key, start and end of its value; -1 for null. Raises CorruptMessageError unless
    the headers fill ``[start, end)`` exactly. Encoded headers are a varint count, then for each header the length and
    bytes of its key and of its value.
    """
    count, at = read_varint(buffer, start, end)
    if not 0 <= count <= (end - at) // 2:  # a header takes two bytes or more: the lengths of its key and value
        raise CorruptMessageError(f"{count} headers in {end - at} bytes")
    spans = []
    for _ in range(count):
        key_start, key_end, at = read_span(buffer, at, end, "a header")
        if key_start < 0:
            raise CorruptMessageError("a header without a key")
        value_start, value_end, at = read_span(buffer, at, end, "a header")
        spans.append((key_start, key_end, value_start, value_end))
    if at != end:
        raise CorruptMessageError(f"{end - at} bytes left behind the headers")
    return spans


def read_span(buffer: bytes | bytearray | memoryview, at: int, end: int, what: str) -> tuple[int, int, int]:
    """Read a key's or value's length; return its start, its end, and the next position.

    All three are positions in the buffer. For null, start and end are -1; the next position is that after the length.

    Args:
        at: Position of the length field of the key or value.
        end: Position in the buffer at which the headers end.
        what: Name of the key or value, for errors.
    """
    length, at = read_varint(buffer, at, end)
    if length == NULL_SPAN:
        return NULL_SPAN, NULL_SPAN, at
    if not 0 <= length <= end - at:
        raise CorruptMessageError(f"{what} of {length} bytes where {end - at} are left")
    return at, at + length, at + length


def advance_sequence(sequence: int, count: int) -> int:
    """Return the sequence number ``count`` records after another; after 2,147,483,647 comes 0.

    Source: Kafka's DefaultRecordBatch.incrementSequence.
    """
    return (sequence + count) & MAX_INT32
