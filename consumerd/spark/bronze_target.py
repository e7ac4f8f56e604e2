"""What a table of bronze is: its columns, and what the job asks of whatever keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

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

from consumerd.spark.job import Sessions
from consumerd.spark.landing.coverage import Coverage
from consumerd.spark.landing.plan import LandingPlan

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
"""Columns of bronze. ``landed`` is when the file was written by which a record came; ``broker`` is of 0.7's partitions only;
``timestamp_type`` is null where the landed file does not say (JSON lines).
"""


class FilesDamaged(Exception):
    """Tasks have met files that are not what their metadata say; nothing was committed. ``reasons`` by path."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        super().__init__(", ".join(reasons))
        self.reasons = reasons


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What a commit has taken over."""

    version: int
    rows: int
    files: int


class Target(Protocol):
    """A table that bronze is kept in."""

    @property
    def place(self) -> str:
        """Where it is."""

    def recover(self, spark: Sessions) -> None:
        """Bring to an end what an earlier run has begun, where that is needed before :meth:`covered` is asked."""

    def covered(self) -> Coverage:
        """Return what it holds already. Raises ConsumerdError, OSError."""

    def take(self, spark: Sessions, plan: LandingPlan) -> Taken:
        """Carry out a plan made by what :meth:`covered` said last, in one commit.

        Raises FilesDamaged, TableConflict, and what Spark raises where a task fails.
        """
