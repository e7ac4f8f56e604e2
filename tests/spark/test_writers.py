# SPDX-License-Identifier: Apache-2.0
"""DataFrames and streams into topics, read back by librdkafka, which is no part of this project."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import DataFrame, SparkSession

from consumerd.client.partitioner import hash_murmur2
from consumerd.spark import register
from consumerd.wire.apikeys import ApiKey
from consumerd.wire.errorcodes import ErrorCode
from tests.support.embedded import EmbeddedThread
from tests.support.waiting import wait_until
from tests.support.zookeeper import run_server

Headers = tuple[tuple[str, bytes | None], ...]
Written = tuple[int, bytes | None, bytes | None, Headers]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedThread]:
    with (
        run_server() as zookeeper,
        EmbeddedThread(tmp_path_factory.mktemp("broker"), f"{zookeeper.connect_string}/writers") as running,
    ):
        running.create_topic("refusals", 2)
        yield running


@pytest.fixture
def topic(broker: EmbeddedThread, request: pytest.FixtureRequest) -> str:
    """A topic of this test with three partitions."""
    name = request.node.name.removeprefix("test_")[:60]
    broker.create_topic(name, 3)
    return name


def _write(frame: DataFrame, broker: EmbeddedThread, **options: object) -> None:
    register(frame.sparkSession)
    writer = frame.write.format("consumerd").mode("append")
    for name, value in ({"kafka.bootstrap.servers": broker.bootstrap} | options).items():
        writer = writer.option(name, str(value))
    writer.save()


def _written(broker: EmbeddedThread, topic: str, partitions: int = 3) -> list[tuple[Written, int]]:
    """Return what is in a topic, partition by partition in order, each with its time in ms."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "tests", "enable.auto.commit": False})
    try:
        here = [TopicPartition(topic, number, 0) for number in range(partitions)]
        wanted = sum(consumer.get_watermark_offsets(one)[1] for one in here)
        consumer.assign(here)
        found: list[tuple[int, int, tuple[Written, int]]] = []

        def has_all() -> bool:
            for message in consumer.consume(1000, 0.1):
                assert message.error() is None
                row = (message.partition(), message.key(), message.value(), tuple(message.headers() or ()))
                found.append((message.partition(), message.offset(), (row, message.timestamp()[1])))
            return len(found) >= wanted

        wait_until(has_all, f"{wanted} records of {topic}", 30)
        return [row for _, _, row in sorted(found, key=lambda one: one[:2])]
    finally:
        consumer.close()


def test_rows_are_written_as_their_columns_say(spark: SparkSession, broker: EmbeddedThread, topic: str) -> None:
    """Nulls, an empty value, headers, times, the partition that is asked for, and keys where Java's producers send them."""
    frame = spark.createDataFrame(
        [
            (bytearray(b"k1"), bytearray(b"v1"), None, [("h", bytearray(b"1")), ("h", None)], 1_600_000_000.5),
            (bytearray(b"k2"), bytearray(b""), None, [], 1_600_000_001.0),
            (None, bytearray(b"v3"), 2, None, None),
            (bytearray(b"k4"), None, 0, None, 1_600_000_003.0),
        ],
        "key binary, value binary, partition int, headers array<struct<key: string, value: binary>>, s double",
    ).selectExpr("*", "timestamp_millis(cast(s * 1000 as bigint)) timestamp", f"'{topic}' topic")
    _write(frame.coalesce(1), broker, keepTimestamps="true")
    found = _written(broker, topic)

    assert Counter(
        [
            (hash_murmur2(b"k1", b"k1") % 3, b"k1", b"v1", (("h", b"1"), ("h", None))),
            (hash_murmur2(b"k2", b"k2") % 3, b"k2", b"", ()),
            (2, None, b"v3", ()),
            (0, b"k4", None, ()),
        ]
    ) == Counter(row for row, _ in found)
    times = {row[1]: time_ms for row, time_ms in found}
    assert {b"k1": 1_600_000_000_500, b"k2": 1_600_000_001_000, b"k4": 1_600_000_003_000} == {
        key: times[key] for key in (b"k1", b"k2", b"k4")
    }
    assert times[None] > 1_700_000_000_000


