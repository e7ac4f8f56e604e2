# SPDX-License-Identifier: Apache-2.0
"""An audit's proof: Spark's tasks read every landed record, and find what names and footers cannot show."""

from __future__ import annotations

from pathlib import Path

import pyarrow.compute as pc
from pyspark.sql import SparkSession

from consumerd.config.job import JobSettings
from consumerd.model import Gap, GapReason
from consumerd.spark.audit import run
from consumerd.spark.job import Silent, Summary
from tests.support.landing_zone import LandingZone, flip_bytes, rewrite_lines, rewrite_parquet


def prove(spark: SparkSession, *zones: LandingZone) -> Summary:
    roots = [zone.path for zone in zones]
    settings = JobSettings.model_validate({"pipeline": {"landing": {"roots": roots}, "audit": {"proof": True}}})
    return run(lambda: spark, settings, Silent())


def test_sound_zone_is_proven(spark: SparkSession, zone: LandingZone) -> None:
    """Both formats, gaps, seals, several incarnations and roots: all is as it says."""
    zone.land("orders", 0, 0, 300, files=5, gaps=[Gap(10, 20, GapReason.RETENTION)])
    zone.land("orders", 0, 100, 150, request="again")
    other = zone.replica("b")
    other.kind = "jsonl"
    other.land("orders", 0, 250, 400)
    zone.land("orders", 0, 140, 160, truncated=True)

    summary = prove(spark, zone, other)

    assert () == summary.findings
    assert {"depth": "data", "records": 510, "records_read": 510}.items() <= summary.numbers.items()


def test_what_only_the_data_show(spark: SparkSession, zone: LandingZone, tmp_path: Path) -> None:
    """A flipped byte, a lost and a repeated record: each is named with its file."""
    flipped, lost, repeated = zone.land("orders", 0, 0, 900, files=3)
    flip_bytes(flipped, 300, 1)
    rewrite_parquet(lost, lambda table: table.filter(pc.not_equal(table["offset"], 444)))
    lines = LandingZone(tmp_path / "lines", "jsonl", expected=zone.expected)
    [doubled] = lines.land("clicks", 2, 0, 50)
    rewrite_lines(doubled, lambda rows: [*rows[:7], rows[6], *rows[7:]])
    assert repeated.exists()

    findings = prove(spark, zone, lines).findings

    assert any(finding.startswith(f"file damaged: {flipped}: cannot be read") for finding in findings)
    assert any(finding.startswith(f"record missing: {lost}: has no record of [444, 445)") for finding in findings)
    assert any(
        finding.startswith(f"record twice: {doubled}: holds records of [6, 7) more than once") for finding in findings
    )
    assert {str(flipped), str(lost), str(doubled)} == {finding.split(": ")[1] for finding in findings}
