# SPDX-License-Identifier: Apache-2.0
"""Plans of the Spark job ``bronze``: the records to take from each landed file. Pure.

Each record is taken once. The files of one log are processed from the highest chain number down
(``LandedChain.priority``); a chain is a run of files without overlap. Each file gives the offsets that no earlier file
gives and that the table does not have, except its recorded gaps: offsets that one chain has not landed (consumed
elsewhere, retention, compaction before they were read) may be in another chain. Transaction markers are no records.

The metadata of a file with more than ``landing.chain.MAX_GAPS`` gaps tell how many offsets are missing, but not which.
All rows of such a file are taken. In a later file its offsets are *contested*: each row is compared with the table and
with the earlier file, and taken if neither has it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from consumerd.errors import ConfigError
from consumerd.landing.chain import FileMetadata
from consumerd.landing.coverage import NOTHING, Coverage, sum_up
from consumerd.landing.findings import Finding, FindingKind
from consumerd.landing.holding import FEW_PIECES, Holding
from consumerd.landing.ranges import EMPTY, RangeSet, Span, union
from consumerd.landing.values import ChainRef, LandedChain, LandedFile, Landing, LogId, describe_damage

_UNPLANNABLE: Final = frozenset({FindingKind.CHAIN_RECORD_MISSING, FindingKind.CHAIN_RECORD_DAMAGED})


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFile:
    """Rows that a table takes from one landed file.

    Attributes:
        ranges: offsets of which all rows are taken: neither the table nor another file of the plan has them.
        contested: offsets of which each row is compared: it is taken if neither the table nor an earlier file of the
            plan has its record.
        whole: True if all rows are taken and none is contested, so that no row has to be filtered out. Their number is
            then ``metadata.count``.
        adds: offsets that the table has in addition once it has taken the rows.
    """

    log: LogId
    chain: ChainRef
    file: LandedFile
    metadata: FileMetadata
    extension: str
    ranges: RangeSet
    contested: RangeSet
    whole: bool
    adds: Coverage


@dataclass(frozen=True, slots=True)
class PassedFile:
    """A landed file without rows for the table to take.

    The file is empty, or the table and earlier files of the plan have all its offsets. ``behind`` is the number of the
    plan's files that come before it. The file counts as taken only once those files are in the table: one of them may
    turn out to be damaged, and then rows of this file are needed.
    """

    chain: ChainRef
    span: Span
    behind: int


@dataclass(frozen=True, kw_only=True)
class LandingPlan:
    """Landed files whose rows a table takes, in the order of taking them.

    The files are sorted by log, then from the highest chain number down.

    Attributes:
        files: the files with rows to take.
        passed: the files without rows to take.
        damaged: findings about files and chains that could not be planned, because an operator must repair them. A job
            may take the other files; the next plan reports the damage again.
    """

    cluster: str
    files: tuple[PlannedFile, ...]
    passed: tuple[PassedFile, ...]
    damaged: tuple[Finding, ...] = ()

    @cached_property
    def adds(self) -> Coverage:
        """Offsets that the table gets by taking all files of the plan."""
        taken: defaultdict[ChainRef, list[Span]] = defaultdict(list)
        for passed in self.passed:
            taken[passed.chain].append(passed.span)
        of_passed = Coverage(cluster=self.cluster, taken={ref: RangeSet.of(spans) for ref, spans in taken.items()})
        return sum_up([of_passed, *(planned.adds for planned in self.files)])

    @property
    def is_empty(self) -> bool:
        """True if no row is to be taken."""
        return not self.files

    def split(self, max_records: int) -> Iterator[LandingPlan]:
        """Yield parts of the plan of about ``max_records`` rows, to be committed in this order.

        Each part has at least one file, so a larger file is a part of its own.
        """
        begin = count = 0
        for number, planned in enumerate(self.files):
            if number > begin and count + planned.metadata.count > max_records:
                yield self._cut(begin, number)
                begin, count = number, 0
            count += planned.metadata.count
        yield self._cut(begin, len(self.files))

    def _cut(self, begin: int, end: int) -> LandingPlan:
        """Return the part with files ``begin`` to ``end``, and those without rows between them."""
        passed = [one for one in self.passed if (begin < one.behind or begin == 0) and one.behind <= end]
        return replace(
            self,
            files=self.files[begin:end],
            passed=tuple(replace(one, behind=one.behind - begin) for one in passed),
        )


def plan_landing(landing: Landing, covered: Coverage = NOTHING, *, most_pieces: int = FEW_PIECES) -> LandingPlan:
    """Return the plan of the landed records that a table lacks.

    Before the call, ``footers.read_new`` must have read the metadata of every file that is not in ``covered.taken``.
    Raises ConfigError if the table is of another cluster.

    Args:
        covered: Offsets that the table has.
        most_pieces: Largest number of ranges of offsets that are kept in memory for one file. A file with more ranges
            counts as one range of which it has some offsets; rows of other chains in that range are compared with the
            table one by one.
    """
    if covered.cluster not in (None, landing.cluster):
        raise ConfigError(
            f"the table holds records of cluster {covered.cluster}, and {landing.roots[0].path} is of "
            f"{landing.cluster}: the same offsets are "
            "other records there; give each cluster tables of its own (pipeline.path)"
        )
    chains: defaultdict[LogId, list[LandedChain]] = defaultdict(list)
    for chain in landing.chains:
        chains[chain.log].append(chain)
    planned: list[PlannedFile] = []
    passed: list[PassedFile] = []
    damaged = [finding for finding in landing.findings if finding.kind in _UNPLANNABLE]
    for log in sorted(chains):
        given = _Given(covered.covered.get(log, EMPTY), covered.doubtful.get(log, EMPTY))
        for chain in sorted(chains[log], key=lambda chain: chain.priority):
            taken = covered.taken.get(chain.ref, EMPTY)
            damaged += _plan_chain(chain, taken, given, planned, passed, most_pieces)
    return LandingPlan(cluster=landing.cluster, files=tuple(planned), passed=tuple(passed), damaged=tuple(damaged))


@dataclass(slots=True)
class _Given:
    """Offsets of one log for which earlier files of the plan give the records."""

    certain: RangeSet
    doubtful: RangeSet


def _plan_chain(
    chain: LandedChain,
    taken: RangeSet,
    given: _Given,
    planned: list[PlannedFile],
    passed: list[PassedFile],
    most_pieces: int,
) -> list[Finding]:
    """Plan the files of one chain.

    They rarely overlap, so the offsets that they give are added up once, at the end.
    """
    damaged: list[Finding] = []
    pending: list[Holding] = []
    reached = 0
    for file in chain.files:
        if file.position in taken:
            continue
        if file.metadata is None:
            damaged.append(describe_damage(chain, file))
            continue
        if file.position < reached:
            _settle(given, pending)
        reached = max(reached, file.metadata.next_offset)
        holding = Holding.of(file.metadata).sum_up(most_pieces)
        found = _plan_file(chain, file, file.metadata, holding, given)
        pending.append(holding)
        if found is not None:
            planned.append(found)
        elif file.metadata.next_offset > file.position:
            passed.append(PassedFile(chain.ref, Span(file.position, file.metadata.next_offset), behind=len(planned)))
    _settle(given, pending)
    return damaged


def _settle(given: _Given, pending: list[Holding]) -> None:
    given.certain = union([given.certain, *(holding.certain for holding in pending)])
    given.doubtful = union([given.doubtful, *(holding.doubtful for holding in pending)]) - given.certain
    pending.clear()


def _plan_file(
    chain: LandedChain, file: LandedFile, metadata: FileMetadata, holding: Holding, given: _Given
) -> PlannedFile | None:
    """Return the plan of one file; None if the table has all its rows."""
    span = Span(file.position, metadata.next_offset)
    free = RangeSet.of([span]) - given.certain
    contested = free & given.doubtful & (holding.certain | holding.doubtful)
    ranges = free - given.doubtful
    if not (contested or ranges & (holding.certain | holding.doubtful)):
        return None
    covered, doubtful = holding.certain & free, holding.doubtful & free
    return PlannedFile(
        log=chain.log,
        chain=chain.ref,
        file=file,
        metadata=metadata,
        extension=chain.record.extension,
        ranges=ranges,
        contested=contested,
        whole=ranges.spans == (span,),
        adds=Coverage(
            covered={chain.log: covered} if covered else {},
            doubtful={chain.log: doubtful} if doubtful else {},
            taken={chain.ref: RangeSet.of([span])},
        ),
    )
