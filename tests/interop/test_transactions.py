# SPDX-License-Identifier: Apache-2.0
"""Transactions of our producer on real brokers, as Kafka's own consumer reads them with read_committed.

``tests/component/embedded/test_transactions.py`` has the same on the embedded broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from consumerd.client.delivery import Delivery
from consumerd.client.opening import open_producer
from consumerd.client.producer_settings import ProducerSettings
from consumerd.errors import ProducerFenced, TransactionFailed
from consumerd.wire.errorcodes import ErrorCode
from consumerd.wire.modern.find_coordinator import TRANSACTION, FindCoordinatorRequest
from consumerd.wire.modern.transactions import InitProducerIdRequest
from tests.interop.conftest import ClusterFactory, Figure, require
from tests.support import topic_checks, transaction_checks
from tests.support.committed import read_committed, values_of
from tests.support.embedded import EmbeddedThread
from tests.support.kafka import Cluster, compile_java, java_command
from tests.support.kraft import make_cluster
from tests.support.lost_answers import LostAnswers
from tests.support.raw_client import RawClient, raw_client
from tests.support.tcp_proxy import TcpProxy
from tests.support.transaction_checks import Seen
from tests.support.transaction_script import SCRIPTS, ask, differences, recorded
from tests.vectors.record import LINES, TOPIC

RELEASES: Final = ("1.1.1", "4.3.1")

pytestmark = [pytest.mark.records, pytest.mark.timeout(300), pytest.mark.drawn(parts=3)]
on_each_release = pytest.mark.parametrize("kafka_release", RELEASES)


def check(cluster: Cluster, topic: str, expected: Seen) -> None:
    """Java's consumer sees these values and no others, in their order."""
    records = read_committed(cluster.bootstrap, topic, release=cluster.release)
    assert dict(expected) == {partition: values_of(records, partition) for partition in expected}
    assert len(records) == sum(map(len, expected.values()))


@on_each_release
def test_committed_records_are_read_once_and_aborted_ones_never(
    shared_clusters: ClusterFactory, unique: Callable[[str], str], kafka_release: str
) -> None:
    """With each codec, in the order of each partition."""
    cluster, topic = shared_clusters(kafka_release), unique("committed")
    cluster.create_topic(topic, 3)
    check(cluster, topic, asyncio.run(transaction_checks.commit_and_abort(cluster.bootstrap, topic)))


@on_each_release
def test_what_a_fenced_predecessor_writes_is_never_visible(
    shared_clusters: ClusterFactory, unique: Callable[[str], str], kafka_release: str
) -> None:
    """Neither what it wrote before, nor what it sends afterwards."""
    cluster, topic = shared_clusters(kafka_release), unique("fenced")
    cluster.create_topic(topic)
    check(cluster, topic, asyncio.run(transaction_checks.fence(cluster.bootstrap, topic)))


@on_each_release
def test_offsets_are_those_of_committed_transactions(
    shared_clusters: ClusterFactory, unique: Callable[[str], str], kafka_release: str
) -> None:
    """As the release's own tool shows the group."""
    cluster, topic = shared_clusters(kafka_release), unique("offsets")
    cluster.create_topic(topic)
    group = unique("group")
    asyncio.run(transaction_checks.commit_offsets(cluster.bootstrap, topic, group))
    (row,) = [line.split() for line in cluster.describe_group(group).splitlines() if topic in line.split()]
    assert "5" in row
    assert "9" not in row


@on_each_release
def test_a_timeout_above_the_brokers_limit_is_told(
    shared_clusters: ClusterFactory, unique: Callable[[str], str], kafka_release: str
) -> None:
    """By the first call, before a record is written."""
    cluster = shared_clusters(kafka_release)
    asyncio.run(transaction_checks.refuse_a_long_timeout(cluster.bootstrap, unique("long")))


@on_each_release
def test_each_number_is_there_once_though_its_writer_was_killed_at_every_step(
    shared_clusters: ClusterFactory, unique: Callable[[str], str], kafka_release: str, figure: Figure
) -> None:
    """The position is in the transaction of its records: a successor goes on exactly where the last commit ended."""
    cluster, topic = shared_clusters(kafka_release), unique("killed")
    cluster.create_topic(topic, 3)
    expected, kills = transaction_checks.kill_at_each_step(cluster.bootstrap, topic)
    check(cluster, topic, expected)
    figure("kills", kills)


@on_each_release
def test_a_transaction_that_takes_too_long_is_void(
    shared_clusters: ClusterFactory, unique: Callable[[str], str], kafka_release: str
) -> None:
    """The coordinator aborts it, and fences its producer, which learns of it by its next request."""
    cluster, topic = shared_clusters(kafka_release), unique("slow")
    cluster.create_topic(topic)

    async def run() -> Seen:
        settings = ProducerSettings(transactional_id=topic, transaction_timeout_ms=1_000)
        async with open_producer(cluster.bootstrap, settings=settings) as producer:
            await producer.init_transactions()
            producer.begin_transaction()
            with pytest.raises((ProducerFenced, TransactionFailed)):
                while True:
                    await producer.send(topic, b"void")
                    await asyncio.sleep(0.2)  # until the broker's clock says so
            with pytest.raises(TransactionFailed):
                await producer.commit_transaction()
        return {0: []}

    check(cluster, topic, asyncio.run(run()))


