# SPDX-License-Identifier: Apache-2.0
"""Which record of a key is its latest, where the log was truncated or partitions share a key."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from consumerd.spark import latest
from consumerd.spark.latest import find_latest, refresh
from consumerd.spark.table.commit import Operation
from consumerd.spark.table.files import write_frame
from consumerd.spark.table.reading import read_table
from consumerd.spark.table.rewriting import read_without
from consumerd.spark.table.transaction import Table, create_table

pytestmark = pytest.mark.records

COLUMNS = (
    "key string, value string, event_time timestamp, timestamp bigint, incarnation string, broker int, partition int, "
    "offset bigint, index int, landed bigint, deleted boolean"
)


def _row(
    key: str, value: str, incarnation: str, partition: int, offset: int, at: int | None, landed: int = 0
) -> tuple[object, ...]:
    return key, value, None, at, incarnation, None, partition, offset, 0, landed, False


def test_a_record_after_a_truncation_is_later_than_any_before(spark: SparkSession) -> None:
    """An unclean election gives offsets once more: the lost record has the higher offset, and maybe the later time."""
    rows = [
        _row("lost", "old", "5", 0, 100, 10),
        _row("lost", "new", "5.1", 0, 50, 20),
        _row("lost, later clock", "old", "5", 0, 101, 99),
        _row("lost, later clock", "new", "5.1", 0, 51, 1),
        _row("tenth truncation", "old", "5.9", 0, 102, 10),
        _row("tenth truncation", "new", "5.10", 0, 52, 10),
        _row("two partitions at one time", "old", "5", 0, 103, 10),
        _row("two partitions at one time", "new", "5.1", 1, 53, 10),
        _row("two partitions", "old", "5.1", 0, 104, 10),
        _row("two partitions", "new", "5", 1, 54, 11),
    ]
    found = {row["key"]: row["value"] for row in find_latest(spark.createDataFrame(rows, COLUMNS)).collect()}

    assert dict.fromkeys({row[0] for row in rows}, "new") == found


def test_records_without_a_time_are_compared_by_when_they_were_landed(spark: SparkSession) -> None:
    """Those of 0.8 have none; a key moves when partitions are added, and the old one has the higher offsets."""
    rows = [
        _row("added partition", "old", "5", 0, 1000, None, landed=10),
        _row("added partition", "new", "5", 1, 3, None, landed=20),
        _row("upgraded", "old", "5", 0, 1000, None, landed=10),
        _row("upgraded", "new", "5", 1, 3, 20, landed=20),
    ]
    found = {row["key"]: row["value"] for row in find_latest(spark.createDataFrame(rows, COLUMNS)).collect()}

    assert dict.fromkeys({row[0] for row in rows}, "new") == found


# -- refreshing

DECODED = (
    "key {key}, value string, event_time timestamp, timestamp timestamp, incarnation string, broker int, partition int, "
    "offset bigint, index int, landed timestamp"
)


@dataclass
class Topic:
    """A decoded topic, its table of latest values, and all rows that were ever decoded."""

    spark: SparkSession
    folder: Path
    key: str = "string"
    rows: list[tuple[object, ...]] = field(default_factory=list)
    silver: Table = field(init=False)

    def __post_init__(self) -> None:
        schema = StructType.fromDDL(DECODED.format(key=self.key)).json()
        self.silver = create_table(self.folder / "silver", name="silver of orders", schema=schema, partition_by=())

    def decode(self, rows: Iterable[tuple[object, ...]]) -> None:
        """Append rows of :func:`_decoded`."""
        new = list(rows)
        self.rows += new
        plan = str(len(self.rows))
        with self.silver.begin(plan=plan, job="silver", operation=Operation.APPEND) as transaction:
            transaction.add(write_frame(transaction, self._frame(new)))
            transaction.commit()

    def refresh(self) -> int:
        return refresh(lambda: self.spark, self.silver, self.folder / "latest", topic="orders")

    def latest(self) -> list[str]:
        """What the table has, as texts."""
        return sorted(map(str, read_table(self.spark, self.folder / "latest").collect()))

    def expected(self) -> list[str]:
        """What it should have, by looking at all rows together."""
        marked = self._frame(self.rows).selectExpr("*", "value IS NULL AS deleted")
        found = find_latest(marked)
        return sorted(map(str, found.select(*read_table(self.spark, self.folder / "latest").columns).collect()))

    def paths(self) -> set[str]:
        return set(
            create_table(self.folder / "latest", name="latest of orders", schema="", partition_by=()).snapshot().files
        )

    def _frame(self, rows: list[tuple[object, ...]]) -> Any:
        schema = DECODED.format(key=self.key).replace(" timestamp,", " double,").removesuffix("timestamp") + "double"
        frame = self.spark.createDataFrame(rows, schema)
        moments = ("event_time", "timestamp", "landed")
        return frame.select(
            *(frame[name].cast("timestamp").alias(name) if name in moments else frame[name] for name in frame.columns)
        )


def _decoded(
    key: object, n: int, *, value: str | None = "", partition: int = 0, incarnation: str = "5", timed: bool = True
) -> tuple[object, ...]:
    """Return the row of the ``n``-th record of a topic, whose times grow with its offset."""
    moment = 1_700_000_000.0 + n
    text = f"value {n}" if value == "" else value
    return key, text, None, moment if timed else None, incarnation, None, partition, n, 0, moment


def _history(seed: int, *, struct: bool) -> Iterator[list[tuple[object, ...]]]:
    """Yield what is decoded, run by run: keys that are deleted, move, lack times; an election, and a topic made again."""
    source = random.Random(seed)
    n = 0
    for incarnation in ("5", "5", "5.1", "5.10", "6"):
        rows = []
        for _ in range(source.choice([1, 3, 40])):
            n += 1
            number = source.randrange(30)
            key: object = None if number == 0 else f"k{number}"
            if struct and key is not None:
                key = (number // 2, None if number % 3 == 0 else f"k{number}")
            value = None if source.random() < 0.2 else ""
            rows.append(
                _decoded(
                    key,
                    n,
                    value=value,
                    partition=source.randrange(3),
                    incarnation=incarnation,
                    timed=source.random() < 0.8,
                )
            )
        yield rows


@pytest.fixture(params=["files", "spark"])
def merges(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How changed rows are merged: file by file with Arrow, or by Spark, as those of large runs are."""
    if request.param == "spark":
        monkeypatch.setattr(latest, "_MAX_BROADCAST_KEYS", 0)
    return str(request.param)


