# SPDX-License-Identifier: Apache-2.0
"""A table's log on a file system: numbered commits, each published once and whole.

Owns the folder ``_delta_log``: reads snapshots from it, publishes commits and checkpoints, and expires old ones. Does
not own data files (``transaction``, ``vacuum``). All calls block.

Publishing
    A commit is written under a hidden name, made durable, and linked to its number. The link fails if the number is
    taken, so two jobs never share a version, and a version never changes.

    Example: jobs A and B both begin on version 7. A links its commit as version 8. B's link to 8 fails; B reads
    version 8, finds that it does not conflict, and links its own commit as version 9.

Reading
    A snapshot is the newest checkpoint plus the commits after it. Example: the newest version is 12,340 and the newest
    checkpoint is that of 12,300: one checkpoint and 40 commits are read.

Expiry
    :meth:`TableLog.expire` removes old commits below a checkpoint. Vacuum calls it with an age. Each commit that writes
    a checkpoint calls it as well, with limited work, so that a table that is never vacuumed stays bounded too.

Expired plans
    Each commit has a plan: the name of its work, which is committed at most once. A plan is known as long as its commit
    is in the log. No rows are added twice after it has expired, because each job checks state that never expires:

    =================  ============================================================================================
    plans of           why expired work is not done again
    =================  ============================================================================================
    ``bronze``         it adds only offsets that the table's coverage lacks, and its commit adds them to the coverage
    ``silver``         it begins after the table's progress; if only its quarantine has committed, and that plan has
                       expired, it compares identities of rows
    ``latest``         it begins after the table's progress, and ends at a later version
    ``stream``         batches are numbered, and the newest number is in the table's progress
    ``compact``        it names the files that it removes, and these are not in the table any more
    ``stats``,         plans are random: a second run is other work
    ``retention``,
    ``erase``,
    ``restore``
    =================  ============================================================================================
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

MAX_COMMITS: Final = 10_000
"""Number of commits above which a log expires even young ones.

Up to a thousand more can stay, because the log must begin with a checkpoint (``log_files``).
"""
_MAX_EXPIRED_BY_COMMIT: Final = 2_000
"""Limit of log files that one commit removes, so that it takes its usual time in a log of millions, too."""


class TableLog:
    """Transaction log of the table at ``path``, which need not exist yet."""

    def __init__(self, path: Path, files: FileSystem | None = None) -> None:
        self.path = path
        self.files: FileSystem = OsFileSystem() if files is None else files
        self._folder = path / LOG_FOLDER
        self._table: TableRecord | None = None
        self._opened: tuple[LogFiles, Snapshot] | None = None
        """Listing and newest checkpoint that opening the table has read, for the next snapshot."""

    def find_record(self) -> TableRecord | None:
        """Return the table's description, or None if there is no table.

        Raises TableError, OSError.
        """
        first = self._folder / commit_name(0)
        try:
            self._table = parse_table(self.files.read(first))
        except (FileNotFoundError, NotADirectoryError):
            # version 0 may have expired: newer checkpoints repeat the description
            self._table = self._find_table()
        except MalformedRecord as error:
            raise TableError(describe_malformed(str(first), error)) from error
        return self._table

    def create(self, record: TableRecord) -> TableRecord:
        """Create the table if it does not exist; return its description.

        If another job creates it at the same time, the description is that job's. Raises TableError, OSError.
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
        """Return the first version whose commit, and all later ones, are in the log.

        Commits of earlier versions have been removed. Raises OSError.
        """
        return self._list().oldest

    def read(self, version: int) -> TableCommit:
        """Return the commit of a version. Raises VersionVacuumed, TableError, OSError."""
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
        """Yield the commits after ``version``, up to ``until`` or the newest.

        Raises VersionVacuumed, TableError, OSError.
        """
        last = self.latest() if until is None else until
        for number in range(version + 1, last + 1):
            yield self.read(number)

    def snapshot(self, version: int | None = None) -> Snapshot:
        """Return the state of the table at a version, or at its newest.

        Raises VersionVacuumed, TableError, OSError.
        """
        while True:
            files, newest = self._list_again()
            try:
                return self._sum_up(files, version, newest)
            except VersionVacuumed:
                # 1. We list the log; its newest checkpoint is 100.
                # 2. Another job commits version 250, and expires everything below checkpoint 200.
                # 3. Checkpoint 100 is gone when we read it. The table is whole, so we list and read it again.
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
        # a checkpoint may still have plans whose commits have expired since
        return replace(snapshot, plans={plan: at for plan, at in snapshot.plans.items() if at >= oldest})

    def publish(self, commit: TableCommit, staged: StagedCommit) -> bool:
        """Publish a commit under its version number; return False if the number is taken.

        Raises TableConflict if another job has removed the staged commit; OSError, after which the commit may be public
        or not.
        """
        outcome = staged.publish(encode_commit(commit, self._record), self._folder / commit_name(commit.version))
        if outcome is Outcome.TAKEN:
            return False
        if commit.version % CHECKPOINT_EVERY == 0:
            with contextlib.suppress(OSError, TableError):  # checkpoints only save time; the commit is published
                self.publish_checkpoint(commit.version)
                self.expire(0, most=_MAX_EXPIRED_BY_COMMIT)
        return True

    def publish_checkpoint(self, version: int) -> None:
        """Write the checkpoint file of a version. Raises TableError, OSError."""
        snapshot = self.snapshot(version)
        # files that vacuum has deleted are left out, else the list would grow for ever
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

        Afterwards the log begins with a checkpoint: the newest one from before that time, or a younger one if more than
        ``MAX_COMMITS`` commits would stay. Earlier versions cannot be read any more; that checkpoint's and all later
        ones can. Checkpoints that only save time are thinned out (``log_files``).

        If the process dies half-way, the log has lost some of the commits that were to go, and later calls remove the
        rest.

        Args:
            until_ms: wall clock in ms since the epoch.
            most: approximate limit of the files removed; later calls remove the rest. None for no limit.
            dry_run: count the files, and remove none.

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

        Times of checkpoints never decrease, so a binary search reads few of them. It skips checkpoints that cannot be
        read, and those of other writers.

        Example: checkpoints at 50, 100, 150 and 200, from 1, 2, 3 and 4 o'clock. For ``until_ms`` at half past 3 the
        result is 150, so the commits below 150 go.
        """
        lowest = files.lowest
        left = [one for one in files.checkpoints if lowest < one <= files.newest]
        if most is not None:  # at least one span between two checkpoints
            left = [one for number, one in enumerate(left) if number == 0 or one <= lowest + most]
        old = bisect.bisect_right(left, files.newest - MAX_COMMITS)
        young = len(left) if until_ms > 0 else old
        while old < young:  # left[:old] are old enough to be the first, left[young:] are too young
            middle = (old + young) // 2
            time_ms = self._find_time(left[middle])
            if time_ms is None:
                del left[middle]
                young -= 1
            elif time_ms < until_ms:
                old = middle + 1
            else:
                young = middle
        # every later version will be read from this checkpoint on, so it is read now, to be sure that it is intact
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
        """Return the log's files, and the newest checkpoint if :meth:`_find_table` has read it.

        Its listing is used if no commit came since. Versions have no gaps, and expire in ascending order. So if version
        7 was the newest, is still there, and there is no version 8, then nothing came.
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
        """Read the table's description from the newest readable checkpoint, None without one."""
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
    """Return an id for an attempt to write a file, unique among all processes."""
    return FileId(f"{_PROCESS}-{next(_numbers)}")
