# SPDX-License-Identifier: Apache-2.0
"""All delivery pipelines of this process: created with claims of partitions, and ended with them.

Of an ended claim only its positions are kept (:class:`~consumerd.delivery.policy.PreviousClaim`).

The package ``group`` calls :meth:`Deliveries.claimed`, :meth:`Deliveries.drain` and :meth:`Deliveries.lost`. Pipelines
of successive claims of a partition run strictly one after the other: a new one waits until the previous one has
finished its clean-up, without a time limit.

Owned tasks: one pipeline per claim, the committer, and the queries for log ends, all inside :meth:`Deliveries.run`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
    """Delivers the records of all claimed partitions to their sinks, with one pipeline each.

    Args:
        route: Returns the sink of a partition, and the policy for records that the sink refuses. The caller closes the
            sinks.
        feeds: Opens the fetching of a partition.
        store: Reads and writes committed positions.
        ranges: Asks brokers for the first and last offsets of logs.
        history: Tells if a partition was created after the group had begun with its topic.
        requests: Operators' requests for positions.
        truncations: Recorded truncations of logs.
        quarantine: Stores units that a policy passes over; None if none is configured.
        now: The event loop's clock, in seconds.
        random: Returns numbers from 0 to 1, for backoff jitter.
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
        self._auto_commit = settings.auto_commit
        self._hooks = hooks
        self._committer = Committer(
            store,
            interval_s=settings.commit_interval_ms / 1000,
            hooks=hooks,
            auto_commit=settings.auto_commit,
            not_owner=lambda claim: self._lose(
                claim, OwnershipLost(f"{claim.partition}: a commit found that it is not ours any more")
            ),
        )
        self._tools = DeliveryTools(
            feeds=feeds,
            starts=StartFinder(store, truncations, ranges, feeds, history, settings.offsets),
            ranges=ranges,
            requests=requests,
            quarantine=quarantine,
            committer=self._committer,
            settings=settings,
            reports=replace(reports, lost=self._lose),
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
        """Status of each claimed partition, sorted by topic and partition number."""
        return tuple(itertools.chain.from_iterable(self.read_statuses(len(self._running) or 1)))

    def read_statuses(self, at_once: int) -> Iterator[list[PartitionStatus]]:
        """Yield the statuses of all claimed partitions, in lists of up to ``at_once``.

        They are sorted by partition. A status is read when its list is produced, so the caller may await between two
        lists. Partitions that were released meanwhile are left out.
        """
        partitions = iter(sorted(self._running))
        while some := list(itertools.islice(partitions, at_once)):
            yield [self._running[one].pipeline.status for one in some if one in self._running]

    async def run(self) -> None:
        """Run the pipelines of all claims until cancelled.

        Pipelines that were not drained by then are cancelled, and their unacknowledged records are dropped.
        """
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
        """Begin to deliver the partitions of new claims.

        Waits only until :meth:`run` has begun. A claim that is delivered already is ignored; an older claim of the same
        partition is dropped.
        """
        await self._entered.wait()
        for claim in claims:
            before = self._running.get(claim.partition)
            if before is not None:
                if before.pipeline.claim is claim:
                    continue
                self._drop(claim.partition, before)
            self._start(claim)

    async def drain(self, partitions: Collection[TopicPartition], deadline_s: float) -> None:
        """Stop fetching partitions, flush their records, commit, and end their pipelines.

        Takes at most ``deadline_s`` seconds; then the remaining pipelines are cancelled, and their unacknowledged
        records are dropped. When it returns or is cancelled, nothing more is committed for these partitions.
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

        Returns when their pipelines have ended. That takes as long as the sinks' writers take to clean up; there is no
        limit if a sink ignores its cancellation.
        """
        ending = {
            partition: running for partition in partitions if (running := self._running.get(partition)) is not None
        }
        for partition, running in ending.items():
            self._drop(partition, running)
        for running in ending.values():
            await self._tasks.join(running.key)

    async def commit(self) -> Mapping[TopicPartition, str]:
        """Commit all acknowledged positions now, without waiting for the interval.

        Returns the reason of the failure for each partition whose position could not be written; empty if all were.
        """
        pipelines = [running.pipeline for running in self._running.values()]
        await self._committer.commit(pipelines)
        return {one.partition: one.commit_failure for one in pipelines if one.commit_failure is not None}

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
        """Wait until pipelines end, or until the event loop's clock reads ``until``."""
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
        if not self._auto_commit:
            return
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
