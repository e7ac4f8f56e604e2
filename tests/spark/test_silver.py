# SPDX-License-Identifier: Apache-2.0
"""Silver and quarantine together are bronze, whatever is in it, and whoever dies."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from consumerd.config.job import JobSettings
from consumerd.config.pipeline import Pipeline
from consumerd.model import Incarnation, TopicPartition
from consumerd.spark import silver
from consumerd.spark.compact import compact_table
from consumerd.spark.decoding.records import BAD_KEY, BAD_VALUE, LATE
from consumerd.spark.job import Silent, Summary
from consumerd.spark.latest import read_latest
from consumerd.spark.retention import remove_days
from consumerd.spark.table import log as table_log
from consumerd.spark.table.commit import LOG_FOLDER, Operation
from consumerd.spark.table.errors import TableError
from consumerd.spark.table.parquet_files import FileSettings
from consumerd.spark.table.reading import read_table
from consumerd.spark.table.transaction import open_table
from consumerd.spark.table.vacuum import vacuum
from consumerd.wire.record_fields import NO_TIMESTAMP
from consumerd.wire.records import Record
from tests.support.bronze import run_bronze
from tests.support.lake import make_order
from tests.support.landing_zone import FIRST_MS, LandingZone
from tests.support.record_batches import record

WEEK_MS = 7 * 24 * 3600 * 1000

pytestmark = pytest.mark.records

FIELDS = {"n": "bigint not null", "at": "epoch_ms"}
DAY_MS = 86_400_000


@pytest.fixture
def zone(tmp_path: Path) -> LandingZone:
    return LandingZone(tmp_path / "landing", make=make_order)


def settings(tmp_path: Path, **topic: object) -> JobSettings:
    orders = {
        "key": "utf8",
        "value": {"format": "json", "fields": FIELDS},
        "event_time": "value.at",
        "late_ms": 3_600_000,
        "latest": True,
        **topic,
    }
    pipeline = {"path": str(tmp_path / "lake"), "silver": {"topics": {"orders": orders}}}
    return JobSettings(pipeline=Pipeline.model_validate(pipeline))


def rebuilding(given: JobSettings) -> JobSettings:
    again = given.pipeline.silver.model_copy(update={"rebuild": True})
    return JobSettings(pipeline=given.pipeline.model_copy(update={"silver": again}))


def run(spark: SparkSession, given: JobSettings) -> Summary:
    return silver.run(lambda: spark, given, Silent())


def offsets(spark: SparkSession, path: Path) -> list[int]:
    return sorted(row["offset"] for row in read_table(spark, path).select("offset").collect())


def numbers(summary: Summary) -> tuple[object, ...]:
    return tuple(summary.numbers[name] for name in ("read", "decoded", "quarantined"))


def of_kinds(end: int, kinds: Sequence[int]) -> list[int]:
    return [offset for offset in range(end) if offset % 10 in kinds]


BAD = (1, 2, 3)
GOOD = (0, 4, 5, 6, 7, 8, 9)


def test_each_record_is_decoded_or_in_quarantine(spark: SparkSession, zone: LandingZone, tmp_path: Path) -> None:
    """Run after run, with nothing decoded twice; other topics stay out."""
    lake, given = tmp_path / "lake", settings(tmp_path)
    zone.land("orders", 0, 0, 100, files=2)
    zone.land("payments", 0, 0, 10)
    run_bronze(spark, [zone], lake / "bronze")

    first = run(spark, given)
    again = run(spark, given)
    zone.land("orders", 0, 100, 150)
    run_bronze(spark, [zone], lake / "bronze")
    second = run(spark, given)

    assert [(100, 70, 30), (0, 0, 0), (50, 35, 15)] == [numbers(one) for one in (first, again, second)]
    assert ("topic orders: 30 records are in quarantine",) == first.findings
    assert ("bronze has nothing new of these topics",) == again.notes
    assert of_kinds(150, GOOD) == offsets(spark, lake / "silver" / "orders")
    bad = read_table(spark, lake / "quarantine").orderBy("offset").collect()
    assert of_kinds(150, BAD) == [row["offset"] for row in bad]
    assert {1: BAD_VALUE, 2: BAD_KEY, 3: LATE} == {row["offset"]: row["cause"] for row in bad if row["offset"] < 10}
    assert [(b"k1", b"{", "orders")] == [
        (bytes(row["key"]), bytes(row["value"]), row["topic"]) for row in bad if row["offset"] == 1
    ]
    good = (
        read_table(spark, lake / "silver" / "orders")
        .where("offset = 5")
        .selectExpr(
            "key",
            "value.n",
            "unix_millis(event_time) AS at",
            "unix_millis(value.at) AS same",
            "CAST(day AS string) AS day",
        )
    )
    assert [("k5", 5, FIRST_MS + 5000, FIRST_MS + 5000, "2023-11-14")] == [tuple(row) for row in good.collect()]


def test_latest_values_are_those_of_the_highest_offsets(spark: SparkSession, zone: LandingZone, tmp_path: Path) -> None:
    """By increments, with keys that are deleted; a later run changes what has changed."""
    lake, given = tmp_path / "lake", settings(tmp_path)
    zone.land("orders", 0, 40, 60)
    run_bronze(spark, [zone], lake / "bronze")
    run(spark, given)
    before = {row["key"]: row["offset"] for row in read_latest(spark, lake / "latest" / "orders").collect()}
    zone.land("orders", 0, 60, 75)
    zone.land("orders", 0, 0, 40, request="what was before")
    run_bronze(spark, [zone], lake / "bronze")
    run(spark, given)
    after = {row["key"]: row["offset"] for row in read_latest(spark, lake / "latest" / "orders").collect()}

    assert _latest(range(40, 60)) == before
    assert _latest(range(75)) == after


def test_latest_values_of_records_without_a_time_are_those_landed_last(spark: SparkSession, tmp_path: Path) -> None:
    """Those of 0.8 have none. Partitions were added, a key has moved, and its new partition has the lower offsets."""

    def make(partition: TopicPartition, _incarnation: Incarnation, offset: int) -> Record:
        return record(offset, b"%d of %d" % (offset, partition.partition.number), key=b"k", timestamp=NO_TIMESTAMP)

    zone = LandingZone(tmp_path / "landing", make=make)
    lake, given = tmp_path / "lake", settings(tmp_path, value="utf8", event_time=None, late_ms=None)
    for partition, end in enumerate((100, 10)):
        for path in zone.land("orders", partition, 0, end):
            os.utime(path, (FIRST_MS // 1000 + partition,) * 2)
        run_bronze(spark, [zone], lake / "bronze")
        run(spark, given)

    [row] = read_latest(spark, lake / "latest" / "orders").collect()
    assert (row["key"], row["value"], row["partition"], row["offset"]) == ("k", "9 of 1", 1, 9)


def test_latest_values_follow_a_topic_that_was_decoded_anew(
    spark: SparkSession, zone: LandingZone, tmp_path: Path
) -> None:
    """By the new settings, of all that was ever there; and by increments again from then on."""
    lake = tmp_path / "lake"
    zone.land("orders", 0, 0, 40)
    run_bronze(spark, [zone], lake / "bronze")
    run(spark, settings(tmp_path))
    zone.land("orders", 0, 40, 50)
    run_bronze(spark, [zone], lake / "bronze")
    run(spark, settings(tmp_path))
    other = settings(
        tmp_path, value={"format": "json", "fields": {"n": "double", "at": "epoch_ms"}}, late_ms=2 * DAY_MS
    )
    kinds = (*GOOD, 3)  # what was late is not any more

    run(spark, rebuilding(other))
    anew = {
        row["key"]: (row["offset"], row["value"]["n"]) for row in read_latest(spark, lake / "latest/orders").collect()
    }
    zone.land("orders", 0, 50, 65)
    run_bronze(spark, [zone], lake / "bronze")
    run(spark, other)
    after = {row["key"]: row["offset"] for row in read_latest(spark, lake / "latest/orders").collect()}

    assert {key: (offset, float(offset)) for key, offset in _latest(range(50), kinds).items()} == anew
    assert {type(value) for _, value in anew.values()} == {float}
    assert _latest(range(65), kinds) == after


def _latest(found: range, kinds: Sequence[int] = GOOD) -> dict[str, int]:
    latest = {f"k{offset % 20}": offset for offset in found if offset % 10 in kinds}
    return {key: offset for key, offset in latest.items() if offset % 10 != 4}


def test_a_run_that_died_between_the_two_commits_is_finished(
    spark: SparkSession, zone: LandingZone, tmp_path: Path
) -> None:
    """The quarantine is ahead of the topic's table then; what has landed since comes in a commit of its own."""
    lake, given = tmp_path / "lake", settings(tmp_path)
    zone.land("orders", 0, 0, 100)
    run_bronze(spark, [zone], lake / "bronze")
    run(spark, given)
    zone.land("orders", 0, 100, 150)
    run_bronze(spark, [zone], lake / "bronze")
    run(spark, given)
    # as it was before the last commit, which is the topic's table's
    newest = open_table(lake / "silver" / "orders")
    version = newest.snapshot().version
    (newest.log.path / LOG_FOLDER / f"{version:020d}.json").unlink()
    zone.land("orders", 0, 150, 200)
    run_bronze(spark, [zone], lake / "bronze")

    summary = run(spark, given)

    assert (100, 70, 30) == numbers(summary)
    assert of_kinds(200, GOOD) == offsets(spark, lake / "silver" / "orders")
    assert of_kinds(200, BAD) == offsets(spark, lake / "quarantine")


