# SPDX-License-Identifier: Apache-2.0
"""The columnar batch itself: slices, lists, payload, Arrow."""

from __future__ import annotations

import subprocess
import sys
from array import array
from dataclasses import replace

import pytest

from consumerd.errors import ConfigError, CorruptMessageError
from consumerd.model import Gap, GapReason, PartitionKey, TimestampType, TopicPartition
from consumerd.wire.modern.record_set import decode_record_set
from consumerd.wire.record_fields import decode_headers
from consumerd.wire.records import Record, RecordBatch, empty_batch
from tests.support.delivery import make_wrapped_batch
from tests.support.documents import TOP
from tests.support.record_sets import RecordSpec, batch, message

pytestmark = pytest.mark.usefixtures("each_path")

PARTITION = TopicPartition.modern("t", 0)
HEADERS = ((b"h", b"v"), (b"n", None))


def decoded() -> RecordBatch:
    """Offsets 10, 12, 13, 20 of [10, 25)."""
    given = [
        RecordSpec(delta=0, key=b"a", value=b"one"),
        RecordSpec(delta=2, value=None, headers=HEADERS),
        RecordSpec(delta=3, key=b"", value=b""),
        RecordSpec(delta=10, key=b"b", value=b"four"),
    ]
    return decode_record_set(batch(10, given, last_delta=14, base_timestamp=7), partition=PARTITION, start=10)


def test_records_are_made_from_the_columns() -> None:
    """One object a record, when somebody wants one."""
    first, second, *_ = decoded().records()

    assert Record(offset=10, timestamp=7, timestamp_type=TimestampType.CREATE_TIME, key=b"a", value=b"one") == first
    assert (("h", b"v"), ("n", None)) == second.headers


def legacy_pair() -> RecordBatch:
    """Two records of one offset."""
    return RecordBatch(
        partition=PARTITION,
        start=0,
        next_offset=9,
        buffer=memoryview(b"ab"),
        offsets=array("q", [0, 0]),
        timestamps=array("q", [-1, -1]),
        key_starts=array("q", [-1, -1]),
        key_ends=array("q", [-1, -1]),
        value_starts=array("q", [0, 1]),
        value_ends=array("q", [1, 2]),
        indexes=array("q", [0, 1]),
        next_offsets=array("q", [9, 9]),
    )


def test_a_batch_of_a_legacy_set_has_indexes() -> None:
    """Records of one compressed legacy set share their offset."""
    value = legacy_pair()

    assert [(0, b"a"), (1, b"b")] == [(record.index, record.value) for record in value.records()]
    assert [0, 1] == value.to_arrow().column("index").to_pylist()
    assert {TimestampType.NONE} == {record.timestamp_type for record in value.records()}


def test_slices_drop_what_is_below_and_explain_what_is_left() -> None:
    """A sink that has part of a batch already takes the rest."""
    whole = decoded()

    for offset in range(8, 30):
        rest = whole.slice_from(offset)
        assert [one for one in whole.offsets if one >= offset] == list(rest.offsets)
        assert [one for one in whole.records() if one.offset >= offset] == list(rest.records())
        assert max(offset, 10) == rest.start
        assert max(offset, 25) == rest.next_offset
        explained = {*rest.offsets, *(one for gap in rest.gaps for one in range(gap.start, gap.end))}
        assert set(range(rest.start, rest.next_offset)) == explained
    assert whole.slice_from(10) is whole


def test_what_is_left_of_an_offset_and_what_follows_it_are_the_batch() -> None:
    """A record that a sink refuses cuts its batch in two."""
    whole = decoded()

    for offset in range(8, 30):
        head = whole.slice_to(offset)
        assert [one for one in whole.records() if one.offset < offset] == list(head.records())
        assert (10, min(max(offset, 10), 25)) == (head.start, head.next_offset)
        explained = {*head.offsets, *(one for gap in head.gaps for one in range(gap.start, gap.end))}
        assert set(range(head.start, head.next_offset)) == explained
    assert whole.slice_to(25) is whole


def test_a_record_that_is_left_out_leaves_a_gap_in_its_place() -> None:
    """What a policy passes over is recorded where it was."""
    whole = decoded()

    for row, offset in enumerate(whole.offsets):
        rest = whole.without(row, GapReason.SKIPPED)
        assert [one for one in whole.records() if one.offset != offset] == list(rest.records())
        assert Gap(offset, offset + 1, GapReason.SKIPPED) in rest.gaps
        assert list(rest.gaps) == sorted(rest.gaps, key=lambda gap: gap.start)
        assert (whole.start, whole.next_offset) == (rest.start, rest.next_offset)


def test_a_record_that_shares_its_offset_leaves_no_gap() -> None:
    """The offset still has a record in a legacy set, until the last of them is left out."""
    pair = legacy_pair()

    assert [(1, b"b")] == [(record.index, record.value) for record in pair.without(0, GapReason.SKIPPED).records()]
    assert () == pair.without(1, GapReason.SKIPPED).gaps
    none = pair.without(0, GapReason.SKIPPED).without(0, GapReason.SKIPPED)
    assert (0, (Gap(0, 9, GapReason.SKIPPED),)) == (len(none), none.gaps)


