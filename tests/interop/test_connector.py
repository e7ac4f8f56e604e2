# SPDX-License-Identifier: Apache-2.0
"""Connectors in one group with the real Java high-level consumer: each record comes once while nobody is killed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from consumerd.api import ConsumerConnector, MessageStream, open_producer, read_connector_settings
from tests.interop.conftest import ClusterFactory
from tests.support.kafka import Cluster, JavaConsumer
from tests.support.waiting import until

pytestmark = [pytest.mark.records, pytest.mark.slow, pytest.mark.timeout(240)]

PARTITIONS = 8
Place = tuple[str, int, int]


class Load:
    """A producer that writes a hundred records a second, and knows where each is."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._cluster = cluster
        self._topic = topic
        self._stop = asyncio.Event()
        self.acknowledged: set[Place] = set()

    async def run(self) -> None:
        async with open_producer(self._cluster.bootstrap) as producer:
            number = 0
            while not self._stop.is_set():
                written = await producer.send(self._topic, b"%d" % number, partition=number % PARTITIONS)
                assert written.offset is not None
                self.acknowledged.add((written.topic, written.partition, written.offset))
                number += 1
                await asyncio.sleep(0.01)

    def stop(self) -> None:
        self._stop.set()


@asynccontextmanager
async def connected(cluster: Cluster, group: str, topic: str, seen: list[Place]) -> AsyncIterator[None]:
    """Run a program of two streams that notes each record."""
    settings = read_connector_settings({"cluster": {"zookeeper": cluster.zookeeper}, "group": {"id": group}})

    async def consume(stream: MessageStream) -> None:
        async for record in stream:
            place = record.topic, record.partition, record.offset
            seen.append(place)

    async with ConsumerConnector(settings) as connector, asyncio.TaskGroup() as tasks:
        for stream in (await connector.create_message_streams({topic: 2}))[topic]:
            tasks.create_task(consume(stream))
        yield
        await connector.shutdown()


def places(java: JavaConsumer) -> list[Place]:
    return [(topic, partition, offset) for topic, partition, offset, _ in java.records()]


async def grows(of: Callable[[], list[Place]], by: int = 100) -> None:
    """Wait until a member has delivered so many more records."""
    before = len(of())
    await until(lambda: len(of()) >= before + by, within_s=60)


async def test_a_connector_and_java_members_give_each_record_once(
    shared_clusters: ClusterFactory, unique: Callable[[str], str]
) -> None:
    """Through joins and clean departures of both kinds, under load."""
    cluster = shared_clusters("1.1.1")
    group, topic = unique("connector"), unique("orders")
    await asyncio.to_thread(cluster.create_topic, topic, PARTITIONS)
    load, first, second = Load(cluster, topic), list[Place](), list[Place]()
    java = cluster.java_consumer(group, topic, streams=2)
    other: JavaConsumer | None = None
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(load.run())
            await grows(lambda: places(java))
            async with connected(cluster, group, topic, first):
                await grows(lambda: first)
                await grows(lambda: places(java))
                async with connected(cluster, group, topic, second):
                    await grows(lambda: second)
                await grows(lambda: first)
                other = java_too = cluster.java_consumer(group, topic)
                await grows(lambda: places(java_too))
                await asyncio.to_thread(java_too.terminate)
                await grows(lambda: first)
            # Java takes over at the position that the connector has committed
            await grows(lambda: places(java))
            load.stop()

        def delivered() -> Counter[Place]:
            return Counter([*first, *second, *places(java), *places(java_too)])

        await until(lambda: load.acknowledged <= delivered().keys(), within_s=60)
        await asyncio.to_thread(java.terminate)

        counts = delivered()
        assert {place: count for place, count in counts.items() if count > 1} == {}
        assert load.acknowledged == set(counts)
    finally:
        for member in (java, other):
            if member is not None and member.process.poll() is None:
                member.kill()
