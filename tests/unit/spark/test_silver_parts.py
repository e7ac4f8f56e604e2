# SPDX-License-Identifier: Apache-2.0
"""Silver in commits of bounded size, and events between them. Without Spark."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from consumerd.config.job import JobSettings
from consumerd.spark import retention, silver
from consumerd.spark.decoding.loading import load_decoder
from consumerd.spark.identities import SCHEMA
from consumerd.spark.job import Silent
from consumerd.spark.quarantine_purged import find_purged, record_purged
from consumerd.spark.retention import remove_days
from consumerd.spark.silver_plan import TopicPlan, TopicTables
from consumerd.spark.silver_progress import SilverPosition, purged_key
from consumerd.spark.table import log as table_log
from consumerd.spark.table.commit import DataFile, Operation, cut_files
from consumerd.spark.table.errors import TableError
from consumerd.spark.table.parquet_files import FileSettings, PartitionedWriter
from consumerd.spark.table.restore import restore
from consumerd.spark.table.transaction import Table, Transaction
from consumerd.spark.table.vacuum import vacuum
from tests.support.tables import append, make_rows, make_table, read_offsets
from tests.unit.spark.test_silver_runs import Interrupted, forget_newest, read_file

TODAY = datetime.now(UTC).date()
DAY_MS = 86_400_000
EVER_MS = 2**60


class Stopped(BaseException):
    """The run dies here."""


def write(transactions: tuple[Transaction, ...], rows: Iterable[tuple[int, str]]) -> tuple[list[DataFile], ...]:
    """Be the tasks of a run: every tenth record is bad."""
    known = list(rows)
    staged: list[list[DataFile]] = []
    for transaction, is_bad in zip(transactions, (False, True), strict=True):
        folders = transaction.table.record.partition_by
        writer = PartitionedWriter(
            transaction.staging,
            prefix=f"{transaction.attempt}-{random.getrandbits(40):x}",
            partition_by=folders,
            settings=FileSettings(),
        )
        for day in sorted({day for _, day in known}):
            of_day = make_rows([one for one, at in known if at == day and (one % 10 == 0) is is_bad], day=day)
            writer.append(of_day.select(["offset", *folders]))
        staged.append(writer.finish())
    return tuple(staged)


def read_rows(table: Table, files: Iterable[DataFile]) -> list[tuple[int, str]]:
    """Return offsets and days."""
    return [(offset, file.values[-1]) for file in files for offset in read_file(table.path / file.path)]


def decode_files(
    hook: Callable[[], object], tables: TopicTables, _: object, plan: TopicPlan, transactions: tuple[Transaction, ...]
) -> tuple[list[DataFile], ...]:
    rows = read_rows(tables.bronze, plan.files)
    hook()
    return write(transactions, rows)


def decode_by_comparison(
    hook: Callable[[], object], tables: TopicTables, _: object, plan: TopicPlan, transactions: tuple[Transaction, ...]
) -> tuple[list[DataFile], ...]:
    known = {offset for one in transactions for offset, _ in read_rows(one.table, one.base.files.values())}
    known |= purged_offsets(tables)
    rows = read_rows(tables.bronze, tables.bronze.snapshot(plan.until).files.values())
    hook()
    return write(transactions, [one for one in rows if one[0] not in known])


def purged_offsets(tables: TopicTables) -> set[int]:
    """Return the offsets that were purged since the last rebuild, by their notes."""
    notes = find_purged(tables.quarantine)
    if notes is None:
        return set()
    rebuilds = tables.quarantine.snapshot().progress.get(tables.quarantine_rebuilds, 0)
    files = [pq.read_table(notes.path / path, partitioning=None) for path in notes.snapshot().files]
    return {row["offset"] for file in files for row in file.to_pylist() if row["rebuilds"] == rebuilds}


@dataclass
class Lake:
    """A topic's tables, and the offsets that silver and the quarantine should have together."""

    tables: TopicTables
    settings: JobSettings
    expected: set[int] = field(default_factory=set)

    @property
    def bronze(self) -> Table:
        """The table that everything comes from."""
        return self.tables.bronze

    def append(self, *days: range) -> None:
        """Append a version to bronze with a file for each day, the last one today."""
        self.expected |= {offset for offsets in days for offset in offsets}
        names = [(TODAY - timedelta(days=3 * age)).isoformat() for age in reversed(range(len(days)))]
        append(self.bronze, *(make_rows(offsets, day=day) for offsets, day in zip(days, names, strict=True)))

    def run(self, *, commit_bytes: int = 1, tables: TopicTables | None = None, **how: Any) -> int:
        """Decode new records in commits of a file; return their number."""
        of = tables or self.tables
        return silver.decode_new(self._session(), of, DECODER, commit_bytes=commit_bytes, **how).read

    def rebuild(self, hook: Callable[[], object]) -> None:
        """Rebuild in Spark jobs of a file, with a hook in each."""

        def session() -> Any:
            return hook

        silver.decode_new(session, self.tables, DECODER, commit_bytes=1, rebuild=True)

    def run_commits(self, count: int, **how: Any) -> bool:
        """Let a run die in the commit after ``count``; return False if it had no more to do."""
        try:
            silver.decode_new(self._session(count), self.tables, DECODER, **{"commit_bytes": 1, **how})
        except Stopped:
            return True
        return False

    def _session(self, stop_after: int | None = None) -> Any:
        begun = 0

        def hook() -> None:
            nonlocal begun
            begun += 1
            silver_now, quarantine = self.tables.silver.snapshot(), self.tables.quarantine.snapshot()
            is_settled = self.tables.decoded(silver_now) == self.tables.quarantined(quarantine)
            if is_settled and not self.tables.is_half_rebuilt(silver_now, quarantine):
                assert silver.check_counts(self.tables) == []
            if stop_after is not None and begun > stop_after:
                raise Stopped

        return lambda: hook

    def die_between_commits(self, commits: int, **how: Any) -> None:
        """Let a run die between the two commits of its last part."""
        if self.run_commits(commits, **how):
            forget_newest(self.tables.silver)

    def compact(self, most: int = 99) -> None:
        """Merge files of each folder."""
        base = self.bronze.snapshot()
        for values in sorted({file.values for file in base.files.values()}):
            old = [file for file in base.files.values() if file.values == values][:most]
            with self.bronze.begin(
                plan=f"{random.random()}", job="compact", operation=Operation.COMPACT
            ) as transaction:
                writer = PartitionedWriter(
                    transaction.staging,
                    prefix=transaction.attempt,
                    partition_by=("topic", "day"),
                    settings=FileSettings(),
                )
                offsets = [offset for offset, _ in read_rows(self.bronze, old)]
                writer.append(make_rows(offsets, day=values[1]))
                transaction.add(writer.finish())
                transaction.remove(file.path for file in old)
                transaction.commit()

    def vacuum(self) -> None:
        """Remove what was compacted."""
        vacuum(self.bronze, keep_ms=0, keep_log_ms=EVER_MS, now_ms=EVER_MS - 1)

    def retain(self) -> None:
        """Remove bronze's rows of former days."""
        retention.run(self._session(), self.settings, Silent())

    def purge(self, chance: random.Random) -> None:
        """Remove a file of the quarantine, as a purge does."""
        table = self.tables.quarantine
        with table.begin(plan=f"{chance.random()}", job="purge", operation=Operation.DELETE) as transaction:
            if not transaction.base.files:
                return
            path = chance.choice(sorted(transaction.base.files))
            offsets = read_file(table.path / path)
            progress = transaction.base.progress
            columns = [pa.nulls(len(offsets), field.type) for field in SCHEMA]
            columns[SCHEMA.names.index("offset")] = pa.array(offsets, pa.int64())
            rebuilds = progress.get(self.tables.quarantine_rebuilds, 0)
            identities = {"orders": [pa.Table.from_arrays(columns, schema=SCHEMA)]}
            record_purged(table, identities, rebuilds={"orders": rebuilds}, now_ms=1)
            transaction.remove([path])
            of_topic = purged_key("orders")
            transaction.commit(progress={of_topic: progress.get(of_topic, 0) + len(offsets)})

    def assert_each_once(self) -> None:
        """Fail if a record is missing, or there twice, or the counts say so."""
        expected, purged = sorted(self.expected), purged_offsets(self.tables)
        assert read_offsets(self.tables.silver) == [offset for offset in expected if offset % 10]
        assert read_offsets(self.tables.quarantine) == [
            offset for offset in expected if not offset % 10 and offset not in purged
        ]
        assert silver.check_counts(self.tables) == []

    def places(self) -> list[SilverPosition]:
        """Return how far each commit of the topic's table has come."""
        versions = range(1, self.tables.silver.snapshot().version + 1)
        return [self.tables.decoded(self.tables.silver.snapshot(version)) for version in versions]


