# SPDX-License-Identifier: Apache-2.0
"""Finds each feed's leader, keeps a loop for each broker that leads any, and deals with what goes wrong.

A feed is in one of these places: in the loop of its partition's leader; *homeless*, waiting until it is due or until
its leader is known to be another; or *in doubt*, while ListOffsets is asked whether its position is out of range. Every
error takes the same way: the feed loses its loop, backs off, and is placed again by whatever is known of leaders then.
So a broker that dies, a leader that moved and a partition that fails by itself stop only the partitions concerned.

Out of range. A broker's error 1 alone is not believed: ListOffsets is asked, and a position above the log's end gets a
second chance after a moment, because a new leader may trail for as long as its followers have not caught up.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import structlog

from consumerd.aio.backoff import Backoff
from consumerd.aio.tasks import TaskSet
from consumerd.aio.timeouts import timeout
from consumerd.client.log_range import LogRanges
from consumerd.errors import BrokerError, ConsumerdError, OffsetOutOfRange
from consumerd.fetch import faults
from consumerd.fetch.broker_loop import BrokerLoop
from consumerd.fetch.buffer import Marks, MemoryBudget, plan_marks
from consumerd.fetch.cursor import CursorState
from consumerd.fetch.feed import FeedTools, PartitionFeed
from consumerd.fetch.planner import round_up
from consumerd.fetch.ports import FetchConnections, FetchSettings, LeaderDirectory
from consumerd.fetch.session import FetchSession
from consumerd.fetch.turnstile import Turnstile
from consumerd.model import BrokerId, Fault, LogRange, TopicPartition
from consumerd.net.address import Address
from consumerd.net.pool import PooledBroker
from consumerd.telemetry.hooks import Hooks, Trouble
from consumerd.telemetry.wording import counted
from consumerd.wire import kernel
from consumerd.wire.errorcodes import ErrorCode

_CONFIRM_TIMEOUT_S: Final = 30.0
_BROKER_FAILED: Final = "CONNECTION_LOST"
_MOST_DECODERS: Final = 4
_UNCONSUMED_S: Final = 1.0
"""For how long a partition may lie unconsumed, its sink failing perhaps, while others wait for its memory."""
_LOOK_S: Final = 0.1
"""How often all partitions are looked at for that; there may be thousands, and each batch of each may have to wait."""
_IDLE_BYTES: Final = 16 << 20
"""So much memory of what was decompressed or copied is kept for what will be, or this part of a small budget; it is part of
the constant beyond the memory budget.
"""
_IDLE_PART: Final = 16


Listener = tuple[BrokerId, Address]
"""What makes a broker another one to fetch from; whatever else is known of it may come and go."""


@dataclass(slots=True)
class _Place:
    """Where a feed is: the loop that fetches for it, or None and which broker it has ``left`` after an error; its fault."""

    loop: BrokerLoop | None = None
    left: Listener | None = None
    fault: Fault | None = None
    by_broker: bool = False
    """Whether the fault is its broker's: then it ends with any answer of a broker, and else with one of the partition."""


