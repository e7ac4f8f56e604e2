# SPDX-License-Identifier: Apache-2.0
"""Driver and tasks of the Spark source on brokers of Kafka 0.7, without Spark: lookups, limits, brokers that go."""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from kazoo.client import KazooClient
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import BinaryType, StructField, StructType

from consumerd.embedded.legacy.byte_log import DEFAULT_SETTINGS
from consumerd.errors import ConfigError, NotFound, RequestTimedOut
from consumerd.spark.datasource.batch import BatchReader, RangePartition
from consumerd.spark.datasource.options import parse_read_options
from consumerd.spark.datasource.reading import ReadTask, read_range
from consumerd.spark.datasource.stream import ConsumerdStreamReader
from consumerd.spark.datasource.write_options import parse_write_options
from consumerd.spark.datasource.writer import WritePlan
from consumerd.wire.compression import Codec
from tests.support.embedded_legacy import LegacyThread, SentMessage
from tests.support.zookeeper import run_server

pytestmark = pytest.mark.records

SEGMENT_BYTES = 500
PARTITIONS = 2


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[str]:
    with run_server() as server:
        yield server.connect_string


@pytest.fixture
def cluster(zookeeper: str, tmp_path: Path) -> Iterator[LegacyThread]:
    """Two brokers with two partitions of each topic, in small segments."""
    at = f"{zookeeper}/{tmp_path.name}"
    log = replace(DEFAULT_SETTINGS, segment_bytes=SEGMENT_BYTES)
    with LegacyThread(tmp_path, at, num_partitions=PARTITIONS, log=log) as brokers:
        yield brokers


def fill(
    cluster: LegacyThread, topic: str = "events", *, count: int = 60, nodes: Iterable[int] = (0, 1)
) -> list[SentMessage]:
    """Store messages of several sizes in each partition, some of them compressed together."""
    sent = []
    for node in nodes:
        for partition in range(PARTITIONS):
            stem = f"{node}-{partition}".encode()
            for first in range(0, count, 10):
                values = [b"%s %d %s" % (stem, at, b"x" * (at * 7 % 90)) for at in range(first, first + 10)]
                codec = Codec.GZIP if first % 20 else Codec.NONE
                sent += cluster.send(topic, values, node=node, partition=partition, codec=codec)
    return sent


def options(cluster: LegacyThread, *, streaming: bool = False, **given: object) -> Any:
    asked = {"zookeeper": cluster.zookeeper, "subscribe": "events", "includeBroker": "true"}
    if streaming:
        asked["startingOffsets"] = "earliest"
    return parse_read_options(asked | {name: str(value) for name, value in given.items()}, streaming=streaming)


def tasks(partitions: Iterable[object]) -> list[ReadTask]:
    return [one.task for one in partitions if isinstance(one, RangePartition) and one.task is not None]


def rows(work: Iterable[ReadTask]) -> list[tuple[tuple[str, str, int, int], int, bytes]]:
    """Return what tasks read: identity, next offset, value."""
    return [
        (
            (row["topic"], f"{row['broker']}-{row['partition']}", row["offset"], row["index"]),
            row["next_offset"],
            row["value"],
        )
        for task in work
        for batch in read_range(task)
        for row in batch.to_pylist()
    ]


def as_rows(sent: Iterable[SentMessage]) -> list[tuple[tuple[str, str, int, int], int, bytes]]:
    return sorted((one.identity, one.next_offset, one.value) for one in sent)


def test_a_batch_is_divided_where_segments_begin_and_gives_each_message_once(cluster: LegacyThread) -> None:
    """Offsets count bytes: a task that began anywhere else would read garbage."""
    sent = fill(cluster)
    found = tasks(BatchReader(options(cluster, minPartitions=9)).partitions())
    ends = {0, *(one.next_offset for one in sent)}
    assert len(found) == 9
    assert all(one.range.start in ends and one.range.end in ends for one in found)
    assert rows(found) == sorted(rows(found))
    assert rows(found) == as_rows(sent)


def test_one_segment_is_one_task(cluster: LegacyThread) -> None:
    """There is no other offset that is known to begin a message."""
    cluster.send("events", [b"v"] * 20)
    (task,) = tasks(BatchReader(options(cluster, minPartitions=4, maxRecordsPerPartition=10)).partitions())
    assert len(rows([task])) == 20


def test_the_triggers_of_a_stream_end_between_messages(cluster: LegacyThread) -> None:
    """``maxOffsetsPerTrigger`` counts bytes, and a message goes on to where it ends."""
    sent = fill(cluster)
    ends = {(one.partition, one.next_offset) for one in sent} | {(one.partition, 0) for one in sent}
    reader = ConsumerdStreamReader(options(cluster, streaming=True))
    place, found, triggers = reader.latestOffset({}, ReadAllAvailable()), [], 0
    while (end := reader.latestOffset(place, ReadMaxRows(1500))) != place:
        assert {*end["events"].items()} <= ends
        found += rows(tasks(reader.partitions(place, end)))
        assert json.loads(json.dumps(end)) == end
        place, triggers = end, triggers + 1
    reader.stop()
    assert triggers > 5
    assert sorted(found) == as_rows(sent)


