# SPDX-License-Identifier: Apache-2.0
"""What was erased is nowhere any more, nothing else has changed, and the pipeline goes on."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import deltalake
import pyarrow.parquet as pq
import pytest
import zstandard
from pyspark.sql import SparkSession

from consumerd.config.job import JobSettings
from consumerd.config.pipeline import Pipeline
from consumerd.errors import ConfigError
from consumerd.landing.filesystem import OsFileSystem
from consumerd.landing.footers import read_all
from consumerd.landing.metadata import find_metadata_reader
from consumerd.landing.publish import find_chain
from consumerd.landing.scan import scan_landing
from consumerd.model import GapReason, Incarnation, TopicPartition
from consumerd.spark import audit, bronze, erase, latest, silver
from consumerd.spark.compact import compact_table
from consumerd.spark.erase import NOT_REACHED, NotReady
from consumerd.spark.erase_tables import remove_rows
from consumerd.spark.identities import COLUMNS, SCHEMA, Identities
from consumerd.spark.job import Silent, Summary
from consumerd.spark.quarantine import purge
from consumerd.spark.quarantine_marks import Mark, find_places, mark_replayed
from consumerd.spark.quarantine_rows import Choice, count_replayed
from consumerd.spark.table.locks import FileLock
from consumerd.spark.table.parquet_files import FileSettings
from consumerd.spark.table.reading import read_table
from consumerd.spark.table.transaction import open_table
from consumerd.wire.records import Record
from tests.spark.test_silver_interrupted import compact_and_vacuum
from tests.support.landing_zone import FIRST_MS, Kind, LandingZone
from tests.support.record_batches import record

pytestmark = pytest.mark.records

KEYS = ("anna-4711", "bert-0815", "carl-2342", "dora-1337", "emil-1000")
"""Keys in turn: the record at offset 12 has the third one."""
ANNA = KEYS[0].encode()
KINDS: tuple[Kind, ...] = ("parquet", "jsonl.zst")
"""One of each family: how the kinds of lines differ is tested without Spark."""
TABLES = ("bronze", "quarantine", "silver/orders", "latest/orders")


def make_order(partition: TopicPartition, incarnation: Incarnation, offset: int) -> Record:
    """Return an order whose value names the customer; every seventh is no JSON, but names the customer nevertheless."""
    key = KEYS[offset % len(KEYS)]
    text = json.dumps({"n": offset, "customer": key}) if offset % 7 else f"{{ {key}"
    return record(offset, text.encode(), key=key.encode(), timestamp=FIRST_MS + offset * 1000)


class Lake:
    """A landing zone of the topics orders and other, and the jobs over it."""

    def __init__(self, spark: SparkSession, folder: Path, kind: Kind = "parquet") -> None:
        self.spark = spark
        self.folder = folder
        self.path = folder / "lake"
        self.zone = LandingZone(folder / "landing", kind=kind, make=make_order)

    def settings(self, **options: object) -> JobSettings:
        fields = {"n": "bigint not null", "customer": "string"}
        orders = {"key": "utf8", "value": {"format": "json", "fields": fields}, "latest": True}
        return JobSettings(
            pipeline=Pipeline.model_validate(
                {
                    "path": str(self.path),
                    "landing": {"roots": [str(self.zone.path)]},
                    "silver": {"topics": {"orders": orders}},
                    "erase": {"topic": "orders", **options},
                }
            )
        )

    def fill(self) -> None:
        """Land and decode 0 to 100 in several files and commits, and ten records of another topic."""
        self.zone.land("orders", 0, 0, 40, files=3)
        self.zone.land("orders", 1, 0, 20)
        self.zone.land("other", 0, 0, 10)
        self.decode()
        self.zone.land("orders", 0, 40, 80, files=2)
        self.decode()

    def decode(self) -> tuple[str, ...]:
        """Run bronze and silver; return the findings that are not about the quarantine."""
        found = bronze.run(lambda: self.spark, self.settings(), Silent()).findings
        found += silver.run(lambda: self.spark, self.settings(), Silent()).findings
        return tuple(one for one in found if not one.endswith("records are in quarantine"))

    def erase(self, **options: object) -> Summary:
        return erase.run(lambda: self.spark, self.settings(**options), Silent())

    def audit(self) -> list[str]:
        """Return all findings of a proof."""
        given = self.settings().pipeline.model_copy(
            update={"audit": self.settings().pipeline.audit.model_copy(update={"proof": True})}
        )
        return list(audit.run(lambda: self.spark, JobSettings(pipeline=given), Silent()).findings)

    def rows(self, table: str) -> list[tuple[object, ...]]:
        """Return a table's rows of all topics, without the commit times that differ."""
        return sorted((tuple(row) for row in read_table(self.spark, self.path / table).collect()), key=str)

    def everything(self) -> dict[str, list[tuple[object, ...]]]:
        return {name: self.rows(name) for name in TABLES}

    def landed(self) -> list[tuple[str, int, int]]:
        """Return topic, partition and offset of all landed records, by what the files hold."""
        found = []
        for topic, partition in (("orders", 0), ("orders", 1), ("other", 0)):
            for path in self.zone.files(topic, partition):
                found += [(topic, partition, offset) for offset in read_offsets(path)]
        return sorted(found)

    def occurrences(self, text: bytes) -> list[str]:
        """Return the files below the folder that have a text, in any column, page or line, decompressed."""
        return sorted(
            str(path.relative_to(self.folder))
            for path in self.folder.rglob("*")
            if path.is_file() and any(text in content for content in contents(path))
        )


