# SPDX-License-Identifier: Apache-2.0
"""What the doctor says. Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from consumerd.telemetry.wording import join_shown

_SHOWN: Final = 10


class Severity(enum.StrEnum):
    """How bad a finding is; in order."""

    ERROR = "error"
    """Somebody must act: records wait, or would be missed or repeated."""
    WARNING = "warning"
    """It works, or will again by itself, and is not as it should be."""
    NOTICE = "notice"
    """Worth knowing; nothing is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was found: ``what`` it is, ``where``, and what to do (``advice``). ``check`` is its fixed name."""

    severity: Severity
    check: str
    where: str
    what: str
    advice: str

    @property
    def counts(self) -> bool:
        """Whether it makes the exit code 1."""
        return self.severity is not Severity.NOTICE


def sort_findings(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings, the worst first."""
    order = {severity: rank for rank, severity in enumerate(Severity)}
    return sorted(findings, key=lambda one: (order[one.severity], one.check, one.where))


def join_few(items: Iterable[object]) -> str:
    """Return the first few of many, as a finding shows them."""
    return join_shown(items, _SHOWN)
