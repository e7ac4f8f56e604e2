# SPDX-License-Identifier: Apache-2.0
"""Work of the Spark sessions, while they are measured.

Each function does its work once. It returns the number of rows and a proof: a summary of the rows that is equal for the
same work. Counting rows in files and tables that were written, and summarising them, is not part of the measured time.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow.parquet as pq

from bench.spark.cases import Work

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Proof = Sequence[Sequence[int | str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A piece of work for a session.

    Attributes:
        work: kind of work.
        folder: output folder, which does not exist yet.
        format: Spark's name of the data source, or the variant of the work.
        options: options of the data source, or of the work.
        source: folder of the input: a landing zone, or tables.
    """

    work: Work
    folder: str
    format: str = ""
    options: Mapping[str, str]
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """Result of a piece of work.

    Attributes:
        rows: number of rows.
        proof: summary of the rows, equal for the same work.
        began: monotonic time in seconds at its beginning.
        ended: monotonic time in seconds at its end.
    """

    rows: int
    proof: Proof
    began: float
    ended: float

    @classmethod
    def parse(cls, fields: Mapping[str, Any]) -> Done:
        """Return the result whose ``dataclasses.asdict`` a session has sent."""
        return cls(rows=fields["rows"], proof=fields["proof"], began=fields["began"], ended=fields["ended"])


def read_topic(spark: SparkSession, order: Order) -> Done:
    """Sum up the value lengths and hash the offsets and values of each partition."""
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    frame = spark.read.format(order.format).options(**order.options).load()
    sums = frame.groupBy("partition").agg(
        F.count(F.lit(1)), F.sum(F.length("value")), F.expr("bit_xor(xxhash64(offset, value))")
    )
    began = time.monotonic()
    rows = sums.collect()
    ended = time.monotonic()
    proof = sorted(tuple(int(value) for value in row) for row in rows)
    return Done(rows=sum(row[1] for row in proof), proof=proof, began=began, ended=ended)


def topic_to_parquet(spark: SparkSession, order: Order) -> Done:
    """Write a topic into Parquet files, with Spark's default settings."""
    frame = spark.read.format(order.format).options(**order.options).load()
    began = time.monotonic()
    frame.write.parquet(order.folder)
    ended = time.monotonic()
    return _written(order.folder, began, ended)


def stream_to_parquet(spark: SparkSession, order: Order) -> Done:
    """Stream a topic into Parquet files up to its current end, trigger by trigger."""
    frame = spark.readStream.format(order.format).options(**order.options).load()
    writer = frame.writeStream.format("parquet").option("checkpointLocation", f"{order.folder}-checkpoint")
    began = time.monotonic()
    writer.trigger(availableNow=True).start(order.folder).awaitTermination()
    ended = time.monotonic()
    return _written(order.folder, began, ended)


def landed_to_table(spark: SparkSession, order: Order) -> Done:
    """Load a landing zone with bronze, or copy its files (format ``copy``)."""
    return _copy(spark, order) if order.format == "copy" else _take_over(spark, order)


def _take_over(spark: SparkSession, order: Order) -> Done:
    from consumerd.config.pipeline import Bronze
    from consumerd.spark import bronze
    from consumerd.spark.job import Silent

    # versions up to 2026-11-22, which ``bench.spark.versions`` measures as well, call it open_target
    make = vars(bronze).get("open_bronze") or vars(bronze)["open_target"]
    began = time.monotonic()
    bronze.take_over(lambda: spark, [order.source], make(order.folder, Bronze()), progress=Silent())
    ended = time.monotonic()
    return _written(order.folder, began, ended)


def _copy(spark: SparkSession, order: Order) -> Done:
    frame: DataFrame = spark.read.parquet(order.source)
    began = time.monotonic()
    # bronze's default; Spark's own level is 3
    writer = frame.write.option("compression", "zstd").option("parquet.compression.codec.zstd.level", "1")
    writer.parquet(order.folder)
    ended = time.monotonic()
    return _written(order.folder, began, ended)


def refresh_latest(spark: SparkSession, order: Order) -> Done:
    """Bring a table of latest values up to date.

    ``format`` is the variant: ``refresh`` uses only the new rows, ``anew`` uses all rows, and ``prepare`` creates the
    input of both.
    """
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    from consumerd.spark.latest import read_latest, refresh
    from consumerd.spark.table.transaction import open_table

    source, made = Path(order.source, "silver"), Path(order.source, "latest")
    if order.format == "prepare":
        began = time.monotonic()
        _decode(spark, source, int(order.options["keys"]))
        refresh(lambda: spark, open_table(source), made, topic=_TOPIC)
        _decode(spark, source, int(order.options["keys"]), each=100)
        return Done(rows=0, proof=[], began=began, ended=time.monotonic())
    if order.format == "refresh":
        shutil.copytree(made, order.folder, copy_function=os.link)  # nothing changes a table's files in place
    began = time.monotonic()
    refresh(lambda: spark, open_table(source), order.folder, topic=_TOPIC)
    ended = time.monotonic()
    frame = read_latest(spark, order.folder)
    [row] = frame.select(F.count(F.lit(1)), F.expr("bit_xor(xxhash64(key, value, offset))")).collect()
    return Done(rows=row[0], proof=[[int(one) for one in row]], began=began, ended=ended)


_TOPIC: Final = "bench"


def _decode(spark: SparkSession, place: Path, keys: int, each: int = 1) -> None:
    """Commit a record of every ``each``-th key to a decoded table.

    The table is created if it does not exist.
    """
    from consumerd.spark.table.commit import Operation
    from consumerd.spark.table.files import write_frame
    from consumerd.spark.table.transaction import create_table

    first = 0 if each == 1 else keys
    frame = spark.range(0, keys, each).selectExpr(
        "concat('key-', hex(xxhash64(id))) AS key",
        f"named_struct('n', id + {first}, 'text', repeat(hex(id), 8)) AS value",
        f"timestamp_millis(1700000000000 + {first} + id) AS event_time",
        f"timestamp_millis(1700000000000 + {first} + id) AS timestamp",
        "'7' AS incarnation",
        "CAST(NULL AS INT) AS broker",
        "CAST(xxhash64(id) & 3 AS INT) AS partition",
        f"id + {first} AS offset",
        "0 AS index",
        f"timestamp_millis(1700000000000 + {first} + id) AS landed",
        "DATE'2026-11-22' AS day",
    )
    table = create_table(place, name=f"silver of {_TOPIC}", schema=frame.schema.json(), partition_by=("day",))
    with table.begin(plan=f"{first}-{keys}", job="silver", operation=Operation.APPEND) as transaction:
        transaction.add(write_frame(transaction, frame, bounds=("offset",)))
        transaction.commit()


def _written(folder: str, began: float, ended: float) -> Done:
    """Count the rows that were written, by the footers of the files.

    Files and folders whose names begin with ``_`` or ``.`` are logs, checkpoints and staging.
    """
    home = Path(folder)
    files = [
        path
        for path in home.rglob("*.parquet")
        if not any(part.startswith((".", "_")) for part in path.relative_to(home).parts)
    ]
    rows = sum(pq.read_metadata(path).num_rows for path in files)
    return Done(rows=rows, proof=[[rows]], began=began, ended=ended)


WORKS: Final[Mapping[Work, Callable[[SparkSession, Order], Done]]] = {
    Work.HASH: read_topic,
    Work.PARQUET: topic_to_parquet,
    Work.STREAM: stream_to_parquet,
    Work.LANDED: landed_to_table,
    Work.LATEST: refresh_latest,
}