def contents(path: Path) -> Iterator[bytes]:
    """Yield a file's bytes, and what they are decompressed and decoded."""
    data = path.read_bytes()
    yield data
    if path.name.endswith(".jsonl.gz"):
        yield gzip.decompress(data)
    elif path.name.endswith(".jsonl.zst"):
        yield zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True).read()
    elif path.suffix == ".parquet":
        table = pq.read_table(path, partitioning=None)
        yield repr(table.to_pylist()).encode()
        yield repr(pq.read_metadata(path).metadata).encode()


def read_offsets(path: Path) -> list[int]:
    if path.suffix == ".parquet":
        offsets: list[int] = pq.read_table(path, columns=["offset"], partitioning=None)["offset"].to_pylist()
        return offsets
    *_, text = contents(path)
    return [json.loads(line)["offset"] for line in text.splitlines()]


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Lake:
    return Lake(spark, tmp_path)


def is_of(key: str) -> Callable[[tuple[object, ...]], bool]:
    return lambda row: row_key(row) == key


def row_key(row: tuple[object, ...]) -> str:
    """Return a row's key, wherever the table has it."""
    found = [one for one in row if isinstance(one, bytes | bytearray | str) and as_text(one) in KEYS]
    return as_text(found[0])


def as_text(value: object) -> str:
    return bytes(value).decode("latin-1") if isinstance(value, bytes | bytearray) else str(value)


def without(rows: list[tuple[object, ...]], key: str) -> list[tuple[object, ...]]:
    return [row for row in rows if row_key(row) != key or "other" in row]


@pytest.mark.parametrize("kind", KINDS)
def test_a_key_is_erased_everywhere_and_nothing_else(spark: SparkSession, tmp_path: Path, kind: Kind) -> None:
    """In every table and landed file; readers, daemons, audit and later runs accept what is left."""
    lake = Lake(spark, tmp_path, kind)
    lake.fill()
    before = lake.everything()
    landed = lake.landed()
    others = [path for path in lake.occurrences(ANNA) if "topic=other" in path]

    summary = lake.erase(key=KEYS[0])

    assert () == summary.findings
    assert {name: without(rows, KEYS[0]) for name, rows in before.items()} == lake.everything()
    assert [one for one in landed if one[2] % 5 or one[0] == "other"] == lake.landed()
    assert others == lake.occurrences(ANNA)
    assert [20, 0] == [summary.numbers["identities"], summary.numbers["matches_left"]]
    assert [] == lake.audit()
    for partition, end in ((0, 80), (1, 20)):
        assert end == chain_end(lake, partition)


def test_later_runs_bring_nothing_back(lake: Lake) -> None:
    """Bronze, silver, latest and compaction go on by increments; a new record of the key is a record like others."""
    lake.fill()
    lake.erase(key=KEYS[0])

    assert () == lake.decode()
    for name in TABLES:
        compact_table(
            lambda: lake.spark,
            open_table(lake.path / name),
            target_bytes=1 << 20,
            settings=FileSettings(),
            progress=Silent(),
        )
    lake.zone.land("orders", 0, 80, 86)
    assert () == lake.decode()

    anna = read_table(lake.spark, lake.path / "bronze").where(f"topic = 'orders' AND key = '{KEYS[0]}'")
    assert [80, 85] == sorted(row["offset"] for row in anna.collect())
    assert {KEYS[0]: 85, KEYS[1]: 81} == {
        row["key"]: row["offset"]
        for row in latest.read_latest(lake.spark, lake.path / "latest" / "orders").collect()
        if row["key"] in KEYS[:2]
    }
    assert [] == lake.audit()


