# SPDX-License-Identifier: Apache-2.0
"""Transactions: a job stages files, links them into place, and commits.

::

    with table.begin(plan="...", job="bronze", operation=Operation.APPEND) as transaction:
        if (done := transaction.find_done()) is None:
            transaction.add(write_frame(transaction, frame, bounds=["offset"]))
            done = transaction.commit(progress={"bronze": 17}, counts={"read": 1000})

Invariants, whenever a process dies:

* A version never names a file that is absent or incomplete. Files are written below ``_staging/<attempt>``, made durable,
  linked into their folders, and only then is the commit's log file linked.
* A job that dies before that last link has changed nothing that a snapshot shows. The next job that begins while no other
  is at work removes its files (``attempts``). It knows by a lock on the log's folder, which ends with its holder. A
  lock that is granted to two jobs costs one of them its run, and no rows.
* The lock orders nothing: jobs may run at the same time. Each takes the next version number. If that is taken, the job
  reads the other commit: if both are compatible it takes the number after it, else it fails with TableConflict.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from consumerd import failpoints
from consumerd.landing.coverage import NOTHING, Coverage
from consumerd.landing.filesystem import FileSystem
from consumerd.landing.publish import remove_hidden
from consumerd.landing.ranges import EMPTY
from consumerd.spark.table.attempts import (
    COMMIT_FILE,
    StagedCommit,
    describe_ended,
    end_attempts,
    find_attempts,
    new_attempt,
    remove_attempts,
)
from consumerd.spark.table.commit import LOG_FOLDER, STAGING_FOLDER, DataFile, Operation, TableCommit, TableRecord
from consumerd.spark.table.errors import TableConflict, TableError
from consumerd.spark.table.former_log import upgrade
from consumerd.spark.table.locks import LOCK_NAME, FileLock, Lock, LockMaker, check_locks
from consumerd.spark.table.log import TableLog
from consumerd.spark.table.snapshot import Snapshot


class Table:
    """A table that exists. Use :func:`open_table` or :func:`create_table`."""

    def __init__(self, record: TableRecord, log: TableLog, make_lock: LockMaker = FileLock) -> None:
        self.record = record
        self.log = log
        self.path = log.path
        self._make_lock = make_lock

    def snapshot(self, version: int | None = None) -> Snapshot:
        """Return the table at a version, or at its newest. Raises TableError, OSError."""
        return self.log.snapshot(version)

    def schema(self, snapshot: Snapshot) -> str:
        """Return Spark's JSON of the columns at a version, the partition columns last."""
        return snapshot.schema or self.record.schema

    def lock(self) -> Lock:
        """Open the log's lock; it is not held yet. Raises OSError."""
        return self._make_lock(self.path / LOG_FOLDER / LOCK_NAME)

    def begin(
        self,
        *,
        plan: str,
        job: str,
        operation: Operation,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> Transaction:
        """Return a transaction on the newest version, to be entered. ``plan`` and ``job`` as in ``Commit``."""
        return Transaction(self, plan=plan, job=job, operation=operation, now_ms=now_ms)


def find_table(path: str | Path, *, files: FileSystem | None = None, make_lock: LockMaker = FileLock) -> Table | None:
    """Return the table at a path, or None if there is none. Raises TableError, OSError."""
    log = TableLog(local_path(path), files)
    upgrade(log)
    record = log.find_record()
    return None if record is None else Table(record, log, make_lock)


def open_table(path: str | Path, *, files: FileSystem | None = None, make_lock: LockMaker = FileLock) -> Table:
    """Return the table at a path. Raises TableError if there is none, OSError."""
    table = find_table(path, files=files, make_lock=make_lock)
    if table is None:
        raise TableError(f"{path}: there is no table (it has no {LOG_FOLDER})")
    return table


def create_table(
    path: str | Path,
    *,
    name: str,
    schema: str,
    partition_by: Sequence[str],
    files: FileSystem | None = None,
    make_lock: LockMaker = FileLock,
) -> Table:
    """Return the table at a path; create it if there is none.

    An existing table keeps its columns, whatever ``schema`` says: jobs add columns by their commits.

    Args:
        schema: Spark's JSON of a StructType, the partition columns last.

    Raises TableError for a table of another name or of other partition columns, and for a file system whose locks have
    no effect; OSError.
    """
    log = TableLog(local_path(path), files)
    upgrade(log)
    wanted = TableRecord(
        id=uuid.uuid4().hex,
        name=name,
        schema=schema,
        partition_by=tuple(partition_by),
        created_ms=time.time_ns() // 1_000_000,
    )
    record = log.find_record() or log.create(wanted)
    check_locks(log.path / LOG_FOLDER, make_lock)
    if (record.name, record.partition_by) != (wanted.name, wanted.partition_by):
        raise TableError(
            f"{path} is the table {record.name!r} in folders by {', '.join(record.partition_by)}; this job writes "
            f"{wanted.name!r} by {', '.join(wanted.partition_by)}: give it a path of its own"
        )
    return Table(record, log, make_lock)


def local_path(path: str | Path) -> Path:
    """Return a table's path, which may be written as a ``file:`` URI. Raises TableError for any other scheme."""
    text = str(path)
    scheme, separator, rest = text.partition(":")
    if not separator or "/" in scheme:
        return Path(text).absolute()
    if scheme != "file" or not rest.startswith("/"):
        raise TableError(
            f"{text}: tables need a file system that driver and executors share (with link and fsync), and no object "
            "store: give a local path"
        )
    return Path("/" + rest.lstrip("/"))


class Transaction:
    """One attempt at a commit. As a context manager it removes its files on exit if it has not committed.

    Used by one thread.
    """

    def __init__(self, table: Table, *, plan: str, job: str, operation: Operation, now_ms: Callable[[], int]) -> None:
        self.table = table
        self.plan = plan
        self.base = Snapshot()
        self.attempt = ""
        self.staging = table.path / STAGING_FOLDER
        self._job = job
        self._operation = operation
        self._now_ms = now_ms
        self._files = table.log.files
        self._added: list[DataFile] = []
        self._removed: list[str] = []
        self._linked: list[Path] = []
        self._outcome_unknown = False
        self._lock: Lock | None = None
        self._commit: StagedCommit | None = None

    def __enter__(self) -> Self:
        self._lock = _lock_log(self.table)
        try:
            self.base = self.table.snapshot()
            self.attempt = new_attempt(self.base.version)
            self.staging = self.table.path / STAGING_FOLDER / self.attempt
            self._files.make_folders(self.staging)
            try:
                self._commit = StagedCommit(self._files, self.staging / COMMIT_FILE).__enter__()
            except FileNotFoundError as error:
                raise TableConflict(describe_ended(self.staging)) from error
        except BaseException:
            self._unlock()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            assert self._commit is not None
            self._commit.close()
            if not self._outcome_unknown:  # else the next job asks the log, and removes what is to be removed
                self._take_back()
                with contextlib.suppress(OSError):
                    self._files.remove_tree(self.staging)
        finally:
            self._unlock()

    def find_done(self) -> TableCommit | None:
        """Return the commit of this plan, or None if the work is not done yet. Raises TableError, OSError."""
        version = self.base.plans.get(self.plan)
        return None if version is None else self.table.log.read(version)

    def add(self, files: Iterable[DataFile]) -> None:
        """Add staged files, durable below ``staging`` under their paths in the table."""
        self._added += files

    def remove(self, paths: Iterable[str]) -> None:
        """Remove files of the base version from the table."""
        self._removed += paths

    def commit(
        self,
        *,
        covered: Coverage = NOTHING,
        progress: Mapping[str, int] | None = None,
        counts: Mapping[str, int] | None = None,
        schema: str | None = None,
        restores: int | None = None,
    ) -> TableCommit:
        """Publish the commit as the table's next version, and return it.

        If another job has committed the same plan, its commit is returned and this attempt leaves nothing. Arguments
        are as in ``Commit``. Raises TableConflict if commits since the base version contradict this one; TableError,
        OSError.
        """
        done = self.find_done()
        if done is not None:
            return done
        commit = TableCommit(
            version=self.base.version + 1,
            plan=self.plan,
            operation=self._operation,
            job=self._job,
            writer=self.attempt,
            time_ms=self._now_ms(),
            added=tuple(self._added),
            removed=tuple(self._removed),
            covered=covered,
            progress=dict(progress or {}),
            counts=dict(counts or {}),
            schema=schema,
            restores=restores,
        )
        self._check(commit)
        self._link()
        if failpoints.ENABLED:
            failpoints.reach("before_table_commit")
        published = self._publish(commit)
        if failpoints.ENABLED:
            failpoints.reach("after_table_commit")
        return published

    def _check(self, commit: TableCommit) -> None:
        """Raise TableError if a file to be removed is not in the base version."""
        absent = [path for path in commit.removed if path not in self.base.files]
        if absent:
            raise TableError(f"{self.table.path}: version {self.base.version} has no {absent[0]} that could be removed")

    def _link(self) -> None:
        if failpoints.ENABLED:
            failpoints.reach("before_table_links")
        folders: set[Path] = set()
        for file in self._added:
            target = self.table.path / file.path
            if target.parent not in folders:
                self._files.make_folders(target.parent)
                folders.add(target.parent)
            self._linked.append(target)  # first: a signal behind the link must not leave a name that nobody takes back
            try:
                self._files.link(self.staging / file.path, target)
            except FileNotFoundError as error:
                raise TableConflict(describe_ended(self.staging)) from error
            if failpoints.ENABLED:
                failpoints.reach("after_table_link")
        for folder in sorted(_with_parents(folders, self.table.path), reverse=True):
            self._files.sync_folder(folder)

    def _publish(self, commit: TableCommit) -> TableCommit:
        assert self._commit is not None
        while True:
            try:
                self._outcome_unknown = True
                if self.table.log.publish(commit, self._commit):
                    self._linked.clear()  # first: a signal in between must not take back what is committed
                    self._outcome_unknown = False
                    return commit
                self._outcome_unknown = False
            except TableConflict:
                self._outcome_unknown = False
                raise
            except OSError as error:
                raise OSError(
                    error.errno,
                    f"{self.table.path}: version {commit.version} may have been committed or not; run the job again: "
                    f"{error}",
                ) from error
            other = self.table.log.read(commit.version)
            if other.plan == self.plan:
                return other
            conflict = find_conflict(commit, other)
            if conflict is not None:
                raise TableConflict(
                    f"{self.table.path}: version {other.version}, committed by {other.job} beside this {self._job}, "
                    f"{conflict}; nothing of this run is visible, run it again"
                )
            commit = _renumber(commit, other.version + 1)

    def _unlock(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.close()

    def _take_back(self) -> None:
        for path in self._linked:
            with contextlib.suppress(OSError):
                self._files.unlink(path)
        self._linked.clear()


def find_conflict(mine: TableCommit, other: TableCommit) -> str | None:
    """Say how a concurrent commit contradicts mine; None if mine can follow it."""
    if other.restores is not None:
        return f"has gone back to version {other.restores}"
    if mine.restores is not None:
        return "is not in the version that this goes back to"
    if removed := set(mine.removed) & set(other.removed):
        return f"has removed {min(removed)} as well"
    if mine.covered.cluster and other.covered.cluster not in (None, mine.covered.cluster):
        return f"is of cluster {other.covered.cluster}, this of {mine.covered.cluster}: give each tables of its own"
    if overlap := _find_overlap(mine.covered, other.covered):
        return f"has taken {overlap} as well"
    if sources := mine.progress.keys() & other.progress.keys():
        return f"has moved on with {min(sources)} as well"
    if mine.operation is Operation.REPLACE and other.operation is not Operation.COMPACT:
        return "has changed the rows that were to be replaced"
    if mine.schema is not None and other.schema is not None:
        return "changes the columns as well"
    return None


def clean_up(table: Table) -> None:
    """Remove the files of dead attempts. The caller holds the lock exclusively. Raises TableError, OSError."""
    files = table.log.files
    attempts = find_attempts(files, table.path)
    if attempts:
        end_attempts(files, table.path, attempts)
        remove_attempts(files, table.path, attempts, table.snapshot())
    for folder in (table.path, table.path / LOG_FOLDER):
        remove_hidden(files, folder)


def _lock_log(table: Table) -> Lock | None:
    """Hold the log's lock, shared with other jobs, after a clean-up if there are none.

    Returns None on a file system without locks.
    """
    lock = table.lock()
    try:
        try:
            alone = lock.try_exclusive()
        except OSError:
            lock.close()
            return None
        if alone:
            clean_up(table)
        lock.share()
    except BaseException:
        lock.close()
        raise
    return lock


def _with_parents(folders: Iterable[Path], root: Path) -> set[Path]:
    found = {root}
    for folder in folders:
        while folder != root:
            found.add(folder)
            folder = folder.parent
    return found


def _renumber(commit: TableCommit, version: int) -> TableCommit:
    return replace(commit, version=version)


def _find_overlap(mine: Coverage, other: Coverage) -> str | None:
    """Describe the first offsets of which both took some, or None."""
    for log in sorted(mine.covered.keys() | mine.doubtful.keys()):
        ours, theirs = (one.covered.get(log, EMPTY) | one.doubtful.get(log, EMPTY) for one in (mine, other))
        for span in ours & theirs:
            return f"{span} of {log}"
    return None