class Fetcher:
    """All feeds of a process. :meth:`run` must run for them to bring anything."""

    def __init__(
        self,
        *,
        settings: FetchSettings,
        budget: MemoryBudget,
        leaders: LeaderDirectory,
        connections: FetchConnections,
        log_ranges: LogRanges,
        hooks: Hooks,
        now: Callable[[], float],
        random: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._budget = budget
        self._leaders = leaders
        self._connections = connections
        self._log_ranges = log_ranges
        self._hooks = hooks
        self._now = now
        self._random = random
        self._log = structlog.get_logger(__name__)
        self._tasks: TaskSet[object] = TaskSet()
        self._loops: dict[Listener, BrokerLoop] = {}
        self._sessions: dict[Listener, FetchSession] = {}
        """They outlive their loops, which end whenever a broker fails."""
        self._places: dict[PartitionFeed, _Place] = {}
        self._homeless: dict[PartitionFeed, None] = {}
        self._failing: dict[Listener, Backoff] = {}
        self._faulted: dict[PartitionFeed, None] = {}
        self._changed = asyncio.Event()
        self._view_changed = False
        self._look_at = 0.0
        self._marks = plan_marks(budget.limit_bytes, 1, settings.max_partition_bytes)
        idle_bytes = min(_IDLE_BYTES, budget.limit_bytes // _IDLE_PART)
        self._tools = FeedTools(
            settings=settings,
            budget=budget,
            hooks=hooks,
            owner=self,
            executor=ThreadPoolExecutor(max_workers=_decoders(), thread_name_prefix="decode"),
            turnstile=Turnstile(settings.slice_bytes if kernel.records is None else settings.native_thread_bytes),
            allocate=None if kernel.memory is None else kernel.memory.ReceivePool(idle_bytes).allocate,
            now=now,
            random=random,
        )

    def __repr__(self) -> str:
        loops = ", ".join(map(repr, self._loops.values()))
        return f"<Fetcher {len(self._places)} feeds, {len(self._homeless)} homeless; {loops}>"

    def feed(self, partition: TopicPartition, offset: int, end: int | None = None) -> PartitionFeed:
        """Begin to fetch a partition at ``offset``, and up to ``end`` if given; the feed is the caller's to close."""
        feed = PartitionFeed(partition, offset, self._tools, end=end)
        self._places[feed] = _Place()
        self._homeless[feed] = None
        self._share_memory()
        self._changed.set()
        return feed

    @property
    def held_up(self) -> bool:
        """Whether fetching waits for memory that the sink holds.

        Either a partition has reached its limit, or the sink's budget is used up.
        """
        return self._budget.under_pressure or any(feed.account.full for feed in self._places)

    async def run(self) -> None:
        """Fetch for all feeds, until cancelled. Runs once."""
        try:
            async with self._tasks:
                self._tasks.start("views", self._follow_views(), name="fetcher: follow the cluster's view")
                while True:
                    self._changed.clear()
                    if self._view_changed:
                        self._view_changed = False
                        self._move()
                    await self._sleep_until(_sooner(self._place(), self._relieve()))
        finally:
            self._tools.executor.shutdown(wait=False, cancel_futures=True)

    async def _follow_views(self) -> None:
        """Notice every change of the cluster's view. Unbounded."""
        seen = self._leaders.views.value
        while True:
            seen = await self._leaders.views.wait(lambda view, seen=seen: view is not seen)  # type: ignore[misc]
            self._view_changed = True
            self._changed.set()

    async def _sleep_until(self, due: float | None) -> None:
        """Sleep until something changes, or until ``due``; otherwise unbounded."""
        with contextlib.suppress(TimeoutError):
            async with timeout(None if due is None else max(0.0, due - self._now())):
                await self._changed.wait()

    # -- who fetches what

    def _move(self) -> None:
        """Follow leaders that have moved, without waiting for an error to say so."""
        for feed, place in self._places.items():
            broker = self._leaders.find_leader(feed.partition)
            if broker is None:
                continue
            leader = _listener(broker)
            if place.loop is not None and _listener(place.loop.broker) != leader:
                place.loop.remove(feed)
                place.loop = None
                feed.cursor.move()
                self._homeless[feed] = None
            elif place.loop is None and place.left != leader and feed.cursor.state is CursorState.BACKING_OFF:
                feed.cursor.activate()  # what it was waiting for has happened
        self._forget_brokers()

    def _forget_brokers(self) -> None:
        """Forget what was known of a broker at another address: in some clusters each restart gives a new one."""
        brokers = self._leaders.views.value.brokers
        for remembered in (self._sessions, self._failing):
            for listener in list(remembered):
                broker = brokers.get(listener[0])
                if broker is not None and _listener(broker) != listener and listener not in self._loops:
                    del remembered[listener]

    def _place(self) -> float | None:
        """Bring homeless feeds that are due to their leaders' loops; returns when the next one is due."""
        now, next_due = self._now(), None
        for feed in list(self._homeless):
            cursor = feed.cursor
            if cursor.state is not CursorState.BACKING_OFF or now >= cursor.due:
                leader = self._leaders.find_leader(feed.partition)
                if leader is not None:
                    del self._homeless[feed]
                    self._places[feed].loop = loop = self._loop(leader)
                    loop.add(feed)
                    continue
                self._leaders.request_refresh(f"no leader of {feed.partition}")
                known = self._leaders.views.value.find_partition(feed.partition) is not None
                self._note_fault(feed, faults.explain_no_leader(known=known), since=now)
                cursor.back_off(now + feed.backoff.next())
            next_due = cursor.due if next_due is None else min(next_due, cursor.due)
        return next_due

    def _loop(self, broker: PooledBroker) -> BrokerLoop:
        loop = self._loops.get(_listener(broker))
        if loop is None:
            loop = self._loops[_listener(broker)] = BrokerLoop(
                broker,
                owner=self,
                session=self._sessions.setdefault(_listener(broker), FetchSession(self._now)),
                connections=self._connections,
                budget=self._budget,
                settings=self._settings,
                now=self._now,
                random=self._random,
            )
            self._tasks.start(loop, self._run_loop(loop), name=f"fetcher: broker {broker.id}")
        return loop

    async def _run_loop(self, loop: BrokerLoop) -> None:
        await loop.run()
        # nothing was awaited since the loop saw that it has no feeds, so none was added to it
        del self._loops[_listener(loop.broker)]

    def _relieve(self) -> float | None:
        """While somebody waits for memory, take back what lies unconsumed; returns when to look again."""
        if not self._budget.under_pressure:
            return None
        now = self._now()
        if now >= self._look_at:
            self._look_at = now + _LOOK_S
            for feed in self._places:
                if feed.idle_since is not None and now - feed.idle_since >= _UNCONSUMED_S:
                    feed.park()
        return self._look_at

    # -- FeedOwner alone

    def feed_ready(self, feed: PartitionFeed) -> None:
        """Have the feed's loop look at it again."""
        place = self._places.get(feed)
        if place is not None and place.loop is not None:
            place.loop.wake(feed)
        else:
            self._changed.set()

    def feed_recovered(self, feed: PartitionFeed) -> None:
        """Say that a partition that was reported is well again."""
        place = self._places[feed]
        place.left = None
        self._end_fault(feed, place)

    def find_fault(self, feed: PartitionFeed) -> Fault | None:
        """Return why the partition cannot be fetched; None while it can be."""
        place = self._places.get(feed)
        if place is None:
            return None
        if place.fault is not None:
            return place.fault
        since = feed.unanswered_since
        if since is None or place.loop is None:
            return None
        return Fault(since, faults.explain_silence(place.loop.broker))

    def memory_short(self) -> None:
        """Look for memory that nobody uses, for a request or a batch."""
        self._changed.set()

    def feed_closed(self, feed: PartitionFeed) -> None:
        """Forget a feed."""
        place = self._places.pop(feed)
        self._homeless.pop(feed, None)
        self._faulted.pop(feed, None)
        if place.loop is not None:
            place.loop.remove(feed)
        self._share_memory()

    # -- LoopOwner and FeedOwner

    @property
    def marks(self) -> Marks:
        """How much each partition may hold now."""
        return self._marks

    @property
    def request_share_bytes(self) -> int:
        """A quarter of the memory, shared by the brokers."""
        return min(2 * self._settings.max_response_bytes, self._budget.limit_bytes // (4 * max(1, len(self._loops))))

    def _share_memory(self) -> None:
        partitions = round_up(len(self._places))
        self._marks = plan_marks(self._budget.limit_bytes, partitions, self._settings.max_partition_bytes)

    def broker_answered(self, broker: PooledBroker) -> None:
        """Note that a broker is well."""
        if self._failing.pop(_listener(broker), None) is not None:
            self._log.info("broker_fetch_recovered", broker=broker.id)
        for feed in list(self._faulted):
            place = self._places[feed]
            if place.by_broker and place.loop is not None and _listener(place.loop.broker) == _listener(broker):
                self._end_fault(feed, place)

    def _note_fault(self, feed: PartitionFeed, reason: str, *, since: float, by_broker: bool = False) -> None:
        """Remember why a partition cannot be fetched; it began with the first of several causes in a row."""
        place = self._places[feed]
        if place.fault is None:
            # whoever delivers it tells of it as a warning, once it has lasted
            self._log.info(
                "fetch_failed", topic=feed.partition.topic, partition=str(feed.partition.partition), reason=reason
            )
        place.fault = Fault(since if place.fault is None else place.fault.since, reason)
        place.by_broker = by_broker
        self._faulted[feed] = None

    def _end_fault(self, feed: PartitionFeed, place: _Place) -> None:
        self._faulted.pop(feed, None)
        if place.fault is not None:
            place.fault = None
            self._log.info("fetch_recovered", topic=feed.partition.topic, partition=str(feed.partition.partition))

    def displace(self, feeds: Sequence[PartitionFeed], error: ConsumerdError, *, since: float) -> None:
        """Take feeds out of their loop; they come back after a backoff, or as soon as their leader is another one."""
        if isinstance(error, BrokerError) and len(feeds) == 1:
            self._displace_one(feeds[0], error, since)
        else:
            self._displace_all(feeds, error, since)
        self._changed.set()

    def _displace_one(self, feed: PartitionFeed, error: BrokerError, since: float) -> None:
        loop = self._places[feed].loop
        assert loop is not None
        reason = faults.explain_error(error, feed.partition, loop.broker, identity=self._settings.identity)
        self._note_fault(feed, reason, since=since)
        self._hooks.fetch_error(feed.partition, error.name)
        if error.refresh:
            self._leaders.request_refresh(str(error))
        self._unhouse(feed, self._now() + feed.backoff.next())

    def _displace_all(self, feeds: Sequence[PartitionFeed], error: ConsumerdError, since: float) -> None:
        """A broker's failure: its feeds come back together."""
        if not feeds:
            return
        loop = self._places[feeds[0]].loop
        assert loop is not None
        broker = loop.broker
        backoff = self._failing.get(_listener(broker))
        if backoff is None:
            backoff = self._failing[_listener(broker)] = self._make_backoff()
            self._log.warning("broker_fetch_failed", broker=broker.id, partitions=len(feeds), error=str(error))
            self._hooks.trouble(
                Trouble.BROKER_FETCH_FAILED, f"{counted(len(feeds), 'partition')} of broker {broker.id}: {error}"
            )
        self._leaders.request_refresh(f"fetching from broker {broker.id} failed")
        due = self._now() + backoff.next()
        for feed in feeds:
            self._hooks.fetch_error(feed.partition, _BROKER_FAILED)
            self._note_fault(feed, faults.explain_broker(broker, error), since=since, by_broker=True)
            self._unhouse(feed, due)

    def _unhouse(self, feed: PartitionFeed, due: float) -> None:
        place = self._places[feed]
        if place.loop is not None:
            place.left = _listener(place.loop.broker)
            place.loop.remove(feed)
            place.loop = None
        self._homeless[feed] = None
        if feed.cursor.state is CursorState.ACTIVE:
            feed.cursor.back_off(due)

    def _make_backoff(self) -> Backoff:
        return Backoff(
            initial_s=self._settings.backoff_initial_s, maximum_s=self._settings.backoff_maximum_s, random=self._random
        )

    # -- out of range

    def confirm_out_of_range(self, feed: PartitionFeed) -> None:
        """Ask ListOffsets whether the feed's position is out of range; meanwhile it is not fetched."""
        self._hooks.fetch_error(feed.partition, ErrorCode.OFFSET_OUT_OF_RANGE.name)
        feed.cursor.confirm()
        key = (feed, feed.cursor.generation)
        self._tasks.start(key, self._confirm(feed), name=f"fetcher: confirm {feed.partition}")

    async def _confirm(self, feed: PartitionFeed) -> None:
        """Bounded by a timeout. Raises nothing of the brokers': what cannot be confirmed is fetched again later."""
        generation, offset = feed.cursor.generation, feed.cursor.position
        found: LogRange | None = None
        end: int | None = None
        with contextlib.suppress(ConsumerdError, TimeoutError):
            async with timeout(_CONFIRM_TIMEOUT_S):
                log = (await self._log_ranges.read([feed.partition])).get(feed.partition)
                if log is not None and offset > log.latest:
                    # an open transaction holds back what read_committed may read, not the end of the log
                    end = (await self._log_ranges.high_watermarks([feed.partition])).get(feed.partition)
                if log is not None and (offset <= log.latest or end is not None):
                    found = log
        if feed.cursor.generation != generation:
            return  # closed, or sought elsewhere
        above = found is not None and end is not None and offset > end
        if found is not None and (offset < found.earliest or (above and feed.doubted_offset == offset)):
            feed.fail(OffsetOutOfRange(feed.partition, offset, found.earliest, found.latest))
            return
        feed.cursor.activate()
        if above:
            feed.doubted_offset = offset
            delay = self._settings.confirm_delay_s
        else:
            self._note_fault(feed, faults.explain_unconfirmed(offset), since=self._now())
            delay = feed.backoff.next()
        self._leaders.request_refresh(f"{feed.partition}: offset {offset} was out of range")
        self._unhouse(feed, self._now() + delay)
        self._changed.set()


def _decoders() -> int:
    """Return how many threads decode: in pure Python one, since they would only wait for each other."""
    return 1 if kernel.records is None else max(1, min(_MOST_DECODERS, (os.cpu_count() or 1) // 2))


def _listener(broker: PooledBroker) -> Listener:
    return broker.id, broker.address


def _sooner(one: float | None, other: float | None) -> float | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)