def test_an_erasure_agrees_with_marks_and_purges_of_the_quarantine(lake: Lake) -> None:
    """Records that stay keep their marks, and counts hold, also for an erased record that was purged before."""
    lake.fill()
    table = open_table(lake.path / "quarantine")
    mark_partition(lake, 1)
    assert purge(table, Choice(replayed=True), now_ms=1).rows["orders"] == 3
    mark_partition(lake, 0)
    lake.zone.land("orders", 0, 80, 90)
    lake.decode()
    assert (table.snapshot().rows, count_replayed(table, table.snapshot().files.values())) == (13, 12)

    summary = lake.erase(key=KEYS[0])

    assert () == summary.findings
    assert 3 == summary.details["places"]["quarantine"]["rows"]
    bad = [offset for offset in range(0, 90, 7) if offset % 5]
    rows = read_table(lake.spark, table.path).select("offset", "replayed_to").collect()
    assert {offset: "again" if offset < 80 else None for offset in bad} == {row[0]: row[1] for row in rows}
    assert len(bad) - 1 == count_replayed(table, table.snapshot().files.values())
    assert () == lake.decode()
    # by comparing identities, since the files of the new records have moved
    lake.zone.land("orders", 0, 90, 100)
    bronze.run(lambda: lake.spark, lake.settings(), Silent())
    compact_and_vacuum(lake.spark, lake.path / "bronze")
    assert () == lake.decode()
    assert [*bad, 91, 98] == sorted(row["offset"] for row in read_table(lake.spark, table.path).collect())
    compact_and_vacuum(lake.spark, table.path)
    assert len(bad) - 1 == count_replayed(table, table.snapshot().files.values())


def mark_partition(lake: Lake, partition: int) -> None:
    """Mark a partition's quarantined records as replayed."""
    table = open_table(lake.path / "quarantine")
    places = find_places(read_table(lake.spark, table.path).where(f"partition = {partition}")).persist()
    mark = Mark(at=datetime.now(UTC), target="again")
    mark_replayed(lake.spark, table, places, topic="orders", plan=f"replay:{partition}", mark=mark)
    places.unpersist()


def test_an_older_record_is_the_latest_again(lake: Lake) -> None:
    """By a predicate on silver; keys whose decoded rows retention has removed stay in the table of latest values."""
    lake.fill()
    bert = open_table(lake.path / "silver" / "orders")
    read = read_table(lake.spark, bert.path).where(f"key = '{KEYS[1]}'").select(*COLUMNS).toArrow().cast(SCHEMA)
    remove_rows(lake.spark, bert, "orders", Identities.of(read), counted_by="expired", settings=FileSettings())
    before = lake.everything()

    summary = lake.erase(where="value.n IN (78, 77)")  # 77 is in quarantine, where it has no n

    assert () == summary.findings
    assert (1, 1) == (summary.numbers["identities"], summary.details["places"]["latest"]["restored"])  # type: ignore[index]
    after = lake.everything()
    for name in ("bronze", "silver/orders"):
        assert 1 == len(before[name]) - len(after[name])
    assert before["quarantine"] == after["quarantine"]
    found = {row["key"]: row["offset"] for row in read_table(lake.spark, lake.path / "latest" / "orders").collect()}
    assert {KEYS[0]: 75, KEYS[1]: 76, KEYS[2]: 72, KEYS[3]: 73, KEYS[4]: 79} == found
    assert () == lake.decode()


def test_a_predicate_on_bronze_reaches_what_is_in_quarantine(lake: Lake) -> None:
    """It is about raw columns; null erases nothing."""
    lake.fill()
    before = lake.rows("quarantine")

    summary = lake.erase(where="partition = 0 AND offset < 15 AND broker IS NULL", where_in="bronze")
    nothing = lake.erase(where="broker = 1 OR NULL", where_in="bronze")

    assert ((), (), 15, 0) == (
        summary.findings,
        nothing.findings,
        summary.numbers["identities"],
        nothing.numbers["identities"],
    )
    assert 3 == len(before) - len(lake.rows("quarantine"))
    assert () == lake.decode()


