# SPDX-License-Identifier: Apache-2.0
"""Which partitions the next request to a broker names, in which order, and for how many bytes each.

Pure. An :class:`Agenda` keeps the request's lines from one request to the next. Of ten thousand partitions few have changed
in between, and only those are looked at again: cursors note their changes themselves (:attr:`Cursor.changes`), whoever
changes what a feed holds says so (:meth:`Agenda.touch`), and when the marks change everything is looked at.

The order is that in which partitions came to be asked for; the broker loop moves whoever brought data to the end, so that
none starves where a broker fills a response in order (Fetch 3 and later, KIP-74).

What a request can bring is bounded, from version 3 on, by the limit of the whole response, and before it by the sum of
the partitions' own limits only. Either way no more is asked for than was reserved: :meth:`Agenda.plan` says what would
be asked for, :meth:`FetchPlan.fit` cuts it to what the memory account granted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from consumerd.fetch.buffer import Marks, PartitionAccount
from consumerd.fetch.cursor import Cursor, CursorState, Key, Round

USEFUL_BYTES: Final = 64 * 1024
"""A request for less than this is not worth a round trip."""


class Fetchable(Protocol):
    """What the planner sees of a feed."""

    @property
    def cursor(self) -> Cursor:
        """The feed's position, fetch size and state."""

    @property
    def account(self) -> PartitionAccount:
        """The memory that the feed's partition holds."""


F = TypeVar("F", bound=Fetchable)


class Ask(NamedTuple):
    """One partition's line in a request. A tuple: thousands are kept."""

    cursor: Cursor
    generation: int
    offset: int
    max_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchPlan:
    """The next request to one broker.

    ``max_bytes`` is worth reserving, ``least_bytes`` must be. ``total_bytes`` is what the partitions' own limits add up to.
    ``full`` partitions were left out for what they hold, and ``cut`` ones for want of memory: theirs is the next turn.
    ``alone`` is whether it names a suspect and leaves out all others. ``due`` is when the first of those that back off may
    be asked again. ``news`` are the partitions whose lines may differ from those that were sent last, None where any may.
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
        """Cut the request to ``granted_bytes``.

        Where the response has no bound of its own (``bounded`` false) the partitions share them evenly; those for
        which less than a useful amount would be left wait for their turn. The first one is always asked for.
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
    """The feeds of one broker, and for each its line of the next request, or why it has none."""

    def __init__(self) -> None:
        self.round: Final = Round()
        """When the request under way was sent; told to the cursors that have a line."""
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
        """All of them."""
        return tuple(self._feeds.values())

    def find(self, key: Key) -> F | None:
        """Return a partition's feed."""
        return self._feeds.get(key)

    def add(self, feed: F) -> None:
        """Ask for ``feed`` too; it takes the place of another one of the same partition."""
        key = feed.cursor.key
        if (before := self._feeds.get(key)) is not None:
            self.remove(before)
        self._feeds[key] = feed
        feed.cursor.changes = self._changes
        self._changes[key] = None

    def remove(self, feed: F) -> bool:
        """Ask for ``feed`` no more; return whether it was there."""
        key = feed.cursor.key
        if self._feeds.get(key) is not feed:
            return False
        self._set_line(feed.cursor, None)
        self._forget(key)
        del self._feeds[key]
        feed.cursor.changes = None
        return True

    def touch(self, feed: F) -> None:
        """Look at ``feed`` again: what it holds has changed."""
        if self._feeds.get(feed.cursor.key) is feed:
            self._changes[feed.cursor.key] = None

    def put_last(self, key: Key) -> None:
        """Let the others come first next time."""
        if (feed := self._feeds.pop(key, None)) is not None:
            self._feeds[key] = feed
        if (ask := self._asks.pop(key, None)) is not None:
            self._asks[key] = ask

    def plan(self, *, now: float, marks: Marks, response_bytes: int) -> FetchPlan:
        """Plan the next request: every partition that may be asked for and has room, in order; a suspect goes alone."""
        if marks != self._marks:
            self._marks = marks
            self._changes.update(dict.fromkeys(self._feeds))
        self._changes.update((key, None) for key, due in self._resting.items() if now >= due)
        changes = tuple(self._changes)
        self._changes.clear()  # the cursors hold this very one
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
        """Note that ``plan``, the last one made, was sent: news is what differs from it."""
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

    What each partition is asked for depends on how many there are; were it another amount with every one that comes or
    goes, all of thousands would have to be named anew.
    """
    step = 1 << max(0, count.bit_length() - 4)
    return -(-count // step) * step
