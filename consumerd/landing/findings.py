# SPDX-License-Identifier: Apache-2.0
"""What is noteworthy about a landing zone, as values. Pure."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


class Severity(enum.StrEnum):
    """What a finding asks for; each includes those before it."""

    NOTE = "note"
    """Explained: nothing is to be done."""
    WARNING = "warning"
    """Nothing is lost or wrong by it, but somebody should know."""
    ERROR = "error"
    """Records are missing, twice in one chain, or cannot be read; or what is there contradicts itself."""


class FindingKind(enum.StrEnum):
    """What was found."""

    FOREIGN_NAME = "foreign name"
    CHAIN_MISSING = "chain missing"
    CHAIN_RECORD_MISSING = "chain record missing"
    CHAIN_RECORD_DAMAGED = "chain record damaged"
    CHAIN_UNSEALED = "chain unsealed"
    CHAIN_UNEXPLAINED = "chain unexplained"
    FILE_DAMAGED = "file damaged"
    FILE_BEHIND_SEAL = "file behind seal"
    FILE_MISSING = "file missing"
    """A chain's positions that no file has, though one behind them exists."""
    OVERLAP = "overlap"
    """Two files of one chain share positions."""
    REPEATED = "repeated"
    """Two chains hold records of the same offsets of one log; the higher one's count."""
    MISCOUNTED = "miscounted"
    """A file's records and gaps do not add up to its span."""
    GAP = "gap"
    """A recorded gap that no other chain fills; ``detail`` begins with its reason."""
    JUMP = "jump"
    """Offsets between two chains of one log that neither holds."""
    LOG_TRUNCATED = "log truncated"
    """An unclean election took the log's end away; the offsets ``[start, end)`` were landed and are other records in the log now."""
    COMMITTED_AHEAD = "committed ahead"
    COMMITTED_BEHIND = "committed behind"
    RECORD_MISSING = "record missing"
    """By the data: an offset of a file's span that neither a record nor a recorded gap has."""
    RECORD_TWICE = "record twice"
    RECORD_OUTSIDE = "record outside"
    DATA_CONTRADICTS = "data contradicts"
    """By the data: what a file says of itself (count, first, last, times) is not what it holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing found. ``start`` and ``end`` are offsets ``[start, end)``; ``path`` is absolute; ``detail`` is one sentence."""

    kind: FindingKind
    severity: Severity
    detail: str
    topic: str | None = None
    partition: str | None = None
    incarnation: str | None = None
    chain: int | None = None
    path: str | None = None
    start: int | None = None
    end: int | None = None

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}"

    def encode(self) -> dict[str, object]:
        """Return the finding as JSON, without what it does not tell of."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def parse(cls, fields: Mapping[str, Any]) -> Finding:
        """Read what :meth:`encode` has made. Raises ValueError, TypeError."""
        return cls(**{**fields, "kind": FindingKind(fields["kind"]), "severity": Severity(fields["severity"])})
