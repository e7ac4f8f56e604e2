# SPDX-License-Identifier: Apache-2.0
"""Brokers of Kafka 0.7 through Spark: batches, streams, and tables of what daemons have landed of them.

``tests/component/spark/test_legacy_source.py`` has what needs no session: limits, divided ranges, brokers that go.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from consumerd.config.job import JobSettings
from consumerd.config.pipeline import Bronze
from consumerd.embedded.legacy.byte_log import DEFAULT_SETTINGS
from consumerd.spark import audit, read_table, register
from consumerd.spark.bronze import open_bronze, take_over
from consumerd.spark.job import Silent
from consumerd.wire.compression import Codec
from tests.support.daemon import Daemon, settings_for
from tests.support.embedded_legacy import LegacyThread, SentMessage
from tests.support.spark_frames import read_sink, run_available
from tests.support.zookeeper import run_server

pytestmark = pytest.mark.records

if TYPE_CHECKING:
    import pyarrow as pa

PARTITIONS = 3
IDENTITY = ("topic", "broker", "partition", "offset", "index", "next_offset", "value")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LegacyThread]:
    """Two brokers with three partitions of each topic, in small segments."""
    log = replace(DEFAULT_SETTINGS, segment_bytes=1000)
    with (
        run_server() as server,
        LegacyThread(
            tmp_path_factory.mktemp("brokers"), f"{server.connect_string}/legacy", num_partitions=PARTITIONS, log=log
        ) as running,
    ):
        yield running


def fill(cluster: LegacyThread, topic: str, count: int) -> list[SentMessage]:
    """Store messages in each partition of both brokers: twenty plain ones, twenty in a compressed one, and so on."""
    return [
        one
        for node in range(2)
        for partition in range(PARTITIONS)
        for first in range(0, count, 20)
        for one in cluster.send(
            topic,
            [f"{node}-{partition} {number}".encode() * (number % 5) for number in range(first, first + 20)],
            node=node,
            partition=partition,
            codec=Codec.GZIP if first % 40 else Codec.NONE,
        )
    ]


def load(reader: Any, cluster: LegacyThread, topic: str, **options: object) -> DataFrame:
    reader = reader.format("consumerd").option("zookeeper", cluster.zookeeper).option("subscribe", topic)
    for name, value in ({"includeBroker": "true", "startingOffsets": "earliest"} | options).items():
        reader = reader.option(name, str(value))
    frame: DataFrame = reader.load()
    return frame


def read(frame: DataFrame) -> list[tuple[Any, ...]]:
    """Return rows with their identities, in order; a row that is there twice is there twice."""
    rows = frame.select(*(f"`{name}`" for name in IDENTITY)).collect()
    return sorted((*row[:6], bytes(row["value"])) for row in rows)


def expected(sent: Iterable[SentMessage]) -> list[tuple[Any, ...]]:
    return sorted(
        (one.topic, *map(int, one.partition.split("-")), one.offset, one.index, one.next_offset, one.value)
        for one in sent
    )


def test_a_batch_is_what_was_produced(spark: SparkSession, cluster: LegacyThread) -> None:
    """Divided among more tasks than there are partitions; a filter on brokers is one on rows, too."""
    register(spark)
    sent = fill(cluster, "batch", 160)
    frame = load(spark.read, cluster, "batch", minPartitions=10)
    assert [(field.name, field.dataType.simpleString()) for field in frame.schema.fields[-3:]] == [
        ("broker", "int"),
        ("index", "int"),
        ("next_offset", "bigint"),
    ]
    assert frame.rdd.getNumPartitions() >= 10
    assert read(frame) == expected(sent)
    assert read(frame.where("broker = 1 and offset >= 500")) == [
        row for row in expected(sent) if row[1] == 1 and row[3] >= 500
    ]


def killing(frame: DataFrame, value: bytes) -> DataFrame:
    """Have the Python worker that meets a value die by SIGKILL."""

    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if value in batch.column("value").to_pylist():
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch

    return frame.mapInArrow(look, frame.schema)


def test_a_stream_that_is_killed_three_times_has_each_record_once(
    spark: SparkSession, cluster: LegacyThread, tmp_path: Path
) -> None:
    """Triggers end between messages, and are read again from offsets in bytes, as the checkpoint has them."""
    register(spark)
    sent = fill(cluster, "stream", 80)
    frame = load(spark.readStream, cluster, "stream", maxOffsetsPerTrigger=3000)
    for kill in range(3):
        with pytest.raises(StreamingQueryException):
            run_available(killing(frame, b"1-1 %d" % (21 + 20 * kill)), tmp_path)
    run_available(frame, tmp_path)
    assert read(read_sink(spark, tmp_path)) == expected(sent)


def land(member: Daemon, ends: dict[str, int]) -> None:
    """Run a daemon until it has committed all partitions up to their ends."""
    with member as daemon:
        daemon.wait(
            lambda: {each["partition"]: each["committed"] for each in daemon.status()["partitions"]} == ends,
            "all is committed",
        )
        assert daemon.terminate() == 0


def test_bronze_of_landed_files_is_what_was_produced_and_the_audit_proves_it(
    spark: SparkSession, cluster: LegacyThread, tmp_path: Path
) -> None:
    """A daemon lands them, is ended, and lands the rest; the committed positions count bytes."""
    landing = tmp_path / "landing"
    sink = {"type": "parquet", "path": str(landing), "roll_ms": 200}
    offsets = {"commit_interval_ms": 100}
    given = settings_for(cluster.zookeeper, "lake", topics=("landed",), sink=sink, offsets=offsets)
    sent: list[SentMessage] = []
    for name in ("one", "two"):
        sent += fill(cluster, "landed", 40)
        land(Daemon(tmp_path, name, given), {one.partition: one.next_offset for one in sent})

    table = tmp_path / "bronze"
    done = take_over(
        lambda: spark, [str(landing)], open_bronze(str(table), Bronze()), progress=Silent(), commit_bytes=1 << 30
    )
    assert done.findings == ()
    assert read(read_table(spark, table)) == expected(sent)

    pipeline = {"landing": {"roots": [str(landing)]}, "audit": {"proof": True}}
    parts = {"cluster": given["cluster"], "group": given["group"], "pipeline": pipeline}
    proven = audit.run(lambda: spark, JobSettings.model_validate(parts), Silent())
    assert proven.findings == ()
    counted = {"logs": 6, "records": len(sent), "records_read": len(sent), "missing_offsets": 0, "repeated_offsets": 0}
    assert counted.items() <= proven.numbers.items()
    assert [row[-2] for row in proven.tables[0].rows] == [0] * 6
