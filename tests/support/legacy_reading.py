# SPDX-License-Identifier: Apache-2.0
"""Reads whole topics of a cluster of Kafka 0.6 or 0.7: partitions from ZooKeeper, messages by the product's own fetcher."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from consumerd.aio.cell import Cell
from consumerd.aio.timeouts import timeout
from consumerd.client.legacy_fetch import LegacyFetchProtocol
from consumerd.client.legacy_offsets import LegacyOffsetLookup
from consumerd.client.log_range import LogRangeReader
from consumerd.cluster.from_legacy_zookeeper import LegacyZooKeeperSource
from consumerd.cluster.view import Broker, ClusterView
from consumerd.fetch.buffer import MemoryBudget
from consumerd.fetch.fetcher import Fetcher
from consumerd.fetch.ports import FetchSettings
from consumerd.model import PartitionKey, TopicPartition
from consumerd.net.legacy_dialer import LegacyDialer
from consumerd.net.pool import ConnectionPool
from consumerd.net.stream import TcpConnector
from consumerd.telemetry.hooks import Hooks
from consumerd.wire.records import Record
from consumerd.zk.port import ZkClient

_WAIT_S = 20.0


class FixedLeaders:
    """The directory of a cluster that does not change."""

    def __init__(self, view: ClusterView) -> None:
        self.views = Cell(view)

    def find_leader(self, partition: TopicPartition) -> Broker | None:
        """Return the leader in the view."""
        return self.views.value.find_leader(partition)

    def request_refresh(self, reason: str) -> None:
        """Do nothing."""

    async def refresh(self, reason: str) -> ClusterView:
        """Return the view."""
        return self.views.value


@asynccontextmanager
async def legacy_pool() -> AsyncIterator[ConnectionPool]:
    """Run a pool of connections to real sockets of Kafka 0.7 while the block runs."""
    dialer = LegacyDialer(TcpConnector(max_frame_bytes=64 << 20), now=time.monotonic)
    async with ConnectionPool(dialer, now=time.monotonic, random=random.random) as pool:
        yield pool


async def list_legacy_partitions(zk: ZkClient, topic: str) -> list[PartitionKey]:
    """Return the registered partitions of a topic."""
    view = await LegacyZooKeeperSource(zk).read([topic])
    return list(view.topics[topic].partitions) if topic in view.topics else []


@asynccontextmanager
async def legacy_fetching(
    view: ClusterView, *, settings: FetchSettings | None = None, timeout_s: float = 5
) -> AsyncIterator[tuple[Fetcher, LogRangeReader]]:
    """Run a fetcher of a cluster that does not change while the block runs; returns it and the lookup of log ranges."""
    leaders = FixedLeaders(view)
    async with legacy_pool() as pool:
        ranges = LogRangeReader(
            pool, leaders, random=random.random, timeout_s=timeout_s, lookup=LegacyOffsetLookup(pool)
        )
        fetcher = Fetcher(
            settings=settings or FetchSettings(),
            budget=MemoryBudget(64 << 20),
            leaders=leaders,
            protocol=LegacyFetchProtocol(pool),
            log_ranges=ranges,
            hooks=Hooks(),
            now=time.monotonic,
            random=random.random,
        )
        async with asyncio.TaskGroup() as group:
            running = group.create_task(fetcher.run())
            yield fetcher, ranges
            running.cancel()


async def read_legacy_topic(zk: ZkClient, topic: str) -> Mapping[str, list[Record]]:
    """Return the records of each registered partition up to its present end, by key such as ``0-1``."""
    view = await LegacyZooKeeperSource(zk).read([topic])
    found: dict[str, list[Record]] = {}
    async with timeout(_WAIT_S), legacy_fetching(view) as (fetcher, ranges):
        for partition in (TopicPartition(topic, key) for key in sorted(view.topics[topic].partitions)):
            end = (await ranges.read([partition]))[partition].latest
            found[str(partition.partition)] = await _read(fetcher, partition, end)
    return found


async def _read(fetcher: Fetcher, partition: TopicPartition, end: int) -> list[Record]:
    rows: list[Record] = []
    position = 0
    feed = fetcher.feed(partition, position)
    while position < end:
        batch = await feed.next()
        assert batch.start == position
        position = batch.next_offset
        rows += batch.records()
        feed.done(batch)
    assert position == end
    return rows
