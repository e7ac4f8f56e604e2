# SPDX-License-Identifier: Apache-2.0
"""Fetcher: assigns each partition feed to the loop of its leader, and handles errors.

A feed is in one of three states:

- in the loop of its partition's leader;
- *homeless*: in no loop, until its backoff ends or a new leader is known;
- *in doubt*: ListOffsets is checking if its position is out of range.

All errors are handled in the same way: the feed is removed from its loop, backs off, and is then assigned to the loop
of the leader known at that time. So a broken broker, a moved leader or a failing partition stops only the partitions
concerned.

Out of range. After Fetch error 1 (OFFSET_OUT_OF_RANGE), the fetcher checks the position with ListOffsets. A position
above the log end offset is checked a second time after a delay, because the high watermark of a new leader may still be
too low. Logs without replicas have no such watermark, and there the error is final.

Example: broker 1 leads P0 and P1 and dies. Both feeds leave its loop, back off for 0.1 s, and a refresh of the
cluster's metadata is requested. In the new metadata broker 2 leads P0, so its feed joins that loop at once. P1 has no
leader yet, so its feed backs off again, and its fault gives the reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import structlog

from consumerd.aio.backoff import Backoff
from consumerd.aio.tasks import TaskSet
from consumerd.aio.timeouts import timeout, wait_set
from consumerd.client.fetch_protocol import FetchChannel, FetchProtocol
from consumerd.client.log_range import LogRanges
from consumerd.client.remedies import DENIED_RETRY_S, READ, explain_no_leader, is_denied
from consumerd.errors import BrokerError, ConsumerdError, OffsetOutOfRange
from consumerd.fetch import faults
from consumerd.fetch.broker_loop import BrokerLoop
from consumerd.fetch.buffer import MemoryBudget, plan_marks
from consumerd.fetch.cursor import CursorState
from consumerd.fetch.feed import PartitionFeed
from consumerd.fetch.planner import round_up
from consumerd.fetch.ports import FeedTools, FetchSettings, LeaderDirectory
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
"""Time, in seconds, after which a partition that is not consumed drops its fetched data while others wait for memory.

Its sink may be failing.
"""
_LOOK_S: Final = 0.1
"""Shortest interval, in seconds, between two checks for partitions that are not consumed; there may be thousands."""
_IDLE_BYTES: Final = 16 << 20
"""Limit of idle memory, in bytes, that is kept for decompressed or copied data; outside of the memory budget."""
_IDLE_PART: Final = 16
"""In a small memory budget, the limit of idle memory is this part of it (a sixteenth)."""


Listener = tuple[BrokerId, Address]
"""Identity of a broker to fetch from: another address is another broker, with sessions of its own."""


@dataclass(slots=True)
class _Place:
    """A feed's loop and fault."""

    loop: BrokerLoop | None = None
    """The loop that fetches for the feed; None while the feed is homeless or in doubt."""
    left: Listener | None = None
    """The broker from whose loop the feed was removed after an error."""
    fault: Fault | None = None
    by_broker: bool = False
    """True if the whole broker failed: any response of it clears the fault, else only one for the partition."""


