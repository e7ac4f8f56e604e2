# SPDX-License-Identifier: Apache-2.0
"""Record batches of magic 2: records of all shapes, transactions, compaction, and what can be wrong."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Sequence

import pytest

from consumerd.errors import CorruptMessageError
from consumerd.model import Gap, GapReason, TimestampType, TopicPartition
from consumerd.wire.compression import Codec
from consumerd.wire.modern.extent import find_stop
from consumerd.wire.modern.fetch import AbortedTransaction
from consumerd.wire.modern.record_set import decode_record_set
from consumerd.wire.records import Limits, RecordBatch
from consumerd.wire.varint import encode_varint, read_varint, read_varlong
from tests.support.record_sets import (
    CONTROL,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    RecordSpec,
    batch,
    compress,
    marker,
    message,
    record,
    wrapper,
)

pytestmark = pytest.mark.usefixtures("each_path")

PARTITION = TopicPartition.modern("t", 0)


def decode(
    data: bytes,
    start: int = 0,
    *,
    limits: Limits | None = None,
    aborted: Sequence[tuple[int, int]] | None = None,
    read_committed: bool = False,
) -> RecordBatch:
    return decode_record_set(
        data,
        partition=PARTITION,
        start=start,
        limits=limits or Limits(),
        read_committed=read_committed,
        aborted=None if aborted is None else [AbortedTransaction(producer_id=p, first_offset=o) for p, o in aborted],
    )


def fault(data: bytes, start: int = 0, **settings: Limits) -> CorruptMessageError:
    with pytest.raises(CorruptMessageError) as caught:
        decode(data, start, **settings)
    return caught.value


def specs(count: int, value: bytes | None = b"value", key: bytes | None = None) -> list[RecordSpec]:
    return [RecordSpec(delta=row, value=value, key=key, timestamp_delta=row // 3) for row in range(count)]


# -- records


@pytest.mark.parametrize("codec", list(Codec))
def test_keys_values_headers_and_timestamps_come_out(codec: Codec) -> None:
    """Null, empty and present are three things, for keys, values and header values."""
    headers = ((b"a", b"1"), (b"", None), ("ü".encode(), b""))
    given = [
        RecordSpec(delta=0, value=b"v", key=b"k", timestamp_delta=5, headers=headers),
        RecordSpec(delta=1, value=None, key=b"", timestamp_delta=-7),
        RecordSpec(delta=2, value=b"", key=None, timestamp_delta=1 << 40),
        RecordSpec(delta=3, value=b"x" * 20000, key=b"y" * 9000),
    ]

    records = list(decode(batch(10, given, codec=codec, base_timestamp=1000), 10).records())

    assert [10, 11, 12, 13] == [one.offset for one in records]
    assert [1005, 993, 1000 + (1 << 40), 1000] == [one.timestamp for one in records]
    assert [b"k", b"", None, b"y" * 9000] == [one.key for one in records]
    assert [b"v", None, b"", b"x" * 20000] == [one.value for one in records]
    assert [(("a", b"1"), ("", None), ("ü", b"")), (), (), ()] == [one.headers for one in records]
    assert {TimestampType.CREATE_TIME} == {one.timestamp_type for one in records}


@pytest.mark.parametrize("count", [1, 5, 6, 63, 64, 65, 200])
@pytest.mark.parametrize("key", [None, b"", b"key", b"k" * 100])
@pytest.mark.parametrize("value", [None, b"", b"value", b"v" * 100])
@pytest.mark.parametrize("pace", [1, 3, 100], ids="one in {}ms".format)
def test_rows_of_one_layout_read_like_single_records(
    count: int, key: bytes | None, value: bytes | None, pace: int
) -> None:
    """The fast ways must give what the slow one gives, over every step in the size of a delta."""
    given = [RecordSpec(delta=row, value=value, key=key, timestamp_delta=row * 100 // pace) for row in range(count)]

    decoded = decode(batch(0, given))

    assert list(range(count)) == list(decoded.offsets)
    assert [row * 100 // pace for row in range(count)] == list(decoded.timestamps)
    assert [key] * count == decoded.keys()
    assert [value] * count == decoded.values()


@pytest.mark.parametrize("first", [0, 8190, 8192, 16380, (8192 << 7) - 10, (8192 << 7) + 5])
def test_offset_deltas_of_every_size_are_rows_too(first: int) -> None:
    """Deltas take one byte up to 63, two up to 8191, three up to 1048575."""
    given = [RecordSpec(delta=first + row, value=b"v" * (1 + row // 40)) for row in range(120)]

    decoded = decode(batch(0, given), first)

    assert [first + row for row in range(120)] == list(decoded.offsets)
    assert [one.value for one in given] == decoded.values()


@pytest.mark.parametrize("odd", [8, 20, 70, 100])
@pytest.mark.parametrize("change", ["size", "key", "null key", "headers", "hole", "timestamp", "early", "null value"])
def test_rows_end_where_a_record_differs(odd: int, change: str) -> None:
    """Whatever differs in one record of many, all of them come out."""
    given = [RecordSpec(delta=row, value=b"value", key=b"key", timestamp_delta=1) for row in range(150)]
    ahead = 2 if change == "hole" else 0
    given[odd:] = [
        RecordSpec(delta=row + ahead, value=b"value", key=b"key", timestamp_delta=1) for row in range(odd, 150)
    ]
    given[odd] = {
        "size": RecordSpec(delta=odd, value=b"longer value", key=b"key", timestamp_delta=1),
        "key": RecordSpec(delta=odd, value=b"valuek", key=b"ey", timestamp_delta=1),
        "null key": RecordSpec(delta=odd, value=b"valuekey", timestamp_delta=1),
        "headers": RecordSpec(delta=odd, value=b"value", key=b"key", timestamp_delta=1, headers=((b"h", b"v"),)),
        "hole": given[odd],
        "timestamp": RecordSpec(delta=odd, value=b"valu", key=b"key", timestamp_delta=64),
        "early": RecordSpec(delta=odd, value=b"value", key=b"key", timestamp_delta=-1),
        "null value": RecordSpec(delta=odd, value=None, key=b"key value", timestamp_delta=1),
    }[change]

    decoded = decode(batch(0, given))

    assert [one.delta for one in given] == list(decoded.offsets)
    assert [one.timestamp_delta for one in given] == list(decoded.timestamps)
    assert [one.key for one in given] == decoded.keys()
    assert [one.value for one in given] == decoded.values()
    assert [one.headers for one in given] == [
        tuple((name.encode(), value) for name, value in one.headers) for one in decoded.records()
    ]


@pytest.mark.parametrize("growth", [1, 37, 900, 9000])
def test_records_of_changing_size_and_time_are_read(growth: int) -> None:
    """No two neighbours alike: keys, values and timestamp deltas of one, two and three bytes."""
    given = [
        RecordSpec(
            delta=row,
            value=b"v" * (row * growth % 9001),
            key=b"k" * (row % 80) if row % 3 else None,
            timestamp_delta=row * row * growth % 20000 - 50,
        )
        for row in range(120)
    ]

    decoded = decode(batch(0, given))

    assert [one.value for one in given] == decoded.values()
    assert [one.key for one in given] == decoded.keys()
    assert [one.timestamp_delta for one in given] == list(decoded.timestamps)


@pytest.mark.parametrize("turn", [10, 30])
@pytest.mark.parametrize("steps", [(1, 70), (70, 1), (70, 9000), (9000, 70)])
def test_rows_end_where_timestamps_take_more_or_fewer_bytes(turn: int, steps: tuple[int, int]) -> None:
    """The lengths agree all the same: the value makes up for it."""
    sizes = [len(encode_varint(step)) for step in steps]
    given = [
        RecordSpec(delta=row, value=b"v" * (50 - sizes[row >= turn]), timestamp_delta=steps[row >= turn] + row % 2)
        for row in range(60)
    ]

    decoded = decode(batch(0, given))

    assert [one.timestamp_delta for one in given] == list(decoded.timestamps)
    assert [one.value for one in given] == decoded.values()


def test_log_append_time_is_the_batchs_for_all_records() -> None:
    """The broker writes the time of appending as max timestamp (KIP-98)."""
    decoded = decode(batch(0, specs(9), base_timestamp=5, max_timestamp=77, attributes=LOG_APPEND_TIME))

    assert [77] * 9 == list(decoded.timestamps)
    assert {TimestampType.LOG_APPEND_TIME} == {one.timestamp_type for one in decoded.records()}


# -- offsets


def test_compacted_batches_keep_their_range() -> None:
    """The cleaner removes records and leaves the header's offsets: every hole is a gap."""
    data = batch(10, [RecordSpec(delta=2, value=b"a"), RecordSpec(delta=5, value=b"b")], last_delta=8)
    data += batch(25, [RecordSpec(delta=0, value=b"c")])

    decoded = decode(data, start=10)

    assert [12, 15, 25] == list(decoded.offsets)
    assert (
        Gap(10, 12, GapReason.COMPACTION),
        Gap(13, 15, GapReason.COMPACTION),
        Gap(16, 25, GapReason.COMPACTION),
    ) == decoded.gaps
    assert 26 == decoded.next_offset


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_batches_emptied_by_compaction_are_progress(codec: Codec) -> None:
    """The cleaner keeps a producer's last batch for its sequence number, without records."""
    data = batch(3, b"", count=0, last_delta=4, codec=codec, compressed=b"")

    decoded = decode(data, start=5)

    assert (8, 0) == (decoded.next_offset, len(decoded))
    assert (Gap(5, 8, GapReason.COMPACTION),) == decoded.gaps


