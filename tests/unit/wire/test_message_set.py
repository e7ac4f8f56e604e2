# SPDX-License-Identifier: Apache-2.0
"""Message sets of magic 0 and 1: layouts, wrappers, and every way in which they can be wrong."""

from __future__ import annotations

import struct

import pytest

from consumerd.errors import CorruptMessageError
from consumerd.model import Gap, GapReason, TimestampType, TopicPartition
from consumerd.wire.compression import Codec
from consumerd.wire.modern import message_reader
from consumerd.wire.modern.record_set import decode_record_set
from consumerd.wire.records import Limits, RecordBatch
from tests.support.record_sets import LOG_APPEND_TIME, break_lz4_header, compress, message, wrapper

pytestmark = pytest.mark.usefixtures("each_path")

PARTITION = TopicPartition.modern("t", 0)
BOTH = pytest.mark.parametrize("magic", [0, 1])


def decode(data: bytes, start: int = 0, limits: Limits | None = None) -> RecordBatch:
    return decode_record_set(data, partition=PARTITION, start=start, limits=limits or Limits())


def fault(data: bytes, start: int = 0, limits: Limits | None = None) -> CorruptMessageError:
    with pytest.raises(CorruptMessageError) as caught:
        decode(data, start, limits)
    return caught.value


def offsets(batch: RecordBatch) -> list[int]:
    return list(batch.offsets)


# -- plain messages


@BOTH
@pytest.mark.parametrize("key", [None, b"", b"key"])
@pytest.mark.parametrize("value", [None, b"", b"value"])
def test_null_empty_and_present_keys_and_values_are_told_apart(
    magic: int, key: bytes | None, value: bytes | None
) -> None:
    """A null value is a tombstone, an empty one is not."""
    (record,) = decode(message(7, value, key=key, magic=magic, timestamp=5), start=7).records()

    assert (7, key, value) == (record.offset, record.key, record.value)
    assert (5 if magic else -1) == record.timestamp
    assert (TimestampType.CREATE_TIME if magic else TimestampType.NONE) is record.timestamp_type


def test_a_set_without_timestamps_has_no_column_of_types() -> None:
    """Sinks leave the column out of their work when it is empty."""
    assert b"" == decode(message(0, b"v", magic=0)).timestamp_types
    assert b"\x01" == decode(message(0, b"v", magic=1)).timestamp_types


def test_log_append_time_is_a_property_of_each_message() -> None:
    """A topic's setting may change between two messages."""
    data = message(0, b"a", timestamp=1) + message(1, b"b", timestamp=2, attributes=LOG_APPEND_TIME)

    assert [TimestampType.CREATE_TIME, TimestampType.LOG_APPEND_TIME] == [
        record.timestamp_type for record in decode(data).records()
    ]


@BOTH
@pytest.mark.parametrize("key", [None, b"key"])
@pytest.mark.parametrize("value", [None, b"v" * 40])
@pytest.mark.parametrize("count", [5, 40, 700])
def test_rows_of_one_layout_read_like_single_messages(
    magic: int, key: bytes | None, value: bytes | None, count: int
) -> None:
    """The fast way must give what the slow one gives; offsets here cross 2**16, timestamps go up and down."""
    start = (1 << 16) - 100
    data = b"".join(message(start + row, value, key=key, magic=magic, timestamp=1000 + row % 7) for row in range(count))

    records = list(decode(data, start).records())

    assert [start + row for row in range(count)] == [record.offset for record in records]
    assert [1000 + row % 7 if magic else -1 for row in range(count)] == [record.timestamp for record in records]
    assert {(key, value)} == {(record.key, record.value) for record in records}


@BOTH
@pytest.mark.parametrize("odd", [9, 70, 199])
@pytest.mark.parametrize("change", ["size", "key", "attributes", "hole", "magic"])
def test_rows_end_where_a_message_differs(magic: int, odd: int, change: str) -> None:
    """Whatever differs in one message of many, all of them come out."""
    messages = [message(row, b"value", key=b"key", magic=magic) for row in range(200)]
    ahead = 3 if change == "hole" else 0
    messages[odd:] = [message(row + ahead, b"value", key=b"key", magic=magic) for row in range(odd, 200)]
    messages[odd] = {
        "size": message(odd, b"longer value", key=b"key", magic=magic),
        "key": message(odd, b"valuek", key=b"ey", magic=magic),
        "attributes": message(odd, b"value", key=b"key", magic=magic, attributes=LOG_APPEND_TIME),
        "hole": messages[odd],
        "magic": message(odd, b"value", key=b"key", magic=1 - magic),
    }[change]

    batch = decode(b"".join(messages))

    assert [row if row < odd else row + ahead for row in range(200)] == offsets(batch)
    assert b"".join(messages).count(b"value") == sum(b"value" in (value or b"") for value in batch.values())
    assert (() if not ahead else (Gap(odd, odd + ahead, GapReason.COMPACTION),)) == batch.gaps