@pytest.mark.usefixtures("merges")
@pytest.mark.parametrize("struct", [False, True])
def test_a_table_that_is_refreshed_is_as_one_that_is_made_anew(
    spark: SparkSession, tmp_path: Path, *, struct: bool
) -> None:
    """Whatever comes when, run after run."""
    topic = Topic(spark, tmp_path, key="struct<a:int,b:string>" if struct else "string")
    for rows in itertools.islice(_history(1, struct=struct), 3 if struct else None):
        topic.decode(rows)
        count = topic.refresh()
        assert topic.latest() == topic.expected()
        assert count == len(topic.latest())


@pytest.mark.usefixtures("merges")
def test_files_without_a_changed_key_stay_as_they_are(spark: SparkSession, tmp_path: Path) -> None:
    """A table of ten million keys is not written anew for one."""
    topic = Topic(spark, tmp_path)
    topic.decode(_decoded(f"a{n}", n) for n in range(50))
    topic.refresh()
    first = topic.paths()
    topic.decode(_decoded(f"b{n}", n) for n in range(50, 60))
    topic.refresh()
    second = topic.paths() - first

    topic.decode([_decoded("b55", 61, value=None)])
    topic.refresh()
    assert topic.latest() == topic.expected()
    assert first <= topic.paths()
    assert not second & topic.paths()
    topic.decode([_decoded(None, 62), _decoded("old", 63, incarnation="4")])
    before = topic.paths()
    topic.refresh()
    assert topic.paths() == before


@pytest.mark.usefixtures("merges")
def test_a_key_whose_later_record_is_there_already_stays(spark: SparkSession, tmp_path: Path) -> None:
    """Another root, or a chain that was found late, brings what is older."""
    topic = Topic(spark, tmp_path)
    topic.decode([_decoded("a", 10), _decoded("b", 11, value=None)])
    topic.refresh()
    before = topic.paths()
    topic.decode([_decoded("a", 3), _decoded("b", 4)])
    topic.refresh()

    assert topic.latest() == topic.expected()
    assert topic.paths() == before


def test_a_key_with_many_new_records_counts_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Changed keys are limited, not records: one hot key does not make the whole table go through the JVM."""
    monkeypatch.setattr(latest, "_MAX_BROADCAST_KEYS", 10)
    monkeypatch.setattr(latest._Merge, "_merge", lambda *_: pytest.fail("merged by Spark"))
    topic = Topic(spark, tmp_path)
    topic.decode(_decoded(f"a{n}", n) for n in range(5))
    topic.refresh()

    topic.decode(_decoded("a3", n) for n in range(5, 105))
    topic.refresh()

    assert topic.latest() == topic.expected()


@pytest.mark.parametrize("group", [1, 3, 100])
def test_rows_are_left_out_by_their_numbers(tmp_path: Path, group: int) -> None:
    """Across row groups, all of one, the first and the last."""
    pq.write_table(pa.table({"n": [*range(10)]}), tmp_path / "file", row_group_size=group)

    for gone in ([], [0], [9], [3, 4, 5], [*range(10)]):
        left = [
            n for batch in read_without(tmp_path / "file", np.array(gone, np.int64)) for n in batch["n"].to_pylist()
        ]
        assert left == [n for n in range(10) if n not in gone]
