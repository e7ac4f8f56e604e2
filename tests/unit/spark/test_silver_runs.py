# SPDX-License-Identifier: Apache-2.0
"""Silver and quarantine together are bronze, each record once, however runs come between each other's steps: without Spark."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from consumerd.config.job import JobSettings
from consumerd.config.pipeline import Pipeline
from consumerd.errors import ConfigError
from consumerd.spark import silver
from consumerd.spark.decoding.loading import load_decoder
from consumerd.spark.job import Silent
from consumerd.spark.silver_plan import TopicPlan, TopicTables
from consumerd.spark.table import log as table_log
from consumerd.spark.table.commit import LOG_FOLDER, DataFile
from consumerd.spark.table.errors import TableConflict, TableError
from consumerd.spark.table.parquet_files import FileSettings, PartitionedWriter
from consumerd.spark.table.restore import restore
from consumerd.spark.table.transaction import Table, Transaction, open_table
from tests.support.tables import append, make_rows, make_table, read_offsets

SETTINGS = Pipeline.model_validate({"silver": {"topics": {"orders": {"key": "raw", "value": "raw"}}}})
DECODER = load_decoder("orders", SETTINGS.silver.topics["orders"])


class Interrupted(Table):
    """A table on which something else happens just before each transaction begins."""

    def __init__(self, table: Table, before: Callable[[], object]) -> None:
        super().__init__(table.record, table.log)
        self._before = before

    def begin(self, **how: Any) -> Transaction:
        self._before()
        return super().begin(**how)


def decode(
    session: Callable[[], Any],
    tables: TopicTables,
    _: object,
    plan: TopicPlan,
    transactions: tuple[Transaction, ...],
    *,
    bad_one_of: int = 10,
) -> object:
    """Be the tasks of a run: every tenth record is bad."""
    session()
    offsets = [offset for file in plan.files for offset in read_file(tables.bronze.path / file.path)]
    if plan.known is not None:
        known = {
            offset for one in transactions for path in one.base.files for offset in read_file(one.table.path / path)
        }
        offsets = [offset for offset in offsets if offset not in known]
    staged: list[list[DataFile]] = []
    for transaction, is_bad in zip(transactions, (False, True), strict=True):
        folders = transaction.table.record.partition_by
        rows = make_rows([offset for offset in offsets if (offset % bad_one_of == 0) is is_bad])
        writer = PartitionedWriter(
            transaction.staging, prefix=transaction.attempt, partition_by=folders, settings=FileSettings()
        )
        writer.append(rows.select(["offset", *folders]))
        staged.append(writer.finish())
    return *staged, plan.known is not None


def read_file(path: Path) -> list[int]:
    return pq.read_table(path, columns=["offset"], partitioning=None)["offset"].to_pylist()


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TopicTables:
    monkeypatch.setattr(silver, "_decode", decode)
    bronze = make_table(tmp_path / "bronze")
    return silver.open_tables(
        "orders", DECODER, bronze=bronze, silver=tmp_path / "silver", quarantine=tmp_path / "quarantine"
    )


def run(tables: TopicTables, *, rebuild: bool = False, session: Callable[[], Any] = lambda: None) -> int:
    """Decode what is new, and return how many records that was."""
    return silver.decode_new(session, tables, DECODER, rebuild=rebuild).read


def no_session() -> Any:
    raise AssertionError("there is nothing to decode")


def forget_newest(table: Table) -> None:
    """Make a table what it was before its last commit, as if the job had died just before that."""
    (table.log.path / LOG_FOLDER / f"{table.snapshot().version:020d}.json").unlink()


def assert_each_once(tables: TopicTables, offsets: range) -> None:
    assert read_offsets(tables.silver) == [offset for offset in offsets if offset % 10]
    assert read_offsets(tables.quarantine) == [offset for offset in offsets if not offset % 10]
    assert silver.check_counts(tables) == []


def test_run_that_comes_between_plan_and_beginning(tables: TopicTables) -> None:
    """It has decoded what was planned, and more; the plan is made anew."""
    append(tables.bronze, make_rows(range(50)))
    others: list[int] = []

    def other() -> None:
        if not others:
            append(tables.bronze, make_rows(range(50, 80)))
            others.append(run(tables))

    assert run(replace(tables, silver=Interrupted(tables.silver, other))) == 0
    assert others == [80]
    assert_each_once(tables, range(80))


def test_run_is_refused_where_others_come_between_all_the_time(tables: TopicTables) -> None:
    """By an error that says what has happened, and nothing of it is visible."""
    append(tables.bronze, make_rows(range(10)))

    def other() -> None:
        run(tables)
        end = tables.bronze.snapshot().rows
        assert end < 100
        append(tables.bronze, make_rows(range(end, end + 10)))

    with pytest.raises(TableConflict, match="another run has decoded orders up to version"):
        run(replace(tables, silver=Interrupted(tables.silver, other)))
    run(tables)
    assert_each_once(tables, range(tables.bronze.snapshot().rows))


def test_run_that_died_beside_one_without_bad_records(tables: TopicTables) -> None:
    """Only one of them may say from where to where the next commit is, even if it has nothing for the quarantine."""
    append(tables.bronze, make_rows(range(1, 10)))
    others: list[int] = []

    def session() -> None:
        if not others:
            append(tables.bronze, make_rows(range(10, 20)))
            others.append(run(tables))
            forget_newest(tables.silver)

    run(tables, session=session)
    run(tables)

    assert others == [19]
    assert_each_once(tables, range(1, 20))


def test_decoding_anew_that_died_halfway_is_begun_once_more(tables: TopicTables) -> None:
    """The quarantine is that of all versions then, and must not be added to."""
    append(tables.bronze, make_rows(range(50)))
    run(tables)
    append(tables.bronze, make_rows(range(50, 80)))
    run(tables, rebuild=True)
    forget_newest(tables.silver)
    append(tables.bronze, make_rows(range(80, 95)))

    assert run(tables) == 95
    assert run(tables) == 0
    assert_each_once(tables, range(95))


def test_topic_that_was_restored_is_decoded_again_from_there(tables: TopicTables) -> None:
    """Its bad records are in quarantine already: they stay as they are, and none comes twice."""
    append(tables.bronze, make_rows(range(50)))
    run(tables)
    append(tables.bronze, make_rows(range(50, 80)))
    run(tables)
    append(tables.bronze, make_rows(range(80, 95)))
    restore(tables.silver, 1)

    assert silver.check_counts(tables) != []
    assert run(tables) == 27 + 15
    assert_each_once(tables, range(95))
    assert run(tables) == 0


def test_run_over_a_restored_topic_that_died_halfway_is_finished(tables: TopicTables) -> None:
    """Beside records that have come since."""
    append(tables.bronze, make_rows(range(50)))
    run(tables)
    append(tables.bronze, make_rows(range(50, 80)))
    run(tables)
    restore(tables.silver, 1)
    append(tables.bronze, make_rows(range(80, 95)))
    run(tables)
    forget_newest(tables.silver)

    assert run(tables) == 27 + 15
    assert_each_once(tables, range(95))
    forget_newest(tables.silver)
    append(tables.bronze, make_rows(range(95, 101)))
    run(tables)
    assert_each_once(tables, range(101))


def test_what_bronzes_log_does_not_say_any_more_is_found_by_comparing(
    tables: TopicTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic that nobody has decoded for longer than commits are kept."""
    monkeypatch.setattr(table_log, "CHECKPOINT_EVERY", 3)
    append(tables.bronze, make_rows(range(20)))
    run(tables)
    for at in range(20, 90, 10):
        append(tables.bronze, make_rows(range(at, at + 10)), now_ms=at)
    assert tables.bronze.log.expire(2**40) > 0
    assert tables.bronze.log.oldest() > 2

    assert run(tables) == 70
    assert_each_once(tables, range(90))
    forget_newest(tables.silver)
    assert run(tables) == 70
    assert_each_once(tables, range(90))
    assert run(tables) == 0


