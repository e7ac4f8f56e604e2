"""What everybody in the process believes of the cluster, and how it is kept true.

Owns the one :class:`~consumerd.cluster.view.ClusterView`, and the only task that reads it anew: every few minutes, when
ZooKeeper says that brokers or followed topics changed, and when somebody meets a sign that it is out of date (a broker
that is not the leader, a connection that broke).

Invariants:

- Refreshing is single-flight. Requests that come during a refresh are served by one more, since it may have read
  already what they complain about; :meth:`ClusterDirectory.refresh` returns only after one that began later than it.
- Refreshes that follow each other closely are spaced by a growing backoff with jitter, whoever asks for them and however
  often: a thousand partitions that lose their leader cost as many reads as one. The backoff grows slowly, so that a new
  leader is found within about a third of the time that it took to be elected. A view that changed, and news from
  ZooKeeper, are progress and start it over.
- An unsettled view (a followed partition without a leader, or with one that has no address; ZooKeeper and Metadata at
  odds) is read again by itself, with the same backoff.
- Each source may be away. While ZooKeeper is, its last account stays and leaders are Metadata's; while all brokers are,
  leaders are ZooKeeper's. The view is never emptied by a failure.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection
from typing import Final

import structlog

from consumerd.aio.backoff import Backoff
from consumerd.aio.cell import Cell
from consumerd.aio.timeouts import timeout
from consumerd.cluster.source import ClusterSource
from consumerd.cluster.view import EMPTY_VIEW, Broker, ClusterView, Disagreement, compare_views, merge_views
from consumerd.errors import ConnectionLost, CoordinationError
from consumerd.model import Incarnation, TopicPartition
from consumerd.telemetry.hooks import Hooks, Trouble
from consumerd.zk.layout import BROKER_IDS, topic_path
from consumerd.zk.port import Watch, WatchKind, ZkClient

KnownBrokers = Callable[[], Collection[Broker]]

_BACKOFF_FACTOR: Final = 1.3

_FIRST_CONNECTION_S: Final = 2.0
"""For how long a new directory waits for ZooKeeper before it reports that it cannot be read."""

_PERSISTENT_S: Final = 10.0
"""For how long two sources may differ before it is worth a line in the log: elections take less."""


class ClusterDirectory:
    """The cluster, kept up to date while :meth:`run` runs.

    ``from_brokers`` makes the source that asks the brokers which this directory knows. ``refresh_interval_s`` is the
    longest time between two refreshes.
    """

    def __init__(
        self,
        zk: ZkClient,
        from_zookeeper: ClusterSource,
        from_brokers: Callable[[KnownBrokers], ClusterSource],
        *,
        now: Callable[[], float],
        random: Callable[[], float],
        hooks: Hooks | None = None,
        refresh_interval_s: float = 300.0,
        backoff_initial_s: float = 0.2,
        backoff_maximum_s: float = 10.0,
    ) -> None:
        self._zk = zk
        self._hooks = hooks = hooks or Hooks()
        self._zookeeper = _Account("zookeeper", from_zookeeper, hooks)
        self._metadata = _Account("metadata", from_brokers(self._known_brokers), hooks)
        self._now = now
        self._refresh_interval_s = refresh_interval_s
        self._backoff = Backoff(
            initial_s=backoff_initial_s, maximum_s=backoff_maximum_s, factor=_BACKOFF_FACTOR, random=random
        )
        self._least_s = backoff_initial_s
        self._calm_s = backoff_maximum_s
        self._log = structlog.get_logger(__name__)
        self.views = Cell(EMPTY_VIEW)
        self._topics: frozenset[str] = frozenset()
        self._watches: dict[str, Watch] | None = None
        self._wanted = asyncio.Event()
        self._news = asyncio.Event()
        self._reason = "started"
        self._begun = 0
        self._done = Cell(0)
        self._ended_at = -self._calm_s
        self._not_before = 0.0
        self._odds: dict[Disagreement, float] = {}
        self._reported: set[Disagreement] = set()

    # -- what is known

    @property
    def view(self) -> ClusterView:
        """The cluster as believed now; replaced, never changed. Wait for changes with ``views``."""
        return self.views.value

    def find_leader(self, partition: TopicPartition) -> Broker | None:
        """Return the broker to ask for a partition, as believed now."""
        return self.view.find_leader(partition)

    def find_incarnation(self, topic: str) -> Incarnation | None:
        """Return which making of a topic the view is about, as believed now; ZooKeeper alone knows for certain."""
        known = self.view.topics.get(topic)
        return known.incarnation if known else None

    async def wait_leader(self, partition: TopicPartition) -> Broker:
        """Return the broker to ask for a partition, once there is one. Unbounded; cancel freely.

        Who was just told by that broker that it is not the leader awaits :meth:`refresh` first.
        """
        if self.find_leader(partition) is None:
            self.request_refresh(f"no leader of {partition}")
        view = await self.views.wait(lambda view: view.find_leader(partition) is not None)
        leader = view.find_leader(partition)
        assert leader is not None
        return leader

    # -- keeping it true

    def follow(self, topics: Collection[str]) -> None:
        """Keep the view about these topics from now on, and no others."""
        if frozenset(topics) == self._topics:
            return
        self._topics = frozenset(topics)
        self._set_watches()
        self.request_refresh("other topics are followed")

    def request_refresh(self, reason: str) -> None:
        """Have the view read again soon; returns at once."""
        if not self._wanted.is_set():
            self._reason = reason
            self._wanted.set()

    async def refresh(self, reason: str) -> ClusterView:
        """Have the view read again, and return it when a refresh that began after this call has ended.

        The refresh may have failed, and the view be what it was. Unbounded while :meth:`run` does not run; cancel freely.
        """
        target = self._begun + 1
        self.request_refresh(reason)
        await self._done.wait(lambda done: done >= target)
        return self.view

    async def run(self) -> None:
        """Keep the view up to date until cancelled."""
        self._watches = {}
        self._set_watches()
        self.request_refresh("started")
        try:
            await self._wait_first_connection()
            while True:
                await self._wait_due()
                await self._refresh()
        finally:
            watches, self._watches = self._watches, None
            for watch in watches.values():
                watch.close()

    async def _wait_first_connection(self) -> None:
        state = self._zk.state
        with contextlib.suppress(TimeoutError):
            async with timeout(_FIRST_CONNECTION_S):
                while not state.connected:
                    state = await self._zk.wait_state(state)

    def _set_watches(self) -> None:
        """Watch the brokers' parent and each followed topic's node, which changes when partitions are added."""
        if self._watches is None:
            return
        wanted = {BROKER_IDS: WatchKind.CHILDREN} | {topic_path(topic): WatchKind.DATA for topic in self._topics}
        for path in self._watches.keys() - wanted.keys():
            self._watches.pop(path).close()
        for path in sorted(wanted.keys() - self._watches.keys()):
            self._watches[path] = self._zk.watch(path, wanted[path], self._hear_news)

    def _hear_news(self) -> None:
        """Have the view read at once: something did change, whatever was in vain so far."""
        self._backoff.reset()
        self._news.set()
        self.request_refresh("ZooKeeper changed")

    async def _wait_due(self) -> None:
        """Wait until somebody asks, or the interval is over; and then until the last refresh is long enough ago."""
        with contextlib.suppress(TimeoutError):
            async with timeout(self._refresh_interval_s):
                await self._wanted.wait()
        if not self._wanted.is_set():
            self._reason = "periodic"
        if self._now() - self._ended_at >= self._calm_s:
            self._backoff.reset()
            return
        with contextlib.suppress(TimeoutError):
            async with timeout(self._not_before - self._now()):
                await self._news.wait()
            await asyncio.sleep(self._ended_at + self._least_s - self._now())

    async def _refresh(self) -> None:
        """Read both sources and publish each account as it comes in. Bounded by the sources. Raises nothing of theirs."""
        self._wanted.clear()
        self._news.clear()
        self._begun += 1
        before, reason, topics = self.view, self._reason, self._topics
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(self._read(self._zookeeper, topics), name="read the cluster from ZooKeeper")
            if not before.brokers:
                await asyncio.wait([reading])  # bounded by the source; it names the brokers that there are to ask
            if self.view.brokers:
                await self._read(self._metadata, topics)
        self._compare()
        self._ended_at = self._now()
        if self.view != before:
            self._backoff.reset()
            self._log.debug("cluster_view_changed", reason=reason, brokers=len(self.view.brokers), topics=len(topics))
        self._not_before = self._ended_at + self._backoff.next()
        if self._unsettled:
            self.request_refresh("unsettled")
        self._done.set(self._begun)

    async def _read(self, account: _Account, topics: Collection[str]) -> None:
        await account.read(topics)
        # also after a failure: whom to believe has changed
        self.views.set(merge_views(self._zookeeper.view, self._metadata.view, stale_zookeeper=self._zookeeper.failing))

    def _known_brokers(self) -> Collection[Broker]:
        return self.view.brokers.values()

    @property
    def _unsettled(self) -> bool:
        failed = self._zookeeper.failing or self._metadata.failing
        return failed or bool(self._odds) or bool(self.view.leaderless) or not self.view.brokers

    def _compare(self) -> None:
        """Keep since when the two accounts differ, and log what does not pass."""
        found: list[Disagreement] = []
        zookeeper, metadata = self._zookeeper, self._metadata
        if zookeeper.view and metadata.view and not (zookeeper.failing or metadata.failing):
            found = compare_views(zookeeper.view, metadata.view)
        now = self._now()
        self._odds = {one: self._odds.get(one, now) for one in found}
        for one, since in self._odds.items():
            if now - since >= _PERSISTENT_S and one not in self._reported:
                self._reported.add(one)
                self._log.warning(
                    "cluster_views_disagree",
                    aspect=one.aspect.value,
                    subject=one.subject,
                    zookeeper=one.zookeeper,
                    metadata=one.metadata,
                    seconds=round(now - since, 1),
                )
                detail = (
                    f"{one.aspect.value} of {one.subject}: {one.zookeeper} in ZooKeeper, {one.metadata} in Metadata"
                )
                self._hooks.trouble(Trouble.CLUSTER_VIEWS_DISAGREE, detail)
        for one in self._reported - self._odds.keys():
            self._reported.remove(one)
            self._log.info("cluster_views_agree", aspect=one.aspect.value, subject=one.subject)


class _Account:
    """One source's last account of the cluster, and whether it can be had now."""

    def __init__(self, name: str, source: ClusterSource, hooks: Hooks) -> None:
        self.view: ClusterView | None = None
        self.failing = False
        self._name = name
        self._source = source
        self._hooks = hooks
        self._log = structlog.get_logger(__name__).bind(source=name)

    async def read(self, topics: Collection[str]) -> None:
        """Read again, and keep the last account if that fails. Logs the first failure and the recovery."""
        try:
            view = await self._source.read(topics)
        except (CoordinationError, ConnectionLost) as error:
            self._hooks.metadata_refreshed(self._name, failed=True)
            if not self.failing:
                self._log.warning("cluster_read_failed", reason=str(error))
                self._hooks.trouble(Trouble.CLUSTER_READ_FAILED, f"{self._name}: {error}")
            self.failing = True
            return
        self._hooks.metadata_refreshed(self._name, failed=False)
        if self.failing:
            self._log.info("cluster_read_recovered")
        self.view, self.failing = view, False
