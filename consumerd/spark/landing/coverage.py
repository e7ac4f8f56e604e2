"""What a table has taken over from a landing zone. Pure, and small: ranges, not lists of files.

A table keeps, with each commit, the :class:`Coverage` that the commit adds; what it has taken so far is their sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from consumerd.spark.landing.ranges import EMPTY, RangeSet, union
from consumerd.spark.landing.values import ChainRef, LogId

K = TypeVar("K")


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """What is in a table, or what a commit adds to it.

    ``covered``: offsets of each log whose record, if there is one, is in the table; nobody may add it again.
    ``doubtful``: offsets of which some are in the table and some are not, and only the table tells which: those of a
    file that has summed its gaps up (beyond ``sinks.chain.MAX_GAPS``).
    ``taken``: chain positions of the files that have been dealt with, whether a record came of them or not; their names
    suffice to pass over them.
    """

    covered: Mapping[LogId, RangeSet] = field(default_factory=dict)
    doubtful: Mapping[LogId, RangeSet] = field(default_factory=dict)
    taken: Mapping[ChainRef, RangeSet] = field(default_factory=dict)

    def __or__(self, other: Coverage) -> Coverage:
        return sum_up([self, other])

    def encode(self) -> dict[str, object]:
        """Return the coverage as JSON."""
        return {
            "covered": {str(log): ranges.encode() for log, ranges in self.covered.items()},
            "doubtful": {str(log): ranges.encode() for log, ranges in self.doubtful.items()},
            "taken": {str(chain): ranges.encode() for chain, ranges in self.taken.items()},
        }

    @classmethod
    def parse(cls, value: object) -> Coverage:
        """Read what :meth:`encode` has made. Raises ValueError."""
        if not isinstance(value, Mapping):
            raise ValueError(f"coverage {value!r}, expected an object")  # noqa: TRY004 - what is wrong is the JSON, not the caller's code
        return cls(
            covered=_parse(value, "covered", LogId.parse),
            doubtful=_parse(value, "doubtful", LogId.parse),
            taken=_parse(value, "taken", ChainRef),
        )


NOTHING: Final = Coverage()


def sum_up(parts: Iterable[Coverage]) -> Coverage:
    """Return all that is covered by any of ``parts``."""
    known = list(parts)
    covered = _merge(part.covered for part in known)
    doubtful = _merge(part.doubtful for part in known)
    return Coverage(
        covered=covered,
        doubtful={log: left for log, ranges in doubtful.items() if (left := ranges - covered.get(log, EMPTY))},
        taken=_merge(part.taken for part in known),
    )


def _merge(parts: Iterable[Mapping[K, RangeSet]]) -> dict[K, RangeSet]:
    gathered: dict[K, list[RangeSet]] = {}
    for part in parts:
        for key, ranges in part.items():
            gathered.setdefault(key, []).append(ranges)
    return {key: union(sets) for key, sets in gathered.items()}


def _parse(value: Mapping[str, object], name: str, key: Callable[[str], K]) -> dict[K, RangeSet]:
    entries = value.get(name, {})
    if not isinstance(entries, Mapping):
        raise ValueError(f"{name} is {entries!r}, expected an object")  # noqa: TRY004 - what is wrong is the JSON, not the caller's code
    return {key(text): RangeSet.parse(ranges) for text, ranges in entries.items()}
