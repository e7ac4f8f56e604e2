# SPDX-License-Identifier: Apache-2.0
"""The data source ``consumerd`` on real brokers: row for row what the release's own producer says was acknowledged."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pytest

from tests.interop.conftest import FULL, ClusterFactory, require
from tests.support.kafka import CODECS, Cluster, Sent, has_headers, old_consumer_release, parse_release
from tests.support.spark_frames import as_sent, make_records, read_batch

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession

from consumerd.spark import local_session, register

RELEASES = ("0.8.2.2", "1.1.1", "2.8.2")
PARTITIONS = 3
IN_EACH_CODEC = 400

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.records, pytest.mark.drawn(parts=3)]

Ledger = Mapping[tuple[str, int, int], Sent]


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = local_session("interop", master="local[2]", settings={"spark.sql.shuffle.partitions": "2"})
    register(session)
    yield session
    session.stop()


@pytest.fixture(scope="module", params=RELEASES)
def cluster(request: pytest.FixtureRequest, shared_clusters: ClusterFactory) -> Cluster:
    """Two brokers of a release."""
    require(request.param)
    return shared_clusters(request.param, 2)


@pytest.fixture(scope="module")
def produced(cluster: Cluster) -> tuple[str, Ledger]:
    """A topic, and what is in it: keys and values of all kinds in all codecs of the release."""
    topic = f"spark-source-{os.getpid()}"
    cluster.create_topic(topic, PARTITIONS, replication=2)
    ledger: dict[tuple[str, int, int], Sent] = {}
    for seed, codec in enumerate(CODECS[cluster.release]):
        ledger |= _send(
            cluster, make_records(topic, seed, IN_EACH_CODEC, PARTITIONS, headers=has_headers(cluster.release)), codec
        )
    return topic, ledger


def _send(cluster: Cluster, records: Iterable[Sent], codec: str = "none") -> Ledger:
    producer = cluster.ledger_producer(codec)
    producer.send(records)
    return producer.finish()


def test_what_was_acknowledged_is_read(spark: SparkSession, cluster: Cluster, produced: tuple[str, Ledger]) -> None:
    """By addresses and by ZooKeeper, whole and in parts, with fetches smaller than a message."""
    topic, ledger = produced
    assert len(ledger) == IN_EACH_CODEC * len(CODECS[cluster.release])
    assert as_sent(read_batch(spark, kafka__bootstrap__servers=cluster.bootstrap, subscribe=topic)) == ledger
    parts = read_batch(
        spark, zookeeper=cluster.zookeeper, subscribePattern=f"{topic}|nothing", minPartitions=11,
        kafka__max__partition__fetch__bytes=4096,
    )  # fmt: skip
    assert as_sent(parts) == ledger
    assert parts.rdd.getNumPartitions() == 11


def test_times_are_those_of_the_release(spark: SparkSession, cluster: Cluster, produced: tuple[str, Ledger]) -> None:
    """None before 0.10, which is -1; the producer's since."""
    topic, _ = produced
    frame = read_batch(spark, kafka__bootstrap__servers=cluster.bootstrap, subscribe=topic)
    kinds = frame.selectExpr("timestampType", "unix_millis(timestamp) < 0 missing").distinct().collect()
    has_times = parse_release(cluster.release) >= (0, 10)
    assert [tuple(row) for row in kinds] == [(0, False) if has_times else (-1, True)]


def test_between_bounds(spark: SparkSession, cluster: Cluster, produced: tuple[str, Ledger]) -> None:
    """Offsets by partition, in the middle of compressed sets."""
    topic, ledger = produced
    frame = read_batch(
        spark, kafka__bootstrap__servers=cluster.bootstrap, subscribe=topic,
        startingOffsets=json.dumps({topic: {"0": 57, "1": -2, "2": 101}}),
        endingOffsets=json.dumps({topic: {"0": 203, "1": 5, "2": -1}}),
    )  # fmt: skip
    bounds = {0: range(57, 203), 1: range(5), 2: range(101, 1 << 40)}
    assert as_sent(frame) == {place: sent for place, sent in ledger.items() if place[2] in bounds[place[1]]}


def test_what_filters_want_is_read(spark: SparkSession, cluster: Cluster, produced: tuple[str, Ledger]) -> None:
    """By partition, offset and time, as real brokers look times up, in the middle of compressed sets."""
    topic, _ = produced
    frame = read_batch(spark, kafka__bootstrap__servers=cluster.bootstrap, subscribe=topic)
    rows = [
        (row.partition, row.offset, row.ms)
        for row in frame.selectExpr("partition", "offset", "unix_millis(timestamp) ms").collect()
    ]
    middle = sorted(ms for _, _, ms in rows)[len(rows) // 2]

    later = frame.where(f"timestamp >= timestamp_millis({middle})").select("partition", "offset")
    assert sorted(map(tuple, later.collect())) == sorted((one, at) for one, at, ms in rows if ms >= middle)
    some = frame.where(f"partition = 1 and offset > 57 and timestamp > timestamp_millis({middle})")
    expected = sorted((one, at) for one, at, ms in rows if one == 1 and at > 57 and ms > middle)
    assert sorted(map(tuple, some.select("partition", "offset").collect())) == expected
    assert some.rdd.getNumPartitions() == 1


def test_where_a_group_stands(spark: SparkSession, cluster: Cluster) -> None:
    """The positions of Java's high-level consumer: the release's own, or 1.1.1's in the full matrix."""
    if old_consumer_release(cluster.release) != cluster.release and not FULL:
        pytest.skip("the high-level consumer of 1.1.1 on newer brokers is for the full matrix")
    topic = group = f"spark-group-{os.getpid()}"
    cluster.create_topic(topic, PARTITIONS)
    first = _send(cluster, make_records(topic, 98, IN_EACH_CODEC, PARTITIONS, headers=False))
    consumer = cluster.java_consumer(group, topic)
    try:
        cluster._wait(consumer.name, lambda: len(consumer.records()) >= len(first), 60)
    finally:
        consumer.terminate()
    second = _send(cluster, make_records(topic, 99, IN_EACH_CODEC, PARTITIONS, headers=False))
    where = {"zookeeper": cluster.zookeeper, "subscribe": topic}
    assert as_sent(read_batch(spark, **where, startingOffsets=f"group:{group}")) == second
    assert as_sent(read_batch(spark, **where, endingOffsets=f"group:{group}")) == first


def test_a_leader_that_dies_is_followed(spark: SparkSession, cluster: Cluster) -> None:
    """Killed when half is read: the task goes on with the other replica, and nothing is missing or there twice."""
    topic = f"spark-leader-{os.getpid()}"
    cluster.create_topic(topic, 2, replication=2)
    ledger = _send(cluster, (Sent(topic, number % 2, None, b"%d" % number + b"v" * 1000) for number in range(4000)))
    marker = cluster.directory / f"{topic}.half"
    go_on = cluster.directory / f"{topic}.go-on"

    def hold(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield batch
            marker.touch()
            until = time.monotonic() + 60
            while not go_on.exists() and time.monotonic() < until:
                time.sleep(0.01)

    frame = read_batch(
        spark, kafka__bootstrap__servers=cluster.bootstrap, subscribe=topic, kafka__max__partition__fetch__bytes=20_000,
        batchBytes=20_000,
    )  # fmt: skip
    held = frame.mapInArrow(hold, frame.schema)

    def kill() -> None:
        cluster._wait("broker-0", marker.exists, 60)
        cluster.kill_broker(0)
        go_on.touch()

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        assert as_sent(held) == ledger
    finally:
        go_on.touch()
        killer.join()
        cluster.start_broker(0)
