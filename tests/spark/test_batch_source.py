# SPDX-License-Identifier: Apache-2.0
"""Batches from a broker: row for row what was produced, between the bounds that were asked for, or an error by name."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Message, Producer
from kazoo.client import KazooClient
from pyspark.sql import DataFrame, Row, SparkSession

from consumerd.client.opening import open_producer
from consumerd.embedded.cluster import EmbeddedCluster
from consumerd.model import TopicPartition
from consumerd.spark import register
from consumerd.wire.apikeys import ApiKey
from consumerd.wire.errorcodes import ErrorCode
from tests.support.embedded import EmbeddedThread
from tests.support.zookeeper import run_server

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
FIRST_MS = 1_600_000_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Produced = Mapping[tuple[int, int], tuple[Any, ...]]
"""Partition and offset: key, value, time in ms, headers."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedThread]:
    with (
        run_server() as zookeeper,
        EmbeddedThread(tmp_path_factory.mktemp("broker"), f"{zookeeper.connect_string}/batches") as running,
    ):
        yield running


@pytest.fixture
def topic(broker: EmbeddedThread, request: pytest.FixtureRequest) -> str:
    """A topic of this test with two partitions, and small segments."""
    name = "".join(one if one.isalnum() else "-" for one in request.node.name.removeprefix("test_"))[:60]
    # the records are of long ago
    broker.create_topic(name, 2, segment_bytes="20000", retention_ms="-1")
    return name


def fill(broker: EmbeddedThread, topic: str, count: int, *, codec: str = "none", after_ms: int = FIRST_MS) -> Produced:
    """Write so many records, of all kinds, a second apart, in batches of 20; returns where each is."""
    settings = {"bootstrap.servers": broker.bootstrap, "acks": "all", "batch.num.messages": 20}
    producer = Producer({**settings, "compression.type": codec})
    found: dict[tuple[int, int], tuple[Any, ...]] = {}
    keys, values = (None, b"", b"key"), (b"value" * 20, None, b"", b"\xff\x00")
    headers: Sequence[list[tuple[str, bytes | None]]] = ([], [("name", b"value"), ("name", None), ("\u00e4", b"")])

    def note(record: tuple[Any, ...], error: object, message: Message) -> None:
        assert error is None
        found[message.partition(), message.offset()] = record  # type: ignore[index]

    for number in range(count):
        record = (keys[number % 3], values[number % 4], after_ms + 1000 * number, headers[number % 2])
        producer.produce(
            topic, record[1], record[0], number % 2, timestamp=record[2], headers=list(record[3]),
            on_delivery=lambda error, message, record=record: note(record, error, message),
        )  # fmt: skip
    assert producer.flush(30) == 0
    assert len(found) == count
    return found


def read(spark: SparkSession, broker: EmbeddedThread, topic: str, **options: object) -> DataFrame:
    register(spark)
    given = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic} | options
    reader = spark.read.format("consumerd")
    for name, value in given.items():
        reader = reader.option(name, str(value))
    return reader.load()


def offsets(frame: DataFrame) -> dict[int, list[int]]:
    """Return the offsets that were read, by partition."""
    found: dict[int, list[int]] = {}
    for row in frame.select("partition", "offset").collect():
        found.setdefault(row.partition, []).append(row.offset)
    return {partition: sorted(found[partition]) for partition in sorted(found)}


def as_row(topic: str, place: tuple[int, int], record: tuple[Any, ...]) -> tuple[Any, ...]:
    key, value, time_ms, headers = record
    return (
        None if key is None else bytearray(key),
        None if value is None else bytearray(value),
        topic,
        *place,
        time_ms,
        0,
        [Row(key=name, value=None if one is None else bytearray(one)) for name, one in headers] or None,
    )


