# SPDX-License-Identifier: Apache-2.0
"""Progress of one partition within one claim. Pure.

Three positions, each the offset of the *next* record: ``delivered`` (handed to the sink), ``acknowledged`` (everything
below is safe at the sink) and ``committed`` (stored). Invariants in any order of calls:

- ``start <= acknowledged <= delivered``;
- ``acknowledged`` never goes back. ``delivered`` goes back only if the sink has dropped unacknowledged records, and
  then not below ``acknowledged``;
- only ``acknowledged`` is ever offered for a commit, so every committed record was safe at the sink before.

``committed`` may be ahead at first, if another member has consumed further than the sink has landed. Nothing is offered
until the acknowledged position has passed it. A position that moves back on purpose (a reset below the log's end)
begins a new tracker.

For the lag in seconds the tracker keeps the timestamp of the first record of each unacknowledged batch. Example:
batches ``[0, 10)`` and ``[10, 20)`` were delivered, their first records are of 12:00 and 12:05. The oldest record is of
12:00; after ``acknowledge(10)`` it is of 12:05, after ``acknowledge(20)`` there is none. After ``acknowledge(15)`` its
time is unknown, since the timestamp of record 15 was not kept.
"""

from __future__ import annotations

import itertools
from typing import Final, NamedTuple

from consumerd.errors import OffsetError
from consumerd.wire.record_fields import NO_TIMESTAMP

_MAX_SEGMENTS: Final = 128
"""Batches whose timestamps are kept; beyond that, neighbours are merged in pairs."""


class _Segment(NamedTuple):
    """Delivered and unacknowledged records of one batch.

    The first one's offset and timestamp, and the end of the batch.
    """

    end: int
    offset: int
    timestamp_ms: int


class OffsetTracker:
    """Positions of one partition under one claim: delivered, acknowledged by the sink, and committed.

    Args:
        start: Offset at which delivery begins.
        committed: The position in the store now; None if there is no valid one.
        truncation: Number of truncations of the log in which the positions are valid.
    """

    __slots__ = ("_acknowledged", "_committed", "_delivered", "_offered", "_segments", "_start", "truncation")

    def __init__(self, start: int, committed: int | None = None, *, truncation: int = 0) -> None:
        if start < 0:
            raise OffsetError(f"position {start}: expected 0 or more")
        self.truncation: Final = truncation
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
        """Offset at which delivery began under this claim."""
        return self._start

    @property
    def delivered(self) -> int:
        """The next offset to hand to the sink."""
        return self._delivered

    @property
    def acknowledged(self) -> int:
        """The offset below which all records, from ``start`` on, are safe at the sink."""
        return self._acknowledged

    @property
    def committed(self) -> int | None:
        """The last position that the store is known to hold; None without a valid position."""
        return self._committed

    @property
    def pending(self) -> int | None:
        """The acknowledged position if it is to be committed next, else None.

        None if the store holds this position, or a larger one, already.
        """
        if self._committed is not None and self._acknowledged <= self._committed:
            return None
        return self._acknowledged

    @property
    def unacknowledged(self) -> bool:
        """True if the sink has records that it has not acknowledged yet."""
        return self._acknowledged < self._delivered

    @property
    def oldest_ms(self) -> int | None:
        """Timestamp of the oldest unacknowledged record, in ms since the epoch.

        None if no record waits for an acknowledgement. ``NO_TIMESTAMP`` if the record has no timestamp, or if its
        timestamp was not kept: only that of the first record of each batch is.
        """
        if self._segments:
            first = self._segments[0]
            return first.timestamp_ms if first.offset >= self._acknowledged else NO_TIMESTAMP
        return None if self._offered is None else self._offered[1]

    def offer(self, record: tuple[int, int] | None) -> None:
        """Note the first record of a batch, before the batch is handed to the sink.

        From then on :attr:`oldest_ms` takes the batch into account, even if the sink takes long to accept it.

        Args:
            record: The record's offset, and its timestamp in ms since the epoch; None for a batch without records.
        """
        self._offered = record

    def deliver(self, start: int, next_offset: int) -> None:
        """Note that the sink has taken the offsets from ``start`` to below ``next_offset``.

        Raises OffsetError, without a change, if offsets are skipped or repeated.
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
        """Continue at ``position``, after the sink has dropped unacknowledged records.

        ``position`` may also be above the delivered position. Raises OffsetError for a position below the acknowledged
        one.
        """
        if position < self._acknowledged:
            raise OffsetError(f"rewind to {position}: expected at least the acknowledged position {self._acknowledged}")
        self._delivered = position
        while self._segments and self._segments[-1].end > position:
            dropped = self._segments.pop()
            self._offered = dropped.offset, dropped.timestamp_ms
        if self._offered is not None and self._offered[0] < position:
            # if a batch is dropped in part, its first record still waits; the timestamp at the position was not kept
            if self._offered[0] >= self._acknowledged:
                self._segments.append(_Segment(position, *self._offered))
            self._offered = None

    def timestamps_below(self, position: int) -> list[int]:
        """Return a timestamp, in ms since the epoch, for each batch up to ``position``.

        These are the unacknowledged batches that end at or below ``position``, so that ``acknowledge(position)`` would
        complete them. The timestamp is that of the batch's first record; batches without a known timestamp are left
        out.
        """
        complete = itertools.takewhile(lambda one: one.end <= position, self._segments)
        return [one.timestamp_ms for one in complete if one.timestamp_ms > NO_TIMESTAMP]

    def acknowledge(self, position: int) -> bool:
        """Raise the acknowledged position; return True if it changed.

        A lower or equal ``position`` is ignored. It may be above the delivered position: the sink then has the records
        below it from an earlier writer, and delivery continues after them.
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
        """Note that the store holds ``position``; a lower one than the last is ignored."""
        if self._committed is None or position > self._committed:
            self._committed = position

    def lag(self, log_end: int | None) -> int | None:
        """Return the number of offsets from the delivered position to the log's end.

        None if the end is unknown. In a compacted log the number is larger than that of the records. It is never
        negative: if the known end is older than the position, and lower, the result is 0.
        """
        return count_lag(self._delivered, log_end)


def count_lag(position: int, log_end: int | None) -> int | None:
    """Return the number of offsets from a position to the log's end; None if unknown.

    The result is 0 if the known end is below the position.
    """
    return None if log_end is None else max(0, log_end - position)
