# SPDX-License-Identifier: Apache-2.0
"""Record sets as a log takes them: what is wrong is found where it is, and offsets are written in place if they can be."""

from __future__ import annotations

import itertools
import struct

import pytest

from consumerd.errors import CorruptMessageError, DecompressedTooLarge
from consumerd.wire.compression import Codec
from consumerd.wire.modern.assigning import assign_offsets
from consumerd.wire.modern.building import build_record_set
from consumerd.wire.modern.checking import Rules, TimestampRefused, UnsupportedForFormat, check
from consumerd.wire.modern.message_row import measure_row, write_offsets
from consumerd.wire.records import Limits, NewRecord
from tests.support import naive_records
from tests.support.record_sets import RecordSpec, batch, message, wrapper
from tests.support.units import walk_units

pytestmark = pytest.mark.usefixtures("each_path")

ALL = [(magic, codec) for magic in (0, 1, 2) for codec in Codec if magic == 2 or codec is not Codec.ZSTD]
EVERY_CODEC = Rules(codecs=tuple(Codec))
RECORDS = [NewRecord(key=b"key", value=b"value %d" % number, timestamp=1000 - number) for number in range(5)]


def rows(data: bytes | bytearray) -> list[naive_records.Row]:
    found = naive_records.decode(bytes(data), 0, Limits())
    assert not found.faulty
    return found.rows


# -- units


def test_units_are_walked_by_their_heads() -> None:
    """Messages, a wrapper and a batch in one set, as after an upgrade of the format."""
    pieces = [
        message(7, b"v", magic=0),
        message(8, b"v", timestamp=5, attributes=8),
        wrapper(11, message(0, b"v") + message(2, b"w"), Codec.SNAPPY, timestamp=9),
        batch(12, [RecordSpec(delta=0), RecordSpec(delta=3)], codec=Codec.LZ4, max_timestamp=70),
    ]
    places = [sum(map(len, pieces[:number])) for number in range(5)]

    units = list(walk_units(b"".join(pieces) + pieces[0][:-1]))

    assert [(0, 7, 7, 1, 0, -1), (1, 8, 8, 1, 0, 5), (1, 11, 11, 1, 2, 9), (2, 12, 15, 2, 3, 70)] == [
        (one.magic, one.base_offset, one.last_offset, one.count, one.codec, one.max_timestamp) for one in units
    ]
    assert list(itertools.pairwise(places)) == [(one.at, one.end) for one in units]
    assert units[1:] == list(walk_units(b"".join(pieces), places[1]))


@pytest.mark.parametrize("data", [b"", b"\0" * 11, message(0, b"v")[:16]])
def test_a_unit_whose_head_is_not_whole_is_left_out(data: bytes) -> None:
    """More of it may come."""
    assert [] == list(walk_units(data))


def test_what_cannot_be_a_unit_is_named_with_its_place() -> None:
    """No walk goes on behind it, since its size is not to be believed."""
    data = message(0, b"v")
    with pytest.raises(CorruptMessageError, match=rf"byte {len(data)} of {len(data) + 30}: a message of 3 bytes"):
        list(walk_units(data + struct.pack(">qi", 1, 3) + bytes(18)))


# -- checking


@pytest.mark.parametrize(("magic", "codec"), ALL)
def test_a_checked_set_says_what_is_in_it(magic: int, codec: Codec) -> None:
    """One part for all, with the latest of the timestamps where there are any."""
    (part,) = check(build_record_set(RECORDS, magic=magic, codec=codec), EVERY_CODEC)

    assert (magic, codec, 5, 1000 if magic else -1) == (part.magic, part.codec, part.count, part.max_timestamp)
    assert (part.inner is not None) == (magic == 0 and codec is not Codec.NONE)


def test_a_fault_is_found_at_its_own_message() -> None:
    """Not at the beginning of the row that it stands in."""
    good = b"".join(message(0, b"value %d" % number) for number in range(40))
    bad = bytearray(message(0, b"value"))
    bad[-1] ^= 1

    with pytest.raises(CorruptMessageError, match=rf"byte {len(good)} of {len(good) * 2 + len(bad)}: CRC-32 is"):
        check(good + bad + good)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4])
