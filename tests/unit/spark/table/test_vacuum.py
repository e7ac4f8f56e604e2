"""Vacuum removes what nobody reads any more, and nothing else."""

from __future__ import annotations

import os
from pathlib import Path

from consumerd.spark.table.commit import Operation
from consumerd.spark.table.transaction import Table
from consumerd.spark.table.vacuum import vacuum
from tests.support.tables import append, make_rows, make_table, plain_offsets, read_offsets, stage


def compact(table: Table, now_ms: int) -> None:
    """Put all rows into one file."""
    begun = table.begin(plan=f"{now_ms}", job="compact", operation=Operation.COMPACT, now_ms=lambda: now_ms)
    with begun as transaction:
        stage(transaction, [make_rows(read_offsets(table))])
        transaction.remove(list(transaction.base.files))
        transaction.commit()


def test_replaced_files_go_when_their_time_is_over(tmp_path: Path) -> None:
    """Readers of an older version finish; but disks are not endless."""
    table = make_table(tmp_path / "table")
    append(table, make_rows([1]), now_ms=0)
    append(table, make_rows([2]), now_ms=0)
    compact(table, now_ms=1000)
    append(table, make_rows([3]), now_ms=2000)
    compact(table, now_ms=5000)
    early = vacuum(table, keep_ms=1000, now_ms=1500)

    assert (early.replaced, early.size) == (0, 0)
    done = vacuum(table, keep_ms=1000, now_ms=3000)
    assert done.replaced == 2
    assert done.size > 0
    assert read_offsets(table) == [1, 2, 3]
    assert read_offsets(table, 4) == [1, 2, 3]  # replaced at 5000
    assert vacuum(table, keep_ms=1000, now_ms=3000).replaced == 0
    assert vacuum(table, keep_ms=1000, now_ms=9000).replaced == 2
    assert plain_offsets(table) == read_offsets(table) == [1, 2, 3]


def test_commit_is_no_older_than_those_before_it(tmp_path: Path) -> None:
    """Where a clock went back for a while: readers of what was replaced meanwhile are still at work."""
    table = make_table(tmp_path / "table")
    append(table, make_rows([1]), now_ms=50_000)
    compact(table, now_ms=1000)

    assert vacuum(table, keep_ms=5000, now_ms=52_000).replaced == 0
    assert read_offsets(table, 1) == [1]
    assert vacuum(table, keep_ms=5000, now_ms=56_000).replaced == 1


def test_files_of_no_version_go_unless_a_job_may_be_about_to_commit_them(tmp_path: Path) -> None:
    """They are what is left where a file system has no locks by which the next job knows that it is alone."""
    table = make_table(tmp_path / "table")
    append(table, make_rows([1]))
    (known,) = table.snapshot().files
    stray = (table.path / known).with_name("stray.parquet")
    stray.write_bytes((table.path / known).read_bytes())
    for path in (stray, table.path / known):
        os.utime(path, ns=(0, 0))

    with table.begin(plan="at work", job="test", operation=Operation.APPEND):
        assert vacuum(table, keep_ms=1000, now_ms=10_000).abandoned == 0
    assert vacuum(table, keep_ms=20_000, now_ms=10_000).abandoned == 0
    assert vacuum(table, keep_ms=1000, now_ms=10_000).abandoned == 1
    assert plain_offsets(table) == [1]