def test_a_dry_run_changes_nothing(lake: Lake) -> None:
    """No byte of any file."""
    lake.fill()
    before = {path: path.read_bytes() for path in lake.folder.rglob("*") if path.is_file()}

    summary = lake.erase(key=KEYS[0], dry_run=True)

    assert before == {path: path.read_bytes() for path in lake.folder.rglob("*") if path.is_file()}
    assert (20, 0) == (summary.numbers["identities"], summary.numbers["erased"])
    places = summary.details["places"]
    assert isinstance(places, dict)
    assert {"landed files": 20, "bronze": 20, "quarantine": 4, "silver": 16, "latest": 1} == {
        name: place["rows"] for name, place in places.items()
    }


def test_a_wrong_predicate_is_refused_in_one_line(lake: Lake, capfd: pytest.CaptureFixture[str]) -> None:
    """The JVM's stack trace would hide it."""
    lake.fill()

    with pytest.raises(ConfigError, match=r"pipeline\.erase\.where: .*orde"):
        lake.erase(where="value.orde = 1")

    assert "AnalysisException" not in capfd.readouterr().err


def test_a_topic_of_which_nothing_has_landed_is_a_finding(lake: Lake) -> None:
    """A misspelt topic would give a proof that its records are gone."""
    lake.fill()

    found = lake.erase(topic="ordres", key=KEYS[0]).findings

    assert found == ("nothing has landed of topic ordres: is its name spelt right?",)


def test_what_silver_has_not_decoded_is_not_erased(lake: Lake) -> None:
    """Its counts would not hold: the error names the job that is to run first."""
    lake.fill()
    lake.zone.land("orders", 0, 80, 90)
    bronze.run(lambda: lake.spark, lake.settings(), Silent())
    before = lake.everything()

    with pytest.raises(NotReady, match="run the job silver first"):
        lake.erase(key=KEYS[0])

    assert before == lake.everything()
    lake.decode()
    assert () == lake.erase(key=KEYS[0]).findings
    assert () == lake.erase(key=KEYS[1]).findings  # what it rewrites itself does not wait for silver


def test_what_bronze_does_not_have_yet_is_erased_where_it_was_landed(lake: Lake) -> None:
    """And it is a finding: more may come. Bronze then takes the rest, and says that it is complete."""
    lake.fill()
    lake.zone.land("orders", 0, 80, 90)

    summary = lake.erase(key=KEYS[0])

    assert 22 == summary.numbers["identities"]
    [finding] = summary.findings
    assert "1 landed files of orders are not in bronze yet" in finding
    assert () == lake.decode()
    assert () == lake.erase(key=KEYS[0]).findings
    offsets = {
        row["offset"] for row in read_table(lake.spark, lake.path / "bronze").where("topic = 'orders'").collect()
    }
    assert {80, 85}.isdisjoint(offsets)
    assert {81, 89} <= offsets
    assert [] == lake.audit()


class Died(BaseException):
    """The process has ended."""


class Dying(Silent):
    """Progress of a run that ends when it comes to a step."""

    def __init__(self, step: str) -> None:
        self._step = step

    def step(self, what: str) -> None:
        """See Progress."""
        if what == self._step:
            raise Died


@pytest.mark.parametrize(
    ("steps", "options"),
    [
        (
            ("rewriting latest", "rewriting quarantine", "rewriting bronze", "removing what was replaced in silver"),
            {"key": KEYS[0]},
        ),
        (
            ("rewriting bronze", "rewriting latest", "rewriting silver", "removing what was replaced in bronze"),
            {"where": f"value.customer = '{KEYS[0]}'"},
        ),
    ],
    ids=["key", "predicate"],
)
def test_a_run_that_died_is_finished_by_the_next(
    lake: Lake, steps: tuple[str, ...], options: dict[str, object]
) -> None:
    """Wherever it died: what it is asked for is found as long as it is not done."""
    lake.fill()
    quarantined = "where" in options
    before = lake.everything()
    expected = {
        name: rows if quarantined and name == "quarantine" else without(rows, KEYS[0]) for name, rows in before.items()
    }
    for step in steps:
        with pytest.raises(Died):
            erase.run(lambda: lake.spark, lake.settings(**options), Dying(step))

    summary = lake.erase(**options)

    assert () == summary.findings
    after = lake.everything()
    for name in ("quarantine", "silver/orders", "latest/orders"):
        assert expected[name] == after[name]
    assert [] == [path for path in lake.occurrences(b'"customer": "' + ANNA) if "topic=other" not in path]
    assert () == lake.decode()
    assert [] == lake.audit()


