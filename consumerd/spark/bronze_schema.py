# SPDX-License-Identifier: Apache-2.0
"""Columns of bronze, and the results of its commits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DateType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

JOB: Final = "bronze"
BOUNDS: Final = ("incarnation", "partition", "offset", "timestamp", "landed")

SCHEMA: Final = StructType(
    [
        StructField("incarnation", StringType()),
        StructField("broker", IntegerType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("next_offset", LongType()),
        StructField("index", IntegerType()),
        StructField("timestamp", TimestampType()),
        StructField("timestamp_type", IntegerType()),
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField(
            "headers", ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
        ),
        StructField("landed", TimestampType()),
        StructField("topic", StringType()),
        StructField("day", DateType()),
    ]
)
"""Columns of bronze.

``landed`` is the time when the record's landed file was written. ``broker`` is null except for partitions of Kafka 0.7.
``timestamp_type`` is null for records from JSON lines of releases that did not write it.
"""


class FilesDamaged(Exception):
    """Files contradict their metadata, so nothing was committed. ``reasons`` are by path."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        super().__init__(", ".join(reasons))
        self.reasons = reasons


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedRows:
    """Result of one commit: its version, and the rows and landed files taken."""

    version: int
    rows: int
    files: int
