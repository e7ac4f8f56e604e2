# SPDX-License-Identifier: Apache-2.0
"""Rate of a reader: the slope of its record count between two marks.

The same rule holds for all readers. A mark is a record count. The rate, in records/s, is the number of records between
the marks, divided by the time from one mark to the other. Start-up and warm-up lie before the lower mark.

A series holds what a reader had read at times that it reports itself: pairs ``(seconds, records)``, neither of which
ever decreases. Only the first sample of each count is used; a repeated count is only an earlier value read again.
Between two samples the count is taken to grow linearly. Records that arrive in large steps (published files) therefore
count no more than records that arrive one by one.

A reader that does not reach the upper mark within its time is measured up to the count that it reached, and from the
same fraction of that count.

Example: the marks are 4,000,000 and 16,000,000. A reader that reached 8,000,000 records is measured between 2,000,000
and 8,000,000.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Sample = tuple[float, int]
"""A time in seconds of any steady clock, and the number of records read by then."""


class TooFewRecords(Exception):
    """Raised for a series from which no slope can be computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """Two record counts between which a slope is measured.

    Raises ValueError unless 0 < low < high.
    """

    low: int
    high: int

    def __post_init__(self) -> None:
        if not 0 < self.low < self.high:
            raise ValueError(f"marks are {self.low} and {self.high}; expected 0 < low < high")

    def shrunk(self, divisor: int) -> Marks:
        """Return the marks divided by ``divisor``, for topics of fewer and larger records."""
        return Marks(low=max(1, self.low // divisor), high=max(2, self.high // divisor))


@dataclass(frozen=True, slots=True, kw_only=True)
class Slope:
    """Records per second between two counts, and the seconds between them."""

    records_per_s: float
    seconds: float
    low: int
    high: int


def slope_between(series: Iterable[Sample], marks: Marks) -> Slope:
    """Return the slope between the marks. Raises TooFewRecords."""
    steps = _steps(series)
    reached = steps[-1][1] if steps else 0
    high = min(marks.high, reached)
    low = marks.low if reached >= marks.high else reached * marks.low // marks.high
    if steps:
        # before its first sample the reader was still starting
        low = max(low, steps[0][1])
    if low >= high:
        raise TooFewRecords(
            f"{reached} records in {len(steps)} steps; expected some between {marks.low} and {marks.high}"
        )
    began, ended = _moment(steps, low), _moment(steps, high)
    if ended <= began:
        raise TooFewRecords(f"all of {low} to {high} at one moment")
    return Slope(records_per_s=(high - low) / (ended - began), seconds=ended - began, low=low, high=high)


def _steps(series: Iterable[Sample]) -> list[Sample]:
    steps: list[Sample] = []
    for at, count in series:
        if count > (steps[-1][1] if steps else 0):
            steps.append((at, count))
    return steps


def _moment(steps: Sequence[Sample], count: int) -> float:
    """Return the time at which ``count`` was reached, interpolated between two samples.

    ``count`` must lie between the counts of the first and the last sample.
    """
    right = bisect_left(steps, count, key=lambda step: step[1])
    after, more = steps[right]
    if more == count or right == 0:
        return after
    before, fewer = steps[right - 1]
    return before + (after - before) * (count - fewer) / (more - fewer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Median, least and highest value of several rounds."""

    median: float
    least: float
    most: float
    rounds: int


def spread_of(values: Sequence[float]) -> Spread:
    """Return the median, least and highest of ``values``, of which there is at least one."""
    return Spread(median=statistics.median(values), least=min(values), most=max(values), rounds=len(values))