def test_what_compaction_and_vacuum_have_moved_is_still_decoded_once(
    spark: SparkSession, zone: LandingZone, tmp_path: Path
) -> None:
    """A pipeline whose silver has stood still for longer than vacuum waits."""
    lake, given = tmp_path / "lake", settings(tmp_path, latest=False)
    for start in (0, 20, 40, 60):
        zone.land("orders", 0, start, start + 20)
        run_bronze(spark, [zone], lake / "bronze")
        if start == 0:
            run(spark, given)
    bronze = open_table(lake / "bronze")
    compact_table(lambda: spark, bronze, target_bytes=1 << 20, min_files=2, settings=FileSettings(), progress=Silent())
    vacuum(bronze, keep_ms=0, keep_log_ms=WEEK_MS, now_ms=bronze.log.read(bronze.snapshot().version).time_ms + 1)

    assert (60, 42, 18) == numbers(run(spark, given))
    assert of_kinds(80, GOOD) == offsets(spark, lake / "silver" / "orders")
    assert of_kinds(80, BAD) == offsets(spark, lake / "quarantine")


def test_counts_hold_where_retention_has_removed_rows(
    spark: SparkSession, zone: LandingZone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of bronze first, of silver and the quarantine later: what comes next, a rebuild, and a log that does not reach back."""
    monkeypatch.setattr(table_log, "CHECKPOINT_EVERY", 1)
    lake, given, later = tmp_path / "lake", settings(tmp_path, latest=False), 200_000
    tables = {name: lake / name for name in ("bronze", "silver/orders", "quarantine")}
    cutoff = datetime.fromtimestamp(FIRST_MS / 1000 + later, UTC).date()

    def land_and_decode(start: int, end: int, given: JobSettings = given) -> list[int]:
        zone.land("orders", 0, start, end)
        run_bronze(spark, [zone], lake / "bronze")
        summary = run(spark, given)
        assert [one for one in summary.findings if "in quarantine" not in one or "retention" in one] == []
        return offsets(spark, lake / "silver" / "orders") + offsets(spark, lake / "quarantine")

    first, second = range(20), range(later, later + 20)  # more than two days apart
    land_and_decode(0, 20)
    land_and_decode(later, later + 20)
    remove_days(open_table(tables["bronze"]), cutoff, name="bronze")
    assert sorted(land_and_decode(later + 20, later + 30)) == [*first, *second, *range(later + 20, later + 30)]
    for start in (30, 35):
        zone.land("orders", 0, later + start, later + start + 5)
        run_bronze(spark, [zone], lake / "bronze")
    assert open_table(tables["bronze"]).log.expire(2**60) > 0
    assert sorted(land_and_decode(later + 40, later + 50)) == [*first, *range(later, later + 50)]
    for name in ("silver/orders", "quarantine"):
        remove_days(open_table(tables[name]), cutoff, name=name)
    assert sorted(land_and_decode(later + 50, later + 60)) == [*range(later, later + 60)]
    assert sorted(land_and_decode(later + 60, later + 70, rebuilding(given))) == [*range(later, later + 70)]
    assert sorted(land_and_decode(later + 70, later + 80)) == [*range(later, later + 80)]


def test_columns_may_be_added_but_not_changed(spark: SparkSession, zone: LandingZone, tmp_path: Path) -> None:
    """Until the topic is decoded anew."""
    lake = tmp_path / "lake"
    zone.land("orders", 0, 0, 20)
    run_bronze(spark, [zone], lake / "bronze")
    run(spark, settings(tmp_path))
    zone.land("orders", 0, 20, 40)
    run_bronze(spark, [zone], lake / "bronze")
    wider = settings(tmp_path, value={"format": "json", "fields": {**FIELDS, "more": "string"}})
    other = settings(tmp_path, value={"format": "json", "fields": {"n": "string", "at": "epoch_ms"}}, latest=False)
    table = lake / "silver" / "orders"

    with pytest.raises(TableError, match=r"value\.n was bigint and is to be string"):
        run(spark, other)
    run(spark, wider)
    assert [None] * len(of_kinds(40, (0, *GOOD[2:]))) == [
        row["more"] for row in read_table(spark, table).where("value IS NOT NULL").select("value.more").collect()
    ]
    rebuilt = run(spark, rebuilding(other))

    # a number is no text
    assert (40, 4, 36) == numbers(rebuilt)
    assert of_kinds(40, (4,)) == offsets(spark, table)
    assert sorted({*range(40)} - {*of_kinds(40, (4,))}) == offsets(spark, lake / "quarantine")
    assert [Operation.REPLACE] == [commit.operation for commit in open_table(table).log.read_after(2, 3)]


def test_counts_that_differ_are_a_finding(spark: SparkSession, zone: LandingZone, tmp_path: Path) -> None:
    """Each run holds bronze against what came of it."""
    lake, given = tmp_path / "lake", settings(tmp_path, latest=False)
    zone.land("orders", 0, 0, 20)
    run_bronze(spark, [zone], lake / "bronze")
    run(spark, given)
    table = open_table(lake / "quarantine")
    with table.begin(plan="by hand", job="test", operation=Operation.REPLACE) as transaction:
        transaction.remove(transaction.base.files)
        transaction.commit()

    [finding] = run(spark, given).findings

    assert finding.startswith(
        "topic orders: bronze has 20 records at version 1 (20 by what retention, erase and purges have removed), but "
        "there are 14 decoded ones and 0 in quarantine"
    )
