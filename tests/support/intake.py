# SPDX-License-Identifier: Apache-2.0
"""Plans what a table takes over from a landing zone, in one call: scan, footers of new files, plan. Blocks."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from consumerd.landing.coverage import NOTHING, Coverage
from consumerd.landing.footers import read_new
from consumerd.landing.plan import LandingPlan, plan_landing
from consumerd.landing.scan import scan_landing


def plan_intake(
    paths: Sequence[str | Path], *, covered: Coverage = NOTHING, topics: Collection[str] | None = None
) -> LandingPlan:
    """Plan what of the zone below ``paths`` is not in a table that covers ``covered`` yet.

    Raises ConfigError (see ``scan.scan_landing``) and OSError.
    """
    return plan_landing(read_new(scan_landing(paths, topics=topics), covered), covered)
