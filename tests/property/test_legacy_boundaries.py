# SPDX-License-Identifier: Apache-2.0
"""Logs of Kafka 0.7 read from any position, with any byte damaged: no record gets an identity that is not its own.

Compressed messages keep their records as they are (stored blocks of gzip, literals of snappy), and payloads are message
sets, so that valid messages lie everywhere.
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from consumerd.client.legacy_fetch import LegacyRecordSet, StartFault
from consumerd.client.legacy_starts import find_enclosing_message
from consumerd.errors import CorruptMessageError
from consumerd.wire.compression import Codec
from consumerd.wire.errorcodes import ErrorCode
from consumerd.wire.legacy.boundaries import starts_with_nothing
from consumerd.wire.legacy.messages import LegacyFetchResponse
from consumerd.wire.legacy.stored_message import ATTRIBUTES_AT, MAGIC_AT, encode_message
from consumerd.wire.pieces import Piece
from consumerd.wire.records import Limits
from tests.support import virtual_time
from tests.support.legacy_frames import PARTITION

MOST = 1 << 20
Identity = tuple[int, int, bytes]


def store(messages: bytes, codec: int) -> bytes:
    """Return a compressed message in which the messages lie as they are."""
    if codec == Codec.GZIP:
        return encode_message(gzip.compress(messages, compresslevel=0), codec=codec)
    size, head = len(messages), bytearray()
    while size >= 0x80:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    head.append(size)
    literal = struct.pack("<BH", 61 << 2, len(messages) - 1) + messages if messages else b""
    return encode_message(bytes(head) + literal, codec=codec)


@st.composite
def messages(draw: st.DrawFn, depth: int = 2) -> tuple[bytes, list[bytes]]:
    """Draw one message, and the values of its records."""
    kind = draw(st.sampled_from(["plain", "gzip", "snappy", "payload", "zeros"] if depth else ["plain"]))
    if kind in ("gzip", "snappy"):
        inner = draw(st.lists(messages(depth - 1), min_size=1, max_size=4))
        packed = store(b"".join(one for one, _ in inner), Codec.GZIP if kind == "gzip" else Codec.SNAPPY)
        return packed, [value for _, values in inner for value in values]
    if kind == "payload":
        value = b"".join(one for one, _ in draw(st.lists(messages(0), min_size=1, max_size=3)))
    elif kind == "zeros":
        value = draw(st.binary(max_size=9)) + struct.pack(">i", 5) + bytes(draw(st.integers(0, 20)))
    else:
        value = draw(st.binary(max_size=30))
    return encode_message(value, magic=draw(st.integers(0, 1))), [value]


LOGS = st.lists(messages(), min_size=1, max_size=6)


class Log:
    """A log in memory, as :class:`consumerd.client.legacy_starts.LogReader`."""

    def __init__(self, data: bytes, first: int) -> None:
        self.data = data
        self.first = first

    async def fetch(self, offset: int, size: int) -> LegacyFetchResponse:
        """Return the bytes from an offset on."""
        if offset < self.first:
            return LegacyFetchResponse(error_code=ErrorCode.OFFSET_OUT_OF_RANGE)
        return LegacyFetchResponse(messages=self.data[offset - self.first :][:size])

    async def find_earliest(self) -> int:
        """Return the first offset."""
        return self.first


def read_skipping(log: Log, position: int, asked: int) -> Iterator[Identity]:
    """Yield what is delivered from a position on, with damage skipped; ends at an end that is not proved."""
    end = log.first + len(log.data)
    is_checked = False
    while position < end:
        data = log.data[position - log.first :][:asked]
        fault = None
        if not is_checked:
            is_end = len(data) < asked
            enclosing = virtual_time.run(find_enclosing_message(log, position, data, most_bytes=MOST, is_end=is_end))
            if enclosing is not None:
                fault = StartFault("inside", enclosing)
            elif starts_with_nothing(data, is_end=is_end):
                fault = StartFault("nothing", None)
        is_checked = fault is None
        records = LegacyRecordSet(data, start=position, asked_bytes=asked, most_bytes=MOST, fault=fault)
        pieces = records.cut(slice_bytes=1 << 20, expansion=None)
        if not pieces and records.first_unit_bytes() != 0:
            # cut off: the next fetch is larger
            if asked >= MOST:
                return
            asked *= 4
            continue
        piece = pieces[0] if pieces else Piece(0, len(data), position, compressed=False)
        try:
            batch = records.decode(piece, partition=PARTITION, start=position, limits=Limits())
        except CorruptMessageError as error:
            if error.next_offset is not None:
                position = max(error.next_offset, position + 1)
            elif asked < MOST:
                asked *= 4
            else:
                return
            continue
        for record in batch.records():
            yield record.offset, record.index, bytes(record.value or b"")
        position = batch.next_offset


@settings(max_examples=400, deadline=None)
@given(drawn=LOGS, first=st.sampled_from([0, 7, 1 << 40]), data=st.data())
def test_delivered_records_are_a_subset_of_the_true_ones(
    drawn: list[tuple[bytes, list[bytes]]], first: int, data: st.DataObject
) -> None:
    """The aim: nothing under another identity, nothing invented, and a subset only."""
    log = bytearray()
    codecs: set[int] = set()
    true: set[Identity] = set()
    for message, values in drawn:
        true |= {(first + len(log), index, value) for index, value in enumerate(values)}
        codecs |= {len(log) + ATTRIBUTES_AT} if message[MAGIC_AT] else set()
        log += message
    if data.draw(st.booleans(), label="is damaged"):
        # no checksum covers the codec, and any bytes are an uncompressed payload
        at = data.draw(st.integers(0, len(log) - 1).filter(lambda at: at not in codecs))
        log[at] = data.draw(st.integers(0, 255))
    position = first + data.draw(st.integers(0, len(log) - 1)) * data.draw(st.integers(0, 1))
    asked = data.draw(st.sampled_from([40, 300, 10_000]))

    found = list(read_skipping(Log(bytes(log), first), position, asked))

    assert len(found) == len(set(found))
    assert set(found) <= true
