# SPDX-License-Identifier: Apache-2.0
"""Directory of topics, partitions and leaders, read from brokers' Metadata alone.

:class:`MetadataDirectory` needs broker addresses, but no ZooKeeper. Producers and the readers of Spark use it. Group
members and commands use ``cluster.directory.ClusterDirectory``, which also watches ZooKeeper, where it is given. It
implements ``client.leaders.Leaders`` and ``fetch.ports.LeaderDirectory``. For Kafka 0.6 and 0.7, which have no
Metadata, producers give it a source that reads ZooKeeper (``client.legacy_topics``).

It refreshes on request, every few minutes, and with a backoff as long as a followed topic is missing or a partition has
no leader. Requests name the followed topics. If the source allows it (``creates``), brokers with
``auto.create.topics.enable`` then create missing ones; brokers up to 1.x respond LEADER_NOT_AVAILABLE until that is
done.

Example: topic ``t`` is followed and does not exist yet. Refreshes after about 0.1, 0.2, 0.4... s (at most 2 s) get
LEADER_NOT_AVAILABLE. When all partitions of ``t`` have a leader, the next refresh is 300 s later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

import structlog

from consumerd.aio.backoff import Backoff
from consumerd.aio.cell import Cell
from consumerd.aio.timeouts import wait_set
from consumerd.cluster.view import EMPTY_VIEW, Broker, ClusterSource, ClusterView
from consumerd.errors import ConnectionLost, CoordinationError
from consumerd.model import TopicPartition


class MetadataDirectory:
    """Directory of topics, partitions and leaders, refreshed while :meth:`run` runs.

    It reads brokers' Metadata, and only of the topics that it is told to follow.

    Args:
        source: Creates the source of Metadata (``cluster.from_brokers.BrokerSource``) from a function that returns the
            brokers to ask.
        bootstrap: Returns the brokers to ask if none is known, or none of the known ones responds.
        random: Returns floats in [0, 1), for backoffs.
        topics: Topics that are followed from the beginning.
        source_name: Name of the source in the log.
        refresh_interval_s: Longest time between two refreshes, in seconds, as ``metadata.max.age.ms``.
        backoff_initial_s: First delay, in seconds, while a topic or a leader is missing.
        backoff_maximum_s: Longest such delay, in seconds.
    """

    def __init__(
        self,
        source: Callable[[Callable[[], Collection[Broker]]], ClusterSource],
        bootstrap: Callable[[], Collection[Broker]],
        *,
        random: Callable[[], float],
        topics: Collection[str] = (),
        source_name: str = "metadata",
        refresh_interval_s: float = 300.0,
        backoff_initial_s: float = 0.1,
        backoff_maximum_s: float = 2.0,
    ) -> None:
        self._source = source(self._known_brokers)
        self._source_name = source_name
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
        self.failure: ConnectionLost | CoordinationError | None = None
        """Error of the last refresh; None if it succeeded."""

    @property
    def view(self) -> ClusterView:
        """Brokers, topics and leaders as last read.

        The object is replaced, never changed. Wait for changes with ``views``.
        """
        return self.views.value

    def find_leader(self, partition: TopicPartition) -> Broker | None:
        """Return the last known leader of a partition; None if none is known."""
        return self.views.value.find_leader(partition)

    def follow(self, topics: Collection[str]) -> None:
        """Replace the set of topics to read; refresh at once if there are new ones."""
        added = not self._topics.issuperset(topics)
        self._topics = frozenset(topics)
        if added:
            self._backoff.reset()
            self.request_refresh("other topics are followed")

    def follow_also(self, topics: Collection[str]) -> None:
        """Add topics to read to the present ones; refresh if any is new."""
        self.follow(self._topics.union(topics))

    def request_refresh(self, reason: str) -> None:
        """Ask :meth:`run` to read the followed topics again; returns at once.

        Args:
            reason: Text for the log.
        """
        if not self._wanted.is_set():
            self._reason = reason
            self._wanted.set()

    async def refresh(self, reason: str) -> ClusterView:
        """Read the followed topics again; return brokers, topics and leaders as they are known then.

        They are unchanged if no broker responds. The source of Metadata limits the time.

        Args:
            reason: Text for the log.
        """
        target = self._begun + 1  # a refresh that is running already may be too old to show the caller's change
        async with self._reading:
            if self._ended < target:
                self._reason = reason
                await self._read()
        return self.views.value

    async def run(self) -> None:
        """Refresh the directory until cancelled. The source of Metadata limits the time of each refresh."""
        loop = asyncio.get_running_loop()
        while True:
            self._wanted.clear()
            topics = self._topics
            await self.refresh(self._reason)
            if not self._is_settled(topics):
                self._wanted.set()
            ended = loop.time()
            await wait_set(self._wanted, self._refresh_interval_s)
            rested_s = loop.time() - ended
            if rested_s >= self._calm_s:
                self._backoff.reset()
            else:
                await asyncio.sleep(max(0.0, self._backoff.next() - rested_s))

    async def _read(self) -> None:
        """Refresh once; after an error the view is unchanged."""
        self._begun += 1
        number = self._begun
        topics = self._topics
        try:
            view = await self._source.read(topics)
        except (ConnectionLost, CoordinationError) as error:
            if self.failure is None:
                self._log.warning("cluster_read_failed", source=self._source_name, reason=str(error))
            self.failure = error
        else:
            if self.failure is not None:
                self._log.info("cluster_read_recovered", source=self._source_name)
            self.failure = None
            if view != self.views.value:
                self._backoff.reset()
                self._log.debug(
                    "cluster_view_changed", reason=self._reason, brokers=len(view.brokers), topics=len(topics)
                )
            self.views.set(view)
        self._ended = number

    def _is_settled(self, topics: frozenset[str]) -> bool:
        """Return True if the refresh completed all followed topics.

        ``topics`` are those followed before the refresh. If others are followed now, the result is False.
        """
        view = self.views.value
        return (
            self.failure is None
            and topics == self._topics
            and not view.leaderless
            and all(topic in view.topics and view.topics[topic].partitions for topic in topics)
        )

    def _known_brokers(self) -> Collection[Broker]:
        """Return the brokers to ask: those of the last view.

        After a failure also the bootstrap list.
        """
        known = list(self.views.value.brokers.values())
        return [*known, *self._bootstrap()] if self.failure is not None or not known else known
