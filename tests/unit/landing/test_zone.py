# SPDX-License-Identifier: Apache-2.0
"""The factory of landing zones makes what sinks make: read by a stranger, nothing is wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from consumerd.model import Gap, GapReason
from tests.support.landing_reader import read_landing
from tests.support.landing_zone import Identity, Kind, LandingZone

pytestmark = pytest.mark.records


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_zone_is_what_sinks_land(tmp_path: Path, kind: Kind) -> None:
    """Chains, gaps, seals and incarnations are sound, and the ledger holds each record once."""
    zone = LandingZone(tmp_path / "landing", kind)
    assert 4 == len(zone.land("orders", 0, 0, 100, files=4))
    zone.land("orders", 0, 100, 150, gaps=[Gap(120, 125, GapReason.COMPACTION)])
    zone.land("orders", 0, 160, 170)
    zone.land("orders", 0, 50, 80, request="again")
    zone.land("orders", 0, 70, 90, truncated=True)
    zone.land("orders", 0, 0, 5, czxid=9)

    landing = read_landing(zone.path)

    assert [] == landing.problems
    [partition] = landing.partitions.values()
    assert [(7, 0), (7, 0), (7, 1), (9, 0)] == [chain.incarnation for chain in partition.chains]
    landed = {
        Identity("orders", chain.log, "0", row.offset, row.index): (row.key, row.value, row.timestamp)
        for chain in partition.chains
        for file in chain.files
        for row in file.records
    }
    assert {key: (one.key, one.value, one.timestamp) for key, one in zone.expected.items()} == landed


def test_replica_fills_the_same_ledger(tmp_path: Path) -> None:
    """What two roots hold of one log is one set of records."""
    zone = LandingZone(tmp_path / "landing")
    zone.land("orders", 0, 0, 10)
    zone.replica("b").land("orders", 0, 5, 15)

    assert list(range(15)) == sorted(key.offset for key in zone.expected)
