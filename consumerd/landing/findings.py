# SPDX-License-Identifier: Apache-2.0
"""Findings of the command ``doctor`` and of audits, as values. Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final


class Severity(enum.StrEnum):
    """Severity of a finding, the gravest first: error, warning, notice.

    The values are the words that the command ``doctor`` prints.
    """

    CRITICAL = "error"
    """An operator must act.

    Records are missing, unreadable, not landed yet, or twice in one chain.
    """
    WARNING = "warning"
    """An operator should know it, but no record is lost or wrong."""
    NOTICE = "notice"
    """Expected behaviour: no action is needed."""


AUDIT_WORDS: Final[Mapping[Severity, str]] = {
    Severity.CRITICAL: "error",
    Severity.WARNING: "warning",
    Severity.NOTICE: "note",
}
"""Words for severities in an audit's page and JSON. Scripts read them, so they must not change."""

_FROM_AUDIT_WORD: Final = {word: severity for severity, word in AUDIT_WORDS.items()}


class FindingKind(enum.StrEnum):
    """Kind of an audit's finding, by the name that the report shows."""

    FOREIGN_NAME = "foreign name"
    CHAIN_MISSING = "chain missing"
    CHAIN_RECORD_MISSING = "chain record missing"
    CHAIN_RECORD_DAMAGED = "chain record damaged"
    CHAIN_UNSEALED = "chain unsealed"
    CHAIN_UNEXPLAINED = "chain unexplained"
    FILE_DAMAGED = "file damaged"
    FILE_BEHIND_SEAL = "file behind seal"
    FILE_MISSING = "file missing"
    """A landed file is missing: a chain has a file after it."""
    OVERLAP = "overlap"
    """Two files of one chain have offsets in common."""
    REPEATED = "repeated"
    """Two chains have records of the same offsets; those of the higher chain number count."""
    MISCOUNTED = "miscounted"
    """The records and gaps of a file do not add up to its range of offsets."""
    GAP = "gap"
    """A recorded gap whose offsets no other chain has; ``detail`` begins with its reason."""
    JUMP = "jump"
    """Offsets between two chains of one log that neither has."""
    LOG_TRUNCATED = "log truncated"
    """An unclean leader election has truncated the log.

    The offsets ``[start, end)`` were landed, and are other records in the log now.
    """
    COMMITTED_AHEAD = "committed ahead"
    COMMITTED_BEHIND = "committed behind"
    RECORD_MISSING = "record missing"
    """The data file has neither a record nor a gap for an offset of its range."""
    RECORD_TWICE = "record twice"
    RECORD_OUTSIDE = "record outside"
    DATA_CONTRADICTS = "data contradicts"
    """A file's metadata (count, first, last, times) do not match the records in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One finding of the command ``doctor`` or of an audit.

    Args:
        kind: Name of the kind of finding: a :class:`FindingKind` in an audit, the name of the check in the doctor.
        severity: Importance of the finding.
        detail: Description of the finding in one sentence.
        where: Place of the fault: a znode, a setting, or an absolute path. None if the other fields name it.
        advice: Suggested remedy; None in audits.
        topic: Topic of the landed data concerned; None in the doctor. The same holds for ``partition``, ``incarnation``
            (the topic's identity) and ``chain`` (its number).
        start: The first offset concerned; None if the finding is not about offsets.
        end: The offset after the last offset concerned.
    """

    kind: str
    severity: Severity
    detail: str
    where: str | None = None
    advice: str | None = None
    topic: str | None = None
    partition: str | None = None
    incarnation: str | None = None
    chain: int | None = None
    start: int | None = None
    end: int | None = None

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}"

    @property
    def needs_look(self) -> bool:
        """True for a warning or an error: an operator should look at the finding."""
        return self.severity is not Severity.NOTICE

    def encode(self) -> dict[str, object]:
        """Return the finding as an audit's JSON, without fields that are not set."""
        fields = {
            "kind": self.kind,
            "severity": AUDIT_WORDS[self.severity],
            "detail": self.detail,
            "topic": self.topic,
            "partition": self.partition,
            "incarnation": self.incarnation,
            "chain": self.chain,
            "path": self.where,
            "start": self.start,
            "end": self.end,
        }
        return {name: value for name, value in fields.items() if value is not None}

    @classmethod
    def parse(cls, fields: Mapping[str, Any]) -> Finding:
        """Parse what :meth:`encode` returns. Raises ValueError, TypeError."""
        known = dict(fields)
        try:
            kind, severity = FindingKind(known.pop("kind")), _FROM_AUDIT_WORD[known.pop("severity")]
        except KeyError as error:
            raise ValueError(f"a finding without {error}, or with an unknown severity") from error
        return cls(kind=kind, severity=severity, where=known.pop("path", None), **known)


def sort_findings(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings, each once, the gravest first."""
    order = list(Severity)
    return tuple(sorted(dict.fromkeys(findings), key=lambda one: order.index(one.severity)))
