# SPDX-License-Identifier: Apache-2.0
"""Record sets that producers send: what the Java producers have written for the same records, and what cannot be written."""

from __future__ import annotations

import struct

import pytest

from consumerd.errors import LocalProtocolError
from consumerd.wire.apikeys import ApiKey
from consumerd.wire.compression import Codec, decompress
from consumerd.wire.modern.building import NO_HEADERS, build_batch, build_record_set
from consumerd.wire.modern.produce import ACKS_ALL, ACKS_LEADER, ACKS_NONE, ProduceRequest
from consumerd.wire.records import Limits, NewRecord
from consumerd.wire.schema import compile_codec
from tests.support import naive_records
from tests.support.frames import RecordedFrame, load_frames, split_request
from tests.support.record_sets import RecordSpec, batch, message, wrapper
from tests.support.units import walk_units

LIMITS = Limits()
BATCH_HEAD_BYTES = 61
PRODUCER_AT = 43
"""Position in a batch of producer id, producer epoch and base sequence."""
TRANSACTIONAL = 0x10
RECORDS = [
    NewRecord(key=b"key", value=b"value", timestamp=1000),
    NewRecord(key=None, value=b"", timestamp=1007),
    NewRecord(key=b"", value=None, timestamp=990),
    NewRecord(key=b"k" * 70, value=b"v" * 9000, timestamp=1001),
]
ALL = [(magic, codec) for magic in (0, 1, 2) for codec in Codec if magic == 2 or codec is not Codec.ZSTD]
PRODUCED = [frame for frame in load_frames() if frame.api is ApiKey.PRODUCE and frame.release != "0.9.0.1"]
"""The producer of 0.9 writes offset 0 everywhere, which brokers overwrite."""


def decoded(data: bytes) -> list[naive_records.Row]:
    """Return what the naive decoder reads."""
    found = naive_records.decode(data, 0, LIMITS)
    assert not found.faulty
    return found.rows


@pytest.mark.parametrize(("magic", "codec"), ALL)
def test_records_come_back(magic: int, codec: Codec) -> None:
    """By a decoder that shares nothing with the builder but the codecs."""
    found = decoded(build_record_set(RECORDS, magic=magic, codec=codec, base_offset=70))

    assert [(70 + row, one.key, one.value) for row, one in enumerate(RECORDS)] == [(row[0], *row[3:5]) for row in found]
    if magic:
        assert [(one.timestamp, 0) for one in RECORDS] == [(row[1], row[2]) for row in found]


@pytest.mark.parametrize("codec", Codec)
def test_headers_come_back(codec: Codec) -> None:
    """Null values and names of more than ASCII among them."""
    headers = (("name", b"value"), ("größe", None), ("", b""))

    found = decoded(build_record_set([NewRecord(value=b"v", headers=headers)] * 2, magic=2, codec=codec))

    assert [headers, headers] == [row[5] for row in found]


@pytest.mark.parametrize("codec", Codec)
def test_a_batch_names_its_producer(codec: Codec) -> None:
    """Brokers tell duplicates and gaps by these fields, and aborted records by the flag."""
    data = build_record_set(RECORDS, magic=2, codec=codec, producer=(1 << 40, 7, 2147483647), transactional=True)

    assert (1 << 40, 7, 2147483647) == struct.unpack_from(">qhi", data, PRODUCER_AT)
    assert codec | TRANSACTIONAL == struct.unpack_from(">h", data, 21)[0]
    assert decoded(data) == decoded(build_record_set(RECORDS, magic=2, codec=codec))


@pytest.mark.parametrize("magic", [0, 1])
def test_a_producer_id_needs_a_batch(magic: int) -> None:
    """Older formats have no place for it: written without, duplicates would not be noticed."""
    with pytest.raises(LocalProtocolError, match="producer id"):
        build_record_set(RECORDS, magic=magic, producer=(1, 0, 0))


@pytest.mark.parametrize("frame", PRODUCED, ids=str)
def test_java_producers_write_the_same(frame: RecordedFrame) -> None:
    """Byte for byte; of what is compressed, all but the compressed bytes and what depends on them."""
    _, body = split_request(frame)
    request = compile_codec(ProduceRequest, frame.version).decode(body)
    for topic in request.topics:
        for one in topic.partitions:
            sent = bytes(one.record_set or b"")
            rows = decoded(sent)
            records = [NewRecord(key=row[3], value=row[4], timestamp=row[1], headers=row[5]) for row in rows]
            magic = sent[16]
            codec = sent[22 if magic == 2 else 17] & 7
            of_producer = {}
            if magic == 2:
                producer = struct.unpack_from(">qhi", sent, PRODUCER_AT)
                of_producer = {"producer": producer, "transactional": bool(sent[22] & TRANSACTIONAL)}
            built = build_record_set(records, magic=magic, codec=codec, **of_producer)
            assert unpacked(sent) == unpacked(built)
            assert codec or sent == built