def settings(lake: Path) -> JobSettings:
    pipeline = {
        "path": str(lake),
        "silver": {"topics": {"orders": {"key": "raw", "value": "raw"}}},
        "retention": {"bronze_ms": 2 * DAY_MS},
    }
    return JobSettings.model_validate({"pipeline": pipeline})


DECODER = load_decoder("orders", settings(Path("/")).pipeline.silver.topics["orders"])


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    monkeypatch.setattr(silver, "_decode_files", decode_files)
    monkeypatch.setattr(silver, "_decode_by_comparison", decode_by_comparison)
    tables = silver.open_tables(
        "orders",
        DECODER,
        bronze=make_table(tmp_path / "bronze"),
        silver=tmp_path / "silver" / "orders",
        quarantine=tmp_path / "quarantine",
    )
    return Lake(tables, settings(tmp_path))


def three_versions(lake: Lake) -> None:
    """Fill bronze with four files."""
    lake.append(range(20))
    lake.append(range(20, 40), range(40, 60))
    lake.append(range(60, 80))


def test_first_run_goes_over_the_files_in_parts(lake: Lake) -> None:
    """Files of the newest version; later versions follow one by one."""
    three_versions(lake)
    assert lake.run_commits(2)
    lake.append(range(80, 100))
    lake.append(range(100, 110))

    assert lake.run() == 70
    assert lake.places() == [
        *(SilverPosition(until=3, files=count) for count in (1, 2, 3)),
        *(SilverPosition(version=version) for version in (3, 4, 5)),
    ]
    lake.assert_each_once()


