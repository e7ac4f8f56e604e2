"""A table's log on a file system: numbered commits, each published once and whole.

Everything here blocks. A commit is written under a hidden name, made durable, and linked to its number, which fails if the
number is taken: two jobs never share a version, and a version, once it is there, is never changed.
"""

from __future__ import annotations

import contextlib
import itertools
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from consumerd.sinks.chain import FileId
from consumerd.sinks.filesystem import FileSystem, OsFileSystem
from consumerd.sinks.publish import Outcome, publish_record
from consumerd.sinks.record_fields import MalformedRecord, describe_malformed
from consumerd.spark.table.commit import (
    LOG_FOLDER,
    TABLE_RECORD,
    Commit,
    TableRecord,
    checkpoint_name,
    commit_name,
    parse_checkpoint_name,
    parse_commit_name,
)
from consumerd.spark.table.errors import TableError
from consumerd.spark.table.snapshot import EMPTY, Snapshot

CHECKPOINT_EVERY: Final = 50
"""Commits between two checkpoints: what a reader has to read beside the newest one."""


class TableLog:
    """The log of the table at ``path``, of which there may be none yet."""

    def __init__(self, path: Path, files: FileSystem | None = None) -> None:
        self.path = path
        self.files: FileSystem = OsFileSystem() if files is None else files
        self._folder = path / LOG_FOLDER

    def find_record(self) -> TableRecord | None:
        """Read what the table is, or None if there is none. Raises TableError, OSError."""
        try:
            return TableRecord.parse(self.files.read(self.path / TABLE_RECORD))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except MalformedRecord as error:
            raise TableError(describe_malformed(str(self.path / TABLE_RECORD), error)) from error

    def create(self, record: TableRecord) -> TableRecord:
        """Return what the table is: what its record says, or ``record``, which is published if there is none.

        Raises TableError, OSError.
        """
        missing = [one for one in self.path.parents if not one.exists()]
        self.files.make_folders(self._folder)
        for folder in (self.path, *missing):
            self.files.sync_folder(folder.parent)
        publish_record(self.files, folder=self.path, name=TABLE_RECORD, data=record.encode(), file_id=new_file_id())
        found = self.find_record()
        if found is None:
            raise TableError(f"{self.path / TABLE_RECORD} vanished while it was being made")
        return found

    def latest(self) -> int:
        """Return the newest version, 0 if nothing was ever committed. Raises OSError."""
        return max(filter(None, map(parse_commit_name, self.files.names(self._folder))), default=0)

    def read(self, version: int) -> Commit:
        """Read one commit. Raises TableError, OSError."""
        path = self._folder / commit_name(version)
        try:
            commit = Commit.parse(self.files.read(path))
        except FileNotFoundError as error:
            raise TableError(f"{self.path}: there is no version {version}; the newest is {self.latest()}") from error
        except MalformedRecord as error:
            raise TableError(describe_malformed(str(path), error)) from error
        if commit.version != version:
            raise TableError(f"{path} says that it is version {commit.version}; was it copied here?")
        return commit

    def read_after(self, version: int, until: int | None = None) -> Iterator[Commit]:
        """Yield the commits behind ``version``, up to ``until`` or to the newest. Raises TableError, OSError."""
        last = self.latest() if until is None else until
        for number in range(version + 1, last + 1):
            yield self.read(number)

    def snapshot(self, version: int | None = None) -> Snapshot:
        """Return the table at a version, or at its newest. Raises TableError, OSError."""
        names = self.files.names(self._folder)
        newest = max(filter(None, map(parse_commit_name, names)), default=0)
        wanted = newest if version is None else version
        if not 0 <= wanted <= newest:
            raise TableError(f"{self.path}: there is no version {wanted}; the newest is {newest}")
        base = self._find_checkpoint([found for name in names if (found := parse_checkpoint_name(name))], wanted)
        try:
            return base.apply(self.read_after(base.version, wanted))
        except MalformedRecord as error:
            raise TableError(f"{self.path}: the log contradicts itself: {error}") from error

    def publish(self, commit: Commit) -> bool:
        """Make a commit its number's; False if the number is taken.

        Raises OSError, after which the commit may be public or not.
        """
        data = commit.encode()
        name = commit_name(commit.version)
        outcome = publish_record(self.files, folder=self._folder, name=name, data=data, file_id=new_file_id())
        if outcome is Outcome.TAKEN:
            return False
        if commit.version % CHECKPOINT_EVERY == 0:
            with contextlib.suppress(OSError, TableError):  # it saves readers time, and nothing else
                self._publish_checkpoint(commit.version)
        return True

    def find_commit(self, *, writer: str, after: int) -> Commit | None:
        """Return the commit of one attempt among those behind a version, or None. Raises TableError, OSError."""
        return next((commit for commit in self.read_after(after) if commit.writer == writer), None)

    def _publish_checkpoint(self, version: int) -> None:
        publish_record(
            self.files,
            folder=self._folder,
            name=checkpoint_name(version),
            data=self.snapshot(version).encode(),
            file_id=new_file_id(),
        )

    def _find_checkpoint(self, versions: list[int], wanted: int) -> Snapshot:
        """Return the newest checkpoint that can be read, not above a version; what it folds is in the commits as well."""
        for version in sorted((one for one in versions if one <= wanted), reverse=True):
            with contextlib.suppress(FileNotFoundError, MalformedRecord):
                return Snapshot.parse(self.files.read(self._folder / checkpoint_name(version)))
        return EMPTY


_PROCESS: Final = uuid.uuid4().hex[:12]
_numbers = itertools.count(1)


def new_file_id() -> FileId:
    """Return an id that no other attempt has had."""
    return FileId(f"{_PROCESS}-{next(_numbers)}")
