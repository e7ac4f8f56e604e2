# SPDX-License-Identifier: Apache-2.0
"""The next deadline of many groups. Pure."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable


class Deadlines:
    """Deadlines by key, of which the newest counts.

    Postponing a deadline costs nothing until the earlier one has passed.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, str]] = []
        self._queued: dict[str, float] = {}
        self._current: dict[str, float] = {}

    @property
    def next(self) -> float:
        """Time of the next check; infinite without deadlines.

        Nothing may be due then, if the deadline was postponed.
        """
        return self._heap[0][0] if self._heap else math.inf

    def set(self, key: str, when: float) -> None:
        """Set a key's deadline; an infinite one removes it."""
        if when == math.inf:
            self._current.pop(key, None)
            return
        self._current[key] = when
        if when < self._queued.get(key, math.inf):
            self._queued[key] = when
            heapq.heappush(self._heap, (when, key))

    def pop_due(self, now: float) -> Iterable[str]:
        """Return the keys whose deadlines have passed, and remove these deadlines."""
        due = []
        while self._heap and self._heap[0][0] <= now:
            when, key = heapq.heappop(self._heap)
            if self._queued.get(key) != when:
                continue  # superseded by an earlier entry, which was handled already
            del self._queued[key]
            current = self._current.get(key, math.inf)
            if current <= now:
                del self._current[key]
                due.append(key)
            elif current < math.inf:
                self._queued[key] = current
                heapq.heappush(self._heap, (current, key))
        return due
