# SPDX-License-Identifier: Apache-2.0
"""What is wrong with single chains, and with how chains of a root follow each other. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Final

from consumerd.landing.chain import FileMetadata
from consumerd.landing.damage import describe_damage
from consumerd.landing.findings import Finding, FindingKind, Severity
from consumerd.landing.values import LandedChain, LandedFile

_MOVED: Final = "moved away, or lost"


def check_chain(chain: LandedChain) -> Iterator[Finding]:
    """Find what is wrong with a chain: files missing, damaged, overlapping, behind a seal, or at odds with themselves."""
    end: int | None = chain.record.origin
    sealed_by: LandedFile | None = None
    for place, file in enumerate(chain.files):
        if file.damage is not None:
            yield describe_damage(chain, file)
        if sealed_by is not None:
            yield _find(
                FindingKind.FILE_BEHIND_SEAL,
                chain,
                f"{file.path} is in a chain that {sealed_by.path} has ended",
                file=file,
                start=file.position,
            )
        if end is not None and file.position > end:
            yield _missing(chain, end, file.position, first=place == 0)
        elif end is not None and file.position < end:
            yield _find(
                FindingKind.OVERLAP,
                chain,
                f"{file.path} begins at {file.position}, and the file before it ends at {end}",
                file=file,
                start=file.position,
                end=end,
            )
        metadata = file.metadata
        if metadata is not None:
            sealed_by = file if metadata.sealed else sealed_by
            yield from _check_metadata(chain, file, metadata)
        end = None if file.end is None else max(end or 0, file.end)


def _missing(chain: LandedChain, start: int, end: int, *, first: bool) -> Finding:
    what = (
        f"{chain.folder} begins at {start}, its first file at {end}" if first else f"{chain.folder} goes on at {start}"
    )
    tail = (
        f": older files were {_MOVED}"
        if first
        else f", and no file is there: the next one is that of {end}; it was {_MOVED}"
    )
    return _find(
        FindingKind.FILE_MISSING,
        chain,
        what + tail,
        severity=Severity.WARNING if first else Severity.ERROR,
        start=start,
        end=end,
    )


def _check_metadata(chain: LandedChain, file: LandedFile, metadata: FileMetadata) -> Iterator[Finding]:
    for problem in _find_contradictions(chain, metadata):
        yield _find(
            FindingKind.MISCOUNTED,
            chain,
            f"{file.path}: its metadata {problem}",
            file=file,
            start=metadata.position,
            end=metadata.next_offset,
        )


def _find_contradictions(chain: LandedChain, metadata: FileMetadata) -> Iterator[str]:
    position, end = metadata.position, metadata.next_offset
    for gap in metadata.gaps:
        if not position <= gap.start < gap.end <= end:
            yield f"tell of a gap [{gap.start}, {gap.end}), which is not within [{position}, {end})"
    first, last = metadata.first_offset, metadata.last_offset
    if (first is None) != (metadata.count == 0) or (last is None) != (metadata.count == 0):
        yield f"count {metadata.count} records, from {first} to {last}"
    elif first is not None and last is not None and not position <= first <= last < end:
        yield f"have records from {first} to {last}, which is not within [{position}, {end})"
    if chain.partition.partition.broker is None:  # else offsets are bytes, and count nothing
        passed = sum(gap.offsets for gap in metadata.gaps)
        if metadata.count + passed != end - position:
            yield f"count {metadata.count} records and {passed} offsets passed over, of the {end - position} offsets of its span"


def check_succession(chains: Sequence[LandedChain]) -> Iterator[Finding]:
    """Find what is wrong with how the chains of one partition in one root follow each other, given by number."""
    for number in range(1, chains[-1].number):
        if all(chain.number != number for chain in chains):
            yield _find(
                FindingKind.CHAIN_MISSING,
                chains[0],
                f"{chains[0].partition}: chain={number} is not there, though chain={chains[-1].number} is: {_MOVED}",
                severity=Severity.WARNING,
                number=number,
            )
    for before, chain in itertools.pairwise(chains):
        if _is_over(before) is False:
            yield _find(
                FindingKind.CHAIN_UNSEALED,
                before,
                f"{before.folder} has no seal at {before.end}, though chain={chain.number} has begun",
                start=before.end,
            )
        if chain.number == before.number + 1 and before.end is not None and not _is_explained(before, chain):
            yield _find(
                FindingKind.CHAIN_UNEXPLAINED,
                chain,
                f"{chain.folder} begins at {chain.record.origin} of incarnation {chain.record.incarnation} "
                f"({chain.record.reason}), and nothing explains that: {before.folder} ends at {before.end} of incarnation "
                f"{before.record.incarnation}",
                start=chain.record.origin,
            )


def _is_over(chain: LandedChain) -> bool | None:
    """Tell whether a chain is sealed; None where its last file does not tell."""
    if not chain.files:
        return False
    return None if chain.files[-1].metadata is None else chain.sealed


def _is_explained(before: LandedChain, chain: LandedChain) -> bool:
    former, latter = before.record, chain.record
    if latter.incarnation != former.incarnation:
        # any later one will do: a replica with a path of its own has seen none of what others landed in between
        return latter.incarnation > former.incarnation
    assert before.end is not None
    if latter.continues(former):
        return latter.origin == before.end
    return latter.request_id is not None


def _find(
    kind: FindingKind,
    chain: LandedChain,
    detail: str,
    *,
    severity: Severity = Severity.ERROR,
    file: LandedFile | None = None,
    start: int | None = None,
    end: int | None = None,
    number: int | None = None,
) -> Finding:
    return Finding(
        kind=kind,
        severity=severity,
        detail=detail,
        topic=chain.partition.topic,
        partition=str(chain.partition.partition),
        incarnation=str(chain.record.incarnation),
        chain=chain.number if number is None else number,
        path=None if file is None else file.path,
        start=start,
        end=end,
    )
