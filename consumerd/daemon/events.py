# SPDX-License-Identifier: Apache-2.0
"""History of the daemon's last events, such as errors, for the status page.

Repeated events are merged into one, and no kind of event displaces all others. Example: a broker with 200 partitions
dies, and each partition reports it with the same reason. The history has one event that names three partitions and
counts 200, and earlier events are still there.
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
"""Longest time, in seconds, between two occurrences that are merged into one event."""
_NAMED: Final = 3
"""Number of partitions that an event names; the others are counted."""
_SHOWN_CHARACTERS: Final = 1000
"""Limit of an event's detail, in characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventStatus:
    """An event of the daemon, such as an error, which may have occurred several times.

    Attributes:
        ago_s: seconds since the last occurrence.
        kind: type of the event, such as ``sink failed``.
        what: description for people, with the partitions.
        count: number of occurrences.
        partitions: number of partitions concerned; 0 for an event of the whole process.
        first_ago_s: seconds since the first occurrence.
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
    """The last ``limit`` events of the daemon. ``now`` is the monotonic clock, in seconds."""

    def __init__(self, limit: int, now: Callable[[], float]) -> None:
        self._limit = limit
        self._now = now
        self._events: list[_Event] = []

    def note(self, kind: str, detail: str, partition: TopicPartition | None = None) -> None:
        """Add an event, or count it as a repetition of an earlier one.

        It is a repetition if an event of the same kind and detail occurred less than ``_MERGED_S`` seconds ago.

        Args:
            kind: type of the event, such as ``sink failed``.
            detail: the reason, or other text.
            partition: the partition concerned; None for an event of the whole process.
        """
        now = self._now()
        detail = escape_unprintable(detail[:_SHOWN_CHARACTERS])  # names of brokers and members may hold any character
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
        """Drop the oldest event of the most frequent kind."""
        kinds = Counter(event.kind for event in self._events)
        most = max(kinds.values())
        self._events.remove(next(event for event in self._events if kinds[event.kind] == most))

    def describe(self) -> Iterator[EventStatus]:
        """Yield the events, newest first."""
        now = self._now()
        return (event.describe(now) for event in reversed(self._events))
