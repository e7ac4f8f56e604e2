# SPDX-License-Identifier: Apache-2.0
"""How far one partition has got, within one claim.

Three positions, each the offset of the *next* record: ``delivered`` (handed to the sink), ``acknowledged`` (everything
below is safe at the sink) and ``committed`` (what the store holds). Invariants, whatever the order of calls:

- ``start <= acknowledged <= delivered``;
- ``acknowledged`` never goes back, ``delivered`` only where the sink says that it dropped what it had not acknowledged,
  and then not below ``acknowledged``;
- only ``acknowledged`` is ever offered for a commit, so what is committed has been safe at the sink before.

``committed`` may be ahead at first, where another member had consumed further than the sink has landed; nothing is
offered until the acknowledged position has passed it. A position that moves back on purpose (a reset below the log's
end) begins a new tracker.

For the lag in seconds it keeps the timestamp of the first record of each batch that is not acknowledged. Example: batches
``[0, 10)`` and ``[10, 20)`` were delivered, their first records are of 12:00 and 12:05. The oldest record is of 12:00; after
``acknowledge(10)`` it is of 12:05, after ``acknowledge(20)`` there is none. After ``acknowledge(15)`` its time is unknown,
since the record at 15 was never looked at.

Pure.
"""

from __future__ import annotations

import itertools
from typing import Final, NamedTuple

from consumerd.errors import OffsetError
from consumerd.wire.records import NO_TIMESTAMP

_MAX_SEGMENTS: Final = 128
"""Batches whose timestamps are kept; beyond that, neighbours are merged in pairs."""


class _Segment(NamedTuple):
    """Records delivered and not acknowledged: the first one's offset and timestamp, and the end of its batch."""

    end: int
    offset: int
    timestamp_ms: int


class OffsetTracker:
    """One partition's positions; ``committed`` is what the store held when it was made, None where that is void."""

    __slots__ = ("_acknowledged", "_committed", "_delivered", "_offered", "_segments", "_start")

    def __init__(self, start: int, committed: int | None = None) -> None:
        if start < 0:
            raise OffsetError(f"position {start}: expected 0 or more")
        self._start = start
        self._delivered = start
        self._acknowledged = start
        self._committed = committed
        self._segments: list[_Segment] = []
        self._offered: tuple[int, int] | None = None  # offset and timestamp of the next record that is to be delivered

    def __repr__(self) -> str:
        return (
            f"OffsetTracker(start={self._start}, delivered={self._delivered}, "
            f"acknowledged={self._acknowledged}, committed={self._committed})"
        )

    @property
    def start(self) -> int:
        """Where this claim began."""
        return self._start

    @property
    def delivered(self) -> int:
        """The next offset to hand to the sink."""
        return self._delivered

    @property
    def acknowledged(self) -> int:
        """Everything from ``start`` up to here is safe at the sink."""
        return self._acknowledged

    @property
    def committed(self) -> int | None:
        """What the store holds, as far as is known."""
        return self._committed

    @property
    def pending(self) -> int | None:
        """The position to commit next, or None while the store holds it already."""
        if self._committed is not None and self._acknowledged <= self._committed:
            return None
        return self._acknowledged

    @property
    def unacknowledged(self) -> bool:
        """Whether the sink still holds something that is not safe."""
        return self._acknowledged < self._delivered

    @property
    def oldest_ms(self) -> int | None:
        """Timestamp of the oldest record that is not acknowledged, as far as records were read; None without one.

        ``NO_TIMESTAMP`` where that record has none, or was not looked at.
        """
        if self._segments:
            first = self._segments[0]
            return first.timestamp_ms if first.offset >= self._acknowledged else NO_TIMESTAMP
        return None if self._offered is None else self._offered[1]

    def offer(self, record: tuple[int, int] | None) -> None:
        """Note the first record of the batch that the sink is about to be given; it may take long to take it.

        Args:
            record: The record's offset and timestamp; None for a batch of gaps only.
        """
        self._offered = record

    def deliver(self, start: int, next_offset: int) -> None:
        """Note that the sink took ``[start, next_offset)``.

        Raises OffsetError when that leaves a hole, repeats something or goes back: nothing is noted then.
        """
        if start != self._delivered or next_offset < start:
            raise OffsetError(f"delivery of [{start}, {next_offset}): expected it to begin at {self._delivered}")
        self._delivered = next_offset
        if self._offered is not None:
            self._segments.append(_Segment(next_offset, *self._offered))
            self._offered = None
            if len(self._segments) > _MAX_SEGMENTS:
                self._merge_segments()

    def _merge_segments(self) -> None:
        pairs = zip(*[iter(self._segments)] * 2, strict=False)
        merged = [before._replace(end=after.end) for before, after in pairs]
        self._segments = [*merged, *self._segments[2 * len(merged) :]]

    def rewind(self, position: int) -> None:
        """Go on from ``position``, since the sink dropped what it had not acknowledged; it may also lie ahead.

        Raises OffsetError for a position below the acknowledged one: what is safe stays safe.
        """
        if position < self._acknowledged:
            raise OffsetError(f"rewind to {position}: expected at least the acknowledged position {self._acknowledged}")
        self._delivered = position
        while self._segments and self._segments[-1].end > position:
            dropped = self._segments.pop()
            self._offered = dropped.offset, dropped.timestamp_ms
        if self._offered is not None and self._offered[0] < position:
            # of a batch that is dropped in part the first record still waits; the one at the position was not looked at
            if self._offered[0] >= self._acknowledged:
                self._segments.append(_Segment(position, *self._offered))
            self._offered = None

    def timestamps_below(self, position: int) -> list[int]:
        """Return the known timestamps of the batches that ``acknowledge(position)`` completes, a batch one."""
        complete = itertools.takewhile(lambda one: one.end <= position, self._segments)
        return [one.timestamp_ms for one in complete if one.timestamp_ms > NO_TIMESTAMP]

    def acknowledge(self, position: int) -> bool:
        """Note that everything below ``position`` is safe; return whether that is news.

        A position beyond what was delivered is taken as well: the sink holds it from an earlier writer, and delivery
        goes on from there.
        """
        if position <= self._acknowledged:
            return False
        self._acknowledged = position
        self._delivered = max(self._delivered, position)
        if self._segments and self._segments[0].end <= position:
            self._segments = [one for one in self._segments if one.end > position]
        if self._offered is not None and self._offered[0] < position:
            self._offered = None
        return True

    def commit(self, position: int) -> None:
        """Note that the store holds ``position``; an older answer than one already noted changes nothing."""
        if self._committed is None or position > self._committed:
            self._committed = position

    def lag(self, log_end: int | None) -> int | None:
        """Records between the delivered position and the end of the log, None while that is unknown.

        An upper bound where the log is compacted. The end as known may be older than the position: never negative.
        """
        return count_lag(self._delivered, log_end)


def count_lag(position: int, log_end: int | None) -> int | None:
    """Return the offsets between a position and the end of the log, None while that is unknown; never negative."""
    return None if log_end is None else max(0, log_end - position)
