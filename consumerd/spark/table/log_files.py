# SPDX-License-Identifier: Apache-2.0
"""Files of a table's log, by their names, and those that can go. Pure.

A version can be read if there is a checkpoint at or below it, and every commit after that checkpoint. So a log that
begins with a checkpoint is whole, and most checkpoints in between only save time: reading from the next lower one costs
the commits between the two. Of those, the newest three stay, and the first one of each 1,000 versions.

Example: the newest version is 12,340, checkpoints are made every 50 versions, and the log begins with version 2,000.
There are checkpoints 2,000, 3,000, ..., 12,000 and 12,200, 12,250, 12,300. Version 5,730 is checkpoint 5,000 and 730
commits.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Sequence
from typing import Final

from consumerd.spark.table.commit import checkpoint_name, commit_name, parse_checkpoint_name, parse_commit_name

CHECKPOINT_EVERY: Final = 50
"""Commits between two checkpoints, which a reader reads besides the newest checkpoint."""
KEEP_NEWEST: Final = 3
"""Number of the newest checkpoints that stay: a reader may be about to read one, and one may be damaged."""
KEEP_ONE_IN: Final = 1000
"""Versions of which one checkpoint stays, for reading older versions and as a beginning of the log."""


class LogFiles:
    """Commits and checkpoints that are in a log's folder.

    Attributes:
        newest: newest version, 0 if there is none.
        checkpoints: their versions, in ascending order.
    """

    def __init__(self, names: Iterable[str]) -> None:
        """Take the names of all files; those that are neither commits nor checkpoints are ignored."""
        commits, checkpoints = [], []
        for name in names:  # thousands of them, each time that a table is opened
            if name.endswith(".json"):
                commits.append(name)
            elif name.endswith(".parquet"):
                checkpoints.append(parse_checkpoint_name(name))
        self.checkpoints: Sequence[int] = sorted(one for one in checkpoints if one is not None)
        self._names = commits
        ends = [parse_commit_name(one) for one in (min(commits, default=""), max(commits, default=""))]
        self._lowest, self.newest = (one or 0 for one in (ends if None not in ends else self._ends()))

    def _ends(self) -> tuple[int, int]:
        return min(self.commits, default=0), max(self.commits, default=0)

    @functools.cached_property
    def commits(self) -> frozenset[int]:
        """Versions of the commits."""
        return frozenset(version for version in map(parse_commit_name, self._names) if version is not None)

    @property
    def lowest(self) -> int:
        """Lowest version of a commit, which may be a single one below a missing one."""
        return self._lowest

    @property
    def oldest(self) -> int:
        """First version of the unbroken row that ends with the newest.

        A power cut while a log expires may leave single commits below it, since names are removed in no certain order.
        """
        if self.newest - self._lowest + 1 == len(self._names):
            return self._lowest
        oldest = self.newest
        while oldest - 1 in self.commits:
            oldest -= 1
        return oldest

    def names_below(self, version: int) -> list[str]:
        """Return the names of files of lower versions: commits, then checkpoints, in ascending order."""
        commits = [commit_name(one) for one in sorted(self.commits) if one < version]
        return commits + [checkpoint_name(one) for one in self.checkpoints if one < version]

    def spare_checkpoints(self, first: int) -> list[str]:
        """Return the names of checkpoints above version ``first`` that only save time.

        ``first`` is the version that the log begins with. Checkpoints of other writers, at versions of their own, stay.
        """
        known = [one for one in self.checkpoints if one > first and one % CHECKPOINT_EVERY == 0]
        sparse = {next(some) for _, some in itertools.groupby(known, lambda one: one // KEEP_ONE_IN)}
        return [checkpoint_name(one) for one in known[:-KEEP_NEWEST] if one not in sparse]
