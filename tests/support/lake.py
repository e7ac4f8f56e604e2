# SPDX-License-Identifier: Apache-2.0
"""A small lake with every table of the pipeline, which others read: three runs of all jobs, with compactions and checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from consumerd.config.job import JobSettings
from consumerd.config.pipeline import Pipeline
from consumerd.model import Incarnation, TopicPartition
from consumerd.wire.records import Record
from tests.support.bronze import run_bronze
from tests.support.landing_zone import FIRST_MS, LandingZone
from tests.support.record_batches import record

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIELDS: Final = {
    "n": "bigint not null", "at": "epoch_ms", "price": "decimal(12,2)", "tags": "array<string>", "local": "timestamp_ntz",
    "by_name": "map<string,int>",
}  # fmt: skip
"""Columns of each kind that is written apart: the zone-less time needs a later version of Delta's protocol."""

TABLES: Final = ("bronze", "silver/orders", "quarantine", "latest/orders", "stats")
"""The tables, by their folders below the lake's."""


_DAY_MS: Final = 86_400_000


def make_order(partition: TopicPartition, incarnation: Incarnation, offset: int) -> Record:
    """Return an order; of every ten one is no JSON, one has a bad key, one is late and one deletes its key."""
    at = FIRST_MS + offset * 1000
    kind = offset % 10
    value: bytes | None = json.dumps({"n": offset, "at": at - (_DAY_MS if kind == 3 else 0)}).encode()
    if kind == 1:
        value = b"{"
    if kind == 4:
        value = None
    key = b"\xff" if kind == 2 else b"k%d" % (offset % 20)
    return record(offset, value, key=key, timestamp=at)


def lake_settings(lake: Path) -> JobSettings:
    """Return the settings of all jobs over a lake."""
    topics = {
        "orders": {
            "key": "utf8", "value": {"format": "json", "fields": FIELDS}, "event_time": "value.at", "late_ms": 3_600_000,
            "latest": True,
        }
    }  # fmt: skip
    return JobSettings(pipeline=Pipeline.model_validate({"path": str(lake), "silver": {"topics": topics}}))


def fill_lake(spark: SparkSession, zone: LandingZone, lake: Path, turn: int) -> None:
    """Land some records, and run bronze, silver (with ``latest``) and stats."""
    from consumerd.spark import silver, stats
    from consumerd.spark.job import Silent

    given = lake_settings(lake)
    zone.land("orders", 0, turn * 60, turn * 60 + 60, files=2)
    zone.land("pay:ments 100%", turn, 0, 5)
    run_bronze(spark, [zone], lake / "bronze")
    silver.run(lambda: spark, given, Silent())
    stats.run(lambda: spark, given, Silent())


def compact_lake(spark: SparkSession, lake: Path) -> None:
    """Compact every table of a lake."""
    from consumerd.spark.compact import compact_table
    from consumerd.spark.job import Silent
    from consumerd.spark.table.parquet_files import FileSettings
    from consumerd.spark.table.transaction import open_table

    for name in TABLES:
        table = open_table(lake / name)
        compact_table(lambda: spark, table, target_bytes=1 << 20, progress=Silent(), settings=FileSettings())


def make_lake(spark: SparkSession, folder: Path) -> Path:
    """Make it below ``folder``, and return its own folder."""
    from consumerd.spark.table import log as table_log

    lake = folder / "lake"
    zone = LandingZone(folder / "landing", make=make_order)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_log, "CHECKPOINT_EVERY", 2)
        for turn in range(3):
            fill_lake(spark, zone, lake, turn)
            if turn == 1:
                compact_lake(spark, lake)
    return lake
