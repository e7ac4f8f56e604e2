# SPDX-License-Identifier: Apache-2.0
"""The producer against real brokers, read back by Kafka's own consumers and by kcat."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from base64 import b64decode
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from consumerd.client.delivery import Delivery, RecordMetadata
from consumerd.client.opening import open_producer
from consumerd.client.partitioner import PARTITIONERS
from consumerd.client.producer import Producer
from consumerd.client.producer_hooks import encode_text
from consumerd.client.producer_settings import ProducerSettings
from consumerd.errors import BufferFull, TopicMissing, WriteRefused
from consumerd.wire.compression import Codec
from tests.interop.conftest import ClusterFactory, Figure, require
from tests.support.foreign.client import Row
from tests.support.foreign.java_modern import JavaModern
from tests.support.kafka import Cluster, JavaConsumer, has_headers, java_command, parse_release
from tests.support.lost_answers import LostAnswers
from tests.support.tcp_proxy import TcpProxy
from tests.support.tools import require_tool
from tests.support.waiting import wait_until

pytestmark = pytest.mark.records

CODECS = (Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4)
ACKS = (0, 1, -1)
PARTITIONS = 3
PER_KIND = 40

Place = tuple[str, int, int]


@dataclass(frozen=True)
class Read:
    """A record as a foreign consumer gave it."""

    key: bytes | None
    value: bytes | None


def read_by_java(consumer: JavaConsumer, count: int) -> dict[Place, Read]:
    """Wait until the high-level consumer has delivered so many records, and leave."""

    def read() -> dict[Place, Read]:
        return {
            (topic, partition, offset): Read(*(_decode(one) for one in text.split(b"\t")))
            for topic, partition, offset, text in consumer.records()
        }

    wait_until(lambda: len(read()) >= count, f"{count} records are delivered", 60)
    consumer.terminate()
    return read()


def _decode(text: bytes) -> bytes | None:
    return None if text == b"-" else b64decode(text)


def produce(cluster: Cluster, work: Callable[[Producer], Coroutine[Any, Any, None]], **settings: Any) -> None:
    """Run ``work`` with a producer."""

    async def run() -> None:
        async with open_producer(cluster.bootstrap, settings=ProducerSettings(**settings)) as producer:
            await work(producer)

    asyncio.run(run())


def expected_records(kind: str) -> list[Read]:
    """Return what is written of each kind: keys or none, empty values, tombstones, some large enough to need several blocks."""
    rows = []
    for number in range(PER_KIND):
        key = None if number % 5 == 0 else f"{kind}-key-{number % 7}".encode()
        value = f"{kind}-{number}-".encode() + b"x" * (number * 900)
        if number == 3:
            value = b""
        rows.append(Read(key, None if number == 9 else value))
    return rows


def write_every_kind(cluster: Cluster, topic: str) -> dict[tuple[Codec, int], list[tuple[Read, RecordMetadata]]]:
    """Write the same kinds of records with every codec and every kind of acknowledgement."""
    written: dict[tuple[Codec, int], list[tuple[Read, RecordMetadata]]] = {}
    for codec in CODECS:
        for acks in ACKS:

            async def work(producer: Producer, codec: Codec = codec, acks: int = acks) -> None:
                rows = expected_records(f"{codec.name}{acks}")
                deliveries = [
                    await producer.enqueue(topic, one.value, key=one.key, partition=number % PARTITIONS)
                    for number, one in enumerate(rows)
                ]
                written[codec, acks] = [(row, await one) for row, one in zip(rows, deliveries, strict=True)]

            produce(cluster, work, codec=codec, acks=acks, batch_bytes=100_000)
    return written


def check_every_kind(
    topic: str, written: Mapping[tuple[Codec, int], list[tuple[Read, RecordMetadata]]], read: Mapping[Place, Read]
) -> None:
    """Each record once, at its offset where one was told, and in the order of its partition."""
    assert len(CODECS) * len(ACKS) * PER_KIND == len(read)
    order: dict[int, list[Read]] = defaultdict(list)
    for (_, partition, _), record in sorted(read.items(), key=lambda one: one[0]):
        order[partition].append(record)
    for (codec, acks), rows in written.items():
        for partition in range(PARTITIONS):
            mine = [row for row, told in rows if told.partition == partition]
            found = [one for one in order[partition] if one in mine]
            assert mine == found, f"{codec.name}, acks {acks}: order of partition {partition}"
        for row, told in rows:
            if acks == 0:
                assert told.offset is None
            else:
                assert told.offset is not None
                assert row == read[topic, told.partition, told.offset]


@pytest.mark.smoke
@pytest.mark.timeout(120)
def test_every_codec_and_acknowledgement_is_read_back(
    release: str, shared_clusters: ClusterFactory, unique: Callable[[str], str]
) -> None:
    """By the Java high-level consumer of the release: keys, values, nulls, offsets, order."""
    cluster = shared_clusters(release)
    topic = unique("produced")
    cluster.create_topic(topic, PARTITIONS)
    written = write_every_kind(cluster, topic)
    read = read_by_java(cluster.java_consumer(unique("reader"), topic), len(CODECS) * len(ACKS) * PER_KIND)
    check_every_kind(topic, written, read)
    check_stored_format(cluster, release, topic)
    require_tool("kcat", "kcat")
    assert read == read_by_kcat(cluster, release, topic)


def check_stored_format(cluster: Cluster, release: str, topic: str) -> None:
    """The broker stores what was sent: the magic of its release and every codec, in the log's own bytes."""
    magic = 0 if parse_release(release) < (0, 10) else 1 if parse_release(release) < (0, 11) else 2
    magics, codecs = set(), set()
    for partition in range(PARTITIONS):
        for path in cluster.segments(topic, partition):
            data, at = path.read_bytes(), 0
            while at + 17 < len(data) and (size := int.from_bytes(data[at + 8 : at + 12])):
                magics.add(data[at + 16])
                codecs.add(data[at + (22 if data[at + 16] == 2 else 17)] & 7)
                at += 12 + size
    assert {magic} == magics
    assert set(map(int, CODECS)) == codecs


