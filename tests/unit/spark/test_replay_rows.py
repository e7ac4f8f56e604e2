# SPDX-License-Identifier: Apache-2.0
"""Rows of bronze become the records that they were, whatever Arrow's arrays look like."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from consumerd.errors import ConfigError
from consumerd.model import BrokerId, Gap, GapReason, PartitionKey, TimestampType, TopicPartition
from consumerd.spark.replay_rows import LogName, split_rows, to_record_batch
from consumerd.wire.records import Record
from tests.support.replay_rows import end_row, make_rows, row

P = TopicPartition.modern("orders", 0)


def test_rows_are_cut_at_each_log_and_end_rows_are_no_records() -> None:
    """A log may go over several batches, have no records, or end in the next batch."""
    rows = make_rows(
        row(98), row(99), end_row(100), end_row(5, partition=1), row(0, incarnation="7.1"), row(3, incarnation="7.1"),
        end_row(4, incarnation="7.1"), row(0, partition=1, broker=2),
    )  # fmt: skip

    found = [(part.name, part.rows["offset"].to_pylist(), part.end) for part in split_rows(rows)]

    assert [
        (LogName(None, 0, "7"), [98, 99], 100),
        (LogName(None, 1, "7"), [], 5),
        (LogName(None, 0, "7.1"), [0, 3], 4),
        (LogName(2, 1, "7"), [0], None),
    ] == found
    assert [PartitionKey(0), PartitionKey(1, BrokerId(2))] == [found[0][0].partition_key, found[3][0].partition_key]


@pytest.mark.parametrize("slicing", [slice(0, 5), slice(1, 5), slice(2, 3), slice(3, 5)])
def test_every_part_of_a_record_is_kept(slicing: slice) -> None:
    """Nulls, empty values, headers, and slices of larger arrays."""
    headers = [{"key": "a", "value": b"1"}, {"key": "a", "value": None}, {"key": "\N{SNOWMAN}", "value": b""}]
    given: list[dict[str, Any]] = [
        row(3, key=b"key", value=b"value", headers=headers, timestamp=5, timestamp_type=1),
        row(4, key=b"tombstone", value=None, timestamp=7),
        row(6, key=b"", value=b"", timestamp=6, timestamp_type=None),
        row(9, key=None, value=b"none", timestamp=None, timestamp_type=-1, headers=None),
        row(10, key=b"last", value=b"x" * 100),
    ]
    whole = make_rows(*given)
    rows = whole.slice(slicing.start, slicing.stop - slicing.start)

    batch = to_record_batch(P, rows, start=rows["offset"][0].as_py())

    expected = [
        Record(
            offset=one["offset"],
            timestamp=-1 if one["timestamp"] is None else one["timestamp"],
            timestamp_type=TimestampType.NONE
            if one["timestamp"] is None
            else TimestampType(one["timestamp_type"] or 0),
            key=one["key"],
            value=one["value"],
            headers=tuple((header["key"], header["value"]) for header in one["headers"] or ()),
        )
        for one in given[slicing]
    ]
    assert expected == list(batch.records())
    assert given[slicing][-1]["offset"] + 1 == batch.next_offset


def test_absent_offsets_are_gaps() -> None:
    """From the position on: a batch accounts for each offset."""
    batch = to_record_batch(P, make_rows(row(3), row(4), row(7)), start=1)

    assert (Gap(1, 3, GapReason.COMPACTION), Gap(5, 7, GapReason.COMPACTION)) == batch.gaps
    assert (1, 8) == (batch.start, batch.next_offset)


def test_offsets_of_kafka_0_7_count_bytes() -> None:
    """Records of a compressed message share its offset, and the next one begins behind its bytes."""
    legacy = TopicPartition("orders", PartitionKey(0, BrokerId(3)))
    rows = make_rows(
        row(0, next_offset=40), row(40, next_offset=90), row(40, next_offset=90, index=1), row(100, next_offset=130)
    )

    batch = to_record_batch(legacy, rows, start=0)

    assert ([0, 40, 40, 100], [40, 90, 90, 130], [0, 0, 1, 0]) == (
        list(batch.offsets),
        list(batch.next_offsets),
        list(batch.indexes),
    )
    assert (Gap(90, 100, GapReason.COMPACTION),) == batch.gaps


@pytest.mark.parametrize("place", [0, 1])
def test_a_map_needs_the_next_offset_of_each_record(place: int) -> None:
    """A file of another writer may lack it."""
    rows = make_rows(*(row(offset, next_offset=None if offset == place else offset + 1) for offset in range(3)))

    with pytest.raises(ConfigError, match=f"orders/0: bronze has no next offset of the record at {place}"):
        to_record_batch(P, rows, start=0)


def test_types_of_arrow_do_not_matter() -> None:
    """Spark may be set to large arrays."""
    rows = make_rows(row(0, key=b"k"))
    large = rows.set_column(rows.schema.get_field_index("key"), "key", rows["key"].cast(pa.large_binary()))

    assert [b"k"] == to_record_batch(P, large, start=0).keys()
