# SPDX-License-Identifier: Apache-2.0
"""Vacuum: removal of data files and commits that only old versions need. Blocks.

Files of the newest version always stay. A file that a commit removed stays for ``keep_ms`` after it, for readers of
older versions. A file that no version names, and that is no living attempt's, stays as long: writers other than these
jobs do not tell which files they are about to commit.
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
"""Time without a change after which an attempt counts as dead on a file system without locks."""
_NS_PER_MS: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Vacuumed:
    """Number of files that a vacuum has removed.

    Attributes:
        replaced: data files of older versions.
        abandoned: data files of no version, left by jobs that died.
        size: bytes of both.
        expired: files of the log.
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

    Files of attempts that have died are removed at once. Jobs may be at work meanwhile.

    Args:
        keep_ms: time in ms that removed files stay.
        keep_log_ms: time in ms that commits stay, at least ``keep_ms``.
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
    # In this order: by now, a listed file is of a version, or of a living attempt, or was abandoned.
    listed = set(_data_files(table))
    living = {path for one in find_attempts(files, table.path) if one not in dead for path in _staged(table, one)}
    snapshot = table.snapshot()
    known = snapshot.files.keys() | snapshot.removed.keys()
    replaced = [path for path, removed_ms in snapshot.removed.items() if removed_ms < until_ms and path in listed]
    left = {path for one in dead for path in _staged(table, one)}
    abandoned = [path for path in listed - living - known if path in left or _modified_ms(table, path) < left_until_ms]
    gone = [*replaced, *abandoned]
    size = sum(files.size_and_mtime(table.path / path)[0] for path in gone)
    if not dry_run:
        for path in gone:
            files.unlink(table.path / path)
        remove_attempts(files, table.path, dead, snapshot)
    expired = table.log.expire(now_ms - max(keep_ms, keep_log_ms), dry_run=dry_run)
    return Vacuumed(replaced=len(replaced), abandoned=len(abandoned), size=size, expired=expired)


def _find_dead_attempts(table: Table, until_ms: int) -> list[str]:
    """Return the attempts that left a staging folder behind: all of them if no job is at work.

    On a file system without locks they are those that have not changed since ``until_ms``.
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


def _modified_ms(table: Table, path: str) -> int:
    return table.log.files.size_and_mtime(table.path / path)[1] // _NS_PER_MS


def _staged(table: Table, attempt: str) -> Iterator[str]:
    return map(str, staged_files(table.log.files, table.path, attempt))


def _data_files(table: Table) -> Iterator[str]:
    """Yield the paths of all files in the table's folders, except hidden names and folders."""
    for path in table.log.files.walk(table.path):
        if not any(part.startswith(("_", ".")) for part in path.parts):
            yield str(path)
