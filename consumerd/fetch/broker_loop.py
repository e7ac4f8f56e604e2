# SPDX-License-Identifier: Apache-2.0
"""Fetches from one broker: all its partitions in one request, one request at a time.

The loop asks for what its feeds can take, long-polls on the broker's fetch connection, hands the answer's record sets
to the feeds and asks again at once: as soon as the headers have been walked, so that the next answer is under way while
pipelines decode and deliver this one. It ends when it has no feeds; who leads what is the fetcher's business.

Three things keep it from turning for nothing:

- A full partition is left out. While such a partition is being consumed the other ones are asked for with a short wait,
  or it would have to sit out their long poll; the wait doubles with every answer that brings nothing, up to the
  configured one, so that a partition that is not consumed at all soon costs nothing.
- A partition that answers with an error leaves the loop, and comes back after a delay (:meth:`LoopOwner.displace`).
- An answer that brings nothing sooner than asked for is followed by a pause, and one that brings little by a rest that
  is as long as the request was costly: a trickle over thousands of partitions would otherwise cost a request of thousands
  of lines for each record. One of few lines, as within a session, costs so little that its records need not wait.

One partition must not take a broker's others down with it: a message may be larger than the largest frame that we
accept (from Fetch 3 on brokers return a first message whole, whatever was asked for), which ends the connection each
time. So after an answer that broke the framing each partition is asked for alone, and the one that does it again fails.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from consumerd.aio.backoff import Backoff
from consumerd.aio.timeouts import timeout
from consumerd.errors import ConnectionLost, ConsumerdError, RemoteProtocolError, RequestTimedOut
from consumerd.fetch.buffer import Hold, Lane, Marks, MemoryBudget
from consumerd.fetch.cursor import Key
from consumerd.fetch.feed import PartitionFeed
from consumerd.fetch.planner import Agenda, Ask, FetchPlan
from consumerd.fetch.ports import FetchConnection, FetchConnections, FetchSettings
from consumerd.fetch.request import RESPONSE_LIMIT_SINCE, SESSIONS_SINCE, write_request
from consumerd.fetch.reserving import reserve
from consumerd.fetch.session import SESSION_ERRORS, FetchSession
from consumerd.net.pool import PooledBroker, Purpose
from consumerd.wire.errorcodes import ErrorCode, broker_error
from consumerd.wire.modern.fetch import FetchedPartition, FetchRequest, FetchResponse

_SHORTEST_WAIT_MS: Final = 10
_COPIES: Final = 2
"""While an answer is taken apart its bytes are there twice: the frame, and each partition's own."""
_LONGEST_TURN_S: Final = 0.005
_SMALL_BYTES: Final = 16 * 1024
_LINE_S: Final = 10e-6
"""About what it costs the broker and us that a partition is named in a request, or in an answer."""
_LONGEST_REST_S: Final = 0.1


class LoopOwner(Protocol):
    """What a loop needs of the fetcher, and tells it."""

    @property
    def marks(self) -> Marks:
        """How much each partition may hold now."""

    @property
    def request_share_bytes(self) -> int:
        """What one broker's requests may reserve of the memory now."""

    def displace(self, feeds: Sequence[PartitionFeed], error: ConsumerdError, *, since: float) -> None:
        """Take feeds out of their loop for a while, and find their leaders again; ``since``: when the request was begun."""

    def confirm_out_of_range(self, feed: PartitionFeed) -> None:
        """Find out whether the feed's position is really out of range."""

    def memory_short(self) -> None:
        """A request has to wait for memory."""

    def broker_answered(self, broker: PooledBroker) -> None:
        """A fetch was answered."""


