# SPDX-License-Identifier: Apache-2.0
"""The data source and the audit on real clusters without ZooKeeper: by the brokers' addresses alone, and by topic ids."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
import yaml
from confluent_kafka import Consumer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.interop.conftest import ClusterFactory
from tests.interop.test_spark_pipeline import Jobs
from tests.support.coordinated_faults import acknowledged
from tests.support.kafka import CODECS, Cluster, Sent
from tests.support.landing_job import LandingJob
from tests.support.leaving_zookeeper import Leaving, run
from tests.support.ledger import Ledger, send_all
from tests.support.spark_frames import (
    as_sent,
    make_records,
    read_batch,
    read_sink,
    read_stream,
    read_triggers,
    run_available,
)
from tests.support.waiting import wait_until

pytest.importorskip("pyspark")

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from consumerd.config.job import JobSettings
from consumerd.spark import local_session, register
from consumerd.spark.audit import run as run_audit
from consumerd.spark.job import Silent

if TYPE_CHECKING:
    import pyarrow as pa

RELEASES: Final = (pytest.param("4.0.2", marks=pytest.mark.full), "4.3.1")
PARTITIONS: Final = 3
EACH: Final = 300
"""Records of a codec, or of a part of a stream."""
HELD_S: Final = 300.0
_FOR_URLS: Final = str.maketrans("+/", "-_")
"""librdkafka prints ids in plain Base64, Kafka's tools in that for URLs."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.records, pytest.mark.drawn(parts=3)]


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = local_session("without-zookeeper", master="local[2]", settings={"spark.sql.shuffle.partitions": "2"})
    register(session)
    yield session
    session.stop()


@pytest.fixture(scope="module", params=RELEASES)
def cluster(request: pytest.FixtureRequest, shared_clusters: ClusterFactory) -> Cluster:
    """One node of a release."""
    return shared_clusters(request.param)


@pytest.fixture
def topic(cluster: Cluster, unique: Callable[[str], str]) -> str:
    """A topic of this test."""
    name = unique("without")
    cluster.create_topic(name, PARTITIONS)
    return name