def test_every_row_is_written_and_those_of_a_partition_in_order(
    spark: SparkSession, broker: EmbeddedThread, topic: str
) -> None:
    """More rows than fit into the buffer, from two tasks, though the broker refuses and forgets some requests."""
    refused = broker.arm(lambda faults: faults.error(ApiKey.PRODUCE, ErrorCode.NOT_LEADER_OR_FOLLOWER, times=2))
    frame = spark.range(20_000, numPartitions=2).selectExpr(
        "concat(cast(id as string), repeat('x', 1000)) value", "cast(id div 10000 as int) partition"
    )
    _write(
        frame, broker, topic=topic,
        **{"kafka.buffer.memory": 3_000_000, "kafka.compression.type": "lz4", "kafka.linger.ms": 5},
    )  # fmt: skip
    numbers: dict[int, list[int]] = {0: [], 1: []}
    for (partition, _, value, _), _ in _written(broker, topic):
        assert value is not None
        numbers[partition].append(int(value.rstrip(b"x")))

    assert {0: list(range(10_000)), 1: list(range(10_000, 20_000))} == numbers
    assert 2 == refused.hits


def test_zookeeper_alone_says_where_the_brokers_are(spark: SparkSession, broker: EmbeddedThread, topic: str) -> None:
    """As for a reader; the tasks are told the brokers."""
    register(spark)
    spark.range(3).selectExpr("cast(id as string) value").write.format("consumerd").mode("append").option(
        "zookeeper", broker.zookeeper
    ).option("topic", topic).save()

    assert 3 == broker.count(topic, 3)


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        (["cast(id as string) key"], {"topic": "t"}, "the DataFrame has no column value"),
        (["id value"], {"topic": "t"}, "column value: expected binary or string, got bigint"),
        (["'x' value"], {}, "set the option topic, or give the DataFrame a column topic"),
        (["'x' value"], {"topic": "t", "kafka.ack": "1"}, "did you mean kafka.acks?"),
        (["'x' value"], {"topic": "t", "kafka.bootstrap.servers": "nowhere"}, "expected host:port, got 'nowhere'"),
    ],
)
def test_what_cannot_be_written_is_refused_on_the_driver(
    spark: SparkSession, broker: EmbeddedThread, columns: list[str], options: dict[str, str], said: str
) -> None:
    """Before a task has begun."""
    with pytest.raises(AnalysisException) as refused:
        _write(spark.range(1).selectExpr(*columns), broker, **options)

    assert said in str(refused.value)


def test_a_topic_is_not_overwritten(spark: SparkSession, broker: EmbeddedThread, topic: str) -> None:
    """Nothing can be taken back from a log."""
    register(spark)
    frame = spark.range(1).selectExpr("'x' value", f"'{topic}' topic")
    with pytest.raises(AnalysisException, match="a topic cannot be overwritten, only appended to"):
        frame.write.format("consumerd").mode("overwrite").option("kafka.bootstrap.servers", broker.bootstrap).save()


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        (["'x' value", "if(id = 7, null, 'nulls') topic"], {}, "row 7 of the task: the column topic is null"),
        (["'x' value", "9 partition"], {"topic": "refusals"}, "row 0 of the task: refusals/9: no such partition"),
        (
            ["repeat('x', cast(id as int) * 1000) value"],
            {"topic": "refusals", "kafka.max.request.size": "5000"},
            "row 5 of the task: refusals: a record of 5034 bytes, the limit is 5000; raise kafka.max.request.size",
        ),
        (
            ["'x' value"],
            {"topic": "refusals", "kafka.bootstrap.servers": "127.0.0.1:1", "kafka.max.block.ms": "500"},
            "refusals: no broker could be asked about it within 0.5 s",
        ),
    ],
)
def test_a_row_that_cannot_be_written_ends_the_job_and_is_named(
    spark: SparkSession, broker: EmbeddedThread, columns: list[str], options: dict[str, str], said: str
) -> None:
    """With topic, partition and row, in the error that the driver raises."""
    frame = spark.range(10, numPartitions=1).selectExpr("id", *columns)
    with pytest.raises(PythonException) as refused:
        _write(frame, broker, **options)

    assert said in str(refused.value)


def test_a_stream_is_written_trigger_by_trigger(
    spark: SparkSession, broker: EmbeddedThread, topic: str, tmp_path: Path
) -> None:
    """From one topic into another, by its checkpoint: started again it writes only what is new."""
    register(spark)
    broker.create_topic("stream-source", 1)
    frame = (
        spark.readStream.format("consumerd")
        .option("kafka.bootstrap.servers", broker.bootstrap)
        .option("subscribe", "stream-source")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "4")
        .load()
        .selectExpr("key", "value", "partition")
    )
    for lines in (b"a\t0\nb\t1\nc\t2\nd\t3\ne\t4\nf\t5", b"g\t6"):
        broker.produce("stream-source", lines)
        query = (
            frame.writeStream.format("consumerd")
            .option("kafka.bootstrap.servers", broker.bootstrap)
            .option("topic", topic)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(300)
        finally:
            query.stop()

    assert [(0, key.encode(), b"%d" % number, ()) for number, key in enumerate("abcdefg")] == [
        row for row, _ in _written(broker, topic)
    ]
