# SPDX-License-Identifier: Apache-2.0
"""The kernel's record batches: CRC-32C against the reference, room for any number of rows, and any arguments."""

from __future__ import annotations

import random
import sys
from array import array

import pytest

from consumerd.model import TopicPartition
from consumerd.wire import kernel
from consumerd.wire.checksum import crc32c_reference
from consumerd.wire.columns import ColumnBuilder, Segment
from consumerd.wire.modern.record_batch import HEADER_BYTES
from consumerd.wire.modern.record_set import decode_record_set
from tests.support.record_sets import RecordSpec, batch, message, record, wrapper

pytestmark = pytest.mark.skipif(kernel.records is None, reason="there is no kernel")

PARTITION = TopicPartition.modern("t", 0)
HEADERS = [(b"h", b"v")]


def native() -> kernel.RecordsKernel:
    assert kernel.records is not None
    return kernel.records


def plain(first: int, count: int = 3) -> bytes:
    return batch(first, [RecordSpec(delta=delta, value=b"v%d" % delta) for delta in range(count)])


def read_plain(data: bytes, columns: ColumnBuilder, at: int = 0, end: int | None = None) -> int:
    return native().read_batches(data, at, len(data) if end is None else end, 0, columns, True)


# -- CRC-32C


@pytest.mark.parametrize("offset", range(9))
def test_crc32c_is_the_references_for_every_length_and_alignment(offset: int) -> None:
    """Short, long and odd lengths take different ways, and so do both kinds of machine."""
    data = random.Random(offset).randbytes(560)

    for end in range(offset, len(data) + 1):
        expected = crc32c_reference(data[offset:end])
        assert expected == native().crc32c(data, offset, end)
        assert expected == native().crc32c_by_table(data[offset:end])


@pytest.mark.parametrize("size", [4079, 4080, 4081, 4584, 8160, 12_345, 70_000, 200_003])
def test_crc32c_of_much_is_the_references(size: int) -> None:
    """Where three stretches are summed side by side, in chunks of two sizes, with the interpreter's lock and without."""
    data = random.Random(size).randbytes(size)

    assert crc32c_reference(data) == native().crc32c(data) == native().crc32c_by_table(memoryview(data))


def test_crc32c_of_the_standards_example() -> None:
    """RFC 3720, B.4: 32 bytes of zeros, and of ones."""
    assert native().crc32c(bytes(32)) == 0x8A9136AA
    assert native().crc32c(b"\xff" * 32) == 0x62A8AB43


@pytest.mark.parametrize(("begin", "end"), [(-5, 4), (0, 99), (4, 2), (99, 100), (0, -1)])
def test_a_stretch_outside_the_data_is_clipped(begin: int, end: int) -> None:
    """Nothing beyond the buffer is ever read."""
    data = b"12345678"

    assert native().crc32c(data, begin, end) == crc32c_reference(data[max(begin, 0) : max(end, 0)])


# -- batches


def test_a_run_of_plain_batches_is_read_in_one_call() -> None:
    """As many calls as batches would cost more than reading them."""
    data = plain(5) + plain(8) + plain(11)
    columns = ColumnBuilder(data, PARTITION, 5)

    assert read_plain(data, columns) == len(data)
    assert list(columns.offsets) == list(range(5, 14))
    assert (14, 14, None, False) == (columns.position, columns.end, columns.unattested, columns.left_out)


def test_rows_below_the_position_are_left_out_and_told_of() -> None:
    """A batch is fetched as a whole, wherever in it the position is."""
    data = plain(5) + plain(8)
    columns = ColumnBuilder(data, PARTITION, 7)

    assert read_plain(data, columns) == len(data)
    assert list(columns.offsets) == list(range(7, 11))
    assert columns.begins_before(7)