@on_each_release
async def test_lost_answers_write_no_batch_twice(
    unique: Callable[[str], str], kafka_release: str, figure: Figure
) -> None:
    """Without idempotence the same run repeats batches (``test_producer``)."""
    require(kafka_release)
    cluster, topic = make_cluster(kafka_release), unique("cut")
    async with TcpProxy(cluster.ports[0]) as proxy:
        cluster.advertise(proxy.port)
        with contextlib.ExitStack() as stack:
            await asyncio.to_thread(stack.enter_context, cluster)
            await asyncio.to_thread(cluster.create_topic, topic, 2)
            answers = proxy.on_frame = LostAnswers(4)
            sent: dict[int, list[tuple[bytes, Delivery]]] = {0: [], 1: []}
            settings = ProducerSettings(enable_idempotence=True, batch_bytes=2_000)
            async with open_producer(f"127.0.0.1:{proxy.port}", settings=settings) as producer:
                for number in range(6_000):
                    value = b"%d" % number
                    sent[number % 2].append((value, await producer.enqueue(topic, value, partition=number % 2)))
                await producer.flush()
            proxy.on_frame = None
            assert answers.lost > 5
            records = await asyncio.to_thread(read_committed, cluster.bootstrap, topic, release=kafka_release)
    for partition, deliveries in sent.items():
        assert [value for value, _ in deliveries] == values_of(records, partition)
        offsets = [one.offset for one in records if one.partition == partition]
        assert offsets == [one.result().offset for _, one in deliveries]
    figure("answers lost", answers.lost)


@on_each_release
def test_a_fresh_coordinator_answers_errors_that_pass(
    own_cluster: ClusterFactory, kafka_release: str, figure: Figure
) -> None:
    """Measured: 15 and 16 while ``__transaction_state`` comes into being, 14 while it is read; the id is -1 then."""
    cluster = own_cluster(kafka_release)
    cluster.create_topic("t")
    codes: Counter[int] = Counter()

    async def begin(client: RawClient) -> int:
        found = await client.ask(FindCoordinatorRequest(key="x", key_type=TRANSACTION), 1)
        if found.error_code:
            return int(found.error_code)
        request = InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=60_000)
        answer = await client.ask(request, 0)
        assert (answer.producer_id == -1) == bool(answer.error_code)
        return int(answer.error_code)

    async def run() -> None:
        async with raw_client(cluster.ports[0]) as client:
            while code := await begin(client):
                codes[code] += 1
                await asyncio.sleep(0.05)

    asyncio.run(run())
    assert codes
    assert set(codes) <= {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
    figure("codes", dict(codes))


@pytest.mark.parametrize("script", SCRIPTS)
def test_requests_are_answered_as_recorded(script: str, own_cluster: ClusterFactory) -> None:
    """The recording, with which the embedded broker is compared, is what 1.1.1 says."""
    cluster = own_cluster("1.1.1", properties={"offsets.topic.num.partitions": "1"})
    cluster.create_topic(TOPIC)
    cluster.produce(TOPIC, LINES)
    assert [] == differences(recorded(script), ask(script, cluster.ports[0]))


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[EmbeddedThread]:
    """The embedded broker, as a cluster without ZooKeeper."""
    require("1.1.1")
    with EmbeddedThread(tmp_path, None) as running:
        yield running


def test_kafkas_own_consumer_reads_committed_records_of_the_embedded_broker(embedded: EmbeddedThread) -> None:
    """What our producer has committed, fenced and aborted there."""
    for topic, partitions, write in (
        ("committed", 3, transaction_checks.commit_and_abort),
        ("fenced", 1, transaction_checks.fence),
    ):
        embedded.create_topic(topic, partitions)
        expected = asyncio.run(write(embedded.bootstrap, topic))
        records = read_committed(embedded.bootstrap, topic)
        assert dict(expected) == {partition: values_of(records, partition) for partition in expected}


def test_kafkas_own_producer_transacts_on_the_embedded_broker(embedded: EmbeddedThread) -> None:
    """Commits, aborts, and a producer that comes after one which was killed in the middle."""
    embedded.create_topic("java")
    kept = []
    for life in range(2):
        with java_producer(embedded.bootstrap, "java") as tell:
            for number in range(4):
                assert tell("begin") == "-"
                for one in range(3):
                    assert int(tell(f"send {life}-{number}-{one}")) >= 0
                if number == 3:
                    break  # killed with an open transaction
                assert tell("abort" if number == 1 else "commit") == "-"
                kept += [f"{life}-{number}-{one}".encode() for one in range(3) if number != 1]
    with java_producer(embedded.bootstrap, "java"):
        assert kept == values_of(read_committed(embedded.bootstrap, "java"), 0)


@contextlib.contextmanager
def java_producer(bootstrap: str, topic: str) -> Iterator[Callable[[str], str]]:
    """Run ``TransactionalProducer.java``; give the function that tells it what to do. It is killed at the end."""
    source = Path(__file__).with_name("TransactionalProducer.java")
    command = java_command("1.1.1", source.stem, bootstrap, topic, classes=compile_java("1.1.1", [source]), brisk=True)
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    stdin, stdout = process.stdin, process.stdout

    def tell(line: str) -> str:
        stdin.write(line + "\n")
        stdin.flush()
        return stdout.readline().strip()

    try:
        assert tell("begin") == "-"  # its id is there, so that what was open has ended
        assert tell("abort") == "-"
        yield tell
    finally:
        process.kill()
        process.communicate()


@on_each_release
def test_topics_are_created_extended_and_described(
    shared_clusters: ClusterFactory, unique: Callable[[str], str], kafka_release: str
) -> None:
    """With counts and settings of a topic elsewhere, as a mirror needs it."""
    cluster, topic = shared_clusters(kafka_release), unique("made")
    asyncio.run(topic_checks.administer(cluster.bootstrap, topic, f"{topic}-plain"))
    records = read_committed(cluster.bootstrap, topic, release=cluster.release)
    assert records == []
