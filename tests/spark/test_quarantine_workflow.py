# SPDX-License-Identifier: Apache-2.0
"""Replay, marks and purge of quarantined records: exact rows, and counts that hold."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from consumerd import failpoints
from consumerd.config.job import JobSettings
from consumerd.config.pipeline import Pipeline
from consumerd.spark import replay, silver
from consumerd.spark.cli import main
from consumerd.spark.compact import compact_table
from consumerd.spark.job import Silent, Summary
from consumerd.spark.quarantine_marks import Mark, _marked, find_places, mark_replayed
from consumerd.spark.quarantine_rows import MARKS
from consumerd.spark.silver_tables import BAD_RECORD, QUARANTINE_FOLDERS
from consumerd.spark.table import log as table_log
from consumerd.spark.table.commit import Operation
from consumerd.spark.table.errors import TableError
from consumerd.spark.table.parquet_files import FileSettings
from consumerd.spark.table.reading import read_table
from consumerd.spark.table.restore import restore
from consumerd.spark.table.transaction import Table, create_table, open_table
from consumerd.spark.table.vacuum import vacuum
from tests.support.bronze import run_bronze
from tests.support.delta_readers import READERS, rows_of
from tests.support.embedded import EmbeddedThread
from tests.support.lake import make_order
from tests.support.landing_zone import LandingZone
from tests.support.processes import end_all_in
from tests.support.zookeeper import run_server

pytestmark = pytest.mark.records

WEEK_MS = 7 * 24 * 3600 * 1000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedThread]:
    with (
        run_server() as zookeeper,
        EmbeddedThread(tmp_path_factory.mktemp("broker"), f"{zookeeper.connect_string}/workflow") as running,
    ):
        yield running


@pytest.fixture
def zone(tmp_path: Path) -> LandingZone:
    return LandingZone(tmp_path / "landing", make=make_order)


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


def settings(lake: Path, *, rebuild: bool = False, **options: object) -> JobSettings:
    topics = {
        "orders": {
            "key": "utf8",
            "value": {"format": "json", "fields": {"n": "bigint not null", "at": "epoch_ms"}},
            "event_time": "value.at",
            "late_ms": 3_600_000,
        }
    }
    pipeline = {"path": str(lake), "silver": {"topics": topics, "rebuild": rebuild}, "replay": options}
    return JobSettings(pipeline=Pipeline.model_validate(pipeline))


def land(spark: SparkSession, zone: LandingZone, lake: Path, start: int, end: int) -> None:
    zone.land("orders", 0, start, end)
    run_bronze(spark, [zone], lake / "bronze")


def decode(spark: SparkSession, lake: Path, *, rebuild: bool = False) -> tuple[object, ...]:
    """Run silver, which finds no miscount; return the records read, decoded and quarantined."""
    summary = silver.run(lambda: spark, settings(lake, rebuild=rebuild), Silent())
    assert [one for one in summary.findings if "are in quarantine" not in one] == []
    return tuple(summary.numbers[name] for name in ("read", "decoded", "quarantined"))


def send(spark: SparkSession, lake: Path, broker: EmbeddedThread, target: str, **options: object) -> Summary:
    to = {"source": "quarantine", "topic": "orders", "target": target, "bootstrap_servers": broker.bootstrap}
    return replay.run(lambda: spark, settings(lake, **to, **options), Silent())


def told(summary: Summary) -> tuple[object, ...]:
    return tuple(summary.numbers[name] for name in ("records", "replayed_before", "sent", "marked"))


def marks(spark: SparkSession, lake: Path) -> dict[int, str | None]:
    """Return the quarantine's offsets with the topics of their replays. No offset is there twice."""
    rows = read_table(spark, lake / "quarantine").select("offset", "replayed", "replayed_to").collect()
    assert all((row["replayed"] is None) == (row["replayed_to"] is None) for row in rows)
    found = {row["offset"]: row["replayed_to"] for row in rows}
    assert len(found) == len(rows)
    return found


def contents(spark: SparkSession, lake: Path) -> list[str]:
    """Return the quarantine's rows without their marks."""
    return rows_of(read_table(spark, lake / "quarantine").drop(*MARKS.names).toArrow())