class BrokerLoop:
    """The feeds of one broker and their fetching."""

    def __init__(
        self,
        broker: PooledBroker,
        *,
        owner: LoopOwner,
        session: FetchSession,
        connections: FetchConnections,
        budget: MemoryBudget,
        settings: FetchSettings,
        now: Callable[[], float],
        random: Callable[[], float],
    ) -> None:
        self.broker: Final = broker
        self._owner = owner
        self._connections = connections
        self._budget = budget
        self._settings = settings
        self._now = now
        self._agenda: Agenda[PartitionFeed] = Agenda()
        self._woken = asyncio.Event()
        self._session = session
        self._begun_at = now()
        self._in_flight: Mapping[Key, Ask] = {}
        self._barren = 0
        longest_s = max(_SHORTEST_WAIT_MS, settings.max_wait_ms) / 1000
        self._pause = Backoff(initial_s=_SHORTEST_WAIT_MS / 1000, maximum_s=longest_s, random=random)

    def __repr__(self) -> str:
        return f"<BrokerLoop {self.broker.id}, {len(self._agenda)} feeds>"

    @property
    def feeds(self) -> tuple[PartitionFeed, ...]:
        """The feeds that it fetches for."""
        return self._agenda.feeds

    def add(self, feed: PartitionFeed) -> None:
        """Fetch for ``feed`` from the next request on."""
        self._agenda.add(feed)
        self._woken.set()

    def remove(self, feed: PartitionFeed) -> None:
        """Fetch for ``feed`` no more; what is in flight for it is dropped once its generation has changed."""
        if self._agenda.remove(feed):
            self._woken.set()

    def wake(self, feed: PartitionFeed) -> None:
        """Look again at what ``feed`` can take."""
        self._agenda.touch(feed)
        self._woken.set()

    async def run(self) -> None:
        """Fetch until there are no feeds. Cancel freely."""
        while self._agenda:
            self._woken.clear()
            plan = self._plan()
            if not plan.asks:
                await self._sleep_until(plan.due)
                continue
            try:
                await self._fetch(plan)
            except ConsumerdError as error:
                self._session.unanswered()
                self._blame(error)
                self._owner.displace(self.feeds, error, since=self._begun_at)

    async def _sleep_until(self, due: float | None) -> None:
        """Sleep until something changes, or until ``due``; otherwise unbounded."""
        with contextlib.suppress(TimeoutError):
            async with timeout(None if due is None else max(0.0, due - self._now())):
                await self._woken.wait()

    def _plan(self) -> FetchPlan:
        owner = self._owner
        share = owner.request_share_bytes // _COPIES
        return self._agenda.plan(now=self._now(), marks=owner.marks, response_bytes=share)

    async def _fetch(self, plan: FetchPlan) -> None:
        # connecting counts: a broker whose host drops packets is as silent as one that accepts and hangs
        self._agenda.round.asked_at = self._begun_at = self._now()
        try:
            connection = await self._connections.get(self.broker, Purpose.FETCH)
        finally:
            self._agenda.round.asked_at = None
        least, most = plan.least_bytes * _COPIES, plan.max_bytes * _COPIES
        hold = self._budget.take(Lane.REQUEST, least=least, most=most)
        if hold is None:
            self._owner.memory_short()
            hold = await reserve(self._budget, Lane.REQUEST, least=least, most=most)
        try:
            if self._woken.is_set():  # while we waited feeds came, went, or moved
                plan = self._plan()
            if plan.asks and hold.size >= plan.least_bytes * _COPIES:
                await self._exchange(connection, plan, hold)
        finally:
            hold.release()

    async def _exchange(self, connection: FetchConnection, plan: FetchPlan, hold: Hold) -> None:
        version = connection.version_of(FetchRequest)
        plan = plan.fit(min(hold.size // _COPIES, plan.max_bytes), bounded=version >= RESPONSE_LIMIT_SINCE)
        wait_ms = self._wait_ms(plan)
        request = write_request(version, plan, self._session, settings=self._settings, wait_ms=wait_ms)
        self._agenda.sent(plan)
        timeout_s = wait_ms / 1000 + self._settings.request_timeout_s
        self._in_flight = plan.asks
        self._agenda.round.asked_at = self._begun_at = started = self._now()
        try:
            response = await connection.request(request, timeout_s=timeout_s, version=version)
        except RequestTimedOut:
            self._session.unanswered(late=True)  # no other request's lateness says anything of sessions
            raise
        finally:
            self._agenda.round.asked_at = None
        self._in_flight = {}
        if response.error_code in SESSION_ERRORS:
            self._session.refused(response.error_code)
        elif response.error_code:
            raise broker_error(response.error_code, f"Fetch from broker {self.broker.id}")
        else:
            if version >= SESSIONS_SINCE:
                self._session.answered(response.session_id)
            self._agenda.round.answered_at = self._now()
            self._owner.broker_answered(self.broker)
            brought = await self._take(response, plan, hold)
            if brought is not None:
                self._barren = 0
                self._pause.reset()
                if brought < min(_SMALL_BYTES, plan.max_bytes // 4):
                    # a turn for the pipelines: sending wakes the broker, which may take our processor before they have it
                    cost_s = _LINE_S * (_count_lines(request) + _count_lines(response))
                    await self._rest(hold, started + min(cost_s, _LONGEST_REST_S) - self._now())
                return
        self._barren += 1
        if self._now() - started < wait_ms / 2000:
            await self._rest(hold, self._pause.next())

    async def _rest(self, hold: Hold, seconds: float) -> None:
        """Sleep without holding memory, for one turn of the loop at least."""
        hold.release()
        await asyncio.sleep(max(0.0, seconds))

    def _blame(self, error: ConsumerdError) -> None:
        """Find out whose answer cannot be framed: suspect all that were asked for, or fail the one that was."""
        asks, self._in_flight = self._in_flight, {}
        if not (isinstance(error, ConnectionLost) and isinstance(error.__cause__, RemoteProtocolError)):
            return
        for key, ask in asks.items():
            feed = self._agenda.find(key)
            if feed is None or ask.cursor.generation != ask.generation:
                continue
            if ask.cursor.suspected:
                ask.cursor.suspected = False
                feed.fail_too_large(None)
            else:
                ask.cursor.suspected = True

    def _wait_ms(self, plan: FetchPlan) -> int:
        if plan.alone:
            return 0
        if not plan.full and not plan.cut:
            return self._settings.max_wait_ms
        return min(self._settings.max_wait_ms, _SHORTEST_WAIT_MS << min(self._barren, 16))

    # -- its answer

    async def _take(self, response: FetchResponse, plan: FetchPlan, hold: Hold) -> int | None:
        """Hand out what came; returns how many bytes of records, or None if nothing came, errors included."""
        turn = self._now()
        if plan.alone:
            for ask in plan.asks.values():
                ask.cursor.suspected = False
        if plan.cut:
            for key in plan.asks:
                self._agenda.put_last(key)
        brought: int | None = None
        for topic in response.topics:
            for answer in topic.partitions:
                line = plan.asks.get((topic.topic, answer.partition))
                if line is None:
                    continue
                if self._now() - turn > _LONGEST_TURN_S:
                    await asyncio.sleep(0)
                    turn = self._now()
                taken = self._take_partition(answer, line, hold)
                if taken is not None:
                    brought = taken + (brought or 0)
        return brought

    def _take_partition(self, answer: FetchedPartition, ask: Ask, hold: Hold) -> int | None:
        key, code = ask.cursor.key, answer.error_code
        feed = self._agenda.find(key)
        if feed is None or feed.cursor is not ask.cursor or ask.cursor.generation != ask.generation:
            return 0  # closed, sought elsewhere or moved while the answer was under way
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._owner.confirm_out_of_range(feed)
        elif code:
            error = broker_error(code, f"Fetch of {feed.partition} from broker {self.broker.id}")
            self._owner.displace([feed], error, since=self._now())
        elif feed.accept(answer, ask.max_bytes, hold):
            self._agenda.touch(feed)
            self._agenda.put_last(key)
            return len(answer.record_set or b"")
        else:
            return None
        return 0


def _count_lines(message: FetchRequest | FetchResponse) -> int:
    return sum(len(topic.partitions) for topic in message.topics)
