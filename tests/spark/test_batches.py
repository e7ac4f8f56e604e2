# SPDX-License-Identifier: Apache-2.0
"""``append_batches``: each micro-batch is in the table once, though Spark repeats it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from consumerd import failpoints
from consumerd.spark import append_batches, read_table
from consumerd.spark.table import log as table_log
from consumerd.spark.table.transaction import open_table
from tests.support.processes import end_all_in

pytestmark = pytest.mark.records

PROGRAM = """
import sys
from pathlib import Path
from consumerd.spark import local_session
from tests.spark.test_batches import run_query

run_query(local_session("killed", master="local[1]"), Path(sys.argv[1]))
"""
QUERY_ID = "sql.streaming.queryId"


def run_query(spark: SparkSession, folder: Path) -> None:
    """Append lines of files, a micro-batch a file, from the checkpoint on."""
    lines = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(folder / "lines"))
    append = append_batches(folder / "lake", name="lines")
    writer = lines.writeStream.foreachBatch(append).option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(300)
    finally:
        query.stop()


@pytest.fixture
def _all_gone(tmp_path: Path) -> Iterator[None]:
    yield
    end_all_in(tmp_path)


@pytest.mark.usefixtures("_all_gone")
def test_a_query_killed_between_commit_and_checkpoint_has_each_row_once(spark: SparkSession, tmp_path: Path) -> None:
    """Spark has not noted the end of the second batch, and gives it again."""
    (tmp_path / "lines").mkdir()
    for number in range(3):
        (tmp_path / "lines" / f"{number}.txt").write_text(f"{number}\n")
    killed = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        cwd=tmp_path,
        env={
            **os.environ,
            failpoints.VARIABLE: "after_table_commit=kill@2",
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path]),
        },
        capture_output=True,
        text=True,
        check=False,
    )

    assert killed.returncode == -signal.SIGKILL, killed.stderr[-2000:]
    assert open_table(tmp_path / "lake").snapshot().version == 2
    assert [path.name for path in (tmp_path / "checkpoint" / "commits").glob("[0-9]*")] == ["0"]
    run_query(spark, tmp_path)
    rows = read_table(spark, tmp_path / "lake").collect()
    assert sorted(row["value"] for row in rows) == ["0", "1", "2"]


def test_a_batch_whose_plan_has_expired_is_not_appended_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After months the log has forgotten a query's plans; the table's progress has not."""
    monkeypatch.setattr(table_log, "CHECKPOINT_EVERY", 2)
    append = append_batches(tmp_path / "lake", name="numbers")
    spark.sparkContext.setLocalProperty(QUERY_ID, "a-query")
    try:
        for number in range(4):
            append(spark.range(number, number + 1), number)
        open_table(tmp_path / "lake").log.expire(2**50)
        assert open_table(tmp_path / "lake").log.oldest() > 1
        append(spark.range(1), 0)
        append(spark.range(3, 4), 3)
    finally:
        spark.sparkContext.setLocalProperty(QUERY_ID, None)  # type: ignore[arg-type] # Spark's way to unset it

    assert sorted(row["id"] for row in read_table(spark, tmp_path / "lake").collect()) == [0, 1, 2, 3]
