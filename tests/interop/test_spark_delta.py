# SPDX-License-Identifier: Apache-2.0
"""The pipeline's tables as Spark's own Delta reads and changes them, with the releases of both that work together."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.bronze import run_bronze
from tests.support.delta_readers import Rows, rows_of
from tests.support.lake import TABLES, make_lake
from tests.support.landing_zone import LandingZone
from tests.support.reading_beside_jobs import assert_whole_versions, read_beside_jobs
from tests.support.spark_delta import SparkWithDelta, spark_with_delta
from tests.support.spark_reads import SparkJob, SparkRead, SparkReader, run_reads
from tests.support.tools import require_jars

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession

from consumerd.spark import local_session
from consumerd.spark.compact import compact_table
from consumerd.spark.job import Silent
from consumerd.spark.table.reading import read_table
from consumerd.spark.table.transaction import open_table
from consumerd.spark.table.vacuum import vacuum

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500), pytest.mark.records, pytest.mark.drawn(parts=3)]


@pytest.fixture(scope="module")
def delta() -> SparkWithDelta:
    """Skip, or fail where CI requires what is fetched, unless Delta is or can be had."""
    with require_jars():
        return spark_with_delta()


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """Our own session: it knows nothing of Delta."""
    session = local_session("interop", master="local[2]", settings={"spark.sql.shuffle.partitions": "2"})
    yield session
    session.stop()


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_lake(spark, tmp_path_factory.mktemp("pipeline"))


def read(delta: SparkWithDelta, folder: Path, reads: Sequence[SparkRead], statements: Sequence[str] = ()) -> list[Rows]:
    """Carry out statements and then reads with Delta, in one process, and return the rows of each."""
    job = SparkJob(reads=reads, statements=statements, settings=delta.settings)
    run_reads(job, folder, environment=delta.pyspark.environment(), timeout_s=1000.0)
    return [rows_of(pq.read_table(read.to, partitioning=None)) for read in reads]


def test_delta_reads_every_table_at_every_version(
    delta: SparkWithDelta, spark: SparkSession, lake: Path, tmp_path: Path
) -> None:
    """And what vacuum has kept, from a checkpoint of ours on."""
    reads, expected = [], []

    def expect(path: Path, version: int) -> None:
        options = {"path": str(path), "versionAsOf": str(version)}
        reads.append(SparkRead(format="delta", options=options, to=str(tmp_path / f"rows-{len(reads)}")))
        expected.append(rows_of(read_table(spark, path, version).toArrow()))

    for name in TABLES:
        newest = open_table(lake / name).snapshot()
        for version in range(1, newest.version + 1):
            expect(lake / name, version)
        kept = Path(shutil.copytree(lake / name, tmp_path / "kept" / name))
        vacuum(open_table(kept), keep_ms=0, now_ms=newest.time_ms, keep_log_ms=0)
        assert open_table(kept).log.oldest() > 0
        expect(kept, newest.version)

    assert read(delta, tmp_path / "job", reads) == expected


def test_delta_reads_whole_commits_while_jobs_compact_and_vacuum(
    delta: SparkWithDelta, spark: SparkSession, tmp_path: Path
) -> None:
    """One session of Delta, which keeps what it knows of a log, reads beside all jobs: each version, never half of one."""
    numbers = itertools.count()
    job = SparkJob(reads=(), settings=delta.settings)
    with SparkReader(job, tmp_path / "job", environment=delta.pyspark.environment()) as reader:

        def by_delta(path: Path, version: int) -> pa.Table:
            to = tmp_path / f"rows-{next(numbers)}"
            options = {"path": str(path), "versionAsOf": str(version)}
            reader.read(SparkRead(format="delta", options=options, to=str(to)))
            return pq.read_table(to, partitioning=None)

        seen = read_beside_jobs(spark, tmp_path, {"Spark's Delta": by_delta})

    assert_whole_versions(spark, seen)


def test_a_stream_from_a_table_has_each_row_once(delta: SparkWithDelta, spark: SparkSession, tmp_path: Path) -> None:
    """A compaction rewrites files and adds no rows: the log says so, and a stream of Delta passes it over."""
    zone, path = LandingZone(tmp_path / "landing"), tmp_path / "bronze"
    for turn in range(3):
        zone.land("orders", 0, turn * 100, turn * 100 + 100, files=2)
        run_bronze(spark, [zone], path)
        if turn == 1:
            compact_table(lambda: spark, open_table(path), target_bytes=1 << 20, progress=Silent())
    options = {"path": str(path), "startingVersion": "1"}
    streamed = SparkRead(format="delta", options=options, to=str(tmp_path / "rows"), streaming=True)

    [rows] = read(delta, tmp_path / "job", [streamed])

    assert rows == rows_of(read_table(spark, path).toArrow())


def test_jobs_go_on_with_a_table_that_delta_has_changed(
    delta: SparkWithDelta, spark: SparkSession, tmp_path: Path
) -> None:
    """Its OPTIMIZE and DELETE are commits as others are: nothing of what they removed comes again, and nothing is lost."""
    zone, path = LandingZone(tmp_path / "landing"), tmp_path / "bronze"
    for turn in range(2):
        zone.land("orders", 0, turn * 100, turn * 100 + 100, files=2)
        run_bronze(spark, [zone], path)
    statements = [f"OPTIMIZE delta.`{path}`", f"DELETE FROM delta.`{path}` WHERE offset < 50"]
    to = str(tmp_path / "rows-1")
    [changed] = read(
        delta, tmp_path / "job-1", [SparkRead(format="delta", options={"path": str(path)}, to=to)], statements
    )
    assert changed == rows_of(read_table(spark, path).toArrow())
    assert len(changed) == 150

    zone.land("orders", 0, 200, 300)
    summary = run_bronze(spark, [zone], path)
    compact_table(lambda: spark, open_table(path), target_bytes=1 << 20, progress=Silent())
    after = SparkRead(format="delta", options={"path": str(path)}, to=str(tmp_path / "rows-2"))
    [rows] = read(delta, tmp_path / "job-2", [after])

    assert summary.numbers["rows"] == 100
    assert rows == rows_of(read_table(spark, path).toArrow())
    assert sorted(read_table(spark, path).toArrow().column("offset").to_pylist()) == [*range(50, 300)]
