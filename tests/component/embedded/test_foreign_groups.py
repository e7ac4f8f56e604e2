"""Groups of foreign clients on the embedded broker: join, rebalance, commit, resume; the clients are the oracle."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any, Final, Protocol

import aiokafka
import confluent_kafka
import confluent_kafka.admin
import kafka
import kafka.admin
import pytest

from consumerd.aio.timeouts import timeout
from consumerd.embedded.broker import BrokerSettings
from consumerd.embedded.cluster import EmbeddedCluster
from tests.support.zookeeper import eventually

PARTITIONS: Final = 4
RECORDS: Final = 200


@pytest.fixture
async def cluster(zookeeper: str) -> AsyncIterator[EmbeddedCluster]:
    """A broker of its own for each test, with a topic of 200 records in four partitions."""
    async with EmbeddedCluster(zookeeper=zookeeper, topics={"t": PARTITIONS}) as running:
        await asyncio.to_thread(produce, running.bootstrap, 0, RECORDS)
        yield running


def produce(bootstrap: str, first: int, count: int) -> None:
    """Write numbers as values, with another client than those under test."""
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    for number in range(first, first + count):
        producer.produce("t", b"%d" % number, partition=number % PARTITIONS)
    assert producer.flush(20) == 0


class Member(Protocol):
    """A member of a group, driven from a thread: every client library's consumer behind the same few calls."""

    def poll(self) -> list[int]:
        """Take part in the group for a moment; return the numbers read."""

    def assigned(self) -> set[int]:
        """Return the partitions that it has now."""

    def commit(self) -> None:
        """Commit what was read."""

    def close(self) -> None:
        """Leave the group."""


class KafkaPython:
    """kafka-python's."""

    def __init__(self, bootstrap: str, group: str) -> None:
        self._consumer = kafka.KafkaConsumer(
            "t",
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=6000,
            heartbeat_interval_ms=200,
            max_poll_interval_ms=6000,  # brokers before 0.10.1 have but one timeout
        )

    def poll(self) -> list[int]:
        found = self._consumer.poll(timeout_ms=100)
        return [int(record.value) for records in found.values() for record in records]

    def assigned(self) -> set[int]:
        return {one.partition for one in self._consumer.assignment()}

    def commit(self) -> None:
        self._consumer.commit()

    def close(self) -> None:
        self._consumer.close(autocommit=False)


class Librdkafka:
    """confluent-kafka's, which is librdkafka."""

    def __init__(self, bootstrap: str, group: str) -> None:
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 6000,
                "heartbeat.interval.ms": 200,
            }
        )
        self._consumer.subscribe(["t"])

    def poll(self) -> list[int]:
        found = self._consumer.consume(1000, timeout=0.1)
        assert [] == [one.error() for one in found if one.error()]
        return [int(one.value()) for one in found]

    def assigned(self) -> set[int]:
        return {one.partition for one in self._consumer.assignment()}

    def commit(self) -> None:
        self._consumer.commit(asynchronous=False)

    def close(self) -> None:
        self._consumer.close()


class Aiokafka:
    """aiokafka's, on a loop of its own."""

    def __init__(self, bootstrap: str, group: str) -> None:
        self._runner = asyncio.Runner()
        self._consumer = self._runner.run(self._start(bootstrap, group))

    async def _start(self, bootstrap: str, group: str) -> Any:
        consumer = aiokafka.AIOKafkaConsumer(
            "t",
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=6000,
            heartbeat_interval_ms=200,
        )
        await consumer.start()
        return consumer

    def poll(self) -> list[int]:
        found = self._runner.run(self._consumer.getmany(timeout_ms=100))
        return [int(record.value) for records in found.values() for record in records]

    def assigned(self) -> set[int]:
        return {one.partition for one in self._consumer.assignment()}

    def commit(self) -> None:
        self._runner.run(self._consumer.commit())

    def close(self) -> None:
        self._runner.run(self._consumer.stop())
        self._runner.close()


CLIENTS: Final[dict[str, Callable[[str, str], Member]]] = {
    "kafka-python": KafkaPython,
    "librdkafka": Librdkafka,
    "aiokafka": Aiokafka,
}


class Driven:
    """A member whose thread polls until it is told to stop; it commits when it is told to, and leaves in the end."""

    def __init__(self, make: Callable[[], Member]) -> None:
        self.numbers: list[int] = []
        self.assigned: set[int] = set()
        self.commits = 0
        self._make = make
        self._stop = False
        self._commit = False

    def run(self) -> None:
        member = self._make()
        try:
            while not self._stop:
                self.numbers += member.poll()
                self.assigned = member.assigned()
                if self._commit:
                    self._commit = False
                    member.commit()
                    self.commits += 1
        finally:
            member.close()

    async def commit(self) -> None:
        wanted = self.commits + 1
        self._commit = True
        await eventually(lambda: self.commits == wanted, within_s=20)

    def stop(self) -> None:
        self._stop = True


@contextlib.contextmanager
def stopping(*members: Driven) -> Iterator[None]:
    """Stop them, however the block ends."""
    try:
        yield
    finally:
        for member in members:
            member.stop()