def test_records_below_the_position_are_dropped() -> None:
    """A batch is always sent as a whole; gaps below the position are nobody's."""
    given = [RecordSpec(delta=row, value=b"%d" % row, headers=((b"h", b"%d" % row),)) for row in (0, 3, 6, 9)]

    decoded = decode(batch(100, given), start=105)

    assert [106, 109] == list(decoded.offsets)
    assert [b"6", b"9"] == decoded.values()
    assert [(("h", b"6"),), (("h", b"9"),)] == [one.headers for one in decoded.records()]
    assert (Gap(105, 106, GapReason.COMPACTION), Gap(107, 109, GapReason.COMPACTION)) == decoded.gaps


def test_control_batches_below_the_position_are_nobodys() -> None:
    """A fetch from between two of them may give both."""
    decoded = decode(marker(0, 1, abort=False) + batch(1, specs(1)), start=1)

    assert ([1], ()) == (list(decoded.offsets), decoded.gaps)


def test_a_batch_below_the_position_is_no_progress() -> None:
    """The fetcher then asks for more, as with a message that is larger than the fetch."""
    decoded = decode(batch(0, specs(3)), start=7)

    assert (7, 0, ()) == (decoded.next_offset, len(decoded), decoded.gaps)
    assert b"" == decoded.buffer


