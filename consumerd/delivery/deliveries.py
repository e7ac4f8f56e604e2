# SPDX-License-Identifier: Apache-2.0
"""All pipelines of this process: created with claims, and ended with them.

One small value per partition outlives its claim (:class:`~consumerd.delivery.policy.PreviousClaim`).

Implements the listener port of ``group``. Pipelines of successive claims of a partition run strictly one after the
other: a new one waits until the previous one has finished its clean-up, without a time limit.

Owned tasks: one pipeline per claim, the committer, and the queries for log ends, all inside :meth:`Deliveries.run`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from weakref import WeakValueDictionary

import structlog

from consumerd.aio.tasks import TaskSet
from consumerd.aio.timeouts import timeout_at
from consumerd.client.log_range import LogRanges
from consumerd.delivery.committer import Committer
from consumerd.delivery.context import DeliveryTools
from consumerd.delivery.log_ends import LogEnds
from consumerd.delivery.pipeline import PartitionPipeline
from consumerd.delivery.policy import PreviousClaim
from consumerd.delivery.ports import DeliveryReports, DeliverySettings, FeedSource, PartitionHistory, SinkRoute
from consumerd.delivery.requests import RequestWatches
from consumerd.delivery.start import StartFinder
from consumerd.delivery.status import PartitionStatus
from consumerd.errors import ConsumerdError, OwnershipLost
from consumerd.model import Claim, TopicPartition
from consumerd.offsets.store import LogTruncations, OffsetRequests, OffsetStore
from consumerd.sinks.base import Quarantine
from consumerd.telemetry.hooks import Hooks, Trouble
from consumerd.telemetry.wording import join_shown

_COMMIT_SHARE = 0.25
"""The share of a drain's time that is reserved for the commit."""

_LOOK_S = 5.0
"""Minimum interval, in seconds, between two searches for lasting faults, which are logged. The status page searches
itself.
"""
_LOOK_EACH_S = 0.0015
"""Added interval per partition, in seconds: 10,000 partitions are searched every 15 s, with 0.3 % of a core."""
_LOOKED_AT_ONCE = 500