def compact(spark: SparkSession, path: Path) -> None:
    compact_table(lambda: spark, open_table(path), target_bytes=1 << 20, settings=FileSettings(), progress=Silent())


def vacuum_now(path: Path) -> None:
    table = open_table(path)
    vacuum(table, keep_ms=0, keep_log_ms=WEEK_MS, now_ms=table.snapshot().time_ms + 1)


def end_offset(broker: EmbeddedThread, topic: str) -> int:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "tests"})
    try:
        return int(consumer.get_watermark_offsets(TopicPartition(topic, 0))[1])
    finally:
        consumer.close()


def purge(lake: Path, *words: str) -> Any:
    assert main(["quarantine", "--path", str(lake), "--json", "--quiet", *words]) == 0


def of_kinds(start: int, end: int, *kinds: int) -> list[int]:
    return [offset for offset in range(start, end) if offset % 10 in kinds]


BAD = (1, 2, 3)
"""Last digits of bad orders: value, key, time."""


def test_replayed_records_are_marked_and_left_out(
    spark: SparkSession, zone: LandingZone, lake: Path, broker: EmbeddedThread, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every reader of Delta tables sees the marks, after compaction, too."""
    broker.create_topic("mended", 1)
    broker.create_topic("again", 1)
    for start in (0, 20):
        land(spark, zone, lake, start, start + 20)
        decode(spark, lake)
    before = contents(spark, lake)

    started = datetime.now(UTC)
    first = send(spark, lake, broker, "mended", reason="bad value")
    assert told(first) == (4, 0, 4, 4)
    expected = {offset: "mended" if offset % 10 == 1 else None for offset in of_kinds(0, 40, *BAD)}
    assert marks(spark, lake) == expected
    assert contents(spark, lake) == before
    times = read_table(spark, lake / "quarantine").selectExpr("unix_millis(replayed) AS at").where("at IS NOT NULL")
    assert {True} == {started.timestamp() * 1000 - 1 <= row["at"] for row in times.collect()}

    second = send(spark, lake, broker, "mended", reason="bad value")
    assert told(second) == (0, 4, 0, 0)
    assert second.notes == ("4 records left out, since replayed before (--again sends them, too)",)
    dry = send(spark, lake, broker, "again", dry_run=True)
    assert told(dry) == (8, 4, 0, 0)
    third = send(spark, lake, broker, "again", reason="bad value", again=True, partition=0, end_offset=20)
    assert told(third) == (2, 0, 2, 2)
    expected |= {1: "again", 11: "again"}
    assert marks(spark, lake) == expected
    assert (end_offset(broker, "mended"), end_offset(broker, "again")) == (4, 2)

    compact(spark, lake / "quarantine")
    vacuum_now(lake / "quarantine")
    land(spark, zone, lake, 40, 50)
    assert decode(spark, lake) == (10, 7, 3)
    assert marks(spark, lake) == {**expected, 41: None, 42: None, 43: None}
    table = open_table(lake / "quarantine")
    operations = [commit.operation for commit in table.log.read_after(0)]
    assert operations.count(Operation.UPDATE) == 2
    assert table.snapshot().last_replace == 0
    for reader in READERS.values():
        ours = rows_of(read_table(spark, lake / "quarantine").toArrow())
        assert rows_of(reader(lake / "quarantine")) == ours
    capsys.readouterr()
    assert main(["quarantine", "--path", str(lake), "--json"]) == 0
    causes = json.loads(capsys.readouterr().out)["causes"]
    assert {(one["cause"], one["rows"], one["replayed"]) for one in causes} == {
        ("bad value", 5, 4),
        ("bad key", 5, 0),
        ("late", 5, 0),
    }


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS.keys())
def test_a_table_of_an_earlier_release_gets_the_columns(
    spark: SparkSession, zone: LandingZone, lake: Path, broker: EmbeddedThread, reader: Any, tmp_path: Path
) -> None:
    """By the first replay; older versions stay as they were."""
    target = f"upgraded-{tmp_path.name.replace('_', '-')}"
    broker.create_topic(target, 1)
    columns = from_arrow_schema(BAD_RECORD).json()
    create_table(lake / "quarantine", name="quarantine", schema=columns, partition_by=QUARANTINE_FOLDERS)
    land(spark, zone, lake, 0, 20)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(silver, "add_marks", lambda *_: None)
        decode(spark, lake)
    assert read_table(spark, lake / "quarantine").columns == BAD_RECORD.names
    send(spark, lake, broker, target, reason="late")

    wider = [*BAD_RECORD.names[:-2], *MARKS.names, *BAD_RECORD.names[-2:]]
    assert read_table(spark, lake / "quarantine").columns == wider
    assert read_table(spark, lake / "quarantine", 1).columns == BAD_RECORD.names
    land(spark, zone, lake, 20, 30)
    decode(spark, lake)
    assert marks(spark, lake) == {offset: target if offset in (3, 13) else None for offset in of_kinds(0, 30, *BAD)}
    newest = open_table(lake / "quarantine").snapshot().version
    for version in range(1, newest + 1):
        ours = rows_of(read_table(spark, lake / "quarantine", version).toArrow())
        assert rows_of(reader(lake / "quarantine", version)) == ours


def test_silver_adds_the_columns_to_a_table_of_an_earlier_release(
    spark: SparkSession, zone: LandingZone, lake: Path
) -> None:
    """So that a query for records that are not replayed works before the first replay."""
    columns = from_arrow_schema(BAD_RECORD).json()
    create_table(lake / "quarantine", name="quarantine", schema=columns, partition_by=QUARANTINE_FOLDERS)
    land(spark, zone, lake, 0, 10)
    decode(spark, lake)

    assert marks(spark, lake) == dict.fromkeys((1, 2, 3))


def test_a_second_replay_does_not_go_on_to_an_older_incarnation(
    spark: SparkSession, zone: LandingZone, lake: Path, broker: EmbeddedThread
) -> None:
    """Offsets of a re-created topic are those of the newest one, which were sent."""
    broker.create_topic("newest", 1)
    zone.land("orders", 0, 0, 10)
    zone.land("orders", 0, 0, 10, czxid=10)
    run_bronze(spark, [zone], lake / "bronze")
    decode(spark, lake)
    some = {"partition": 0, "start_offset": 0, "end_offset": 10}

    assert told(send(spark, lake, broker, "newest", **some)) == (3, 0, 3, 3)
    assert told(send(spark, lake, broker, "newest", **some)) == (0, 3, 0, 0)
    rows = read_table(spark, lake / "quarantine").where("replayed IS NOT NULL").select("incarnation").distinct()
    assert [row[0] for row in rows.collect()] == ["10"]


@pytest.fixture
def _all_gone(tmp_path: Path) -> Iterator[None]:
    yield
    end_all_in(tmp_path)


@pytest.mark.usefixtures("_all_gone")
def test_a_replay_killed_before_its_mark_sends_again(
    spark: SparkSession, zone: LandingZone, lake: Path, broker: EmbeddedThread, tmp_path: Path
) -> None:
    """At least once: the records are in the topic then, and none is marked."""
    broker.create_topic("killed", 1)
    land(spark, zone, lake, 0, 20)
    decode(spark, lake)
    to = {"source": "quarantine", "topic": "orders", "target": "killed", "bootstrap_servers": broker.bootstrap}
    config = tmp_path / "pipeline.yaml"
    given = settings(lake, **to)
    config.write_text(yaml.safe_dump({"pipeline": given.pipeline.model_dump(mode="json", exclude_unset=True)}))
    died = subprocess.run(
        [sys.executable, "-m", "consumerd.spark", "replay", "--config", str(config), "--master", "local[1]"],
        cwd=tmp_path,
        env={
            **os.environ,
            failpoints.VARIABLE: "before_table_commit=kill",
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert (died.returncode, "fail_point_reached" in died.stderr) == (-signal.SIGKILL, True), died.stderr
    assert end_offset(broker, "killed") == 6
    assert set(marks(spark, lake).values()) == {None}

    assert told(send(spark, lake, broker, "killed")) == (6, 0, 6, 6)
    assert end_offset(broker, "killed") == 12
    assert set(marks(spark, lake).values()) == {"killed"}
    assert decode(spark, lake) == (0, 0, 0)


def test_marks_find_rows_that_moved_while_they_were_sent(
    spark: SparkSession, zone: LandingZone, lake: Path, broker: EmbeddedThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By compaction and vacuum; what silver adds and a purge removes meanwhile is not marked."""
    broker.create_topic("moved", 1)
    for start in (0, 20):
        land(spark, zone, lake, start, start + 20)
        decode(spark, lake)
    really_send = replay.send

    def send_slowly(*given: Any, **how: Any) -> None:
        really_send(*given, **how)
        land(spark, zone, lake, 40, 60)
        decode(spark, lake)
        purge(lake, "--purge", "all", "--cause", "bad key")
        compact(spark, lake / "quarantine")
        vacuum_now(lake / "quarantine")

    monkeypatch.setattr(replay, "send", send_slowly)
    done = send(spark, lake, broker, "moved")

    assert told(done) == (12, 0, 12, 8)
    assert done.notes == ("4 records not marked: they are no longer in the quarantine",)
    assert marks(spark, lake) == {offset: "moved" if offset < 40 else None for offset in of_kinds(0, 60, 1, 3)}
    assert decode(spark, lake) == (0, 0, 0)


def test_a_commit_of_silver_between_plan_and_commit_of_a_mark_stays(
    spark: SparkSession, zone: LandingZone, lake: Path
) -> None:
    """And compaction makes the mark be planned anew."""
    for start in (0, 20):
        land(spark, zone, lake, start, start + 20)
        decode(spark, lake)
    table = open_table(lake / "quarantine")
    places = find_places(read_table(spark, table.path).where("cause = 'late'")).persist()
    land(spark, zone, lake, 40, 50)
    others = [lambda: compact(spark, table.path), lambda: decode(spark, lake)]
    beside = Beside(table, others)
    mark = Mark(at=datetime.now(UTC), target="there")
    assert mark_replayed(spark, beside, places, topic="orders", plan="replay:1", mark=mark) == 4
    places.unpersist()

    assert others == []
    assert marks(spark, lake) == {
        offset: "there" if offset % 10 == 3 and offset < 40 else None for offset in of_kinds(0, 50, *BAD)
    }
    assert decode(spark, lake) == (0, 0, 0)


class Beside(Table):
    """A table on which other jobs commit while a transaction is at work."""

    def __init__(self, table: Table, others: list[Any]) -> None:
        super().__init__(table.record, table.log)
        self._others = others

    def schema(self, snapshot: Any) -> str:
        """Be called within the transaction, before its commit."""
        if self._others:
            self._others.pop(0)()
        return super().schema(snapshot)


def test_a_replay_whose_mark_fails_says_that_it_has_sent(
    spark: SparkSession, zone: LandingZone, lake: Path, broker: EmbeddedThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator decides: the next run would send again."""
    broker.create_topic("unmarked", 1)
    land(spark, zone, lake, 0, 10)
    decode(spark, lake)

    def fail(*_: object, **__: object) -> int:
        raise TableError("no space left")

    monkeypatch.setattr(replay, "mark_replayed", fail)
    with pytest.raises(
        TableError, match=r"3 records of orders were sent to unmarked, but they are not marked.*no space"
    ):
        send(spark, lake, broker, "unmarked")
    assert end_offset(broker, "unmarked") == 3


def test_purged_records_do_not_come_back(
    spark: SparkSession, zone: LandingZone, lake: Path, broker: EmbeddedThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By bronze's log, or by identities: after compaction and vacuum, or a restore."""
    broker.create_topic("purged", 1)
    land(spark, zone, lake, 0, 40)
    decode(spark, lake)
    send(spark, lake, broker, "purged", reason="late")
    purge(lake, "--purge", "replayed")
    purge(lake, "--purge", "all", "--cause", "bad key")
    left = of_kinds(0, 40, 1)
    assert sorted(marks(spark, lake)) == left
    assert decode(spark, lake) == (0, 0, 0)

    land(spark, zone, lake, 40, 50)
    assert decode(spark, lake) == (10, 7, 3)
    left += [41, 42, 43]
    # the files of a run that silver has not made yet have moved
    land(spark, zone, lake, 50, 60)
    compact(spark, lake / "bronze")
    vacuum_now(lake / "bronze")
    assert decode(spark, lake) == (10, 7, 3)
    left += [51, 52, 53]
    assert sorted(marks(spark, lake)) == left
    # bronze's log no longer says what is new
    monkeypatch.setattr(table_log, "CHECKPOINT_EVERY", 3)
    for start in range(60, 100, 10):
        land(spark, zone, lake, start, start + 10)
    assert open_table(lake / "bronze").log.expire(2**60) > 0
    assert open_table(lake / "bronze").log.oldest() > 5
    assert decode(spark, lake) == (40, 28, 12)
    left += of_kinds(60, 100, *BAD)
    assert sorted(marks(spark, lake)) == left
    # silver goes back, the quarantine does not
    restore(open_table(lake / "silver" / "orders"), 1)
    assert decode(spark, lake) == (42, 42, 0)
    assert sorted(marks(spark, lake)) == left
    assert sorted(row[0] for row in read_table(spark, lake / "silver" / "orders").select("offset").collect()) == [
        offset for offset in range(100) if offset % 10 not in BAD
    ]


def test_a_rebuild_brings_purged_records_back_and_keeps_marks(
    spark: SparkSession, zone: LandingZone, lake: Path, broker: EmbeddedThread
) -> None:
    """Records that were replayed and are still bad are not sent twice."""
    broker.create_topic("rebuilt", 1)
    for start in (0, 20):
        land(spark, zone, lake, start, start + 20)
        decode(spark, lake)
    before = contents(spark, lake)
    send(spark, lake, broker, "rebuilt", reason="late")
    purge(lake, "--purge", "all", "--cause", "bad key")
    marked = {offset: "rebuilt" if offset % 10 == 3 else None for offset in of_kinds(0, 40, 1, 3)}
    assert marks(spark, lake) == marked
    assert decode(spark, lake, rebuild=True) == (40, 28, 12)

    assert marks(spark, lake) == {**marked, **dict.fromkeys(of_kinds(0, 40, 2))}
    assert contents(spark, lake) == before
    assert told(send(spark, lake, broker, "rebuilt", dry_run=True)) == (8, 4, 0, 0)
    # the identities of the purge before the rebuild have no effect any more
    land(spark, zone, lake, 40, 50)
    compact(spark, lake / "bronze")
    vacuum_now(lake / "bronze")
    assert decode(spark, lake) == (10, 7, 3)
    purge(lake, "--purge", "replayed")
    assert sorted(marks(spark, lake)) == sorted([*of_kinds(0, 40, 1, 2), 41, 42, 43])
    assert decode(spark, lake) == (0, 0, 0)


def test_records_that_bronze_takes_again_after_a_rebuild_are_decoded(
    spark: SparkSession, zone: LandingZone, lake: Path
) -> None:
    """Though they were purged before: bronze went back, and the rebuild did not have them."""
    for start in (0, 20):
        land(spark, zone, lake, start, start + 20)
        decode(spark, lake)
    purge(lake, "--purge", "all", "--cause", "bad key")
    restore(open_table(lake / "bronze"), 1)
    assert decode(spark, lake, rebuild=True) == (20, 14, 6)
    land(spark, zone, lake, 40, 50)
    compact(spark, lake / "bronze")
    vacuum_now(lake / "bronze")

    assert decode(spark, lake) == (30, 21, 9)
    assert sorted(marks(spark, lake)) == of_kinds(0, 50, *BAD)


def test_marks_go_by_row_numbers_of_the_file(tmp_path: Path) -> None:
    """Over its row groups."""
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"offset": pa.array(range(10, 20), pa.int64())}), path, row_group_size=4)
    at = pa.array([datetime(2026, 11, 24, tzinfo=UTC)] * 4, MARKS[0].type)
    numbers = pa.array([0, 3, 4, 9], pa.int64())
    given = pa.StructArray.from_arrays([numbers, at, pa.array(list("abcd"))], names=["_row", *MARKS.names])

    rows = pa.concat_tables(list(_marked(path, given)))
    assert {row["offset"]: row["replayed_to"] for row in rows.to_pylist() if row["replayed"] is not None} == {
        10: "a", 13: "b", 14: "c", 19: "d",
    }  # fmt: skip
    assert rows["offset"].to_pylist() == [*range(10, 20)]