def test_a_commit_takes_versions_as_far_as_they_fit(lake: Lake) -> None:
    """One at least; a version that is larger by itself is taken file by file."""
    lake.append(range(10))
    lake.run()
    for first in (10, 20, 30):
        lake.append(range(first, first + 10))
    lake.append(range(40, 50), range(50, 60), range(60, 70))
    lake.append(range(70, 80))
    size = max(file.size for file in lake.bronze.snapshot().files.values())

    assert lake.run(commit_bytes=2 * size) == 70
    assert lake.places()[1:] == [
        SilverPosition(version=3),
        SilverPosition(version=4),
        SilverPosition(version=4, until=5, files=2),
        SilverPosition(version=5),
        SilverPosition(version=6),
    ]
    lake.assert_each_once()


def test_all_that_fits_is_one_commit(lake: Lake) -> None:
    """The plan has the name that earlier releases gave it, so that their runs are finished."""
    three_versions(lake)
    lake.run(commit_bytes=1 << 30)

    assert lake.places() == [SilverPosition(version=3)]
    [commit] = lake.tables.silver.log.read_after(0)
    assert commit.plan == f"silver:orders:{lake.bronze.record.id}:0-3:0"
    assert commit.progress == {lake.tables.source: 3, "rebuilds": 0, "expired": 0}


@pytest.mark.parametrize("commits", range(1, 7))
@pytest.mark.parametrize("commit_bytes", [1, 1500, 1 << 30], ids=["a file", "two files", "all"])
def test_run_that_died_between_its_commits_is_finished(lake: Lake, commits: int, commit_bytes: int) -> None:
    """The same plan is made again, also with another limit."""
    three_versions(lake)
    lake.run_commits(2)
    lake.append(range(80, 90))
    lake.append(range(90, 95))
    lake.die_between_commits(commits)

    lake.run(commit_bytes=commit_bytes)

    lake.assert_each_once()
    plans = [commit.plan for commit in lake.tables.quarantine.log.read_after(0)]
    assert plans == [commit.plan for commit in lake.tables.silver.log.read_after(0)]
    assert len(plans) == len(set(plans))


def test_rows_that_were_moved_between_parts_are_found_by_comparing(lake: Lake) -> None:
    """One commit takes them all: no log says in which file they are."""
    three_versions(lake)
    lake.die_between_commits(2)
    lake.append(range(80, 90))
    lake.compact()
    lake.vacuum()

    lake.run()

    assert lake.places() == [SilverPosition(until=3, files=1), SilverPosition(version=lake.bronze.snapshot().version)]
    lake.assert_each_once()


def test_versions_that_were_moved_are_found_by_comparing(lake: Lake) -> None:
    """The first of them does not have its files any more; the newest one has all rows."""
    lake.append(range(20))
    lake.run()
    three_more = [range(20, 40), range(40, 60), range(60, 70)]
    for offsets in three_more:
        lake.append(offsets)
    lake.compact()
    lake.vacuum()

    assert lake.run() == 50
    lake.assert_each_once()


