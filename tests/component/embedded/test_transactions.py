# SPDX-License-Identifier: Apache-2.0
"""Transactions on the embedded broker: our producer and librdkafka's, read by librdkafka with read_committed.

``tests/interop/test_transactions.py`` has the same on real brokers, and Kafka's own clients on this one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from consumerd.client.opening import open_producer
from consumerd.client.producer import Producer as TransactionalProducer
from consumerd.client.producer_settings import ProducerSettings
from consumerd.embedded.zookeeper import EmbeddedZooKeeper
from consumerd.errors import ProducerFenced, TransactionFailed
from tests.support import topic_checks, transaction_checks
from tests.support.embedded import Embedded, EmbeddedProcess, EmbeddedThread
from tests.support.transaction_checks import Seen
from tests.support.transaction_script import SCRIPTS, ask, differences, recorded
from tests.vectors.record import LINES, TOPIC

pytestmark = [pytest.mark.records, pytest.mark.timeout(160)]


@pytest.fixture(scope="module", params=["with ZooKeeper", "without ZooKeeper"])
def broker(
    request: pytest.FixtureRequest, server: EmbeddedZooKeeper, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EmbeddedThread]:
    """A broker that passes for 1.1, and one that passes for 4.0."""
    chroot = f"{server.connect_string}/transactions" if request.param == "with ZooKeeper" else None
    with EmbeddedThread(tmp_path_factory.mktemp("transactions"), chroot) as running:
        yield running


def read(broker: Embedded, topic: str, partitions: int, isolation: str = "read_committed") -> dict[int, list[bytes]]:
    """Return the values of each partition, up to its end."""
    settings: dict[str, Any] = {
        "bootstrap.servers": broker.bootstrap,
        "group.id": "reader",
        "isolation.level": isolation,
        "enable.partition.eof": True,
        "enable.auto.commit": False,
    }
    consumer = Consumer(settings)
    found: dict[int, list[bytes]] = {number: [] for number in range(partitions)}
    left = set(found)
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in found])
        while left:
            message = consumer.poll(30)
            assert message is not None, f"no end of {left} within 30 s"
            if (error := message.error()) is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                left.discard(message.partition())
            else:
                found[message.partition()].append(message.value() or b"")
    finally:
        consumer.close()
    return found


def check(broker: Embedded, topic: str, expected: Seen) -> None:
    assert {number: list(values) for number, values in expected.items()} == read(broker, topic, len(expected))


def test_committed_records_are_read_once_and_aborted_ones_never(broker: EmbeddedThread) -> None:
    """With each codec, in the order of each partition."""
    broker.create_topic("committed", 3)
    check(broker, "committed", asyncio.run(transaction_checks.commit_and_abort(broker.bootstrap, "committed")))


def test_what_a_fenced_predecessor_writes_is_never_visible(broker: EmbeddedThread) -> None:
    """Neither what it wrote before, nor what it sends afterwards."""
    broker.create_topic("fenced")
    check(broker, "fenced", asyncio.run(transaction_checks.fence(broker.bootstrap, "fenced")))


def test_of_producers_that_begin_at_the_same_time_one_is_left(broker: EmbeddedThread) -> None:
    """Each gets an epoch of its own; before, two that asked within one turn of the loop had the same, and both wrote."""
    broker.create_topic("raced")

    async def write(producer: TransactionalProducer) -> bool:
        try:
            producer.begin_transaction()
            await producer.send("raced", b"mine")
            await producer.commit_transaction()
        except TransactionFailed:
            return False
        return True

    async def race(number: int) -> int:
        settings = ProducerSettings(transactional_id=f"raced-{number}")
        async with contextlib.AsyncExitStack() as stack:
            producers = [
                await stack.enter_async_context(open_producer(broker.bootstrap, settings=settings)) for _ in range(6)
            ]
            begun = await asyncio.gather(*(one.init_transactions() for one in producers), return_exceptions=True)
            ready = [one for one, error in zip(producers, begun, strict=True) if error is None]
            return [await write(one) for one in ready].count(True)

    assert [1] * 10 == [asyncio.run(race(number)) for number in range(10)]


def test_offsets_are_those_of_committed_transactions(broker: EmbeddedThread) -> None:
    """As librdkafka reads them."""
    broker.create_topic("offsets")
    asyncio.run(transaction_checks.commit_offsets(broker.bootstrap, "offsets", "mine"))
    assert 5 == committed(broker, "mine", "offsets")


def committed(broker: Embedded, group: str, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
    try:
        (found,) = consumer.committed([TopicPartition(topic, 0)], timeout=30)
        return int(found.offset)
    finally:
        consumer.close()


def test_a_timeout_above_the_limit_is_refused(broker: EmbeddedThread) -> None:
    """Error 50, by the first call."""
    asyncio.run(transaction_checks.refuse_a_long_timeout(broker.bootstrap, "long"))


def test_a_transaction_that_takes_too_long_is_void(broker: EmbeddedThread) -> None:
    """The coordinator aborts it, and its producer is fenced."""
    broker.create_topic("slow")

    async def run() -> None:
        settings = ProducerSettings(transactional_id="slow", transaction_timeout_ms=300)
        async with open_producer(broker.bootstrap, settings=settings) as producer:
            await producer.init_transactions()
            producer.begin_transaction()
            with pytest.raises(ProducerFenced):
                while True:
                    await producer.send("slow", b"void")
                    await asyncio.sleep(0.05)  # until the broker's clock says so
            with pytest.raises(TransactionFailed):
                await producer.commit_transaction()

    asyncio.run(run())
    assert {0: []} == read(broker, "slow", 1)


def test_librdkafka_transacts(broker: EmbeddedThread) -> None:
    """Its producer commits and aborts, with a group's offsets; what is aborted is there for read_uncommitted alone."""
    broker.create_topic("rdkafka", 2)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "rdkafka"})
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "of-rdkafka"})
    try:
        producer.init_transactions(30)
        for number in range(4):
            producer.begin_transaction()
            for one in range(10):
                producer.produce("rdkafka", b"%d-%d" % (number, one), partition=one % 2)
            position = [TopicPartition("rdkafka", 0, number + 1)]
            producer.send_offsets_to_transaction(position, consumer.consumer_group_metadata(), 30)
            if number % 2:
                producer.flush(30)
                producer.abort_transaction(30)
            else:
                producer.commit_transaction(30)
    finally:
        consumer.close()
    every = {half: [b"%d-%d" % (n, one) for n in range(4) for one in range(half, 10, 2)] for half in range(2)}
    kept = {half: [one for one in values if int(one[:1]) % 2 == 0] for half, values in every.items()}
    assert kept == read(broker, "rdkafka", 2)
    assert every == read(broker, "rdkafka", 2, "read_uncommitted")
    assert 3 == committed(broker, "of-rdkafka", "rdkafka")


