# SPDX-License-Identifier: Apache-2.0
"""Tables with long commit logs, for the case ``log``.

The commits are those of a streaming job, published one by one without fsync. A million of them take about half an hour.
A log keeps at most 11,000 commits.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Final

from bench.spark.session import Reading
from consumerd.landing.filesystem import OsFileSystem
from consumerd.spark.table.attempts import StagedCommit
from consumerd.spark.table.commit import LOG_FOLDER, DataFile, Operation, TableCommit
from consumerd.spark.table.transaction import create_table, open_table

SHORT: Final = 1_000
BEHIND: Final = 25
"""Commits after the newest checkpoint, in both logs: half of the possible maximum."""
_LIVE: Final = 100
"""Number of live files at which the table is compacted."""
_OPENED: Final = 20
"""How often a table is opened in one round."""
_SOURCE: Final = "stream:6bd1c2f0-2d2c-4b43-93b2-5a3c9ac7f6cb"
_SCHEMA: Final = json.dumps(
    {
        "type": "struct",
        "fields": [
            {"name": name, "type": kind, "nullable": True, "metadata": {}}
            for name, kind in (("offset", "long"), ("value", "string"), ("topic", "string"), ("day", "date"))
        ],
    }
)


class _Unsynced(OsFileSystem):
    """The real file system without fsync; safety in a power failure is not measured."""

    def sync(self, descriptor: int) -> None:
        """Do nothing."""

    def sync_folder(self, path: Path) -> None:
        """Do nothing."""


def make_log(path: Path, commits: int) -> None:
    """Create a table with ``commits`` commits, each of one file.

    All but the newest files, a hundred at most, have been compacted away.

    Raises ValueError if another writer has published a commit.
    """
    table = create_table(path, name="bench", schema=_SCHEMA, partition_by=("topic", "day"), files=_Unsynced())
    live: list[str] = []
    for version in range(1, commits + 1):
        name = f"topic=orders/day=2026-11-22/{version - 1:020d}-abcdefabcdef-00000-00000.parquet"
        removed: list[str] = []
        if len(live) == _LIVE:
            removed, live = live, []
        live.append(name)
        commit = TableCommit(
            version=version,
            plan=f"{_SOURCE}:{version}",
            operation=Operation.APPEND,
            job="stream",
            writer=f"{version - 1:020d}-abcdefabcdef",
            time_ms=1_700_000_000_000 + version * 1000,
            added=(DataFile(path=name, size=1 << 20, rows=10_000, values=("orders", "2026-11-22")),),
            removed=tuple(removed),
            progress={_SOURCE: version},
        )
        with StagedCommit(table.log.files, path / ".commit") as staged:
            if not table.log.publish(commit, staged):
                raise ValueError(f"{path} is somebody else's")


def open_often(path: Path, commits: int) -> Reading:
    """Open a table and read its newest version several times; return the mean.

    Raises ValueError if the newest version is not ``commits``.
    """
    began, worked = time.perf_counter(), time.process_time()
    for _ in range(_OPENED):
        version = open_table(path).snapshot().version
        if version != commits:
            raise ValueError(f"{path} is at version {version}; {commits} were committed")
    seconds, processor_s = time.perf_counter() - began, time.process_time() - worked
    size = sum(file.stat().st_size for file in (path / LOG_FOLDER).iterdir())
    return Reading(seconds=seconds / _OPENED, processor_s=processor_s / _OPENED, rows=1, size=size)
