# SPDX-License-Identifier: Apache-2.0
"""Coverage: the landed offsets that a table has taken over, as ranges. Pure.

Each commit of a table has the :class:`Coverage` that it adds. Their sum is the coverage of the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from consumerd.landing.ranges import EMPTY, RangeSet, union
from consumerd.landing.values import ChainRef, LogId

K = TypeVar("K")


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Offsets of logs whose records a table has, or gets by one commit.

    A log is a partition of one incarnation of its topic. A chain is a run of landed files without overlap.

    Attributes:
        cluster: id of the cluster; None if nothing is covered, or in commits of earlier releases.
        covered: offsets by log. The table has the record of each of these offsets, if there is one, and takes none of
            them again.
        doubtful: offsets by log for which the table's rows must be read to know if it has the record. They come from
            files with more gaps than ``landing.chain.MAX_GAPS``, which record only a sum.
        taken: offsets of files that the table has taken completely, by chain. A file at such an offset is skipped by
            its name.
    """

    cluster: str | None = None
    covered: Mapping[LogId, RangeSet] = field(default_factory=dict)
    doubtful: Mapping[LogId, RangeSet] = field(default_factory=dict)
    taken: Mapping[ChainRef, RangeSet] = field(default_factory=dict)

    def __or__(self, other: Coverage) -> Coverage:
        return sum_up([self, other])

    def encode(self) -> dict[str, object]:
        """Return the coverage as JSON."""
        cluster: dict[str, object] = {} if self.cluster is None else {"cluster": self.cluster}
        return cluster | {
            "covered": {str(log): ranges.encode() for log, ranges in self.covered.items()},
            "doubtful": {str(log): ranges.encode() for log, ranges in self.doubtful.items()},
            "taken": {str(chain): ranges.encode() for chain, ranges in self.taken.items()},
        }

    @classmethod
    def parse(cls, value: object) -> Coverage:
        """Parse the JSON that :meth:`encode` returns. Raises ValueError."""
        if not isinstance(value, Mapping):
            raise ValueError(f"coverage {value!r}, expected an object")  # noqa: TRY004 - what is wrong is the JSON, not the caller's code
        cluster = value.get("cluster")
        if not isinstance(cluster, str | None):
            raise ValueError(f"cluster is {cluster!r}, expected a string")  # noqa: TRY004 - as above
        return cls(
            cluster=cluster,
            covered=_parse(value, "covered", LogId.parse),
            doubtful=_parse(value, "doubtful", LogId.parse),
            taken=_parse(value, "taken", ChainRef),
        )


NOTHING: Final = Coverage()


def sum_up(parts: Iterable[Coverage]) -> Coverage:
    """Return the union of these coverages. Raises ValueError if they are of several clusters."""
    known = list(parts)
    clusters = sorted({part.cluster for part in known if part.cluster is not None})
    if len(clusters) > 1:
        raise ValueError(f"covers logs of several clusters, {' and '.join(clusters)}")
    covered = _merge(part.covered for part in known)
    doubtful = _merge(part.doubtful for part in known)
    return Coverage(
        cluster=next(iter(clusters), None),
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
