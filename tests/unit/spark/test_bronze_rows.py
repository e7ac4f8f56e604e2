# SPDX-License-Identifier: Apache-2.0
"""Which rows of a file a task takes, and with what columns."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from consumerd.landing.ranges import EMPTY, RangeSet
from consumerd.model import Gap, GapReason, Incarnation, PartitionKey, TopicPartition
from consumerd.spark.bronze_rows import FilePiece, read_piece
from consumerd.spark.bronze_table import SCHEMA
from consumerd.spark.bronze_tasks import copy_pieces, plan_tasks
from consumerd.spark.landed_rows import LandedContent
from consumerd.spark.table.commit import Bounds, DataFile
from consumerd.spark.table.parquet_files import FileSettings
from tests.support.intake import plan_intake
from tests.support.landing_zone import FIRST_MS, LandingZone
from tests.support.record_batches import record

DAY_MS = 86_400_000


def make_piece(
    path: Path, count: int, ranges: RangeSet | None, contested: RangeSet = EMPTY, **others: object
) -> FilePiece:
    return FilePiece(
        content=content(path, count),
        topic="orders",
        incarnation="7",
        broker=None,
        partition=0,
        ranges=ranges,
        contested=contested,
        **others,  # type: ignore[arg-type]  # of the fields' own types
    )


def content(path: Path, count: int) -> LandedContent:
    return LandedContent(path=str(path), partition=TopicPartition.modern("orders", 0), extension="parquet", count=count)


def offsets_of(piece: FilePiece) -> list[int]:
    return [offset for part in read_piece(piece) for offset in part.rows["offset"].to_pylist()]


def test_offsets_of_the_ranges_are_taken_and_no_others(tmp_path: Path) -> None:
    """The rest of the file is in the table, or comes from a higher chain."""
    (path,) = LandingZone(tmp_path).land("orders", 0, 0, 100)

    assert offsets_of(make_piece(path, 100, None)) == list(range(100))
    assert offsets_of(make_piece(path, 100, RangeSet.of([(0, 3), (50, 51), (97, 200)]))) == [0, 1, 2, 50, 97, 98, 99]
    assert offsets_of(make_piece(path, 100, EMPTY)) == []


def test_contested_offsets_are_taken_where_neither_file_nor_table_has_them(tmp_path: Path) -> None:
    """A file that summed its gaps up may have an offset or not; only its rows tell."""
    zone = LandingZone(tmp_path / "landing")
    (path,) = zone.land("orders", 0, 0, 20)
    *_, earlier = zone.land("orders", 0, 4, 8, request="again")
    table = tmp_path / "table.parquet"
    rows = [(10, 0, "7", None), (11, 1, "7", None), (12, 0, "8", None), (13, 0, "7", 1), (14, 0, "7", None)]
    names = ["offset", "index", "incarnation", "broker"]
    columns = {name: [row[place] for row in rows] for place, name in enumerate(names)}
    pq.write_table(pa.table({**columns, "partition": [0, 0, 0, 0, 5]}), table)
    piece = make_piece(
        path,
        20,
        RangeSet.of([(0, 2)]),
        RangeSet.of([(3, 19)]),
        earlier=(content(earlier, 4),),
        table_files=(str(table),),
    )

    assert offsets_of(piece) == [0, 1, 3, 8, 9, 11, 12, 13, 14, 15, 16, 17, 18]


def test_contested_offsets_that_an_earlier_file_gave_as_contested_are_not_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three chains have the same offsets; of the newer two neither says which of them it lacks."""
    zone = LandingZone(tmp_path / "landing")
    zone.land("orders", 0, 0, 60)
    monkeypatch.setattr("consumerd.landing.chain.GapLedger.__init__.__defaults__", (5,))
    for request, step in (("second", 2), ("third", 3)):
        holes = [Gap(offset, offset + 1, GapReason.COMPACTION) for offset in range(10, 50, step)]
        zone.land("orders", 0, 5, 55, request=request, gaps=holes)
    monkeypatch.undo()
    plan = plan_intake([zone.path])
    pieces = [piece for group in plan_tasks(plan, [], Path(), cores=1) for piece in group]

    assert [bool(piece.contested) for piece in pieces] == [False, True, True]
    assert sorted(offset for piece in pieces for offset in offsets_of(piece)) == list(range(60))


def test_contested_offsets_that_no_file_can_have_are_taken(tmp_path: Path) -> None:
    """By their bounds neither the files before this one nor those of the table reach them."""
    (path,) = LandingZone(tmp_path).land("orders", 0, 0, 20)

    assert offsets_of(make_piece(path, 20, EMPTY, RangeSet.of([(3, 6)]))) == [3, 4, 5]