def test_a_wrappers_own_checksum_is_compared(codec: Codec) -> None:
    """What it wraps may be intact, and the key or the attributes not."""
    data = bytearray(build_record_set(RECORDS, magic=1, codec=codec))
    data[12] ^= 1

    with pytest.raises(CorruptMessageError, match=r"byte 0 of .* CRC-32 is"):
        check(data)


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (batch(5, [RecordSpec(delta=0)]), "a batch with base offset 5, expected 0"),
        (batch(0, [RecordSpec(delta=0), RecordSpec(delta=2)]), "2 records up to offset delta 2"),
        (batch(0, [RecordSpec(delta=1)], last_delta=0), "offset 1 in a unit that ends before 1"),
        (batch(0, [RecordSpec(delta=0)], attributes=0x20), "a control batch, which only brokers write"),
        (batch(0, [RecordSpec(delta=0)], producer_id=3), "sequence -1 of producer 3"),
    ],
)
def test_a_batch_that_no_producer_may_send_is_named(data: bytes, match: str) -> None:
    """In words that tell which of the many."""
    with pytest.raises(CorruptMessageError, match=match):
        check(data)


def test_magics_and_codecs_beside_each_other_are_parts_of_their_own() -> None:
    """Clients before 0.11 send what they like."""
    data = message(0, b"v", magic=0) * 2 + message(0, b"v") + wrapper(0, message(0, b"v"), Codec.GZIP) + message(0, b"")

    assert [(0, 0, 2), (1, 0, 1), (1, 1, 1), (1, 0, 1)] == [
        (part.magic, part.codec, part.count) for part in check(data)
    ]


def test_a_decompressed_set_is_limited() -> None:
    """A kilobyte can hold megabytes."""
    data = build_record_set([NewRecord(value=bytes(1 << 20))], magic=1, codec=Codec.GZIP)

    with pytest.raises(DecompressedTooLarge, match="byte 0 of"):
        check(data, Rules(limits=Limits(decompressed_bytes=1 << 19)))


@pytest.mark.parametrize("magic", [1, 2])
def test_the_limit_is_for_all_of_a_set(magic: int) -> None:
    """Many small ones must not cost more than a large one."""
    data = build_record_set([NewRecord(value=bytes(1000))], magic=magic, codec=Codec.GZIP)

    assert check(data * 3, Rules(limits=Limits(decompressed_bytes=4000)))
    with pytest.raises(DecompressedTooLarge, match=f"byte {3 * len(data)} of"):
        check(data * 4, Rules(limits=Limits(decompressed_bytes=4000)))


def test_zstd_is_taken_where_it_is_asked_for() -> None:
    """Brokers of the time of these formats do not know it."""
    data = build_record_set(RECORDS, magic=2, codec=Codec.ZSTD)

    assert check(data, EVERY_CODEC)
    with pytest.raises(CorruptMessageError, match="codec 4 is not taken"):
        check(data)


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (batch(0, [RecordSpec(delta=0, headers=[(b"h", b"")])]), "headers, which magic 1 lacks"),
        (batch(0, [RecordSpec(delta=0)], attributes=0x10), "a producer's id or a transaction"),
    ],
)
def test_an_older_log_refuses_what_it_cannot_keep(data: bytes, match: str) -> None:
    """A header that was acknowledged must not get lost on the way to the disk."""
    assert check(data)
    with pytest.raises(UnsupportedForFormat, match=match):
        check(data, Rules(stored_magic=1))


@pytest.mark.parametrize(("magic", "codec"), ALL)
def test_timestamps_are_held_against_the_brokers_clock(magic: int, codec: Codec) -> None:
    """Where they are asked for; none at all is none too far away."""
    data = build_record_set(RECORDS, magic=magic, codec=codec)
    near = Rules(now_ms=1100, max_difference_ms=104, codecs=tuple(Codec))
    too_near = Rules(now_ms=1100, max_difference_ms=103, codecs=tuple(Codec))

    assert check(data, near)
    if magic:
        with pytest.raises(TimestampRefused, match=r"record 4 has timestamp 996, outside \[997, 1203\]"):
            check(data, too_near)
    timeless = build_record_set([NewRecord(value=b"v")], magic=magic, codec=codec)
    assert check(timeless, too_near)


@pytest.mark.parametrize(("magic", "codec"), ALL)
def test_keys_are_required_where_only_the_last_of_each_is_kept(magic: int, codec: Codec) -> None:
    """An empty key is one."""
    rules = Rules(keys_required=True, codecs=tuple(Codec))
    keyed = build_record_set([NewRecord(key=b"", value=None)] * 3, magic=magic, codec=codec)
    lacking = build_record_set([NewRecord(key=b"", value=None), NewRecord(value=b"")], magic=magic, codec=codec)

    assert check(keyed, rules)
    with pytest.raises(CorruptMessageError, match="record 1 has no key"):
        check(lacking, rules)