# -- transactions


def test_control_batches_are_gaps_and_never_records() -> None:
    """Both isolation levels: they are the broker's, not the user's."""
    data = batch(0, specs(2), attributes=TRANSACTIONAL, producer_id=5) + marker(2, 5, abort=False) + batch(3, specs(1))

    for committed in (False, True):
        decoded = decode(data, read_committed=committed)
        assert [0, 1, 3] == list(decoded.offsets)
        assert (Gap(2, 3, GapReason.CONTROL),) == decoded.gaps


def test_aborted_transactions_are_left_out_under_read_committed_alone() -> None:
    """Two producers' transactions overlap, and the aborted one's producer goes on with another."""
    data = b"".join(
        [
            batch(0, specs(2, b"a"), attributes=TRANSACTIONAL, producer_id=1),
            batch(2, specs(1, b"b"), attributes=TRANSACTIONAL, producer_id=2),
            batch(3, specs(1, b"plain")),
            batch(4, specs(1, b"idempotent"), producer_id=1),
            marker(5, 2, abort=False),
            marker(6, 1, abort=True),
            batch(7, specs(1, b"c"), attributes=TRANSACTIONAL, producer_id=1),
            marker(8, 1, abort=False),
            batch(9, specs(1, b"d"), attributes=TRANSACTIONAL, producer_id=1),
            marker(10, 1, abort=True),
        ]
    )
    aborted = [(1, 9), (1, 0)]

    committed = decode(data, read_committed=True, aborted=aborted)

    assert [2, 3, 4, 7] == list(committed.offsets)
    assert (
        Gap(0, 2, GapReason.ABORTED),
        Gap(5, 7, GapReason.CONTROL),
        Gap(8, 9, GapReason.CONTROL),
        Gap(9, 10, GapReason.ABORTED),
        Gap(10, 11, GapReason.CONTROL),
    ) == committed.gaps
    assert [0, 1, 2, 3, 4, 7, 9] == list(decode(data, aborted=aborted).offsets)


