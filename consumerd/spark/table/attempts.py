# SPDX-License-Identifier: Apache-2.0
"""Attempts: the staging folders of transactions, and the removal of those whose process has died. Blocks.

::

    <path>/_staging/<attempt>/.commit                             the commit, before it has its number
    <path>/_staging/<attempt>/topic=orders/day=2026-11-22/x.parquet   a data file, before it is part of the table

``.commit`` is created when the attempt begins, before anything else, and never again. It is filled at the end and linked to
its number. Removing it ends the attempt for good, because ``link(2)`` fails for a file whose last name is gone. So
:func:`remove_attempts` may take a living process for a dead one, and still no version names a file that is gone:

1. Job A has linked ``x.parquet`` into its folder, and is about to link ``.commit`` to version 8.
2. Job B believes that A is dead (a lock that was granted to both). It removes A's ``.commit``.
3. B reads the log. If A was faster, version 8 names ``x.parquet``, and B keeps it. If not, B removes ``x.parquet``.
4. In the second case A's link fails: A reports a conflict, and nothing of it is visible.
"""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from consumerd import failpoints
from consumerd.landing.filesystem import FileSystem
from consumerd.landing.publish import Outcome, create_exclusive
from consumerd.spark.table.commit import STAGING_FOLDER
from consumerd.spark.table.errors import TableConflict
from consumerd.spark.table.snapshot import Snapshot

COMMIT_FILE: Final = ".commit"
_ATTEMPT: Final = re.compile(r"[0-9]{20}-[0-9a-f]{12}")


def new_attempt(version: int) -> str:
    """Return a unique name for an attempt that begins on a version."""
    return f"{version:020d}-{uuid.uuid4().hex[:12]}"


class StagedCommit:
    """The log file of a commit before it has its number. A context manager, which creates and removes it.

    Used by one thread.
    """

    def __init__(self, files: FileSystem, path: Path) -> None:
        self._files = files
        self._path = path
        self._descriptor: int | None = None

    def __enter__(self) -> Self:
        self._descriptor = self._files.create(self._path)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
        with contextlib.suppress(OSError):
            self._files.unlink(self._path)

    def close(self) -> None:
        """Close the file, and leave its name. Idempotent."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with contextlib.suppress(OSError):
                self._files.close(descriptor)

    def publish(self, data: bytes, target: Path) -> Outcome:
        """Give the commit its content and its number, and make both durable.

        Returns TAKEN if the number is taken; the commit may then be published under another one. Raises TableConflict
        if somebody has removed the file; OSError, after which the commit may be public or not.
        """
        assert self._descriptor is not None
        self._files.truncate(self._descriptor)
        self._files.write(self._descriptor, data)
        if failpoints.ENABLED:
            failpoints.reach("before_fsync")
        self._files.sync(self._descriptor)
        if failpoints.ENABLED:
            failpoints.reach("after_fsync")
        outcome = create_exclusive(self._files, self._path, self._descriptor, target)
        if outcome is Outcome.REMOVED:
            raise TableConflict(describe_ended(self._path.parent))
        return outcome


def describe_ended(staging: Path) -> str:
    """Return what to tell the job of an attempt whose staged files are gone."""
    return (
        f"{staging} has been removed: another job, or vacuum, has taken this run for dead; nothing of it is visible, run "
        "it again"
    )


def find_attempts(files: FileSystem, table: Path) -> list[str]:
    """Return the names of all attempts that have a staging folder, alive or dead. Raises OSError."""
    return [name for name in files.names(table / STAGING_FOLDER) if _ATTEMPT.fullmatch(name)]


def staged_files(files: FileSystem, table: Path, attempt: str) -> Iterator[Path]:
    """Yield the data files of an attempt by their paths in the table. Raises OSError."""
    for path in files.walk(table / STAGING_FOLDER / attempt):
        if not path.name.startswith("."):
            yield path


def end_attempts(files: FileSystem, table: Path, attempts: Iterable[str]) -> None:
    """End attempts for good: none of them commits from now on, even if its process is alive. Raises OSError."""
    for attempt in attempts:
        files.unlink(table / STAGING_FOLDER / attempt / COMMIT_FILE)


def remove_attempts(files: FileSystem, table: Path, attempts: Iterable[str], snapshot: Snapshot) -> int:
    """Remove the files of attempts that have ended, and return how many were in the table's folders.

    Args:
        snapshot: read after :func:`end_attempts`. Files that it knows have been committed, and stay.

    Raises OSError.
    """
    count = 0
    for attempt in attempts:
        for path in staged_files(files, table, attempt):
            name = str(path)
            if name in snapshot.files or name in snapshot.removed:
                continue
            # a data file's name begins with its attempt's, so nobody else has made it
            with contextlib.suppress(FileNotFoundError):
                files.size_and_mtime(table / path)
                files.unlink(table / path)
                count += 1
        files.remove_tree(table / STAGING_FOLDER / attempt)
    return count