def test_version_whose_files_are_vacuumed_after_its_plan_is_planned_again(lake: Lake) -> None:
    """By comparing, since the newest version has its rows in other files."""
    lake.append(range(20))
    lake.run()
    lake.append(range(20, 40))
    others = [lake.vacuum, lake.compact]

    def move() -> None:
        while others:
            others.pop()()

    assert lake.run(tables=replace(lake.tables, silver=Interrupted(lake.tables.silver, move))) == 20
    assert others == []
    lake.assert_each_once()


def test_compaction_alone_changes_nothing_for_a_part(lake: Lake) -> None:
    """Its files are there until vacuum comes."""
    three_versions(lake)
    lake.run_commits(1)
    lake.compact()
    lake.append(range(80, 90))

    lake.run()

    assert [place.files for place in lake.places()[:4]] == [1, 2, 3, 0]
    lake.assert_each_once()


def test_retention_between_parts_leaves_what_is_not_decoded(lake: Lake) -> None:
    """The counts hold with rows removed before the first part and after the last."""
    lake.append(range(100, 107), range(107, 115))
    remove_days(lake.bronze, TODAY, name="bronze")
    lake.expected -= {*range(100, 107)}
    three_versions(lake)
    lake.run_commits(2)
    lake.retain()
    assert read_offsets(lake.bronze) == sorted(lake.expected)
    for decoded in (lake.tables.silver, lake.tables.quarantine):
        remove_days(decoded, TODAY, name="decoded")
    lake.expected -= {*range(20, 40)}  # the first part
    lake.run()
    lake.assert_each_once()
    lake.retain()
    assert read_offsets(lake.bronze) == sorted(lake.expected)
    lake.append(range(80, 90), range(90, 99))
    lake.run_commits(1)
    lake.retain()
    assert {*range(80, 99)} <= {*read_offsets(lake.bronze)}
    lake.run()

    lake.assert_each_once()


def test_bronze_that_was_restored_between_parts_is_refused(lake: Lake) -> None:
    """Files of the version that is being decoded are not bronze's any more."""
    three_versions(lake)
    lake.run_commits(2)
    restore(lake.bronze, 1)

    with pytest.raises(TableError, match="version 4 has changed rows; decode orders anew with silver --rebuild"):
        lake.run()
    lake.expected = set(range(20))
    lake.run(rebuild=True)
    lake.assert_each_once()


def test_topic_that_was_restored_to_a_part_is_decoded_again_from_there(lake: Lake) -> None:
    """Its bad records are in quarantine already."""
    three_versions(lake)
    lake.append(range(80, 90))
    lake.run()
    restore(lake.tables.silver, 2)

    lake.run()
    lake.assert_each_once()
    assert lake.run() == 0


def test_rebuild_is_one_commit_and_several_jobs(lake: Lake) -> None:
    """Readers see the old rows or the new ones."""
    three_versions(lake)
    lake.run_commits(2)
    jobs: list[int] = []

    def hook() -> None:
        jobs.append(lake.tables.silver.snapshot().rows)

    lake.rebuild(hook)

    assert len(jobs) == 4
    assert len(set(jobs)) == 1
    assert lake.places()[2:] == [SilverPosition(version=3)]
    lake.assert_each_once()
    lake.append(range(80, 90))
    assert lake.run() == 10
    lake.assert_each_once()


def test_rebuild_whose_files_are_vacuumed_meanwhile_begins_again(lake: Lake) -> None:
    """It must not compare: everything is in the table that it replaces."""
    three_versions(lake)
    lake.run()
    lake.append(range(80, 90))
    jobs = 0

    def hook() -> None:
        nonlocal jobs
        jobs += 1
        if jobs == 1:
            lake.compact()
            lake.vacuum()

    lake.rebuild(hook)

    assert jobs == 1 + 2
    lake.assert_each_once()


def test_part_whose_files_are_vacuumed_after_its_plan_is_planned_again(lake: Lake) -> None:
    """A comparison finds the rows of all parts, and so more than the plan says."""
    three_versions(lake)
    begun = 0

    def other() -> None:
        nonlocal begun
        begun += 1
        if begun == 2:
            lake.compact()
            lake.vacuum()

    lake.run(tables=replace(lake.tables, silver=Interrupted(lake.tables.silver, other)))

    assert lake.places() == [SilverPosition(until=3, files=1), SilverPosition(version=lake.bronze.snapshot().version)]
    lake.assert_each_once()


