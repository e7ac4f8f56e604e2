# SPDX-License-Identifier: Apache-2.0
"""Snapshots: the state of a table at a version. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from consumerd.landing.coverage import NOTHING, Coverage, sum_up
from consumerd.landing.record_fields import MalformedRecord
from consumerd.spark.table.commit import DataFile, Operation, TableCommit


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """State of a table at a version; version 0 is an empty table.

    Attributes:
        files: data files by path.
        covered: landed offsets that all commits together have taken (bronze).
        progress: numbers that jobs have stored with their commits, the newest by key.
        plans: version of each plan (name of the work) whose commit is in the log.
        last_replace: newest version with ``Operation.REPLACE``, 0 if there is none.
        schema: Spark's JSON of a StructType, if a commit has added columns; None for the columns of version 0.
        removed: paths of files that only older versions have, with the wall clock of their removal, in ms.
        time_ms: wall clock of the newest commit, or of an earlier one if the clock went back in between.
    """

    version: int = 0
    files: Mapping[str, DataFile] = field(default_factory=dict)
    covered: Coverage = NOTHING
    progress: Mapping[str, int] = field(default_factory=dict)
    plans: Mapping[str, int] = field(default_factory=dict)
    last_replace: int = 0
    schema: str | None = None
    removed: Mapping[str, int] = field(default_factory=dict)
    time_ms: int = 0

    @property
    def rows(self) -> int:
        """Number of rows of the table at this version."""
        return sum(file.rows for file in self.files.values())

    @property
    def size(self) -> int:
        """Bytes of the table's files at this version."""
        return sum(file.size for file in self.files.values())

    def apply(self, commits: Iterable[TableCommit]) -> Snapshot:
        """Return the snapshot after further commits. Raises MalformedRecord if they do not fit.

        Example: commits 1 and 2 add A and B, commit 3 removes A and adds C. Then ``files`` are B and C, and ``removed``
        is A with the time of commit 3.
        """
        files = dict(self.files)
        progress = dict(self.progress)
        plans = dict(self.plans)
        gone = dict(self.removed)
        time_ms = self.time_ms
        covered = [self.covered]
        version, last_replace, schema = self.version, self.last_replace, self.schema
        for commit in commits:
            if commit.version != version + 1:
                raise MalformedRecord(f"version {version} is followed by {commit.version}")
            version, time_ms = commit.version, max(time_ms, commit.time_ms)
            for path in commit.removed:
                if files.pop(path, None) is None:
                    raise MalformedRecord(f"version {version} removes {path}, which the table does not have")
                gone[path] = time_ms
            for file in commit.added:
                files[file.path] = file
                gone.pop(file.path, None)
            if commit.restores is not None:
                covered.clear()
                progress.clear()
                plans = {plan: at for plan, at in plans.items() if at <= commit.restores}
            covered.append(commit.covered)
            progress.update(commit.progress)
            plans[commit.plan] = version
            if commit.operation is Operation.REPLACE:
                last_replace = version
            schema = commit.schema or schema
        try:
            total = sum_up(covered)
        except ValueError as error:
            raise MalformedRecord(f"version {version}: {error}") from error
        return Snapshot(
            version=version,
            files=files,
            covered=total,
            progress=progress,
            plans=plans,
            last_replace=last_replace,
            schema=schema,
            removed=gone,
            time_ms=time_ms,
        )


STREAM: Final = "stream:"
"""Prefix of the sources, in a table's progress, that are streams (``append_batches``).

The streaming query's id follows it.
"""


def is_filled_by_stream(snapshot: Snapshot) -> bool:
    """Return True if ``append_batches`` has written to a table."""
    return any(source.startswith(STREAM) for source in snapshot.progress)


EMPTY: Final = Snapshot()
"""State of a table at version 0: no files."""
