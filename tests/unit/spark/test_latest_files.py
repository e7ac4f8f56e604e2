# SPDX-License-Identifier: Apache-2.0
"""Changed rows compared with a table's rows, with Arrow: the newer one of a key wins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from consumerd.spark.latest_files import MAX_KEYS_BYTES, compare_file, read_changed

_PLACE: dict[str, pa.DataType] = {
    "incarnation": pa.string(),
    "broker": pa.int32(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "index": pa.int32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "landed": pa.timestamp("us", "UTC"),
}


def rows(*given: dict[str, Any], key: pa.DataType | None = None) -> pa.Table:
    """Return rows; what is not given is of partition 0, of the first making of the topic, and landed at 1000."""
    basis = {"incarnation": "7", "partition": 0, "offset": 0, "index": 0, "landed": 1000}
    schema = pa.schema([("key", pa.string() if key is None else key), *_PLACE.items(), ("value", pa.string())])
    return pa.Table.from_pylist([{**basis, **one} for one in given], schema=schema)


def write(path: Path, table: pa.Table) -> Path:
    pq.write_table(table, path)
    return path


@pytest.mark.parametrize(
    ("there", "changed", "wins"),
    [
        ({"offset": 5}, {"offset": 6}, True),
        ({"offset": 6}, {"offset": 5}, False),
        ({"offset": 5}, {"offset": 5}, False),  # the same record once more
        ({"offset": 5, "index": 1}, {"offset": 5, "index": 2}, True),  # inside one compressed message of 0.7
        # in one partition times do not count
        ({"offset": 6, "timestamp": 1}, {"offset": 5, "timestamp": 2}, False),
        # a log that lost its end: what was written at the same offsets after that is newer
        ({"offset": 9, "incarnation": "7"}, {"offset": 5, "incarnation": "7.1"}, True),
        ({"offset": 9, "incarnation": "7.9"}, {"offset": 5, "incarnation": "7.10"}, True),
        # in two partitions times count, and offsets do not
        ({"partition": 1, "offset": 9, "timestamp": 1}, {"offset": 5, "timestamp": 2}, True),
        ({"partition": 1, "offset": 5, "timestamp": 2}, {"offset": 9, "timestamp": 1}, False),
        # records without a time count from when they landed
        ({"partition": 1, "landed": 3000}, {"timestamp": 2000}, False),
        ({"partition": 1, "landed": 1000}, {"timestamp": 2000}, True),
        # of one time: by offset, then by partition
        ({"partition": 1, "offset": 5, "timestamp": 2}, {"offset": 6, "timestamp": 2}, True),
        ({"partition": 1, "offset": 5, "timestamp": 2}, {"offset": 5, "timestamp": 2}, False),
        ({"broker": 1, "offset": 5, "timestamp": 1}, {"broker": None, "offset": 4, "timestamp": 2}, True),
    ],
)
def test_the_newer_record_of_a_key_wins(
    tmp_path: Path, there: dict[str, Any], changed: dict[str, Any], wins: bool
) -> None:
    """By the order that the table's description gives: see consumerd.spark.latest."""
    found = read_changed([write(tmp_path / "changed.parquet", rows({"key": "a", **changed}))])
    assert found is not None
    gone, lost = found.compare(rows({"key": "other", "offset": 99}, {"key": "a", **there}))

    assert gone.tolist() == ([1] if wins else [])
    assert lost.tolist() == ([] if wins else [0])


@pytest.mark.parametrize("written", [{"use_deprecated_int96_timestamps": True}, {"coerce_timestamps": "ms"}])
@pytest.mark.parametrize("late", [True, False])
def test_times_of_other_writers_count_in_microseconds(tmp_path: Path, written: dict[str, Any], *, late: bool) -> None:
    """Spark's Delta writes INT96 when it compacts, which Arrow reads as nanoseconds."""
    changed = rows({"key": "a", "timestamp": 9_000 if late else 7_000})
    found = read_changed([write(tmp_path / "changed.parquet", changed)])
    assert found is not None
    pq.write_table(rows({"key": "a", "partition": 1, "timestamp": 8_000}), tmp_path / "other.parquet", **written)

    gone, lost = compare_file(tmp_path / "other.parquet", found)

    assert (gone.tolist(), lost.tolist()) == (([0], []) if late else ([], [0]))


def test_keys_that_are_times_are_found_in_files_of_other_writers(tmp_path: Path) -> None:
    """In nanoseconds and without a zone, too."""
    kind = pa.timestamp("us", "UTC")
    found = read_changed([write(tmp_path / "changed.parquet", rows({"key": 5_000, "offset": 6}, key=kind))])
    assert found is not None
    there = rows({"key": 4_000}, {"key": 5_000}, key=kind)
    pq.write_table(there, tmp_path / "other.parquet", use_deprecated_int96_timestamps=True)

    assert compare_file(tmp_path / "other.parquet", found)[0].tolist() == [1]


def test_a_column_that_a_file_lacks_is_null(tmp_path: Path) -> None:
    """Delta allows it, and some writers leave out columns that have nulls alone."""
    found = read_changed([write(tmp_path / "changed.parquet", rows({"key": "a", "offset": 6}))])
    assert found is not None
    there = rows({"key": "b"}, {"key": "a", "offset": 5}).drop_columns(["broker", "timestamp"])

    assert compare_file(write(tmp_path / "other.parquet", there), found)[0].tolist() == [1]


def test_changed_rows_are_numbered_through_all_their_files(tmp_path: Path) -> None:
    """They were written by several tasks; the driver leaves the lost ones out by these numbers."""
    first = write(tmp_path / "1.parquet", rows({"key": "a", "offset": 1}, {"key": "b", "offset": 9}))
    second = write(tmp_path / "2.parquet", rows({"key": "c", "offset": 2}))
    found = read_changed([first, second])
    assert found is not None

    gone, lost = found.compare(rows(*({"key": key, "offset": 5} for key in "cab")))

    assert gone.tolist() == [2]
    assert sorted(lost.tolist()) == [0, 2]


@pytest.mark.parametrize(
    "table",
    [
        rows({"key": 1.5}, key=pa.float64()),  # 0.0 and -0.0 are one key to Spark
        rows({"key": {"id": 1}}, key=pa.struct([("id", pa.int64())])),
        rows({"key": "a", "partition": 1}, {"key": "a", "partition": 2}),  # the partitioner has changed
        rows({"key": "a" * (MAX_KEYS_BYTES // 2)}, {"key": "b" * (MAX_KEYS_BYTES // 2 + 1)}),
    ],
    ids=["floating", "nested", "twice", "large"],
)
def test_keys_that_arrow_does_not_find_as_spark_does_are_left_to_spark(tmp_path: Path, table: pa.Table) -> None:
    """Or that take too much memory in each task."""
    assert read_changed([write(tmp_path / "changed.parquet", table)]) is None