def unpacked(data: bytes) -> tuple[bytes, bytes]:
    """Return what frames the compressed bytes, without lengths and checksums, and what these hold."""
    magic = data[16]
    if magic == 2:
        codec = data[22] & 7
        frame = data[:8] + data[12:17] + data[21:BATCH_HEAD_BYTES]
        return frame, decompress(codec, data[BATCH_HEAD_BYTES:], limit=1 << 20, magic=2) if codec else b""
    codec = data[17] & 7
    value_at = 30 if magic else 22
    inner = decompress(codec, data[value_at + 4 :], limit=1 << 20, magic=magic) if codec else b""
    return data[:8] + data[16:value_at], inner


def test_java_has_written_every_magic_and_codec() -> None:
    """Else the test above would not say what it says."""
    written = {
        (frame.version, frame.asked_by.rpartition(", ")[2]) for frame in PRODUCED if not frame.note and frame.response
    }

    assert {(version, codec) for version in (0, 2, 3) for codec in ("none", "gzip", "snappy", "lz4")} <= written


@pytest.mark.parametrize("magic", [0, 1])
def test_messages_are_those_of_the_slow_builder(magic: int) -> None:
    """Plain ones, and the inner offsets and the timestamp of a wrapper."""
    plain = b"".join(
        message(40 + row, one.value, key=one.key, magic=magic, timestamp=one.timestamp)
        for row, one in enumerate(RECORDS)
    )
    first = 0 if magic else 40
    inner = b"".join(
        message(first + row, one.value, key=one.key, magic=magic, timestamp=one.timestamp)
        for row, one in enumerate(RECORDS)
    )

    assert plain == build_record_set(RECORDS, magic=magic, base_offset=40)
    built = build_record_set(RECORDS, magic=magic, codec=Codec.GZIP, base_offset=40)
    assert unpacked(wrapper(43, inner, Codec.GZIP, magic=magic, timestamp=1007)) == unpacked(built)


def test_a_batch_is_that_of_the_slow_builder() -> None:
    """But for the leader's epoch, which a producer does not know."""
    specs = [
        RecordSpec(delta=row, key=one.key, value=one.value, timestamp_delta=one.timestamp - 1000)
        for row, one in enumerate(RECORDS)
    ]
    expected = batch(7, specs, base_timestamp=1000, max_timestamp=1007)

    built = build_record_set(RECORDS, magic=2, base_offset=7)

    assert expected == built[:12] + struct.pack(">i", 0) + built[16:]
    assert (-1,) == struct.unpack_from(">i", built, 12)


def test_no_records_are_no_bytes() -> None:
    """A wrapper or a batch of nothing would be refused."""
    assert {b""} == {build_record_set([], magic=magic, codec=codec) for magic, codec in ALL}


@pytest.mark.parametrize(
    ("records", "magic", "codec", "match"),
    [
        (RECORDS, 3, 0, "magic 3"),
        (RECORDS, 1, Codec.ZSTD, "codec 4 .ZSTD. does not exist in magic 1"),
        (RECORDS, 2, 6, "codec 6 does not exist"),
        ([NewRecord(value=b"", headers=(("h", b""),))], 1, 0, "headers cannot be written in magic 1"),
        ([NewRecord(value=b"", timestamp=1 << 63)], 1, 0, "message of magic 1"),
        ([NewRecord(value=b"", timestamp=1 << 63)], 2, 0, "batch of 1 records"),
    ],
)
def test_what_cannot_be_written_is_refused(records: list[NewRecord], magic: int, codec: int, match: str) -> None:
    """By the caller's error, before anything is sent."""
    with pytest.raises(LocalProtocolError, match=match):
        build_record_set(records, magic=magic, codec=codec)


def test_a_timestamp_is_not_kept_in_magic_0() -> None:
    """It has no place for one."""
    assert [-1] == [row[1] for row in decoded(build_record_set(RECORDS[:1], magic=0))]


def test_a_compacted_batch_keeps_the_end_that_it_had() -> None:
    """So that what follows it still follows; also when none of its records is left."""
    kept = build_batch([(12, 5, b"k", b"v", NO_HEADERS)], base_offset=10, last_offset=19, producer=(7, 1, 3))
    emptied = build_batch([], base_offset=20, last_offset=29)

    assert [(10, 19, 1), (20, 29, 0)] == [
        (unit.base_offset, unit.last_offset, unit.count) for unit in walk_units(kept + emptied)
    ]
    assert [(12, b"k", b"v")] == [(row[0], row[3], row[4]) for row in decoded(kept + emptied)]
    assert (7, 1, 3) == struct.unpack_from(">qhi", kept, 43)


def test_a_producer_that_wants_no_acknowledgement_gets_no_answer() -> None:
    """Else its session would wait for the answer of its next request with this one's id."""
    assert [False, True, True] == [
        ProduceRequest(acks=acks, timeout_ms=0, topics=()).expects_response
        for acks in (ACKS_NONE, ACKS_LEADER, ACKS_ALL)
    ]
