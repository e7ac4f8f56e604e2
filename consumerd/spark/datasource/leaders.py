# SPDX-License-Identifier: Apache-2.0
"""Who leads the partitions of a few topics, asked of the brokers alone: what a reader needs to know of a cluster.

No ZooKeeper, no watches: the brokers are asked at the start and whenever somebody meets a sign that what is known is
out of date. Fits ``client.leaders.Leaders`` and ``fetch.ports.LeaderDirectory``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Final

from consumerd.aio.backoff import Backoff
from consumerd.aio.cell import Cell
from consumerd.cluster.source import ClusterSource
from consumerd.cluster.view import EMPTY_VIEW, Broker, ClusterView
from consumerd.errors import ConnectionLost
from consumerd.model import TopicPartition

KnownBrokers = Callable[[], Collection[Broker]]

_CALM_S: Final = 2.0


class TopicLeaders:
    """Topics, their partitions and leaders, read again on request while :meth:`run` runs.

    ``source`` makes what asks the brokers that it is given; ``first`` are those whose addresses are known to begin with.
    """

    def __init__(
        self,
        source: Callable[[KnownBrokers], ClusterSource],
        first: Collection[Broker],
        topics: Collection[str],
        *,
        random: Callable[[], float],
    ) -> None:
        self.views: Cell[ClusterView] = Cell(EMPTY_VIEW)
        self._source = source(self._known_brokers)
        self._first = first
        self._topics = topics
        self._wanted = asyncio.Event()
        self._reading = asyncio.Lock()
        self._begun = 0
        self._ended = 0
        self._backoff = Backoff(initial_s=0.1, maximum_s=_CALM_S, random=random)
        self.failure: ConnectionLost | None = None
        """Why the brokers could not be asked just now; None if they could."""

    def find_leader(self, partition: TopicPartition) -> Broker | None:
        """Return the broker to ask for a partition, as believed now."""
        return self.views.value.find_leader(partition)

    def request_refresh(self, reason: str) -> None:  # noqa: ARG002 - the port's; nobody reads it here
        """Have the brokers asked again soon; returns at once."""
        self._wanted.set()

    async def refresh(self, reason: str) -> ClusterView:  # noqa: ARG002 - as above
        """Ask the brokers, and return what is known then; where none answers that is what was known before.

        Who comes while others are being served is served with the next reading. Bounded by the source.
        """
        target = self._begun + 1
        async with self._reading:
            if self._ended < target:
                await self._read()
        return self.views.value

    async def run(self) -> None:
        """Ask whenever it is requested, until cancelled, not more often than every 0.1 s, and less often while in vain."""
        loop = asyncio.get_running_loop()
        rested_at = loop.time()
        while True:
            await self._wanted.wait()
            if loop.time() - rested_at >= _CALM_S:
                self._backoff.reset()
            self._wanted.clear()
            before = self.views.value
            await self.refresh("requested")
            if self.failure is not None:
                self._wanted.set()
            elif self.views.value != before:
                self._backoff.reset()
            await asyncio.sleep(self._backoff.next())
            rested_at = loop.time()

    async def _read(self) -> None:
        self._begun += 1
        number = self._begun
        try:
            self.views.set(await self._source.read(self._topics))
            self.failure = None
        except ConnectionLost as error:
            self.failure = error
        self._ended = number

    def _known_brokers(self) -> Collection[Broker]:
        """The brokers of the last answer first; where none of them answers, those that were named, too."""
        known = list(self.views.value.brokers.values())
        return [*known, *self._first] if self.failure is not None or not known else known
