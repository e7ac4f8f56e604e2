"""How a job changes a table: it stages files, links them into place, and commits.

::

    with table.begin(plan="...", job="bronze", operation=Operation.APPEND) as transaction:
        if (done := transaction.find_done()) is None:
            transaction.add(write_frame(transaction, frame, bounds=["offset"]))
            done = transaction.commit(progress={"bronze": 17}, counts={"read": 1000})

What holds, whatever dies when:

* Files are staged below ``_staging/<attempt>``, each durable before it is linked into its folder, and all of that before
  the log's file is linked. So a version never names a file that is not there, whole.
* A job that dies before the log's link has changed nothing that a snapshot shows. What it left is removed by the next job
  that begins while no other is at work, which it knows by a lock on the log's folder that dies with its holder; the log
  says whether an attempt that left its staging behind has committed.
* The lock keeps the order of nothing: jobs may run beside each other. Each takes the next number; whoever finds it taken
  looks at what the other has done, goes on behind it where that does not matter, and otherwise is refused.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from consumerd import failpoints
from consumerd.sinks.filesystem import FileSystem
from consumerd.sinks.publish import remove_hidden
from consumerd.spark.landing.coverage import NOTHING, Coverage
from consumerd.spark.landing.ranges import EMPTY
from consumerd.spark.table.commit import LOG_FOLDER, STAGING_FOLDER, Commit, DataFile, Operation, TableRecord
from consumerd.spark.table.errors import TableConflict, TableError
from consumerd.spark.table.log import TableLog
from consumerd.spark.table.snapshot import Snapshot

_LOCK: Final = ".lock"


class Table:
    """A table that exists. Use :func:`open_table` or :func:`create_table`."""

    def __init__(self, record: TableRecord, log: TableLog) -> None:
        self.record = record
        self.log = log
        self.path = log.path

    def snapshot(self, version: int | None = None) -> Snapshot:
        """Return the table at a version, or at its newest. Raises TableError, OSError."""
        return self.log.snapshot(version)

    def schema(self, snapshot: Snapshot) -> str:
        """Return Spark's JSON of the columns at a version, the partition columns last."""
        return snapshot.schema or self.record.schema

    def begin(
        self,
        *,
        plan: str,
        job: str,
        operation: Operation,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> Transaction:
        """Return a transaction upon the newest version, to be entered. ``plan`` names the work, ``job`` whose it is."""
        return Transaction(self, plan=plan, job=job, operation=operation, now_ms=now_ms)


def find_table(path: str | Path, *, files: FileSystem | None = None) -> Table | None:
    """Return the table at a path, or None if there is none. Raises TableError, OSError."""
    log = TableLog(local_path(path), files)
    record = log.find_record()
    return None if record is None else Table(record, log)


def open_table(path: str | Path, *, files: FileSystem | None = None) -> Table:
    """Return the table at a path. Raises TableError if there is none, OSError."""
    table = find_table(path, files=files)
    if table is None:
        raise TableError(f"{path}: there is no table (it has no _table.json)")
    return table


def create_table(
    path: str | Path, *, name: str, schema: str, partition_by: Sequence[str], files: FileSystem | None = None
) -> Table:
    """Return the table at a path, which is made if there is none.

    ``schema`` is Spark's JSON of a StructType, the partition columns last. Raises TableError for a table of another name
    or of other partition columns, OSError. A table's columns are those it was made with, and what commits have added.
    """
    log = TableLog(local_path(path), files)
    wanted = TableRecord(id=uuid.uuid4().hex, name=name, schema=schema, partition_by=tuple(partition_by))
    record = log.find_record() or log.create(wanted)
    if (record.name, record.partition_by) != (wanted.name, wanted.partition_by):
        raise TableError(
            f"{path} is the table {record.name!r} in folders by {', '.join(record.partition_by)}; this job writes "
            f"{wanted.name!r} by {', '.join(wanted.partition_by)}: give it a path of its own"
        )
    return Table(record, log)


def local_path(path: str | Path) -> Path:
    """Return a table's path, which may be written as a ``file:`` URI. Raises TableError for any other scheme."""
    text = str(path)
    scheme, separator, rest = text.partition(":")
    if not separator or "/" in scheme:
        return Path(text).absolute()
    if scheme != "file" or not rest.startswith("/"):
        raise TableError(
            f"{text}: tables need a file system that driver and executors share (with link and fsync), and no object store: "
            "give a local path"
        )
    return Path("/" + rest.lstrip("/"))


class Transaction:
    """One attempt at one commit. A context manager: what was not committed when it is left is taken back.

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
        self._lock: int | None = None

    def __enter__(self) -> Self:
        self._lock = _lock_log(self.table)
        try:
            self.base = self.table.snapshot()
            self.attempt = f"{self.base.version:020d}-{uuid.uuid4().hex[:12]}"
            self.staging = self.table.path / STAGING_FOLDER / self.attempt
            self._files.make_folders(self.staging)
        except BaseException:
            self._unlock()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if not self._outcome_unknown:  # else the next job asks the log, and removes what is to be removed
                self._take_back()
                shutil.rmtree(self.staging, ignore_errors=True)
        finally:
            self._unlock()

    def find_done(self) -> Commit | None:
        """Return the commit of this plan if there is one: the work is done. Raises TableError, OSError."""
        version = self.base.plans.get(self.plan)
        return None if version is None else self.table.log.read(version)

    def add(self, files: Iterable[DataFile]) -> None:
        """Have files committed that lie, durable, below ``staging`` under the paths that they are to have in the table."""
        self._added += files

    def remove(self, paths: Iterable[str]) -> None:
        """Have files of the base version taken out of the table."""
        self._removed += paths

    def commit(
        self,
        *,
        covered: Coverage = NOTHING,
        progress: Mapping[str, int] | None = None,
        counts: Mapping[str, int] | None = None,
        schema: str | None = None,
    ) -> Commit:
        """Make it the table's next version, and return the commit of this plan.

        That is another's, and this attempt leaves nothing, where a job of the same plan was first. Raises TableConflict
        where what others have committed since the base version contradicts this; TableError, OSError.
        """
        done = self.find_done()
        if done is not None:
            return done
        commit = Commit(
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
        )
        self._check(commit)
        self._link()
        if failpoints.ENABLED:
            failpoints.reach("before_table_commit")
        published = self._publish(commit)
        if failpoints.ENABLED:
            failpoints.reach("after_table_commit")
        return published

    def _check(self, commit: Commit) -> None:
        """Raise TableError for what no log may hold."""
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
            self._files.link(self.staging / file.path, target)
            if failpoints.ENABLED:
                failpoints.reach("after_table_link")
        for folder in sorted(_with_parents(folders, self.table.path), reverse=True):
            self._files.sync_folder(folder)

    def _publish(self, commit: Commit) -> Commit:
        while True:
            for path in self._linked:
                self._files.size_and_mtime(path)  # nobody has taken it for a dead job's
            try:
                self._outcome_unknown = True
                if self.table.log.publish(commit):
                    self._linked.clear()  # first: a signal in between must not take back what is committed
                    self._outcome_unknown = False
                    return commit
                self._outcome_unknown = False
            except OSError as error:
                raise OSError(
                    error.errno,
                    f"{self.table.path}: version {commit.version} may have been committed or not; run the job again: {error}",
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
            os.close(lock)

    def _take_back(self) -> None:
        for path in self._linked:
            with contextlib.suppress(OSError):
                self._files.unlink(path)
        self._linked.clear()


def find_conflict(mine: Commit, other: Commit) -> str | None:
    """Say what another's commit, of which mine knew nothing, did that contradicts mine; None where mine holds behind it."""
    if removed := set(mine.removed) & set(other.removed):
        return f"has removed {min(removed)} as well"
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
    """Remove what attempts left behind that are no more: for whoever holds the lock alone. Raises TableError, OSError."""
    staging = table.path / STAGING_FOLDER
    for attempt in table.log.files.names(staging):
        base = attempt.partition("-")[0]
        if not base.isdigit():
            continue
        if table.log.find_commit(writer=attempt, after=int(base)) is None:
            for path in _staged(staging / attempt):
                _unlink_if_same(table.path / path, staging / attempt / path)
        shutil.rmtree(staging / attempt, ignore_errors=True)
    for folder in (table.path, table.path / LOG_FOLDER):
        remove_hidden(table.log.files, folder)


@contextlib.contextmanager
def hold_alone(table: Table) -> Iterator[bool]:
    """Keep jobs from beginning, for a moment, and tell whether none is at work; False, and nothing is held, if one may be."""
    descriptor = _open_lock(table)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # held by a job; or a file system without locks
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


def _lock_log(table: Table) -> int | None:
    """Hold the log's lock together with other jobs, and clean up first if there are none; None where there are no locks."""
    descriptor = _open_lock(table)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            alone = False
        except OSError:
            os.close(descriptor)
            return None
        else:
            alone = True
        if alone:
            clean_up(table)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _open_lock(table: Table) -> int:
    return os.open(table.path / LOG_FOLDER / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)


def _staged(folder: Path) -> Iterator[Path]:
    for home, _, names in os.walk(folder):
        for name in names:
            yield (Path(home) / name).relative_to(folder)


def _unlink_if_same(path: Path, other: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        if path.samefile(other):
            path.unlink()


def _with_parents(folders: Iterable[Path], root: Path) -> set[Path]:
    found = {root}
    for folder in folders:
        while folder != root:
            found.add(folder)
            folder = folder.parent
    return found


def _renumber(commit: Commit, version: int) -> Commit:
    return replace(commit, version=version)


def _find_overlap(mine: Coverage, other: Coverage) -> str | None:
    """Describe the first offsets of which both took some, or None."""
    for log in sorted(mine.covered.keys() | mine.doubtful.keys()):
        ours, theirs = (one.covered.get(log, EMPTY) | one.doubtful.get(log, EMPTY) for one in (mine, other))
        for span in ours & theirs:
            return f"{span} of {log}"
    return None