def read_by_kcat(cluster: Cluster, release: str, topic: str) -> dict[Place, Read]:
    """Read a topic with kcat; keys and values are told apart from null by their lengths."""
    command = ["kcat", "-C", "-q", "-e", "-b", cluster.bootstrap, "-t", topic, "-o", "beginning"]
    command += ["-f", "%p %o %K %S %k%s\\n"]
    if parse_release(release) < (0, 10):
        command += ["-X", f"broker.version.fallback={release}", "-X", "api.version.request=false"]
    output = subprocess.run(command, capture_output=True, check=True, timeout=60).stdout
    read = {}
    at = 0
    while at < len(output):
        partition, offset, key_size, value_size, _ = output[at:].split(b" ", 4)
        at += sum(map(len, (partition, offset, key_size, value_size))) + 4
        key, at = _take(output, at, int(key_size))
        value, at = _take(output, at, int(value_size))
        assert b"\n" == output[at : at + 1]
        at += 1
        read[topic, int(partition), int(offset)] = Read(key, value)
    return read


def _take(output: bytes, at: int, size: int) -> tuple[bytes | None, int]:
    return (None, at) if size < 0 else (output[at : at + size], at + size)


@pytest.mark.smoke
@pytest.mark.timeout(120)
def test_keys_go_where_java_sends_them(
    release: str, shared_clusters: ClusterFactory, unique: Callable[[str], str]
) -> None:
    """A thousand keys, by Kafka's new producer, its old one with bytes and its old one with strings: the same partitions."""
    cluster = shared_clusters(release)
    java = [unique(kind) for kind in ("java-new", "java-old-bytes", "java-old-string")]
    ours = unique("ours")
    count = 23
    for topic in (*java, ours):
        cluster.create_topic(topic, count)
        cluster.wait_topic(topic, count)
    keys = [f"key-{number}" for number in range(900)] + [f"schlüssel-\U0001f511-{number}" for number in range(100)]
    source = Path(__file__).parent / "KeyedProducers.java"
    done = subprocess.run(
        java_command(release, str(source), cluster.bootstrap, *java, heap="256m", brisk=True),
        input="\n".join(keys).encode(), capture_output=True, timeout=90, check=False,
    )  # fmt: skip
    assert 0 == done.returncode, done.stderr.decode()[-2000:]
    read = read_by_java(cluster.java_consumer(unique("reader"), ",".join(java)), 3 * len(keys))
    theirs: dict[str, dict[str, int]] = defaultdict(dict)
    for (topic, partition, _), record in read.items():
        assert record.value is not None
        theirs[topic][record.value.decode()] = partition

    async def choose(partitioner: str) -> dict[str, int]:
        async with open_producer(
            cluster.bootstrap,
            partitioner=PARTITIONERS[partitioner.removesuffix("-text")](lambda: 0.0, time.monotonic),
            key_encoder=encode_text,
        ) as producer:
            deliveries = {
                key: await producer.enqueue(ours, b"", key=key if partitioner.endswith("-text") else key.encode())
                for key in keys
            }
            return {key: (await delivery).partition for key, delivery in deliveries.items()}

    for topic, partitioner in zip(java, ("murmur2", "java-hash", "java-hash-text"), strict=True):
        assert theirs[topic] == asyncio.run(choose(partitioner)), partitioner
        assert count == len(set(theirs[topic].values()))


