# SPDX-License-Identifier: Apache-2.0
"""Streams from a broker: every offset once in the sink, whatever dies, and all that is new is found."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from consumerd.spark import append_batches, read_table, register
from consumerd.spark.table.transaction import open_table
from consumerd.wire.apikeys import ApiKey
from tests.support.embedded import EmbeddedThread
from tests.support.landing_check import Place
from tests.support.spark_frames import read_sink, read_triggers, run_available
from tests.support.topic_nodes import connected
from tests.support.waiting import wait_until
from tests.support.zookeeper import run_server

pytestmark = pytest.mark.records

if TYPE_CHECKING:
    import pyarrow as pa


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedThread]:
    with (
        run_server() as zookeeper,
        EmbeddedThread(tmp_path_factory.mktemp("broker"), f"{zookeeper.connect_string}/streaming") as running,
    ):
        yield running


@pytest.fixture
def topic(broker: EmbeddedThread, request: pytest.FixtureRequest) -> str:
    """A topic of this test with two partitions."""
    name = request.node.name.removeprefix("test_")[:60]
    broker.create_topic(name, 2)
    return name


def _fill(broker: EmbeddedThread, topic: str, count: int, partitions: int = 2) -> None:
    """Write so many records to each partition, in some hundred batches."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "acks": "all", "batch.num.messages": 20})
    for number in range(count):
        for partition in range(partitions):
            producer.produce(topic, f"{partition}-{number}".encode(), partition=partition)
    assert producer.flush(30) == 0


def _read(spark: SparkSession, broker: EmbeddedThread, **options: object) -> DataFrame:
    register(spark)
    given = {"kafka.bootstrap.servers": broker.bootstrap, "startingOffsets": "earliest"} | options
    reader = spark.readStream.format("consumerd")
    for name, value in given.items():
        reader = reader.option(name, str(value))
    return reader.load()


def _sunk(spark: SparkSession, folder: Path) -> Counter[Place]:
    rows = read_sink(spark, folder).select("topic", "partition", "offset").collect()
    return Counter((row.topic, row.partition, row.offset) for row in rows)


def _all(topic: str, *counts: int) -> Counter[Place]:
    return Counter((topic, partition, offset) for partition, count in enumerate(counts) for offset in range(count))


def _killing(frame: DataFrame, at: int) -> DataFrame:
    """Have the Python worker die by SIGKILL that meets an offset of partition 0, unless it has died of it before."""

    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = zip(batch.column("partition").to_pylist(), batch.column("offset").to_pylist(), strict=True)
            if (0, at) in rows:
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch

    return frame.mapInArrow(look, frame.schema)


def test_killed_in_the_middle_of_triggers_each_offset_is_sunk_once(
    spark: SparkSession, broker: EmbeddedThread, topic: str, tmp_path: Path
) -> None:
    """The checkpoint and the offsets of a trigger are all that a query has after its end.

    ``tests/interop/test_spark_streaming.py`` kills all of it, ten times; this is what can be had within one session.
    """
    _fill(broker, topic, 400)
    frame = _read(spark, broker, subscribe=topic, maxOffsetsPerTrigger=250)
    for kill in range(3):
        with pytest.raises(StreamingQueryException):
            run_available(_killing(frame, 60 + 130 * kill), tmp_path)
    run_available(frame, tmp_path)

    assert _all(topic, 400, 400) == _sunk(spark, tmp_path)


def _append(frame: DataFrame, append: Callable[[DataFrame, int], None], folder: Path) -> None:
    """Give each micro-batch to a function, from the checkpoint on, until there is nothing new."""
    writer = frame.writeStream.foreachBatch(append).option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(300)
    finally:
        query.stop()


def test_batches_are_in_a_table_once_though_spark_repeats_them(
    spark: SparkSession, broker: EmbeddedThread, topic: str, tmp_path: Path
) -> None:
    """The example of docs/spark.md: a query dies before a commit, right behind one, and is begun again each time."""
    _fill(broker, topic, 100)
    frame = _read(spark, broker, subscribe=topic, maxOffsetsPerTrigger=60).select("topic", "partition", "offset")
    append = append_batches(tmp_path / "lake", name="raw", partition_by=["topic"], bounds=["offset"])

    def dying(at: int, *, behind: bool) -> Callable[[DataFrame, int], None]:
        def run(batch: DataFrame, batch_id: int) -> None:
            if batch_id != at or behind:
                append(batch, batch_id)
            if batch_id == at:
                raise ZeroDivisionError

        return run

    for at, behind in ((0, True), (1, False), (2, True)):
        with pytest.raises(StreamingQueryException):
            _append(frame, dying(at, behind=behind), tmp_path)
    _append(frame, append, tmp_path)
    rows = read_table(spark, tmp_path / "lake").select("topic", "partition", "offset").collect()

    assert _all(topic, 100, 100) == Counter(map(tuple, rows))
    plans = [commit.plan for commit in open_table(tmp_path / "lake").log.read_after(0)]
    assert len(plans) == len(set(plans)) > 3


def test_a_query_goes_on_where_its_checkpoint_is(
    spark: SparkSession, broker: EmbeddedThread, topic: str, tmp_path: Path
) -> None:
    """With the offsets that Spark's own source writes, so that a query may change its format and keep its place."""
    _fill(broker, topic, 30)
    frame = _read(spark, broker, subscribe=topic, maxRowsPerTrigger=40)
    run_available(frame, tmp_path)
    first = read_triggers(tmp_path)
    _fill(broker, topic, 5)
    run_available(frame, tmp_path)

    assert [{topic: {"0": one, "1": one}} for one in (0, 20, 30)] == first
    assert {topic: {"0": 35, "1": 35}} == read_triggers(tmp_path)[-1]
    assert _all(topic, 35, 35) == _sunk(spark, tmp_path)