def test_quarantine_that_remembers_a_rebuild_for_longer_is_no_reason_for_another(
    tables: TopicTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The two logs do not end at the same time."""
    monkeypatch.setattr(table_log, "CHECKPOINT_EVERY", 3)
    append(tables.bronze, make_rows(range(20)))
    run(tables, rebuild=True)
    for at in range(20, 90, 10):
        append(tables.bronze, make_rows(range(at, at + 10)))
        run(tables)
    assert tables.silver.log.expire(2**50) > 0
    append(tables.bronze, make_rows(range(90, 95)))

    assert run(tables) == 5
    assert_each_once(tables, range(95))


def test_rows_that_bronze_has_lost_are_told(tables: TopicTables) -> None:
    """Decoded ones of it would stay for ever."""
    append(tables.bronze, make_rows(range(20)))
    append(tables.bronze, make_rows(range(20, 30)))
    run(tables)
    restore(tables.bronze, 1)

    with pytest.raises(TableError, match="version 3 has changed rows; decode orders anew with silver --rebuild"):
        run(tables)
    run(tables, rebuild=True)
    assert_each_once(tables, range(20))


def test_a_field_that_changes_is_refused_though_nothing_is_new(tables: TopicTables) -> None:
    """Whoever has changed the settings learns it from the next run, not when records come."""
    append(tables.bronze, make_rows(range(10)))
    run(tables)
    pipeline = Pipeline.model_validate({"silver": {"topics": {"orders": {"key": "utf8", "value": "raw"}}}})
    changed = load_decoder("orders", pipeline.silver.topics["orders"])

    with pytest.raises(TableError, match="key was binary and is to be string; decode it anew with silver --rebuild"):
        silver.decode_new(no_session, tables, changed)


def test_run_that_died_between_its_commits_is_finished(tables: TopicTables) -> None:
    """The quarantine is ahead of the topic's table then; what is new comes in a commit of its own."""
    append(tables.bronze, make_rows(range(50)))
    run(tables)
    forget_newest(open_table(tables.silver.path))
    append(tables.bronze, make_rows(range(50, 80)))

    assert run(tables) == 80
    assert [commit.rows for commit in tables.quarantine.log.read_after(0)] == [5, 3]
    assert_each_once(tables, range(80))


def test_run_that_dies_between_its_commits_while_another_makes_its_plan(tables: TopicTables) -> None:
    """The other's plan has bad records that are in quarantine by then: it goes on with the plan of the dead run."""
    append(tables.bronze, make_rows(range(50)))
    others: list[int] = []

    def other() -> None:
        if not others:
            append(tables.bronze, make_rows(range(50, 80)))
            others.append(run(tables))
            forget_newest(tables.silver)

    assert run(replace(tables, silver=Interrupted(tables.silver, other))) == 80
    assert others == [80]
    assert_each_once(tables, range(80))


def test_run_that_died_between_its_commits_is_not_finished_by_other_settings(
    tables: TopicTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record would be in quarantine by the former settings, and decoded or lost by the present ones."""
    append(tables.bronze, make_rows(range(50)))
    run(tables)
    forget_newest(tables.silver)
    monkeypatch.setattr(silver, "_decode", functools.partial(decode, bad_one_of=5))

    with pytest.raises(
        TableError, match="has 5 bad records of orders, and now there are 10: its settings have changed"
    ):
        run(tables)
    assert tables.silver.snapshot().version == 0
    assert run(tables, rebuild=True) == 50
    assert read_offsets(tables.quarantine) == list(range(0, 50, 5))
    assert silver.check_counts(tables) == []


def test_a_rebuild_from_another_bronze_is_the_beginning_of_its_own(tables: TopicTables, tmp_path: Path) -> None:
    """A bronze that was made anew is refused, with the way out; after that way out, runs go on."""
    append(tables.bronze, make_rows(range(50)))
    run(tables)
    other = replace(tables, bronze=make_table(tmp_path / "other"))
    append(other.bronze, make_rows(range(100, 120)))

    with pytest.raises(TableError, match=r"another table .* silver --rebuild"):
        run(other)
    assert run(other, rebuild=True) == 20
    assert_each_once(other, range(100, 120))
    append(other.bronze, make_rows(range(120, 130)))
    assert run(other) == 10
    assert_each_once(other, range(100, 130))
    with pytest.raises(TableError, match="another table"):
        run(tables)


@pytest.mark.parametrize(
    ("topics", "says"),
    [
        ({"orders": {"value": "raw"}}, "none of the topics asked for; declared is orders, so"),
        ({"orders": {"value": "raw"}, "clicks": {"value": "raw"}}, "declared are clicks, orders, so"),
        ({}, "no topic is declared, so"),
    ],
)
def test_topics_that_are_not_declared_are_refused(topics: dict[str, object], says: str, tmp_path: Path) -> None:
    """A misspelt name, or a section that is missing: the message tells one from the other."""
    pipeline = {"path": str(tmp_path), "landing": {"topics": ["ordrs"]}, "silver": {"topics": topics}}
    settings = JobSettings.model_validate({"pipeline": pipeline})

    with pytest.raises(ConfigError, match=f"pipeline.silver.topics: .*{says} there is nothing to decode"):
        silver.run(no_session, settings, Silent())
