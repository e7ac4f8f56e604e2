# SPDX-License-Identifier: Apache-2.0
"""The session that users and jobs get is quiet, local, and runs this interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from consumerd.config.pipeline import SessionSection
from consumerd.spark.session import find_session, job_session, local_session

PROGRAM = """
from consumerd.spark.session import local_session, stop_session
spark = local_session(master="local[1]")
import sys
[(worker,)] = spark.range(1).mapInArrow(
    lambda batches: (batch.set_column(0, "id", __import__("pyarrow").array([sys.executable])) for batch in batches),
    "id string",
).collect()
print(worker)
print(spark.conf.get("spark.driver.host"), spark.conf.get("spark.sql.session.timeZone"), spark.sparkContext.uiWebUrl)
spark.sql("select 1").write.parquet("written")
stop_session(spark)
"""


def test_a_session_of_its_own_says_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    """The first thing that a new user sees of Spark is otherwise six lines of warnings."""
    work, temporary = tmp_path / "work", tmp_path / "temporary files"
    work.mkdir()
    temporary.mkdir()
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=work,
        env={**os.environ, "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert ("", 0) == (ended.stderr, ended.returncode)
    assert [sys.executable, "127.0.0.1 UTC None"] == ended.stdout.splitlines()
    assert ["written"] == [path.name for path in work.iterdir()]
    assert [] == list(temporary.iterdir())


def test_the_process_has_one_session(spark: SparkSession) -> None:
    """A job in a notebook, or under spark-submit, must not start a second Spark beside the first."""
    assert find_session() is not None
    assert spark.sparkContext is local_session("another", master="local[1]").sparkContext
    assert spark.sparkContext is job_session(SessionSection(master="local[1]"), "a job").sparkContext


def test_what_the_launch_needs_does_not_stay(spark: SparkSession) -> None:
    """Other children of the process look for their own Java."""
    assert spark.version
    assert "CONSUMERD_JAVA" not in os.environ
    assert sys.executable == os.environ["PYSPARK_PYTHON"]


@pytest.mark.parametrize("setting", ["spark.ui.enabled", "spark.ui.showConsoleProgress"])
def test_nothing_is_shown_besides_what_a_job_prints(spark: SparkSession, setting: str) -> None:
    """A bar of Spark's own would overwrite progress and summary."""
    assert "false" == spark.conf.get(setting)
