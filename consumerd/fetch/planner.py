# SPDX-License-Identifier: Apache-2.0
"""Plans the next request to a broker: partitions, their order, and their sizes.

Pure. An :class:`Agenda` keeps the partitions' entries from one request to the next. Of ten thousand partitions few have
changed in between, and only their entries are computed again. Cursors record their own changes
(:attr:`Cursor.changes`); :meth:`Agenda.touch` reports that a feed holds more or less memory; and a change of the memory
limits (:class:`Marks`) changes all entries.

Partitions are in the order in which they were added. The broker loop moves a partition that returned data to the end,
because from Fetch 3 on brokers fill a response in the order of the request (KIP-74), and the last could starve.

From Fetch 3 on the response has a limit of its own; before that, its limit is the sum of the partitions' limits. Either
way the request never exceeds the reserved memory: :meth:`Agenda.plan` computes the wanted request, and
:meth:`FetchPlan.fit` cuts it to the granted bytes.

Example, before Fetch 3: three partitions of 1 MB each are planned, and 1.5 MB are granted. Each gets 0.5 MB.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from consumerd.client.fetch_protocol import Key
from consumerd.fetch.buffer import Marks, PartitionAccount
from consumerd.fetch.cursor import Cursor, CursorState, Round

USEFUL_BYTES: Final = 64 * 1024
"""A request for less than this is not worth a round trip."""


class Fetchable(Protocol):
    """Interface of a partition feed that the planner of requests uses."""

    @property
    def cursor(self) -> Cursor:
        """The feed's position, fetch size and state."""

    @property
    def account(self) -> PartitionAccount:
        """The memory that the feed's partition holds."""


F = TypeVar("F", bound=Fetchable)


