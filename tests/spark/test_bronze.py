# SPDX-License-Identifier: Apache-2.0
"""Bronze is exactly what was produced, each record once, whatever the landing zone looks like and whoever dies."""

from __future__ import annotations

import os
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from consumerd.config.pipeline import Bronze
from consumerd.errors import ConfigError
from consumerd.landing.plan import LandingPlan
from consumerd.model import Gap, GapReason, Incarnation, TopicPartition
from consumerd.spark.bronze import open_bronze
from consumerd.spark.bronze_table import BOUNDS, BronzeTable
from consumerd.spark.compact import compact_table
from consumerd.spark.job import Sessions, Silent, Summary
from consumerd.spark.table.commit import TableCommit
from consumerd.spark.table.errors import TableConflict
from consumerd.spark.table.parquet_files import FileSettings
from consumerd.spark.table.reading import read_increment, read_table
from consumerd.spark.table.transaction import open_table
from consumerd.wire.record_fields import NO_TIMESTAMP
from consumerd.wire.records import Record
from tests.support import landed_1
from tests.support.bronze import expected_rows, read_bronze, rows_of, run_bronze
from tests.support.intake import plan_intake
from tests.support.landing_zone import FIRST_MS, Kind, LandingZone, flip_bytes, truncate_file
from tests.support.record_batches import record
from tests.support.tables import plain_offsets

pytestmark = pytest.mark.records

DAY_MS = 86_400_000


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "bronze"


def land_everything(zone: LandingZone) -> LandingZone:
    """Land what a group does in bad weeks; return the other root."""
    zone.land("orders", 0, 0, 1000, files=4)
    zone.land("orders", 0, 1000, 1500, gaps=[Gap(1200, 1210, GapReason.COMPACTION)])
    zone.land("orders", 0, 1600, 1700)
    zone.land("orders", 0, 500, 1800, request="again", gaps=[Gap(600, 700, GapReason.RETENTION)], files=3)
    zone.land("orders", 0, 1750, 1900, truncated=True)
    zone.land("orders", 0, 0, 50, czxid=9)
    zone.land("orders", 1, 0, 300, files=2)
    zone.land("payments", 0, 10, 60)
    other = zone.replica("b")
    other.land("orders", 1, 200, 400)
    return other


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_zone_with_everything_gives_each_record_once(
    spark: SparkSession, zone: LandingZone, table: Path, kind: Kind
) -> None:
    """Chains that overlap, gaps that another chain fills, incarnations, a second root."""
    zone.kind = kind
    other = land_everything(zone)
    summary = run_bronze(spark, [zone, other], table)

    assert expected_rows(zone) == read_bronze(spark, table)
    assert summary.numbers["rows"] == len(zone.expected)
    assert summary.findings == ()


def test_days_in_no_order_give_one_file_each(spark: SparkSession, tmp_path: Path, table: Path) -> None:
    """Events of the past: each landed file has records of 200 days."""
    days = random.Random(1).choices(range(200), k=2000)
    zone = LandingZone(
        tmp_path / "landing", make=lambda _partition, _index, o: record(o, b"v", timestamp=FIRST_MS + days[o] * DAY_MS)
    )
    zone.land("orders", 0, 0, 2000, files=10)
    run_bronze(spark, [zone], table)

    assert len(open_table(table).snapshot().files) == len(set(days))
    assert read_bronze(spark, table) == expected_rows(zone)


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_a_chain_that_was_upgraded_in_place_gives_each_record_once(
    spark: SparkSession, tmp_path: Path, table: Path, kind: Kind
) -> None:
    """Files of format 2 follow files of format 1 in one chain.

    Bronze runs before and after the upgrade into one table, and once over all files into another.
    """
    zone = landed_1.upgraded_zone(kind, tmp_path)
    before = run_bronze(spark, [zone], table)
    assert expected_rows(zone) == read_bronze(spark, table)
    zone.land("orders", 0, landed_1.END, 80)
    zone.land("orders", 1, 9, 20, request="later")
    after = run_bronze(spark, [zone], table)
    at_once = tmp_path / "at-once"
    whole = run_bronze(spark, [zone], at_once)

    assert (38 + 20 + 5 + 4, 20 + 11) == (before.numbers["rows"], after.numbers["rows"])
    assert expected_rows(zone) == read_bronze(spark, table) == read_bronze(spark, at_once)
    assert () == before.findings + after.findings + whole.findings


def test_run_takes_what_is_new_and_nothing_twice(spark: SparkSession, zone: LandingZone, table: Path) -> None:
    """It is run every few minutes, over a zone that keeps what it had."""
    zone.land("orders", 0, 0, 100)
    run_bronze(spark, [zone], table)
    zone.land("orders", 0, 100, 150)
    zone.land("orders", 0, 50, 200, request="again")
    first = run_bronze(spark, [zone], table)
    again = run_bronze(spark, [zone], table)
    increment = read_increment(spark, table, after=1)

    assert expected_rows(zone) == read_bronze(spark, table)
    assert (first.numbers["rows"], again.numbers["rows"], again.numbers["commits"]) == (100, 0, 0)
    assert rows_of(increment) == expected_rows(zone)[100:]


