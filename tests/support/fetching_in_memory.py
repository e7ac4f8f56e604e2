# SPDX-License-Identifier: Apache-2.0
"""A fetcher on a cluster in memory, everything else as in production."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from consumerd.client.modern_fetch import ModernFetchProtocol
from consumerd.fetch.buffer import MemoryBudget
from consumerd.fetch.fetcher import Fetcher
from consumerd.fetch.ports import FetchSettings
from consumerd.telemetry.hooks import Hooks
from tests.support.fake_broker import FakeCluster


@asynccontextmanager
async def fetching_from(
    cluster: FakeCluster,
    budget: MemoryBudget,
    settings: FetchSettings,
    *,
    hooks: Hooks | None = None,
    random: Callable[[], float] = lambda: 0.0,
) -> AsyncIterator[Fetcher]:
    """Run a fetcher while the block runs, by the loop's clock; raises what the fetcher raises."""
    fetcher = Fetcher(
        settings=settings,
        budget=budget,
        leaders=cluster,
        protocol=ModernFetchProtocol(cluster, now=asyncio.get_running_loop().time),
        log_ranges=cluster,
        hooks=hooks or Hooks(),
        now=asyncio.get_running_loop().time,
        random=random,
    )
    async with asyncio.TaskGroup() as group:
        running = group.create_task(fetcher.run())
        yield fetcher
        running.cancel()
