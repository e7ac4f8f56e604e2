# SPDX-License-Identifier: Apache-2.0
"""How fast somebody reads, from how much had been read when: the slope between two marks, the same rule for everybody.

A series is what a reader has read at moments that it tells itself (``(seconds, records)``, neither ever less). Only the
first moment of each new count says something: a count that stays is read again. Between two of those the count is taken to
grow evenly, so what comes in leaps (files that are published) is worth no more than what trickles. Start and warm-up lie
before the lower mark. Whoever does not come to the upper one in the time that there is is measured up to where it came,
from the same part of it on.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Sample = tuple[float, int]
"""A moment in seconds of any clock that goes evenly, and how many records had been read by then."""


class TooFewRecords(Exception):
    """A series from which no slope can be taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """Between which counts of records a slope is taken."""

    low: int
    high: int

    def __post_init__(self) -> None:
        if not 0 < self.low < self.high:
            raise ValueError(f"marks are {self.low} and {self.high}; expected 0 < low < high")

    def shrunk(self, divisor: int) -> Marks:
        """Return the marks for larger records: as many bytes in fewer of them."""
        return Marks(low=max(1, self.low // divisor), high=max(2, self.high // divisor))


@dataclass(frozen=True, slots=True, kw_only=True)
class Slope:
    """Records a second between two counts, and how long that took."""

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
        # before the first step nothing is known but that the reader was starting
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
    """Return when ``count`` was reached; it lies between the first step's and the last one's."""
    right = bisect_left(steps, count, key=lambda step: step[1])
    after, more = steps[right]
    if more == count or right == 0:
        return after
    before, fewer = steps[right - 1]
    return before + (after - before) * (count - fewer) / (more - fewer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """What several rounds gave."""

    median: float
    least: float
    most: float
    rounds: int


def spread_of(values: Sequence[float]) -> Spread:
    """Return the median and the ends; there is at least one value."""
    return Spread(median=statistics.median(values), least=min(values), most=max(values), rounds=len(values))
