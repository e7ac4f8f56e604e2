"""Values of a megabyte through bronze and silver, with the memory that jobs have by default."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from consumerd.wire.records import Record
from tests.support.landing_zone import FIRST_MS, LandingZone
from tests.support.record_batches import record

pytestmark = pytest.mark.records

ROWS = 7000
"""Fewer than a batch of Arrow has by default (10,000 rows), and 710 MB."""


def test_large_values_need_no_more_than_the_default_memory(tmp_path: Path) -> None:
    """Everything that reads a table reads it by bytes, not by thousands of rows."""

    def make(_place: object, _incarnation: object, offset: int) -> Record:
        # does not pack well, and is no text
        block = os.urandom(1 << 10)
        size = 100_000 if offset % 700 else 1_000_000
        return record(offset, (block * (size // len(block) + 1))[:size], key=b"k%d" % offset, timestamp=FIRST_MS)

    zone = LandingZone(tmp_path / "landing", make=make)
    for part in range(4):
        zone.land("orders", 0, part * ROWS // 4, (part + 1) * ROWS // 4)
        zone.expected.clear()
    config = tmp_path / "config.yaml"
    topics = {"orders": {"key": "utf8", "value": "raw"}}
    settings = {
        "pipeline": {
            "landing": {"roots": [str(zone.path)]},
            "path": str(tmp_path / "lake"),
            "silver": {"topics": topics},
        }
    }
    config.write_text(json.dumps(settings))

    for job, counted in (("bronze", "rows"), ("silver", "decoded")):
        ended = subprocess.run(
            [
                sys.executable,
                "-m",
                "consumerd.spark",
                job,
                "--config",
                config,
                "--json",
                "--quiet",
                "--master",
                "local[2]",
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        assert 0 == ended.returncode, ended.stdout[-3000:] + ended.stderr[-3000:]
        assert ROWS == json.loads(ended.stdout)[counted]