@pytest.mark.parametrize(
    "odd",
    [
        batch(8, [RecordSpec(delta=0)], attributes=0x20),
        batch(8, [RecordSpec(delta=0)], codec=1),
        batch(8, [RecordSpec(delta=1)]),
        batch(8, [RecordSpec(delta=0)], last_delta=3),
        batch(8, [RecordSpec(delta=0)], count=2),
        batch(8, [RecordSpec(delta=0)], crc=1),
        batch(8, [], count=0, last_delta=0),
        batch(9, [RecordSpec(delta=0)]),
        batch(7, [RecordSpec(delta=0)]),
        batch(8, record(RecordSpec(delta=0)) + b"\0", count=1),
        batch(8, record(RecordSpec(delta=0))[:-1], count=1),
        batch(8, [RecordSpec(delta=0, timestamp_delta=1)], base_timestamp=(1 << 63) - 1),
        b"\0" * 100,
    ],
    ids=[
        *("control", "compressed", "hole", "hole at the end", "count", "checksum", "empty", "gap", "descends"),
        *("bytes left", "cut off", "timestamp", "zeros"),
    ],
)
def test_what_is_not_plain_is_left_alone_with_all_behind_it(odd: bytes) -> None:
    """It is for the Python reader; nothing of it may be in the columns."""
    good = plain(5)
    data = good + odd + plain(9)
    columns = ColumnBuilder(data, PARTITION, 5)

    assert read_plain(data, columns) == len(good)
    assert {3} == {len(columns.offsets), len(columns), len(columns.key_starts), len(columns.timestamp_types)}
    assert (8, 8) == (columns.position, columns.end)


def test_transactions_are_plain_only_where_nobody_asks_for_them() -> None:
    """Under read_committed it takes the list of aborted ones to tell."""
    data = batch(5, [RecordSpec(delta=0)], attributes=0x10, producer_id=1)
    columns = ColumnBuilder(data, PARTITION, 5)

    assert native().read_batches(data, 0, len(data), 0, columns, False) == 0
    assert native().read_batches(data, 0, len(data), 0, columns, True) == len(data)


@pytest.mark.parametrize(
    ("at", "end"), [(-1, 10), (-(1 << 40), 1 << 40), (10, 5), (1 << 40, 1 << 41), (0, 60), (0, -1)]
)
def test_places_outside_the_data_give_nothing(at: int, end: int) -> None:
    """Whoever calls it with a wrong place gets that place back, and no memory of others."""
    data = plain(5)
    columns = ColumnBuilder(data, PARTITION, 5)

    assert read_plain(data, columns, at, end) == at
    assert not len(columns)


def test_headers_may_begin_anywhere() -> None:
    """Their columns are made when the first record has some, and end with the last that has."""
    specs = [RecordSpec(delta=row, headers=HEADERS if row in (70, 71, 90) else ()) for row in range(100)]
    data = plain(0, 50) + batch(50, specs)
    decoded = decode_record_set(data, partition=PARTITION, start=0)

    assert [row for row, start in enumerate(decoded.header_starts) if start >= 0] == [120, 121, 140]
    assert len(decoded.header_starts) == len(decoded.header_ends) == 150


def test_headers_below_the_position_do_not_count() -> None:
    """A batch without any has no columns of headers, whatever came before it."""
    data = batch(0, [RecordSpec(delta=row, headers=HEADERS if row == 0 else ()) for row in range(9)])
    decoded = decode_record_set(data, partition=PARTITION, start=1)

    assert not decoded.header_starts
    assert len(decoded) == 8


# -- records


def read_records(data: bytes, count: int) -> tuple[ColumnBuilder, list[Segment], tuple[int, int, int, int]]:
    columns = ColumnBuilder(data, PARTITION, 0)
    segments: list[Segment] = []
    left = native().read_records(data, 0, len(data), count, 100, 7, columns, segments, 0, 0)
    return columns, segments, left


