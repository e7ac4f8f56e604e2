# SPDX-License-Identifier: Apache-2.0
"""One fetcher for each sink, so that a sink which stands still holds up no other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from consumerd.fetch.feed import PartitionFeed
from consumerd.fetch.fetcher import Fetcher
from consumerd.model import TopicPartition


class SinkFetchers:
    """Fetchers by sink; ``find_sink`` names the sink of a partition. Each fetcher has its own memory and connections."""

    def __init__(self, fetchers: Mapping[str, Fetcher], find_sink: Callable[[TopicPartition], str]) -> None:
        self._fetchers = fetchers
        self._find_sink = find_sink

    def feed(self, partition: TopicPartition, offset: int) -> PartitionFeed:
        """Begin to fetch a partition at ``offset`` for its sink; the feed is the caller's to close."""
        return self._fetchers[self._find_sink(partition)].feed(partition, offset)

    def find_held_up(self) -> frozenset[str]:
        """Return the names of sinks whose fetchers wait for memory (``Fetcher.held_up``)."""
        return frozenset(name for name, fetcher in self._fetchers.items() if fetcher.held_up)

    async def run(self) -> None:
        """Fetch for all sinks, until cancelled. Runs once."""
        async with asyncio.TaskGroup() as tasks:
            for name, fetcher in self._fetchers.items():
                tasks.create_task(fetcher.run(), name=f"fetcher of sink {name}")
