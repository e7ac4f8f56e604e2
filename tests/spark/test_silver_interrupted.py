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
from tests.spark.test_silver import BAD, GOOD, make_order, numbers, of_kinds, offsets, run, settings
from tests.support.bronze import run_bronze
from tests.support.landing_zone import LandingZone
from tests.support.processes import pids_in, wait_gone


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
    for pid in pids_in(tmp_path):
        os.kill(pid, signal.SIGKILL)
    wait_gone(tmp_path)


def land(spark: SparkSession, zone: LandingZone, lake: Path, start: int, end: int) -> None:
    zone.land("orders", 0, start, end)
    run_bronze(spark, [zone], lake / "bronze")


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
