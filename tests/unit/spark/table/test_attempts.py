# SPDX-License-Identifier: Apache-2.0
"""Attempts that die, are taken for dead, or lose their power: a version has its files, and its rows once."""

from __future__ import annotations

import contextlib
import errno
import itertools
import random
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pytest

from consumerd.landing.filesystem import FileSystem, OsFileSystem
from consumerd.spark.retention import remove_days
from consumerd.spark.table import log as table_log
from consumerd.spark.table.commit import LOG_FOLDER, DataFile, Operation, commit_name
from consumerd.spark.table.errors import TableConflict, TableError
from consumerd.spark.table.restore import restore
from consumerd.spark.table.transaction import Table, clean_up, open_table
from consumerd.spark.table.vacuum import vacuum
from tests.support.faulty_files import MemoryFileSystem, PowerCut, RecordingFileSystem
from tests.support.tables import (
    LockForEverybody,
    NoLock,
    append,
    make_rows,
    make_table,
    plain_offsets,
    read_offsets,
    stage,
)

pytestmark = pytest.mark.records

FAR = 1000


def test_a_file_system_that_grants_its_locks_to_everybody_is_refused(tmp_path: Path) -> None:
    """Two jobs would take each other for dead, again and again."""
    with pytest.raises(TableError, match=r"grants an exclusive lock .* mount it with working locks"):
        make_table(tmp_path / "table", make_lock=LockForEverybody)


def test_a_file_system_without_locks_is_fine(tmp_path: Path) -> None:
    """Whose job is dead is then a matter of time."""
    table = make_table(tmp_path / "table", make_lock=NoLock)
    append(table, make_rows([1]))

    assert read_offsets(table) == [1]


@pytest.mark.parametrize("others", ["job", "vacuum"])
def test_another_job_behind_a_lock_for_everybody_costs_no_row(tmp_path: Path, others: str) -> None:
    """The other one begins, cleans up and commits at any step of ours: what a version names is there."""
    refused = 0
    for step in range(FAR):
        files = RecordingFileSystem()
        path = tmp_path / f"{step}"
        make_table(path)
        table = open_table(path, files=files, make_lock=LockForEverybody)
        left = itertools.count(-step)

        def interfere(operation: str, name: str, path: Path = path, left: Iterator[int] = left) -> None:
            if next(left) == 0:
                other = open_table(path, make_lock=LockForEverybody)
                if others == "job":
                    append(other, make_rows([3]))
                else:
                    vacuum(other, keep_ms=0, keep_log_ms=0, now_ms=2**50)

        files.before = interfere
        try:
            append(table, make_rows([1]), make_rows([2], topic="payments"), plan="ours")
        except (TableConflict, FileNotFoundError):
            refused += 1
            assert 1 not in read_offsets(table), step
        files.before = lambda operation, name: None
        append(table, make_rows([1]), make_rows([2], topic="payments"), plan="ours")
        expected = [1, 2, 3] if others == "job" and next(left) > 0 else [1, 2]
        assert read_offsets(table) == plain_offsets(table) == expected, step
        if next(left) < 0:
            break
    assert step > 15
    assert refused > 5


