# SPDX-License-Identifier: Apache-2.0
"""Partitions and offsets that a query's filters leave out, known before anything is fetched.

Of the filters that Spark offers (``pyspark.sql.datasource.Filter``; all of them must hold) those on ``topic``, ``partition``,
``offset`` and ``timestamp`` tell which records cannot be wanted. Spark evaluates every filter again on the rows that come, so a
filter that is not understood here costs time and nothing else. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from consumerd.model import TopicPartition
from consumerd.spark.datasource.planning import OffsetRange

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """Whole numbers from ``low`` to ``high``, both included; None is no bound. ``chosen``: these alone of them."""

    low: int | None = None
    high: int | None = None
    chosen: frozenset[int] | None = None

    def __contains__(self, number: int) -> bool:
        return (
            (self.low is None or self.low <= number)
            and (self.high is None or number <= self.high)
            and (self.chosen is None or number in self.chosen)
        )

    def from_low(self, low: int) -> Numbers:
        """Return those that are ``low`` or more."""
        return replace(self, low=low if self.low is None else max(self.low, low))

    def to_high(self, high: int) -> Numbers:
        """Return those that are ``high`` or less."""
        return replace(self, high=high if self.high is None else min(self.high, high))

    def of(self, numbers: Iterable[int]) -> Numbers:
        """Return those that are among ``numbers``."""
        chosen = frozenset(numbers) if self.chosen is None else self.chosen.intersection(numbers)
        narrowed = replace(self, chosen=chosen)
        return narrowed.from_low(min(chosen)).to_high(max(chosen)) if chosen else narrowed


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Records that a query may want. ``topics`` None means all; ``first_ms`` is the least timestamp, in ms since 1970."""

    topics: frozenset[str] | None = None
    partitions: Numbers = Numbers()
    offsets: Numbers = Numbers()
    first_ms: int | None = None

    def clip(self, ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
        """Return what is wanted of the ranges, in their order. Timestamps are not looked at."""
        return [cut for one in ranges if (cut := self._clip(one)) is not None]

    def _clip(self, one: OffsetRange) -> OffsetRange | None:
        if self.topics is not None and one.partition.topic not in self.topics:
            return None
        if one.partition.partition.number not in self.partitions:
            return None
        if self.offsets.chosen == frozenset():
            return None
        start = one.start if self.offsets.low is None else max(one.start, self.offsets.low)
        end = one.end if self.offsets.high is None else min(one.end, self.offsets.high + 1)
        return replace(one, start=start, end=end) if start < end else None


def begin_later(ranges: Iterable[OffsetRange], first: Mapping[TopicPartition, int | None]) -> list[OffsetRange]:
    """Return ranges without what lies below ``first``; None leaves the partition out, one that is not named stays as it is."""
    kept = []
    for one in ranges:
        start = first.get(one.partition, one.start)
        if start is not None and start < one.end:
            kept.append(replace(one, start=max(one.start, start)))
    return kept


def find_wanted(filters: Iterable[Filter]) -> Wanted:
    """Return what may be wanted by a query that has all these filters."""
    wanted = Wanted()
    for one in filters:
        # known by name, so that the driver's planning can be tested without Spark
        kind, column, value = type(one).__name__, getattr(one, "attribute", ()), getattr(one, "value", None)
        match column:
            case ("topic",):
                wanted = _narrow_topics(wanted, kind, value)
            case ("partition",):
                wanted = replace(wanted, partitions=_narrow(wanted.partitions, kind, value))
            case ("offset",):
                wanted = replace(wanted, offsets=_narrow(wanted.offsets, kind, value))
            case ("timestamp",):
                wanted = _narrow_time(wanted, kind, value)
    return wanted


def _choice(kind: str, value: object) -> tuple[object, ...] | None:
    """Return the values that a filter allows, None for a filter of another kind."""
    if kind in ("EqualTo", "EqualNullSafe"):
        return (value,)
    return tuple(value) if kind == "In" and isinstance(value, (tuple, list)) else None


def _narrow_topics(wanted: Wanted, kind: str, value: object) -> Wanted:
    if (choice := _choice(kind, value)) is None:
        return wanted
    topics = frozenset(one for one in choice if isinstance(one, str))
    return replace(wanted, topics=topics if wanted.topics is None else wanted.topics & topics)


def _narrow(numbers: Numbers, kind: str, value: object) -> Numbers:
    if (choice := _choice(kind, value)) is not None:
        # no number equals a null
        known = [one for one in choice if one is not None]
        return numbers.of(one for one in known if isinstance(one, int)) if all(map(_is_whole, known)) else numbers
    if not isinstance(value, int) or isinstance(value, bool):
        return numbers
    match kind:
        case "GreaterThan":
            return numbers.from_low(value + 1)
        case "GreaterThanOrEqual":
            return numbers.from_low(value)
        case "LessThan":
            return numbers.to_high(value - 1)
        case "LessThanOrEqual":
            return numbers.to_high(value)
        case _:
            return numbers


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _narrow_time(wanted: Wanted, kind: str, value: object) -> Wanted:
    """Apply a lower bound. An upper one says nothing of offsets: a record with an earlier timestamp may come at any time."""
    choice = _choice(kind, value) or ((value,) if kind in ("GreaterThan", "GreaterThanOrEqual") else ())
    times = [one for one in choice if isinstance(one, datetime) and one.tzinfo is not None]
    if not times or len(times) < len(choice):
        return wanted
    first_ms = (min(times) - _EPOCH) // timedelta(milliseconds=1)
    if first_ms < 0:
        return wanted  # records without a timestamp have -1 ms
    return replace(wanted, first_ms=first_ms if wanted.first_ms is None else max(wanted.first_ms, first_ms))