def test_latest_stays_where_it_was_when_the_first_rows_are_lost_with_their_query(
    spark: SparkSession, broker: EmbeddedThread, topic: str, tmp_path: Path
) -> None:
    """Asked for again after the crash, latest would lie behind the records that the dead query was about to read."""
    _fill(broker, topic, 3)
    frame = _read(spark, broker, subscribe=topic, startingOffsets="latest")
    run_available(frame, tmp_path)
    _fill(broker, topic, 4)
    with pytest.raises(StreamingQueryException):
        run_available(_killing(frame, 5), tmp_path)
    _fill(broker, topic, 2)
    run_available(frame, tmp_path)

    assert _all(topic, 9, 9) - _all(topic, 3, 3) == _sunk(spark, tmp_path)


def test_new_topics_and_partitions_are_read_from_their_beginning(
    spark: SparkSession, broker: EmbeddedThread, tmp_path: Path
) -> None:
    """Even where the query began with latest: nothing of them can have been there before."""
    broker.create_topic("pattern-a", 1)
    _fill(broker, "pattern-a", 3, partitions=1)
    frame = _read(spark, broker, subscribePattern="pattern-.*", startingOffsets="latest")
    run_available(frame, tmp_path)
    broker.create_topic("pattern-b", 2)
    _fill(broker, "pattern-b", 7)
    _fill(broker, "pattern-a", 1, partitions=1)
    run_available(frame, tmp_path)
    run_available(frame, tmp_path)

    assert _all("pattern-b", 7, 7) + Counter([("pattern-a", 0, 3)]) == _sunk(spark, tmp_path)


def test_a_broker_that_goes_away_in_the_middle_of_a_trigger_is_waited_for(
    spark: SparkSession, broker: EmbeddedThread, topic: str, tmp_path: Path
) -> None:
    """Its connections break half-way through an answer; the tasks ask again from where they were."""
    _fill(broker, topic, 1500)
    cut = broker.arm(lambda faults: faults.close_at(ApiKey.FETCH, 5000, times=3))
    done: list[int] = []

    def note(frame: DataFrame, number: int) -> None:
        done.append(frame.count())
        if len(done) == 2:
            broker.restart()

    query = (
        _read(spark, broker, subscribe=topic, maxOffsetsPerTrigger=1000, **{"kafka.max.partition.fetch.bytes": 20_000})
        .writeStream.foreachBatch(note)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(300)
    finally:
        query.stop()

    assert [0, 1000, 1000, 1000] == done
    assert cut.hits == 3


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"subscribe": "not-there"}, "not-there"),
        ({"subscribe": "x", "endingOffsets": "latest"}, "endingOffsets: a stream has no end"),
        ({"subscribe": "x", "maxOffsetPerTrigger": 5}, "did you mean maxOffsetsPerTrigger?"),
    ],
)
def test_what_cannot_be_read_is_said_by_name(
    spark: SparkSession, broker: EmbeddedThread, options: dict[str, object], said: str, tmp_path: Path
) -> None:
    """On the driver, by the query's error: nobody looks for it in an executor's log."""
    with pytest.raises(Exception) as refused:  # noqa: PT011 - Spark wraps it in several, by where it is found
        run_available(_read(spark, broker, **options), tmp_path)

    assert said in str(refused.value)


def test_offsets_that_are_gone_end_the_query_or_are_passed_over(
    spark: SparkSession, broker: EmbeddedThread, topic: str, tmp_path: Path
) -> None:
    """Named, with the option that allows it; a log that was made again has less than what was read of the old one."""
    _fill(broker, topic, 10)
    beyond = json.dumps({topic: {"0": 50, "1": 0}})
    with pytest.raises(StreamingQueryException) as lost:
        run_available(_read(spark, broker, subscribe=topic, startingOffsets=beyond), tmp_path)
    assert f"{topic}/0: offset 50 is outside the broker's log [0, 10]" in str(lost.value)
    assert "failOnDataLoss" in str(lost.value)

    run_available(_read(spark, broker, subscribe=topic, startingOffsets=beyond, failOnDataLoss="false"), tmp_path)
    _fill(broker, topic, 2)
    run_available(_read(spark, broker, subscribe=topic, failOnDataLoss="false"), tmp_path)

    assert _all(topic, 12, 12) - _all(topic, 10, 0) == _sunk(spark, tmp_path)


def test_a_topic_that_was_made_again_is_read_whole_however_far_it_has_grown(
    spark: SparkSession, broker: EmbeddedThread, topic: str, tmp_path: Path
) -> None:
    """Known by the topic's node in ZooKeeper: the checkpoint's offset is well within the new log."""
    options = {"zookeeper": broker.zookeeper, "subscribe": topic}
    _fill(broker, topic, 50)
    run_available(_read(spark, broker, **options), tmp_path)

    broker.do(lambda cluster: cluster.broker.topics.delete(topic))
    with connected(broker.zookeeper) as registry:
        wait_until(lambda: registry.exists(f"/brokers/topics/{topic}") is None, "the topic to be gone", 30)
    broker.create_topic(topic, 2)
    _fill(broker, topic, 120)
    with pytest.raises(StreamingQueryException, match="was deleted and re-created since it was read up to 50"):
        run_available(_read(spark, broker, **options), tmp_path)
    run_available(_read(spark, broker, **options, failOnDataLoss="false"), tmp_path)
    run_available(_read(spark, broker, **options), tmp_path)

    expected = Counter(
        {(topic, partition, offset): 2 if offset < 50 else 1 for partition in (0, 1) for offset in range(120)}
    )
    assert expected == _sunk(spark, tmp_path)
