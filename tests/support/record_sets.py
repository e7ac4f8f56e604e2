# SPDX-License-Identifier: Apache-2.0
"""Builds message sets and record batches, byte by byte as the formats say and none too fast: the tests' counterpart of
the decoders in ``consumerd.wire.modern``.

Every field that a test may want to get wrong is a parameter.
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import lz4.frame
import snappy
import zstandard

from consumerd.wire.checksum import crc32, crc32c_reference, xxh32_short
from consumerd.wire.compression import Codec
from consumerd.wire.varint import encode_varint


def compress(codec: int, data: bytes) -> bytes:
    """Compress as the Java clients do: snappy in the framing of snappy-java, LZ4 and zstd frames without a size."""
    if codec == Codec.GZIP:
        return gzip.compress(data, mtime=0)
    if codec == Codec.SNAPPY:
        return xerial(data[at : at + 32768] for at in range(0, len(data), 32768))
    if codec == Codec.LZ4:
        return bytes(lz4.frame.compress(data, store_size=False))
    if codec == Codec.ZSTD:
        return zstandard.ZstdCompressor(write_content_size=False).compress(data)
    assert codec == Codec.NONE
    return data


def xerial(blocks: Iterable[bytes]) -> bytes:
    """Compress blocks with snappy, in the framing of snappy-java."""
    framed = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    for block in blocks:
        raw = snappy.compress(block)
        framed += struct.pack(">i", len(raw)) + raw
    return framed


def break_lz4_header(frame: bytes) -> bytes:
    """Give an LZ4 frame the header checksum of magic 0 producers: over the frame's magic too (KAFKA-3160)."""
    return frame[:6] + bytes((xxh32_short(frame[:6]) >> 8 & 0xFF,)) + frame[7:]


# -- magic 0 and 1


def _sized(data: bytes | None) -> bytes:
    return struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data


def message(
    offset: int,
    value: bytes | None,
    *,
    key: bytes | None = None,
    magic: int = 1,
    timestamp: int = -1,
    attributes: int = 0,
    body: bytes | None = None,
) -> bytes:
    """Return an entry of a message set; ``body`` replaces key and value."""
    checked = struct.pack(">BB", magic, attributes)
    if magic:
        checked += struct.pack(">q", timestamp)
    checked += _sized(key) + _sized(value) if body is None else body
    return struct.pack(">qiI", offset, len(checked) + 4, crc32(checked)) + checked


def wrapper(
    offset: int,
    messages: bytes,
    codec: int,
    *,
    key: bytes | None = None,
    magic: int = 1,
    timestamp: int = -1,
    attributes: int = 0,
    compressed: bytes | None = None,
) -> bytes:
    """Return a compressed message set as one message; ``compressed`` replaces what the codec gives."""
    value = compress(codec, messages) if compressed is None else compressed
    return message(offset, value, key=key, magic=magic, timestamp=timestamp, attributes=attributes | codec)


# -- magic 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordSpec:
    """One record of a batch, by its offset delta."""

    delta: int
    value: bytes | None = None
    key: bytes | None = None
    timestamp_delta: int = 0
    headers: Sequence[tuple[bytes, bytes | None]] = field(default=())


def record(spec: RecordSpec) -> bytes:
    """Return an encoded record."""
    body = b"\0" + encode_varint(spec.timestamp_delta) + encode_varint(spec.delta)
    body += _varint_sized(spec.key) + _varint_sized(spec.value) + encode_varint(len(spec.headers))
    for key, value in spec.headers:
        body += _varint_sized(key) + _varint_sized(value)
    return encode_varint(len(body)) + body


def _varint_sized(data: bytes | None) -> bytes:
    return encode_varint(-1) if data is None else encode_varint(len(data)) + data


def batch(
    base_offset: int,
    records: Sequence[RecordSpec] | bytes,
    *,
    count: int | None = None,
    last_delta: int | None = None,
    codec: int = 0,
    attributes: int = 0,
    base_timestamp: int = 0,
    max_timestamp: int = 0,
    producer_id: int = -1,
    crc: int | None = None,
    compressed: bytes | None = None,
) -> bytes:
    """Return a record batch; what is None follows from the records, which may be given encoded."""
    if isinstance(records, bytes):
        encoded = records
        count = 0 if count is None else count
        last_delta = count - 1 if last_delta is None else last_delta
    else:
        encoded = b"".join(map(record, records))
        count = len(records) if count is None else count
        last_delta = records[-1].delta if last_delta is None else last_delta
    checked = struct.pack(
        ">hiqqqhii",
        attributes | codec, last_delta, base_timestamp, max_timestamp, producer_id, 0 if producer_id >= 0 else -1, -1, count,
    )  # fmt: skip
    checked += compress(codec, encoded) if compressed is None else compressed
    checksum = crc32c_reference(checked) if crc is None else crc
    return struct.pack(">qiiBI", base_offset, len(checked) + 9, 0, 2, checksum) + checked


TRANSACTIONAL = 0x10
CONTROL = 0x20
LOG_APPEND_TIME = 0x08


def marker(offset: int, producer_id: int, *, abort: bool) -> bytes:
    """Return the control batch that ends a transaction."""
    spec = RecordSpec(delta=0, key=struct.pack(">hh", 0, 0 if abort else 1), value=struct.pack(">hi", 0, 0))
    return batch(offset, [spec], attributes=TRANSACTIONAL | CONTROL, producer_id=producer_id)
