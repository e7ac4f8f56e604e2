# SPDX-License-Identifier: Apache-2.0
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
  leaders and addresses are ZooKeeper's. The view is never emptied by a failure.
- Metadata is asked of registered brokers alone, as long as ZooKeeper can be read.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import Final, TypeVar

import structlog

from consumerd.aio.backoff import Backoff
from consumerd.aio.cell import Cell
from consumerd.aio.parallel import map_bounded
from consumerd.aio.timeouts import timeout
from consumerd.cluster.source import ClusterSource, RegistrySource
from consumerd.cluster.view import EMPTY_VIEW, Broker, ClusterView, MetadataDisagreement, compare_views, merge_views
from consumerd.errors import ConnectionLost, CoordinationError
from consumerd.model import TopicPartition
from consumerd.telemetry.hooks import Hooks, Trouble
from consumerd.zk.layout import BROKER_IDS, topic_path
from consumerd.zk.port import Watch, WatchKind, ZkClient

KnownBrokers = Callable[[], Collection[Broker]]

T = TypeVar("T")

_BACKOFF_FACTOR: Final = 1.3

_LARGE_VIEW: Final = 20_000
"""Brokers and partitions of both accounts above which they are merged and compared in a thread."""

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
        from_zookeeper: RegistrySource,
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
        self._from_zookeeper = from_zookeeper
        self._from_brokers = from_brokers(self._known_brokers)
        self._zookeeper = _Account("zookeeper", hooks)
        self._metadata = _Account("metadata", hooks)
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
        self._doubted = False
        """Whether somebody has found that the view is wrong, or that it cannot be told whether it is right."""
        self._about: frozenset[str] | None = None
        """The topics that were read last."""
        self._due = True
        """Whether the view is to be read even if what is watched has not changed."""
        self._counters: Mapping[str, tuple[int, int] | None] | None = None
        """What the last account of ZooKeeper was made of: each watched node's creation and version of what is watched; None
        where that was not read before it."""
        self._begun = 0
        self._done = Cell(0)
        self._ended_at = -self._calm_s
        self._not_before = 0.0
        self._merging = asyncio.Lock()
        self._odds: dict[MetadataDisagreement, float] = {}
        self._reported: set[MetadataDisagreement] = set()

    # -- what is known

    @property
    def view(self) -> ClusterView:
        """The cluster as believed now; replaced, never changed. Wait for changes with ``views``."""
        return self.views.value

    def find_leader(self, partition: TopicPartition) -> Broker | None:
        """Return the broker to ask for a partition, as believed now."""
        return self.view.find_leader(partition)

    # -- keeping it true

    def follow(self, topics: Collection[str]) -> None:
        """Keep the view about these topics from now on, and no others."""
        if frozenset(topics) == self._topics:
            return
        self._topics = frozenset(topics)
        self._set_watches()
        self._want("other topics are followed", due=True)

    def request_refresh(self, reason: str) -> None:
        """Have the view read again soon, leaders by both accounts if it is about these topics yet; returns at once."""
        self._doubted = self._doubted or self._about == self._topics
        self._want(reason, due=True)

    def _want(self, reason: str, *, due: bool) -> None:
        self._due = self._due or due
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
        self._want("started", due=True)
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
        """Have the view read at once if something did change, whatever was in vain so far."""
        self._backoff.reset()
        self._news.set()
        self._want("ZooKeeper changed", due=False)

    async def _wait_due(self) -> None:
        """Wait until somebody asks, or the interval is over; and then until the last refresh is long enough ago."""
        with contextlib.suppress(TimeoutError):
            async with timeout(self._refresh_interval_s):
                await self._wanted.wait()
        if not self._wanted.is_set():
            self._reason, self._due = "periodic", True
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
        due, self._due = self._due, False
        leaders, self._doubted = self._doubted, False
        counters = None if due else await self._read_counters()
        if counters is not None and counters == self._counters and not self._unsettled:
            # a watch is told now and then, and after each reconnect, that it may have missed something; thousands of
            # partitions need not be read for that
            self._ended_at = self._now()
            self._done.set(self._begun)
            return
        self._counters = counters
        async with asyncio.TaskGroup() as tasks:
            # who leads is a read a partition in ZooKeeper: Metadata tells it, unless that is in doubt
            registry = partial(self._from_zookeeper.read, topics, leaders=leaders)
            reading = tasks.create_task(self._read(self._zookeeper, registry), name="read the cluster from ZooKeeper")
            if not before.brokers:
                await asyncio.wait([reading])  # bounded by the source; it names the brokers that there are to ask
            if self.view.brokers:
                await self._read(self._metadata, partial(self._from_brokers.read, topics))
        await self._compare()
        self._about = topics
        self._ended_at = self._now()
        if self.view != before:
            self._backoff.reset()
            self._log.debug("cluster_view_changed", reason=reason, brokers=len(self.view.brokers), topics=len(topics))
        self._not_before = self._ended_at + self._backoff.next()
        if self._unsettled:
            self.request_refresh("unsettled")
        self._done.set(self._begun)

    async def _read_counters(self) -> Mapping[str, tuple[int, int] | None] | None:
        """Read what would tell of a change of what is watched; None where it cannot be had now."""
        if not self._zk.state.connected:
            return None
        paths = [BROKER_IDS, *(topic_path(topic) for topic in sorted(self._topics))]
        try:
            stats = await map_bounded(paths, self._zk.exists)
        except CoordinationError:
            return None
        return {
            path: None if stat is None else (stat.czxid, stat.cversion if path == BROKER_IDS else stat.version)
            for path, stat in stats.items()
        }

    async def _read(self, account: _Account, reading: Callable[[], Awaitable[ClusterView]]) -> None:
        await account.read(reading)
        # also after a failure: whom to believe has changed
        zookeeper, metadata = self._zookeeper, self._metadata
        # the other account may come in while a large one is merged: the later merge must be the later view
        async with self._merging:
            merge = partial(
                merge_views,
                zookeeper.view,
                metadata.view,
                stale_zookeeper=zookeeper.failing,
                stale_metadata=metadata.failing,
            )
            self.views.set(await self._compute(merge))

    async def _compute(self, function: Callable[[], T]) -> T:
        """Return what a pure function over both accounts returns, without holding the loop for a large one."""
        views = (self._zookeeper.view, self._metadata.view)
        if sum(view.size for view in views if view is not None) <= _LARGE_VIEW:
            return function()
        return await asyncio.to_thread(function)

    def _known_brokers(self) -> Collection[Broker]:
        """Return the brokers to ask for Metadata: those that are registered, if ZooKeeper can say."""
        known = self.view.brokers
        if self._zookeeper.view is None or self._zookeeper.failing:
            return known.values()
        # a broker that has left the cluster may answer for ever, and its response names itself
        return [one for broker, one in known.items() if broker in self._zookeeper.view.brokers] or known.values()

    @property
    def _unsettled(self) -> bool:
        failed = self._zookeeper.failing or self._metadata.failing
        return failed or bool(self._odds) or self.view.has_leaderless or not self.view.brokers

    async def _compare(self) -> None:
        """Keep since when the two accounts differ, and log what does not pass."""
        found: list[MetadataDisagreement] = []
        zookeeper, metadata = self._zookeeper, self._metadata
        if zookeeper.view and metadata.view and not (zookeeper.failing or metadata.failing):
            found = await self._compute(partial(compare_views, zookeeper.view, metadata.view))
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

    def __init__(self, name: str, hooks: Hooks) -> None:
        self.view: ClusterView | None = None
        self.failing = False
        self._name = name
        self._hooks = hooks
        self._log = structlog.get_logger(__name__).bind(source=name)

    async def read(self, reading: Callable[[], Awaitable[ClusterView]]) -> None:
        """Read again, and keep the last account if that fails. Logs the first failure and the recovery."""
        try:
            view = await reading()
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
