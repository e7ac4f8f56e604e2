# SPDX-License-Identifier: Apache-2.0
"""Times and days of all tables in a time zone other than UTC."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from consumerd.spark.table.reading import read_table
from consumerd.spark.table.transaction import open_table
from tests.support.spark_time_zone import FIRST_MS, RECORDS, STEP_MS

pytestmark = pytest.mark.records

HOUR_MS = 3_600_000


def test_tables_do_not_depend_on_the_zone_of_session_and_process(spark: SparkSession, tmp_path: Path) -> None:
    """Over a change to winter time, and over midnight in UTC."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.support.spark_time_zone", "America/New_York", str(tmp_path)],
        env={**os.environ, "TZ": "America/New_York", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-3000:]
    lake = tmp_path / "lake"
    moments = [FIRST_MS + offset * STEP_MS for offset in range(RECORDS)]
    days = [datetime.fromtimestamp(at / 1000, UTC).date().isoformat() for at in moments]

    def read(name: str, *columns: str) -> list[tuple[object, ...]]:
        frame = read_table(spark, lake / name).selectExpr(*columns)
        return sorted(tuple(row) for row in frame.collect())

    decoded = ("value.text", "value.at", "event_time", "timestamp")
    told = ("offset", *(f"unix_millis({name})" for name in decoded), "string(value.local)", "string(value.day)")
    texts = 1_762_065_000_000, "2025-11-02 01:30:00", "2025-11-02"  # 06:30Z
    expected = [(offset, texts[0], at, at, at, *texts[1:]) for offset, at in enumerate(moments)]
    assert read("silver/orders", *told) == expected
    assert read("latest/orders", *told[:4], *told[5:]) == [(*row[:4], *row[5:]) for row in expected]
    for name in ("bronze", "silver/orders"):
        found = read(name, "offset", "unix_millis(timestamp)", "string(day)")
        assert found == [*zip(range(RECORDS), moments, days, strict=True)]
        bounds = [file.bounds["timestamp"] for file in open_table(lake / name).snapshot().files.values()]
        assert min(int(one.low) for one in bounds) == moments[0] * 1000
        assert max(int(one.high) for one in bounds) == moments[-1] * 1000
    hours = Counter(at // HOUR_MS * HOUR_MS for at in moments)
    assert read("stats", "unix_millis(hour)", "records") == sorted(hours.items())
