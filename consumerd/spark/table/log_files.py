# SPDX-License-Identifier: Apache-2.0
"""Commits and checkpoints of a table's log, by their file names. Pure.

A version can be read if there is a checkpoint at or below it, and every commit after that checkpoint. So a log can
begin with any checkpoint. Most later checkpoints only save time: without one, a reader reads the next lower checkpoint
and more commits. Of these checkpoints the newest three stay, and the first one of each 1,000 versions.

Example: the newest version is 12,340, checkpoints are written every 50 versions, and the log begins with version 2,000.
Checkpoints 2,000, 3,000, ..., 12,000 and 12,200, 12,250, 12,300 stay. A reader of version 5,730 reads checkpoint 5,000
and 730 commits.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Sequence
from typing import Final

from consumerd.spark.table.commit import checkpoint_name, commit_name, parse_checkpoint_name, parse_commit_name

CHECKPOINT_EVERY: Final = 50
"""Versions between two checkpoints: limit of the commits that a reader of the newest version reads."""
KEEP_NEWEST: Final = 3
"""Number of the newest checkpoints that stay: a reader may be about to read one, and one may be damaged."""
KEEP_ONE_IN: Final = 1000
"""Versions of which one checkpoint stays, for readers of older versions and as a later start of the log."""


class LogFiles:
    """Commits and checkpoints in a log's folder.

    Attributes:
        newest: version of the newest commit, 0 if there is none.
        checkpoints: versions of the checkpoints, ascending.
        lowest: lowest version of a commit, even if versions after it are missing.
    """

    def __init__(self, names: Iterable[str]) -> None:
        """Parse the names of the log's files; other files than commits and checkpoints are ignored."""
        commits, checkpoints = [], []
        for name in names:  # thousands of them, each time that a table is opened
            if name.endswith(".json"):
                commits.append(name)
            elif name.endswith(".parquet"):
                checkpoints.append(parse_checkpoint_name(name))
        self.checkpoints: Sequence[int] = sorted(one for one in checkpoints if one is not None)
        self._names = commits
        ends = [parse_commit_name(one) for one in (min(commits, default=""), max(commits, default=""))]
        if None in ends:  # not of commits alone
            ends = [min(self.commits, default=0), max(self.commits, default=0)]
        self.lowest, self.newest = (one or 0 for one in ends)

    @functools.cached_property
    def commits(self) -> frozenset[int]:
        """Versions of the commits."""
        return frozenset(version for version in map(parse_commit_name, self._names) if version is not None)

    @property
    def oldest(self) -> int:
        """First version after which no commit is missing.

        A power cut during :meth:`TableLog.expire` may leave single commits below it, because the file system may have
        kept the removal of any of the names. Example: commits 3, 7, 8 and 9 are left; this is 7, and ``lowest`` is 3.
        """
        if self.newest - self.lowest + 1 == len(self._names):
            return self.lowest
        oldest = self.newest
        while oldest - 1 in self.commits:
            oldest -= 1
        return oldest

    def names_below(self, version: int) -> list[str]:
        """Return the names of files of lower versions: commits, then checkpoints, in ascending order."""
        commits = [commit_name(one) for one in sorted(self.commits) if one < version]
        return commits + [checkpoint_name(one) for one in self.checkpoints if one < version]

    def spare_checkpoints(self, first: int) -> list[str]:
        """Return the file names of checkpoints above version ``first`` that are not needed.

        The newest three are needed, and the first one of each 1,000 versions. ``first`` is the version that the log
        begins with. Checkpoints of other writers stay; they are recognized by versions that are no multiple of
        ``CHECKPOINT_EVERY``.
        """
        known = [one for one in self.checkpoints if one > first and one % CHECKPOINT_EVERY == 0]
        sparse = {next(some) for _, some in itertools.groupby(known, lambda one: one // KEEP_ONE_IN)}
        return [checkpoint_name(one) for one in known[:-KEEP_NEWEST] if one not in sparse]
