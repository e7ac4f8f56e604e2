# SPDX-License-Identifier: Apache-2.0
"""Landed files and quarantined units of format 1, as the release before wrote them: ``tests/vectors/landed-1``."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from consumerd.model import Gap, GapReason
from tests.support.landing_zone import Kind, LandingZone

RECORDED = Path(__file__).parents[1] / "vectors" / "landed-1"
CLUSTER = "2-1700000000000"
GROUP = "lake"
CZXID = 7
END = 60
"""Where the newest chain of orders/0 ends; it is chain 2, of the log's first truncation."""


def copy_landed(kind: str, folder: Path) -> Path:
    """Copy a recorded landing folder to ``folder`` and return it.

    Each data file of JSON lines gets the modification time that its metadata name.
    """
    shutil.copytree(RECORDED / kind, folder)
    for meta in folder.rglob("_meta/*.json"):
        data = meta.parent.parent / f"{meta.name[:20]}.jsonl"
        modified_ns = json.loads(meta.read_bytes())["modified_ns"]
        os.utime(data, ns=(modified_ns, modified_ns))
    return folder


def upgraded_zone(kind: Kind, folder: Path) -> LandingZone:
    """Return a zone of format 1, copied to ``folder/upgraded``, whose ledger holds its records.

    What is landed in it next is of format 2.
    """
    # the calls of tests/vectors/landed-1/record.py, which runs in the checkout of format 1 and cannot import this
    landed_again = LandingZone(folder / "again", kind, GROUP, CLUSTER)
    landed_again.land("orders", 0, 0, 40, files=2, gaps=[Gap(10, 12, GapReason.COMPACTION)])
    landed_again.land("orders", 0, 30, 50, truncated=True)
    landed_again.land("orders", 0, 55, 60)
    landed_again.land("orders", 1, 5, 9, request="again")
    path = copy_landed(kind, folder / "upgraded")
    return LandingZone(path, kind, GROUP, CLUSTER, expected=landed_again.expected)
