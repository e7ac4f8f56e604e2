# SPDX-License-Identifier: Apache-2.0
"""Text and JSON forms of problems found by ``consumerd doctor``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from consumerd.landing.findings import Finding
from consumerd.telemetry.wording import join_shown

_SHOWN: Final = 10


def join_few(items: Iterable[object]) -> str:
    """Join the first ten items with commas.

    If there are more, the text ends with the number of those left out.
    """
    return join_shown(items, _SHOWN)


def encode_finding(finding: Finding) -> dict[str, object]:
    """Return a problem found by ``consumerd doctor`` as the object that its JSON output contains.

    Scripts depend on the keys, so they must not change.
    """
    return {
        "severity": finding.severity,
        "check": finding.kind,
        "where": finding.where,
        "what": finding.detail,
        "advice": finding.advice,
    }
