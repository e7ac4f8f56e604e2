# SPDX-License-Identifier: Apache-2.0
"""Streams from and into real brokers: the same records, each once, whatever dies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.interop.conftest import MAIN_RELEASE, ClusterFactory
from tests.support.kafka import CODECS, Cluster, Sent, has_headers, parse_release
from tests.support.spark_stream import StreamJob, StreamProcess
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500), pytest.mark.records, pytest.mark.drawn(parts=3)]

PARTITIONS = 3
RELEASES = ("0.8.2.2", "1.1.1", "2.8.2")
KILLS = 10

Place = tuple[str, int, int]


def _produce_all_kinds(cluster: Cluster, topic: str) -> dict[Place, Sent]:
    """With every codec: keys and none, empty values and tombstones, headers where the release has them."""
    ledger: dict[Place, Sent] = {}
    for codec in CODECS[cluster.release]:
        producer = cluster.ledger_producer(codec)
        producer.send(
            Sent(
                topic=topic,
                partition=number % PARTITIONS,
                key=None if number % 5 == 0 else f"{codec}-{number % 7}".encode(),
                value=None if number % 11 == 0 else f"{codec}-{number}".encode() * (number % 20),
                headers=(("h", b"1"), ("h", None)) if has_headers(cluster.release) and number % 3 == 0 else (),
            )
            for number in range(300)
        )
        ledger |= producer.finish()
    return ledger


def _produce_numbers(cluster: Cluster, topic: str, count: int, partitions: int) -> dict[Place, Sent]:
    producer = cluster.ledger_producer()
    producer.send(
        Sent(topic=topic, partition=number % partitions, key=None, value=b"%0100d" % number) for number in range(count)
    )
    return producer.finish()


def _read_table(job: StreamJob) -> list[dict[str, object]]:
    """Read what Spark's sink counts as written: files that no trigger has finished are left out."""
    named: list[str] = []
    for log in sorted((job.table / "_spark_metadata").iterdir(), key=lambda one: one.name):
        if log.name.partition(".")[0].isdecimal():
            named += [line.split('"path":"')[1].split('"')[0] for line in log.read_text().splitlines()[1:]]
    rows: list[dict[str, object]] = []
    for path in dict.fromkeys(named):
        rows += pq.read_table(path.removeprefix("file://")).to_pylist()
    return rows


def _places(job: StreamJob) -> Counter[object]:
    return Counter((row["topic"], row["partition"], row["offset"]) for row in _read_table(job))


def _headers(headers: object) -> tuple[tuple[str, bytes | None], ...]:
    assert headers is None or isinstance(headers, list)
    return tuple((one["key"], one["value"]) for one in headers or ())


def _source(cluster: Cluster, topic: str, **options: object) -> dict[str, str]:
    given = {
        "zookeeper": cluster.zookeeper,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "includeHeaders": "true",
    }
    return {**given, **{name: str(value) for name, value in options.items()}}


def _consume(cluster: Cluster, topic: str, count: int) -> list[tuple[int, bytes | None, bytes | None, object]]:
    """Read a topic with librdkafka: partition, key, value, headers, partition by partition in order."""
    modern = parse_release(cluster.release) >= (0, 10)
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "tests",
            "enable.auto.commit": False,
            **({} if modern else {"api.version.request": False, "broker.version.fallback": cluster.release}),
        }
    )
    found: list[tuple[int, int, tuple[int, bytes | None, bytes | None, object]]] = []

    def has_all() -> bool:
        for message in consumer.consume(1000, 0.1):
            assert message.error() is None
            headers = tuple(message.headers() or ())
            row = (message.partition(), message.key(), message.value(), headers)
            found.append((message.partition(), message.offset(), row))
        return len(found) >= count

    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
        wait_until(has_all, f"{count} records of {topic}", 60)
    finally:
        consumer.close()
    return [row for _, _, row in sorted(found, key=lambda one: one[:2])]


def _by_partition(ledger: Mapping[Place, Sent]) -> list[tuple[int, bytes | None, bytes | None, object]]:
    return [
        (sent.partition, sent.key, sent.value, sent.headers)
        for _, sent in sorted(ledger.items(), key=lambda one: one[0])
    ]


@pytest.mark.parametrize("kafka", RELEASES)
def test_a_stream_is_what_was_produced_and_can_be_written_again(
    kafka: str, shared_clusters: ClusterFactory, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """Of every codec, from one topic through Spark into another: keys, values, nulls, headers, offsets, order."""
    cluster = shared_clusters(kafka)
    topic, copy = unique("streamed"), unique("copied")
    cluster.create_topic(topic, PARTITIONS)
    cluster.create_topic(copy, PARTITIONS)
    ledger = _produce_all_kinds(cluster, topic)
    job = StreamJob(folder=str(tmp_path / "read"), source=_source(cluster, topic, maxOffsetsPerTrigger=500))
    with StreamProcess(job) as process:
        process.wait()
    writing = StreamJob(
        folder=str(tmp_path / "written"),
        source=_source(cluster, topic),
        sink={"kafka.bootstrap.servers": cluster.bootstrap, "topic": copy, "kafka.compression.type": "snappy"},
    )
    with StreamProcess(writing) as process:
        process.wait()

    assert {place: (sent.key, sent.value, sent.headers) for place, sent in ledger.items()} == {
        (row["topic"], row["partition"], row["offset"]): (row["key"], row["value"], _headers(row["headers"]))
        for row in _read_table(job)
    }
    assert len(ledger) == _places(job).total()
    assert _by_partition(ledger) == _consume(cluster, copy, len(ledger))


def test_killed_in_the_middle_of_triggers_each_offset_is_there_once(
    shared_clusters: ClusterFactory, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """The whole of it, driver, JVM and workers, by SIGKILL; all that is left is the checkpoint."""
    cluster = shared_clusters(MAIN_RELEASE)
    topic = unique("killed")
    cluster.create_topic(topic, PARTITIONS)
    ledger = _produce_numbers(cluster, topic, 60_000, PARTITIONS)
    job = StreamJob(folder=str(tmp_path), source=_source(cluster, topic, maxOffsetsPerTrigger=2000))
    for _ in range(KILLS):
        with StreamProcess(job) as process:
            process.wait_for_trigger(job.triggers()[1] + 2)
    with StreamProcess(job) as process:
        process.wait()

    assert Counter(dict.fromkeys(ledger, 1)) == _places(job)


def test_a_broker_that_dies_in_the_middle_of_a_trigger_is_replaced_by_the_next_leader(
    own_cluster: ClusterFactory, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """Tasks and driver go on elsewhere, and no offset is read twice or left out."""
    cluster = own_cluster(MAIN_RELEASE, 2)
    topic = unique("replaced")
    cluster.create_topic(topic, PARTITIONS, 2)
    ledger = _produce_numbers(cluster, topic, 60_000, PARTITIONS)
    source = _source(
        cluster, topic, maxOffsetsPerTrigger=6000, **{"kafka.max.partition.fetch.bytes": 20_000, "batchBytes": 20_000}
    )
    job = StreamJob(folder=str(tmp_path), source=source)
    with StreamProcess(job) as process:
        process.wait_for_trigger(3)
        cluster.kill_broker(0)
        process.wait()

    assert Counter(dict.fromkeys(ledger, 1)) == _places(job)
