# SPDX-License-Identifier: Apache-2.0
"""Record sets in another magic: what is kept, what is lost, what cannot be; what real brokers make is in the vectors."""

from __future__ import annotations

import pytest

from consumerd.errors import CorruptMessageError, DecompressedTooLarge, LocalProtocolError
from consumerd.wire.compression import Codec
from consumerd.wire.modern.building import build_record_set
from consumerd.wire.modern.conversion import convert, convert_down
from consumerd.wire.records import Limits, NewRecord
from tests.support import naive_records
from tests.support.record_sets import LOG_APPEND_TIME, RecordSpec, batch, marker, message, wrapper
from tests.support.units import walk_units

pytestmark = pytest.mark.usefixtures("each_path")

ERA = [codec for codec in Codec if codec is not Codec.ZSTD]


def rows(data: bytes) -> list[naive_records.Row]:
    found = naive_records.decode(data, 0, Limits())
    assert not found.faulty
    return found.rows


@pytest.mark.parametrize("codec", ERA)
@pytest.mark.parametrize("flags", [0, LOG_APPEND_TIME])
def test_holes_of_compaction_stay_in_both_directions(codec: Codec, flags: int) -> None:
    """And the type of the timestamps, between the magics that have one."""
    kept = batch(
        500,
        [RecordSpec(delta=delta, key=b"k", value=b"v", timestamp_delta=delta) for delta in (3, 4, 90)],
        last_delta=99,
        codec=codec,
        attributes=flags,
        base_timestamp=1000,
        max_timestamp=1090,
    )

    down = convert(kept, magic=1)

    assert rows(kept) == rows(down)
    assert [503, 504, 590] == [row[0] for row in rows(convert(down, magic=2))]
    assert rows(kept) == rows(convert(down, magic=2))
    assert [(row[0], -1, -1, *row[3:]) for row in rows(kept)] == rows(convert(kept, magic=0))
    assert {codec} == {unit.codec for data in (down, convert(down, magic=2)) for unit in walk_units(data)}


def test_headers_and_control_batches_are_gone_below_magic_2() -> None:
    """Older formats cannot say them; older clients would take a marker for a record."""
    data = (
        batch(7, [RecordSpec(delta=0, value=b"v", headers=[(b"h", b"1")])], producer_id=5, attributes=0x10)
        + marker(8, 5, abort=False)
        + batch(9, [RecordSpec(delta=0, value=b"w")])
    )

    for magic in (0, 1):
        assert [(7, b"v", ()), (9, b"w", ())] == [(row[0], *row[4:]) for row in rows(convert(data, magic=magic))]
        assert convert(data, magic=magic) == convert_down(data, magic=magic)


def test_a_batch_that_compaction_has_emptied_leaves_nothing() -> None:
    """There is no message without a record."""
    assert b"" == convert(batch(7, b"", count=0, last_delta=4), magic=1)


def test_what_a_client_reads_is_left_as_it_is() -> None:
    """A log holds several magics after an upgrade; each client gets the newest it knows."""
    old, newer = message(0, b"a", magic=0), message(1, b"b", timestamp=5)
    data = old + newer + batch(2, [RecordSpec(delta=0, value=b"c")])

    assert data == convert_down(data, magic=2)
    assert data[: len(old + newer)] == convert_down(data, magic=1)[: len(old + newer)]
    assert [0, 1, 1] == [unit.magic for unit in walk_units(convert_down(data, magic=1))]
    assert [0, 0, 0] == [unit.magic for unit in walk_units(convert_down(data, magic=0))]
    assert [2, 2, 2] == [unit.magic for unit in walk_units(convert(data, magic=2))]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_uncompressed_records_before_the_start_are_left_out(codec: Codec) -> None:
    """As brokers do, for old clients that would deliver them; they drop those in a wrapper by themselves."""
    data = batch(10, [RecordSpec(delta=delta, value=b"v") for delta in range(5)], codec=codec)

    offsets = [row[0] for row in rows(convert_down(data, magic=1, start=13))]

    assert ([10, 11, 12, 13, 14] if codec else [13, 14]) == offsets


