# SPDX-License-Identifier: Apache-2.0
"""Records of fetched batches in a producer's batch: the same records, new offsets, and as many as fit."""

from __future__ import annotations

from array import array
from dataclasses import replace

import pytest

from consumerd.errors import CorruptMessageError, LocalProtocolError
from consumerd.model import TopicPartition
from consumerd.wire.compression import Codec
from consumerd.wire.modern.building import NO_HEADERS, ProducerBatch, build_record_set, encode_headers
from consumerd.wire.modern.record_set import decode_record_set
from consumerd.wire.records import Limits, NewRecord, RecordBatch, check_headers
from tests.support import naive_records
from tests.support.record_batches import build_batch, record

pytestmark = pytest.mark.usefixtures("each_path")

PARTITION = TopicPartition.modern("clicks", 3)
LEAST, MOST = -(1 << 63), (1 << 63) - 1
FORMATS = [(magic, codec) for magic in (0, 1, 2) for codec in Codec if magic == 2 or codec is not Codec.ZSTD]
RECORDS = [
    NewRecord(key=b"key", value=b"value", timestamp=1000),
    NewRecord(key=None, value=b"", timestamp=1007),
    NewRecord(key=b"", value=None, timestamp=990),
    NewRecord(key=b"k" * 70, value=b"v" * 9000, timestamp=-1),
]
HEADERS = (("name", b"value"), ("größe", None), ("", b""))
OWNER = (1 << 40, 7, 11)


def grow(*batches: RecordBatch, codec: Codec = Codec.NONE) -> bytes:
    """Return all records of the batches in one batch."""
    grown = ProducerBatch(codec=codec)
    for batch in batches:
        assert len(batch) == grown.add_columns(batch, 0, len(batch))
    return grown.seal(OWNER, transactional=True)


def cut(batch: RecordBatch, room: int) -> list[ProducerBatch]:
    """Return the records in batches of at most ``room`` bytes."""
    batches, row = [], 0
    while row < len(batch):
        batches.append(ProducerBatch())
        row = batches[-1].add_columns(batch, row, len(batch), room=room)
    return batches


def read(data: bytes) -> list[naive_records.Row]:
    """Return what a decoder reads that shares nothing with the encoder but the codecs."""
    found = naive_records.decode(data, 0, Limits())
    assert not found.faulty
    return found.rows


def sealed(batch: ProducerBatch) -> bytes:
    return batch.seal((-1, -1, -1), transactional=False)


@pytest.mark.parametrize(("magic", "codec"), FORMATS)
def test_records_of_every_format_are_the_same_with_new_offsets(magic: int, codec: Codec) -> None:
    """Null and empty keys and values, and times that go back."""
    source = decode_record_set(
        build_record_set(RECORDS, magic=magic, codec=codec, base_offset=70), partition=PARTITION, start=70
    )

    found = read(grow(source, codec=Codec.LZ4))

    times = [one.timestamp if magic else -1 for one in RECORDS]
    assert [(row, time, one.key, one.value) for row, (one, time) in enumerate(zip(RECORDS, times, strict=True))] == [
        (row[0], row[1], *row[3:5]) for row in found
    ]


@pytest.mark.parametrize("codec", Codec)
def test_many_records_are_read_back(codec: Codec) -> None:
    """Of more rows than Python encodes in a step, in all codecs."""
    rows = [record(number, b"v" * (number % 50), timestamp=number) for number in range(900)]

    found = read(grow(build_batch(PARTITION, rows), codec=codec))

    assert [(number, number, b"v" * (number % 50)) for number in range(900)] == [
        (row[0], row[1], row[4]) for row in found
    ]


def test_a_batch_is_what_a_producer_sends_for_the_same_records() -> None:
    """Byte for byte, from two sources, of which one has no headers."""
    records = [replace(one, headers=HEADERS if row == 1 else ()) for row, one in enumerate(RECORDS)]
    first, second = (
        decode_record_set(build_record_set(some, magic=2, base_offset=9), partition=PARTITION, start=9)
        for some in (records[:2], records[2:])
    )

    assert build_record_set(records, magic=2, producer=OWNER, transactional=True) == grow(first, second)


def test_gaps_and_broker_times_become_plain_records() -> None:
    """A compacted source whose broker sets the times: offsets follow each other, times stay, and their type is new."""
    rows = [record(5, b"a", timestamp=70), record(9, b"b", timestamp=71)]
    source = replace(build_batch(PARTITION, rows), timestamp_types=b"\2\2")

    expected = [NewRecord(value=b"a", timestamp=70), NewRecord(value=b"b", timestamp=71)]
    assert build_record_set(expected, magic=2, producer=OWNER, transactional=True) == grow(source)