@pytest.mark.slow
@pytest.mark.drawn
def test_each_number_is_there_once_though_its_writer_was_killed_at_every_step(broker: EmbeddedThread) -> None:
    """Before, after and upon the answer of each request of its transactions."""
    broker.create_topic("killed", 3)
    expected, kills = transaction_checks.kill_at_each_step(broker.bootstrap, "killed")
    check(broker, "killed", expected)
    assert kills > 30


@pytest.mark.slow
@pytest.mark.drawn
def test_transactions_outlive_a_killed_broker(tmp_path: Path, zookeeper: str) -> None:
    """Open, decided and committed ones: what a coordinator has answered is in its topic, sequences are in the logs."""
    with EmbeddedProcess(tmp_path, "--zookeeper", zookeeper) as broker:
        broker.create_topic("kept")

        async def run() -> Seen:
            settings = ProducerSettings(transactional_id="kept", retry_backoff_s=0.02)
            async with open_producer(broker.bootstrap, settings=settings) as producer:
                await producer.init_transactions()
                for number in range(3):
                    producer.begin_transaction()
                    await producer.send("kept", b"%d before" % number)
                    broker.kill()
                    broker.start()  # by this thread, with which it would end
                    await producer.send("kept", b"%d after" % number)
                    await (producer.abort_transaction() if number == 1 else producer.commit_transaction())
            return {0: [b"0 before", b"0 after", b"2 before", b"2 after"]}

        expected = asyncio.run(run())
        check(broker, "kept", expected)
        broker.kill()
        broker.start()
        check(broker, "kept", expected)


@pytest.mark.parametrize("script", SCRIPTS)
def test_requests_are_answered_as_by_real_brokers(script: str, tmp_path: Path, zookeeper: str) -> None:
    """Each code, offset, epoch and producer, as 1.1.1 was recorded to answer the same requests."""
    with EmbeddedThread(tmp_path, zookeeper) as broker:
        broker.create_topic(TOPIC)
        broker.produce(TOPIC, LINES)
        told = ask(script, int(broker.bootstrap.rpartition(":")[2]))
    assert [] == differences(recorded(script), told)


def test_topics_are_created_extended_and_described(broker: EmbeddedThread) -> None:
    """By requests, with settings of their own; the records of a new partition are read."""
    asyncio.run(topic_checks.administer(broker.bootstrap, "made", "made-plain"))

    async def run() -> None:
        async with open_producer(broker.bootstrap) as producer:
            await producer.send("made", b"value", key=b"key", partition=4)

    asyncio.run(run())
    assert {0: [], 1: [], 2: [], 3: [], 4: [b"value"]} == read(broker, "made", 5)
