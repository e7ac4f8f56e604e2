# SPDX-License-Identifier: Apache-2.0
"""Locks of a table's log, by which a job knows that no other job is at work. Blocks.

They only tell when the files of a dead job can be removed. That a version has its files does not depend on them
(``attempts``).
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

from consumerd.spark.table.errors import TableError

LOCK_NAME: Final = ".lock"


class Lock(Protocol):
    """One holder's hold on a lock. Ends with :meth:`close`, or with the process."""

    def try_exclusive(self) -> bool:
        """Hold the lock alone; return False if anybody else holds it. Raises OSError if there are no locks here."""

    def share(self) -> None:
        """Hold the lock together with others. Waits for an exclusive holder. Raises OSError."""

    def close(self) -> None:
        """Give the lock up. Idempotent."""


LockMaker = Callable[[Path], Lock]
"""Opens the lock of a file, which is created if it does not exist; holds nothing yet. Raises OSError."""


class FileLock:
    """``flock(2)`` on a file."""

    def __init__(self, path: Path) -> None:
        self._descriptor: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def try_exclusive(self) -> bool:
        """See Lock."""
        assert self._descriptor is not None
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def share(self) -> None:
        """See Lock."""
        assert self._descriptor is not None
        fcntl.flock(self._descriptor, fcntl.LOCK_SH)

    def close(self) -> None:
        """See Lock."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def check_locks(folder: Path, make_lock: LockMaker) -> None:
    """Raise TableError if the folder's file system grants a lock to everybody. Raises OSError.

    A file system that refuses locks altogether is fine: jobs then leave the files of dead jobs to vacuum.
    """
    one, two = make_lock(folder / LOCK_NAME), make_lock(folder / LOCK_NAME)
    try:
        granted = one.try_exclusive() and two.try_exclusive()
    except OSError:
        return
    finally:
        one.close()
        two.close()
    if granted:
        raise TableError(
            f"{folder}: its file system grants an exclusive lock (flock) to two holders at once, so that jobs would "
            "remove each other's files; mount it with working locks, or put the tables elsewhere"
        )
