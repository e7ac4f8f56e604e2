"""Files of a table: rows are where their partition columns say, in their order, and what is told of them is true."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path

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
    monkeypatch.setattr(parquet_files, "MOST_OPEN", 3)
    writer = make_writer(tmp_path)
    for turn in range(2):
        for day in range(1, 9):
            writer.append(make_rows([turn * 100 + day], day=f"2026-11-{day:02d}"))
    files = writer.finish()
    offsets = sorted(offset for file in files for offset in read(tmp_path, file)["offset"].to_pylist())

    assert offsets == sorted([*range(1, 9), *range(101, 109)])
    assert len({file.path for file in files}) == len(files)


def test_aborted_writer_has_no_files_to_tell_of(tmp_path: Path) -> None:
    """What it wrote stays in staging, which goes as a whole."""
    writer = make_writer(tmp_path)
    writer.append(make_rows([1]))
    writer.abort()

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
