# SPDX-License-Identifier: Apache-2.0
"""Compaction changes files, and no row; readers at work see every row once."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from consumerd.config.job import JobSettings
from consumerd.spark.compact import compact_table, run
from consumerd.spark.job import Silent
from consumerd.spark.table.commit import Operation
from consumerd.spark.table.errors import VersionVacuumed
from consumerd.spark.table.reading import read_increment, read_table
from consumerd.spark.table.transaction import Table, open_table
from tests.support.bronze import expected_rows, read_bronze, run_bronze
from tests.support.landing_zone import LandingZone
from tests.support.tables import wait_past

pytestmark = pytest.mark.records

TARGET = 1 << 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "bronze"


def fill(spark: SparkSession, zone: LandingZone, path: Path, runs: int = 4) -> Table:
    """Make a table of small files whose offsets lie in no order."""
    for turn in reversed(range(runs)):
        for partition in (1, 0):
            zone.land("orders", partition, turn * 50, turn * 50 + 50, request=f"{turn}")
        run_bronze(spark, [zone], path)
    return open_table(path)


def compact(spark: SparkSession, table: Table) -> int:
    """Compact a table as far as it goes, and return how many files were replaced."""
    return compact_table(lambda: spark, table, target_bytes=TARGET, progress=Silent()).removed


def test_small_files_become_one_sorted_file_of_the_same_rows(
    spark: SparkSession, zone: LandingZone, path: Path
) -> None:
    """A range of offsets is then in one place of one file, and the log says in which."""
    table = fill(spark, zone, path)
    before = len(table.snapshot().files)
    removed = compact(spark, table)
    snapshot = table.snapshot()
    (file,) = snapshot.files.values()
    rows = pq.read_table(table.path / file.path, columns=["partition", "offset"], partitioning=None).to_pylist()

    assert removed == before > 1
    assert expected_rows(zone) == read_bronze(spark, path)
    assert rows == sorted(rows, key=lambda row: (row["partition"], row["offset"]))
    assert (file.bounds["offset"].low, file.bounds["offset"].high) == (0, 199)
    assert (file.bounds["partition"].low, file.bounds["partition"].high) == (0, 1)
    assert table.log.read(snapshot.version).operation is Operation.COMPACT
    assert compact(spark, table) == 0
    assert read_increment(spark, path, after=snapshot.version - 1).count() == 0
    assert read_increment(spark, path, after=3).count() == 100  # what the compaction replaced is still there
    run_bronze(spark, [zone], path)
    assert table.snapshot() == snapshot


def test_readers_at_work_neither_miss_a_row_nor_see_one_twice(
    spark: SparkSession, zone: LandingZone, path: Path
) -> None:
    """Files are replaced beneath them, again and again, and old ones are removed."""
    table = fill(spark, zone, path, runs=2)
    expected = Counter(identity for identity, _ in expected_rows(zone))
    over = threading.Event()
    wrong: list[object] = []
    reads = Counter[str]()

    def read() -> None:
        while not over.is_set() or not reads["whole"]:
            version = open_table(path).snapshot().version
            found = Counter(identity for identity, _ in read_bronze(spark, path, version))
            held = Counter(dict.fromkeys(found, 1))
            if found != held or any(identity not in found for identity in expected):
                wrong.append((version, found - held, expected - found))
            reads["whole"] += 1

    thread = threading.Thread(target=read)
    thread.start()
    try:
        for turn in range(2, 5):
            zone.land("orders", 0, turn * 50, turn * 50 + 50)
            run_bronze(spark, [zone], path)
            compact(spark, table)
    finally:
        over.set()
        thread.join(60)

    assert wrong == []
    assert expected_rows(zone) == read_bronze(spark, path)


def test_reader_that_began_before_reads_the_version_that_it_began_with(
    spark: SparkSession, zone: LandingZone, path: Path
) -> None:
    """Its files stay until a vacuum, and after it the error says what happened."""
    table = fill(spark, zone, path, runs=2)
    old = read_table(spark, path)
    version = table.snapshot().version
    settings = JobSettings.model_validate(
        {"pipeline": {"bronze": {"path": str(path)}, "compact": {"target_bytes": TARGET, "min_files": 2}}}
    )
    run(lambda: spark, settings, Silent())

    assert old.count() == read_table(spark, path, version).count() == len(zone.expected)
    brief = settings.model_copy(
        update={
            "pipeline": settings.pipeline.model_copy(
                update={"compact": settings.pipeline.compact.model_copy(update={"keep_ms": 0})}
            )
        }
    )
    wait_past([open_table(path)])
    summary = run(lambda: spark, brief, Silent())
    assert summary.numbers["files_vacuumed"] == 2
    assert read_table(spark, path).count() == len(zone.expected)
    with pytest.raises(VersionVacuumed, match="has been removed"):
        read_table(spark, path, version)
    with pytest.raises(VersionVacuumed, match="has been removed"):
        read_increment(spark, path, after=1)
    assert read_increment(spark, path, after=0).count() == len(zone.expected)
