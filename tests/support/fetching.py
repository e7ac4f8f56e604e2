# SPDX-License-Identifier: Apache-2.0
"""A fetcher on real brokers without a daemon: leaders from Metadata alone, everything else as in production."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass

from consumerd.aio.cell import Cell
from consumerd.client.log_range import LogRangeReader
from consumerd.client.modern_fetch import ModernFetchProtocol
from consumerd.cluster.from_brokers import BrokerSource
from consumerd.cluster.view import Broker, ClusterView
from consumerd.errors import ConnectionLost
from consumerd.fetch.buffer import MemoryBudget
from consumerd.fetch.fetcher import Fetcher
from consumerd.fetch.ports import FetchSettings
from consumerd.model import BrokerId, TopicPartition
from consumerd.net.dialer import Dialer
from consumerd.net.pool import ConnectionPool
from consumerd.net.stream import TcpConnector
from consumerd.telemetry.hooks import Hooks

_SPACING_S = 0.2
_FRAME_BYTES = 256 << 20


class MetadataDirectory:
    """Who leads what, read from any broker when asked to, a few times a second at most."""

    def __init__(self, source: BrokerSource, topics: Collection[str]) -> None:
        self.views: Cell[ClusterView] = Cell(ClusterView())
        self._source = source
        self._topics = topics
        self._wanted = asyncio.Event()
        self._wanted.set()

    def find_leader(self, partition: TopicPartition) -> Broker | None:
        """Return the leader as read last."""
        return self.views.value.find_leader(partition)

    def request_refresh(self, reason: str) -> None:
        """Read again soon."""
        self._wanted.set()

    async def refresh(self, reason: str) -> ClusterView:
        """Read again now."""
        self.views.set(await self._source.read(self._topics))
        return self.views.value

    async def run(self) -> None:
        """Read whenever asked to, until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            try:
                await self.refresh("asked")
            except ConnectionLost:
                self._wanted.set()
            await asyncio.sleep(_SPACING_S)


@dataclass
class Fetching:
    """A running fetcher and its parts."""

    fetcher: Fetcher
    budget: MemoryBudget
    directory: MetadataDirectory
    pool: ConnectionPool


@asynccontextmanager
async def fetching(
    bootstrap: str,
    topics: Collection[str],
    *,
    settings: FetchSettings | None = None,
    budget_bytes: int = 256 << 20,
    hooks: Hooks | None = None,
) -> AsyncIterator[Fetching]:
    """Run a fetcher for the brokers of ``bootstrap``; raises what the fetcher raises."""
    hooks = hooks or Hooks()
    connector = TcpConnector(max_frame_bytes=_FRAME_BYTES)
    dialer = Dialer(connector, client_id="test", now=time.monotonic, hooks=hooks)
    addresses = [address.rpartition(":") for address in bootstrap.split(",")]
    known = [Broker(id=BrokerId(-1 - i), host=one[0], port=int(one[2])) for i, one in enumerate(addresses)]
    async with ConnectionPool(dialer, now=time.monotonic, random=random.random) as pool:
        directory = MetadataDirectory(BrokerSource(pool, lambda: known, random=random.random), topics)
        budget = MemoryBudget(budget_bytes)
        fetcher = Fetcher(
            settings=settings or FetchSettings(),
            budget=budget,
            leaders=directory,
            protocol=ModernFetchProtocol(pool, now=time.monotonic),
            log_ranges=LogRangeReader(pool, directory, random=random.random),
            hooks=hooks,
            now=time.monotonic,
            random=random.random,
        )
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(directory.run()), group.create_task(fetcher.run())]
            yield Fetching(fetcher, budget, directory, pool)
            for task in tasks:
                task.cancel()