@pytest.mark.smoke
@pytest.mark.timeout(150)
def test_a_leader_killed_in_the_middle_loses_nothing(
    release: str, own_cluster: ClusterFactory, unique: Callable[[str], str], figure: Figure
) -> None:
    """Acks -1, two replicas: every record is written and where it is said to be, and each partition keeps its order.

    The longest wait is the brokers': the session of the one that was killed ends after 6 s. Where it was the controller, too, the
    new one does not take it out of the replicas that the other broker waits for, which it does itself (``replica.lag.time.max.ms``,
    10 s, looked at every so often).
    """
    cluster = own_cluster(release, 2)
    topic, partitions = unique("killed"), 4
    cluster.create_topic(topic, partitions, 2)
    cluster.wait_topic(topic, partitions)
    sent: dict[int, list[tuple[bytes, Delivery]]] = defaultdict(list)

    async def work(producer: Producer) -> None:
        loop = asyncio.get_running_loop()
        killed = 0.0
        longest, last = 0.0, loop.time()
        for number in range(4_000):
            if number == 1_500:
                killed = loop.time()
                await asyncio.to_thread(cluster.kill_broker, 0)
            value = b"%d" % number
            delivery = await producer.enqueue(topic, value, partition=number % partitions)
            sent[number % partitions].append((value, delivery))
            if number % 50 == 49:
                await delivery
                longest, last = max(longest, loop.time() - last), loop.time()
        assert killed
        await producer.flush()
        figure("longest wait for an acknowledgement, s", longest)

    produce(cluster, work)
    wanted = {
        (topic, told.partition, told.offset): value
        for deliveries in sent.values()
        for value, told in ((value, delivery.result()) for value, delivery in deliveries)
    }
    assert 4_000 == len(wanted)
    read = read_by_java(cluster.java_consumer(unique("reader"), topic), 4_000)
    assert wanted == {place: read[place].value for place in wanted if place in read}
    for partition, deliveries in sent.items():
        log = [record.value for (_, where, _), record in sorted(read.items()) if where == partition]
        assert [value for value, _ in deliveries] == list(dict.fromkeys(log)), "repeated perhaps, never reordered"
    figure("records that stand in the log twice", len(read) - 4_000)


