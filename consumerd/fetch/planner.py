"""Which partitions the next request to a broker names, in which order, and for how many bytes each.

Pure. The order is that of the cursors given; the broker loop moves whoever brought data to the end, so that none
starves where a broker fills a response in order (Fetch 3 and later, KIP-74).

What a request can bring is bounded, from version 3 on, by the limit of the whole response, and before it by the sum of
the partitions' own limits only. Either way no more is asked for than was reserved: :func:`plan_fetch` says what would
be asked for, :meth:`FetchPlan.fit` cuts it to what the memory account granted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Protocol

from consumerd.fetch.buffer import Marks, PartitionAccount
from consumerd.fetch.cursor import Cursor, CursorState

USEFUL_BYTES: Final = 64 * 1024
"""A request for less than this is not worth a round trip."""


class Fetchable(Protocol):
    """What the planner sees of a feed."""

    @property
    def cursor(self) -> Cursor:
        """Where it stands."""

    @property
    def account(self) -> PartitionAccount:
        """What it holds."""


class Ask(NamedTuple):
    """One partition's line in a request. A tuple: hundreds are made for each request."""

    cursor: Cursor
    generation: int
    offset: int
    max_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchPlan:
    """The next request to one broker.

    ``max_bytes`` is worth reserving, ``least_bytes`` must be. ``full`` partitions were left out for what they hold, and
    ``cut`` ones for want of memory: theirs is the next turn. ``due`` is when the first of those that back off may be asked again.
    """

    asks: tuple[Ask, ...]
    max_bytes: int
    least_bytes: int
    full: int
    cut: int = 0
    due: float | None

    def fit(self, granted_bytes: int, *, bounded: bool) -> FetchPlan:
        """Cut the request to ``granted_bytes``.

        Where the response has no bound of its own (``bounded`` false) the partitions share them evenly; those for
        which less than a useful amount would be left wait for their turn. The first one is always asked for.
        """
        if bounded or granted_bytes >= sum(ask.max_bytes for ask in self.asks):
            return replace(self, max_bytes=granted_bytes)
        share = max(granted_bytes // len(self.asks), min(USEFUL_BYTES, self.least_bytes))
        room = granted_bytes
        kept: list[Ask] = []
        for ask in self.asks:
            size = max(min(ask.max_bytes, share), ask.cursor.grown_bytes)
            if size <= room or not kept:
                kept.append(ask._replace(max_bytes=size))
                room -= size
        return replace(self, asks=tuple(kept), max_bytes=granted_bytes, cut=len(self.asks) - len(kept))


def plan_fetch(feeds: Iterable[Fetchable], *, now: float, marks: Marks, response_bytes: int) -> FetchPlan:
    """Plan the next request: every partition that may be asked for and has room, in order; a suspect goes alone."""
    asks: list[Ask] = []
    total = full = 0
    least = min(marks.ask, USEFUL_BYTES)
    due: float | None = None
    for feed in feeds:
        cursor = feed.cursor
        if not cursor.ready(now):
            if cursor.state is CursorState.BACKING_OFF and (due is None or cursor.due < due):
                due = cursor.due
        elif feed.account.is_full(marks):
            full += 1
        else:
            size = max(marks.ask, cursor.grown_bytes)
            asks.append(Ask(cursor, cursor.generation, cursor.position, size))
            total += size
    if suspect := next((ask for ask in asks if ask.cursor.suspected), None):
        asks, total = [suspect], suspect.max_bytes
    if asks:  # the first one must be able to make progress
        least = max(least, asks[0].cursor.grown_bytes)
    most = max(least, min(total, response_bytes))
    return FetchPlan(asks=tuple(asks), max_bytes=most, least_bytes=least, full=full, due=due)
