# SPDX-License-Identifier: Apache-2.0
"""Vacuum: removal of data files and commits that only old versions need. Blocks.

Files of the newest version always stay. Other data files go:

=========================================  ===================================================================
file                                       deleted
=========================================  ===================================================================
removed from the table by a commit         ``keep_ms`` after that commit, for readers of older versions
of an attempt whose process has died       at once
of an attempt that is alive                never; it may be about to commit
of no version and no attempt               ``keep_abandoned_ms`` after it was written: it may be of another writer,
                                           which does not show us which files it is about to commit
=========================================  ===================================================================

Example: ``keep_ms`` is 7 days. On November 1 a compaction replaces files A and B by C. A vacuum on November 9 deletes A
and B. Versions before the compaction cannot be read any more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from consumerd.landing.filesystem import FileSystem
from consumerd.spark.table.attempts import end_attempts, find_attempts, remove_attempts, staged_files
from consumerd.spark.table.commit import STAGING_FOLDER
from consumerd.spark.table.transaction import Table

_DEAD_AFTER_MS: Final = 24 * 3600 * 1000
"""Time since an attempt's last write after which it counts as dead, on a file system without locks."""
_NS_PER_MS: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Vacuumed:
    """Numbers of files that a vacuum has removed.

    Attributes:
        replaced: data files of older versions.
        abandoned: data files of no version, left by jobs that died.
        size: bytes of the data files.
        expired: commits and checkpoints of the log.
    """

    replaced: int = 0
    abandoned: int = 0
    size: int = 0
    expired: int = 0


def vacuum(
    table: Table,
    *,
    keep_ms: int,
    keep_log_ms: int,
    now_ms: int,
    keep_abandoned_ms: int | None = None,
    dry_run: bool = False,
) -> Vacuumed:
    """Remove files that left the table more than ``keep_ms`` ago, and commits older than ``keep_log_ms``.

    Files of dead attempts are removed at once. Jobs may run at the same time.

    Args:
        keep_ms: time in ms that removed files stay.
        keep_log_ms: time in ms that commits stay; ``keep_ms`` if that is longer.
        now_ms: wall clock in ms since the epoch.
        keep_abandoned_ms: time in ms that files of no version stay; None for ``keep_ms``.
        dry_run: remove nothing, and return what would be removed.

    Raises TableError, OSError.
    """
    files, until_ms = table.log.files, now_ms - keep_ms
    left_until_ms = until_ms if keep_abandoned_ms is None else now_ms - keep_abandoned_ms
    dead = _find_dead_attempts(table, now_ms - _DEAD_AFTER_MS)
    if not dry_run:
        end_attempts(files, table.path, dead)
    # The order matters. A job links its data files, then commits, then removes its staging folder. We look in the same
    # order: at data files, then at staging folders, then at the log. So a file that is still in neither of the later
    # two has been abandoned.
    listed = set(_data_files(table))
    living = {
        path
        for one in find_attempts(files, table.path)
        if one not in dead
        for path in staged_files(files, table.path, one)
    }
    snapshot = table.snapshot()
    known = snapshot.files.keys() | snapshot.removed.keys()
    replaced = [path for path, removed_ms in snapshot.removed.items() if removed_ms < until_ms and path in listed]
    left = {path for one in dead for path in staged_files(files, table.path, one)}
    abandoned = [
        path
        for path in listed - living - known
        if path in left or files.size_and_mtime(table.path / path)[1] < left_until_ms * _NS_PER_MS
    ]
    gone = [*replaced, *abandoned]
    size = sum(files.size_and_mtime(table.path / path)[0] for path in gone)
    if not dry_run:
        for path in gone:
            files.unlink(table.path / path)
        remove_attempts(files, table.path, dead, snapshot)
    expired = table.log.expire(now_ms - max(keep_ms, keep_log_ms), dry_run=dry_run)
    return Vacuumed(replaced=len(replaced), abandoned=len(abandoned), size=size, expired=expired)


def _find_dead_attempts(table: Table, until_ms: int) -> list[str]:
    """Return the dead attempts that have left a staging folder.

    If we get the lock, no job is at work, so all attempts are dead; else none counts as dead. On a file system without
    locks, the dead are those that have written nothing since ``until_ms``.
    """
    lock, files = table.lock(), table.log.files
    try:
        alone = lock.try_exclusive()
    except OSError:
        attempts = find_attempts(files, table.path)
        return [one for one in attempts if _newest_ms(files, table.path / STAGING_FOLDER / one) < until_ms]
    else:
        return find_attempts(files, table.path) if alone else []
    finally:
        lock.close()


def _newest_ms(files: FileSystem, folder: Path) -> int:
    times = [files.size_and_mtime(folder / path)[1] for path in files.walk(folder)]
    return max(times, default=0) // _NS_PER_MS


def _data_files(table: Table) -> Iterator[str]:
    """Yield the paths of all data files, without names that begin with ``_`` or ``.``."""
    for path in table.log.files.walk(table.path):
        if not any(part.startswith(("_", ".")) for part in path.parts):
            yield str(path)
