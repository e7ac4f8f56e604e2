# SPDX-License-Identifier: Apache-2.0
"""Broker loop: fetches all partitions that one broker leads, in one request at a time.

The loop requests as many bytes as its feeds have room for, long-polls on the broker's fetch connection, and passes the
record sets of the response to the feeds. It sends the next request as soon as the batch headers were read, so the next
response is under way while pipelines decode and deliver this one. It ends when it has no feeds. The fetcher decides
which loop a feed is in.

Three rules keep it from busy looping:

- A full partition is omitted from the request. Meanwhile the others are fetched with a short ``max_wait_ms``, because
  the full one cannot join before that request ends. The wait doubles with every empty response, up to the configured
  one, so a partition that is never consumed soon costs no extra requests.
- A partition with an error leaves the loop, and comes back after a delay (:meth:`LoopOwner.displace`).
- An empty response that came before ``max_wait_ms`` had passed is followed by a pause. Brokers without a long poll
  (Kafka 0.7) respond at once, so there each empty response is. The pause doubles from 10 ms to ``max_wait_ms``, and is
  10 ms again after records. A small response is followed by a pause in proportion to the number of partitions in the
  request. Otherwise a few records per second, spread over thousands of partitions, would each cost a request that names
  all of them. Requests within a fetch session name few partitions, so their records are hardly delayed.

One partition must not take down the others of its broker. A message may be larger than the largest frame that we accept
(from Fetch 3 on brokers return a first message whole, beyond any limit), which ends the connection each time. So after
a frame error each partition is fetched alone, and the one that causes the error again fails.

Example: a request names partitions A, B and C, and the response's frame is too large. A is fetched alone without error;
so is C. B alone breaks the connection again: it fails as too large, and A and C continue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from consumerd.aio.backoff import Backoff
from consumerd.aio.timeouts import wait_set
from consumerd.client.fetch_protocol import FetchAnswer, FetchChannel, FetchExchange, Key, PartitionAnswer
from consumerd.errors import ConnectionLost, ConsumerdError, RemoteProtocolError
from consumerd.fetch.buffer import Hold, Lane, Marks, MemoryBudget
from consumerd.fetch.feed import PartitionFeed
from consumerd.fetch.planner import Agenda, Ask, FetchPlan
from consumerd.fetch.ports import FetchSettings
from consumerd.fetch.reserving import reserve
from consumerd.net.pool import PooledBroker
from consumerd.wire.errorcodes import ErrorCode, broker_error

_SHORTEST_WAIT_MS: Final = 10
_COPIES: Final = 2
"""Copies of a response's bytes while it is parsed: the frame, and each partition's own."""
_LONGEST_TURN_S: Final = 0.005
_SMALL_BYTES: Final = 16 * 1024
_LINE_S: Final = 10e-6
"""Approximate time, in seconds, that a partition named in a request costs the broker and the client."""
_LONGEST_REST_S: Final = 0.1


class LoopOwner(Protocol):
    """Interface of the fetcher that its broker loops use."""

    @property
    def marks(self) -> Marks:
        """Limits, in bytes, of the memory that each partition may hold now."""

    @property
    def request_share_bytes(self) -> int:
        """Bytes of memory that the requests to one broker may reserve now."""

    def displace(self, feeds: Sequence[PartitionFeed], error: ConsumerdError, *, since: float) -> None:
        """Take partitions out of a broker's loop for a backoff, then find their leaders again.

        Args:
            feeds: Feeds of the partitions.
            error: The reason.
            since: Time at which the failed request began, in seconds of the fetcher's monotonic clock.
        """

    def confirm_out_of_range(self, feed: PartitionFeed) -> None:
        """Check with ListOffsets the position of ``feed``, which Fetch has refused as out of range."""

    def memory_short(self) -> None:
        """Look for fetched data to drop, because a request has to wait for memory."""

    def broker_answered(self, broker: PooledBroker) -> None:
        """Note that ``broker`` has answered a fetch: faults of the whole broker are over."""


class BrokerLoop:
    """Fetches the partitions that one broker leads, in one request at a time."""

    def __init__(
        self,
        broker: PooledBroker,
        *,
        owner: LoopOwner,
        channel: FetchChannel,
        budget: MemoryBudget,
        settings: FetchSettings,
        now: Callable[[], float],
        random: Callable[[], float],
    ) -> None:
        self.broker: Final = broker
        self._owner = owner
        self._budget = budget
        self._settings = settings
        self._now = now
        self._agenda: Agenda[PartitionFeed] = Agenda()
        self._woken = asyncio.Event()
        self._channel = channel
        self._begun_at = now()
        self._in_flight: Mapping[Key, Ask] = {}
        self._barren = 0
        longest_s = max(_SHORTEST_WAIT_MS, settings.max_wait_ms) / 1000
        self._pause = Backoff(initial_s=_SHORTEST_WAIT_MS / 1000, maximum_s=longest_s, random=random)

    def __repr__(self) -> str:
        return f"<BrokerLoop {self.broker.id}, {len(self._agenda)} feeds>"

    @property
    def feeds(self) -> tuple[PartitionFeed, ...]:
        """Feeds of the partitions that the loop fetches."""
        return self._agenda.feeds

    def add(self, feed: PartitionFeed) -> None:
        """Include a feed's partition in the broker's requests from the next one on."""
        self._agenda.add(feed)
        self._woken.set()

    def remove(self, feed: PartitionFeed) -> None:
        """Exclude a feed's partition from later requests.

        If the partition is named in the pending request, its part of the response is dropped. Only if the same feed was
        added again meanwhile, with its position unchanged, the feed gets that part.
        """
        if self._agenda.remove(feed):
            self._woken.set()

    def wake(self, feed: PartitionFeed) -> None:
        """Decide anew about a feed's partition in the next request.

        It may be included or left out, or with another number of bytes.

        Called when its feed can take more or less data than before. Ends the loop's wait if no request is pending.
        """
        self._agenda.touch(feed)
        self._woken.set()

    async def run(self) -> None:
        """Fetch from the broker until the loop has no partitions. Safe to cancel."""
        while self._agenda:
            self._woken.clear()
            plan = self._plan()
            if not plan.asks:
                await wait_set(self._woken, None if plan.due is None else plan.due - self._now())
                continue
            try:
                await self._fetch(plan)
            except ConsumerdError as error:
                self._blame(error)
                self._owner.displace(self.feeds, error, since=self._begun_at)

    def _plan(self) -> FetchPlan:
        owner = self._owner
        share = owner.request_share_bytes // _COPIES
        return self._agenda.plan(now=self._now(), marks=owner.marks, response_bytes=share)

    async def _fetch(self, plan: FetchPlan) -> None:
        # connecting counts: a broker whose host drops packets is as silent as one that accepts and hangs
        self._agenda.round.asked_at = self._begun_at = self._now()
        try:
            exchange = await self._channel.connect()
        finally:
            self._agenda.round.asked_at = None
        least, most = plan.least_bytes * _COPIES, plan.max_bytes * _COPIES
        hold = await reserve(self._budget, Lane.REQUEST, least=least, most=most, short=self._owner.memory_short)
        try:
            if self._woken.is_set():  # while we waited feeds came, went, or moved
                plan = self._plan()
            if plan.asks and hold.size >= plan.least_bytes * _COPIES:
                await self._exchange(exchange, plan, hold)
        finally:
            hold.release()

    async def _exchange(self, exchange: FetchExchange, plan: FetchPlan, hold: Hold) -> None:
        plan = plan.fit(min(hold.size // _COPIES, plan.max_bytes), bounded=exchange.limits_answer)
        wait_ms = self._wait_ms(plan)
        exchange.write(plan.asks, plan.news, max_bytes=plan.max_bytes, wait_ms=wait_ms)
        self._agenda.sent(plan)
        timeout_s = wait_ms / 1000 + self._settings.request_timeout_s
        self._in_flight = plan.asks
        self._agenda.round.asked_at = self._begun_at = started = self._now()
        try:
            answer = await exchange.send(timeout_s=timeout_s)
        finally:
            self._agenda.round.asked_at = None
        self._in_flight = {}
        if answer is not None:
            self._agenda.round.answered_at = self._now()
            self._owner.broker_answered(self.broker)
            brought = await self._take(answer, plan, hold)
            if brought is not None:
                self._barren = 0
                self._pause.reset()
                if brought < min(_SMALL_BYTES, plan.max_bytes // 4):
                    # A request wakes the broker, which may share our processor, so let the pipelines run first.
                    cost_s = _LINE_S * answer.count_lines()
                    await self._rest(hold, started + min(cost_s, _LONGEST_REST_S) - self._now())
                return
        self._barren += 1
        if plan.alone:
            return  # one request for each suspected partition
        # the time until the response says nothing about a broker that does not wait: it may be far away
        if not exchange.waits or self._now() - started < wait_ms / 2000:
            await self._rest(hold, self._pause.next())

    async def _rest(self, hold: Hold, seconds: float) -> None:
        """Sleep without reserved memory, for at least one iteration of the event loop."""
        hold.release()
        await asyncio.sleep(max(0.0, seconds))

    def _blame(self, error: ConsumerdError) -> None:
        """After a frame error, suspect all requested partitions; fail a suspect that was fetched alone."""
        asks, self._in_flight = self._in_flight, {}
        if not (isinstance(error, ConnectionLost) and isinstance(error.__cause__, RemoteProtocolError)):
            return
        for key, ask in asks.items():
            feed = self._agenda.find(key)
            if feed is None or ask.cursor.generation != ask.generation:
                continue
            if ask.cursor.suspected:
                ask.cursor.suspected = False
                feed.fail_too_large()
            else:
                ask.cursor.suspected = True

    def _wait_ms(self, plan: FetchPlan) -> int:
        if plan.alone:
            return 0
        if not plan.full and not plan.cut:
            return self._settings.max_wait_ms
        return min(self._settings.max_wait_ms, _SHORTEST_WAIT_MS << min(self._barren, 16))

    # -- the response

    async def _take(self, answer: FetchAnswer, plan: FetchPlan, hold: Hold) -> int | None:
        """Pass each partition's part of a response to its feed.

        Returns the bytes of the record sets; None if there were neither records nor errors.
        """
        turn = self._now()
        if plan.alone:
            for ask in plan.asks.values():
                ask.cursor.suspected = False
        if plan.cut:
            for key in plan.asks:
                self._agenda.put_last(key)
        brought: int | None = None
        for part in answer.partitions():
            ask_of_part = plan.asks.get(part.key)
            if ask_of_part is None:
                continue
            if self._now() - turn > _LONGEST_TURN_S:
                await asyncio.sleep(0)
                turn = self._now()
            taken = self._take_partition(part, ask_of_part, hold)
            if taken is not None:
                brought = taken + (brought or 0)
        return brought

    def _take_partition(self, part: PartitionAnswer, ask: Ask, hold: Hold) -> int | None:
        key, code = part.key, part.error_code
        feed = self._agenda.find(key)
        if feed is None or feed.cursor is not ask.cursor or ask.cursor.generation != ask.generation:
            return 0  # closed, moved to another position or leader while the response was under way
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._owner.confirm_out_of_range(feed)
        elif code:
            error = broker_error(code, f"Fetch of {feed.partition} from broker {self.broker.id}")
            self._owner.displace([feed], error, since=self._now())
        elif feed.accept(part, ask.max_bytes, hold):
            self._agenda.touch(feed)
            self._agenda.put_last(key)
            return 0 if part.records is None else len(part.records.data)
        else:
            return None
        return 0
