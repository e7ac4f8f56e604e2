# SPDX-License-Identifier: Apache-2.0
"""A run of all jobs in a Spark session of another time zone.

The process's own zone is set by ``TZ``.

``python -m tests.support.spark_time_zone ZONE FOLDER`` lands records in two steps, and runs bronze, silver (with the
latest values) and stats after each, then compact. The tables are left in ``FOLDER/lake``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

from consumerd.config.job import JobSettings
from consumerd.model import Incarnation, TopicPartition
from consumerd.wire.records import Record
from tests.support.landing_zone import LandingZone
from tests.support.record_batches import record

FIRST_MS: Final = 1_762_034_400_000
"""2025-11-01T22:00Z: New York's clocks go back an hour at 2025-11-02T06:00Z."""
STEP_MS: Final = 600_000
RECORDS: Final = 60

_FIELDS: Final = {"at": "epoch_ms", "text": "timestamp", "local": "timestamp_ntz", "day": "date"}


def make(_partition: TopicPartition, _incarnation: Incarnation, offset: int) -> Record:
    """Return a record that tells its time in four ways."""
    at = FIRST_MS + offset * STEP_MS
    value = {"at": at, "text": "2025-11-02T01:30:00-05:00", "local": "2025-11-02T01:30:00", "day": "2025-11-02"}
    return record(offset, json.dumps(value).encode(), key=b"k%d" % offset, timestamp=at)


def run_jobs(zone: str, folder: Path) -> None:
    """Run all jobs that write times."""
    from consumerd.spark import silver, stats
    from consumerd.spark.compact import compact_table
    from consumerd.spark.job import Silent
    from consumerd.spark.session import local_session, stop_session
    from consumerd.spark.table.transaction import open_table
    from tests.support.bronze import run_bronze

    settings = {"spark.sql.session.timeZone": zone, "spark.sql.shuffle.partitions": "2"}
    spark = local_session("time zone", master="local[2]", settings=settings)
    assert spark.conf.get("spark.sql.session.timeZone") == zone
    landing, lake = LandingZone(folder / "landing", make=make), folder / "lake"
    topic = {"key": "utf8", "value": {"format": "json", "fields": _FIELDS}, "event_time": "value.at", "latest": True}
    pipeline = {"path": str(lake), "silver": {"topics": {"orders": topic}}}
    given = JobSettings.model_validate({"pipeline": pipeline})
    for start in (0, RECORDS // 2):
        landing.land("orders", 0, start, start + RECORDS // 2)
        run_bronze(spark, [landing], lake / "bronze")
        silver.run(lambda: spark, given, Silent())
        stats.run(lambda: spark, given, Silent())
    for name in ("bronze", "silver/orders", "latest/orders", "stats"):
        compact_table(lambda: spark, open_table(lake / name), target_bytes=1 << 20, progress=Silent())
    stop_session(spark)


if __name__ == "__main__":
    run_jobs(sys.argv[1], Path(sys.argv[2]))