def test_a_broker_that_is_away_is_named_and_its_partitions_keep_their_offsets(cluster: LegacyThread) -> None:
    """They are on no other broker. Without them the query goes on only if it may, and nothing is read twice."""
    sent = fill(cluster, count=20)
    strict = ConsumerdStreamReader(options(cluster, streaming=True), sleep=lambda _: None)
    lenient = ConsumerdStreamReader(options(cluster, streaming=True, failOnDataLoss="false"), sleep=lambda _: None)
    start = strict.latestOffset({}, ReadAllAvailable())
    end = strict.latestOffset(start, ReadAllAvailable())
    cluster.stop_node(1)
    with pytest.raises(
        NotFound, match=r"^events/1-0: away: broker 1 is not registered; .* \(and 1 more\)\. .*failOnDataLoss"
    ):
        strict.latestOffset(end, ReadAllAvailable())
    more = cluster.send("events", [b"more"])
    later = lenient.latestOffset(end, ReadAllAvailable())
    assert later == {**end, "events": {**end["events"], "0-0": more[-1].next_offset}}
    cluster.start_node(1)
    assert strict.latestOffset(later, ReadAllAvailable()) == later
    assert sorted(rows(tasks(strict.partitions(start, later)))) == as_rows([*sent, *more])
    strict.stop()
    lenient.stop()


def test_a_task_goes_on_when_its_broker_restarts_and_names_one_that_does_not(cluster: LegacyThread) -> None:
    """A task has the broker's address and nothing else."""
    sent = cluster.send("events", [b"one", b"two"], node=1)
    (task,) = tasks(BatchReader(options(cluster)).partitions())
    cluster.stop_node(1)
    hurried = replace(task, fetch=replace(task.fetch, patience_s=0.5))
    with pytest.raises(
        RequestTimedOut,
        match=r"^events/1-0: nothing came .*broker 1 at 127\.0\.0\.1:\d+.*cannot connect",
    ):
        rows([hurried])
    cluster.start_node(1)
    assert rows([task]) == as_rows(sent)


def test_a_batch_begins_where_a_group_or_a_time_says(cluster: LegacyThread) -> None:
    """Positions are those in ZooKeeper. Times are those of segments: all of them are between 1970 and tomorrow."""
    sent = fill(cluster, count=20, nodes=[0])
    (place,) = {one.next_offset for one in sent if one.partition == "0-1" and b" 4 " in one.value}
    client = KazooClient(cluster.zookeeper)
    client.start()
    try:
        for partition, at in (("0-0", 0), ("0-1", place)):
            client.create(f"/consumers/lake/offsets/events/{partition}", str(at).encode(), makepath=True)
    finally:
        client.stop()
        client.close()
    expected = as_rows(one for one in sent if one.partition == "0-0" or one.offset >= place)
    assert rows(tasks(BatchReader(options(cluster, startingOffsets="group:lake")).partitions())) == expected
    early, late = (
        options(cluster, startingTimestamp=time_ms) for time_ms in (1, (time.time_ns() // 10**6) + 86_400_000)
    )
    assert rows(tasks(BatchReader(early).partitions())) == as_rows(sent)
    assert rows(tasks(BatchReader(late).partitions())) == []


def test_partitions_and_offsets_are_given_as_broker_and_number(cluster: LegacyThread) -> None:
    """As the checkpoint has them."""
    sent = fill(cluster, count=20)
    chosen = [one for one in sent if one.partition == "1-0"]
    start = chosen[3].offset
    given = {"zookeeper": cluster.zookeeper, "generation": "legacy", "includeBroker": "true"}
    given |= {"assign": '{"events": ["1-0"]}', "startingOffsets": json.dumps({"events": {"1-0": start}})}
    reader = BatchReader(parse_read_options(given, streaming=False))
    assert rows(tasks(reader.partitions())) == as_rows(one for one in chosen if one.offset >= start)
    missing = BatchReader(parse_read_options(given | {"assign": '{"events": ["2-0"]}'}, streaming=False))
    with pytest.raises(NotFound, match=r"^events/2-0: it does not exist, or is away: broker 2 is not registered"):
        missing.partitions()


def test_topics_of_kafka_0_7_are_not_written(cluster: LegacyThread) -> None:
    """Refused on the driver, whether the option says so or ZooKeeper does, and before a broker gets a request."""
    with pytest.raises(ConfigError, match=r"^generation: topics of Kafka 0\.6 and 0\.7 can be read"):
        parse_write_options({"zookeeper": cluster.zookeeper, "generation": "legacy"})
    schema = StructType([StructField("value", BinaryType())])
    plan = WritePlan.make({"zookeeper": cluster.zookeeper, "topic": "events"}, schema)
    with pytest.raises(ConfigError, match=r"^zookeeper: its brokers are of Kafka 0\.6 or 0\.7"):
        pickle.dumps(plan)