@pytest.mark.parametrize("others", ["job", "vacuum"])
def test_job_that_commits_while_another_takes_it_for_dead_has_its_files_or_is_refused(
    tmp_path: Path, others: str
) -> None:
    """The last link of our commit comes between any two steps of the other's clean-up; its answer comes after them."""
    outcomes = []
    for step in range(FAR):
        path = tmp_path / f"{step}"
        make_table(path)
        left = itertools.count(-step)
        files, other_files = RecordingFileSystem(), RecordingFileSystem()
        ours = open_table(path, files=files, make_lock=LockForEverybody)
        other = open_table(path, files=other_files, make_lock=LockForEverybody)

        def link(operation: str, name: str, path: Path = path, left: Iterator[int] = left) -> None:
            if next(left) == 0:
                for commit in path.glob("_staging/*/.commit"):
                    OsFileSystem().link(commit, path / LOG_FOLDER / commit_name(1))

        def clean_up_meanwhile(
            operation: str, name: str, table: Table = other, files: RecordingFileSystem = files
        ) -> None:
            if (operation, name) == ("link", commit_name(1)):
                files.before = lambda operation, name: None
                if others == "job":
                    clean_up(table)
                else:
                    vacuum(table, keep_ms=0, keep_log_ms=0, now_ms=2**50)

        files.before, other_files.before = clean_up_meanwhile, link
        try:
            append(ours, make_rows([1]))
            outcomes.append("committed")
        except TableConflict:
            outcomes.append("refused")
        assert read_offsets(open_table(path)) == plain_offsets(ours) == ([1] if outcomes[-1] == "committed" else [])
        if next(left) < 0:
            break
    assert set(outcomes) == {"committed", "refused"}