def test_every_codec_gives_what_was_produced(spark: SparkSession, broker: EmbeddedThread, topic: str) -> None:
    """Null and empty keys and values, headers, times, and where each record is."""
    produced: dict[tuple[int, int], tuple[Any, ...]] = {}
    for codec in CODECS:
        produced |= fill(broker, topic, 60, codec=codec)
    frame = read(spark, broker, topic, includeHeaders="true")

    assert [(field.name, field.dataType.simpleString()) for field in frame.schema.fields] == [
        ("key", "binary"), ("value", "binary"), ("topic", "string"), ("partition", "int"), ("offset", "bigint"),
        ("timestamp", "timestamp"), ("timestampType", "int"), ("headers", "array<struct<key:string,value:binary>>"),
    ]  # fmt: skip
    milliseconds = frame.withColumn("timestamp", frame["timestamp"].cast("double") * 1000)
    rows = sorted(map(tuple, milliseconds.collect()), key=lambda row: row[3:5])
    assert [as_row(topic, place, produced[place]) for place in sorted(produced)] == rows
    assert "headers" not in read(spark, broker, topic).columns


async def _write_old(bootstrap: str) -> None:
    """By our own producer: librdkafka reads no more than one partition of an answer to Metadata v0."""
    async with open_producer(bootstrap) as producer:
        for number in range(30):
            await producer.send("t", b"v", key=b"%d" % number)


@pytest.mark.parametrize(("release", "timestamp_type"), [("0.8.2", -1), ("0.10", 0)])
def test_releases_whose_messages_have_less(
    spark: SparkSession, broker: EmbeddedThread, release: str, timestamp_type: int, tmp_path: Path
) -> None:
    """Before 0.11 there are no headers, before 0.10 no times: -1 then, as Spark's own source has it."""
    with EmbeddedThread(tmp_path, f"{broker.zookeeper}-{release}", as_release=release) as old:
        old.create_topic("t", 1)
        asyncio.run(_write_old(old.bootstrap))
        rows = read(spark, old, "t", includeHeaders="true").collect()
    assert [(row.offset, bytes(row.key)) for row in rows] == [(at, b"%d" % at) for at in range(30)]
    assert {row.timestampType for row in rows} == {timestamp_type}
    assert all(row.headers is None for row in rows)
    if timestamp_type == -1:
        assert {row.timestamp for row in rows} == {
            (EPOCH - timedelta(milliseconds=1)).astimezone().replace(tzinfo=None)
        }


def test_bounds_by_offsets(spark: SparkSession, broker: EmbeddedThread, topic: str) -> None:
    """From an offset on, up to an offset, or an end of the log, partition by partition."""
    fill(broker, topic, 100)
    some = read(
        spark, broker, topic,
        startingOffsets=json.dumps({topic: {"0": 13, "1": -2}}), endingOffsets=json.dumps({topic: {"0": -1, "1": 21}}),
    )  # fmt: skip
    assert offsets(some) == {0: list(range(13, 50)), 1: list(range(21))}
    assigned = read(spark, broker, topic, subscribe="", assign=json.dumps({topic: [1]}))
    assert offsets(assigned) == {1: list(range(50))}
    pattern = read(spark, broker, topic, subscribe="", subscribePattern=f"{topic[:-1]}.")
    assert offsets(pattern) == {0: list(range(50)), 1: list(range(50))}
    nothing = read(spark, broker, topic, subscribe="", subscribePattern="nothing-like-this")
    assert offsets(nothing) == {}


def test_bounds_by_time(spark: SparkSession, broker: EmbeddedThread, topic: str) -> None:
    """The first record of a time or later; with none the end, or an error, as asked for."""
    fill(broker, topic, 100)  # partition 0 has the even seconds, 1 the odd ones
    frame = read(spark, broker, topic, startingTimestamp=FIRST_MS + 10_000, endingTimestamp=FIRST_MS + 20_000)
    assert offsets(frame) == {0: [5, 6, 7, 8, 9], 1: [5, 6, 7, 8, 9]}
    times = json.dumps({topic: {"0": FIRST_MS + 97_500, "1": 0}})
    by_partition = read(spark, broker, topic, startingOffsetsByTimestamp=times)
    assert offsets(by_partition) == {0: [49], 1: list(range(50))}
    late = {"startingTimestamp": FIRST_MS + 98_500}
    with pytest.raises(Exception, match=f"startingTimestamp: {topic}/0 has no record of time"):
        read(spark, broker, topic, **late).count()
    frame = read(spark, broker, topic, startingOffsetsByTimestampStrategy="latest", **late)
    assert offsets(frame) == {1: [49]}
    assert offsets(read(spark, broker, topic, endingTimestamp=FIRST_MS + 10**9)) == {
        0: list(range(50)),
        1: list(range(50)),
    }