def test_a_response_without_a_list_of_aborted_transactions_has_none() -> None:
    """The field is null below ``read_committed``, and when nothing was aborted."""
    data = batch(0, specs(2), attributes=TRANSACTIONAL, producer_id=1)

    assert [0, 1] == list(decode(data, read_committed=True, aborted=None).offsets)


def test_an_emptied_marker_ends_nothing() -> None:
    """Compaction removes the record of an old marker before its batch; nothing of the transaction is left then."""
    data = batch(0, b"", count=0, last_delta=0, attributes=TRANSACTIONAL | CONTROL, producer_id=1)

    decoded = decode(data, read_committed=True, aborted=[(1, 0)])

    assert (Gap(0, 1, GapReason.CONTROL),) == decoded.gaps


def test_a_control_record_without_a_type_is_corrupt() -> None:
    """Its key says whether it is an abort marker."""
    data = batch(0, [RecordSpec(delta=0, key=b"abc")], attributes=TRANSACTIONAL | CONTROL, producer_id=1)

    with pytest.raises(CorruptMessageError, match="a key of 3 bytes"):
        decode(data, read_committed=True, aborted=[(1, 0)])


# -- what is wrong

GOOD = record(RecordSpec(delta=0, value=b"inner"))
HEADED = encode_varint(14) + b"\0\0\0\1\1"


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (batch(0, specs(3), crc=5), "CRC-32C is"),
        (batch(0, specs(3), last_delta=-1), "up to offset delta -1"),
        (batch(0, specs(3), count=-1), "-1 records"),
        (batch(0, specs(3), count=4), "a number is cut off"),
        (batch(0, specs(3), count=2), "left behind 2 records"),
        (batch(0, specs(3), count=1 << 30), "records in"),
        (batch(0, specs(3), last_delta=1), "offset 2 in a unit that ends"),
        (batch(-5, specs(3)), "offset -5"),
        (batch(-5, b"", count=0, last_delta=9), "offset -5 where at least 0 is due"),
        (batch((1 << 63) - 2, specs(3)), "ends"),
        (batch((1 << 63) - 2, specs(3), attributes=CONTROL), "ends"),
        (batch(5, [RecordSpec(delta=-1, value=b"v")], last_delta=3), "offset delta -1"),
        (batch(0, [RecordSpec(delta=2), RecordSpec(delta=1)], last_delta=3), "offset 1 where at least 3 is due"),
        (batch(0, specs(3), codec=5, compressed=b"x"), "codec 5 does not exist in magic 2"),
        (batch(0, specs(3), codec=1, compressed=b"x"), "gzip"),
        (batch(0, [RecordSpec(delta=0, timestamp_delta=1)], base_timestamp=(1 << 63) - 1), "timestamp"),
        (batch(0, specs(30), base_timestamp=(1 << 63) - 3), "timestamp"),
        (batch(0, b"\x80" * 9, count=1), "no end"),
        (batch(0, b"\xff\xff\xff\xff\x7f" * 2, count=1), "more than 32 bits"),
        (batch(0, encode_varint(100) + GOOD[1:], count=1), "a record of 100 bytes"),
        (batch(0, encode_varint(-3) + GOOD[1:], count=1), "a record of -3 bytes"),
        (batch(0, encode_varint(0) + GOOD[1:], count=1), "a record of 0 bytes"),
        (
            batch(0, encode_varint(11) + b"\0\0\0" + encode_varint(50) + b"1234567", count=1),
            "a key or value of 50 bytes",
        ),
        (
            batch(0, encode_varint(11) + b"\0\0\0" + encode_varint(-2) + b"1234567", count=1),
            "a key or value of -2 bytes",
        ),
        (batch(0, encode_varint(9) + b"\0\0\0\1\1\0abc", count=1), "left behind the headers"),
        (batch(0, encode_varint(9) + b"\0\0\0\1\1\1abc", count=1), "-1 headers"),
        (batch(0, encode_varint(9) + b"\0\0\0\1\1\x12abc", count=1), "9 headers in 3 bytes"),
        (batch(0, encode_varint(9) + b"\0\0\0\1\1\2\1\1a", count=1), "without a key"),
        (batch(0, encode_varint(9) + b"\0\0\0\1\1\2\x12a\1", count=1), "a header of 9 bytes where 2 are left"),
    ],
)
def test_a_first_batch_that_cannot_be_read_is_an_error_with_its_coordinates(data: bytes, what: str) -> None:
    """Whatever is wrong inside, the batch is the unit."""
    base = max(0, struct.unpack_from(">q", data)[0])
    error = fault(data, start=base)

    assert what in str(error)
    assert PARTITION == error.partition
    assert base == error.offset
    assert data == error.raw
    assert "inner" not in str(error)


