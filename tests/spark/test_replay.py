# SPDX-License-Identifier: Apache-2.0
"""What is chosen goes into the target, all of it and nothing else, in order; without a target nothing does."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from pyspark.sql import SparkSession

from consumerd.config.job import JobSettings
from consumerd.config.pipeline import Pipeline
from consumerd.errors import ConfigError
from consumerd.spark import replay, silver
from consumerd.spark.job import Silent, Summary
from consumerd.wire.record_fields import NO_TIMESTAMP
from tests.support.bronze import run_bronze
from tests.support.embedded import EmbeddedThread
from tests.support.landing_zone import FIRST_MS, LandingZone
from tests.support.record_batches import record
from tests.support.waiting import wait_until
from tests.support.zookeeper import run_server

pytestmark = pytest.mark.records


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedThread]:
    with (
        run_server() as zookeeper,
        EmbeddedThread(tmp_path_factory.mktemp("broker"), f"{zookeeper.connect_string}/replay") as running,
    ):
        yield running


def settings(tmp_path: Path, **options: object) -> JobSettings:
    topics = {"orders": {"key": "utf8", "value": {"format": "json", "fields": {"n": "int"}}}}
    lake = str(tmp_path / "lake")
    return JobSettings(
        pipeline=Pipeline.model_validate({"path": lake, "silver": {"topics": topics}, "replay": options})
    )


def run(spark: SparkSession, given: JobSettings) -> Summary:
    return replay.run(lambda: spark, given, Silent())


def read_values(broker: EmbeddedThread, topic: str, partitions: int) -> list[list[bytes | None]]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "tests", "enable.auto.commit": False})
    try:
        here = [TopicPartition(topic, number, 0) for number in range(partitions)]
        wanted = sum(consumer.get_watermark_offsets(one)[1] for one in here)
        consumer.assign(here)
        found: list[tuple[int, int, bytes | None]] = []

        def has_all() -> bool:
            found.extend((one.partition(), one.offset(), one.value()) for one in consumer.consume(1000, 0.1))
            return len(found) >= wanted

        wait_until(has_all, f"{wanted} records of {topic}", 30)
        return [[value for at, _, value in sorted(found) if at == number] for number in range(partitions)]
    finally:
        consumer.close()


def test_ranges_windows_and_the_quarantine_go_back(
    spark: SparkSession, zone: LandingZone, broker: EmbeddedThread, tmp_path: Path
) -> None:
    """Each partition's records in their order."""
    zone.land("orders", 0, 0, 100)
    zone.land("orders", 1, 0, 60)
    run_bronze(spark, [zone], tmp_path / "lake" / "bronze")
    silver.run(lambda: spark, settings(tmp_path), Silent())
    values = {
        number: [
            record.value for identity, record in sorted(zone.expected.items()) if identity.partition == str(number)
        ]
        for number in (0, 1)
    }
    for name in ("ranges", "windows", "bad"):
        broker.create_topic(name, 2)
    to = {"topic": "orders", "bootstrap_servers": broker.bootstrap, "keep_partition": True}

    dry = run(
        spark, settings(tmp_path, **to, target="ranges", partition=0, start_offset=10, end_offset=30, dry_run=True)
    )
    nothing = read_values(broker, "ranges", 2)
    one = run(spark, settings(tmp_path, **to, target="ranges", partition=0, start_offset=10, end_offset=30))
    start, end = (datetime.fromtimestamp(FIRST_MS / 1000 + second, UTC) for second in (20, 50))
    run(spark, settings(tmp_path, **to, target="windows", start_time=start, end_time=end))
    run(spark, settings(tmp_path, **to, target="bad", source="quarantine", reason="bad value"))

    assert ((20, 0), (20, 20)) == (
        (dry.numbers["records"], dry.numbers["sent"]),
        (one.numbers["records"], one.numbers["sent"]),
    )
    assert (0, "7", 10, 29, 20) == dry.tables[0].rows[0][:5]
    assert ("a dry run: nothing was sent",) == dry.notes
    assert [[], []] == nothing
    assert [values[0][10:30], []] == read_values(broker, "ranges", 2)
    assert [values[0][20:50], values[1][20:50]] == read_values(broker, "windows", 2)
    # no value of theirs is JSON, but those that are null delete their keys
    assert [[value for value in values[number] if value is not None] for number in (0, 1)] == read_values(
        broker, "bad", 2
    )