@contextmanager
def zookeeper(broker: EmbeddedThread) -> Iterator[KazooClient]:
    client = KazooClient(broker.zookeeper)
    client.start(10)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def test_bounds_by_where_a_group_stands(spark: SparkSession, broker: EmbeddedThread, topic: str) -> None:
    """What a ZooKeeper group has read, or has still to read; a position of an earlier topic of that name counts for nothing."""
    group = f"group-{topic}"
    with zookeeper(broker) as client:
        client.create(f"/consumers/{group}/offsets/{topic}/0", b"7", makepath=True)
        fill(broker, topic, 40)
        where = {"zookeeper": broker.zookeeper, "kafka.bootstrap.servers": ""}
        left = {**where, "startingOffsets": f"group:{group}"}
        with pytest.raises(Exception, match=f"group '{group}' has no position of {topic}/1"):
            read(spark, broker, topic, **left).count()
        rest = read(spark, broker, topic, groupPositionMissing="earliest", **left)
        assert offsets(rest) == {0: list(range(7, 20)), 1: list(range(20))}
        done = read(spark, broker, topic, **where, endingOffsets=f"group:{group}", groupPositionMissing="earliest")
        assert offsets(done) == {0: list(range(7))}
        client.create(f"/consumers/{group}/offsets/{topic}/1", b"12")
        assert offsets(read(spark, broker, topic, **left)) == {0: list(range(7, 20)), 1: list(range(12, 20))}

        client.set(f"/consumers/{group}/offsets/{topic}/1", b"twelve")
        with pytest.raises(Exception, match=f"its position of {topic}/1 is no number: 'twelve'"):
            read(spark, broker, topic, **left).count()
    with pytest.raises(Exception, match="there is no group 'nobody' in ZooKeeper"):
        read(spark, broker, topic, **where, startingOffsets="group:nobody").count()


def test_a_position_of_an_earlier_topic_counts_for_nothing(spark: SparkSession, broker: EmbeddedThread) -> None:
    """The topic was made again since: its offsets are others."""
    with zookeeper(broker) as client:
        client.create("/consumers/again/offsets/made-again/0", b"3", makepath=True)
    broker.create_topic("made-again", 1)
    broker.produce("made-again", b"k\tv\n" * 5)
    left = {"zookeeper": broker.zookeeper, "startingOffsets": "group:again", "groupPositionMissing": "earliest"}
    assert offsets(read(spark, broker, "made-again", **left)) == {0: [0, 1, 2, 3, 4]}


def test_ranges_are_divided_among_tasks(spark: SparkSession, broker: EmbeddedThread, topic: str) -> None:
    """As many Spark partitions as asked for, and nothing twice at their borders."""
    fill(broker, topic, 100)
    for options, tasks in (({}, 2), ({"minPartitions": 7}, 7), ({"maxRecordsPerPartition": 15}, 8)):
        frame = read(spark, broker, topic, **options)
        assert frame.rdd.getNumPartitions() == tasks
        assert offsets(frame) == {0: list(range(50)), 1: list(range(50))}


