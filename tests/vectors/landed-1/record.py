# SPDX-License-Identifier: Apache-2.0
"""Records the folders beside this file: landed files and quarantined units of format 1.

Run it at commit fa899b8, the last one that wrote format 1; later ones write format 2:

    git worktree add /tmp/format-1 fa899b8 && cd /tmp/format-1
    PYTHONPATH=. python <this checkout>/tests/vectors/landed-1/record.py
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from consumerd.model import Gap, GapReason, Incarnation, TopicPartition
from consumerd.sinks.base import QuarantinedUnit
from consumerd.sinks.quarantine import FileQuarantine
from tests.support.claims import StubClaim
from tests.support.landing_zone import LandingZone

HERE = Path(__file__).parent


def main() -> None:
    """Record one landing folder of each sink, and a quarantine."""
    for kind in ("parquet", "jsonl"):
        shutil.rmtree(HERE / kind, ignore_errors=True)
        zone = LandingZone(HERE / kind, kind)  # type: ignore[arg-type]
        zone.land("orders", 0, 0, 40, files=2, gaps=[Gap(10, 12, GapReason.COMPACTION)])
        zone.land("orders", 0, 30, 50, truncated=True)
        zone.land("orders", 0, 55, 60)
        zone.land("orders", 1, 5, 9, request="again")
    shutil.rmtree(HERE / "quarantine", ignore_errors=True)
    asyncio.run(_quarantine())


async def _quarantine() -> None:
    partition, incarnation = TopicPartition.modern("orders", 0), Incarnation(7, 1)
    quarantine = FileQuarantine(
        HERE / "quarantine",
        group="lake",
        cluster_id="2-1700000000000",
        writer_id="member",
        wall_ms=lambda: 1_700_000_000_000,
    )
    unit = QuarantinedUnit(
        partition=partition,
        incarnation=incarnation,
        offset=50,
        next_offset=52,
        index=0,
        cause="corrupt",
        reason="CRC",
        raw=b"broken",
        size=6,
    )
    await quarantine.put(unit, StubClaim(partition, incarnation=incarnation))
    await quarantine.close()


if __name__ == "__main__":
    main()
