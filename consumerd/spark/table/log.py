# SPDX-License-Identifier: Apache-2.0
"""A table's log on a file system: numbered commits, each published once and whole.

Everything here blocks. A commit is written under a hidden name, made durable, and linked to its number. The link fails
if the number is taken, so two jobs never share a version, and a version never changes.

The log is bounded: :meth:`TableLog.expire` removes old commits below a checkpoint. Vacuum calls it with an age. Each
commit that writes a checkpoint calls it as well, with a limited amount of work. So a table without vacuum, such as a
stream's, stays bounded.

A plan is known as long as its commit is in the log. That a plan expires cannot bring rows twice, because each job's
plans are protected by state that never expires:

=================  ==============================================================================================
plans of           why none of them comes again
=================  ==============================================================================================
``bronze``         a plan adds offsets that the table's coverage lacks, and a commit adds them to the coverage
``silver``         a plan begins behind the table's progress; where only the quarantine has committed, and its plan has
                   expired, silver compares identities
``latest``         a plan begins behind the table's progress, and ends at a version that it has not reached
``stream``         batches have numbers, and the newest one is in the table's progress
``compact``        a plan names the files that it removes, which are not in the table any more
``stats``,         plans are random: a second run is other work
``retention``,
``erase``,
``restore``
=================  ==============================================================================================
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from consumerd.landing.chain import FileId
from consumerd.landing.filesystem import FileSystem, OsFileSystem
from consumerd.landing.publish import Outcome, publish_record
from consumerd.landing.record_fields import MalformedRecord, describe_malformed
from consumerd.spark.table.actions import encode_commit, encode_table, parse_commit, parse_table
from consumerd.spark.table.attempts import StagedCommit
from consumerd.spark.table.checkpoint import encode_checkpoint, parse_checkpoint, parse_time_of
from consumerd.spark.table.commit import (
    LOG_FOLDER,
    TableCommit,
    TableRecord,
    checkpoint_name,
    commit_name,
)
from consumerd.spark.table.errors import TableError, VersionVacuumed
from consumerd.spark.table.log_files import CHECKPOINT_EVERY, LogFiles
from consumerd.spark.table.snapshot import EMPTY, Snapshot

MOST_COMMITS: Final = 10_000
"""Limit of commits that a log keeps, however young they are, and a thousand more at most: see ``log_files``."""
_EXPIRED_BY_COMMIT: Final = 2_000
"""Limit of files that a single commit removes, so that it takes its usual time in a log of millions as well."""


class TableLog:
    """The log of the table at ``path``, of which there may be none yet."""

    def __init__(self, path: Path, files: FileSystem | None = None) -> None:
        self.path = path
        self.files: FileSystem = OsFileSystem() if files is None else files
        self._folder = path / LOG_FOLDER
        self._table: TableRecord | None = None
        self._opened: tuple[LogFiles, Snapshot] | None = None
        """The log as it was opened, and its newest checkpoint. The next snapshot uses both, since they take the time."""

    def find_record(self) -> TableRecord | None:
        """Read the table's description, or None if there is no table. Raises TableError, OSError."""
        first = self._folder / commit_name(0)
        try:
            self._table = parse_table(self.files.read(first))
        except (FileNotFoundError, NotADirectoryError):
            # its first versions may have expired
            self._table = self._find_table()
        except MalformedRecord as error:
            raise TableError(describe_malformed(str(first), error)) from error
        return self._table

    def create(self, record: TableRecord) -> TableRecord:
        """Return the table's description; publish ``record`` if there is none yet.

        Raises TableError, OSError.
        """
        missing = [one for one in self.path.parents if not self._exists(one)]
        self.files.make_folders(self._folder)
        for folder in (self._folder, self.path, *missing):
            self.files.sync_folder(folder.parent)
        data = encode_table(record)
        publish_record(self.files, folder=self._folder, name=commit_name(0), data=data, file_id=new_file_id())
        found = self.find_record()
        if found is None:
            raise TableError(f"{self._folder / commit_name(0)} vanished while it was being made")
        return found

    def latest(self) -> int:
        """Return the newest version, 0 if nothing was ever committed. Raises OSError."""
        return self._list().newest

    def oldest(self) -> int:
        """Return the oldest version from which on all commits are in the log. Raises OSError."""
        return self._list().oldest

    def read(self, version: int) -> TableCommit:
        """Read one commit. Raises VersionVacuumed, TableError, OSError."""
        path = self._folder / commit_name(version)
        try:
            return parse_commit(self.files.read(path), version, self._record.partition_by)
        except FileNotFoundError as error:
            if version < (oldest := self.oldest()):
                raise VersionVacuumed(
                    f"{self.path}: what version {version} did has expired; the log begins with version {oldest}"
                ) from error
            raise TableError(f"{self.path}: there is no version {version}; the newest is {self.latest()}") from error
        except MalformedRecord as error:
            raise TableError(describe_malformed(str(path), error)) from error

    def read_after(self, version: int, until: int | None = None) -> Iterator[TableCommit]:
        """Yield the commits behind ``version``, up to ``until`` or to the newest. Raises as :meth:`read`."""
        last = self.latest() if until is None else until
        for number in range(version + 1, last + 1):
            yield self.read(number)

    def snapshot(self, version: int | None = None) -> Snapshot:
        """Return the table at a version, or at its newest. Raises VersionVacuumed, TableError, OSError."""
        while True:
            files, newest = self._list_again()
            try:
                return self._sum_up(files, version, newest)
            except VersionVacuumed:
                # 1. We list the log, whose newest checkpoint is 100. 2. Others commit version 250 and expire what is
                # below 200. 3. Checkpoint 100 is gone when we read it, but the table is not.
                if self._list().oldest == files.oldest:
                    raise

    def _sum_up(self, files: LogFiles, version: int | None, checkpoint: Snapshot | None) -> Snapshot:
        wanted = files.newest if version is None else version
        if not 0 <= wanted <= files.newest:
            raise TableError(f"{self.path}: there is no version {wanted}; the newest is {files.newest}")
        if checkpoint is None or checkpoint.version > wanted:
            checkpoint = self._find_checkpoint(files, wanted)
        base = checkpoint or EMPTY
        try:
            snapshot = base.apply(self.read_after(base.version, wanted))
        except MalformedRecord as error:
            raise TableError(f"{self.path}: the log contradicts itself: {error}") from error
        oldest = files.oldest
        if min(snapshot.plans.values(), default=oldest) >= oldest:
            return snapshot
        return replace(snapshot, plans={plan: at for plan, at in snapshot.plans.items() if at >= oldest})

    def publish(self, commit: TableCommit, staged: StagedCommit) -> bool:
        """Publish a commit under its number; return False if the number is taken.

        Raises TableConflict if the attempt was ended by others; OSError, after which the commit may be public or not.
        """
        outcome = staged.publish(encode_commit(commit, self._record), self._folder / commit_name(commit.version))
        if outcome is Outcome.TAKEN:
            return False
        if commit.version % CHECKPOINT_EVERY == 0:
            with contextlib.suppress(OSError, TableError):  # it saves time and space, and nothing else
                self.publish_checkpoint(commit.version)
                self.expire(0, most=_EXPIRED_BY_COMMIT)
        return True

    def publish_checkpoint(self, version: int) -> None:
        """Write the checkpoint of a version.

        Removed files that are not on the disk any more are left out. Raises TableError, OSError.
        """
        snapshot = self.snapshot(version)
        there = {path: at for path, at in snapshot.removed.items() if self._exists(self.path / path)}
        publish_record(
            self.files,
            folder=self._folder,
            name=checkpoint_name(version),
            data=encode_checkpoint(replace(snapshot, removed=there), self._record),
            file_id=new_file_id(),
        )

    def expire(self, until_ms: int, *, most: int | None = None, dry_run: bool = False) -> int:
        """Remove commits and checkpoints of versions older than ``until_ms``; return the number of files.

        The log then begins with a checkpoint: the newest one from before that time, or a younger one where more than
        ``MOST_COMMITS`` commits would stay. Earlier versions cannot be read any more, and all later ones can.
        Checkpoints that only save time are thinned out (``log_files``). A process that dies in between leaves a log
        without its first commits.

        Args:
            until_ms: wall clock in ms since the epoch.
            most: number of files to remove at most, about; the rest is left to later calls. None for no limit.
            dry_run: only count.

        Raises TableError, OSError.
        """
        files = self._list()
        first = self._find_beginning(files, until_ms, most)
        gone = [] if first is None else files.names_below(first)
        gone += files.spare_checkpoints(files.oldest if first is None else first)[:most]
        for name in () if dry_run else gone:
            self.files.unlink(self._folder / name)
        return len(gone)

    def _find_beginning(self, files: LogFiles, until_ms: int, most: int | None) -> int | None:
        """Return the version of the log's new first checkpoint, None if nothing may go.

        Times of checkpoints never decrease, so a binary search reads few of them. Those that cannot be read, or are of
        other writers, are passed over.
        """
        lowest = files.lowest
        left = [one for one in files.checkpoints if lowest < one <= files.newest]
        if most is not None:  # at least one span between two checkpoints
            left = [one for number, one in enumerate(left) if number == 0 or one <= lowest + most]
        old = bisect.bisect_right(left, files.newest - MOST_COMMITS)
        young = len(left) if until_ms > 0 else old
        while old < young:  # left[:old] may be the first, left[young:] may not
            middle = (old + young) // 2
            time_ms = self._find_time(left[middle])
            if time_ms is None:
                del left[middle]
                young -= 1
            elif time_ms < until_ms:
                old = middle + 1
            else:
                young = middle
        # all versions from the first on will be read by way of this checkpoint, so it must be whole
        return next((one for one in reversed(left[:old]) if self._read_checkpoint(one) is not None), None)

    @property
    def _record(self) -> TableRecord:
        if self._table is None and self.find_record() is None:
            raise TableError(f"{self.path}: there is no table (it has no {LOG_FOLDER})")
        assert self._table is not None
        return self._table

    def _exists(self, path: Path) -> bool:
        try:
            self.files.size_and_mtime(path)
        except FileNotFoundError:
            return False
        return True

    def _list(self) -> LogFiles:
        return LogFiles(self.files.names(self._folder))

    def _list_again(self) -> tuple[LogFiles, Snapshot | None]:
        """Return the log's files, and the newest checkpoint if it has been read already.

        What :meth:`_find_table` has read counts if it is still the newest. Versions have no gaps, and expire in
        ascending order. So nothing came after version 7 if there is no version 8 while version 7 is still there.
        """
        opened, self._opened = self._opened, None
        if opened is not None:
            newest, after = (self._folder / commit_name(opened[0].newest + one) for one in (0, 1))
            if not self._exists(after) and self._exists(newest):
                return opened
        return self._list(), None

    def _find_checkpoint(self, files: LogFiles, wanted: int) -> Snapshot | None:
        """Return the newest readable checkpoint, at most of version ``wanted``; None if there is none."""
        below = (one for one in reversed(files.checkpoints) if one <= wanted)
        return next(filter(None, map(self._read_checkpoint, below)), None)

    def _find_table(self) -> TableRecord | None:
        """Read the table's description off the newest readable checkpoint, None if there is none."""
        files = self._list()
        for version in reversed(files.checkpoints):
            with contextlib.suppress(FileNotFoundError, MalformedRecord):
                snapshot, table = parse_checkpoint(self.files.read(self._folder / checkpoint_name(version)), version)
                self._opened = files, snapshot
                return table
        return None

    def _read_checkpoint(self, version: int) -> Snapshot | None:
        with contextlib.suppress(FileNotFoundError, MalformedRecord):
            return parse_checkpoint(self.files.read(self._folder / checkpoint_name(version)), version)[0]
        return None

    def _find_time(self, version: int) -> int | None:
        """Return a checkpoint's time in ms, None if it cannot be read."""
        with contextlib.suppress(FileNotFoundError, MalformedRecord):
            return parse_time_of(self.files.read(self._folder / checkpoint_name(version)), version)
        return None


_PROCESS: Final = uuid.uuid4().hex[:12]
_numbers = itertools.count(1)


def new_file_id() -> FileId:
    """Return an id that no other attempt has had."""
    return FileId(f"{_PROCESS}-{next(_numbers)}")
