# SPDX-License-Identifier: Apache-2.0
"""Silver and quarantine together are bronze, each record once, where a run dies between its two commits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from pyspark.sql import SparkSession

from consumerd import failpoints
from consumerd.config.job import JobSettings
from consumerd.spark.compact import compact_table
from consumerd.spark.job import Silent
from consumerd.spark.latest import read_latest
from consumerd.spark.table.commit import LOG_FOLDER
from consumerd.spark.table.parquet_files import FileSettings
from consumerd.spark.table.transaction import Table, open_table
from consumerd.spark.table.vacuum import vacuum
from tests.spark.test_silver import BAD, GOOD, numbers, of_kinds, offsets, run, settings
from tests.support.bronze import run_bronze
from tests.support.lake import make_order
from tests.support.landing_zone import LandingZone
from tests.support.processes import end_all_in

WEEK_MS = 7 * 24 * 3600 * 1000

pytestmark = pytest.mark.records


@pytest.fixture
def zone(tmp_path: Path) -> LandingZone:
    return LandingZone(tmp_path / "landing", make=make_order)


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def given(tmp_path: Path) -> JobSettings:
    return settings(tmp_path, latest=False)


@pytest.fixture
def _all_gone(tmp_path: Path) -> Iterator[None]:
    yield
    end_all_in(tmp_path)


def land(spark: SparkSession, zone: LandingZone, lake: Path, start: int, end: int) -> None:
    zone.land("orders", 0, start, end)
    run_bronze(spark, [zone], lake / "bronze")


def forget_newest(path: Path) -> None:
    """Make a table what it was before its last commit, as if the job had died just before that."""
    table = open_table(path)
    (table.log.path / LOG_FOLDER / f"{table.snapshot().version:020d}.json").unlink()


def vacuum_now(table: Table) -> None:
    vacuum(table, keep_ms=0, keep_log_ms=WEEK_MS, now_ms=table.log.read(table.snapshot().version).time_ms + 1)


def compact_and_vacuum(spark: SparkSession, path: Path) -> None:
    table = open_table(path)
    compact_table(lambda: spark, table, target_bytes=1 << 20, settings=FileSettings(), progress=Silent())
    vacuum_now(table)


def assert_each_once(spark: SparkSession, lake: Path, start: int, end: int) -> None:
    expected = {"silver/orders": GOOD, "quarantine": BAD}
    assert {
        name: [offset for offset in of_kinds(end, kinds) if offset >= start] for name, kinds in expected.items()
    } == {name: offsets(spark, lake / name) for name in expected}


@pytest.mark.usefixtures("_all_gone")
def test_job_killed_between_its_commits_and_run_again_has_each_record_once(
    spark: SparkSession, zone: LandingZone, lake: Path, given: JobSettings, tmp_path: Path
) -> None:
    """The quarantine is committed then, and the topic's table is not."""
    land(spark, zone, lake, 0, 100)
    config = tmp_path / "pipeline.yaml"
    config.write_text(yaml.safe_dump({"pipeline": given.pipeline.model_dump(mode="json", exclude_unset=True)}))
    died = subprocess.run(
        [sys.executable, "-m", "consumerd.spark", "silver", "--config", str(config), "--master", "local[1]"],
        cwd=tmp_path,
        env={
            **os.environ,
            failpoints.VARIABLE: "after_table_commit=kill",
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert (died.returncode, "fail_point_reached" in died.stderr) == (-signal.SIGKILL, True), died.stderr
    assert (offsets(spark, lake / "silver/orders"), offsets(spark, lake / "quarantine")) == ([], of_kinds(100, BAD))
    land(spark, zone, lake, 100, 130)

    summary = run(spark, given)

    assert (130, 91, 39) == numbers(summary)
    assert ("topic orders: 39 records are in quarantine",) == summary.findings
    assert_each_once(spark, lake, 0, 130)


def test_run_that_died_is_finished_though_its_files_have_moved(
    spark: SparkSession, zone: LandingZone, lake: Path, given: JobSettings
) -> None:
    """Vacuum came before the next run: what is in quarantine already is not read again, and counts."""
    land(spark, zone, lake, 0, 20)
    run(spark, given)
    land(spark, zone, lake, 20, 40)
    land(spark, zone, lake, 40, 60)
    bronze = open_table(lake / "bronze")
    compact_table(lambda: spark, bronze, target_bytes=1 << 20, settings=FileSettings(), progress=Silent())
    run(spark, given)
    forget_newest(lake / "silver" / "orders")
    vacuum_now(bronze)

    assert (40, 28, 12) == numbers(run(spark, given))
    assert_each_once(spark, lake, 0, 60)


def test_latest_values_survive_that_decoded_files_have_moved(
    spark: SparkSession, zone: LandingZone, lake: Path, given: JobSettings, tmp_path: Path
) -> None:
    """A run died before it came to them, and the next one is late."""
    with_latest = settings(tmp_path)
    land(spark, zone, lake, 0, 20)
    run(spark, with_latest)
    for start in (20, 40):
        land(spark, zone, lake, start, start + 20)
        run(spark, given)
    compact_and_vacuum(spark, lake / "silver" / "orders")
    run(spark, with_latest)

    found = {row["key"]: row["offset"] for row in read_latest(spark, lake / "latest" / "orders").collect()}
    assert {f"k{offset % 20}": offset for offset in range(40, 60) if offset % 10 in GOOD and offset % 10 != 4} == found