@BOTH
def test_messages_of_changing_size_are_read_one_by_one(magic: int) -> None:
    """Now and then two neighbours have the same size, and rows are tried in vain."""
    values = [b"v" * (row * row % 11) for row in range(500)]

    assert values == decode(b"".join(message(row, v, magic=magic) for row, v in enumerate(values))).values()


@BOTH
def test_every_damaged_byte_of_a_row_is_found(magic: int) -> None:
    """The checksums of many messages are verified in one pass: no message may hide behind another."""
    messages = [message(row, b"%08d" % row, magic=magic, timestamp=row) for row in range(24)]
    whole = b"".join(messages)
    size = len(messages[0])

    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 0x10
        row, within = divmod(place, size)
        try:
            read = offsets(decode(bytes(damaged)))
        except CorruptMessageError:
            read = []
        if within < 8:  # an offset is covered by no checksum; it must still ascend
            assert list(range(row)) == read[:row]
            assert sorted(set(read)) == read
        else:
            assert list(range(row)) == read


def test_the_same_damage_in_two_messages_does_not_cancel() -> None:
    """Differences of equal messages would cancel if their checksums were merely added up."""
    for other in range(2, 30):
        messages = [bytearray(message(row, b"v" * 50)) for row in range(30)]
        messages[1][40] ^= 1
        messages[other][40] ^= 1
        assert [0] == offsets(decode(b"".join(messages)))


def test_swapped_checksums_are_found() -> None:
    """Both are right, each for the other message."""
    messages = [bytearray(message(row, b"%02d" % row * 20)) for row in range(20)]
    messages[8][12:16], messages[9][12:16] = messages[9][12:16], messages[8][12:16]

    assert list(range(8)) == offsets(decode(b"".join(messages)))


def test_the_reset_bytes_bring_the_register_back_to_its_start() -> None:
    """What a batch of checksums rests on, for bodies of any kind."""
    for body in (b"", b"a", bytes(range(256))):
        checked = body + message_reader.crc32(body).to_bytes(4, "little")
        again = checked + bytes(8) + message_reader._RESET
        assert message_reader._RESIDUE == message_reader.crc32(checked)
        assert message_reader.crc32(b"next") == message_reader.crc32(b"next", message_reader.crc32(again))