def test_a_leader_that_is_another_one_for_a_while(spark: SparkSession, broker: EmbeddedThread, topic: str) -> None:
    """A task asks again and goes on where it was, whatever the broker answers or how it breaks off."""
    fill(broker, topic, 2000)
    faults = [
        broker.arm(lambda faults: faults.error(ApiKey.FETCH, ErrorCode.NOT_LEADER_OR_FOLLOWER, times=3)),
        broker.arm(lambda faults: faults.close_at(ApiKey.FETCH, 2000, times=2)),
        broker.arm(lambda faults: faults.error(ApiKey.LIST_OFFSETS, ErrorCode.LEADER_NOT_AVAILABLE)),
    ]
    frame = read(spark, broker, topic, **{"kafka.max.partition.fetch.bytes": "4096"})
    assert offsets(frame) == {0: list(range(1000)), 1: list(range(1000))}
    assert [fault.hits for fault in faults] == [3, 2, 1]


def expire(broker: EmbeddedThread, topic: str) -> int:
    """Have retention take what it can of partition 0; returns the first offset that is left."""

    async def act(cluster: EmbeddedCluster) -> int:
        log = cluster.broker.topics.find_log(TopicPartition.modern(topic, 0))
        assert log is not None
        log.settings = replace(log.settings, retention_bytes=1)
        log.apply_retention()
        return log.start_offset

    return broker.do(act)


def test_retention_between_planning_and_reading(spark: SparkSession, broker: EmbeddedThread, topic: str) -> None:
    """An error that names topic, partition and offset, or a gap; never silently fewer rows."""
    fill(broker, topic, 2000)
    strict, loose = read(spark, broker, topic).rdd, read(spark, broker, topic, failOnDataLoss="false").rdd
    assert [2, 2] == [one.getNumPartitions() for one in (strict, loose)]  # both are planned now
    first = expire(broker, topic)
    assert 0 < first < 1000
    with pytest.raises(Exception, match=rf"{topic}/0: offset 0 is outside the broker's log \[{first}, 1000\]"):
        strict.collect()
    assert sorted(row.offset for row in loose.collect() if row.partition == 0) == list(range(first, 1000))
    # what is gone when it is planned is no loss for who reads from the earliest on, and one for who names an offset
    assert offsets(read(spark, broker, topic)) == {0: list(range(first, 1000)), 1: list(range(1000))}
    named = {"startingOffsets": json.dumps({topic: {"0": 0, "1": 990}})}
    with pytest.raises(Exception, match=rf"{topic}/0: offset 0 is outside the broker's log \[{first}, 1000\]"):
        read(spark, broker, topic, **named).count()
    assert offsets(read(spark, broker, topic, failOnDataLoss="false", **named)) == {
        0: list(range(first, 1000)),
        1: list(range(990, 1000)),
    }


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"subscribe": "not-there"}, "there is no topic not-there in the cluster; the topics there: "),
        ({"subscribe": "", "assign": '{"%s": [5]}'}, "/5: topic %s has no such partition"),
        ({"subscribe": None}, "subscribe, subscribePattern, assign: give exactly one of them"),
        ({"kafka.bootstrap.servers": "127.0.0.1:1"}, "none of 1 brokers answered; last: 127.0.0.1:1: cannot connect"),
        ({"endingOffsets": '{"%s": {"0": 99, "1": 0}}'}, "%s/0: offset 99 is outside the broker's log [0, 5]"),
        ({"startingOffsets": '{"%s": {"0": 9, "1": 0}}'}, "%s/0: the end, offset 5, lies below the start, offset 9"),
        ({"startingOffsets": '{"%s": {"0": 9}}'}, "startingOffsets: %s/1 is read and not named"),
        ({"startingOffsets": '{"%s": {"0": 0, "1": 0, "2": 0}}'}, "startingOffsets: %s/2 is named and not read"),
        ({"minPartition": "3"}, "minpartition: there is no such option; did you mean minPartitions?"),
    ],
)
def test_bad_input_is_said_on_the_driver(
    spark: SparkSession, broker: EmbeddedThread, topic: str, options: dict[str, object], said: str
) -> None:
    """By option, topic, partition, offset or address."""
    fill(broker, topic, 10)
    given = {name: str(value or "").replace("%s", topic) for name, value in options.items()}
    with pytest.raises(Exception) as caught:  # noqa: PT011 - Spark wraps what Python raises
        read(spark, broker, topic, **given).count()
    assert said.replace("%s", topic) in str(caught.value)


