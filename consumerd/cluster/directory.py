# SPDX-License-Identifier: Apache-2.0
"""The cluster directory: the process's view of the cluster, and its refreshing.

Owns the :class:`~consumerd.cluster.view.ClusterView`, and the only task that refreshes it: every few minutes, when
ZooKeeper reports changed brokers or followed topics, and when a component sees that the view is out of date (a broker
that is not the leader, a broken connection).

Invariants:

- Refreshes are single-flight. Requests during a refresh are served by one more, since the current one may have read the
  outdated state already; :meth:`ClusterDirectory.refresh` returns only after a refresh that began later than the call.
- Refreshes in quick succession are spaced by a growing backoff with jitter, for all requests together: a thousand
  partitions that lose their leader cost as many reads as one. The backoff grows slowly, so that a new leader is found
  within about a third of the time that its election took. A changed view, and news from ZooKeeper, reset it.
- An unsettled view is refreshed on its own, with the same backoff. It is unsettled if a followed partition has no
  leader or one without an address, or if ZooKeeper and Metadata differ.
- Brokers of Kafka 0.6 and 0.7 have no Metadata: ZooKeeper is the only source then, and its last view stays while it
  cannot be read.
- Each source may be unavailable. Without ZooKeeper, its last view stays, and leaders come from Metadata; without
  brokers, leaders and addresses come from ZooKeeper. A failure never empties the view.
- Only registered brokers are asked for Metadata, as long as ZooKeeper can be read.

Example: broker 1, the leader of 1,000 partitions, dies.

1. Their fetches fail, and each requests a refresh; one runs. ZooKeeper still has leader 1, so the view is unsettled.
2. It is refreshed after about 0.2 s, 0.26 s, 0.34 s, ... (less jitter).
3. ZooKeeper reports the new leaders. The view changes, the backoff starts over, and fetching continues.
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
from consumerd.aio.timeouts import timeout, wait_set
from consumerd.cluster.view import (
    EMPTY_VIEW,
    Broker,
    ClusterSource,
    ClusterView,
    MetadataDisagreement,
    RegistrySource,
    compare_views,
    merge_views,
)
from consumerd.errors import ConnectionLost, CoordinationError
from consumerd.model import TopicPartition
from consumerd.telemetry.hooks import Hooks, Trouble
from consumerd.zk.layout import BROKER_IDS, topic_path
from consumerd.zk.port import Watch, WatchKind, ZkClient
from consumerd.zk.registry_layout import NodeStamp, RegistryLayout

KnownBrokers = Callable[[], Collection[Broker]]

T = TypeVar("T")

_BACKOFF_FACTOR: Final = 1.3

_LARGE_VIEW: Final = 20_000
"""Brokers and partitions of both views above which they are merged and compared in a thread."""

_FIRST_CONNECTION_S: Final = 2.0
"""Time, in seconds, that a new directory waits for ZooKeeper before it reports that ZooKeeper cannot be read."""

_PERSISTENT_S: Final = 10.0
"""Time, in seconds, after which a difference between the sources is logged: elections take less."""


class ClusterDirectory:
    """Current view of a cluster (brokers, topics, leaders), refreshed while :meth:`run` runs.

    Args:
        from_zookeeper: Source that reads ZooKeeper.
        from_brokers: Creates the source that reads Metadata. Its argument is a function that returns the brokers to
            ask, from the current view of this directory. None for brokers of Kafka 0.6 and 0.7, which have no Metadata.
        now: Monotonic clock, in seconds.
        random: Returns floats in [0, 1), for jitter.
        refresh_interval_s: Longest time between two refreshes, in seconds.
        backoff_initial_s: First pause between refreshes in quick succession, in seconds.
        backoff_maximum_s: Longest such pause, in seconds.
        layout: Paths and formats of the cluster's nodes in ZooKeeper.
    """

    def __init__(
        self,
        zk: ZkClient,
        from_zookeeper: RegistrySource,
        from_brokers: Callable[[KnownBrokers], ClusterSource] | None,
        *,
        now: Callable[[], float],
        random: Callable[[], float],
        hooks: Hooks | None = None,
        refresh_interval_s: float = 300.0,
        backoff_initial_s: float = 0.2,
        backoff_maximum_s: float = 10.0,
        layout: RegistryLayout,
    ) -> None:
        self._zk = zk
        self._layout = layout
        self._hooks = hooks = hooks or Hooks()
        self._from_zookeeper = from_zookeeper
        self._from_brokers = None if from_brokers is None else from_brokers(self._known_brokers)
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
        """True if the leaders in the view were reported as wrong, or as unverifiable."""
        self._about: frozenset[str] | None = None
        """The topics of the last refresh."""
        self._due = True
        """True if the view must be refreshed even if no watched node has changed."""
        self._counters: Mapping[str, NodeStamp | None] | None = None
        """Versions of the nodes of brokers and topics at ZooKeeper's last view.

        None if they were not read before it.
        """
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
        """Current view of the cluster, an immutable value.

        Each refresh that finds a change replaces it. Wait for a new view with ``views``.
        """
        return self.views.value

    def find_leader(self, partition: TopicPartition) -> Broker | None:
        """Return the partition's leader in the current view.

        None if the view has no leader of the partition, or not the leader's address.
        """
        return self.view.find_leader(partition)

    # -- keeping it true

    def follow(self, topics: Collection[str]) -> None:
        """Restrict the view of the cluster to these topics from now on."""
        if frozenset(topics) == self._topics:
            return
        self._topics = frozenset(topics)
        self._set_watches()
        self._want("other topics are followed", due=True)

    def request_refresh(self, reason: str) -> None:
        """Request a refresh of the view of the cluster, and return at once.

        The caller has seen that the view is out of date, for ``reason``. Leaders are usually taken from Metadata
        responses, since ZooKeeper needs one read for each partition. If the last refresh was already for the topics
        that are followed now, its leaders may be wrong, so this refresh reads them from ZooKeeper as well.
        """
        self._doubted = self._doubted or self._about == self._topics
        self._want(reason, due=True)

    def _want(self, reason: str, *, due: bool) -> None:
        self._due = self._due or due
        if not self._wanted.is_set():
            self._reason = reason
            self._wanted.set()

    async def refresh(self, reason: str) -> ClusterView:
        """Return the view of the cluster after a refresh that begins later than this call.

        The refresh may fail and leave the view unchanged. The call waits without limit while :meth:`run` does not run.
        Safe to cancel.

        Args:
            reason: Why the view is to be refreshed, for the log.
        """
        target = self._begun + 1
        self.request_refresh(reason)
        await self._done.wait(lambda done: done >= target)
        return self.view

    async def run(self) -> None:
        """Keep the view of the cluster up to date until cancelled."""
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
        """Watch the brokers' parent, and the partitions of each followed topic."""
        if self._watches is None:
            return
        wanted = {BROKER_IDS: WatchKind.CHILDREN}
        for topic in self._topics:
            wanted |= self._layout.topic_watches(topic)
        for path in self._watches.keys() - wanted.keys():
            self._watches.pop(path).close()
        for path in sorted(wanted.keys() - self._watches.keys()):
            self._watches[path] = self._zk.watch(path, wanted[path], self._hear_news)

    def _hear_news(self) -> None:
        """Refresh soon if a node has changed, without backoff."""
        self._backoff.reset()
        self._news.set()
        self._want("ZooKeeper changed", due=False)

    async def _wait_due(self) -> None:
        """Wait for a request or the interval, and then for the end of the backoff."""
        if not await wait_set(self._wanted, self._refresh_interval_s):
            self._reason, self._due = "periodic", True
        if self._now() - self._ended_at >= self._calm_s:
            self._backoff.reset()
            return
        if await wait_set(self._news, self._not_before - self._now()):
            await asyncio.sleep(self._ended_at + self._least_s - self._now())

    async def _refresh(self) -> None:
        """Read both sources, and publish each view as it arrives.

        Bounded by the sources. Their errors are not raised.
        """
        self._wanted.clear()
        self._news.clear()
        self._begun += 1
        before, reason, topics = self.view, self._reason, self._topics
        due, self._due = self._due, False
        leaders, self._doubted = self._doubted, False
        counters = None if due else await self._read_counters()
        if counters is not None and counters == self._counters and not self._unsettled:
            # watches also fire from time to time, and after each reconnect, in case a change was missed; without a
            # change, thousands of partitions need not be read
            self._ended_at = self._now()
            self._done.set(self._begun)
            return
        self._counters = counters
        async with asyncio.TaskGroup() as tasks:
            # leaders cost one read per partition in ZooKeeper, so they come from Metadata unless they are in doubt
            registry = partial(self._from_zookeeper.read, topics, leaders=leaders)
            reading = tasks.create_task(self._read(self._zookeeper, registry), name="read the cluster from ZooKeeper")
            if not before.brokers:
                await asyncio.wait([reading])  # bounded by the source; it returns the brokers to ask for Metadata
            if self.view.brokers and self._from_brokers is not None:
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

    async def _read_counters(self) -> Mapping[str, NodeStamp | None] | None:
        """Read the stamps of brokers and followed topics; None if they cannot be read now."""
        if not self._zk.state.connected:
            return None
        paths = [BROKER_IDS, *(topic_path(topic) for topic in sorted(self._topics))]
        try:
            stats = await map_bounded(paths, self._zk.exists)
        except CoordinationError:
            return None
        brokers = stats.pop(BROKER_IDS)
        return {
            BROKER_IDS: None if brokers is None else (brokers.czxid, brokers.cversion),
            **{path: None if stat is None else self._layout.stamp_topic(stat) for path, stat in stats.items()},
        }

    async def _read(self, account: _Account, reading: Callable[[], Awaitable[ClusterView]]) -> None:
        await account.read(reading)
        # merge after a failure too: it changes which source is preferred
        zookeeper, metadata = self._zookeeper, self._metadata
        # the other view may arrive while a large one is merged: the merge that begins later must be published later
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
        """Run a pure function on both views, in a thread if they are large."""
        views = (self._zookeeper.view, self._metadata.view)
        if sum(view.size for view in views if view is not None) <= _LARGE_VIEW:
            return function()
        return await asyncio.to_thread(function)

    def _known_brokers(self) -> Collection[Broker]:
        """Return the brokers to ask for Metadata: the registered ones, if known."""
        known = self.view.brokers
        if self._zookeeper.view is None or self._zookeeper.failing:
            return known.values()
        # a broker that has left the cluster may go on responding, and its response lists itself
        return [one for broker, one in known.items() if broker in self._zookeeper.view.brokers] or known.values()

    @property
    def _unsettled(self) -> bool:
        failed = self._zookeeper.failing or self._metadata.failing
        return failed or bool(self._odds) or self.view.has_leaderless or not self.view.brokers

    async def _compare(self) -> None:
        """Track how long the two views have differed, and log lasting differences."""
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
    """The last view of one source, and the state of its reads (failing or not)."""

    def __init__(self, name: str, hooks: Hooks) -> None:
        self.view: ClusterView | None = None
        self.failing = False
        self._name = name
        self._hooks = hooks
        self._log = structlog.get_logger(__name__).bind(source=name)

    async def read(self, reading: Callable[[], Awaitable[ClusterView]]) -> None:
        """Read again, keeping the last view on failure.

        Logs the first failure and the recovery.
        """
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
