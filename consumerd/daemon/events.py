# SPDX-License-Identifier: Apache-2.0
"""The last events, for display: one lasting or repeated event is one row, and no kind pushes all others out.

Example: a broker with 200 partitions dies. Each partition tells of it, with the same reason; the history has one event
that names three of them and counts 200, and what happened before is still there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from consumerd.model import TopicPartition
from consumerd.telemetry.text_tables import escape_unprintable
from consumerd.telemetry.wording import join_shown

_MERGED_S: Final = 600.0
"""An event that is told again within this time of the last is counted, instead of remembered anew."""
_NAMED: Final = 3
"""Partitions that one event names; the others are counted."""
_SHOWN_CHARACTERS: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class EventStatus:
    """An event: how many seconds ago it was told last and first, and how often.

    ``partitions`` counts those that it concerns; 0 for an event of the whole process.
    """

    ago_s: float
    kind: str
    what: str
    count: int = 1
    partitions: int = 0
    first_ago_s: float = 0.0


@dataclass(slots=True)
class _Event:
    kind: str
    detail: str
    at: float
    first_at: float
    count: int = 0
    partitions: set[TopicPartition] = field(default_factory=set)

    def describe(self, now: float) -> EventStatus:
        what = self.detail
        if self.partitions:
            named = join_shown(sorted(self.partitions), _NAMED)
            what = f"{named}: {what}" if what else named
        return EventStatus(
            ago_s=now - self.at,
            kind=self.kind,
            what=what,
            count=self.count,
            partitions=len(self.partitions),
            first_ago_s=now - self.first_at,
        )


class EventHistory:
    """The last ``limit`` events. ``now`` is monotonic, in seconds."""

    def __init__(self, limit: int, now: Callable[[], float]) -> None:
        self._limit = limit
        self._now = now
        self._events: list[_Event] = []

    def note(self, kind: str, detail: str, partition: TopicPartition | None = None) -> None:
        """Remember an event; the same kind and detail of another partition, or soon again, is the same event."""
        now = self._now()
        detail = escape_unprintable(detail[:_SHOWN_CHARACTERS])  # names of brokers and members may be anything
        event = self._take(kind, detail, now) or _Event(kind, detail, now, now)
        event.at = now
        event.count += 1
        if partition is not None:
            event.partitions.add(partition)
        self._events.append(event)
        if len(self._events) > self._limit:
            self._drop_one()

    def _take(self, kind: str, detail: str, now: float) -> _Event | None:
        for index in range(len(self._events) - 1, -1, -1):
            event = self._events[index]
            if (event.kind, event.detail) == (kind, detail) and now - event.at <= _MERGED_S:
                return self._events.pop(index)
        return None

    def _drop_one(self) -> None:
        """Drop the oldest event of the kind that has most."""
        kinds = Counter(event.kind for event in self._events)
        most = max(kinds.values())
        self._events.remove(next(event for event in self._events if kinds[event.kind] == most))

    def describe(self) -> Iterator[EventStatus]:
        """Yield the events, newest first."""
        now = self._now()
        return (event.describe(now) for event in reversed(self._events))