def test_another_run_comes_between_two_parts(lake: Lake) -> None:
    """With another limit: the plan is made anew from where that one has come to."""
    three_versions(lake)
    begun = 0

    def other() -> None:
        nonlocal begun
        begun += 1
        if begun == 2:
            lake.append(range(80, 90))
            lake.run_commits(2, commit_bytes=1500)

    lake.run(tables=replace(lake.tables, silver=Interrupted(lake.tables.silver, other)))

    lake.assert_each_once()


@pytest.mark.parametrize("seed", range(12))
def test_whatever_happens_between_parts(lake: Lake, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deaths, compaction, vacuum, retention, purges, expired logs, other limits and rebuilds, in any order."""
    monkeypatch.setattr(table_log, "CHECKPOINT_EVERY", 3)
    chance = random.Random(seed)
    end = 0
    for _ in range(18):
        match chance.choice(
            ["append"] * 4
            + ["part", "die", "die", "compact", "vacuum", "retain", "purge", "purge", "expire", "run", "rebuild"]
        ):
            case "append":
                sizes = [chance.randrange(1, 25) for _ in range(chance.randrange(1, 4))]
                days = [range(end + sum(sizes[:place]), end + sum(sizes[: place + 1])) for place in range(len(sizes))]
                end += sum(sizes)
                lake.append(*days)
            case "part":
                lake.run_commits(chance.randrange(3), commit_bytes=chance.choice([1, 1500, 4000]))
            case "die":
                lake.die_between_commits(chance.randrange(1, 4), commit_bytes=chance.choice([1, 1500, 4000]))
            case "compact":
                lake.compact(chance.randrange(2, 5))
            case "vacuum":
                lake.vacuum()
            case "retain":
                lake.retain()
            case "purge":
                lake.purge(chance)
            case "expire":
                lake.bronze.log.expire(EVER_MS)
            case "run":
                lake.run(commit_bytes=chance.choice([1, 1500, 1 << 30]))
                lake.assert_each_once()
            case "rebuild":
                lake.expected = set(read_offsets(lake.bronze))
                if chance.random() < 0.5:
                    lake.run(rebuild=True, commit_bytes=1500)
                    lake.assert_each_once()
                else:
                    lake.run(rebuild=True)
                    forget_newest(lake.tables.silver)
                    lake.run()
                    lake.assert_each_once()
    lake.run()
    lake.assert_each_once()


@pytest.mark.parametrize("commit_bytes", [1, 1 << 30], ids=["part", "all"])
def test_a_purge_before_the_first_commit_of_silver(lake: Lake, commit_bytes: int) -> None:
    """The first commit has died between two; its files have moved, so the next run compares identities."""
    three_versions(lake)
    lake.run_commits(1, commit_bytes=commit_bytes)
    forget_newest(lake.tables.silver)
    lake.purge(random.Random(1))
    assert (lake.tables.silver.snapshot().version, len(purged_offsets(lake.tables))) == (0, 2)
    lake.compact()
    lake.vacuum()

    lake.run()
    lake.assert_each_once()
    lake.append(range(80, 100))
    lake.run()
    lake.assert_each_once()


def test_a_purge_counts_until_a_rebuild(lake: Lake) -> None:
    """Also where the topic's table is made anew meanwhile, beside rows that retention has removed before."""
    lake.append(range(10), range(10, 30))
    lake.run()
    lake.retain()
    lake.expected -= set(range(10))
    quarantine = lake.tables.quarantine
    remove_days(quarantine, TODAY, name="quarantine")
    lake.purge(random.Random(1))
    restore(lake.tables.silver, 0)
    lake.run()
    lake.assert_each_once()
    assert quarantine.snapshot().progress[purged_key("orders")] == 2

    lake.run(rebuild=True)
    assert purged_offsets(lake.tables) == set()
    lake.assert_each_once()
    assert quarantine.snapshot().progress[purged_key("orders")] == 0


def test_files_are_cut_by_their_sizes() -> None:
    """At most the limit, one file at least, none left out."""
    files = [DataFile(path=f"{size}", size=size, rows=1, values=()) for size in (3, 3, 9, 1, 5, 5)]

    assert [[file.size for file in part] for part in cut_files(files, 6)] == [[3, 3], [9], [1, 5], [5]]
    assert list(cut_files([], 6)) == []