def test_records_beside_each_other_become_one_batch() -> None:
    """And only those that have the same kind of timestamp."""
    data = b"".join(message(offset, b"v", timestamp=offset) for offset in range(5))
    data += b"".join(message(offset, b"v", timestamp=77, attributes=LOG_APPEND_TIME) for offset in range(5, 9))
    data += wrapper(10, message(0, b"v") + message(1, b"v"), Codec.LZ4)

    converted = convert(data, magic=2, leader_epoch=4)

    assert [(0, 4, 5, 4), (5, 8, 4, 77), (9, 10, 2, -1)] == [
        (unit.base_offset, unit.last_offset, unit.count, unit.max_timestamp) for unit in walk_units(converted)
    ]
    assert rows(data) == rows(converted)
    assert bytes((0, 0, 0, 4)) == converted[12:16]


def test_the_brokers_time_is_given_on_the_way() -> None:
    """To what is converted: magic 0 has no place for it before."""
    data = message(0, b"a", magic=0) + wrapper(2, message(1, b"b", magic=0) + message(2, b"c", magic=0), 1, magic=0)

    for magic in (1, 2):
        assert [(0, 66, 1), (1, 66, 1), (2, 66, 1)] == [
            row[:3] for row in rows(convert(data, magic=magic, log_append_time_ms=66))
        ]


def test_zstd_has_no_place_below_magic_2() -> None:
    """Kafka answers UNSUPPORTED_COMPRESSION_TYPE."""
    data = build_record_set([NewRecord(value=b"v")], magic=2, codec=Codec.ZSTD)

    with pytest.raises(LocalProtocolError, match="ZSTD"):
        convert(data, magic=1)


@pytest.mark.parametrize("to", [0, 1, 2])
def test_what_cannot_be_read_is_named_with_its_place(to: int) -> None:
    """Whichever unit it is, nothing half converted comes back."""
    first = message(0, b"good", magic=0 if to else 1)
    faulty = bytearray(wrapper(1, message(0, b"bad"), Codec.GZIP) if to != 1 else batch(1, [RecordSpec(delta=0)]))
    faulty[-1] ^= 1

    with pytest.raises(CorruptMessageError, match=rf"byte {len(first)} of {len(first + faulty)}: CRC"):
        convert(first + faulty, magic=to)
    with pytest.raises(CorruptMessageError, match=rf"byte {len(first)} of .* cut off"):
        convert(first + first[:-1], magic=to)
    with pytest.raises(CorruptMessageError, match=rf"byte {len(first)} of .* a message of 0 bytes"):
        convert(first + bytes(40), magic=to)


def test_a_fault_within_a_row_is_found_at_its_message() -> None:
    """Rows are read as a whole."""
    good = message(0, b"value")
    bad = bytearray(message(1, b"value"))
    bad[-1] ^= 1

    with pytest.raises(CorruptMessageError, match=rf"byte {len(good)} of"):
        convert(good + bad + message(2, b"value"), magic=2)


def test_what_is_decompressed_is_limited() -> None:
    """A fetch must not cost more than the broker has."""
    data = build_record_set([NewRecord(value=bytes(1 << 20))], magic=2, codec=Codec.GZIP)

    with pytest.raises(DecompressedTooLarge):
        convert_down(data, magic=1, limits=Limits(decompressed_bytes=1 << 19))
    several = b"".join(batch(number, [RecordSpec(delta=0, value=bytes(1000))], codec=Codec.GZIP) for number in range(4))
    assert 3 == len(rows(convert(several[: len(several) // 4 * 3], magic=1, limits=Limits(decompressed_bytes=4000))))
    with pytest.raises(DecompressedTooLarge):
        convert(several, magic=1, limits=Limits(decompressed_bytes=4000))


def test_a_client_gets_what_can_be_decompressed_and_asks_for_the_rest() -> None:
    """What compresses well may be more than the limit in one answer; a failure would be one for ever."""
    data = b"".join(batch(number, [RecordSpec(delta=0, value=bytes(1000))], codec=Codec.GZIP) for number in range(4))

    offsets = [row[0] for row in rows(convert_down(data, magic=1, limits=Limits(decompressed_bytes=2500)))]

    assert [0, 1] == offsets