def test_columns_cannot_be_given(spark: SparkSession, broker: EmbeddedThread, topic: str) -> None:
    """Rather than rows under the wrong names."""
    register(spark)
    frame = spark.read.format("consumerd").schema("value string").options(subscribe=topic)
    frame = frame.option("kafka.bootstrap.servers", broker.bootstrap).load()
    with pytest.raises(Exception, match="schema: the columns are fixed, leave schema"):
        frame.count()


def test_a_part_of_the_rows_is_enough(spark: SparkSession, broker: EmbeddedThread, topic: str) -> None:
    """A LIMIT ends tasks in the middle, and a later read has all."""
    fill(broker, topic, 2000)
    assert len(read(spark, broker, topic, **{"kafka.max.partition.fetch.bytes": "4096"}).limit(3).collect()) == 3
    assert read(spark, broker, topic).count() == 2000


def test_times_are_the_producers(spark: SparkSession, broker: EmbeddedThread, topic: str) -> None:
    """To the millisecond, whatever the session's time zone."""
    fill(broker, topic, 2, after_ms=FIRST_MS + 123)
    row = read(spark, broker, topic).where("partition = 0").selectExpr("unix_micros(timestamp) micros").first()
    assert row is not None
    assert EPOCH + timedelta(microseconds=row.micros) == EPOCH + timedelta(milliseconds=FIRST_MS + 123)


@pytest.mark.parametrize(
    ("condition", "tasks", "read_offsets"),
    [
        ("partition = 1", 1, {1: range(100)}),
        ("partition in (0, 1) and offset >= 90", 2, {0: range(90, 100), 1: range(90, 100)}),
        ("offset between 10 and 29 and partition < 1", 1, {0: range(10, 30)}),
        ("topic = 'another'", 1, {}),
        ("partition = 0 and timestamp >= timestamp_millis({first} + 150000)", 1, {0: range(75, 100)}),
        ("timestamp > timestamp_millis({first} + 999000)", 1, {}),
        ("timestamp < timestamp_millis({first} + 2000)", 2, {0: range(1), 1: range(1)}),
        ("offset = 5 or partition = 1", 2, {0: range(5, 6), 1: range(100)}),
    ],
    ids=("one", "offsets", "between", "topic", "time", "late", "early", "either"),
)
def test_only_what_filters_may_want_is_fetched(
    spark: SparkSession, broker: EmbeddedThread, topic: str, condition: str, tasks: int, read_offsets: dict[int, range]
) -> None:
    """The records are a second apart, in turns; a task is a range that is fetched (or the one that stands for none)."""
    fill(broker, topic, 200)

    frame = read(spark, broker, topic).where(condition.format(first=FIRST_MS))

    assert frame.rdd.getNumPartitions() == tasks
    assert offsets(frame) == {partition: list(found) for partition, found in read_offsets.items()}


def test_records_that_filters_leave_out_may_be_lost(spark: SparkSession, broker: EmbeddedThread, topic: str) -> None:
    """What retention has removed is an error for whom it was; for others nothing is missing."""
    fill(broker, topic, 1000)
    first = expire(broker, topic)
    named = {"startingOffsets": json.dumps({topic: {"0": 0, "1": 0}})}

    assert offsets(read(spark, broker, topic, **named).where("partition = 1")) == {1: list(range(500))}
    kept = read(spark, broker, topic, **named).where(f"partition = 0 and offset >= {first}")
    assert offsets(kept) == {0: list(range(first, 500))}
    with pytest.raises(Exception, match=f"{topic}/0.*{first}"):
        read(spark, broker, topic, **named).where(f"partition = 0 and offset >= {first - 1}").collect()
