# SPDX-License-Identifier: Apache-2.0
"""Checks of a partition's chains of landed files, each alone, and their succession. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Final

from consumerd.landing.chain import FileMetadata
from consumerd.landing.findings import Finding, FindingKind, Severity
from consumerd.landing.values import LandedChain, LandedFile, describe_damage

_MOVED: Final = "moved away, or lost"


def check_chain(chain: LandedChain) -> Iterator[Finding]:
    """Yield findings about the files of one chain of landed files.

    Found are files that are missing, damaged, overlap, or come after a seal (the file that ends a chain), and files
    whose metadata contradict each other.
    """
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
            for problem in _find_contradictions(chain, metadata):
                yield _find(
                    FindingKind.MISCOUNTED,
                    chain,
                    f"{file.path}: its metadata {problem}",
                    file=file,
                    start=metadata.position,
                    end=metadata.next_offset,
                )
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
        severity=Severity.WARNING if first else Severity.CRITICAL,
        start=start,
        end=end,
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
    if chain.partition.partition.broker is None:  # in 0.7 offsets are bytes, not numbers of records
        passed = sum(gap.offsets for gap in metadata.gaps)
        if metadata.count + passed != end - position:
            span = end - position
            yield f"count {metadata.count} records and {passed} offsets passed over, of the {span} offsets of its span"


def check_succession(chains: Sequence[LandedChain]) -> Iterator[Finding]:
    """Yield findings about the succession of one partition's chains in one landing folder.

    Each chain must begin after the chain before it was sealed, that is, ended for good. The chains are sorted by
    number.
    """
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
                f"({chain.record.reason}), and nothing explains that: {before.folder} ends at {before.end} of "
                f"incarnation "
                f"{before.record.incarnation}",
                start=chain.record.origin,
            )


def _is_over(chain: LandedChain) -> bool | None:
    """Return True if a chain has its final file; None without the last file's metadata."""
    if not chain.files:
        return False
    return None if chain.files[-1].metadata is None else chain.sealed


def _is_explained(before: LandedChain, chain: LandedChain) -> bool:
    former, latter = before.record, chain.record
    if latter.incarnation != former.incarnation:
        # it need not be the next incarnation: a replica with a path of its own has not seen those that others landed
        if latter.incarnation.is_same_topic(former.incarnation):
            return latter.incarnation.truncation > former.incarnation.truncation
        return latter.incarnation.is_later_topic(former.incarnation) is not False  # topic ids do not tell
    assert before.end is not None
    if latter.continues(former):
        return latter.origin == before.end
    return latter.request_id is not None


def _find(
    kind: FindingKind,
    chain: LandedChain,
    detail: str,
    *,
    severity: Severity = Severity.CRITICAL,
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
        where=None if file is None else file.path,
        start=start,
        end=end,
    )
