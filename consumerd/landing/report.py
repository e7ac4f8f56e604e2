# SPDX-License-Identifier: Apache-2.0
"""What an audit has found out about a landing zone, log by log, as values and as JSON. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from consumerd.landing.findings import Finding, Severity
from consumerd.landing.ranges import EMPTY, RangeSet
from consumerd.landing.values import LogId
from consumerd.model import GapReason


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainReport:
    """One chain. ``end`` is None where only its name could tell and there is none behind it."""

    root: str
    number: int
    origin: int
    end: int | None
    reason: str
    request_id: str | None
    sealed: bool
    extension: str
    files: int

    def encode(self) -> dict[str, object]:
        """Return it as JSON."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A file's landing: when (ms since 1970), how many records and bytes, and the times of its records."""

    landed_ms: int
    records: int
    size: int
    min_timestamp: int | None
    max_timestamp: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogReport:
    """One log: a partition of one making of its topic.

    ``start`` and ``end``: from the lowest chain's origin to the highest chain's end. In between every offset is in one of
    ``landed`` (by names alone: in a file; else: in a file and in no gap of it), ``gaps`` (which no chain fills; transaction markers and compaction among them),
    ``missing`` (of a file that is not there or cannot be read) or ``jumped`` (between chains). ``repeated`` is what more than one chain has landed.
    ``records`` counts files' rows, repeated ones as often as they are there; None by names alone. ``committed`` is the group's position where it is in this log.
    """

    log: LogId
    start: int
    end: int
    landed: RangeSet
    gaps: Mapping[GapReason, RangeSet] = field(default_factory=dict)
    missing: RangeSet = EMPTY
    jumped: RangeSet = EMPTY
    repeated: RangeSet = EMPTY
    records: int | None = None
    files: int = 0
    size: int | None = None
    min_timestamp: int | None = None
    max_timestamp: int | None = None
    committed: int | None = None
    chains: tuple[ChainReport, ...] = ()
    arrivals: tuple[Arrival, ...] = ()

    def encode(self) -> dict[str, object]:
        """Return it as JSON; without the single files' arrivals."""
        return {
            "topic": self.log.topic,
            "partition": str(self.log.partition),
            "incarnation": str(self.log.incarnation),
            "start": self.start,
            "end": self.end,
            "records": self.records,
            "files": self.files,
            "bytes": self.size,
            "min_timestamp": self.min_timestamp,
            "max_timestamp": self.max_timestamp,
            "committed": self.committed,
            "landed": self.landed.encode(),
            "gaps": {str(reason): ranges.encode() for reason, ranges in sorted(self.gaps.items())},
            "missing": self.missing.encode(),
            "jumped": self.jumped.encode(),
            "repeated": self.repeated.encode(),
            "chains": [chain.encode() for chain in self.chains],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """A landing zone: its logs, by topic, partition and incarnation, and what is noteworthy, the gravest first.

    ``depth`` is ``names``, ``footers`` or ``data``: what was looked at.
    """

    depth: str
    cluster: str
    groups: tuple[str, ...]
    roots: tuple[str, ...]
    logs: tuple[LogReport, ...]
    findings: tuple[Finding, ...]
    positions_of: str | None = None

    @property
    def errors(self) -> tuple[Finding, ...]:
        """What somebody must act upon."""
        return tuple(finding for finding in self.findings if finding.severity is Severity.ERROR)

    @property
    def notes(self) -> tuple[Finding, ...]:
        """Everything else."""
        return tuple(finding for finding in self.findings if finding.severity is not Severity.ERROR)

    def count(self) -> dict[str, int]:
        """Return how many findings of each kind there are."""
        return dict(sorted(Counter(str(finding.kind) for finding in self.findings).items()))

    def encode(self) -> dict[str, object]:
        """Return everything as JSON."""
        return {
            "depth": self.depth,
            "cluster": self.cluster,
            "groups": list(self.groups),
            "roots": list(self.roots),
            "positions_of": self.positions_of,
            "counts": self.count(),
            "findings": [finding.encode() for finding in self.findings],
            "logs": [log.encode() for log in self.logs],
        }


def sort_findings(findings: list[Finding]) -> tuple[Finding, ...]:
    """Return findings, each once, the gravest first."""
    order = [Severity.ERROR, Severity.WARNING, Severity.NOTE]
    return tuple(sorted(dict.fromkeys(findings), key=lambda one: order.index(one.severity)))
