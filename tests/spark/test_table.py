# SPDX-License-Identifier: Apache-2.0
"""Any frame goes into a table and comes out as it was, of all types that jobs use."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from consumerd.spark.table.commit import Bounds, Operation
from consumerd.spark.table.errors import TableError
from consumerd.spark.table.files import write_frame
from consumerd.spark.table.reading import read_increment, read_table
from consumerd.spark.table.transaction import Table, create_table

COLUMNS = {
    "id": "id",
    "name": "IF(id % 3 = 0, NULL, concat('näme ', id))",
    "amount": "CAST(id AS DECIMAL(20, 4)) / 7",
    "ratio": "id / 3.0D",
    "flag": "id % 2 = 0",
    "at": "timestamp_millis(1700000000000 + id * 1000)",
    "raw": "IF(id % 4 = 0, NULL, unhex('00FF'))",
    "tags": "array(struct(id AS n, named_struct('deep', current_date()) AS s))",
    "attributes": "map('a', id)",
    "topic": "IF(id % 2 = 0, 'even', 'odd/=%')",
    "day": "date_add(DATE'2026-11-22', CAST(id % 3 AS INT))",
}


def make_frame(spark: SparkSession, start: int, end: int) -> DataFrame:
    made = spark.range(start, end, 1, 2).selectExpr(*(f"{how} AS {name}" for name, how in COLUMNS.items()))
    return made.withColumn("amount", F.col("amount").cast("decimal(20,4)"))


def make_table(spark: SparkSession, path: Path) -> Table:
    schema = make_frame(spark, 0, 1).schema.json()
    return create_table(path, name="rows", schema=schema, partition_by=("topic", "day"))


def commit(table: Table, frame: DataFrame, plan: str) -> None:
    with table.begin(plan=plan, job="test", operation=Operation.APPEND) as transaction:
        transaction.add(write_frame(transaction, frame, bounds=["id", "at", "name"]))
        transaction.commit()


def test_rows_come_out_as_they_went_in(spark: SparkSession, tmp_path: Path) -> None:
    """Silver's columns are whatever a topic's schema says."""
    table = make_table(spark, tmp_path / "table")
    commit(table, make_frame(spark, 0, 60), "first")
    commit(table, make_frame(spark, 60, 100).select(*reversed(COLUMNS)), "second")
    commit(table, make_frame(spark, 0, 0), "nothing")
    read = read_table(spark, table.path)
    added = read_increment(spark, table.path, after=1)

    assert read.columns == list(COLUMNS)
    assert sorted(make_frame(spark, 0, 100).collect(), key=lambda row: row["id"]) == read.orderBy("id").collect()
    assert sorted(row["id"] for row in added.select("id").collect()) == list(range(60, 100))
    assert read_table(spark, table.path, 0).count() == 0
    assert read.where("topic = 'odd/=%' AND day = DATE'2026-11-23'").count() == 17
    ids = [file.bounds["id"] for file in table.snapshot().files.values()]
    assert (min(one.low for one in ids), max(one.high for one in ids)) == (0, 99)  # type: ignore[type-var]  # numbers
    assert all(isinstance(one, Bounds) for one in ids)


def test_columns_of_another_table_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    """They would be read as nulls for ever."""
    table = make_table(spark, tmp_path / "table")
    frame = make_frame(spark, 0, 3)
    wrong = {
        "the column name is missing": frame.drop("name"),
        "the column id is string, the table's is bigint": frame.withColumn("id", F.col("id").cast("string")),
        "has no column more": frame.withColumn("more", F.lit(1)),
    }
    for message, one in wrong.items():
        with pytest.raises(TableError, match=message):
            commit(table, one, message)

    assert table.snapshot().version == 0
    assert not list((table.path / "_staging").iterdir())


@pytest.mark.parametrize(
    "name", ["lake[1]", "{a,b}", "a*b", "a?b", "a\\b", "a b", "a%20b", "a#b", "env=prod", "ünï", "_hidden"]
)
def test_a_folder_may_have_any_name(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """What stands there is written and read, whatever a shell would make of it."""
    table = make_table(spark, tmp_path / name / "table")
    commit(table, make_frame(spark, 0, 30), "first")

    assert list(range(30)) == sorted(row["id"] for row in read_table(spark, table.path).collect())
