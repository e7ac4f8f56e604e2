# SPDX-License-Identifier: Apache-2.0
"""Vacuum removes what nobody reads any more, and nothing else."""

from __future__ import annotations

import errno
import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from consumerd.spark.table import log as table_log
from consumerd.spark.table.commit import Operation
from consumerd.spark.table.transaction import Table, open_table
from consumerd.spark.table.vacuum import vacuum
from tests.support.faulty_files import RecordingFileSystem
from tests.support.tables import NoLock, append, make_rows, make_table, plain_offsets, read_offsets, stage

WEEK_MS = 7 * 24 * 3600 * 1000


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
    early = vacuum(table, keep_ms=1000, keep_log_ms=WEEK_MS, now_ms=1500)

    assert (early.replaced, early.size) == (0, 0)
    done = vacuum(table, keep_ms=1000, keep_log_ms=WEEK_MS, now_ms=3000)
    assert done.replaced == 2
    assert done.size > 0
    assert read_offsets(table) == [1, 2, 3]
    assert read_offsets(table, 4) == [1, 2, 3]  # replaced at 5000
    assert vacuum(table, keep_ms=1000, keep_log_ms=WEEK_MS, now_ms=3000).replaced == 0
    assert vacuum(table, keep_ms=1000, keep_log_ms=WEEK_MS, now_ms=9000).replaced == 2
    assert plain_offsets(table) == read_offsets(table) == [1, 2, 3]


def test_commits_stay_as_long_as_the_files_of_their_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of a version are of no use to a reader who cannot learn their names."""
    monkeypatch.setattr(table_log, "CHECKPOINT_EVERY", 2)
    table = make_table(tmp_path / "table")
    append(table, make_rows([1]), now_ms=1000)
    compact(table, now_ms=2000)
    append(table, make_rows([2]), now_ms=3000)
    append(table, make_rows([3]), now_ms=4000)

    assert vacuum(table, keep_ms=9000, keep_log_ms=0, now_ms=5000).expired == 0
    assert read_offsets(table, 1) == [1]
    assert vacuum(table, keep_ms=500, keep_log_ms=0, now_ms=5000).expired > 0


def test_commit_is_no_older_than_those_before_it(tmp_path: Path) -> None:
    """Where a clock went back for a while: readers of what was replaced meanwhile are still at work."""
    table = make_table(tmp_path / "table")
    append(table, make_rows([1]), now_ms=50_000)
    compact(table, now_ms=1000)

    assert vacuum(table, keep_ms=5000, keep_log_ms=WEEK_MS, now_ms=52_000).replaced == 0
    assert read_offsets(table, 1) == [1]
    assert vacuum(table, keep_ms=5000, keep_log_ms=WEEK_MS, now_ms=56_000).replaced == 1


def test_files_of_no_version_go_after_a_while(tmp_path: Path) -> None:
    """Another writer of Delta tables may be about to commit them, and does not say so."""
    table = make_table(tmp_path / "table")
    append(table, make_rows([1]))
    (known,) = table.snapshot().files
    stray = (table.path / known).with_name("stray.parquet")
    stray.write_bytes((table.path / known).read_bytes())
    for path in (stray, table.path / known):
        os.utime(path, ns=(0, 0))

    assert vacuum(table, keep_ms=20_000, keep_log_ms=WEEK_MS, now_ms=10_000).abandoned == 0
    assert vacuum(table, keep_ms=1000, keep_log_ms=WEEK_MS, now_ms=10_000).abandoned == 1
    assert plain_offsets(table) == [1]


def die_while_committing(table: Table, rows: list[int]) -> None:
    """Leave what a process leaves that dies right before its commit has its number."""
    files = RecordingFileSystem()

    def die(operation: str, name: str) -> None:
        if operation == "link" and name.endswith(".json"):
            raise OSError(errno.EIO, "the process is gone")

    files.before = die
    dying = open_table(table.path, files=files, make_lock=table.lock().__class__)
    with pytest.raises(OSError, match="may have been committed"):
        append(dying, make_rows(rows))


def test_files_of_a_dead_job_go_at_once(tmp_path: Path) -> None:
    """No version will ever name them, and readers of folders see their rows."""
    table = make_table(tmp_path / "table")
    append(table, make_rows([1]))
    die_while_committing(table, [2])
    assert plain_offsets(table) == [1, 2]

    assert vacuum(table, keep_ms=WEEK_MS, keep_log_ms=WEEK_MS, now_ms=0, dry_run=True).abandoned == 1
    assert vacuum(table, keep_ms=WEEK_MS, keep_log_ms=WEEK_MS, now_ms=0).abandoned == 1
    assert plain_offsets(table) == [1]
    assert list((table.path / "_staging").iterdir()) == []


def test_without_locks_a_job_counts_as_dead_after_a_day(tmp_path: Path) -> None:
    """Nothing else tells that it is not at work."""
    table = make_table(tmp_path / "table", make_lock=NoLock)
    append(table, make_rows([1]))
    die_while_committing(table, [2])
    append(table, make_rows([3]))
    assert plain_offsets(table) == [1, 2, 3]
    now_ms = time.time_ns() // 1_000_000

    assert vacuum(table, keep_ms=0, keep_log_ms=WEEK_MS, now_ms=now_ms + 23 * 3_600_000).abandoned == 0
    assert vacuum(table, keep_ms=0, keep_log_ms=WEEK_MS, now_ms=now_ms + 25 * 3_600_000).abandoned == 1
    assert plain_offsets(table) == read_offsets(table) == [1, 3]


def test_vacuum_at_any_step_of_a_commit_leaves_its_files(tmp_path: Path) -> None:
    """A forced vacuum, of files of any age, beside a job at work."""
    for step in range(1000):
        files = RecordingFileSystem()
        table = make_table(tmp_path / f"{step}", files)
        left = itertools.count(-step)

        def vacuum_now(operation: str, name: str, table: Table = table, left: Iterator[int] = left) -> None:
            if next(left) == 0:
                vacuum(open_table(table.path), keep_ms=0, keep_log_ms=0, now_ms=2**50)

        files.before = vacuum_now
        append(table, make_rows([1]), make_rows([2], topic="payments"))
        files.before = lambda operation, name: None
        assert read_offsets(table) == [1, 2], step
        if next(left) < 0:
            break
    assert step > 15