def test_files_of_a_commit_that_has_expired_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its job died right behind it, and the log does not say any more that it was committed."""
    monkeypatch.setattr(table_log, "CHECKPOINT_EVERY", 2)
    files = RecordingFileSystem()
    table = make_table(tmp_path / "table", files)

    def keep_staging(operation: str, name: str) -> None:
        if operation == "remove_tree":
            raise OSError(errno.EIO, "the process is gone")

    with table.begin(plan="long", job="test", operation=Operation.APPEND):
        files.before = keep_staging
        append(table, make_rows([1]))
        files.before = lambda operation, name: None
        for row in (2, 3, 4):
            append(table, make_rows([row]))
    table.log.expire(2**50)

    assert table.log.oldest() > 1
    append(table, make_rows([5]))
    assert read_offsets(table) == plain_offsets(table) == [1, 2, 3, 4, 5]


def test_files_that_were_compacted_since_their_job_died_stay_for_readers_of_older_versions(tmp_path: Path) -> None:
    """Its staging folder is removed much later, when no job is at work."""
    files = RecordingFileSystem()
    table = make_table(tmp_path / "table", files)

    def keep_staging(operation: str, name: str) -> None:
        if operation == "remove_tree":
            raise OSError(errno.EIO, "the process is gone")

    with table.begin(plan="long", job="test", operation=Operation.APPEND):
        files.before = keep_staging
        append(table, make_rows([1]))
        files.before = lambda operation, name: None
        with table.begin(plan="compact", job="compact", operation=Operation.COMPACT) as transaction:
            stage(transaction, [make_rows([1])])
            transaction.remove(list(transaction.base.files))
            transaction.commit()
    left = list(table.path.glob("_staging/*"))
    append(table, make_rows([2]))

    assert len(left) == 1
    assert not left[0].exists()
    assert read_offsets(table, 1) == [1]
    assert read_offsets(table) == [1, 2]


class MemoryTable:
    """A table in memory, of rows that are lines of text: its power may be cut at any change."""

    def __init__(self, seed: int) -> None:
        self.files = MemoryFileSystem(random.Random(seed))
        self.path = Path("/lake/table")

    def make(self) -> Table:
        """Return the table, made if there is none."""
        return make_table(self.path, self.files, NoLock)

    def append(self, rows: list[int], *, day: str = "2026-11-22") -> None:
        """Commit rows, unless a commit says that they are there."""
        table = self.make()
        if table.snapshot().progress.get("x", 0) >= rows[-1]:
            return
        with table.begin(plan=f"append {rows}", job="test", operation=Operation.APPEND) as transaction:
            path = f"topic=orders/{transaction.attempt}-{rows[0]}"
            transaction.add([self._stage(transaction.staging, path, rows, day=day)])
            transaction.commit(progress={"x": rows[-1]})

    def replace(self, rows: list[int]) -> None:
        """Commit other rows in place of all, as ``latest`` does."""
        table = self.make()
        plan = f"replace {table.snapshot().version}"
        with table.begin(plan=plan, job="test", operation=Operation.REPLACE) as transaction:
            transaction.add([self._stage(transaction.staging, f"topic=orders/{transaction.attempt}-new", rows)])
            transaction.remove(list(transaction.base.files))
            transaction.commit()

    def compact(self) -> None:
        """Commit one file in place of all, once for each version that adds some."""
        table = self.make()
        rows = self.read()
        with table.begin(plan=f"compact {rows}", job="test", operation=Operation.COMPACT) as transaction:
            if transaction.find_done() is None:
                path = f"topic=orders/{transaction.attempt}-compacted"
                transaction.add([self._stage(transaction.staging, path, rows)])
                transaction.remove(list(transaction.base.files))
                transaction.commit()

    def read(self) -> list[int]:
        """Return the rows of the newest version. Raises FileNotFoundError."""
        table = self.make()
        texts = [self.files.read(self.path / path).decode() for path in table.snapshot().files]
        return sorted(int(row) for text in texts for row in text.split())

    def _stage(self, staging: Path, path: str, rows: list[int], *, day: str = "2026-11-22") -> DataFile:
        data = "".join(f"{row}\n" for row in rows).encode()
        write_durably(self.files, staging / path, data)
        return DataFile(path=path, size=len(data), rows=len(rows), values=("orders", day))


def write_durably(files: FileSystem, path: Path, data: bytes) -> None:
    files.make_folders(path.parent)
    descriptor = files.create(path)
    files.write(descriptor, data)
    files.sync(descriptor)
    files.close(descriptor)


@pytest.mark.parametrize("seed", range(2))
def test_power_cut_at_any_step_of_commits_and_vacuum_leaves_each_row_once(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what was not synced any part may be lost: no version lacks a file, or has half of one."""
    monkeypatch.setattr(table_log, "CHECKPOINT_EVERY", 3)
    wanted = [[1, 2], [3], [4, 5]]

    def work(lake: MemoryTable) -> None:
        for rows in wanted:
            lake.append(rows)
        lake.compact()
        vacuum(lake.make(), keep_ms=0, keep_log_ms=0, now_ms=2**50)

    for changes in range(1 + seed, FAR, 2):
        lake = MemoryTable(seed * FAR + changes)
        lake.files.changes_left = changes
        with contextlib.suppress(PowerCut):
            work(lake)
            break
        lake.files.restore()
        before = lake.read()
        assert before in [sorted(itertools.chain(*wanted[:count])) for count in range(4)], changes
        work(lake)
        assert lake.read() == [1, 2, 3, 4, 5], changes
        assert len(lake.make().snapshot().files) == 1
    assert 60 < changes < FAR - 1


@pytest.mark.parametrize("seed", range(2))
def test_power_cut_at_any_step_of_jobs_that_remove_rows_leaves_a_whole_version(seed: int) -> None:
    """Retention, restore, latest, vacuum: rows are as before the cut job or as after it."""

    def work(lake: MemoryTable) -> None:
        if lake.read() != [10, 20]:
            lake.append([1, 2], day="2026-11-20")
            lake.append([3])
            remove_days(lake.make(), date(2026, 11, 21), name="rows")
            restore(lake.make(), 2)
            lake.replace([10, 20])
        vacuum(lake.make(), keep_ms=0, keep_log_ms=0, now_ms=2**50)

    for changes in range(1 + seed, FAR, 2):
        lake = MemoryTable(seed * FAR + changes)
        lake.files.changes_left = changes
        with contextlib.suppress(PowerCut):
            work(lake)
            break
        lake.files.restore()
        assert lake.read() in ([], [1, 2], [1, 2, 3], [3], [10, 20]), changes
        work(lake)
        assert lake.read() == [10, 20], changes
        assert len(lake.make().snapshot().files) == 1
    assert 60 < changes < FAR - 1