@pytest.mark.smoke
@pytest.mark.timeout(120)
async def test_lost_answers_repeat_batches_and_reorder_none(
    release: str, unique: Callable[[str], str], figure: Figure
) -> None:
    """The broker has written a batch and the connection ends before it says so: sent again, none lost, order kept."""
    require(release)
    cluster = Cluster(release)
    async with TcpProxy(cluster.ports[0]) as proxy:
        cluster.properties = {"advertised.port": str(proxy.port)}
        with contextlib.ExitStack() as stack:
            await asyncio.to_thread(stack.enter_context, cluster)
            topic = unique("cut")
            await asyncio.to_thread(cluster.create_topic, topic, 2)
            await asyncio.to_thread(cluster.wait_topic, topic, 2)
            answers = proxy.on_frame = LostAnswers(4)
            sent: dict[int, list[tuple[bytes, Delivery]]] = {0: [], 1: []}
            settings = ProducerSettings(acks=-1, batch_bytes=2_000)
            async with open_producer(f"127.0.0.1:{proxy.port}", settings=settings) as producer:
                for number in range(6_000):
                    value = b"%d" % number
                    sent[number % 2].append((value, await producer.enqueue(topic, value, partition=number % 2)))
                await producer.flush()
                counts = producer.counts()
            proxy.on_frame = None
            assert answers.lost > 5
            assert counts.retries >= answers.lost
            consumer = await asyncio.to_thread(cluster.java_consumer, unique("reader"), topic)
            # the last one to be acknowledged is the last one in the log
            total = sum(1 + max(one.result().offset or 0 for _, one in deliveries) for deliveries in sent.values())
            read = await asyncio.to_thread(read_by_java, consumer, total)
    for partition, deliveries in sent.items():
        log = {offset: record.value for (_, where, offset), record in sorted(read.items()) if where == partition}
        told = [(one.result().offset, value) for value, one in deliveries]
        assert told == [(offset, log[offset or 0]) for offset, _ in told], "each is where its acknowledgement says"
        assert [value for value, _ in deliveries] == list(dict.fromkeys(log.values())), "repeated, never reordered"
    assert len(read) >= 6_000 + answers.lost
    figure("answers lost", answers.lost)
    figure("records that stand in the log twice", len(read) - 6_000)


@pytest.mark.timeout(120)
def test_javas_new_consumer_reads_every_codec(
    shared_clusters: ClusterFactory, unique: Callable[[str], str], release: str
) -> None:
    """Keys, values, nulls, times and headers as they were given, at the offsets that were told."""
    if parse_release(release) < (0, 10):
        pytest.skip(
            "the consumer that keeps its positions in Kafka needs brokers from 0.10 on, whose records have times"
        )
    cluster = shared_clusters(release)
    topic = unique("new-consumer")
    cluster.create_topic(topic)
    cluster.wait_topic(topic, 1)
    # of the past, but not older than what brokers keep
    began_ms = time.time_ns() // 1_000_000 - 3_600_000
    rows: list[Row] = []

    async def work(producer: Producer) -> None:
        for number, one in enumerate(expected_records("new")):
            headers = (("number", b"%d" % number), ("none", None)) if number % 3 and has_headers(release) else ()
            time_ms = began_ms + number
            told = await producer.send(topic, one.value, key=one.key, timestamp_ms=time_ms, headers=headers)
            assert told.offset is not None
            assert time_ms == told.timestamp_ms
            rows.append(Row(offset=told.offset, key=one.key, value=one.value, timestamp_ms=time_ms, headers=headers))

    for codec in CODECS:
        produce(cluster, work, codec=codec)
    with contextlib.closing(JavaModern(cluster.bootstrap)) as java:
        assert rows == java.read({topic: len(rows)})[topic]


