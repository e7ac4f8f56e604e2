# SPDX-License-Identifier: Apache-2.0
"""What a producer needs to know of the cluster, and how it is kept true: topics, their partitions, and who leads them.

:class:`MetadataDirectory` asks the brokers alone, as Kafka's producers do, so that addresses suffice. Where there is a
ZooKeeper, ``cluster.directory`` says which brokers there are to ask, and the rest is the same.

It reads again when it is asked to, every few minutes, and by itself, with a backoff, as long as a followed topic is missing
or one of its partitions has no leader. Followed topics are named in the request, so that brokers with
``auto.create.topics.enable`` make them; up to 1.x the answer is then LEADER_NOT_AVAILABLE until it is done.
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
    """:class:`MetadataDirectory` as a producer sees it."""

    @property
    def views(self) -> Cell[ClusterView]:
        """What is believed of the cluster; replaced, never changed."""

    @property
    def failure(self) -> ConnectionLost | None:
        """Why the cluster could not be asked just now; None if it could."""

    def find_leader(self, partition: TopicPartition) -> Broker | None:
        """Return the broker to send to, as believed now."""

    def follow(self, topics: Collection[str]) -> None:
        """Keep the view about these topics from now on."""

    def request_refresh(self, reason: str) -> None:
        """Have the view read again soon; returns at once."""


class MetadataDirectory:
    """The followed topics, kept up to date while :meth:`run` runs.

    ``source`` asks brokers (``cluster.from_brokers.BrokerSource``, with ``creates``). ``refresh_interval_s`` is the longest
    time between two readings, as ``metadata.max.age.ms``.
    """

    def __init__(
        self,
        source: Callable[[Callable[[], Collection[Broker]]], ClusterSource],
        bootstrap: Callable[[], Collection[Broker]],
        *,
        random: Callable[[], float],
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
        self._topics: frozenset[str] = frozenset()
        self._wanted = asyncio.Event()
        self._reason = "started"
        self._failure: ConnectionLost | None = None

    @property
    def failure(self) -> ConnectionLost | None:
        """Why the last reading failed; None if it did not."""
        return self._failure

    def find_leader(self, partition: TopicPartition) -> Broker | None:
        """Return the broker to send to, as believed now."""
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

    async def run(self) -> None:
        """Keep the view up to date until cancelled. Each reading is bounded by its source."""
        loop = asyncio.get_running_loop()
        while True:
            self._wanted.clear()
            settled = await self._read()
            if not settled:
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

    async def _read(self) -> bool:
        """Read once; return whether all is known that is followed. A failure leaves the view as it was."""
        topics = self._topics
        try:
            view = await self._source.read(topics)
        except ConnectionLost as error:
            if self._failure is None:
                self._log.warning("cluster_read_failed", source="metadata", reason=str(error))
            self._failure = error
            return False
        if self._failure is not None:
            self._log.info("cluster_read_recovered", source="metadata")
        self._failure = None
        if view != self.views.value:
            self._backoff.reset()
            self._log.debug("cluster_view_changed", reason=self._reason, brokers=len(view.brokers), topics=len(topics))
        self.views.set(view)
        return (
            topics == self._topics
            and not view.leaderless
            and all(topic in view.topics and view.topics[topic].partitions for topic in topics)
        )

    def _known_brokers(self) -> Collection[Broker]:
        """The brokers of the last answer first; where one could not be had, those that were named, too."""
        known = list(self.views.value.brokers.values())
        return [*known, *self._bootstrap()] if self._failure is not None or not known else known