@pytest.mark.parametrize("byteorder", ["little", "big"])
def test_timestamps_come_out_on_machines_of_either_byte_order(byteorder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The column is gathered in the wire's order, and turned around where the machine's is the other."""
    monkeypatch.setattr(message_reader.sys, "byteorder", byteorder)
    column = message_reader._int64_column(struct.pack(">qqq", 1, -2, 1 << 40), 0, 24, 8)

    expected = [1, -2, 1 << 40]
    if byteorder == "big":
        column.byteswap()
    assert expected == list(column)


# -- wrappers


@BOTH
@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4])
def test_wrappers_hold_absolute_offsets_in_magic_0_and_relative_ones_in_magic_1(magic: int, codec: Codec) -> None:
    """KIP-31: a broker of 0.10 sets the wrapper's offset alone."""
    inner = b"".join(message(row if magic else 100 + row, b"%d" % row, magic=magic) for row in range(5))

    batch = decode(wrapper(104, inner, codec, magic=magic), start=100)

    assert [100, 101, 102, 103, 104] == offsets(batch)
    assert 105 == batch.next_offset
    assert [b"0", b"1", b"2", b"3", b"4"] == batch.values()


def test_relative_offsets_count_from_any_base() -> None:
    """After a down-conversion, or from other producers, they need not begin at 0; compaction leaves holes."""
    inner = message(50, b"a") + message(53, b"b")

    batch = decode(wrapper(13, inner, Codec.GZIP), start=10)

    assert [10, 13] == offsets(batch)
    assert (Gap(11, 13, GapReason.COMPACTION),) == batch.gaps


def test_a_wrapper_of_magic_0_may_end_behind_its_last_message() -> None:
    """What lies between was compacted away."""
    batch = decode(wrapper(9, message(4, b"a", magic=0), Codec.GZIP, magic=0), start=4)

    assert [4] == offsets(batch)
    assert (Gap(5, 10, GapReason.COMPACTION),) == batch.gaps


def test_messages_below_the_position_are_dropped() -> None:
    """A compressed set is always sent as a whole (KAFKA-546)."""
    inner = b"".join(message(row, b"%d" % row) for row in range(10))

    batch = decode(wrapper(19, inner, Codec.SNAPPY), start=17)

    assert [17, 18, 19] == offsets(batch)
    assert [b"7", b"8", b"9"] == batch.values()
    assert () == batch.gaps


def test_the_wrappers_log_append_time_holds_for_its_messages() -> None:
    """KIP-32: the broker rewrites the wrapper's head and leaves what is inside."""
    inner = message(0, b"a", timestamp=1) + message(1, b"b", timestamp=2)
    appended = wrapper(1, inner, Codec.GZIP, timestamp=99, attributes=LOG_APPEND_TIME)
    created = wrapper(1, inner, Codec.GZIP, timestamp=99)

    assert [(99, TimestampType.LOG_APPEND_TIME)] * 2 == [
        (record.timestamp, record.timestamp_type) for record in decode(appended).records()
    ]
    assert [(1, TimestampType.CREATE_TIME), (2, TimestampType.CREATE_TIME)] == [
        (record.timestamp, record.timestamp_type) for record in decode(created).records()
    ]


@BOTH
def test_wrappers_in_wrappers_are_read_to_the_limit(magic: int) -> None:
    """0.8's documents allow it, whoever writes it; a bomb of wrappers must end somewhere."""
    data = message(0, b"a", magic=magic) + message(1, b"b", magic=magic)
    for _ in range(3):
        data = wrapper(1, data, Codec.GZIP, magic=magic)

    assert [b"a", b"b"] == decode(data).values()
    assert "more than 2 deep" in str(fault(data, limits=Limits(nesting=2)))


def test_a_wrapper_beside_messages_in_a_wrapper() -> None:
    """Offsets are relative to the innermost wrapper, whose own is relative to the next."""
    inner = wrapper(2, message(0, b"b") + message(1, b"c"), Codec.GZIP)
    data = wrapper(103, message(0, b"a") + inner + message(3, b"d"), Codec.SNAPPY)

    batch = decode(data, start=100)

    assert [100, 101, 102, 103] == offsets(batch)
    assert [b"a", b"b", b"c", b"d"] == batch.values()


def test_a_key_on_a_wrapper_is_ignored() -> None:
    """Compacted topics of 0.8 had keys there."""
    assert [b"a"] == decode(wrapper(0, message(0, b"a"), Codec.GZIP, key=b"key")).values()


def test_the_broken_lz4_frames_of_magic_0_are_read() -> None:
    """KAFKA-3160, through the whole decoder."""
    inner = message(0, b"a", magic=0)
    data = wrapper(0, inner, Codec.LZ4, magic=0, compressed=break_lz4_header(compress(Codec.LZ4, inner)))

    assert [b"a"] == decode(data).values()


def test_plain_and_compressed_messages_share_one_buffer() -> None:
    """Producers with and without compression write to one partition."""
    data = message(0, b"plain") + wrapper(2, message(0, b"one") + message(1, b"two"), Codec.GZIP)
    data += message(3, b"again") + message(4, None) + wrapper(5, message(0, b"three"), Codec.LZ4) + message(6, b"last")

    batch = decode(data + data[:20])

    assert [b"plain", b"one", b"two", b"again", None, b"three", b"last"] == batch.values()
    assert list(range(7)) == offsets(batch)


def test_an_uncompressed_set_is_not_copied() -> None:
    """Spans point into the fetched bytes themselves."""
    data = message(0, b"a") + message(1, b"b")

    assert decode(data).buffer is data


# -- what is wrong


INNER = message(0, b"inner")


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (message(0, b"v")[:-1] + b"w", "CRC-32 is"),
        (message(0, b"", body=struct.pack(">ii", 5, 0)), "a key of 5 bytes"),
        (message(0, b"", body=struct.pack(">ii", -2, 0)), "a key of -2 bytes"),
        (message(0, b"", body=struct.pack(">ii", 0, -2)), "a value of -2 bytes"),
        (message(0, b"", body=struct.pack(">ii", -1, 7)), "a value of 7 bytes"),
        (message(0, b"", body=struct.pack(">ii", -1, 0) + b"x"), "a value of 0 bytes"),
        (message(-1, b"v"), "offset -1 where at least 0 is due"),
        (wrapper(0, INNER, 1)[:-1] + b"w", "CRC-32 is"),
        (message(0, None, attributes=1), "a value of -1 bytes"),
        (message(0, b"", attributes=1, body=struct.pack(">ii", 5, 0)), "a key of 5 bytes in a wrapper"),
        (message(0, b"", attributes=1, body=struct.pack(">ii", -2, 0)), "a key of -2 bytes in a wrapper"),
        (wrapper(0, b"", 1), "without messages"),
        (wrapper(0, INNER[:-1], 1), "in the middle of a message"),
        (wrapper(0, INNER[:5], 1), "in the middle of a message"),
        (wrapper(0, INNER + INNER, 1), "offset 0 where at least 1 is due"),
        (wrapper(0, INNER[:-1] + b"x", 1), "CRC-32 is"),
        (wrapper(0, INNER[:16] + b"\2" + INNER[17:], 1), "magic 2 is unknown"),
        (wrapper(0, message(0, b"a") + message(5, b"b"), 1), "offset -5"),
        (wrapper(0, wrapper(0, INNER[:-1], 1), 2), "in the middle of a message"),
        (wrapper(0, INNER, 5, compressed=b"x"), "codec 5 does not exist"),
        (wrapper(0, INNER, 4), "codec 4 .ZSTD. does not exist in magic 1"),
        (wrapper(0, INNER, 1, compressed=b"x"), "gzip"),
        (wrapper((1 << 63) - 1, INNER, 1), "offset"),
        (message((1 << 63) - 1, b""), "offset"),
    ],
)
def test_a_first_message_that_cannot_be_read_is_an_error_with_its_coordinates(data: bytes, what: str) -> None:
    """Quarantine needs where it was, what it was, and where to go on."""
    error = fault(data)

    assert what.replace(".ZSTD.", "(ZSTD)") in str(error)
    assert PARTITION == error.partition
    assert error.offset is not None
    assert data == error.raw
    assert "inner" not in str(error)


