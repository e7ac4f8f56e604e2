# SPDX-License-Identifier: Apache-2.0
"""Landed files that bronze has not taken over, for its metrics.

They are those of a plan made from the table's present coverage: files with rows to take, and damaged ones. Reads all
names, and the metadata of files that are not taken. Needs no Spark.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from consumerd.landing.coverage import Coverage
from consumerd.landing.footers import read_new
from consumerd.landing.plan import plan_landing
from consumerd.landing.ranges import EMPTY
from consumerd.landing.scan import scan_landing


@dataclass(frozen=True, slots=True, kw_only=True)
class LandingLag:
    """Number and age of the files that are not taken over.

    ``oldest_ms`` is when the oldest was landed, in ms since the epoch.
    """

    files: int
    oldest_ms: int | None = None


def find_landing_lag(
    roots: Sequence[str | Path], covered: Coverage, *, topics: Collection[str] | None = None
) -> LandingLag:
    """Compare a table's coverage with the landed files. Raises ConfigError, OSError."""
    landing = read_new(scan_landing(roots, topics=topics), covered)
    plan = plan_landing(landing, covered)
    planned = {one.path for one in plan.files}
    times = [
        file.landed_ms
        for chain in landing.chains
        for file in chain.files
        if file.landed_ms is not None
        and (
            file.path in planned or (file.metadata is None and file.position not in covered.taken.get(chain.ref, EMPTY))
        )
    ]
    return LandingLag(files=len(plan.files) + len(plan.damaged), oldest_ms=min(times, default=None))