def test_records_that_share_an_offset_are_cut_by_their_number() -> None:
    """Offsets do not tell the records of a compressed message of Kafka 0.7 apart."""
    whole = make_wrapped_batch(TopicPartition("t", PartitionKey.parse("0-0")), plain=2, inner=3)
    records = list(whole.records())

    for count in range(6):
        first, rest = whole.first_rows(count), whole.rest_rows(count)
        assert records[:count] == list(first.records())
        assert records[count:] == list(rest.records())
        assert rest.start == whole.position_after(count)
    assert [1000, 1010, 1020, 1020, 1020, 1110] == [whole.position_after(count) for count in range(6)]
    assert [1000, 1010, 1020, 1110, 1110, 1110] == [whole.first_rows(count).next_offset for count in range(6)]
    assert whole.rest_rows(0) is whole


def test_gaps_stay_with_the_records_beside_them() -> None:
    """The first records come with the gaps before the next one; the rest begins after the last of them."""
    whole = decoded()

    for count in range(1, len(whole)):
        first, rest = whole.first_rows(count), whole.rest_rows(count)
        assert list(whole.offsets[:count]) == list(first.offsets)
        assert list(whole.offsets[count:]) == list(rest.offsets)
        assert whole.offsets[count] == first.next_offset
        assert whole.offsets[count - 1] + 1 == rest.start == whole.position_after(count)
        for part in (first, rest):
            explained = {*part.offsets, *(one for gap in part.gaps for one in range(gap.start, gap.end))}
            assert set(range(part.start, part.next_offset)) == explained


def test_one_record_can_be_made_without_its_headers() -> None:
    """Where they are what cannot be read."""
    good = decoded()
    assert list(good.records())[1] == good.record(1)
    assert None is good.find_unreadable()
    assert (b"", True) == (good.header_bytes(0), bool(good.header_bytes(1)))

    bad = replace(good, header_ends=array("q", [end - 1 if end > 0 else end for end in good.header_ends]))
    assert 1 == bad.find_unreadable()
    assert () == bad.record(1, with_headers=False).headers
    with pytest.raises(CorruptMessageError):
        bad.record(1)


def test_an_empty_batch_is_progress_without_records() -> None:
    """Control batches alone, or what a policy skipped."""
    gap = Gap(3, 5, GapReason.CONTROL)
    empty = empty_batch(PARTITION, 3, 5, (gap,))

    assert (0, 5, (gap,), 0) == (len(empty), empty.next_offset, empty.gaps, empty.size_bytes)
    assert [] == list(empty.records())
    assert [] == empty.keys() == empty.values()
    assert 0 == empty.to_arrow().num_rows


def test_what_a_batch_holds_is_counted() -> None:
    """Memory is budgeted by it: the buffer, and eight bytes a row and column."""
    data = batch(0, [RecordSpec(delta=row, value=b"v" * 100) for row in range(100)])

    size = decode_record_set(data, partition=PARTITION, start=0).size_bytes

    assert len(data) + 100 * 48 <= size <= len(data) + 100 * 56


def test_a_batch_shows_no_payload() -> None:
    """It ends up in logs and in failing tests."""
    assert "<RecordBatch t/0 [10, 25): 4 records>" == repr(decoded())


def test_header_keys_that_are_not_utf_8_are_read_as_java_reads_them() -> None:
    """A consumer must not stop at what a producer of another language wrote."""
    assert (("�", None),) == decode_headers(b"\x02\x02\xff\x01", 0, 4)


def test_headers_that_cannot_be_read_are_corrupt() -> None:
    """The decoder has checked them; a batch made by hand may have wrong spans."""
    with pytest.raises(CorruptMessageError):
        decode_headers(b"\x02\x02", 0, 2)


def test_nulls_among_values_become_arrow_nulls() -> None:
    """And no others."""
    table = decoded().to_arrow()

    assert [b"a", None, b"", b"b"] == table.column("key").to_pylist()
    assert [b"one", None, b"", b"four"] == table.column("value").to_pylist()
    assert [[], [{"key": "h", "value": b"v"}, {"key": "n", "value": None}], [], []] == table.column(
        "headers"
    ).to_pylist()
    assert [11, 13, 14, 21] == table.column("next_offset").to_pylist()


def test_missing_timestamps_become_arrow_nulls() -> None:
    """Magic 0 has none, and a producer may send -1."""
    data = message(0, b"a", magic=0) + message(1, b"b", timestamp=5) + message(2, b"c", timestamp=-1)

    table = decode_record_set(data, partition=PARTITION, start=0).to_arrow()

    assert [None, 5, None] == table.column("timestamp").cast("int64").to_pylist()
    assert [-1, 0, 0] == table.column("timestamp_type").to_pylist()


def test_arrow_batches_of_any_columns_are_valid() -> None:
    """Arrow's own check finds nothing, with headers, without them, and without records."""
    for records in (decoded(), legacy_pair(), empty_batch(PARTITION, 0, 5)):
        records.to_arrow().validate(full=True)


@pytest.mark.parametrize("make", ["decoded", "legacy_pair"])
def test_arrow_batches_are_made_without_pandas(make: str) -> None:
    """The event loop would stand still while it is imported, which takes seconds on a busy machine."""
    program = (
        "import sys\n"
        f"from tests.unit.wire.test_records import {make}\n"
        "assert 'pandas' not in sys.modules, 'the imports have loaded it'\n"
        f"{make}().to_arrow()\n"
        "assert 'pandas' not in sys.modules, 'to_arrow() has loaded it'\n"
    )

    told = subprocess.run([sys.executable, "-c", program], cwd=TOP, capture_output=True, text=True, check=False)

    assert told.returncode == 0, told.stderr


def test_without_pyarrow_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything but Arrow goes on working."""
    monkeypatch.setitem(sys.modules, "consumerd.wire.arrow", None)

    with pytest.raises(ConfigError, match="parquet"):
        decoded().to_arrow()