def test_rows_have_the_columns_of_bronze(tmp_path: Path) -> None:
    """Spark is told this schema, and takes columns by their place."""
    (path,) = LandingZone(tmp_path).land("orders", 0, 0, 3)
    (part,) = read_piece(make_piece(path, 3, None))
    rows = part.with_folders()

    assert part.folders == ("orders", "2023-11-14")
    assert rows.schema.names == [field.name for field in SCHEMA.fields]
    assert (rows["topic"].to_pylist(), rows["day"].to_pylist()) == (["orders"] * 3, [date(2023, 11, 14)] * 3)
    assert rows["landed"][0].value == path.stat().st_mtime_ns // 1000


def test_tasks_have_runs_of_files_and_together_all_of_them(tmp_path: Path) -> None:
    """Each file of the table then holds a range of offsets, and no task waits for another."""
    zone = LandingZone(tmp_path)
    zone.land("orders", 0, 0, 200, files=20)
    plan = plan_intake([zone.path])
    few = plan_tasks(plan, [], Path(), cores=4)
    paths = [piece.content.path for group in few for piece in group]

    assert len(few) == 1  # too little for more
    assert paths == [str(path) for path in zone.files("orders", 0)]
    assert plan.files[0].log.incarnation == Incarnation(7)
    assert plan.files[0].log.partition == PartitionKey(0)


@pytest.mark.parametrize(
    ("topic", "partitions", "offsets", "compared"),
    [
        ("orders", (0, 0), (0, 10), True),
        ("orders", (0, 0), (0, 9), False),
        ("orders", (0, 0), (14, 30), True),
        ("orders", (0, 0), (15, 30), False),
        ("orders", (0, 0), (11, 11), True),
        ("orders", (0, 3), (0, 99), True),
        ("orders", (1, 3), (0, 99), False),
        ("payments", (0, 0), (0, 99), False),
    ],
)
def test_contested_offsets_are_held_against_every_file_of_the_table_that_reaches_them(
    tmp_path: Path, topic: str, partitions: tuple[int, int], offsets: tuple[int, int], compared: bool
) -> None:
    """Bounds are the first and the last value there is: a file that ends with a contested offset may have its record."""
    zone = LandingZone(tmp_path / "landing")
    zone.land("orders", 0, 0, 20)
    whole = plan_intake([zone.path])
    contested = RangeSet.of([(10, 12), (13, 15)])
    planned = replace(whole.files[0], ranges=RangeSet.of([(0, 10)]), contested=contested, whole=False)
    bounds = {
        name: Bounds(low=low, high=high) for name, (low, high) in (("partition", partitions), ("offset", offsets))
    }
    tabled = DataFile(path="some.parquet", size=1, rows=1, values=(topic, "2023-11-14"), bounds=bounds)

    [(piece,)] = plan_tasks(replace(whole, files=(planned,)), [tabled], tmp_path, cores=1)

    assert piece.table_files == ((str(tmp_path / "some.parquet"),) if compared else ())


def test_files_of_one_day_between_files_of_many_keep_each_days_order(tmp_path: Path) -> None:
    """A table's file of a day holds ascending offsets, whichever way the writer was given them."""
    days = [0] * 20 + [number % 70 for number in range(140)] + [0] * 20 + [0, 1] * 10
    zone = LandingZone(
        tmp_path / "landing", make=lambda _partition, _index, o: record(o, b"v", timestamp=FIRST_MS + days[o] * DAY_MS)
    )
    paths = [path for start in range(0, 200, 20) for path in zone.land("orders", 0, start, start + 20)]
    pieces = [make_piece(path, 20, None) for path in paths]
    copied = copy_pieces(pieces, tmp_path / "staged", prefix="a", settings=FileSettings())

    assert not copied.damaged
    first = date(2023, 11, 14)
    found = {}
    for file in copied.files:
        _, day = file.values
        found[day] = pq.read_table(tmp_path / "staged" / file.path, partitioning=None)["offset"].to_pylist()
    assert found == {
        (first + timedelta(days=day)).isoformat(): [offset for offset, other in enumerate(days) if other == day]
        for day in set(days)
    }


def test_records_without_a_timestamp_are_of_the_day_of_their_landing(tmp_path: Path) -> None:
    """As those of Kafka 0.8 and 0.9."""
    zone = LandingZone(tmp_path, make=lambda _partition, _index, o: record(o, b"v"))
    (path,) = zone.land("orders", 0, 0, 3)
    (part,) = read_piece(make_piece(path, 3, None))

    day = datetime.fromtimestamp(path.stat().st_mtime, UTC).date()
    assert part.folders == ("orders", day.isoformat())
    assert part.with_folders()["day"].to_pylist() == [day] * 3
