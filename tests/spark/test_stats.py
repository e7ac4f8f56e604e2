# SPDX-License-Identifier: Apache-2.0
"""Figures by topic and hour are those of the ledger."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from pathlib import Path

from pyspark.sql import SparkSession

from consumerd.config.job import JobSettings
from consumerd.config.pipeline import Pipeline
from consumerd.model import Incarnation, TopicPartition
from consumerd.spark import stats
from consumerd.spark.job import Silent
from consumerd.spark.table.reading import read_table
from consumerd.wire.records import Record
from tests.support import landing_zone
from tests.support.bronze import run_bronze
from tests.support.landing_zone import LandingZone

HOUR_MS = 3_600_000


def make_record(partition: TopicPartition, incarnation: Incarnation, offset: int) -> Record:
    """Return a record as in other zones, every seventh without a key."""
    made = landing_zone.make_record(partition, incarnation, offset)
    return replace(made, key=None) if offset % 7 == 3 else made


def test_hours_count_what_has_landed(spark: SparkSession, tmp_path: Path) -> None:
    """Records, bytes and nulls exactly; keys are few, so that their number is exact, too."""
    zone, lake = LandingZone(tmp_path / "landing", make=make_record), tmp_path / "lake"
    zone.land("orders", 0, 0, 5000)
    zone.land("payments", 0, 0, 10)
    run_bronze(spark, [zone], lake / "bronze")
    settings = JobSettings(pipeline=Pipeline(path=str(lake)))

    summary = stats.run(lambda: spark, settings, Silent())
    again = stats.run(lambda: spark, settings, Silent())

    expected: dict[tuple[str, int], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    keys: dict[tuple[str, int], set[bytes]] = defaultdict(set)
    for identity, record in zone.expected.items():
        place = identity.topic, record.timestamp // HOUR_MS * HOUR_MS
        size = len(record.key or b"") + len(record.value or b"")
        for column, number in enumerate((1, record.key is None, record.value is None, size)):
            expected[place][column] += number
        if record.key is not None:
            keys[place].add(record.key)
    names = "records", "null_keys", "null_values", "bytes", "distinct_keys"
    rows = read_table(spark, lake / "stats").selectExpr("*", "unix_millis(hour) AS at").collect()
    assert {place: (*counts, len(keys[place])) for place, counts in expected.items()} == {
        (row["topic"], row["at"]): tuple(row[name] for name in names) for row in rows
    }
    assert len(expected) == len(rows) == len(summary.tables[0].rows)
    assert all(row["value_bytes_p50"] <= row["value_bytes_p90"] <= row["value_bytes_max"] for row in rows)
    assert all(0 < row["lag_ms_p50"] <= row["lag_ms_p99"] <= row["lag_ms_max"] for row in rows)
    figures = "records", "bytes", "hours"
    total = 5010, sum(counts[3] for counts in expected.values()), len(expected)
    assert [total] * 2 == [tuple(one.numbers[name] for name in figures) for one in (summary, again)]


def test_only_hours_with_new_records_are_counted_again(spark: SparkSession, tmp_path: Path) -> None:
    """And the table is as one that is made anew, though some records are late."""
    zone, lake = LandingZone(tmp_path / "landing", make=make_record), tmp_path / "lake"
    settings = JobSettings(pipeline=Pipeline(path=str(lake)))
    zone.land("orders", 0, 0, 20_000)
    zone.land("pay ments", 0, 0, 10)
    run_bronze(spark, [zone], lake / "bronze")
    first = stats.run(lambda: spark, settings, Silent())
    zone.land("orders", 1, 100, 200)
    zone.land("orders", 0, 20_000, 20_500)
    run_bronze(spark, [zone], lake / "bronze")

    second = stats.run(lambda: spark, settings, Silent())
    third = stats.run(lambda: spark, settings, Silent())
    found = rows_of(spark, lake / "stats")
    anew = JobSettings(pipeline=Pipeline.model_validate({"path": str(lake), "stats": {"path": str(tmp_path / "anew")}}))
    stats.run(lambda: spark, anew, Silent())

    assert first.numbers["hours_counted"] == first.numbers["hours"]
    assert 0 < second.numbers["hours_counted"] < second.numbers["hours"]
    assert second.numbers["records"] == 20_610
    assert third.numbers["hours_counted"] == 0
    assert third.notes == ("bronze has nothing new",)
    assert found == rows_of(spark, tmp_path / "anew")


def test_all_is_counted_again_where_another_choice_is_asked_for(spark: SparkSession, tmp_path: Path) -> None:
    """Of topics, or of how exactly keys are counted; and back again."""
    zone, lake = LandingZone(tmp_path / "landing", make=make_record), tmp_path / "lake"
    zone.land("orders", 0, 0, 5000)
    zone.land("payments", 0, 0, 10)
    run_bronze(spark, [zone], lake / "bronze")
    given = [
        JobSettings(pipeline=Pipeline.model_validate({"path": str(lake), "landing": {"topics": topics}}))
        for topics in ([], ["payments"], [])
    ]

    records = [stats.run(lambda: spark, one, Silent()).numbers["records"] for one in given]

    assert records == [5010, 10, 5010]


def rows_of(spark: SparkSession, path: Path) -> list[str]:
    return sorted(map(str, read_table(spark, path).collect()))
