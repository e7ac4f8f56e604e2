# SPDX-License-Identifier: Apache-2.0
"""Attempts: staging folders of transactions, and their removal after their process has died.

::

    <path>/_staging/<attempt>/.commit                                 the commit, before it has its number
    <path>/_staging/<attempt>/topic=orders/day=2026-11-22/x.parquet   a data file, before it is part of the table

``.commit`` is created when the attempt begins, before anything else, and never again. At the end it is filled and
linked to its number. Removing it ends the attempt for good, because ``link(2)`` fails for a file whose last name is
gone. So even if :func:`remove_attempts` is called for a process that is alive, no version ever names a missing file:

1. Job A has linked ``x.parquet`` into its folder, and is about to link ``.commit`` to version 8.
2. Job B believes that A is dead, because a faulty lock was granted to both. It removes A's ``.commit``.
3. B reads the log. If A was faster, version 8 names ``x.parquet``, and B keeps it. If not, B removes ``x.parquet``.
4. In the second case A's link fails: A reports a conflict, and nothing of it is visible.

All calls block.
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
    """Return a new unique name for an attempt to commit.

    The name begins with ``version``, the newest version when the attempt begins.
    """
    return f"{version:020d}-{uuid.uuid4().hex[:12]}"


class StagedCommit:
    """The log file of a commit before it has its number: ``.commit``.

    As a context manager it creates the file, and removes it on exit. Used by one thread.
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
        """Close the file without removing it. Idempotent."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with contextlib.suppress(OSError):
                self._files.close(descriptor)

    def publish(self, data: bytes, target: Path) -> Outcome:
        """Write the commit and link it to its version's file name, durably.

        ``target`` is the path with that name. Returns TAKEN if another commit has the name; the commit may then be
        published under another one. Raises TableConflict if another job has removed the file; OSError, after which the
        commit may be public or not.
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
    """Return the error message for a commit whose staged files were removed by another job."""
    return (
        f"{staging} has been removed: another job, or vacuum, has taken this run for dead; "
        "nothing of it is visible, run it again"
    )


def find_attempts(files: FileSystem, table: Path) -> list[str]:
    """Return the names of commit attempts that have a staging folder, alive or dead.

    Raises OSError.
    """
    return [name for name in files.names(table / STAGING_FOLDER) if _ATTEMPT.fullmatch(name)]


def staged_files(files: FileSystem, table: Path, attempt: str) -> Iterator[str]:
    """Yield the paths, relative to the table, of an attempt's data files. Raises OSError."""
    for path in files.walk(table / STAGING_FOLDER / attempt):
        if not path.name.startswith("."):
            yield str(path)


def end_attempts(files: FileSystem, table: Path, attempts: Iterable[str]) -> None:
    """Prevent these attempts from ever committing, even if their process is alive. Raises OSError."""
    for attempt in attempts:
        files.unlink(table / STAGING_FOLDER / attempt / COMMIT_FILE)


def remove_attempts(files: FileSystem, table: Path, attempts: Iterable[str], snapshot: Snapshot) -> None:
    """Remove the staged files of commit attempts that were ended.

    Args:
        snapshot: read after :func:`end_attempts`. Files that it names were committed in time, and stay.

    Raises OSError.
    """
    for attempt in attempts:
        for name in staged_files(files, table, attempt):
            if name in snapshot.files or name in snapshot.removed:
                continue
            # a data file's name begins with its attempt's, so no other attempt has created it
            files.unlink(table / name)
        files.remove_tree(table / STAGING_FOLDER / attempt)