def test_holes_end_segments_as_many_as_there_are() -> None:
    """A compacted batch may have one before every record."""
    data = b"".join(record(RecordSpec(delta=2 * row, value=b"v")) for row in range(2000))
    columns, segments, (count, at, first, delta) = read_records(data, 2000)

    assert (2000, len(data), 3998, 3999) == (count, at, first, delta)
    assert segments == [(2 * row, 2 * row + 1) for row in range(1999)]
    assert len(columns) == len(columns.value_ends) == 2000


def test_headers_that_begin_behind_a_hole_end_its_segment_once() -> None:
    """Their columns are made in the middle of a record."""
    specs = [RecordSpec(delta=delta, headers=HEADERS if delta == 9 else ()) for delta in (0, 1, 9, 4)]
    _, segments, (_, _, first, delta) = read_records(b"".join(map(record, specs)), 4)

    assert ([(0, 2), (9, 10)], 4, 5) == (segments, first, delta)


def test_a_record_that_is_none_ends_the_reading() -> None:
    """What is wrong with it the Python reader says."""
    good = record(RecordSpec(delta=0, key=b"k", value=b"v"))
    columns, _, (count, at, _, delta) = read_records(good + b"\x01" + good, 3)

    assert (1, len(good), 1, 1) == (count, at, delta, len(columns))
    assert [105] == list(columns.key_starts)
    assert [7] == list(columns.timestamps)


@pytest.mark.parametrize("count", [0, -1, 1 << 40])
def test_no_more_room_is_made_than_there_are_bytes_for(count: int) -> None:
    """A count is what somebody wrote into a head."""
    _, _, (read, *_) = read_records(record(RecordSpec(delta=0)), count)

    assert read == (1 if count > 0 else 0)


# -- heads, columns


def test_heads_are_stepped_over_no_further_than_there_are_any() -> None:
    """An absurd size leads nowhere."""
    data = plain(0) + plain(3)
    one = len(plain(0))

    assert native().step_units(data, 0, 0.5, 1e9, 1.0, 4.0) == (len(data), one, 0.5 + 2 * (one - 12), 0)
    assert native().step_units(data, 0, 0.0, 1.0, 1.0, 4.0) == (one, 0, one - 12, 0)
    assert native().step_units(data[:-1], one, 0.0, 1e9, 1.0, 4.0) == (one, one, 0.0, 0)
    assert native().step_units(data, -7, 0.0, 1e9, 1.0, 4.0) == (-7, -7, 0.0, 0)
    assert native().step_messages(data, 0, 1 << 40) == (len(data), one)
    assert native().step_messages(data[:-1], 0, 1 << 40) == (one, 0)
    assert native().step_messages(b"\xff" * 40, 0, 1 << 40) == (0, 0)
    assert native().step_messages(data, -7, 1 << 40) == (-7, -7)


@pytest.mark.parametrize("codec", [1, 2, 3])
@pytest.mark.parametrize("magic", [0, 1, 2])
def test_compressed_units_weigh_what_they_say(codec: int, magic: int) -> None:
    """So that a piece of a set gives about as much as one that is not compressed."""
    block = message(0, bytes(5000), magic=min(magic, 1))
    one = wrapper(0, block, codec, magic=magic) if magic < 2 else batch(0, block, codec=codec, count=1)
    stop, last, weight, expanded = native().step_units(one + one, 0, 0.0, 1e9, 1.0, 1.0)
    said = 1 << 16 if codec == 3 else len(block)

    assert (2 * len(one), len(one), 2 * said, 2.0 * said) == (stop, last, expanded, weight)


def test_what_nobody_can_tell_the_size_of_is_stopped_at() -> None:
    """A codec that it does not know, and streams that are not sound."""
    for odd in (
        batch(0, [RecordSpec(delta=0)], codec=4),
        batch(0, [RecordSpec(delta=0)], codec=2, compressed=b""),
        batch(0, [RecordSpec(delta=0)], codec=3, compressed=b"\x04\x22\x4d\x18\x60\x40\x82\xff\xff\xff\x00"),
        wrapper(0, b"", 2, key=b"k" * 9, compressed=b""),
    ):
        assert native().step_units(plain(0) + odd, 0, 0.0, 1e9, 1.0, 4.0)[0] == len(plain(0))