class Ask(NamedTuple):
    """One partition's entry in a fetch request: fetch offset and most bytes.

    ``generation`` is the cursor's generation when the entry was made: the response is dropped if it has changed. A
    tuple, because thousands are kept.
    """

    cursor: Cursor
    generation: int
    offset: int
    max_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchPlan:
    """Plan of the next fetch request to one broker.

    Args:
        asks: The entries of the request, in the order of the request.
        max_bytes: Memory to reserve for the response, if available.
        least_bytes: Least memory to reserve for the response; the request waits until that is available.
        total_bytes: Sum of the byte limits of all entries.
        full: Number of partitions omitted because they have reached their memory limit.
        cut: Number of partitions omitted because too little memory was granted; they come first in the next request.
        alone: True if the request names only one partition, which is suspected of having broken the connection.
        due: Time at which the first backoff of an omitted partition ends, in seconds of the fetcher's clock; None if no
            partition backs off.
        news: Partitions whose entries may have changed since the last request; None if all entries may have. A fetch
            session sends only these.
    """

    asks: Mapping[Key, Ask]
    max_bytes: int
    least_bytes: int
    total_bytes: int
    full: int
    cut: int = 0
    alone: bool = False
    due: float | None
    news: Collection[Key] | None = None

    def fit(self, granted_bytes: int, *, bounded: bool) -> FetchPlan:
        """Return the plan reduced to ``granted_bytes``, the memory that could be reserved.

        With ``bounded`` (Fetch 3 and later) the entries stay, since the request limits the response as a whole. Without
        it, the partitions share the bytes evenly. Partitions whose share would be too small are omitted, but never the
        first.
        """
        if bounded or granted_bytes >= self.total_bytes:
            return replace(self, max_bytes=granted_bytes)
        share = max(granted_bytes // len(self.asks), min(USEFUL_BYTES, self.least_bytes))
        room = granted_bytes
        kept: dict[Key, Ask] = {}
        for key, ask in self.asks.items():
            size = max(min(ask.max_bytes, share), ask.cursor.grown_bytes)
            if size <= room or not kept:
                kept[key] = ask._replace(max_bytes=size)
                room -= size
        return replace(self, asks=kept, max_bytes=granted_bytes, cut=len(self.asks) - len(kept), news=None)


class Agenda(Generic[F]):
    """Partitions of one broker, and their entries in its next fetch request."""

    def __init__(self) -> None:
        self.round: Final = Round()
        """Times of the broker's requests; shared with the cursors of the partitions that they name."""
        self._feeds: dict[Key, F] = {}
        self._asks: dict[Key, Ask] = {}
        self._total_bytes = 0
        self._full: set[Key] = set()
        self._resting: dict[Key, float] = {}
        self._suspects: set[Key] = set()
        self._changes: dict[Key, None] = {}
        self._news: dict[Key, None] | None = None
        self._marks: Marks | None = None

    def __len__(self) -> int:
        return len(self._feeds)

    @property
    def feeds(self) -> tuple[F, ...]:
        """Feeds of all partitions, in the order of the next request."""
        return tuple(self._feeds.values())

    def find(self, key: Key) -> F | None:
        """Return a partition's feed; None if it is not in the agenda."""
        return self._feeds.get(key)

    def add(self, feed: F) -> None:
        """Include a feed's partition in requests; it replaces another feed of the same partition."""
        key = feed.cursor.key
        if (before := self._feeds.get(key)) is not None:
            self.remove(before)
        self._feeds[key] = feed
        feed.cursor.changes = self._changes
        self._changes[key] = None

    def remove(self, feed: F) -> bool:
        """Exclude a feed's partition from requests; return True if it was included."""
        key = feed.cursor.key
        if self._feeds.get(key) is not feed:
            return False
        self._set_line(feed.cursor, None)
        self._forget(key)
        del self._feeds[key]
        feed.cursor.changes = None
        return True

    def touch(self, feed: F) -> None:
        """Compute the entry of a feed's partition anew at the next plan.

        Called when the memory that the partition holds has changed.
        """
        if self._feeds.get(feed.cursor.key) is feed:
            self._changes[feed.cursor.key] = None

    def put_last(self, key: Key) -> None:
        """Move a partition to the end of the next request, behind all others."""
        if (feed := self._feeds.pop(key, None)) is not None:
            self._feeds[key] = feed
        if (ask := self._asks.pop(key, None)) is not None:
            self._asks[key] = ask

    def plan(self, *, now: float, marks: Marks, response_bytes: int) -> FetchPlan:
        """Return the plan of the next request.

        It has all partitions that may be fetched and have room. If a partition is suspected of having broken the
        connection, the plan names that partition alone.

        Args:
            now: Time on the fetcher's monotonic clock, in seconds.
            marks: Memory limits of each partition.
            response_bytes: Limit of the whole response, in bytes.
        """
        if marks != self._marks:
            self._marks = marks
            self._changes.update(dict.fromkeys(self._feeds))
        self._changes.update((key, None) for key, due in self._resting.items() if now >= due)
        changes = tuple(self._changes)
        self._changes.clear()  # not replaced, because the cursors reference this dictionary
        for key in changes:
            if (feed := self._feeds.get(key)) is not None:
                self._look_at(feed, now, marks)
        asks, total, news = self._asks, self._total_bytes, self._news
        suspect = next((ask for key, ask in asks.items() if key in self._suspects), None) if self._suspects else None
        if suspect is not None:
            asks, total, news = {suspect.cursor.key: suspect}, suspect.max_bytes, None
        least = min(marks.ask, USEFUL_BYTES)
        if asks:  # the first one must be able to make progress
            least = max(least, next(iter(asks.values())).cursor.grown_bytes)
        return FetchPlan(
            asks=dict(asks),
            max_bytes=max(least, min(total, response_bytes)),
            least_bytes=least,
            total_bytes=total,
            full=len(self._full),
            alone=suspect is not None,
            due=min(self._resting.values(), default=None),
            news=None if news is None else tuple(news),
        )

    def sent(self, plan: FetchPlan) -> None:
        """Note that a plan, the last one made, was sent as a request.

        ``FetchPlan.news`` of the next plan are the changes since then.
        """
        self._news = None if plan.alone or plan.cut else {}

    def _look_at(self, feed: F, now: float, marks: Marks) -> None:
        cursor = feed.cursor
        self._forget(cursor.key)
        ask: Ask | None = None
        if not cursor.ready(now):
            if cursor.state is CursorState.BACKING_OFF:
                self._resting[cursor.key] = cursor.due
        elif feed.account.is_full(marks):
            self._full.add(cursor.key)
        else:
            ask = Ask(cursor, cursor.generation, cursor.position, max(marks.ask, cursor.grown_bytes))
            if cursor.suspected:
                self._suspects.add(cursor.key)
        self._set_line(cursor, ask)

    def _forget(self, key: Key) -> None:
        self._full.discard(key)
        self._resting.pop(key, None)
        self._suspects.discard(key)

    def _set_line(self, cursor: Cursor, ask: Ask | None) -> None:
        key = cursor.key
        before = self._asks.get(key)
        if ask == before:
            return
        if ask is None:
            del self._asks[key]
        else:
            self._asks[key] = ask
        cursor.round = None if ask is None else self.round
        self._total_bytes += (0 if ask is None else ask.max_bytes) - (0 if before is None else before.max_bytes)
        if self._news is not None:
            self._news[key] = None


def round_up(count: int) -> int:
    """Return ``count`` or up to an eighth more, with four significant bits.

    The fetch size depends on the number of partitions. If each added or removed partition changed it, a fetch session
    would have to name all of thousands of partitions again. Example: 1,000 becomes 1,024.
    """
    step = 1 << max(0, count.bit_length() - 4)
    return -(-count // step) * step