@pytest.mark.timeout(120)
def test_a_broker_that_stalls_holds_callers_back(
    release: str, own_cluster: ClusterFactory, unique: Callable[[str], str]
) -> None:
    """A paused broker: the buffer fills to its bound and no further, callers wait, then hear of it; all is written later."""
    cluster = own_cluster(release)
    topic = unique("stalled")
    cluster.create_topic(topic, 2)
    cluster.wait_topic(topic, 2)
    broker = cluster.processes["broker-0"].pid
    bound = 2 << 20

    async def work(producer: Producer) -> None:
        await producer.send(topic, b"first")
        os.kill(broker, signal.SIGSTOP)
        try:
            most, count = 0, 0
            with pytest.raises(BufferFull, match=r"no room for a record of \d+ bytes within 1 s"):
                while True:
                    await producer.enqueue(topic, b"%d" % count + b"x" * 400)
                    count += 1
                    most = max(most, producer.counts().open_bytes)
        finally:
            os.kill(broker, signal.SIGCONT)
        assert bound * 0.98 < most <= bound
        assert count < bound / 400
        await producer.flush()
        assert 0 == producer.counts().open_bytes
        await producer.send(topic, b"last")
        counts.append(count + 2)

    counts: list[int] = []
    produce(cluster, work, buffer_bytes=bound, max_block_s=1, max_request_bytes=1 << 20)
    read = read_by_java(cluster.java_consumer(unique("reader"), topic), counts[0])
    assert counts[0] == len(read)


@pytest.mark.smoke
@pytest.mark.timeout(120)
def test_topics_come_into_being_and_limits_are_the_brokers(
    release: str, own_cluster: ClusterFactory, unique: Callable[[str], str]
) -> None:
    """The first record makes the topic; one record over the broker's limit fails alone; headers go where they can be kept."""
    cluster = own_cluster(
        release,
        properties={"auto.create.topics.enable": "true", "num.partitions": "3", "message.max.bytes": "20000"},
    )
    topic = unique("made")

    async def work(producer: Producer) -> None:
        told = await producer.send(topic, b"first")
        assert told.offset == 0
        deliveries = [await producer.enqueue(topic, b"x" * 900, partition=0) for _ in range(60)]
        large = await producer.enqueue(topic, os.urandom(30_000), partition=0)
        behind = [await producer.enqueue(topic, b"y" * 900, partition=0) for _ in range(60)]
        with pytest.raises(WriteRefused, match=rf"{topic}/0: 1 record not written.*max.message.bytes"):
            await large
        offsets = [(await one).offset for one in (*deliveries, *behind)]
        assert sorted(offsets) == offsets
        assert 120 == len(set(offsets))
        headers = (("name", b"value"), ("none", None))
        if has_headers(release):
            await producer.send(topic, b"with headers", headers=headers)
        else:
            with pytest.raises(WriteRefused, match="headers cannot be written in magic"):
                await producer.send(topic, b"with headers", headers=headers)

    produce(cluster, work, linger_s=0.05)
    produce(cluster, work_on(unique("made")), linger_s=0.05, codec=Codec.GZIP)

    async def refused(producer: Producer) -> None:
        with pytest.raises(TopicMissing, match="other characters than letters"):
            await producer.send("not a name", b"")

    produce(cluster, refused, max_block_s=2)


def work_on(topic: str) -> Callable[[Producer], Coroutine[Any, Any, None]]:
    """Write batches that are too large compressed, whose halves are not."""

    async def work(producer: Producer) -> None:
        deliveries = [await producer.enqueue(topic, os.urandom(1_000), partition=0) for _ in range(50)]
        assert list(range(50)) == [(await one).offset for one in deliveries]

    return work


