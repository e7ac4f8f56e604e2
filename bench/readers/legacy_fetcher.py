# SPDX-License-Identifier: Apache-2.0
"""The daemon's fetcher on a broker of Kafka 0.7.

MULTIFETCH of 8 MB each, decoded into columns, CRCs verified. The event loop is that of the daemon.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from bench.readers.telling import FETCH_BYTES, Teller, run_loop
from consumerd.aio.cell import Cell
from consumerd.aio.loops import find_uvloop
from consumerd.aio.tasks import alongside
from consumerd.client.legacy_fetch import LegacyFetchProtocol
from consumerd.client.legacy_offsets import LegacyOffsetLookup
from consumerd.client.log_range import LogRangeReader
from consumerd.cluster.view import Broker, ClusterView, PartitionView, TopicView
from consumerd.fetch.buffer import MemoryBudget
from consumerd.fetch.feed import PartitionFeed
from consumerd.fetch.fetcher import Fetcher
from consumerd.fetch.ports import FetchSettings
from consumerd.model import BrokerId, PartitionKey, TopicPartition
from consumerd.net.legacy_dialer import LegacyDialer
from consumerd.net.pool import ConnectionPool
from consumerd.net.stream import TcpConnector
from consumerd.telemetry.hooks import Hooks

_LEADER: Final = BrokerId(0)
_MEMORY_BYTES: Final = 256 << 20
_MOST_FRAME_BYTES: Final = 64 << 20


class _OneBroker:
    """The directory of a cluster that does not change."""

    def __init__(self, bootstrap: str, partition: TopicPartition) -> None:
        host, _, port = bootstrap.rpartition(":")
        topic = TopicView(name=partition.topic, partitions={partition.partition: PartitionView(leader=_LEADER)})
        broker = Broker(id=_LEADER, host=host, port=int(port))
        self.views = Cell(ClusterView(brokers={_LEADER: broker}, topics={partition.topic: topic}))

    def find_leader(self, partition: TopicPartition) -> Broker | None:
        """Return the only broker."""
        return self.views.value.find_leader(partition)

    def request_refresh(self, reason: str) -> None:
        """Do nothing."""

    async def refresh(self, reason: str) -> ClusterView:  # noqa: ARG002 - as of other directories
        """Return the view, which is always the same."""
        return self.views.value


@asynccontextmanager
async def open_feed(bootstrap: str, topic: str) -> AsyncIterator[PartitionFeed]:
    """Fetch partition 0 of a topic from its beginning while the block runs."""
    partition = TopicPartition(topic, PartitionKey(0, _LEADER))
    leaders = _OneBroker(bootstrap, partition)
    dialer = LegacyDialer(TcpConnector(max_frame_bytes=_MOST_FRAME_BYTES), now=time.monotonic)
    async with ConnectionPool(dialer, now=time.monotonic, random=random.random) as pool:
        fetcher = Fetcher(
            settings=FetchSettings(max_partition_bytes=FETCH_BYTES),
            budget=MemoryBudget(_MEMORY_BYTES),
            leaders=leaders,
            protocol=LegacyFetchProtocol(pool),
            log_ranges=LogRangeReader(pool, leaders, random=random.random, lookup=LegacyOffsetLookup(pool)),
            hooks=Hooks(),
            now=time.monotonic,
            random=random.random,
        )
        async with alongside(fetcher.run(), name="fetch"):
            feed = fetcher.feed(partition, 0)
            try:
                yield feed
            finally:
                feed.close()


async def consume(bootstrap: str, topic: str, records: int) -> None:
    """Read the topic from its beginning to the record of this number."""
    teller, count = Teller(), 0
    async with open_feed(bootstrap, topic) as feed:
        while count < records:
            batch = await feed.next()
            count += len(batch)
            feed.done(batch)
            teller.reach(count)
    teller.finish()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=find_uvloop()) as runner:
        run_loop(__doc__, lambda bootstrap, topic, records: runner.run(consume(bootstrap, topic, records)))