def test_what_is_left_is_a_finding(lake: Lake) -> None:
    """A file that no version of the table names, of another writer, is searched as well, and not removed."""
    lake.fill()
    table = open_table(lake.path / "bronze")
    path = next(iter(table.snapshot().files))
    copy = (table.path / path).with_name("copy.parquet")
    copy.write_bytes((table.path / path).read_bytes())

    summary = lake.erase(key=KEYS[0], report=str(lake.folder / "report.json"))

    [finding] = summary.findings
    assert finding.endswith(f"matches are left in {copy}: run the job again")
    report = json.loads((lake.folder / "report.json").read_text())
    assert report["matches_left"] == summary.numbers["matches_left"] != 0
    assert list(NOT_REACHED) == report["not_reached"]
    assert KEYS[0] not in json.dumps({**report, "findings": [], "notes": []})
    assert {"keys": 1, "sha256": [hashlib.sha256(ANNA).hexdigest()]} == report["asked"]


def test_too_many_records_are_refused(lake: Lake) -> None:
    """Before anything is changed: identities are held in memory."""
    lake.fill()
    before = lake.everything()

    with pytest.raises(ConfigError, match="more than 19 records would be erased"):
        lake.erase(key=KEYS[0], max_records=19)
    with pytest.raises(ConfigError, match=r"pipeline.erase.where: .*nobody"):
        lake.erase(where="nobody = 1")

    assert before == lake.everything()


def test_two_runs_at_once_are_refused(lake: Lake) -> None:
    """They would put each other's landed files back."""
    lake.fill()
    lock = FileLock(lake.zone.path / ".erase.lock")
    try:
        assert lock.try_exclusive()
        with pytest.raises(NotReady, match="another run of the job erase"):
            lake.erase(key=KEYS[0])
    finally:
        lock.close()


def chain_end(lake: Lake, partition: int) -> int:
    """Return where a daemon would go on."""
    read_metadata = find_metadata_reader(lake.zone.kind)
    assert read_metadata is not None
    chain = find_chain(
        OsFileSystem(),
        lake.zone.path,
        TopicPartition.modern("orders", partition),
        extension=lake.zone.kind,
        read_metadata=read_metadata,
    )
    assert chain is not None
    return chain.end


def test_rewritten_files_say_what_was_erased(lake: Lake) -> None:
    """As gaps of a reason of their own; the time of landing stays, by which bronze and the job retention go."""
    lake.fill()
    path = lake.zone.files("orders", 0)[0]
    os.utime(path, ns=(1, 1_700_000_000_000_000_000))

    lake.erase(key=KEYS[0])

    [chain, _] = read_all(scan_landing([lake.zone.path], topics={"orders"})).chains
    metadata = chain.files[0].metadata
    assert metadata is not None
    assert [(0, 1), (5, 6), (10, 11)] == [(gap.start, gap.end) for gap in metadata.gaps]
    assert {GapReason.ERASED} == {gap.reason for gap in metadata.gaps}
    assert (0, 13, 10) == (metadata.position, metadata.next_offset, metadata.count)
    assert (1, 12) == (metadata.first_offset, metadata.last_offset)
    assert 1_700_000_000_000_000_000 == path.stat().st_mtime_ns


def test_others_read_the_tables_afterwards(lake: Lake) -> None:
    """Delta's own reader has the same rows."""
    lake.fill()
    lake.erase(keys_file=keys_file(lake, KEYS[0], KEYS[3]))

    for name in TABLES:
        rows = deltalake.DeltaTable(lake.path / name).to_pyarrow_table()
        assert len(lake.rows(name)) == len(rows)
        topics = rows["topic"].to_pylist() if name == "bronze" else ["orders"] * len(rows)
        keys = {key for topic, key in zip(topics, rows["key"].to_pylist(), strict=True) if topic == "orders"}
        assert 3 == len(keys)


def keys_file(lake: Lake, *keys: str) -> str:
    path = lake.folder / "keys"
    path.write_text("".join(f"{key}\n" for key in keys))
    return str(path)