def test_work_is_cut_into_commits(spark: SparkSession, zone: LandingZone, table: Path) -> None:
    """A zone of terabytes is not one commit, of which a job that dies would lose all."""
    zone.land("orders", 0, 0, 400, files=8)
    summary = run_bronze(spark, [zone], table, commit_bytes=zone.files("orders", 0)[0].stat().st_size * 5 // 2)

    assert summary.numbers["commits"] == 4
    assert expected_rows(zone) == read_bronze(spark, table)
    assert [len(read_bronze(spark, table, version)) for version in range(5)] == [0, 100, 200, 300, 400]


def test_gaps_that_were_summed_up_do_not_cost_or_double_records(
    spark: SparkSession, zone: LandingZone, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of a compacted topic does not list which offsets it lacks, and an older chain may have them."""
    zone.land("orders", 0, 0, 300, files=3)
    holes = [Gap(offset, offset + 1, GapReason.COMPACTION) for offset in range(20, 250, 3)]
    monkeypatch.setattr("consumerd.landing.chain.GapLedger.__init__.__defaults__", (5,))
    zone.land("orders", 0, 10, 280, request="again", gaps=holes)
    monkeypatch.undo()
    assert any(planned.contested for planned in plan_intake([zone.path]).files)  # or this shows nothing
    run_bronze(spark, [zone], table, commit_bytes=1)
    assert expected_rows(zone) == read_bronze(spark, table)


def test_day_is_that_of_the_record_or_of_its_landing(spark: SparkSession, zone: LandingZone, table: Path) -> None:
    """0.8 has no timestamps, and a producer's clock may say anything."""
    times = [NO_TIMESTAMP, FIRST_MS, FIRST_MS + DAY_MS, 1 << 62, 300_000_000_000_000]

    def make(_place: TopicPartition, _incarnation: Incarnation, offset: int) -> Record:
        return record(offset, timestamp=times[offset])

    zone.make = make
    (path,) = zone.land("orders", 0, 0, len(times))
    landed = FIRST_MS // 1000 + 10 * 86_400
    os.utime(path, (landed, landed))
    run_bronze(spark, [zone], table)
    rows = read_table(spark, table).selectExpr("offset", "CAST(day AS STRING)", "unix_millis(timestamp)").collect()
    when = read_table(spark, table).selectExpr("unix_seconds(landed)").distinct().collect()

    assert sorted(map(tuple, rows)) == [
        (0, "2023-11-24", None),
        (1, "2023-11-14", FIRST_MS),
        (2, "2023-11-15", FIRST_MS + DAY_MS),
        (3, "2023-11-24", None),  # of more microseconds than Spark can count
        (4, "2023-11-24", 300_000_000_000_000),
    ]
    assert [tuple(row) for row in when] == [(landed,)]


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_damaged_files_are_named_and_all_else_is_taken(
    spark: SparkSession, zone: LandingZone, table: Path, kind: Kind
) -> None:
    """One bad disk must not stop the table, nor pass unseen; restored, the file is taken."""
    zone.kind = kind
    paths = zone.land("orders", 0, 0, 400, files=4)
    zone.land("orders", 0, 250, 260, request="again")
    saved = [(path, path.read_bytes()) for path in paths[:2]]
    truncate_file(paths[0])
    flip_bytes(paths[1], at=200)
    whole = dict(zone.expected)
    for path in paths[:2]:
        for offset in range(paths.index(path) * 100, paths.index(path) * 100 + 100):
            zone.expected = {key: one for key, one in zone.expected.items() if key.offset != offset}
    first = run_bronze(spark, [zone], table)
    lacking, left = expected_rows(zone), read_bronze(spark, table)
    for path, data in saved:
        path.write_bytes(data)
    zone.expected = whole
    second = run_bronze(spark, [zone], table)

    assert lacking == left
    assert [str(path) in " ".join(first.findings) for path in paths] == [True, True, False, False]
    assert second.findings == ()
    assert expected_rows(zone) == read_bronze(spark, table)


class Interrupted(BronzeTable):
    """A table to which another job commits the same while this one works, a few times."""

    def __init__(self, spark: SparkSession, zone: LandingZone, path: Path, times: int) -> None:
        super().__init__(open_bronze(str(path), Bronze()).table, FileSettings(bounds=BOUNDS))
        self._spark, self._zone, self._path, self._times = spark, zone, path, times

    def take(self, spark: Sessions, plan: LandingPlan) -> TableCommit:
        if self._times:
            self._times -= 1
            run_bronze(self._spark, [self._zone], self._path)
            start = len(self._zone.expected)
            self._zone.land("orders", 5, start, start + 10)  # so that there is something left to take
        return super().take(spark, plan)


def test_second_job_at_the_same_time_plans_anew_or_is_refused(
    spark: SparkSession, zone: LandingZone, table: Path
) -> None:
    """A schedule that overlaps itself must not double the table."""
    zone.land("orders", 0, 0, 100)
    run_bronze(spark, [zone], table, target=Interrupted(spark, zone, table, times=1))
    assert expected_rows(zone) == read_bronze(spark, table)

    zone.land("orders", 0, 2000, 2100)
    with pytest.raises(TableConflict, match="committed while this run made its plan"):
        run_bronze(spark, [zone], table, target=Interrupted(spark, zone, table, times=3))
    run_bronze(spark, [zone], table)
    assert expected_rows(zone) == read_bronze(spark, table)


def test_jobs_in_a_race_leave_each_record_once(spark: SparkSession, zone: LandingZone, table: Path) -> None:
    """However their steps fall."""
    zone.land("orders", 0, 0, 400, files=8)

    def run(_: int) -> Summary | TableConflict:
        try:
            return run_bronze(spark, [zone], table, commit_bytes=4000)
        except TableConflict as error:
            return error

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(run, range(3)))
    run_bronze(spark, [zone], table)

    assert expected_rows(zone) == read_bronze(spark, table)
    assert plain_offsets(open_table(table)) == list(range(400))


@pytest.mark.parametrize("name", ["lake[1] {a,b}", "a*b?c\\d", "_hidden #%20=ü"])
def test_a_pipeline_may_stand_in_a_folder_of_any_name(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """Landed files and tables are found there, whatever a shell or a URI would make of it; compacted ones, too."""
    zone, table = LandingZone(tmp_path / name / "landing"), tmp_path / name / "bronze"
    zone.land("or.de-rs_1", 0, 0, 30, files=3)
    zone.land("or.de-rs_1", 1, 0, 30)
    run_bronze(spark, [zone], table, commit_bytes=1)
    assert expected_rows(zone) == read_bronze(spark, table)

    compact_table(lambda: spark, open_table(table), target_bytes=1 << 20, progress=Silent())
    assert len(open_table(table).snapshot().files) == 1
    assert expected_rows(zone) == read_bronze(spark, table)


# -- an identity is the record's: of its cluster, and taken only with its last records


def test_records_of_another_cluster_are_refused_and_the_table_stays_as_it_is(
    spark: SparkSession, tmp_path: Path, table: Path
) -> None:
    """The same offsets of the same topic are other records there; taken for duplicates, they would be left out."""
    first = LandingZone(tmp_path / "first", cluster="2-1700000000000")
    second = LandingZone(tmp_path / "second", cluster="2-1800000000000")
    first.land("orders", 0, 0, 100)
    second.land("orders", 0, 0, 150)
    run_bronze(spark, [first], table)

    with pytest.raises(
        ConfigError, match=r"holds records of cluster 2-1700000000000, .*second is of 2-1800000000000.*pipeline\.path"
    ):
        run_bronze(spark, [second], table)
    with pytest.raises(ConfigError, match=r"pipeline\.path"):
        run_bronze(spark, [first, second], table)
    assert expected_rows(first) == read_bronze(spark, table)

    run_bronze(spark, [second], tmp_path / "other")
    assert expected_rows(second) == read_bronze(spark, tmp_path / "other")


def test_runs_of_two_clusters_that_begin_at_the_same_time_do_not_both_commit(
    spark: SparkSession, tmp_path: Path, table: Path
) -> None:
    """Both have found the table empty."""
    first = LandingZone(tmp_path / "first", cluster="2-1700000000000")
    second = LandingZone(tmp_path / "second", cluster="2-1800000000000")
    first.land("orders", 0, 0, 10)
    second.land("payments", 0, 0, 10)
    slow = open_bronze(str(table), Bronze())
    slow.covered()
    run_bronze(spark, [first], table)
    with pytest.raises(TableConflict):
        slow.take(lambda: spark, plan_intake([second.path]))
    assert expected_rows(first) == read_bronze(spark, table)


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_damage_that_a_later_commit_meets_leaves_the_file_that_has_the_records_free(
    spark: SparkSession, zone: LandingZone, table: Path, kind: Kind
) -> None:
    """An operator had them landed again: the first landing gives what the second one's damaged file does not."""
    zone.kind = kind
    zone.land("orders", 0, 0, 100)
    zone.land("orders", 0, 0, 100, files=2, request="again")
    damaged = zone.files("orders", 0, 2)[1]
    flip_bytes(damaged, at=200)  # of its data: its metadata are well

    summary = run_bronze(spark, [zone], table, commit_bytes=1)

    assert expected_rows(zone) == read_bronze(spark, table)
    assert 1 == len(summary.findings)


def test_run_that_dies_between_two_commits_has_passed_over_nothing_that_the_second_was_to_give(
    spark: SparkSession, zone: LandingZone, table: Path, tmp_path: Path
) -> None:
    """By the next run the file that was to give them is gone, and another chain has them."""
    zone.land("orders", 0, 0, 100)
    zone.land("orders", 0, 0, 100, files=2, request="again")
    target = open_bronze(str(table), Bronze())
    plan = plan_intake([zone.path], covered=target.covered())
    target.take(lambda: spark, next(iter(plan.split(1))))
    second = zone.files("orders", 0, 2)[1]
    second.rename(tmp_path / second.name)

    run_bronze(spark, [zone], table)

    assert expected_rows(zone) == read_bronze(spark, table)
