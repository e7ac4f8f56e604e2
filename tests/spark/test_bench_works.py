# SPDX-License-Identifier: Apache-2.0
"""The benchmark's works really run, on a handful of rows."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bench.spark import landing
from bench.spark.cases import CASES, Work
from bench.spark.works import WORKS, Done, Order

ROWS = 4000


@pytest.fixture(scope="module")
def landed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A landing zone of a few rows, and how many rows there are in files."""
    root = tmp_path_factory.mktemp("landing") / "zone"
    different, rows = landing.land(root, "repeated", ROWS)
    assert different == ROWS
    return root, rows


def do(spark: SparkSession, order: Order) -> Done:
    """Do a piece of work, and check that it took a time."""
    done = WORKS[order.work](spark, order)
    assert done.began < done.ended
    return done


def test_all_works_of_sessions_are_tried_here() -> None:
    """One that is added must be tried as well."""
    assert WORKS.keys() == {Work.HASH, Work.PARQUET, Work.STREAM, Work.LANDED, Work.LATEST}
    assert {case.work for case in CASES} - WORKS.keys() == {Work.AUDIT, Work.LOG, Work.MEMORY}


def test_bronze_and_the_copy_beside_it(spark: SparkSession, landed: tuple[Path, int], tmp_path: Path) -> None:
    """Bronze has each record once, a copy some twice. The log's checkpoints are no rows."""
    root, rows = landed
    taken, copied = (
        do(spark, Order(work=Work.LANDED, folder=str(tmp_path / name), format=name, options={}, source=str(root)))
        for name in ("bronze", "copy")
    )

    assert (taken.rows, copied.rows) == (ROWS, rows)
    log = tmp_path / "bronze" / "_delta_log"
    (log / f"{50:020d}.checkpoint.parquet").write_bytes(next((tmp_path / "copy").rglob("*.parquet")).read_bytes())
    again = Order(work=Work.LANDED, folder=str(tmp_path / "bronze"), format="bronze", options={}, source=str(root))
    assert do(spark, again).rows == ROWS


def test_sums_and_files_of_a_source(spark: SparkSession, landed: tuple[Path, int], tmp_path: Path) -> None:
    """Any reader with the columns of a topic will do."""
    root, rows = landed
    options = {"path": str(root), "recursiveFileLookup": "false"}
    hashed = do(spark, Order(work=Work.HASH, folder=str(tmp_path / "none"), format="parquet", options=options))
    written = do(spark, Order(work=Work.PARQUET, folder=str(tmp_path / "out"), format="parquet", options=options))
    copied = {"path": str(tmp_path / "out")}  # a stream does not take columns that folders name as well
    spark.conf.set("spark.sql.streaming.schemaInference", "true")
    try:
        streamed = do(spark, Order(work=Work.STREAM, folder=str(tmp_path / "sunk"), format="parquet", options=copied))
    finally:
        spark.conf.unset("spark.sql.streaming.schemaInference")

    assert rows == hashed.rows == written.rows == streamed.rows
    assert [one[0] for one in hashed.proof] == [0, 1, 2, 3]


def test_latest_is_the_same_by_what_is_new_and_anew(spark: SparkSession, tmp_path: Path) -> None:
    """Else one of the two would be fast at something else."""

    def order(how: str, folder: str) -> Order:
        place, lake = str(tmp_path / folder), str(tmp_path / "lake")
        return Order(work=Work.LATEST, folder=place, format=how, options={"keys": "1000"}, source=lake)

    do(spark, order("prepare", "none"))
    by_new, anew = do(spark, order("refresh", "refreshed")), do(spark, order("anew", "anew"))
    assert (by_new.rows, by_new.proof) == (1000, anew.proof)
    assert by_new.proof == do(spark, order("refresh", "once more")).proof