# -- rows


@pytest.mark.parametrize("sizes", [[5] * 300, [5, 5, 6] * 40, [1, 2, 3] * 20 + [9] * 30, [7] * 9 + [8] * 7 + [7]])
@pytest.mark.parametrize("first", [0, 65_530, (1 << 32) - 3, (1 << 48) - 100])
def test_rows_are_numbered_as_one_by_one(sizes: list[int], first: int) -> None:
    """Columns of bytes where sizes repeat, across the ends of two bytes and of four."""
    data = bytearray(b"".join(message(99, b"v" * size) for size in sizes))

    count = write_offsets(data, 0, len(data), first)

    assert len(sizes) == count
    assert bytes(data) == b"".join(message(first + row, b"v" * size) for row, size in enumerate(sizes))


@pytest.mark.parametrize("count", [1, 7, 64, 65, 600])
@pytest.mark.parametrize(
    "behind",
    [
        b"",
        message(0, b"value", magic=0),
        message(0, b"value", attributes=8),
        message(0, b"value")[:-1],
        message(0, b"value")[:17],
        struct.pack(">qiIBB", 0, 21, 0, 1, 0) + bytes(30),
    ],
    ids=["nothing", "other magic", "other attributes", "cut off", "cut in its head", "too small"],
)
def test_a_row_ends_where_something_else_begins(count: int, behind: bytes) -> None:
    """Its last message is known, however many were skipped at once."""
    one = message(0, b"value")
    end = count * len(one)

    assert (end - len(one), end) == measure_row(one * count + behind, 0)


# -- assigning


@pytest.mark.parametrize(("magic", "codec"), ALL)
@pytest.mark.parametrize("time_ms", [None, 5000])
def test_offsets_and_the_brokers_time_are_given(magic: int, codec: Codec, time_ms: int | None) -> None:
    """In place but for compressed sets of magic 0, which hold absolute offsets."""
    data = bytearray(build_record_set(RECORDS, magic=magic, codec=codec))
    parts = check(data, EVERY_CODEC)

    stored = assign_offsets(data, 700, log_append_time_ms=time_ms, leader_epoch=3, parts=parts)

    assert (stored is data) == (magic > 0 or codec is Codec.NONE)
    timed = time_ms is not None and magic > 0
    expected = [
        (
            700 + row,
            5000 if timed else one.timestamp if magic else -1,
            -1 if magic == 0 else int(timed),
            one.key,
            one.value,
            (),
        )
        for row, one in enumerate(RECORDS)
    ]
    assert expected == rows(stored)
    (*_, last) = walk_units(stored)
    assert 704 == last.last_offset
    if magic == 2:
        assert (3,) == struct.unpack_from(">i", stored, 12)
        assert (5000 if timed else 1000) == last.max_timestamp


def test_a_set_is_checked_when_nobody_has() -> None:
    """So that nothing wrong is numbered."""
    data = bytearray(build_record_set(RECORDS, magic=1))
    assert [9, 10, 11, 12, 13] == [row[0] for row in rows(assign_offsets(data, 9))]

    data[-1] ^= 1
    with pytest.raises(CorruptMessageError, match="CRC-32"):
        assign_offsets(data, 9)


def test_what_stands_around_a_wrapper_that_is_built_anew_stays() -> None:
    """Each part has its own offsets, in the order of the set."""
    plain = message(5, b"plain")
    data = plain * 2 + wrapper(3, message(3, b"in", timestamp=4), Codec.GZIP) + plain + wrapper(0, plain, Codec.LZ4)

    stored = assign_offsets(bytearray(data), 20, log_append_time_ms=77)

    assert [20, 21, 22, 23, 24] == [row[0] for row in rows(stored)]
    assert {(77, 1)} == {(row[1], row[2]) for row in rows(stored)}
    assert [b"plain", b"plain", b"in", b"plain", b"plain"] == [row[4] for row in rows(stored)]


def test_a_wrong_latest_timestamp_is_put_right() -> None:
    """Lookups by time believe the heads."""
    wrapped = assign_offsets(bytearray(wrapper(1, message(0, b"", timestamp=7) + message(1, b"", timestamp=3), 1)), 0)
    batched = assign_offsets(bytearray(batch(0, [RecordSpec(delta=0)], base_timestamp=7, max_timestamp=3)), 0)

    assert [7, 7] == [next(walk_units(data)).max_timestamp for data in (wrapped, batched)]
    assert [7, 3] == [row[1] for row in rows(wrapped)]
    assert check(batched)