def test_steps_are_appended() -> None:
    """Offsets, for one."""
    column = array("q", [1])
    native().extend_steps(column, 5, 3, 4)
    native().extend_steps(column, 5, 3, 0)

    assert list(column) == [1, 5, 8, 11, 14]
    column.append(2)
    assert column[-1] == 2


COLUMNS = (
    *("offsets", "timestamps", "timestamp_types", "key_starts", "key_ends", "value_starts", "value_ends"),
    *("header_starts", "header_ends"),
)


def lengths(columns: ColumnBuilder) -> list[int]:
    return [len(getattr(columns, name)) for name in COLUMNS]


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_that_somebody_looks_at_do_not_move(name: str) -> None:
    """As lists of numbers, and bytes, refuse it themselves: what is looked at would be foreign memory at once."""
    data = batch(0, [RecordSpec(delta=row, headers=HEADERS) for row in range(3)])
    columns = ColumnBuilder(data * 2, PARTITION, 0)
    read_plain(data, columns)
    before = lengths(columns)

    with memoryview(getattr(columns, name)):
        for read in (
            lambda: read_plain(batch(3, [RecordSpec(delta=0)]), columns),
            lambda: native().read_block(data, HEADER_BYTES, len(data), 0, columns, 3, 2, 3, 0, 0, False),
        ):
            with pytest.raises(BufferError):
                read()
            assert before == lengths(columns)
    assert read_plain(batch(3, [RecordSpec(delta=0)]), columns)


def test_a_column_that_somebody_looks_at_is_neither_stepped_on_nor_trimmed() -> None:
    """The same for what is appended to and cut to its size."""
    columns = ColumnBuilder(b"", PARTITION, 0)
    columns.offsets.extend(range(5000))
    with memoryview(columns.offsets) as view:
        with pytest.raises(BufferError):
            native().extend_steps(columns.offsets, 5000, 1, 100_000)
        native().trim(columns)
        assert list(range(5000)) == list(view)


@pytest.mark.parametrize("name", [name for name in COLUMNS if name != "timestamp_types"])
def test_columns_of_other_numbers_or_lengths_are_refused(name: str) -> None:
    """Rows would be written behind them, or beside each other."""
    data = plain(0)
    for odd in (array("i"), array("q", [1, 2])):
        columns = ColumnBuilder(data, PARTITION, 0)
        setattr(columns, name, odd)
        with pytest.raises(ValueError, match="one length"):
            read_plain(data, columns)
        assert len(odd) in (0, 2)
    with pytest.raises(ValueError, match="int64"):
        native().extend_steps(array("i"), 0, 1, 9)


def test_batches_smaller_than_a_head_are_none() -> None:
    """Every prefix of a batch is read as nothing."""
    data = plain(0)
    for end in range(len(data)):
        assert read_plain(data[:end], ColumnBuilder(data, PARTITION, 0)) == 0
    assert HEADER_BYTES < len(data)


@pytest.mark.parametrize("codec", [0, 2])
def test_columns_are_no_larger_than_their_rows(codec: int) -> None:
    """What a batch holds is what its size says, for that is what memory is reserved by."""
    specs = [RecordSpec(delta=row, headers=HEADERS) for row in range(1500)]
    data = b"".join(batch(1500 * number, specs, codec=codec) for number in range(3))
    decoded = decode_record_set(data, partition=PARTITION, start=700)

    for name in ("offsets", "timestamps", "key_starts", "key_ends", "value_starts", "value_ends", "header_ends"):
        column = getattr(decoded, name)
        assert len(column) == 3800
        assert 8 * 3800 == sys.getsizeof(column) - sys.getsizeof(array("q")), name
