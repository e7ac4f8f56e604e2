# SPDX-License-Identifier: Apache-2.0
"""Runs the bronze job on a test's zone, and holds its table against the zone's ledger."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from consumerd.config.pipeline import Bronze
from consumerd.spark.bronze import open_bronze, take_over
from consumerd.spark.bronze_table import BronzeTable
from consumerd.spark.job import Silent, Summary
from consumerd.spark.table.reading import read_table
from consumerd.wire.record_fields import NO_TIMESTAMP
from consumerd.wire.records import Record
from tests.support.landing_zone import Identity, LandingZone

Content = tuple[int | None, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]
"""A record's time in ms, key, value and headers."""


def run_bronze(
    spark: SparkSession,
    zones: Iterable[LandingZone],
    path: Path,
    *,
    commit_bytes: int = 1 << 30,
    target: BronzeTable | None = None,
) -> Summary:
    """Take over what is new in a zone's roots."""
    return take_over(
        lambda: spark,
        [zone.path for zone in zones],
        target or open_bronze(str(path), Bronze()),
        progress=Silent(),
        commit_bytes=commit_bytes,
    )


def read_bronze(spark: SparkSession, path: Path, version: int | None = None) -> list[tuple[Identity, Content]]:
    """Return a version's rows, each with its identity, in order; a row that is there twice is there twice."""
    return rows_of(read_table(spark, path, version))


def rows_of(frame: DataFrame) -> list[tuple[Identity, Content]]:
    """Return the rows of any frame that has bronze's columns, each with its identity, in order."""
    columns = ("topic", "incarnation", "partition", "offset", "index", "key", "value", "headers")
    rows = frame.selectExpr(*(f"`{name}`" for name in columns), "unix_millis(timestamp) AS at").collect()
    return sorted(
        (
            Identity(row["topic"], row["incarnation"], str(row["partition"]), row["offset"], row["index"]),
            (
                row["at"],
                _bytes(row["key"]),
                _bytes(row["value"]),
                tuple((header["key"], _bytes(header["value"])) for header in row["headers"]),
            ),
        )
        for row in rows
    )


def expected_rows(zone: LandingZone) -> list[tuple[Identity, Content]]:
    """Return what a zone's ledger has, each record once."""
    return sorted((identity, _content(record)) for identity, record in zone.expected.items())


def _content(record: Record) -> Content:
    at = None if record.timestamp == NO_TIMESTAMP else record.timestamp
    return at, record.key, record.value, tuple(record.headers)


def _bytes(value: bytearray | None) -> bytes | None:
    return None if value is None else bytes(value)