@pytest.mark.parametrize("first", [0, 100])
@pytest.mark.parametrize("place", [2, 3])
@pytest.mark.parametrize("odd", [8, 9, 20])
def test_a_timestamp_of_another_size_within_rows_is_noticed(first: int, place: int, odd: int) -> None:
    """Its delta says that it goes on, or ends, where those of its neighbours do not; all else is as theirs."""
    given = [bytearray(record(RecordSpec(delta=row, value=b"value", timestamp_delta=first))) for row in range(40)]
    given[odd][place] ^= 0x80

    assert fault(batch(0, b"".join(given), count=40))


def test_a_long_value_in_a_short_record_is_corrupt() -> None:
    """The record's own length says what there is."""
    good = record(RecordSpec(delta=0, value=b"value"))
    bad = encode_varint(20) + b"\0\0\2\1\x80\x80\1" + bytes(13)

    assert "key or value of" in str(fault(batch(0, good + bad, count=2)))


def test_faults_within_rows_are_found_by_the_slow_reader() -> None:
    """The fast ones stop before what they do not know, at any record of a row."""
    for odd in range(1, 40):
        given = [bytearray(record(RecordSpec(delta=row, value=b"value"))) for row in range(40)]
        given[odd][-1] = 2  # one header, which is not there
        error = fault(batch(0, b"".join(given), count=40))
        assert "headers" in str(error) or "cut off" in str(error)


def test_short_reads_at_the_end_of_the_data_are_corrupt() -> None:
    """The last record of the last batch claims a key that would reach beyond the fetched bytes."""
    good = record(RecordSpec(delta=0, value=b"value"))
    for bad in (b"\x14\0\0\2\x7e", b"\x14\0\0\2\1\x7e", b"\x14\0\x80\x80\x01\2\1\1\0", b"\x14"):
        padded = bad + b"\x7e" * (7 - len(bad))
        assert fault(batch(0, good + padded, count=2))


def test_a_later_batch_that_cannot_be_read_ends_the_batch_before_it() -> None:
    """Also when half of its records had been read, headers and all."""
    bad = batch(
        3, [RecordSpec(delta=0, value=b"x", headers=((b"h", b"v"),)), RecordSpec(delta=0, value=b"y")], last_delta=1
    )
    data = batch(0, [RecordSpec(delta=2, value=b"fine", headers=((b"h", b"w"),))]) + bad

    decoded = decode(data)

    assert [b"fine"] == decoded.values()
    assert 3 == decoded.next_offset
    assert 1 == len(decoded.header_starts)


# -- where to go on


def test_the_offset_behind_a_corrupt_batch_needs_two_witnesses() -> None:
    """Its checksum fails, so its own word is not enough: a wrong one would skip records that are fine."""
    compacted = batch(0, specs(3), last_delta=9, crc=1)

    assert 3 == fault(batch(0, specs(3), crc=1)).next_offset  # count and last delta agree
    assert None is fault(compacted).next_offset
    assert 10 == fault(compacted + batch(10, specs(1))).next_offset
    # where what follows can be read and is not where the head says, the head is wrong
    assert 5 == fault(compacted + batch(5, specs(1))).next_offset
    assert (
        5
        == fault(
            batch(0, specs(3), last_delta=2, crc=1)[:7] + b"\x09" + batch(0, specs(3), crc=1)[8:] + batch(5, specs(1))
        ).next_offset
    )
    assert None is fault(compacted + batch(5, specs(1), crc=1)[:-1]).next_offset
    assert None is fault(compacted + b"\0" * 12).next_offset
    assert None is fault(batch(0, specs(3), crc=1), start=50).next_offset