@pytest.mark.parametrize(
    "second",
    [
        message(1, b"v")[:-1] + b"w",
        message(0, b"v"),
        wrapper(1, INNER, 1)[:-1] + b"w",
        wrapper(1, message(0, b"a") + message(5, b"b"), 1),
        wrapper(1, INNER + INNER[:-1], 2),
        message(1, b"v", magic=0)[:-1] + b"w",
        struct.pack(">qi", 1, 3),
    ],
)
def test_a_later_message_that_cannot_be_read_ends_the_batch_before_it(second: bytes) -> None:
    """What is fine is delivered first; the next fetch begins at the fault and reports it."""
    batch = decode(message(0, b"fine") + second + message(9, b"after"))

    assert [b"fine"] == batch.values()
    assert 1 == batch.next_offset


def test_a_fault_behind_messages_below_the_position_is_reported() -> None:
    """Nothing before it brings the position forward, so that it would be met for ever."""
    error = fault(message(0, b"old") + message(1, b"v")[:-1] + b"w", start=1)

    assert 1 == error.offset
    assert 2 == error.next_offset


def test_the_output_limit_counts_all_sets_of_a_fetch() -> None:
    """A fetch of many small bombs is one large one; what fits is delivered."""
    inner = [message(0, bytes(1000)), message(0, bytes(1001))]
    data = wrapper(0, inner[0], 1) + wrapper(1, inner[1], 1)

    assert [0] == offsets(decode(data, limits=Limits(decompressed_bytes=2000)))
    assert [0, 1] == offsets(decode(data, limits=Limits(decompressed_bytes=3000)))
    assert "more than 500 bytes" in str(fault(data, limits=Limits(decompressed_bytes=500)))