@pytest.mark.timeout(120)
def test_zstd_is_read_back_from_a_broker_that_knows_it(
    own_cluster: ClusterFactory, unique: Callable[[str], str]
) -> None:
    """From 2.1 on; kcat is the foreign reader, as there is no high-level consumer in that release."""
    release = "2.8.2"
    cluster = own_cluster(release)
    topic = unique("zstd")
    cluster.create_topic(topic)
    cluster.wait_topic(topic, 1)
    rows = expected_records("zstd")

    async def work(producer: Producer) -> None:
        deliveries = [await producer.enqueue(topic, one.value, key=one.key) for one in rows]
        assert list(range(PER_KIND)) == [(await one).offset for one in deliveries]

    produce(cluster, work, codec=Codec.ZSTD)
    (path,) = cluster.segments(topic)
    assert Codec.ZSTD == path.read_bytes()[22] & 7
    require_tool("kcat", "kcat")
    assert {(topic, 0, number): row for number, row in enumerate(rows)} == read_by_kcat(cluster, release, topic)


# -- the command


def run_command(*args: str, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run ``consumerd produce``."""
    command = [sys.executable, "-m", "consumerd", "produce", *args]
    return subprocess.run(command, input=data, capture_output=True, timeout=60, check=False)


@pytest.mark.timeout(120)
def test_the_command_writes_lines(
    release: str, shared_clusters: ClusterFactory, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """From stdin and a file, by bootstrap and by ZooKeeper, values alone and with keys, tombstones; it counts what it did."""
    cluster = shared_clusters(release)
    topic = unique("lines")
    cluster.create_topic(topic, 2)
    cluster.wait_topic(topic, 2)
    file = tmp_path / "lines"
    file.write_bytes(b"from a file\n\nlast without an end")
    by_file = run_command(topic, "-z", cluster.zookeeper, "--file", str(file), "--partition", "1", "--codec", "lz4")
    assert (0, b"") == (by_file.returncode, by_file.stdout), by_file.stderr
    assert b"3 records acknowledged, 30 bytes in 1 partition of " in by_file.stderr
    header = ("--header", "source=test") if has_headers(release) else ()
    keyed = run_command(
        topic, "--bootstrap", cluster.bootstrap, "--key-separator", r"\t", "--null-value", "NULL", "--partition", "0",
        *header, "--acks", "1", "--quiet", data=b"k1\tv1\nk1\tNULL\nk2\ta\tb\n",
    )  # fmt: skip
    assert (0, b"", b"") == (keyed.returncode, keyed.stdout, keyed.stderr)
    read = read_by_java(cluster.java_consumer(unique("reader"), topic), 6)
    assert {
        (topic, 1, 0): Read(None, b"from a file"),
        (topic, 1, 1): Read(None, b""),
        (topic, 1, 2): Read(None, b"last without an end"),
        (topic, 0, 0): Read(b"k1", b"v1"),
        (topic, 0, 1): Read(b"k1", None),
        (topic, 0, 2): Read(b"k2", b"a\tb"),
    } == read
    zstd = run_command(topic, "--bootstrap", cluster.bootstrap, "--codec", "zstd", data=b"a\n")
    assert 1 == zstd.returncode
    assert b"use lz4, snappy or gzip" in zstd.stderr


@pytest.mark.timeout(120)
def test_ctrl_c_writes_what_was_read(
    release: str, shared_clusters: ClusterFactory, unique: Callable[[str], str]
) -> None:
    """Even what lingers; the exit code says that it was interrupted."""
    cluster = shared_clusters(release)
    topic = unique("interrupted")
    cluster.create_topic(topic, 1)
    cluster.wait_topic(topic, 1)
    command = [sys.executable, "-m", "consumerd", "produce", topic, "--bootstrap", cluster.bootstrap, "--linger", "20"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(b"one\ntwo\nnot a whole li")
        process.stdin.flush()
        # it says every few seconds how many lines it has read
        assert b"consumerd: 2 lines read, 0 acknowledged\n" == process.stderr.readline()
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
        assert 130 == process.wait(30)
    assert b"2 records acknowledged" in rest
    read = read_by_java(cluster.java_consumer(unique("reader"), topic), 2)
    assert [b"one", b"two"] == [record.value for _, record in sorted(read.items(), key=lambda one: one[0])]
