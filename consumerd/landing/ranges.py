# SPDX-License-Identifier: Apache-2.0
"""Sets of offsets as disjoint half-open ranges. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple


class Span(NamedTuple):
    """Range of offsets ``[start, end)``: ``end`` is not included."""

    start: int
    end: int

    def __str__(self) -> str:
        return f"[{self.start}, {self.end})"

    @property
    def size(self) -> int:
        """Number of offsets in the range."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class RangeSet:
    """A set of offsets, kept as half-open ranges in ascending order.

    The ranges are not empty, and neither overlap nor touch each other.
    """

    spans: tuple[Span, ...] = ()

    @classmethod
    def of(cls, spans: Iterable[tuple[int, int]]) -> RangeSet:
        """Return the set of all offsets in any of these half-open ranges.

        The ranges may overlap, be empty, and come in any order.
        """
        merged: list[Span] = []
        for start, end in sorted(span for span in spans if span[0] < span[1]):
            if merged and start <= merged[-1].end:
                if end > merged[-1].end:
                    merged[-1] = Span(merged[-1].start, end)
            else:
                merged.append(Span(start, end))
        return cls(tuple(merged))

    def __bool__(self) -> bool:
        return bool(self.spans)

    def __iter__(self) -> Iterator[Span]:
        return iter(self.spans)

    def __contains__(self, offset: object) -> bool:
        if not isinstance(offset, int):
            return False
        place = bisect_right(self.spans, offset, key=_start) - 1
        return place >= 0 and offset < self.spans[place].end

    def __or__(self, other: RangeSet) -> RangeSet:
        if not other.spans:
            return self
        if not self.spans:
            return other
        return RangeSet.of((*self.spans, *other.spans))

    def __and__(self, other: RangeSet) -> RangeSet:
        if not self.spans or not other.spans:
            return EMPTY
        few, many = sorted((self, other), key=lambda ranges: len(ranges.spans))
        found: list[Span] = []
        for start, end in few.spans:
            place = max(0, bisect_right(many.spans, start, key=_start) - 1)
            while place < len(many.spans) and many.spans[place].start < end:
                low, high = max(start, many.spans[place].start), min(end, many.spans[place].end)
                if low < high:
                    found.append(Span(low, high))
                place += 1
        return RangeSet(tuple(found))

    def __sub__(self, other: RangeSet) -> RangeSet:
        common = self & other
        if not common:
            return self
        left: list[Span] = []
        taken = iter([*common.spans, None])
        cut = next(taken)
        for start, end in self.spans:
            begin = start
            while cut is not None and cut.start < end:
                if begin < cut.start:
                    left.append(Span(begin, cut.start))
                begin = cut.end
                cut = next(taken)
            if begin < end:
                left.append(Span(begin, end))
        return RangeSet(tuple(left))

    @property
    def size(self) -> int:
        """Number of offsets in the set."""
        return sum(end - start for start, end in self.spans)

    def encode(self) -> list[list[int]]:
        """Return the set as JSON: half-open ranges ``[[start, end], ...]``."""
        return [[start, end] for start, end in self.spans]

    @classmethod
    def parse(cls, value: object) -> RangeSet:
        """Parse the JSON that :meth:`encode` returns. Raises ValueError."""
        if not isinstance(value, Sequence) or not all(_is_pair(pair) for pair in value):
            raise ValueError(f"{value!r}, expected a list of [start, end]")
        return cls.of((start, end) for start, end in value)


EMPTY: Final = RangeSet()


def union(sets: Iterable[RangeSet]) -> RangeSet:
    """Return the set of all offsets that are in any of the sets."""
    return RangeSet.of(span for ranges in sets for span in ranges.spans)


def _start(span: Span) -> int:
    return span.start


def _is_pair(pair: object) -> bool:
    return (
        isinstance(pair, Sequence)
        and len(pair) == 2
        and all(isinstance(bound, int) and not isinstance(bound, bool) for bound in pair)
    )
