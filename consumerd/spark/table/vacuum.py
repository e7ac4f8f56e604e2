"""Removes files that no version of a time needs any more. Blocks.

What the newest version has always stays. What a commit removed stays for a while after it, for readers of older versions; so
do files that nothing names, for the job that may be about to commit them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from consumerd.spark.table.transaction import Table, hold_alone

_NS_PER_MS: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Vacuumed:
    """What was removed: ``replaced`` files of older versions, ``abandoned`` ones that no version has ever had."""

    replaced: int = 0
    abandoned: int = 0
    size: int = 0


def vacuum(table: Table, *, keep_ms: int, now_ms: int) -> Vacuumed:
    """Remove the files that have not been the table's for ``keep_ms``.

    Files that no version names are looked for only while no job is at work on the table. Raises TableError, OSError.
    """
    until_ms = now_ms - keep_ms
    with hold_alone(table) as alone:
        snapshot = table.snapshot()
        replaced: set[str] = set()
        kept = set(snapshot.files)
        committed_ms = 0
        for commit in table.log.read_after(0, snapshot.version):
            committed_ms = max(committed_ms, commit.time_ms)  # a clock that went back makes no commit older than it is
            (replaced if committed_ms < until_ms else kept).update(commit.removed)
        size = 0
        gone = 0
        for path in replaced - kept:
            found = _remove(table.path / path)
            gone += found is not None
            size += found or 0
        abandoned = [] if not alone else [path for path in _data_files(table) if path not in kept]
        lost = 0
        for path in abandoned:
            if (table.path / path).stat().st_mtime_ns < until_ms * _NS_PER_MS:
                size += _remove(table.path / path) or 0
                lost += 1
        return Vacuumed(replaced=gone, abandoned=lost, size=size)


def _remove(path: Path) -> int | None:
    """Remove a file and return its size, None if it is not there."""
    try:
        size = path.stat().st_size
        path.unlink()
    except FileNotFoundError:
        return None
    return size


def _data_files(table: Table) -> Iterator[str]:
    """Yield what lies in the table's folders, hidden names and folders left out."""
    for home, folders, names in os.walk(table.path):
        folders[:] = [name for name in folders if not name.startswith(("_", "."))]
        for name in names:
            if not name.startswith(("_", ".")):
                yield str((Path(home) / name).relative_to(table.path))
