# SPDX-License-Identifier: Apache-2.0
"""Files of a table: rows are where their partition columns say, in their order, and what is told of them is true."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from consumerd.spark.table import parquet_files
from consumerd.spark.table.commit import Bounds, DataFile
from consumerd.spark.table.folder_values import escape_value
from consumerd.spark.table.parquet_files import FileSettings, PartitionedWriter, to_utc
from tests.support.tables import make_rows


def make_writer(folder: Path, *, bounds: tuple[str, ...] = ("offset",)) -> PartitionedWriter:
    return PartitionedWriter(folder, prefix="task", partition_by=("topic", "day"), settings=FileSettings(bounds=bounds))


def read(folder: Path, file: DataFile) -> pa.Table:
    return pq.read_table(folder / file.path, partitioning=None)


def test_rows_go_into_the_folders_of_their_values_in_their_order(tmp_path: Path) -> None:
    """Whoever reads one topic's day reads these folders and no others."""
    writer = make_writer(tmp_path)
    days = ["2026-11-22", "2026-11-21", None, "2026-11-22"]
    mixed = pa.RecordBatch.from_arrays(
        [
            pa.array([5, 3, 4, 1]),
            pa.array(["a", "b", None, "d"]),
            pa.array(["x", "y", "x", "x"]),
            pa.array(days, pa.string()).cast(pa.date32()),
        ],
        names=["offset", "value", "topic", "day"],
    )
    writer.append(mixed)
    writer.append(make_rows([9], topic="x"))
    writer.append(make_rows([]))
    files = {file.values: file for file in writer.finish()}
    rows = {values: read(tmp_path, file).to_pydict() for values, file in files.items()}

    assert rows == {
        ("x", "2026-11-22"): {"offset": [5, 1, 9], "value": ["a", "d", "x:9"]},
        ("y", "2026-11-21"): {"offset": [3], "value": ["b"]},
        ("x", "__HIVE_DEFAULT_PARTITION__"): {"offset": [4], "value": [None]},
    }
    for values, file in files.items():
        assert Path(file.path).parent == Path(f"topic={values[0]}") / f"day={values[1]}"
        assert file.size == (tmp_path / file.path).stat().st_size
        assert file.rows == len(rows[values]["offset"])
    assert files["x", "2026-11-22"].bounds == {"offset": Bounds(low=1, high=9)}


def test_bounds_are_those_of_all_row_groups_and_leave_out_what_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader passes over files by them; one too narrow would hide rows."""
    monkeypatch.setattr(parquet_files, "ROW_GROUP_BYTES", 1)
    moment = datetime(2026, 11, 22, 1, 2, 3, 4, UTC)
    writer = PartitionedWriter(
        tmp_path, prefix="task", partition_by=(), settings=FileSettings(bounds=("at", "day", "name", "none", "long"))
    )
    for shift in (1, 0, 2):
        writer.append(
            pa.record_batch(
                {
                    "at": pa.array([moment + timedelta(days=shift), None], pa.timestamp("us", "UTC")),
                    "day": [date(2026, 11, 22 + shift)] * 2,
                    "name": [f"n{shift}", None],
                    "none": pa.nulls(2, pa.int64()),
                    "long": ["x" * 1000] * 2,
                }
            )
        )
    (file,) = writer.finish()
    base = int(moment.timestamp()) * 1_000_000 + 4
    day_us = 86_400_000_000

    assert file.bounds == {
        "at": Bounds(low=base, high=base + 2 * day_us),
        "day": Bounds(low="2026-11-22", high="2026-11-24"),
        "name": Bounds(low="n0", high="n2"),
    }
    assert pq.ParquetFile(tmp_path / file.path).num_row_groups == 3


def test_bounds_of_times_that_no_calendar_of_pythons_has(tmp_path: Path) -> None:
    """A producer may write any number into a timestamp, and its record is still to be kept."""
    low, high = -(1 << 63), (1 << 63) - 1
    writer = PartitionedWriter(tmp_path, prefix="task", partition_by=(), settings=FileSettings(bounds=("at",)))
    writer.append(pa.record_batch({"at": pa.array([high, None, low], pa.timestamp("us", "UTC"))}))
    (file,) = writer.finish()

    assert file.bounds == {"at": Bounds(low=low, high=high)}


def test_files_open_at_once_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A producer whose clock is wrong makes as many days as it likes."""
    monkeypatch.setattr(parquet_files, "MAX_OPEN_FILES", 3)
    writer = make_writer(tmp_path)
    for turn in range(2):
        for day in range(1, 9):
            writer.append(make_rows([turn * 100 + day], day=f"2026-11-{day:02d}"))
    files = writer.finish()
    offsets = sorted(offset for file in files for offset in read(tmp_path, file)["offset"].to_pylist())

    assert offsets == sorted([*range(1, 9), *range(101, 109)])
    assert len({file.path for file in files}) == len(files)