def where(cluster: Cluster, topic: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": topic}


def send(cluster: Cluster, topic: str, seed: int) -> Mapping[tuple[str, int, int], Sent]:
    return send_all(cluster.bootstrap, make_records(topic, seed, EACH, PARTITIONS, headers=True), "lz4")


def commit(cluster: Cluster, group: str, topic: str, positions: Mapping[int, int]) -> None:
    """Commit positions to Kafka with librdkafka, as a consumer that is no member."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group, "enable.auto.commit": False})
    try:
        consumer.commit(offsets=[TopicPartition(topic, one, at) for one, at in positions.items()], asynchronous=False)
    finally:
        consumer.close()


def find_topic_id(cluster: Cluster, topic: str) -> str | None:
    """Return the topic's id as librdkafka is told it; None for a topic that does not exist."""
    client = AdminClient({"bootstrap.servers": cluster.bootstrap})
    if topic not in client.list_topics(timeout=60).topics:
        return None
    topic_id = str(client.describe_topics(TopicCollection([topic]))[topic].result(60).topic_id)
    return topic_id.translate(_FOR_URLS)


# -- batches


def test_batch_has_every_column_as_it_was_sent(spark: SparkSession, cluster: Cluster, topic: str) -> None:
    """Of every codec, by librdkafka; whole, and in parts with fetches smaller than a message."""
    sent: dict[tuple[str, int, int], Sent] = {}
    times: dict[tuple[str, int, int], int] = {}
    for seed, codec in enumerate(CODECS[cluster.release]):
        producer = Ledger(cluster.bootstrap, codec)
        producer.send(make_records(topic, seed, EACH, PARTITIONS, headers=True))
        sent |= producer.finish()
        times |= producer.times_ms()

    frame = read_batch(spark, **where(cluster, topic), startingOffsets="earliest", endingOffsets="latest")
    stamped = frame.selectExpr("topic", "partition", "offset", "unix_millis(timestamp)", "timestampType").collect()
    parts = read_batch(spark, **where(cluster, topic), minPartitions=7, kafka__max__partition__fetch__bytes=4096)

    assert ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"] == frame.columns
    assert EACH * len(CODECS[cluster.release]) == len(sent)
    assert sent == as_sent(frame)
    assert {place: (ms, 0) for place, ms in times.items()} == {tuple(row[:3]): tuple(row[3:]) for row in stamped}
    assert sent == as_sent(parts)
    assert parts.rdd.getNumPartitions() == 7


def test_batch_begins_and_ends_where_a_group_stands(
    spark: SparkSession, cluster: Cluster, topic: str, unique: Callable[[str], str]
) -> None:
    """The positions are those that a foreign client has committed to Kafka; one that is missing is told."""
    group = unique("g")
    sent = send(cluster, topic, 1)
    commit(cluster, group, topic, {0: 0, 1: 57})
    at = {0: 0, 1: 57, 2: 0}
    options = {**where(cluster, topic), "groupPositionMissing": "earliest"}

    with pytest.raises(Exception, match=f"group '{group}' has no position of {topic}/2"):
        read_batch(spark, **where(cluster, topic), startingOffsets=f"group:{group}").collect()
    after = as_sent(read_batch(spark, **options, startingOffsets=f"group:{group}"))
    before = as_sent(read_batch(spark, **options, endingOffsets=f"group:{group}"))

    assert {place: one for place, one in sent.items() if place[2] >= at[place[1]]} == after
    assert {place: one for place, one in sent.items() if place[2] < at[place[1]]} == before
    assert 57 == len(before)


# -- streams


def holding(frame: DataFrame, folder: Path, at: int) -> DataFrame:
    """Have the task that meets an offset of partition 0 say so in ``held``, and stand still until there is ``go-on``."""
    held, go_on = folder / "held", folder / "go-on"

    def hold(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = zip(batch.column("partition").to_pylist(), batch.column("offset").to_pylist(), strict=True)
            if (0, at) in rows:
                held.touch()
                until = time.monotonic() + HELD_S
                while not go_on.exists() and time.monotonic() < until:
                    time.sleep(0.01)
            yield batch

    return frame.mapInArrow(hold, frame.schema)


def stop_at(frame: DataFrame, folder: Path, at: int) -> None:
    """Run a stream as :func:`run_available` does, and stop it in the middle of the trigger that has an offset."""
    query = (
        holding(frame, folder, at)
        .writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .start(str(folder / "sink"))
    )
    try:
        wait_until(lambda: (folder / "held").exists() or not query.isActive, "the trigger is under way", 120)
    finally:
        query.stop()
        (folder / "go-on").touch()
    assert query.exception() is None


def test_stopped_stream_goes_on_from_its_checkpoint(
    spark: SparkSession, cluster: Cluster, topic: str, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """It begins where a group stands, is stopped in a trigger, and reads each record once; the id is in the checkpoint."""
    group = unique("g")
    first = send(cluster, topic, 1)
    commit(cluster, group, topic, {0: 10, 1: 20, 2: 30})
    options = {**where(cluster, topic), "startingOffsets": f"group:{group}", "maxOffsetsPerTrigger": "60"}
    made = f"{topic}@{find_topic_id(cluster, topic)}"

    stop_at(read_stream(spark, **options), tmp_path, at=40)
    stopped = read_triggers(tmp_path)
    second = send(cluster, topic, 2)
    commit(cluster, group, topic, {0: 0, 1: 0, 2: 0})  # which counts no more
    run_available(read_stream(spark, **options), tmp_path)

    begin = {topic: {"0": 10, "1": 20, "2": 30}, made: {}}
    assert begin == stopped[0]
    assert stopped[-1][topic]["0"] < EACH // PARTITIONS
    assert {topic: dict.fromkeys("012", 2 * EACH // PARTITIONS), made: {}} == read_triggers(tmp_path)[-1]
    assert {place: one for place, one in {**first, **second}.items() if place[2] >= begin[topic][str(place[1])]} == (
        as_sent(read_sink(spark, tmp_path))
    )


def recreate(cluster: Cluster, topic: str) -> str:
    """Delete a topic and create it again; return its new id."""
    before = find_topic_id(cluster, topic)
    cluster.delete_topic(topic)
    wait_until(lambda: find_topic_id(cluster, topic) is None, "the topic is gone", 60)
    cluster.create_topic(topic, PARTITIONS)
    after = find_topic_id(cluster, topic)
    assert after is not None
    assert before != after
    return after


def sunk(spark: SparkSession, folder: Path) -> Counter[tuple[int, int, bytes]]:
    """Return what is in the sink: partition, offset and value. A re-created topic has the same offsets again."""
    rows = read_sink(spark, folder).select("partition", "offset", "value").collect()
    return Counter((row.partition, row.offset, bytes(row.value)) for row in rows)


def send_named(cluster: Cluster, topic: str, name: str, count: int) -> Counter[tuple[int, int, bytes]]:
    records = (Sent(topic, number % PARTITIONS, None, f"{name}-{number}".encode()) for number in range(count))
    return Counter(
        (place[1], place[2], one.value or b"") for place, one in send_all(cluster.bootstrap, records).items()
    )


def check_recreated(spark: SparkSession, cluster: Cluster, topic: str, folder: Path, **options: object) -> None:
    """A checkpoint is of a topic's former incarnation, all of whose offsets the new one has as well.

    The stream ends and leaves its checkpoint as it was; without ``failOnDataLoss`` it reads the new topic from its beginning.
    """
    old, before = sunk(spark, folder), read_triggers(folder)
    made = recreate(cluster, topic)
    new = send_named(cluster, topic, "new", 2 * EACH)
    given = {**where(cluster, topic), "startingOffsets": "latest", **options}

    with pytest.raises(StreamingQueryException, match=f"{topic}/0: the topic was deleted and re-created"):
        run_available(read_stream(spark, **given), folder)
    assert before == read_triggers(folder)
    run_available(read_stream(spark, **given, failOnDataLoss="false"), folder)

    assert old + new == sunk(spark, folder)
    assert {topic: dict.fromkeys("012", 2 * EACH // PARTITIONS), f"{topic}@{made}": {}} == read_triggers(folder)[-1]


def test_topic_that_is_created_again_is_noticed_by_its_id(
    spark: SparkSession, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    """Although its log holds the position of the deleted one."""
    old = send_named(cluster, topic, "old", EACH)
    run_available(read_stream(spark, **where(cluster, topic), startingOffsets="earliest"), tmp_path)

    assert old == sunk(spark, tmp_path)
    check_recreated(spark, cluster, topic, tmp_path)


# -- the audit


def audit(spark: SparkSession, settings: Mapping[str, Any]) -> tuple[tuple[str, ...], Mapping[str, object]]:
    """Return findings and numbers of an audit that reads every record."""
    given = {**settings, "pipeline": {"audit": {"proof": True}}}
    summary = run_audit(lambda: spark, JobSettings.model_validate(given), Silent())
    return summary.findings, summary.numbers


def test_audit_of_what_a_daemon_has_landed_is_clean(
    spark: SparkSession, cluster: Cluster, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """By the daemon's own settings; removed files are missed, as the positions in Kafka are beyond what is left."""
    name = unique("audit")
    job = LandingJob(zookeeper="", group=name, folder=tmp_path, parquet=f"{name}-orders", jsonl=f"{name}-clicks")
    sent: dict[tuple[str, int, int], Sent] = {}
    for seed, topic in enumerate(job.topics):
        cluster.create_topic(topic, PARTITIONS)
        sent |= send(cluster, topic, seed)
    with Leaving(job=job, bootstrap=cluster.bootstrap).without_zookeeper("one") as member:
        member.wait(lambda: acknowledged(member) == len(sent), "all has landed", 120)
        assert member.terminate() == 0
    config = tmp_path / "one.yaml"
    settings = yaml.safe_load(config.read_text())
    summary = Jobs(tmp_path, config).finish("audit")
    proven = audit(spark, settings)
    for folder in ("parquet", "jsonl"):
        for file in sorted((tmp_path / folder).glob(f"*/partition=0/*/*.{folder}")):
            file.unlink()
    damaged = audit(spark, settings)

    assert (summary["findings"], summary["group"], summary["records"]) == ([], name, len(sent))
    assert proven[0] == ()
    assert {"records": len(sent), "records_read": len(sent), "missing_offsets": 0}.items() <= proven[1].items()
    ahead = "the group has committed 100, and [0, 100) has not been landed"
    assert [True, True] == [one.startswith("committed ahead: ") and ahead in one for one in damaged[0]]


# -- a cluster that leaves ZooKeeper


@pytest.mark.full
def test_checkpoint_made_with_zookeeper_goes_on_with_the_recorded_identities(
    spark: SparkSession, own_cluster: ClusterFactory, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """Under the identity of ZooKeeper; a topic that is created again since the record is noticed."""
    cluster, topic = own_cluster("2.8.2"), unique("left")
    cluster.create_topic(topic, PARTITIONS)
    record = tmp_path / "identities.json"
    old = send_named(cluster, topic, "old", EACH)
    run_available(
        read_stream(spark, zookeeper=cluster.zookeeper, subscribe=topic, startingOffsets="earliest"), tmp_path
    )
    run("identities", "-z", cluster.zookeeper, "-o", str(record))
    made = {one["topic"]: one["czxid"] for one in json.loads(record.read_text())["topics"]}[topic]
    with_zookeeper = read_triggers(tmp_path)
    old += send_named(cluster, topic, "later", EACH)
    run_available(read_stream(spark, **where(cluster, topic), identities=record), tmp_path)

    assert old == sunk(spark, tmp_path)
    assert {f"{topic}@{made}"} == {name for one in read_triggers(tmp_path) for name in one if "@" in name}
    assert len(with_zookeeper) < len(read_triggers(tmp_path))
    check_recreated(spark, cluster, topic, tmp_path, identities=record)
