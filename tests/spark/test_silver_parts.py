# SPDX-License-Identifier: Apache-2.0
"""Silver in commits of bounded size, with Spark, and killed between them."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml
from pyspark.sql import SparkSession

from consumerd import failpoints
from consumerd.config.job import JobSettings
from consumerd.spark.quarantine import purge
from consumerd.spark.quarantine_marks import Mark, find_places, mark_replayed
from consumerd.spark.quarantine_rows import Choice, count_replayed
from consumerd.spark.silver_progress import DECODED_FILES, DECODING
from consumerd.spark.table.commit import LOG_FOLDER, Operation
from consumerd.spark.table.reading import read_table
from consumerd.spark.table.transaction import open_table
from tests.spark.test_silver import BAD, GOOD, numbers, of_kinds, offsets, rebuilding, run, settings
from tests.spark.test_silver_interrupted import compact_and_vacuum
from tests.support.bronze import run_bronze
from tests.support.lake import make_order
from tests.support.landing_zone import LandingZone
from tests.support.processes import end_all_in

pytestmark = pytest.mark.records


@pytest.fixture
def zone(tmp_path: Path) -> LandingZone:
    return LandingZone(tmp_path / "landing", make=make_order)


@pytest.fixture
def given(tmp_path: Path) -> JobSettings:
    """A commit for each file of bronze, without the table of latest values."""
    found = settings(tmp_path, latest=False)
    bounded = found.pipeline.silver.model_copy(update={"commit_bytes": 1})
    return JobSettings(pipeline=found.pipeline.model_copy(update={"silver": bounded}))


@pytest.fixture
def _all_gone(tmp_path: Path) -> Iterator[None]:
    yield
    end_all_in(tmp_path)


def land_versions(spark: SparkSession, zone: LandingZone, lake: Path, *ends: int) -> None:
    """Land records up to each end, a version of bronze for each."""
    for start, end in itertools.pairwise(ends):
        zone.land("orders", 0, start, end)
        run_bronze(spark, [zone], lake / "bronze")


def assert_each_once(spark: SparkSession, lake: Path, end: int) -> None:
    found = {name: offsets(spark, lake / name) for name in ("silver/orders", "quarantine")}
    assert found == {"silver/orders": of_kinds(end, GOOD), "quarantine": of_kinds(end, BAD)}


def test_first_run_versions_and_a_rebuild_in_parts(
    spark: SparkSession, zone: LandingZone, given: JobSettings, tmp_path: Path
) -> None:
    """A rebuild is one commit: readers see it whole or not at all."""
    lake = tmp_path / "lake"
    land_versions(spark, zone, lake, 0, 30, 60, 100)
    first = run(spark, given)
    land_versions(spark, zone, lake, 100, 120, 130)
    second = run(spark, given)
    rebuilt = run(spark, rebuilding(given))
    table = open_table(lake / "silver" / "orders")

    assert [(100, 70, 30), (30, 21, 9), (130, 91, 39)] == [numbers(one) for one in (first, second, rebuilt)]
    commits = list(table.log.read_after(0))
    assert [Operation.APPEND] * 5 + [Operation.REPLACE] == [commit.operation for commit in commits]
    assert [(3, 1), (3, 2), (0, 0)] == [
        (commit.progress[DECODING], commit.progress[DECODED_FILES]) for commit in commits[:3]
    ]
    assert len(table.snapshot().files) == 5  # one for each Spark job
    assert_each_once(spark, lake, 130)


def test_a_rebuild_in_parts_keeps_marks_and_purges_hold(
    spark: SparkSession, zone: LandingZone, given: JobSettings, tmp_path: Path
) -> None:
    """Marks are found in all files of the rebuild; purged records stay away though their files and versions have moved."""
    lake = tmp_path / "lake"
    land_versions(spark, zone, lake, 0, 30, 60, 100)
    run(spark, given)
    table = open_table(lake / "quarantine")
    places = find_places(read_table(spark, table.path).where("cause = 'late'")).persist()
    mark = Mark(at=datetime.now(UTC), target="there")
    assert mark_replayed(spark, table, places, topic="orders", plan="replay:1", mark=mark) == 10
    places.unpersist()
    assert purge(table, Choice(cause="bad key"), now_ms=1).rows.total() == 10
    assert numbers(run(spark, rebuilding(given))) == (100, 70, 30)

    assert_each_once(spark, lake, 100)
    marked = read_table(spark, table.path).where("replayed_to = 'there'").select("cause", "offset").collect()
    assert {("late", offset) for offset in range(3, 100, 10)} == {tuple(row) for row in marked}
    assert len(marked) == 10
    assert purge(table, Choice(cause="bad key"), now_ms=1).rows.total() == 10
    land_versions(spark, zone, lake, 100, 110, 120, 130)
    compact_and_vacuum(spark, lake / "bronze")
    summary = run(spark, given)
    assert numbers(summary) == (30, 21, 9)
    assert [] == [finding for finding in summary.findings if "are in quarantine" not in finding]
    purged = {*range(2, 100, 10)}
    assert [one for one in of_kinds(130, BAD) if one not in purged] == offsets(spark, lake / "quarantine")
    assert count_replayed(table, table.snapshot().files.values()) == 10


@pytest.mark.usefixtures("_all_gone")
@pytest.mark.parametrize("point", ["after_table_commit=kill@3", "before_table_commit=kill@4"])
@pytest.mark.parametrize("is_moved", [False, True], ids=["as it was", "compacted"])
def test_job_killed_in_its_second_part_and_run_again_has_each_record_once(
    spark: SparkSession, zone: LandingZone, given: JobSettings, tmp_path: Path, point: str, *, is_moved: bool
) -> None:
    """The quarantine has the second part then, and the topic's table has the first."""
    lake = tmp_path / "lake"
    land_versions(spark, zone, lake, 0, 30, 60, 100)
    config = tmp_path / "pipeline.yaml"
    config.write_text(yaml.safe_dump({"pipeline": given.pipeline.model_dump(mode="json", exclude_unset=True)}))
    died = subprocess.run(
        [sys.executable, "-m", "consumerd.spark", "silver", "--config", str(config), "--master", "local[1]"],
        cwd=tmp_path,
        env={**os.environ, failpoints.VARIABLE: point, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (died.returncode, "fail_point_reached" in died.stderr) == (-signal.SIGKILL, True), died.stderr
    assert 1 == len([*(lake / "silver" / "orders" / LOG_FOLDER).glob("*.json")]) - 1
    assert len(offsets(spark, lake / "quarantine")) > 9
    if is_moved:
        compact_and_vacuum(spark, lake / "bronze")
    land_versions(spark, zone, lake, 100, 130)

    summary = run(spark, given)

    assert [] == [finding for finding in summary.findings if "are in quarantine" not in finding]
    assert_each_once(spark, lake, 130)
