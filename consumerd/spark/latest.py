"""The latest value of each key of a decoded topic, as a table.

A record is later than another of its key if its topic was made later; then, in one partition, by incarnation, offset and index;
of two partitions (they share a key only where the number of partitions has changed, or the partitioner) by its timestamp.
Keys of a topic that was deleted and made again are gone with it. Records without a key are nobody's latest.

A null value deletes its key: the row stays, ``deleted``, since older records may still come in (another root, a chain found
late), and must not bring the key back. :func:`read_latest` leaves these rows out.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own documents call it so
from pyspark.sql.types import BooleanType, StructField, StructType

from consumerd.errors import ConfigError
from consumerd.spark.job import Sessions
from consumerd.spark.table.commit import Operation
from consumerd.spark.table.errors import VersionVacuumed
from consumerd.spark.table.files import WRITTEN, make_writer, parse_written
from consumerd.spark.table.parquet_files import FileSettings
from consumerd.spark.table.reading import read_files, read_increment, read_table
from consumerd.spark.table.transaction import Table, create_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOB: Final = "latest"
COLUMNS: Final = ("key", "value", "event_time", "timestamp", "incarnation", "broker", "partition", "offset", "index")


def read_latest(spark: SparkSession, path: str | Path) -> DataFrame:
    """Return the keys that are there with their latest values. Raises TableError, OSError."""
    frame = read_table(spark, path)
    return frame.where(~frame["deleted"]).drop("deleted")


def refresh(spark: Sessions, silver: Table, path: str | Path, *, topic: str) -> int:
    """Bring a topic's table of latest values up to its decoded table, and return how many rows it has.

    Raises ConfigError for keys that cannot be compared, TableError, TableConflict, OSError, and what Spark raises.
    """
    columns = _columns(silver, topic)
    table = create_table(path, name=f"latest of {topic}", schema=columns.json(), partition_by=())
    source = f"silver:{silver.record.id}"
    newest = silver.snapshot()
    base = table.snapshot()
    after = base.progress.get(source, 0)
    if newest.last_replace > after:
        after = 0
    if after == newest.version:
        return base.rows
    plan = f"latest:{silver.record.id}:{after}-{newest.version}"
    with table.begin(plan=plan, job=JOB, operation=Operation.REPLACE) as transaction:
        done = transaction.find_done()
        if done is not None:
            return done.rows
        session = spark()
        added = _select(_whole_or_new(session, silver, after, newest.version))
        before = read_files(session, table, transaction.base.files.values(), columns.json()) if after else None
        rows = added if before is None else before.unionByName(added, allowMissingColumns=True)
        transaction.remove(transaction.base.files)
        # columns may have been added, which the table learns by this commit
        write = make_writer(transaction, FileSettings(bounds=("partition", "offset")))
        written = find_latest(rows).select(*columns.names).mapInArrow(write, WRITTEN).collect()
        transaction.add(parse_written(row["file"]) for row in written)
        old = table.schema(transaction.base)
        commit = transaction.commit(
            progress={source: newest.version}, schema=None if columns.json() == old else columns.json()
        )
    return commit.rows


def find_latest(rows: DataFrame) -> DataFrame:
    """Return, of rows with a key, the latest of each."""
    parts = F.split(F.col("incarnation"), r"\.")
    numbered = rows.where(F.col("key").isNotNull()).select(
        "*",
        parts[0].cast("bigint").alias("_made"),
        F.coalesce(F.try_element_at(parts, F.lit(2)).cast("int"), F.lit(0)).alias("_cut"),
    )
    everything = F.struct(*(F.col(f"`{name}`") for name in numbered.columns)).alias("row")
    within = F.struct("_made", "_cut", "offset", "index")
    among = F.struct("row._made", "row.timestamp", "row._cut", "row.offset", "row.partition")
    of_partitions = numbered.groupBy("key", "broker", "partition").agg(F.max_by(everything, within).alias("row"))
    of_keys = of_partitions.groupBy("key").agg(F.max_by("row", among).alias("row")).select("row.*")
    made = numbered.agg(F.max("_made").alias("_newest"))
    return of_keys.join(F.broadcast(made), of_keys["_made"] == made["_newest"]).drop("_made", "_cut", "_newest")


def _whole_or_new(session: SparkSession, silver: Table, after: int, until: int) -> DataFrame:
    if after:
        with contextlib.suppress(VersionVacuumed):  # then all of it: a record that counts twice is no later than itself
            return read_increment(session, silver.path, after=after, until=until).frame
    return read_table(session, silver.path, until)


def _select(silver: DataFrame) -> DataFrame:
    return silver.select(*COLUMNS, F.col("value").isNull().alias("deleted"))


def _columns(silver: Table, topic: str) -> StructType:
    schema = StructType.fromJson(json.loads(silver.schema(silver.snapshot())))
    if "map<" in schema["key"].dataType.simpleString():
        raise ConfigError(
            f"pipeline.silver.topics.{topic}.latest: keys with a map in them cannot be compared; decode the key without it"
        )
    return StructType([*(schema[name] for name in COLUMNS), StructField("deleted", BooleanType())])
