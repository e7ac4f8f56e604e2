# SPDX-License-Identifier: Apache-2.0
"""One fetcher for each sink, so that a hanging sink does not delay the others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from consumerd.fetch.feed import PartitionFeed
from consumerd.fetch.fetcher import Fetcher
from consumerd.model import TopicPartition


class SinkFetchers:
    """Fetchers of a member, one for each sink.

    Each fetcher has a memory budget and connections of its own, so that a sink that hangs does not delay other sinks.

    Args:
        fetchers: Fetcher by the sink's name.
        find_sink: Returns the name of a partition's sink.
    """

    def __init__(self, fetchers: Mapping[str, Fetcher], find_sink: Callable[[TopicPartition], str]) -> None:
        self._fetchers = fetchers
        self._find_sink = find_sink

    def feed(self, partition: TopicPartition, offset: int) -> PartitionFeed:
        """Start fetching a partition at ``offset``; return the feed of its records.

        The caller closes the feed.
        """
        return self._fetchers[self._find_sink(partition)].feed(partition, offset)

    def find_held_up(self) -> frozenset[str]:
        """Return the names of sinks whose fetchers wait because their memory budget is used up."""
        return frozenset(name for name, fetcher in self._fetchers.items() if fetcher.held_up)

    async def run(self) -> None:
        """Fetch for all sinks, until cancelled. Runs once."""
        async with asyncio.TaskGroup() as tasks:
            for name, fetcher in self._fetchers.items():
                tasks.create_task(fetcher.run(), name=f"fetcher of sink {name}")
