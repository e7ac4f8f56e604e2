"""A table's log on a file system: numbered commits, each published once and whole.

Everything here blocks. A commit is written under a hidden name, made durable, and linked to its number. The link fails
if the number is taken, so two jobs never share a version, and a version never changes.

The log is bounded: :meth:`TableLog.expire` removes old commits below a checkpoint.
"""

from __future__ import annotations

import contextlib
import itertools
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from consumerd.sinks.chain import FileId
from consumerd.sinks.filesystem import FileSystem, OsFileSystem
from consumerd.sinks.publish import Outcome, publish_record
from consumerd.sinks.record_fields import MalformedRecord, describe_malformed
from consumerd.spark.table.actions import encode_commit, encode_table, parse_commit, parse_table
from consumerd.spark.table.attempts import StagedCommit
from consumerd.spark.table.checkpoint import encode_checkpoint, parse_checkpoint
from consumerd.spark.table.commit import (
    LOG_FOLDER,
    Commit,
    TableRecord,
    checkpoint_name,
    commit_name,
    parse_checkpoint_name,
    parse_commit_name,
)
from consumerd.spark.table.errors import TableError, VersionVacuumed
from consumerd.spark.table.snapshot import EMPTY, Snapshot

CHECKPOINT_EVERY: Final = 50
"""Commits between two checkpoints, which a reader reads besides the newest checkpoint."""
MOST_COMMITS: Final = 10_000
"""Limit of commits that a log keeps, however young they are: about 30 MB."""


class TableLog:
    """The log of the table at ``path``, of which there may be none yet."""

    def __init__(self, path: Path, files: FileSystem | None = None) -> None:
        self.path = path
        self.files: FileSystem = OsFileSystem() if files is None else files
        self._folder = path / LOG_FOLDER
        self._table: TableRecord | None = None

    def find_record(self) -> TableRecord | None:
        """Read the table's description, or None if there is no table. Raises TableError, OSError."""
        first = self._folder / commit_name(0)
        try:
            self._table = parse_table(self.files.read(first))
        except (FileNotFoundError, NotADirectoryError):
            # its first versions may have expired
            found = self._find_checkpoint(self._names(), None)
            self._table = None if found is None else found[1]
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
        return max(_versions(self._names()), default=0)

    def oldest(self) -> int:
        """Return the oldest version from which on all commits are in the log. Raises OSError."""
        return _oldest(self._names())

    def read(self, version: int) -> Commit:
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

    def read_after(self, version: int, until: int | None = None) -> Iterator[Commit]:
        """Yield the commits behind ``version``, up to ``until`` or to the newest. Raises as :meth:`read`."""
        last = self.latest() if until is None else until
        for number in range(version + 1, last + 1):
            yield self.read(number)

    def snapshot(self, version: int | None = None) -> Snapshot:
        """Return the table at a version, or at its newest. Raises VersionVacuumed, TableError, OSError."""
        names = self._names()
        newest = max(_versions(names), default=0)
        wanted = newest if version is None else version
        if not 0 <= wanted <= newest:
            raise TableError(f"{self.path}: there is no version {wanted}; the newest is {newest}")
        found = self._find_checkpoint(names, wanted)
        base = EMPTY if found is None else found[0]
        try:
            snapshot = base.apply(self.read_after(base.version, wanted))
        except MalformedRecord as error:
            raise TableError(f"{self.path}: the log contradicts itself: {error}") from error
        oldest = _oldest(names)
        if oldest == 0:
            return snapshot
        return replace(snapshot, plans={plan: at for plan, at in snapshot.plans.items() if at >= oldest})

    def publish(self, commit: Commit, staged: StagedCommit) -> bool:
        """Publish a commit under its number; return False if the number is taken.

        Raises TableConflict if the attempt was ended by others; OSError, after which the commit may be public or not.
        """
        outcome = staged.publish(encode_commit(commit, self._record), self._folder / commit_name(commit.version))
        if outcome is Outcome.TAKEN:
            return False
        if commit.version % CHECKPOINT_EVERY == 0:
            with contextlib.suppress(OSError, TableError):  # it saves readers time, and nothing else
                self.publish_checkpoint(commit.version)
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

    def expire(self, until_ms: int, *, dry_run: bool = False) -> int:
        """Remove commits and checkpoints of versions older than ``until_ms``; return the number of files.

        The log then begins with a checkpoint: the newest one from before that time, or a younger one where more than
        ``MOST_COMMITS`` commits would stay. Earlier versions cannot be read any more. A process that dies in between
        leaves a log without its first commits.

        Args:
            until_ms: wall clock in ms since the epoch.
            dry_run: only count.

        Raises TableError, OSError.
        """
        names = self._names()
        newest = max(_versions(names), default=0)
        end = newest - MOST_COMMITS
        while (found := self._find_checkpoint(names, newest)) is not None:
            if found[0].time_ms < until_ms or found[0].version <= end:
                break
            newest = found[0].version - 1
        if found is None:
            return 0
        gone = [commit_name(one) for one in sorted(_versions(names)) if one < found[0].version]
        gone += [checkpoint_name(one) for one in sorted(_checkpoints(names)) if one < found[0].version]
        for name in () if dry_run else gone:
            with contextlib.suppress(FileNotFoundError):
                self.files.unlink(self._folder / name)
        return len(gone)

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

    def _names(self) -> Sequence[str]:
        return self.files.names(self._folder)

    def _find_checkpoint(self, names: Sequence[str], wanted: int | None) -> tuple[Snapshot, TableRecord] | None:
        """Return the newest readable checkpoint, at most of version ``wanted``; None if there is none."""
        below = [one for one in _checkpoints(names) if wanted is None or one <= wanted]
        for version in sorted(below, reverse=True):
            with contextlib.suppress(FileNotFoundError, MalformedRecord):
                return parse_checkpoint(self.files.read(self._folder / checkpoint_name(version)), version)
        return None


def _versions(names: Sequence[str]) -> Iterator[int]:
    return (one for one in map(parse_commit_name, names) if one is not None)


def _oldest(names: Sequence[str]) -> int:
    """Return the first version of the unbroken row that ends with the newest.

    A power cut while a log expires may leave single commits below it, since names are removed in no certain order.
    """
    there = set(_versions(names))
    oldest = max(there, default=0)
    while oldest - 1 in there:
        oldest -= 1
    return oldest


def _checkpoints(names: Sequence[str]) -> Iterator[int]:
    return (one for one in map(parse_checkpoint_name, names) if one is not None)


_PROCESS: Final = uuid.uuid4().hex[:12]
_numbers = itertools.count(1)


def new_file_id() -> FileId:
    """Return an id that no other attempt has had."""
    return FileId(f"{_PROCESS}-{next(_numbers)}")
