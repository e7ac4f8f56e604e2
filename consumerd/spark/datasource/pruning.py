# SPDX-License-Identifier: Apache-2.0
"""Skips partitions and offsets that a query's filters exclude, before anything is fetched. Pure.

Spark offers a query's filters (``pyspark.sql.datasource.Filter``), all of which must hold. Those on ``topic``,
``partition``, ``offset`` and ``timestamp`` exclude records here. Spark applies every filter again to the rows, so a
filter that is not understood here costs time and nothing else.

Example: ``partition = 3 and offset >= 1000`` of a topic with offsets 0-4999 in each of 8 partitions reads 1000-4999 of
partition 3.

Offsets of Kafka 0.6 and 0.7 count bytes, and a range must begin with a message. So lower bounds of ``offset`` exclude
nothing there. Filters on ``broker`` exclude partitions of these releases only.
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
    """A set of whole numbers: those from ``low`` to ``high``, both included.

    None is no bound. If ``chosen`` is given, the set has only those of these numbers that are within the bounds.
    """

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
        """Return the numbers of this set that are ``low`` or more."""
        return replace(self, low=low if self.low is None else max(self.low, low))

    def to_high(self, high: int) -> Numbers:
        """Return the numbers of this set that are ``high`` or less."""
        return replace(self, high=high if self.high is None else min(self.high, high))

    def of(self, numbers: Iterable[int]) -> Numbers:
        """Return those of the given numbers that are in this set."""
        chosen = frozenset(numbers) if self.chosen is None else self.chosen.intersection(numbers)
        narrowed = replace(self, chosen=chosen)
        return narrowed.from_low(min(chosen)).to_high(max(chosen)) if chosen else narrowed


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Topics, partitions, offsets and times that a query's filters do not exclude.

    Attributes:
        topics: names; None for all topics.
        first_ms: least timestamp, in ms since the epoch; None for all timestamps.
    """

    topics: frozenset[str] | None = None
    brokers: Numbers = Numbers()
    partitions: Numbers = Numbers()
    offsets: Numbers = Numbers()
    first_ms: int | None = None

    def clip(self, ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
        """Return the parts of ranges that the query's filters do not exclude, in order.

        Ignores filters on timestamps (:func:`begin_later`).
        """
        return [cut for one in ranges if (cut := self._clip(one)) is not None]

    def _clip(self, one: OffsetRange) -> OffsetRange | None:
        if self.topics is not None and one.partition.topic not in self.topics:
            return None
        key = one.partition.partition
        if key.number not in self.partitions or (key.broker is not None and key.broker not in self.brokers):
            return None
        if self.offsets.chosen == frozenset():
            return None
        keeps_start = self.offsets.low is None or one.partition.is_legacy
        start = one.start if keeps_start else max(one.start, self.offsets.low or 0)
        end = one.end if self.offsets.high is None else min(one.end, self.offsets.high + 1)
        return replace(one, start=start, end=end) if start < end else None


def begin_later(ranges: Iterable[OffsetRange], first: Mapping[TopicPartition, int | None]) -> list[OffsetRange]:
    """Return ranges without the offsets that are below ``first``.

    Args:
        first: first wanted offset by partition. None as the offset means that no record of the partition is wanted, and
            its ranges are left out. Ranges of partitions that are not in ``first`` stay as they are.
    """
    kept = []
    for one in ranges:
        start = first.get(one.partition, one.start)
        if start is not None and start < one.end:
            kept.append(replace(one, start=max(one.start, start)))
    return kept


def find_wanted(filters: Iterable[Filter]) -> Wanted:
    """Return the topics, partitions, offsets and times that none of the filters excludes."""
    wanted = Wanted()
    for one in filters:
        # filters are recognized by their class names, so that this module needs no pyspark
        kind, column, value = type(one).__name__, getattr(one, "attribute", ()), getattr(one, "value", None)
        match column:
            case ("topic",):
                wanted = _narrow_topics(wanted, kind, value)
            case ("broker",):
                wanted = replace(wanted, brokers=_narrow(wanted.brokers, kind, value))
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
        # nulls are dropped: no number equals null
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
    """Narrow by a filter on timestamps: by its lower bound only."""
    # an upper bound excludes no offsets, because a record with an early timestamp may be anywhere in the log
    choice = _choice(kind, value) or ((value,) if kind in ("GreaterThan", "GreaterThanOrEqual") else ())
    times = [one for one in choice if isinstance(one, datetime) and one.tzinfo is not None]
    if not times or len(times) < len(choice):
        return wanted
    first_ms = (min(times) - _EPOCH) // timedelta(milliseconds=1)
    if first_ms < 0:
        return wanted  # records without a timestamp have -1 ms
    return replace(wanted, first_ms=first_ms if wanted.first_ms is None else max(wanted.first_ms, first_ms))