def days_in_no_order(rows: int, days: int) -> Iterator[pa.RecordBatch]:
    """Yield rows of random days, in batches of 1,000."""
    chosen = np.random.default_rng(1).integers(0, days, rows).astype(np.int32)
    for first in range(0, rows, 1000):
        part = chosen[first : first + 1000]
        offsets = pa.array(range(first, first + len(part)))
        yield pa.RecordBatch.from_arrays(
            [
                offsets,
                pa.repeat("x" * 100, len(part)),
                pa.repeat("orders", len(part)),
                pa.array(part).cast(pa.date32()),
            ],
            names=["offset", "value", "topic", "day"],
        )


def test_days_in_no_order_give_one_file_each(tmp_path: Path) -> None:
    """Events of the past: no day is over before the last row."""
    writer = make_writer(tmp_path)
    for batch in days_in_no_order(8_000, days=200):
        writer.append(batch)
    files = writer.finish()

    assert len(files) == 200
    for file in files:
        offsets = read(tmp_path, file)["offset"].to_pylist()
        assert offsets == sorted(offsets)
    assert sum(file.rows for file in files) == 8_000


@pytest.mark.parametrize("days", [30, 200])
def test_days_in_no_order_take_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, days: int) -> None:
    """Many days go into spills; of a few days the largest writes a row group."""
    monkeypatch.setattr(parquet_files, "MAX_COLLECTED_BYTES", 1 << 20)
    monkeypatch.setattr(parquet_files, "WINDOW_BYTES", 1 << 18)
    monkeypatch.setattr(parquet_files, "BATCH_OVERHEAD_BYTES", 0)
    writer = make_writer(tmp_path)
    before, most = pa.total_allocated_bytes(), 0
    for batch in days_in_no_order(40_000, days):
        writer.append(batch)
        most = max(most, pa.total_allocated_bytes() - before)
    files = writer.finish()

    assert 40_000 * 108 > 4 << 20
    assert most < 3 << 20
    assert len(files) == days
    offsets = [read(tmp_path, file)["offset"].to_pylist() for file in files]
    assert all(part == sorted(part) for part in offsets)
    assert sorted(offset for part in offsets for offset in part) == [*range(40_000)]
    assert {path.suffix for path in tmp_path.rglob("*") if path.is_file()} == {".parquet"}


def test_tiny_batches_count_with_what_they_take_besides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of one row takes kilobytes besides its values."""
    monkeypatch.setattr(parquet_files, "MAX_COLLECTED_BYTES", 40 * parquet_files.BATCH_OVERHEAD_BYTES)
    writer = make_writer(tmp_path)
    for number in range(100):
        writer.append_part(("orders", f"day-{number % 50}"), make_rows([number]).select(["offset", "value"]))

    assert len(list(tmp_path.rglob("*.spill"))) == 2
    writer.close()
    assert list(tmp_path.rglob("*.spill")) == []


def test_aborted_writer_has_no_files_to_tell_of(tmp_path: Path) -> None:
    """What it wrote stays in staging, which goes as a whole."""
    writer = make_writer(tmp_path)
    writer.append(make_rows([1]))
    writer.close()

    assert writer.finish() == []


@pytest.mark.parametrize(
    ("value", "name"),
    [("orders", "orders"), ("a/b=c%", "a%2Fb%3Dc%25"), ("", "__HIVE_DEFAULT_PARTITION__"), ("grüße", "grüße")],
)
def test_folder_names_are_those_that_spark_reads_back(value: str, name: str) -> None:
    """Spark takes a percent sign and two digits for one character, and leaves all others alone."""
    assert escape_value(value) == name


def test_times_of_any_zone_become_those_of_utc() -> None:
    """The session's time zone is a matter of how times are shown."""
    zone = timezone(timedelta(hours=2))
    moment = datetime(2026, 11, 22, 2, tzinfo=zone)
    kind = pa.timestamp("us", "+02:00")
    batch = pa.record_batch(
        {
            "at": pa.array([moment], kind),
            "wall": pa.array([datetime(2026, 11, 22)], pa.timestamp("us")),  # noqa: DTZ001 - of no zone
            "deep": pa.array([[{"at": moment}]], pa.list_(pa.struct([("at", kind)]))),
            "key": pa.array([[("a", moment)]], pa.map_(pa.string(), kind)),
        }
    )
    utc = to_utc(batch)

    assert utc.schema.field("at").type == pa.timestamp("us", "UTC")
    assert utc.schema.field("wall").type == pa.timestamp("us")
    assert utc.to_pylist() == batch.to_pylist()
    assert to_utc(utc) is utc
