# SPDX-License-Identifier: Apache-2.0
"""Locks of a table's log, which tell whether other jobs are at work. Blocks.

Each job holds the lock shared while it runs. One that gets it exclusively is alone, and may remove the files of dead
jobs. Consistency does not depend on locks: ``attempts`` says what happens when one is granted by mistake.
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
    """Interface of a file lock. Released by :meth:`close`, or when the process ends."""

    def try_exclusive(self) -> bool:
        """Take the lock exclusively; return False if another holder has it.

        Raises OSError on a file system without locks.
        """

    def share(self) -> None:
        """Take the lock shared; several holders may share it.

        Waits until an exclusive holder releases the lock. Raises OSError.
        """

    def close(self) -> None:
        """Release the lock. Idempotent."""


LockMaker = Callable[[Path], Lock]
"""Function that opens a lock on a file, which it creates if needed, without taking it. Raises OSError."""


class FileLock:
    """A lock by ``flock(2)`` on a file."""

    def __init__(self, path: Path) -> None:
        self._descriptor: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def try_exclusive(self) -> bool:
        """Take the lock exclusively; return False if another holder has it.

        Raises OSError on a file system without locks.
        """
        assert self._descriptor is not None
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def wait_exclusive(self) -> None:
        """Take the lock exclusively. Waits until all others release it. Raises OSError."""
        assert self._descriptor is not None
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    def share(self) -> None:
        """Take the lock shared; several holders may share it.

        Waits until an exclusive holder releases the lock. Raises OSError.
        """
        assert self._descriptor is not None
        fcntl.flock(self._descriptor, fcntl.LOCK_SH)

    def close(self) -> None:
        """Release the lock. Idempotent."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def check_locks(folder: Path, make_lock: LockMaker) -> None:
    """Raise TableError if the folder's file system grants one lock to two holders. Raises OSError.

    A file system that refuses all locks passes: there, only vacuum removes the files of dead jobs.
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
