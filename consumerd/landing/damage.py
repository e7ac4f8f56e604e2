# SPDX-License-Identifier: Apache-2.0
"""What of a landing zone cannot be planned with, as findings. Pure."""

from __future__ import annotations

from typing import Final

from consumerd.errors import LocalProtocolError
from consumerd.landing.findings import Finding, FindingKind, Severity
from consumerd.landing.values import LandedChain, LandedFile

UNPLANNABLE: Final = frozenset({FindingKind.CHAIN_RECORD_MISSING, FindingKind.CHAIN_RECORD_DAMAGED})


def describe_damage(chain: LandedChain, file: LandedFile) -> Finding:
    """Return what is wrong with a file that has no metadata. Raises LocalProtocolError if nobody has tried to read them."""
    if file.damage is None:
        raise LocalProtocolError(f"{file.path}: its metadata were not read")
    return Finding(
        kind=FindingKind.FILE_DAMAGED,
        severity=Severity.ERROR,
        detail=file.damage,
        topic=chain.partition.topic,
        partition=str(chain.partition.partition),
        incarnation=str(chain.record.incarnation),
        chain=chain.number,
        path=file.path,
        start=file.position,
        end=file.name_end,
    )