def test_the_offset_behind_a_corrupt_message_needs_two_witnesses() -> None:
    """No checksum covers an entry's offset."""
    bad = message(5, b"v")[:-1] + b"w"
    inner = message(0, b"inner")

    assert 6 == fault(bad, start=5).next_offset  # what was due
    assert None is fault(bad, start=3).next_offset
    assert 6 == fault(bad + message(6, b"v"), start=3).next_offset
    assert None is fault(wrapper(5, inner, 7, compressed=b"")[:-1] + b"\1", start=3).next_offset


def test_what_a_corrupt_batch_gave_is_let_go_of_before_it_is_looked_at_again() -> None:
    """With what was fetched behind it, it is decompressed once more: the error of the first time holds none of it."""
    size = 1 << 20
    damaged = bytearray(compress(Codec.SNAPPY, bytes(size)))
    damaged[-1:] = b"\xff"  # of the last of many blocks: nearly all of it has come out by then
    data = batch(0, b"", count=1, codec=Codec.SNAPPY, compressed=bytes(damaged))
    tracemalloc.start()
    try:
        with pytest.raises(CorruptMessageError, match="snappy"):
            decode_record_set(data, partition=PARTITION, start=0, limits=Limits(), following=data + batch(1, specs(1)))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 1.5 * size + 4 * len(data)


@pytest.mark.parametrize("size", [-1, 0, 13])
def test_a_size_that_no_message_has_is_corrupt(size: int) -> None:
    """A broker of 3.9 says -1 for a record set; a negative size must never be trusted."""
    error = fault(struct.pack(">qi", 3, size) + bytes(30), start=3)

    assert f"a message of {size} bytes" in str(error)
    assert (3, None) == (error.offset, error.next_offset)
    assert None is find_stop(struct.pack(">qi", 3, size) + bytes(30), 0)


@pytest.mark.parametrize(("magic", "size"), [(1, 21), (2, 48), (3, 100), (255, 100)])
def test_an_unknown_magic_and_sizes_too_small_for_theirs_are_corrupt(magic: int, size: int) -> None:
    """The operator must see that a newer format is in the log."""
    data = struct.pack(">qiib", 3, size, 0, magic - 256 if magic > 127 else magic) + bytes(200)

    assert f"magic {magic}" in str(fault(data))


def test_the_first_units_size_is_known_from_its_first_12_bytes() -> None:
    """What the fetcher must ask for when a message is larger than the fetch."""
    data = batch(0, specs(100))

    assert None is find_stop(data[:11], 0)
    assert len(data) == find_stop(data[:12], 0) == find_stop(memoryview(data), 0) == find_stop(data + data, 0)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_is_decoded(kind: type) -> None:
    """The network hands over views into its frames."""
    data = batch(0, specs(10))

    assert [b"value"] * 10 == decode(kind(data)).values()


@pytest.mark.parametrize("value", [0, -1, 1, 63, -64, 64, 8191, 8192, (1 << 31) - 1, -(1 << 31)])
def test_varints_come_back(value: int) -> None:
    """Each size of an int32."""
    encoded = encode_varint(value)

    assert (value, len(encoded)) == read_varint(encoded, 0, len(encoded))
    assert (value, len(encoded)) == read_varlong(encoded + b"x", 0, len(encoded))


@pytest.mark.parametrize("value", [(1 << 63) - 1, -(1 << 63)])
def test_varlongs_come_back(value: int) -> None:
    """Ten bytes at most."""
    assert (value, 10) == read_varlong(encode_varint(value), 0, 10)
    with pytest.raises(CorruptMessageError, match="64 bits"):
        read_varlong(b"\xff" * 9 + b"\x7f", 0, 10)
