"""Which record of a key is its latest, where the log was truncated or partitions share a key."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from consumerd.spark.latest import find_latest

pytestmark = pytest.mark.records

COLUMNS = (
    "key string, value string, event_time timestamp, timestamp bigint, incarnation string, broker int, partition int, "
    "offset bigint, index int, deleted boolean"
)


def _row(key: str, value: str, incarnation: str, partition: int, offset: int, at: int) -> tuple[object, ...]:
    return key, value, None, at, incarnation, None, partition, offset, 0, False


def test_a_record_after_a_truncation_is_later_than_any_before(spark: SparkSession) -> None:
    """An unclean election gives offsets once more: the lost record has the higher offset, and maybe the later time."""
    rows = [
        _row("lost", "old", "5", 0, 100, 10),
        _row("lost", "new", "5.1", 0, 50, 20),
        _row("lost, later clock", "old", "5", 0, 101, 99),
        _row("lost, later clock", "new", "5.1", 0, 51, 1),
        _row("tenth truncation", "old", "5.9", 0, 102, 10),
        _row("tenth truncation", "new", "5.10", 0, 52, 10),
        _row("two partitions at one time", "old", "5", 0, 103, 10),
        _row("two partitions at one time", "new", "5.1", 1, 53, 10),
        _row("two partitions", "old", "5.1", 0, 104, 10),
        _row("two partitions", "new", "5", 1, 54, 11),
    ]
    found = {row["key"]: row["value"] for row in find_latest(spark.createDataFrame(rows, COLUMNS)).collect()}

    assert dict.fromkeys({row[0] for row in rows}, "new") == found
