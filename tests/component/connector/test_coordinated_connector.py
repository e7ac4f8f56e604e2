# SPDX-License-Identifier: Apache-2.0
"""Programs in groups that a broker coordinates, on embedded clusters with and without ZooKeeper."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

import pytest

from consumerd.aio.timeouts import timeout
from consumerd.api import (
    ConnectorSettings,
    ConsumerConnector,
    MessageStream,
    Whitelist,
    open_producer,
    read_connector_settings,
)
from consumerd.embedded.broker import BrokerSettings
from consumerd.embedded.cluster import EmbeddedCluster
from tests.support.waiting import until

pytestmark = [pytest.mark.records, pytest.mark.timeout(120)]

GROUP: Final = "programs"
PATIENCE_S: Final = 60.0
Place = tuple[str, int, int]


@asynccontextmanager
async def served(**topics: int) -> AsyncIterator[EmbeddedCluster]:
    """A cluster without ZooKeeper, as of 4.0."""
    make = partial(BrokerSettings, as_release="4.0")
    async with EmbeddedCluster(without_zookeeper=True, make_broker=make, topics=topics) as cluster:
        yield cluster


def settings_of(address: Mapping[str, object], **offsets: object) -> ConnectorSettings:
    return read_connector_settings(
        {
            "cluster": address,
            "group": {"id": GROUP, "membership": "kafka", "assignor": "roundrobin", "session_timeout_ms": 6000},
            "offsets": {"storage": "kafka", "dual_commit": False, "commit_interval_ms": 200, **offsets},
            "fetch": {"max_wait_ms": 100},
        }
    )


async def produce(cluster: EmbeddedCluster, topic: str, partitions: int, numbers: Iterable[int]) -> set[Place]:
    async with open_producer(cluster.bootstrap) as producer:
        sent = [await producer.enqueue(topic, b"%d" % number, partition=number % partitions) for number in numbers]
        return {(topic, where.partition, where.offset or 0) for where in [await one for one in sent]}


class Reader:
    """Takes records from some streams, and remembers where each came from."""

    def __init__(self, streams: Iterable[MessageStream], tasks: asyncio.TaskGroup) -> None:
        self.seen: list[list[Place]] = []
        for stream in streams:
            seen: list[Place] = []
            self.seen.append(seen)
            tasks.create_task(self._read(stream, seen))

    async def _read(self, stream: MessageStream, seen: list[Place]) -> None:
        async for record in stream:
            seen.append((record.topic, record.partition, record.offset))  # noqa: PERF401 - it is read meanwhile

    @property
    def places(self) -> list[Place]:
        return [one for some in self.seen for one in some]

    @property
    def partitions(self) -> list[set[int]]:
        return [{partition for _, partition, _ in some} for some in self.seen]


async def test_each_record_comes_once_and_the_next_program_goes_on_without_zookeeper() -> None:
    """Two streams share the partitions; positions are in Kafka when the program has ended."""
    async with served(orders=4) as cluster:
        sent = await produce(cluster, "orders", 4, range(200))
        settings = settings_of({"bootstrap": cluster.bootstrap})
        async with ConsumerConnector(settings) as connector, asyncio.TaskGroup() as tasks:
            streams = await connector.create_message_streams({"orders": 2})
            reader = Reader(streams["orders"], tasks)
            await until(lambda: len(reader.places) == 200, within_s=PATIENCE_S)
            await connector.shutdown()

        later = await produce(cluster, "orders", 4, range(8))
        async with ConsumerConnector(settings) as connector, asyncio.TaskGroup() as tasks:
            again = Reader((await connector.create_message_streams({"orders": 1}))["orders"], tasks)
            await until(lambda: len(again.places) == 8, within_s=PATIENCE_S)
            await connector.shutdown()

    assert sorted(sent) == sorted(reader.places)
    assert [2, 2] == list(map(len, reader.partitions))
    assert sorted(later) == sorted(again.places)


async def test_two_programs_share_a_group_and_one_goes_on_when_the_other_leaves() -> None:
    """Partitions move in order: no record comes twice, and both streams of each program have some."""
    async with served(orders=8) as cluster, asyncio.TaskGroup() as tasks:
        settings = settings_of({"bootstrap": cluster.bootstrap})
        sent = await produce(cluster, "orders", 8, range(80))
        async with ConsumerConnector(settings) as one:
            first = Reader((await one.create_message_streams({"orders": 2}))["orders"], tasks)
            await until(lambda: len(first.places) == 80, within_s=PATIENCE_S)
            async with ConsumerConnector(settings) as two:
                second = Reader(await two.create_message_streams_by_filter(Whitelist("orders"), 2), tasks)

                async def is_shared() -> bool:
                    # records reach both only after the rebalance, which nothing else shows from outside
                    sent.update(await produce(cluster, "orders", 8, range(8)))
                    return all(second.partitions)

                await until(is_shared, within_s=PATIENCE_S)
                await until(lambda: len(first.places) + len(second.places) == len(sent), within_s=PATIENCE_S)
                await two.shutdown()
            sent |= await produce(cluster, "orders", 8, range(80, 160))
            await until(lambda: len(first.places) + len(second.places) == len(sent), within_s=PATIENCE_S)
            await one.shutdown()

    assert {1} == set(Counter(first.places + second.places).values())
    assert sent == set(first.places + second.places)
    assert [2, 2] == list(map(len, second.partitions))


async def test_positions_are_committed_by_the_program_alone_with_zookeeper_for_the_topics() -> None:
    """A cluster of 1.1: ZooKeeper tells the topics, the broker coordinates the group and keeps its positions."""
    async with EmbeddedCluster(topics={"orders": 1}) as cluster:
        await produce(cluster, "orders", 1, range(30))
        settings = settings_of({"zookeeper": cluster.zookeeper}, auto_commit=False)
        async with ConsumerConnector(settings) as connector:
            (stream,) = (await connector.create_message_streams({"orders": 1}))["orders"]
            async with timeout(PATIENCE_S):
                for _ in range(10):
                    await anext(stream)
                await connector.commit_offsets()
                await anext(stream)
        async with ConsumerConnector(settings) as connector:
            (stream,) = (await connector.create_message_streams({"orders": 1}))["orders"]
            async with timeout(PATIENCE_S):
                record = await anext(stream)

    assert 10 == record.offset
