# SPDX-License-Identifier: Apache-2.0
"""Transactions: a job stages files, links them into place, and commits.

Also opens and creates tables. The log's folder is ``log``'s, staging folders are ``attempts``'. All calls block. ::

    with table.begin(plan="...", job="bronze", operation=Operation.APPEND) as transaction:
        if (done := transaction.find_done()) is None:
            transaction.add(write_frame(transaction, frame, bounds=["offset"]))
            done = transaction.commit(progress={"bronze": 17}, counts={"read": 1000})

Invariants, whenever a process dies:

* A version never names a file that is absent or incomplete. Files are written below ``_staging/<attempt>``, made
  durable, linked into their folders, and only then is the commit's log file linked.
* A job that dies before that last link has changed nothing that a snapshot shows. Its files are removed by the next job
  that begins while no other is at work (``attempts``). That job knows by the log's lock, which each job holds shared
  and which ends with its process. If a faulty file system grants the lock to two jobs, one of them fails, and no row is
  lost.
* The lock does not make jobs wait for each other. Two jobs may commit at the same time: one gets version 8, and the
  other reads version 8. If both are compatible, its own commit becomes version 9, else it fails with TableConflict.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

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

T = TypeVar("T")


class Table:
    """A Delta table that exists. Use :func:`open_table` or :func:`create_table`."""

    def __init__(self, record: TableRecord, log: TableLog, make_lock: LockMaker = FileLock) -> None:
        self.record = record
        self.log = log
        self.path = log.path
        self._make_lock = make_lock

    def snapshot(self, version: int | None = None) -> Snapshot:
        """Return the state of the table at a version, or at its newest.

        Raises TableError, OSError.
        """
        return self.log.snapshot(version)

    def schema(self, snapshot: Snapshot) -> str:
        """Return Spark's JSON of the columns at a version, the partition columns last."""
        return snapshot.schema or self.record.schema

    def lock(self) -> Lock:
        """Return the lock of the table's log; it is not held yet. Raises OSError."""
        return self._make_lock(self.path / LOG_FOLDER / LOCK_NAME)

    def begin(
        self,
        *,
        plan: str,
        job: str,
        operation: Operation,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> Transaction:
        """Return a transaction; its ``with`` block begins with the newest version.

        Args:
            plan: name of the work, which is committed at most once.
            job: name of the job, such as ``bronze``.
            operation: effect of the commit on the rows.
            now_ms: wall clock, in ms since the epoch.
        """
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

    Args:
        schema: columns of a new table, as Spark's JSON of a StructType, the partition columns last. An existing table
            keeps its own; commits can add columns.

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
    """Return a table's path, also from a ``file:`` URI. Raises TableError for other schemes."""
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
    """One attempt to commit to a table, as a context manager.

    On exit it removes its files if it has not committed. Used by one thread.

    Attributes:
        base: snapshot that the attempt begins with, set on entry.
        attempt: unique name of the attempt, set on entry.
        staging: folder of its files, set on entry.
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
            if not self._outcome_unknown:  # else the log decides: the next job's clean-up removes what it does not name
                for path in self._linked:
                    with contextlib.suppress(OSError):
                        self._files.unlink(path)
                with contextlib.suppress(OSError):
                    self._files.remove_tree(self.staging)
        finally:
            self._unlock()

    def find_done(self) -> TableCommit | None:
        """Return the commit with this transaction's plan if there is one; else None.

        A plan is the name of the work. Its commit means that an earlier run, or another job, has done the work. Raises
        TableError, OSError.
        """
        version = self.base.plans.get(self.plan)
        return None if version is None else self.table.log.read(version)

    def expect(self, files: Iterable[DataFile]) -> None:
        """Raise TableConflict unless the base version has all of these files.

        Files that were chosen from an earlier version may have been replaced by another job.
        """
        gone = [file.path for file in files if file.path not in self.base.files]
        if gone:
            raise TableConflict(f"{self.table.path / gone[0]} was replaced by another job while this one made its plan")

    def add(self, files: Iterable[DataFile]) -> None:
        """Add files, which are durable below ``staging``, to the commit.

        Each has its path in the table, relative to ``staging``.
        """
        self._added += files

    def remove(self, paths: Iterable[str]) -> None:
        """Remove files of the base version from the table, by their paths, with the commit."""
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

        If another job has committed the same plan, this returns that commit, and publishes nothing. Arguments are as in
        ``TableCommit``. Raises TableConflict if commits since the base version contradict this one; TableError,
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
            self._linked.append(target)  # before the link, so that a signal in between leaves no name behind
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
                    self._linked.clear()  # first, so that a signal in between does not remove committed files
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
            commit = replace(commit, version=other.version + 1)

    def _unlock(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.close()


def retry_conflicts(attempt: Callable[[], T], *, most: int = 3) -> T:
    """Call ``attempt``, which plans and commits, again after each conflict with another job's commit.

    Args:
        most: number of calls, at the most.

    Raises TableConflict if the last call has met one, too, and the exceptions of ``attempt``.
    """
    for _ in range(most - 1):
        with contextlib.suppress(TableConflict):
            return attempt()
    return attempt()


def find_conflict(mine: TableCommit, other: TableCommit) -> str | None:
    """Return why one commit cannot follow a concurrent one; None if it can.

    Example: two appends of bronze with offsets 0-99 and 50-149 of one partition conflict, because both add 50-99. An
    append and a compaction do not.
    """
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
    """Remove the staged files of all attempts to commit to a table.

    All are dead, because the caller holds the log's lock exclusively. Raises TableError, OSError.
    """
    files = table.log.files
    attempts = find_attempts(files, table.path)
    if attempts:
        end_attempts(files, table.path, attempts)
        remove_attempts(files, table.path, attempts, table.snapshot())
    for folder in (table.path, table.path / LOG_FOLDER):
        remove_hidden(files, folder)


def _lock_log(table: Table) -> Lock | None:
    """Take the log's lock, shared with other jobs; return None on file systems without locks.

    If no other job holds it, :func:`clean_up` runs first.
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


def _find_overlap(mine: Coverage, other: Coverage) -> str | None:
    """Return the first range of offsets that both commits cover, or None."""
    for log in sorted(mine.covered.keys() | mine.doubtful.keys()):
        ours, theirs = (one.covered.get(log, EMPTY) | one.doubtful.get(log, EMPTY) for one in (mine, other))
        for span in ours & theirs:
            return f"{span} of {log}"
    return None
