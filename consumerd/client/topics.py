# SPDX-License-Identifier: Apache-2.0
"""Directory of leaders that asks the brokers alone: topics, their partitions, and who leads them.

:class:`MetadataDirectory` needs addresses, no ZooKeeper. Producers and the readers of Spark use it; members and commands
have ``cluster.directory.ClusterDirectory``, which watches ZooKeeper as well. It fits ``client.leaders.Leaders`` and
``fetch.ports.LeaderDirectory``.

It reads again on request, every few minutes, and by itself, with a backoff, as long as a followed topic is missing or one
of its partitions has no leader. Followed topics are named in the request, so that brokers with
``auto.create.topics.enable`` create them if the source asks for that (``creates``); up to 1.x the answer is then
LEADER_NOT_AVAILABLE until it is done.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection
from typing import Protocol

import structlog

from consumerd.aio.backoff import Backoff
from consumerd.aio.cell import Cell
from consumerd.aio.timeouts import timeout
from consumerd.cluster.source import ClusterSource
from consumerd.cluster.view import EMPTY_VIEW, Broker, ClusterView
from consumerd.errors import ConnectionLost
from consumerd.model import TopicPartition


class TopicDirectory(Protocol):
    """Directory of leaders as a producer sees it; :class:`MetadataDirectory` is one."""

    @property
    def views(self) -> Cell[ClusterView]:
        """Newest view of the cluster; replaced, never changed."""

    @property
    def failure(self) -> ConnectionLost | None:
        """Why the last reading failed; None if it did not."""

    def find_leader(self, partition: TopicPartition) -> Broker | None:
        """Return the broker to send to, as believed now."""

    def follow(self, topics: Collection[str]) -> None:
        """Keep the view about these topics from now on."""

    def request_refresh(self, reason: str) -> None:
        """Have the view read again soon; returns at once."""


class MetadataDirectory:
    """Followed topics, kept up to date while :meth:`run` runs.

    Args:
        source: Makes what asks brokers (``cluster.from_brokers.BrokerSource``), from a function that returns them.
        bootstrap: Returns brokers to ask while none is known, or while none of the known ones answers.
        topics: Followed from the start.
        refresh_interval_s: Longest time between two readings, as ``metadata.max.age.ms``.
    """

    def __init__(
        self,
        source: Callable[[Callable[[], Collection[Broker]]], ClusterSource],
        bootstrap: Callable[[], Collection[Broker]],
        *,
        random: Callable[[], float],
        topics: Collection[str] = (),
        refresh_interval_s: float = 300.0,
        backoff_initial_s: float = 0.1,
        backoff_maximum_s: float = 2.0,
    ) -> None:
        self._source = source(self._known_brokers)
        self._bootstrap = bootstrap
        self._refresh_interval_s = refresh_interval_s
        self._calm_s = backoff_maximum_s
        self._backoff = Backoff(initial_s=backoff_initial_s, maximum_s=backoff_maximum_s, random=random)
        self._log = structlog.get_logger(__name__)
        self.views = Cell(EMPTY_VIEW)
        self._topics = frozenset(topics)
        self._wanted = asyncio.Event()
        self._reading = asyncio.Lock()
        self._begun = 0
        self._ended = 0
        self._reason = "started"
        self._failure: ConnectionLost | None = None

    @property
    def failure(self) -> ConnectionLost | None:
        """Why the last reading failed; None if it did not."""
        return self._failure

    def find_leader(self, partition: TopicPartition) -> Broker | None:
        """Return the broker to ask for a partition, as believed now."""
        return self.views.value.find_leader(partition)

    def follow(self, topics: Collection[str]) -> None:
        """Keep the view about these topics from now on; it is read again at once for those that are new."""
        added = not self._topics.issuperset(topics)
        self._topics = frozenset(topics)
        if added:
            self._backoff.reset()
            self.request_refresh("other topics are followed")

    def request_refresh(self, reason: str) -> None:
        """Have the view read again soon; returns at once."""
        if not self._wanted.is_set():
            self._reason = reason
            self._wanted.set()

    async def refresh(self, reason: str) -> ClusterView:
        """Read again and return the view; it stays as it was where no broker answers. Bounded by the source."""
        target = self._begun + 1  # a reading under way may be older than the caller's reason
        async with self._reading:
            if self._ended < target:
                self._reason = reason
                await self._read()
        return self.views.value

    async def run(self) -> None:
        """Keep the view up to date until cancelled. Each reading is bounded by its source."""
        loop = asyncio.get_running_loop()
        while True:
            self._wanted.clear()
            topics = self._topics
            await self.refresh(self._reason)
            if not self._is_settled(topics):
                self._wanted.set()
            ended = loop.time()
            with contextlib.suppress(TimeoutError):
                async with timeout(self._refresh_interval_s):
                    await self._wanted.wait()
            rested_s = loop.time() - ended
            if rested_s >= self._calm_s:
                self._backoff.reset()
            else:
                await asyncio.sleep(max(0.0, self._backoff.next() - rested_s))

    async def _read(self) -> None:
        """Read once. A failure leaves the view as it was."""
        self._begun += 1
        number = self._begun
        topics = self._topics
        try:
            view = await self._source.read(topics)
        except ConnectionLost as error:
            if self._failure is None:
                self._log.warning("cluster_read_failed", source="metadata", reason=str(error))
            self._failure = error
        else:
            if self._failure is not None:
                self._log.info("cluster_read_recovered", source="metadata")
            self._failure = None
            if view != self.views.value:
                self._backoff.reset()
                self._log.debug(
                    "cluster_view_changed", reason=self._reason, brokers=len(view.brokers), topics=len(topics)
                )
            self.views.set(view)
        self._ended = number

    def _is_settled(self, topics: frozenset[str]) -> bool:
        """Tell whether everything is known about the followed topics, which were ``topics`` before the reading."""
        view = self.views.value
        return (
            self._failure is None
            and topics == self._topics
            and not view.leaderless
            and all(topic in view.topics and view.topics[topic].partitions for topic in topics)
        )

    def _known_brokers(self) -> Collection[Broker]:
        """Return the brokers of the last view, then those of the bootstrap list where the former do not suffice."""
        known = list(self.views.value.brokers.values())
        return [*known, *self._bootstrap()] if self._failure is not None or not known else known
