# SPDX-License-Identifier: Apache-2.0
"""Going back to an earlier version: its rows, what it had taken over and how far it was, as a commit like others."""

from __future__ import annotations

from pathlib import Path

import pytest

from consumerd.landing.coverage import Coverage
from consumerd.landing.ranges import RangeSet
from consumerd.landing.values import LogId
from consumerd.model import Incarnation, PartitionKey
from consumerd.spark.table import log as table_log
from consumerd.spark.table.commit import Operation
from consumerd.spark.table.errors import TableConflict, TableError, VersionVacuumed
from consumerd.spark.table.restore import restore
from consumerd.spark.table.transaction import Table
from consumerd.spark.table.vacuum import vacuum
from tests.support.tables import append, make_rows, make_table, read_offsets, stage

WEEK_MS = 7 * 24 * 3600 * 1000

LOG = LogId("orders", PartitionKey(0), Incarnation(7))


def take(table: Table, start: int, end: int) -> None:
    """Append rows as bronze does: they are covered from then on, and a plan of these offsets is done."""
    covered = Coverage(cluster="c", covered={LOG: RangeSet.of([(start, end)])})
    append(
        table,
        make_rows(range(start, end)),
        plan=f"{start}-{end}",
        covered=covered,
        progress={"x": end},
        now_ms=1000 * end,
    )


def compact(table: Table) -> None:
    with table.begin(plan=f"c{table.snapshot().version}", job="compact", operation=Operation.COMPACT) as transaction:
        stage(transaction, [make_rows(read_offsets(table))])
        transaction.remove(list(transaction.base.files))
        transaction.commit()


def test_the_table_is_as_it_was_and_goes_on_from_there(tmp_path: Path) -> None:
    """What is taken back is not covered any more, so that the next run takes it over again."""
    table = make_table(tmp_path / "table")
    take(table, 0, 5)
    take(table, 5, 8)
    compact(table)
    take(table, 8, 10)
    before = table.snapshot(1)

    commit = restore(table, 1)
    after = table.snapshot()

    assert (commit.version, commit.rows, commit.restores) == (5, 5, 1)
    assert read_offsets(table) == [*range(5)]
    assert (after.covered, after.progress) == (before.covered, before.progress)
    assert "5-8" not in after.plans
    take(table, 5, 8)
    assert read_offsets(table) == [*range(8)]
    assert table.snapshot().covered.covered == {LOG: RangeSet.of([(0, 8)])}
    assert read_offsets(table, 4) == [*range(10)]
    restore(table, 4)
    assert read_offsets(table) == [*range(10)]


@pytest.mark.parametrize("every", [1, 2, 50])
def test_it_is_so_through_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int) -> None:
    """They carry the sums."""
    monkeypatch.setattr(table_log, "CHECKPOINT_EVERY", every)
    table = make_table(tmp_path / "table")
    take(table, 0, 5)
    take(table, 5, 8)
    restore(table, 1)
    take(table, 5, 7)

    assert table.snapshot().covered.covered == {LOG: RangeSet.of([(0, 7)])}
    assert table.snapshot().progress == {"x": 7}
    assert table.snapshot().plans.keys() >= {"0-5", "5-7"}
    assert "5-8" not in table.snapshot().plans


def test_files_that_come_back_are_no_vacuums_any_more(tmp_path: Path) -> None:
    """Their old names are removed in time, and the rows stay."""
    table = make_table(tmp_path / "table")
    take(table, 0, 5)
    compact(table)
    newest = restore(table, 1).time_ms

    assert vacuum(table, keep_ms=0, keep_log_ms=WEEK_MS, now_ms=newest + 1).replaced == 2
    assert read_offsets(table) == [*range(5)]


def test_version_whose_files_are_gone_cannot_come_back(tmp_path: Path) -> None:
    """The table stays as it is."""
    table = make_table(tmp_path / "table")
    take(table, 0, 5)
    compact(table)
    vacuum(table, keep_ms=0, keep_log_ms=WEEK_MS, now_ms=2**50)

    with pytest.raises(VersionVacuumed, match="has been removed; go back to a newer version"):
        restore(table, 1)
    with pytest.raises(TableError, match="there is no version 7; the newest is 2"):
        restore(table, 7)
    assert table.snapshot().version == 2
    assert read_offsets(table) == [*range(5)]


def test_whoever_commits_beside_it_is_refused_and_plans_anew(tmp_path: Path) -> None:
    """A job that has planned by what was covered before must not commit behind it: what it rests on is gone."""
    table = make_table(tmp_path / "table")
    take(table, 0, 5)
    take(table, 5, 8)
    with table.begin(plan="late", job="bronze", operation=Operation.APPEND) as transaction:
        stage(transaction, [make_rows(range(8, 9))])
        restore(table, 1)
        with pytest.raises(TableConflict, match="has gone back to version 1"):
            transaction.commit()
    assert read_offsets(table) == [*range(5)]