@pytest.mark.parametrize("client", CLIENTS)
async def test_two_members_share_the_partitions_and_the_next_resumes_where_they_were(
    client: str, cluster: EmbeddedCluster
) -> None:
    """Join, rebalance when the second comes and when it goes, commit; a restart of the broker in between loses nothing."""
    make = partial(CLIENTS[client], cluster.bootstrap, "g")
    one, two, after = Driven(make), Driven(make), Driven(make)
    async with timeout(50), asyncio.TaskGroup() as tasks:
        with stopping(one, two, after):
            first = tasks.create_task(asyncio.to_thread(one.run))
            await eventually(lambda: len(one.numbers) == RECORDS, within_s=20)
            await one.commit()
            second = tasks.create_task(asyncio.to_thread(two.run))
            await eventually(lambda: {len(one.assigned), len(two.assigned)} == {2}, within_s=20)
            shared = one.assigned | two.assigned
            await asyncio.to_thread(produce, cluster.bootstrap, RECORDS, RECORDS)
            await eventually(lambda: len(one.numbers) + len(two.numbers) == 2 * RECORDS, within_s=20)
            await one.commit()
            await two.commit()
            two.stop()
            await second
            await eventually(lambda: len(one.assigned) == PARTITIONS, within_s=20)
            one.stop()
            await first

            await cluster.stop_broker()
            await cluster.start_broker()
            await asyncio.to_thread(produce, cluster.bootstrap, 2 * RECORDS, RECORDS)
            tasks.create_task(asyncio.to_thread(after.run))
            await eventually(lambda: len(after.numbers) >= RECORDS, within_s=20)

    assert shared == set(range(PARTITIONS))
    assert sorted(one.numbers + two.numbers) == list(range(2 * RECORDS))
    assert sorted(after.numbers) == list(range(2 * RECORDS, 3 * RECORDS))


async def test_admin_clients_see_the_group_its_members_and_positions(cluster: EmbeddedCluster) -> None:
    """List, describe, offsets: what tools show, by two clients that know nothing of each other."""
    member = Driven(partial(Librdkafka, cluster.bootstrap, "g"))
    async with timeout(40), asyncio.TaskGroup() as tasks:
        with stopping(member):
            tasks.create_task(asyncio.to_thread(member.run))
            await eventually(lambda: len(member.numbers) == RECORDS, within_s=20)
            await member.commit()
            listed, described, offsets = await asyncio.to_thread(look, cluster.bootstrap)
            by_rdkafka = await asyncio.to_thread(look_with_librdkafka, cluster.bootstrap)

    assert listed == [("g", "consumer")]
    assert ("Stable", "consumer", "range", "/127.0.0.1") == described
    assert dict.fromkeys(range(PARTITIONS), RECORDS // PARTITIONS) == offsets
    assert ("STABLE", PARTITIONS) == by_rdkafka


def look(bootstrap: str) -> tuple[list[tuple[str, str]], tuple[str, str, str, str], dict[int, int]]:
    """Look at the group with kafka-python."""
    admin = kafka.admin.KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        listed = [(one["group_id"], one["protocol_type"]) for one in admin.list_groups()]
        group = admin.describe_groups(["g"])["g"]
        kept = admin.list_group_offsets({"g": [kafka.TopicPartition("t", one) for one in range(PARTITIONS)]})
        described = (group["group_state"], group["protocol_type"], group["protocol_data"])
        return (
            listed,
            (*described, group["members"][0]["client_host"]),
            {partition.partition: one.offset for partition, one in kept["g"].items()},
        )
    finally:
        admin.close()


def look_with_librdkafka(bootstrap: str) -> tuple[str, int]:
    """Look at the group with librdkafka."""
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": bootstrap})
    group = admin.describe_consumer_groups(["g"])["g"].result(timeout=20)
    return group.state.name, sum(len(one.assignment.topic_partitions) for one in group.members)


@pytest.mark.parametrize("as_release", ["0.9", "0.10"])
async def test_members_of_older_releases_brokers_share_the_partitions_too(as_release: str, zookeeper: str) -> None:
    """Whoever cannot ask for versions speaks version 0 of everything."""
    make_broker = partial(BrokerSettings, as_release=as_release)
    embedded = EmbeddedCluster(zookeeper=zookeeper, topics={"t": PARTITIONS}, make_broker=make_broker)
    async with timeout(50), embedded as cluster:
        one, two = (Driven(partial(OfRelease, cluster.bootstrap, "g", as_release)) for _ in range(2))
        async with asyncio.TaskGroup() as tasks:
            with stopping(one, two):
                tasks.create_task(asyncio.to_thread(one.run))
                tasks.create_task(asyncio.to_thread(two.run))
                await eventually(lambda: {len(one.assigned), len(two.assigned)} == {2}, within_s=30)

        assert one.assigned | two.assigned == set(range(PARTITIONS))


class OfRelease(KafkaPython):
    """kafka-python's, told what the broker is."""

    def __init__(self, bootstrap: str, group: str, release: str) -> None:
        self._consumer = kafka.KafkaConsumer(
            "t",
            bootstrap_servers=bootstrap,
            group_id=group,
            api_version={"0.9": (0, 9), "0.10": (0, 10, 2)}[release],
            enable_auto_commit=False,
            session_timeout_ms=6000,
            heartbeat_interval_ms=200,
            max_poll_interval_ms=6000,  # brokers before 0.10.1 have but one timeout
        )
