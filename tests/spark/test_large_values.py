# SPDX-License-Identifier: Apache-2.0
"""Values of a megabyte through all jobs, with the memory that jobs have by default."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from consumerd.spark.table.transaction import open_table
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
    config = tmp_path / "config.yaml"
    topics = {"orders": {"key": "utf8", "value": "raw", "latest": True}}
    settings = {
        "pipeline": {
            "landing": {"roots": [str(zone.path)]},
            "path": str(tmp_path / "lake"),
            "silver": {"topics": topics, "commit_bytes": 1},
            "compact": {"min_files": 2},
        }
    }
    config.write_text(json.dumps(settings))

    for half in range(2):
        for part in (0, 1):
            begin = half * ROWS // 2 + part * ROWS // 4
            zone.land("orders", 0, begin, begin + ROWS // 4)
            zone.expected.clear()
        run("bronze", config, {"rows": ROWS // 2})
    # silver in two commits, and the latest values of all keys
    run("silver", config, {"decoded": ROWS, "quarantined": 0})
    for path in (tmp_path / "lake" / "bronze").glob("topic=*/day=*/*.parquet"):
        write_as_one_row_group(path)
    run("stats", config, {"records": ROWS})
    tables = [open_table(tmp_path / "lake" / name) for name in ("bronze", "silver/orders")]
    assert [2, 2] == [len(table.snapshot().files) for table in tables]
    run("compact", config, {})
    assert [1, 1] == [len(table.snapshot().files) for table in tables]


def write_as_one_row_group(path: Path) -> None:
    """Be another writer, who does not go by bytes as ours does."""
    with pq.ParquetFile(path) as parquet:
        rows = parquet.read()
    pq.write_table(rows, path, compression="zstd", use_dictionary=False, row_group_size=len(rows))


def run(job: str, config: Path, expected: dict[str, int]) -> None:
    """Run a job in a process of its own, and hold its numbers against the expected ones."""
    command = [sys.executable, "-m", "consumerd.spark", job, "--config", str(config)]
    ended = subprocess.run(
        [*command, "--json", "--quiet", "--master", "local[2]"], capture_output=True, text=True, check=False
    )
    assert 0 == ended.returncode, f"{job}: {ended.stdout[-3000:]}{ended.stderr[-3000:]}"
    numbers = json.loads(ended.stdout)
    assert {name: numbers[name] for name in expected} == expected