def test_records_are_sent_in_the_order_of_their_offsets(spark: SparkSession, broker: EmbeddedThread) -> None:
    """A table's files give rows in any order, and the last value of a key would be another one."""
    broker.create_topic("shuffled", 2)
    rows = [
        (None, f"{partition}:{incarnation}:{offset}".encode(), None, None, None, partition, incarnation, offset, 0)
        for incarnation in ("5.10", "40", "5.2", "5")
        for offset in range(49, -1, -1)
        for partition in (0, 1)
    ]
    columns = (
        "key binary, value binary, headers array<struct<key: string, value: binary>>, timestamp timestamp, broker int, "
        "partition int, incarnation string, offset bigint, index int"
    )
    chosen = spark.createDataFrame(rows, columns).coalesce(1)
    replay.send(
        spark,
        chosen,
        target="shuffled",
        cluster={"kafka.bootstrap.servers": broker.bootstrap},
        keep_partition=True,
    )

    expected = [f"{incarnation}:{offset}" for incarnation in ("5", "5.2", "5.10", "40") for offset in range(50)]
    assert [[f"{partition}:{one}".encode() for one in expected] for partition in (0, 1)] == read_values(
        broker, "shuffled", 2
    )


def test_offsets_are_those_of_one_incarnation(
    spark: SparkSession, zone: LandingZone, broker: EmbeddedThread, tmp_path: Path
) -> None:
    """After an election, and in a topic that was made again, they are other records."""
    zone.land("orders", 0, 0, 50)
    zone.land("orders", 0, 30, 60, truncated=True)
    zone.land("orders", 0, 0, 50, czxid=10)
    run_bronze(spark, [zone], tmp_path / "lake" / "bronze")
    broker.create_topic("incarnations", 1)
    chosen = {
        "topic": "orders",
        "target": "incarnations",
        "bootstrap_servers": broker.bootstrap,
        "partition": 0,
        "start_offset": 35,
        "end_offset": 40,
    }

    def dry(**more: object) -> tuple[list[str], tuple[str, ...]]:
        summary = run(spark, settings(tmp_path, **chosen, **more, dry_run=True))
        return [str(row[1]) for row in summary.tables[0].rows], summary.notes

    newest, notes = dry()
    assert ["10"] == newest
    assert "these offsets of several incarnations of orders: chosen is 10, the newest" in notes[0]
    assert (["7.1"], ("a dry run: nothing was sent",)) == dry(incarnation="7.1")
    assert ["7", "7.1", "10"] == dry(incarnation="all")[0]

    sent = run(spark, settings(tmp_path, **chosen, incarnation="7.1"))
    assert 5 == sent.numbers["sent"]
    expected = [
        record.value
        for identity, record in sorted(zone.expected.items())
        if identity.incarnation == "7.1" and 35 <= identity.offset < 40
    ]
    assert [expected] == read_values(broker, "incarnations", 1)


def test_records_without_a_time_are_in_the_window_in_which_they_were_landed(
    spark: SparkSession, zone: LandingZone, tmp_path: Path
) -> None:
    """Those of 0.8 have none."""
    zone.make = lambda _place, _incarnation, offset: record(offset, timestamp=NO_TIMESTAMP)
    (path,) = zone.land("orders", 0, 0, 50)
    landed = FIRST_MS // 1000
    os.utime(path, (landed, landed))
    run_bronze(spark, [zone], tmp_path / "lake" / "bronze")
    around = {"topic": "orders", "target": "again", "dry_run": True}

    def count(first: int, last: int) -> object:
        start, end = (datetime.fromtimestamp(landed + second, UTC) for second in (first, last))
        return run(spark, settings(tmp_path, **around, start_time=start, end_time=end)).numbers["records"]

    assert (50, 0) == (count(-1, 1), count(1, 60))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"pipeline\.replay\.topic: missing"),
        ({"topic": "orders"}, r"pipeline\.replay\.target: missing; nothing is sent without a target"),
        ({"topic": "orders", "target": "there"}, r"pipeline\.replay: there is no cluster to send to"),
    ],
)
def test_nothing_is_sent_without_a_place(tmp_path: Path, options: dict[str, object], message: str) -> None:
    """Before Spark is asked for anything."""

    def no_session() -> SparkSession:
        raise AssertionError("no session is needed")

    with pytest.raises(ConfigError, match=message):
        replay.run(no_session, settings(tmp_path, **options), Silent())
