# SPDX-License-Identifier: Apache-2.0
"""A bronze job that dies, as a process with all that it has started, and is run again."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from consumerd import failpoints
from consumerd.spark.table.transaction import open_table
from tests.support.bronze import expected_rows, read_bronze, run_bronze
from tests.support.landing_zone import LandingZone
from tests.support.processes import end_all_in
from tests.support.tables import plain_offsets

pytestmark = pytest.mark.records


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "bronze"


@pytest.fixture
def _all_gone(tmp_path: Path) -> Iterator[None]:
    yield
    end_all_in(tmp_path)


@pytest.mark.usefixtures("_all_gone")
@pytest.mark.parametrize(
    ("points", "ends"),
    [
        ("before_table_file=kill", 1),  # a task's process: the job fails
        ("after_table_commit=kill", -signal.SIGKILL),
    ],
)
def test_job_killed_and_run_again_has_each_record_once(
    spark: SparkSession, zone: LandingZone, table: Path, tmp_path: Path, points: str, ends: int
) -> None:
    """A task's process dies, and the job behind its commit: this is the whole, with Spark.

    tests/unit/spark/table/test_transaction.py kills all steps of a commit one by one, without Spark.
    """
    zone.land("orders", 0, 0, 300, files=3)
    zone.land("orders", 0, 200, 400, request="again")
    command = [sys.executable, "-m", "consumerd.spark", "bronze", "--landing", str(zone.path), "--master", "local[1]"]
    died = subprocess.run(
        [*command, "--set", f"pipeline.bronze.path={table}"],
        cwd=tmp_path,
        env={**os.environ, failpoints.VARIABLE: points, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (died.returncode, "fail_point_reached" in died.stderr) == (ends, True), died.stderr
    run_bronze(spark, [zone], table)

    assert expected_rows(zone) == read_bronze(spark, table)
    assert plain_offsets(open_table(table)) == sorted(identity.offset for identity in zone.expected)
    shutil.rmtree(table)