class Fetcher:
    """Fetches all partitions of a process, by one request at a time to each broker.

    Feeds may be opened before :meth:`run` is called, but they get no records until it runs.
    """

    def __init__(
        self,
        *,
        settings: FetchSettings,
        budget: MemoryBudget,
        leaders: LeaderDirectory,
        protocol: FetchProtocol,
        log_ranges: LogRanges,
        hooks: Hooks,
        now: Callable[[], float],
        random: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._budget = budget
        self._leaders = leaders
        self._protocol = protocol
        self._log_ranges = log_ranges
        self._hooks = hooks
        self._now = now
        self._random = random
        self._log = structlog.get_logger(__name__)
        self._tasks: TaskSet[object] = TaskSet()
        self._loops: dict[Listener, BrokerLoop] = {}
        self._channels: dict[Listener, FetchChannel] = {}
        """Fetch sessions; they outlive the loops, which end whenever a broker fails."""
        self._places: dict[PartitionFeed, _Place] = {}
        self._homeless: dict[PartitionFeed, None] = {}
        self._failing: dict[Listener, Backoff] = {}
        self._faulted: dict[PartitionFeed, None] = {}
        self._changed = asyncio.Event()
        self._view_changed = False
        self._look_at = 0.0
        self.marks = plan_marks(budget.limit_bytes, 1, settings.max_partition_bytes)
        """Limits of the memory that each partition may hold now."""
        idle_bytes = min(_IDLE_BYTES, budget.limit_bytes // _IDLE_PART)
        self._tools = FeedTools(
            settings=settings,
            budget=budget,
            hooks=hooks,
            marks=lambda: self.marks,
            memory_short=self.memory_short,
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
        """Start to fetch a partition from ``offset`` up to ``end`` (exclusive); return its feed.

        Without ``end``, fetching continues with every new record. The caller closes the feed.
        """
        feed = PartitionFeed(partition, offset, self._tools, owner=self, end=end)
        self._places[feed] = _Place()
        self._homeless[feed] = None
        self._share_memory()
        self._changed.set()
        return feed

    @property
    def held_up(self) -> bool:
        """True if fetching waits until the sinks release memory.

        Either a partition holds as much as it may, or the memory reserved for fetching is used up.
        """
        return self._budget.under_pressure or any(feed.account.full for feed in self._places)

    async def run(self) -> None:
        """Fetch for all feeds, until cancelled. May be called once."""
        try:
            async with self._tasks:
                self._tasks.start("views", self._follow_views(), name="fetcher: follow the cluster's view")
                while True:
                    self._changed.clear()
                    if self._view_changed:
                        self._view_changed = False
                        self._move()
                    due = min(self._place(), self._relieve())
                    await wait_set(self._changed, due - self._now())
        finally:
            self._tools.executor.shutdown(wait=False, cancel_futures=True)

    async def _follow_views(self) -> None:
        """Watch the view of the cluster for changes, until cancelled."""
        seen = self._leaders.views.value
        while True:
            seen = await self._leaders.views.wait(lambda view, seen=seen: view is not seen)  # type: ignore[misc]
            self._view_changed = True
            self._changed.set()

    # -- who fetches what

    def _move(self) -> None:
        """Move feeds to their new leaders at once, before the old leaders return errors."""
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
                feed.cursor.activate()  # the new leader ends its backoff
        self._forget_brokers()

    def _forget_brokers(self) -> None:
        """Drop fetch sessions and backoffs of brokers at their former addresses.

        In some clusters each restart gives a broker a new address.
        """
        brokers = self._leaders.views.value.brokers
        for remembered in (self._channels, self._failing):
            for listener in list(remembered):
                broker = brokers.get(listener[0])
                if broker is not None and _listener(broker) != listener and listener not in self._loops:
                    del remembered[listener]

    def _place(self) -> float:
        """Add feeds to their leaders' loops after a backoff.

        Returns the end of the next backoff, or infinity.
        """
        now, next_due = self._now(), math.inf
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
                reason = explain_no_leader(
                    feed.partition, self._leaders.views.value, self._settings.principal, right=READ
                )
                self._note_fault(feed, reason, since=now)
                cursor.back_off(now + feed.backoff.next())
            next_due = min(next_due, cursor.due)
        return next_due

    def _loop(self, broker: PooledBroker) -> BrokerLoop:
        loop = self._loops.get(_listener(broker))
        if loop is None:
            loop = self._loops[_listener(broker)] = BrokerLoop(
                broker,
                owner=self,
                channel=self._channel(broker),
                budget=self._budget,
                settings=self._settings,
                now=self._now,
                random=self._random,
            )
            self._tasks.start(loop, self._run_loop(loop), name=f"fetcher: broker {broker.id}")
        return loop

    def _channel(self, broker: PooledBroker) -> FetchChannel:
        channel = self._channels.get(_listener(broker))
        if channel is None:
            channel = self._channels[_listener(broker)] = self._protocol.open(broker, self._settings)
        return channel

    async def _run_loop(self, loop: BrokerLoop) -> None:
        await loop.run()
        # nothing was awaited since the loop saw that it has no feeds, so none was added to it
        del self._loops[_listener(loop.broker)]

    def _relieve(self) -> float:
        """Park unconsumed partitions under memory pressure; return the time of the next check."""
        if not self._budget.under_pressure:
            return math.inf
        now = self._now()
        if now >= self._look_at:
            self._look_at = now + _LOOK_S
            for feed in self._places:
                if feed.idle_since is not None and now - feed.idle_since >= _UNCONSUMED_S:
                    feed.park()
        return self._look_at

    # -- FeedOwner alone

    def feed_ready(self, feed: PartitionFeed) -> None:
        """Decide anew about the feed's partition in the next request.

        Called when the feed can take more data, or resumes after a stop.
        """
        place = self._places.get(feed)
        if place is not None and place.loop is not None:
            place.loop.wake(feed)
        else:
            self._changed.set()

    def feed_recovered(self, feed: PartitionFeed) -> None:
        """Clear the partition's fault after a response without error."""
        place = self._places[feed]
        place.left = None
        self._end_fault(feed, place)

    def find_fault(self, feed: PartitionFeed) -> Fault | None:
        """Return why the feed's partition cannot be fetched; None while it can be.

        The fault also has the time since when, in seconds of the fetcher's monotonic clock.
        """
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
        """Look soon for partitions whose fetched data can be dropped.

        Called when a request or a batch has to wait for memory.
        """
        self._changed.set()

    def feed_closed(self, feed: PartitionFeed) -> None:
        """Remove a closed feed from the fetcher."""
        place = self._places.pop(feed)
        self._homeless.pop(feed, None)
        self._faulted.pop(feed, None)
        if place.loop is not None:
            place.loop.remove(feed)
        self._share_memory()

    # -- LoopOwner and FeedOwner

    @property
    def request_share_bytes(self) -> int:
        """Bytes of memory that the requests to one broker may reserve now.

        A quarter of the memory limit divided by the number of brokers that are fetched from, at most two responses of
        ``max_response_bytes``.
        """
        return min(2 * self._settings.max_response_bytes, self._budget.limit_bytes // (4 * max(1, len(self._loops))))

    def _share_memory(self) -> None:
        partitions = round_up(len(self._places))
        self.marks = plan_marks(self._budget.limit_bytes, partitions, self._settings.max_partition_bytes)

    def broker_answered(self, broker: PooledBroker) -> None:
        """Note that a broker has answered a fetch; it clears faults of the whole broker."""
        if self._failing.pop(_listener(broker), None) is not None:
            self._log.info("broker_fetch_recovered", broker=broker.id)
        for feed in list(self._faulted):
            place = self._places[feed]
            if place.by_broker and place.loop is not None and _listener(place.loop.broker) == _listener(broker):
                self._end_fault(feed, place)

    def _note_fault(
        self, feed: PartitionFeed, reason: str, *, since: float, by_broker: bool = False, code: int | None = None
    ) -> None:
        """Record the reason why a partition cannot be fetched.

        After several failures in a row, the fault has the time of the first and the reason of the last.
        """
        place = self._places[feed]
        if place.fault is None:
            # delivery logs a warning if it lasts
            self._log.info(
                "fetch_failed", topic=feed.partition.topic, partition=str(feed.partition.partition), reason=reason
            )
        place.fault = Fault(since if place.fault is None else place.fault.since, reason, code)
        place.by_broker = by_broker
        self._faulted[feed] = None

    def _end_fault(self, feed: PartitionFeed, place: _Place) -> None:
        self._faulted.pop(feed, None)
        if place.fault is not None:
            place.fault = None
            self._log.info("fetch_recovered", topic=feed.partition.topic, partition=str(feed.partition.partition))

    def displace(self, feeds: Sequence[PartitionFeed], error: ConsumerdError, *, since: float) -> None:
        """Take partitions out of their broker's loop after an error.

        They are fetched again after a backoff, or as soon as they have a new leader.

        Args:
            feeds: Feeds of the partitions.
            error: The reason.
            since: Time at which the failed request began, in seconds of the fetcher's monotonic clock.
        """
        if isinstance(error, BrokerError) and len(feeds) == 1:
            self._displace_one(feeds[0], error, since)
        else:
            self._displace_all(feeds, error, since)
        self._changed.set()

    def _displace_one(self, feed: PartitionFeed, error: BrokerError, since: float) -> None:
        loop = self._places[feed].loop
        assert loop is not None
        reason = faults.explain_error(error, feed.partition, loop.broker, principal=self._settings.principal)
        self._note_fault(feed, reason, since=since, code=error.code)
        self._hooks.fetch_error(feed.partition, error.name)
        if error.refresh:
            self._leaders.request_refresh(str(error))
        delay = feed.backoff.next()
        if is_denied(error):
            delay = min(delay, DENIED_RETRY_S)
        self._unhouse(feed, self._now() + delay)

    def _displace_all(self, feeds: Sequence[PartitionFeed], error: ConsumerdError, since: float) -> None:
        """Displace all feeds of a broker that failed; they return together."""
        if not feeds:
            return
        loop = self._places[feeds[0]].loop
        assert loop is not None
        broker = loop.broker
        backoff = self._failing.get(_listener(broker))
        if backoff is None:
            settings = self._settings
            backoff = self._failing[_listener(broker)] = Backoff(
                initial_s=settings.backoff_initial_s, maximum_s=settings.backoff_maximum_s, random=self._random
            )
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

    # -- out of range

    def confirm_out_of_range(self, feed: PartitionFeed) -> None:
        """Start to check with ListOffsets if the feed's position is out of range.

        Nothing is fetched for the feed until the check has ended.
        """
        self._hooks.fetch_error(feed.partition, ErrorCode.OFFSET_OUT_OF_RANGE.name)
        feed.cursor.confirm()
        # read here, because the feed may be closed before the task runs for the first time
        generation = feed.cursor.generation
        confirming = self._confirm(feed, generation, feed.cursor.position)
        self._tasks.start((feed, generation), confirming, name=f"fetcher: confirm {feed.partition}")

    async def _confirm(self, feed: PartitionFeed, generation: int, offset: int) -> None:
        """Compare a position with the log: fail as out of range, or fetch again later.

        Has a timeout. Broker errors are not raised; the position is then fetched again later.
        """
        replicated = self._log_ranges.logs_are_replicated
        found: LogRange | None = None
        end: int | None = None
        with contextlib.suppress(ConsumerdError, TimeoutError):
            async with timeout(_CONFIRM_TIMEOUT_S):
                log = (await self._log_ranges.read([feed.partition])).get(feed.partition)
                if log is not None and offset > log.latest and replicated:
                    # with read_committed, latest is the last stable offset, which may be below the log end offset
                    end = (await self._log_ranges.high_watermarks([feed.partition])).get(feed.partition)
                if log is not None and (offset <= log.latest or end is not None or not replicated):
                    found = log
        if feed.cursor.generation != generation:
            return  # closed, or moved to another position
        above = found is not None and end is not None and offset > end
        if found is not None and (offset < found.earliest or (above and feed.doubted_offset == offset)):
            feed.fail(OffsetOutOfRange(feed.partition, offset, found.earliest, found.latest))
            return
        if found is not None and not replicated:
            # The Fetch error is proof enough. The new log may have grown to the offset since, and another look would
            # find nothing wrong.
            feed.fail(OffsetOutOfRange(feed.partition, offset, found.earliest, found.latest, replaced=True))
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
    """Return the number of decoding threads: one without the native kernel."""
    # Threads in pure Python would only wait for each other, because each needs the interpreter lock.
    return 1 if kernel.records is None else max(1, min(_MOST_DECODERS, (os.cpu_count() or 1) // 2))


def _listener(broker: PooledBroker) -> Listener:
    return broker.id, broker.address