def test_the_greatest_time_is_that_of_all_records() -> None:
    """Brokers find records by it. Here it is in the second part, and before 1970."""
    times = (-70, -90, -20, -30)
    source = build_batch(PARTITION, [record(row, timestamp=time) for row, time in enumerate(times)])
    grown = ProducerBatch()
    grown.add_columns(source, 0, 2)
    grown.add_columns(source, 2, 4)

    assert build_record_set([NewRecord(value=b"value", timestamp=time) for time in times], magic=2) == sealed(grown)


def test_some_rows_only() -> None:
    """A sink that has written the first ones goes on with the rest."""
    source = build_batch(PARTITION, [record(offset, b"%d" % offset) for offset in range(10)])
    grown = ProducerBatch()

    assert (6, 6) == (grown.add_columns(source, 3, 6), grown.add_columns(source, 6, 6))
    assert (3, [b"3", b"4", b"5"]) == (grown.count, [row[4] for row in read(sealed(grown))])


def test_timestamps_may_be_replaced() -> None:
    """Those of a source without any become the time of arrival."""
    grown = ProducerBatch()
    grown.add_columns(build_batch(PARTITION, [record(0), record(1)]), 0, 2, timestamps=array("q", [9, 4]))

    assert [9, 4] == [row[1] for row in read(sealed(grown))]


def test_records_may_fill_the_room_to_the_byte() -> None:
    """One byte less, and the last record is in another batch."""
    source = build_batch(PARTITION, [record(row, b"v" * 1000) for row in range(2)])
    whole = ProducerBatch()
    whole.add_columns(source, 0, 2)

    assert [2] == [one.count for one in cut(source, whole.size)]
    assert [1, 1] == [one.count for one in cut(source, whole.size - 1)]


def test_a_record_beyond_the_room_is_alone_in_its_batch() -> None:
    """The broker may refuse that one; its neighbours are not refused with it."""
    source = build_batch(PARTITION, [record(0), record(1), record(2, b"v" * 9000), record(3), record(4)])

    assert [(2, True), (1, False), (2, True)] == [(one.count, one.size <= 1000) for one in cut(source, 1000)]


def test_nothing_is_added_without_room() -> None:
    """The batch stays as it is, even where its limit has been passed."""
    source = build_batch(PARTITION, [record(0, timestamp=1), record(1, timestamp=2)])
    grown = ProducerBatch()
    grown.add_columns(source, 0, 1)
    before = sealed(grown)

    assert [1, 1] == [grown.add_columns(source, 1, 2, room=room) for room in (0, -5)]
    assert (1, before) == (grown.count, sealed(grown))


def test_times_too_far_apart_for_one_batch_are_in_two() -> None:
    """A batch has differences of times, and a hostile source any times."""
    times = [LEAST, 1, MOST, -1, LEAST, MOST]
    source = replace(build_batch(PARTITION, [record(row) for row in range(6)]), timestamps=array("q", times))

    batches = cut(source, 1 << 20)

    assert [1, 3, 1, 1] == [one.count for one in batches]
    assert [1, MOST, -1] == [row[1] for row in read(sealed(batches[1]))]


def test_a_time_too_far_away_does_not_fit_a_batch_that_has_records() -> None:
    """Its record is the first one of the next batch."""
    source = replace(build_batch(PARTITION, [record(0), record(1)]), timestamps=array("q", [LEAST, MOST]))
    grown = ProducerBatch()

    assert (1, 1) == (grown.add_columns(source, 0, 1), grown.add_columns(source, 1, 2))
    assert 1 == grown.count


def test_a_new_record_too_far_away_is_an_error() -> None:
    """Its caller has chosen the time."""
    grown = ProducerBatch()

    with pytest.raises(LocalProtocolError, match="from that of the batch's first record"):
        grown.add([(0, LEAST, None, b"", NO_HEADERS), (1, MOST, None, b"", NO_HEADERS)])
    assert 0 == grown.count


def test_headers_are_copied_as_they_are() -> None:
    """Null values, and names of more than ASCII among them."""
    rows = [record(0, headers=HEADERS), record(1)]

    assert encode_headers(HEADERS) in grow(build_batch(PARTITION, rows))


@pytest.mark.parametrize(("moved", "by"), [("header_starts", 1), ("header_ends", -1)])
def test_unreadable_headers_are_told(moved: str, by: int) -> None:
    """Copied as they are, they would make brokers refuse the whole batch."""
    source = build_batch(PARTITION, [record(offset, headers=HEADERS) for offset in range(40, 44)])
    check_headers(source)
    column = array("q", getattr(source, moved))
    column[2] += by

    with pytest.raises(CorruptMessageError, match="clicks/3: the headers of the record at offset 42") as raised:
        check_headers(replace(source, **{moved: column}))
    assert (PARTITION, 42, 43) == (raised.value.partition, raised.value.offset, raised.value.next_offset)
