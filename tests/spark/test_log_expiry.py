# SPDX-License-Identifier: Apache-2.0
"""Logs and files that end, and work that is not done twice all the same."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from consumerd.config.job import JobSettings
from consumerd.config.pipeline import Pipeline
from consumerd.model import Incarnation, TopicPartition
from consumerd.spark import append_batches, compact, read_table, silver, stats
from consumerd.spark.job import Silent
from consumerd.spark.table import log as table_log
from consumerd.spark.table import log_files
from consumerd.spark.table.commit import LOG_FOLDER, Operation
from consumerd.spark.table.transaction import Table, create_table, open_table
from consumerd.wire.records import Record
from tests.support.bronze import run_bronze
from tests.support.landing_zone import LandingZone
from tests.support.record_batches import record
from tests.support.tables import wait_past

FIRST_MS = 1_700_000_000_000
TABLES = ("bronze", "silver/orders", "quarantine", "latest/orders", "stats")


def make_record(partition: TopicPartition, incarnation: Incarnation, offset: int) -> Record:
    """Return a record of one of 500 keys; each 50th value is no JSON."""
    value = b"{" if offset % 50 == 0 else json.dumps({"n": offset}).encode()
    return record(offset, value, key=b"k%d" % (offset % 500), timestamp=FIRST_MS + offset)


def make_settings(lake: Path) -> JobSettings:
    topics = {"orders": {"key": "utf8", "value": {"format": "json", "fields": {"n": "bigint"}}, "latest": True}}
    return JobSettings(
        pipeline=Pipeline.model_validate({"path": str(lake), "silver": {"topics": topics}, "compact": {"keep_ms": 0}})
    )


def run_jobs(spark: SparkSession, zone: LandingZone, settings: JobSettings, lake: Path) -> None:
    run_bronze(spark, [zone], lake / "bronze")
    silver.run(lambda: spark, settings, Silent())
    stats.run(lambda: spark, settings, Silent())


def count_rows(lake: Path) -> list[int]:
    return [open_table(lake / name).snapshot().rows for name in TABLES]


def expire_plans(table: Table) -> None:
    """Commit nothing a few times, and expire all before that."""
    before = table.snapshot().plans
    for _ in range(3):
        with table.begin(plan=uuid.uuid4().hex, job="test", operation=Operation.APPEND) as transaction:
            transaction.commit()
    version = table.snapshot().version
    table.log.publish_checkpoint(version)
    table.log.expire(2**60)
    assert table.log.oldest() == version
    assert not before.keys() & table.snapshot().plans.keys()


def test_work_whose_plan_has_expired_is_not_done_again(spark: SparkSession, tmp_path: Path) -> None:
    """Plans go with their commits. Coverage and progress stay, and they protect the rows."""
    zone, lake = LandingZone(tmp_path / "landing", make=make_record), tmp_path / "lake"
    settings = make_settings(lake)
    batch = spark.range(5).selectExpr("id", "'a' AS topic")
    append = append_batches(lake / "raw", name="raw", partition_by=["topic"], bounds=["id"])
    spark.sparkContext.setLocalProperty("sql.streaming.queryId", "6bd1c2f0")
    try:
        for number in range(4):
            zone.land("orders", 0, number * 100, number * 100 + 100)
            run_jobs(spark, zone, settings, lake)
            append(batch, number)
        compact.run(lambda: spark, settings, Silent())
        rows = count_rows(lake)
        assert rows == [400, 392, 8, 392, rows[4]]

        for name in (*TABLES, "raw"):
            expire_plans(open_table(lake / name))
        run_jobs(spark, zone, settings, lake)
        compact.run(lambda: spark, settings, Silent())
        append(batch, 3)
        assert rows == count_rows(lake)
        assert read_table(spark, lake / "raw").count() == 20

        zone.land("orders", 0, 400, 450)
        run_jobs(spark, zone, settings, lake)
        append(batch, 4)
        assert count_rows(lake)[:4] == [450, 441, 9, 441]
        assert read_table(spark, lake / "raw").count() == 25
    finally:
        spark.sparkContext.setLocalProperty("sql.streaming.queryId", None)


def test_table_of_a_stream_is_bounded(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its commits bound its log, and ``compact`` its files, though no setting names it."""
    monkeypatch.setattr(table_log, "CHECKPOINT_EVERY", 5)
    monkeypatch.setattr(table_log, "MAX_COMMITS", 10)
    monkeypatch.setattr(log_files, "CHECKPOINT_EVERY", 5)
    monkeypatch.setattr(log_files, "KEEP_ONE_IN", 10)
    batch = spark.createDataFrame([(1, "a")], "id INT, topic STRING")
    append = append_batches(tmp_path / "raw", name="raw", partition_by=["topic"])
    spark.sparkContext.setLocalProperty("sql.streaming.queryId", "6bd1c2f0")
    try:
        for number in range(23):
            append(batch, number)
    finally:
        spark.sparkContext.setLocalProperty("sql.streaming.queryId", None)

    table = open_table(tmp_path / "raw")
    assert (table.log.oldest(), table.log.latest()) == (10, 23)
    checkpoints = sorted(path.name for path in (tmp_path / "raw" / LOG_FOLDER).glob("*.checkpoint.parquet"))
    assert [f"{version:020d}.checkpoint.parquet" for version in (10, 15, 20)] == checkpoints
    assert read_table(spark, tmp_path / "raw").count() == 23

    (tmp_path / "other").mkdir()
    theirs = create_table(tmp_path / "other", name="theirs", schema=batch.schema.json(), partition_by=())
    wait_past([table])
    done = compact.run(lambda: spark, make_settings(tmp_path), Silent())
    assert (done.numbers["tables"], done.numbers["files_replaced"], done.numbers["files_vacuumed"]) == (1, 23, 23)
    assert read_table(spark, tmp_path / "raw").count() == 23
    assert theirs.log.latest() == 0


def test_runs_of_all_jobs_leave_nothing_on_the_disk(spark: SparkSession, tmp_path: Path) -> None:
    """``stats`` and ``latest`` replace files with each run, 144 times a day as shipped."""
    zone, lake = LandingZone(tmp_path / "landing", make=make_record), tmp_path / "lake"
    settings = make_settings(lake)
    sizes: list[dict[str, int]] = []
    for turn in range(5):
        zone.land("orders", 0, 1000 + turn * 10 if turn else 0, 1010 + turn * 10)
        run_jobs(spark, zone, settings, lake)
        wait_past([open_table(lake / name) for name in TABLES if (lake / name / LOG_FOLDER).exists()])
        done = compact.run(lambda: spark, settings, Silent())
        assert turn == 0 or int(str(done.numbers["files_vacuumed"])) > 0
        found = {}
        for name in TABLES:
            table = open_table(lake / name)
            on_disk = {str(path.relative_to(table.path)) for path in data_files(table)}
            assert on_disk == set(table.snapshot().files), name
            found[name] = sum(path.stat().st_size for path in data_files(table))
        sizes.append(found)
    for name in ("latest/orders", "stats"):
        assert sizes[4][name] < 1.5 * sizes[0][name]
    assert len(data_files(open_table(lake / "stats"))) <= 2
    assert count_rows(lake)[:4] == [1050, 1029, 21, 490]


def data_files(table: Table) -> list[Path]:
    """Return all Parquet files but those of the log and of staging."""
    found = table.path.rglob("*.parquet")
    return [path for path in found if not any(part.startswith("_") for part in path.relative_to(table.path).parts)]
