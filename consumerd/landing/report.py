# SPDX-License-Identifier: Apache-2.0
"""Result of an audit, log by log, as values and as JSON. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from consumerd.landing.findings import Finding, Severity
from consumerd.landing.ranges import EMPTY, RangeSet
from consumerd.landing.values import LandedChain, LogId
from consumerd.model import GapReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """Time and size of one landed file.

    Attributes:
        landed_ms: when the file was published, in ms since the epoch.
        records: number of records.
        max_timestamp: latest timestamp of a record in ms since the epoch, None without one.
    """

    landed_ms: int
    records: int
    max_timestamp: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogReport:
    """Audit of one log: a partition of one incarnation of its topic.

    Every offset from ``start`` to ``end`` (not included) is in exactly one of ``landed``, ``gaps``, ``missing`` and
    ``jumped``. A chain is a run of landed files without overlap.

    Args:
        start: Offset at which the lowest chain begins.
        end: Offset at which the highest chain ends.
        landed: Offsets in files, without their gaps. If only names were read, gaps are not known.
        gaps: Offsets that no chain has landed, by reason; transaction markers and compaction among them.
        missing: Offsets of files that are not there or cannot be read.
        jumped: Offsets between the end of one chain and the beginning of the next.
        repeated: Offsets that more than one chain has landed.
        records: Number of rows, where rows of repeated offsets count several times; None if only names were read.
        files: Number of data files.
        size: Size of all files, in bytes; None if it was not read.
        min_timestamp: Earliest timestamp of a record, in ms since the epoch; None if unknown. ``max_timestamp`` is the
            latest.
        committed: The group's position if it belongs to this log; else None.
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
    chains: tuple[LandedChain, ...] = ()
    arrivals: tuple[Arrival, ...] = ()

    def encode(self) -> dict[str, object]:
        """Return the report as JSON, without the arrivals of single files."""
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
            "chains": [_encode_chain(chain) for chain in self.chains],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """Audit of landed files: all logs by topic, partition and incarnation, and findings.

    Attributes:
        depth: the part of the files that was read: ``names``, ``footers`` or ``data``.
        cluster: id of the cluster.
        groups: the groups whose sinks have landed the files.
        roots: the paths of these sinks.
        findings: the gravest first.
        positions_of: the group whose stored positions were compared; None if none were.
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
        """Findings upon which an operator must act."""
        return tuple(finding for finding in self.findings if finding.severity is Severity.CRITICAL)

    @property
    def notes(self) -> tuple[Finding, ...]:
        """Findings that need no action: warnings and notices."""
        return tuple(finding for finding in self.findings if finding.severity is not Severity.CRITICAL)

    def count(self) -> dict[str, int]:
        """Return the number of findings of each kind, by the kind's name."""
        return dict(sorted(Counter(str(finding.kind) for finding in self.findings).items()))

    def encode(self) -> dict[str, object]:
        """Return the whole report as JSON."""
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


def _encode_chain(chain: LandedChain) -> dict[str, object]:
    return {
        "root": str(chain.root.path),
        "number": chain.number,
        "origin": chain.record.origin,
        "end": chain.end,
        "reason": chain.record.reason,
        "request_id": chain.record.request_id,
        "sealed": chain.sealed,
        "extension": chain.record.extension,
        "files": len(chain.files),
    }