_SHOWN = 8
"""Partitions named in one log line; there may be thousands."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class _Running:
    key: Hashable
    pipeline: PartitionPipeline


class Deliveries:
    """Delivers the claimed partitions.

    Args:
        route: Returns the sink of a partition. Sinks are closed by their creator, not here.
    """

    def __init__(
        self,
        *,
        route: Callable[[TopicPartition], SinkRoute],
        feeds: FeedSource,
        store: OffsetStore,
        ranges: LogRanges,
        history: PartitionHistory,
        requests: OffsetRequests,
        truncations: LogTruncations,
        quarantine: Quarantine | None,
        settings: DeliverySettings,
        reports: DeliveryReports,
        hooks: Hooks,
        now: Callable[[], float],
        random: Callable[[], float],
    ) -> None:
        self._route = route
        self._watches = RequestWatches(requests, self._check_requests)
        self._reports = reports
        self._hooks = hooks
        self._committer = Committer(
            store,
            interval_s=settings.commit_interval_ms / 1000,
            hooks=hooks,
            not_owner=lambda claim: self._lose(
                claim, OwnershipLost(f"{claim.partition}: a commit found that it is not ours any more")
            ),
        )
        self._tools = DeliveryTools(
            feeds=feeds,
            starts=StartFinder(store, truncations, ranges, feeds, history, settings.offsets),
            requests=requests,
            quarantine=quarantine,
            committer=self._committer,
            settings=settings,
            reports=DeliveryReports(lost=self._lose, sink_closed=reports.sink_closed),
            hooks=hooks,
            now=now,
            random=random,
        )
        self._log_ends = LogEnds(
            ranges,
            lambda: [running.pipeline for running in self._running.values()],
            interval_s=settings.recheck_ms / 1000,
        )
        self._tasks: TaskSet[Hashable] = TaskSet()
        self._entered = asyncio.Event()
        self._numbers = itertools.count()
        self._running: dict[TopicPartition, _Running] = {}
        self._previous_claims: dict[TopicPartition, PreviousClaim] = {}
        self._turns: WeakValueDictionary[TopicPartition, asyncio.Lock] = WeakValueDictionary()

    @property
    def statuses(self) -> tuple[PartitionStatus, ...]:
        """The status of each claimed partition, sorted."""
        return tuple(itertools.chain.from_iterable(self.read_statuses(len(self._running) or 1)))

    def read_statuses(self, at_once: int) -> Iterator[list[PartitionStatus]]:
        """Yield lists of statuses, ``at_once`` per list, sorted by partition.

        Each status is read when its list is due, so the caller may wait in between.
        """
        partitions = iter(sorted(self._running))
        while some := list(itertools.islice(partitions, at_once)):
            yield [self._running[one].pipeline.status for one in some if one in self._running]

    async def run(self) -> None:
        """Own all pipelines until cancelled; those not drained by then are abandoned."""
        async with self._tasks:
            self._tasks.start("committer", self._committer.run(), name="commit offsets")
            self._tasks.start("log ends", self._log_ends.run(), name="ask for the ends of logs without a feed")
            self._tasks.start("faults", self._tell_faults(), name="tell of partitions that have failed for a while")
            self._entered.set()

    async def _tell_faults(self) -> None:
        """Let each partition report lasting faults, some at a time, until cancelled."""
        while True:
            await asyncio.sleep(max(_LOOK_S, _LOOK_EACH_S * len(self._running)))
            every = iter(list(self._running.values()))
            while some := list(itertools.islice(every, _LOOKED_AT_ONCE)):
                for running in some:
                    running.pipeline.tell_fault()
                await asyncio.sleep(0)

    async def claimed(self, claims: Sequence[Claim]) -> None:
        """Begin to deliver. Waits only until :meth:`run` has begun."""
        await self._entered.wait()
        for claim in claims:
            before = self._running.get(claim.partition)
            if before is not None:
                if before.pipeline.claim is claim:
                    continue
                self._drop(claim.partition, before)
            self._start(claim)

    async def drain(self, partitions: Collection[TopicPartition], deadline_s: float) -> None:
        """Stop fetching, flush, commit and end within ``deadline_s`` seconds; the rest is abandoned.

        When it returns or is cancelled, nothing more is committed for these partitions.
        """
        loop = asyncio.get_running_loop()
        begun = loop.time()
        ending = {
            partition: running for partition in partitions if (running := self._running.get(partition)) is not None
        }
        try:
            for running in ending.values():
                if not running.pipeline.drain():
                    self._tasks.cancel_soon(running.key)
            await self._join(ending, begun + deadline_s * (1 - _COMMIT_SHARE))
            self._abandon(ending)
            await self._commit_drained(ending, begun + deadline_s)
            await self._join(ending, begun + deadline_s)
        finally:
            for partition, running in ending.items():
                self._drop(partition, running)

    async def lost(self, partitions: Collection[TopicPartition]) -> None:
        """Drop these partitions at once, without flush or commit.

        Returns when nothing runs for them any more. Bounded by the clean-up of the writers; unbounded if a sink ignores
        its cancellation.
        """
        ending = {
            partition: running for partition in partitions if (running := self._running.get(partition)) is not None
        }
        for partition, running in ending.items():
            self._drop(partition, running)
        for running in ending.values():
            await self._tasks.join(running.key)

    async def commit(self) -> None:
        """Commit all acknowledged positions now, without waiting for the interval."""
        await self._committer.commit([running.pipeline for running in self._running.values()])

    def _start(self, claim: Claim) -> None:
        pipeline = PartitionPipeline(
            claim, self._route(claim.partition), self._tools, previous=self._previous_claims.get(claim.partition)
        )
        running = _Running(key=(claim.partition, next(self._numbers)), pipeline=pipeline)
        self._running[claim.partition] = running
        self._committer.add(pipeline)
        self._watches.add(claim.partition)
        self._tasks.start(running.key, self._run(pipeline), name=f"deliver {claim.partition}")

    async def _run(self, pipeline: PartitionPipeline) -> None:
        turn = self._turns.setdefault(pipeline.claim.partition, asyncio.Lock())
        async with turn:
            await pipeline.run()

    async def _join(self, ending: Mapping[TopicPartition, _Running], until: float) -> None:
        """Wait until pipelines end, or until the given loop time."""
        with contextlib.suppress(TimeoutError):
            async with timeout_at(until):
                for running in ending.values():
                    await self._tasks.join(running.key)

    def _abandon(self, ending: Mapping[TopicPartition, _Running]) -> None:
        late = {partition: running for partition, running in ending.items() if running.key in self._tasks}
        if late:
            for running in late.values():
                self._tasks.cancel_soon(running.key)
            _log.warning("drain_abandoned", partitions=len(late), first=join_shown(late, _SHOWN))
            for partition in late:
                self._hooks.trouble(Trouble.DRAIN_ABANDONED, "not flushed in time", partition)

    async def _commit_drained(self, ending: Mapping[TopicPartition, _Running], until: float) -> None:
        try:
            async with timeout_at(until):
                await self._committer.commit([running.pipeline for running in ending.values()])
        except TimeoutError:
            _log.warning("drain_commit_timed_out", partitions=len(ending), first=join_shown(ending, _SHOWN))
            self._hooks.trouble(Trouble.DRAIN_COMMIT_TIMED_OUT, f"partitions that may repeat: {len(ending)}")

    def _drop(self, partition: TopicPartition, running: _Running) -> None:
        """End a pipeline at once.

        The partition's entry is removed too, unless it belongs to a later claim already.
        """
        running.pipeline.revoke()
        self._committer.remove(running.pipeline)
        self._tasks.cancel_soon(running.key)
        if self._running.get(partition) is running:
            del self._running[partition]
            self._watches.remove(partition)
            if (previous := running.pipeline.previous) is not None:
                self._previous_claims[partition] = previous
            self._hooks.partition_released(partition)

    def _check_requests(self, partition: TopicPartition) -> None:
        running = self._running.get(partition)
        if running is not None:
            running.pipeline.check_requests()

    def _lose(self, claim: Claim, error: ConsumerdError) -> None:
        """Drop a partition whose claim is gone, and report it to the group."""
        running = self._running.get(claim.partition)
        if running is not None and running.pipeline.claim is claim:
            self._drop(claim.partition, running)
            self._reports.lost(claim, error)
