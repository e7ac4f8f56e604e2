# SPDX-License-Identifier: Apache-2.0
"""Plans of bronze: which records to take from which landed file, each record once. Pure.

Files of one log are gone through from the highest chain down (``LandedChain.priority``). Each gives the offsets that
nobody before it has given and the table does not have, its recorded gaps left out: what one chain has not landed
(consumed elsewhere, retention, compaction before it was read) another one may have. Transaction markers are records of
nobody's.

A file that has summed its gaps up does not tell which of their offsets it holds, and of one that has very many nobody
remembers it. It gives what it holds; whoever comes after it finds those offsets *contested*, and takes of them what is
not in the table and not in the file before.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from consumerd.errors import ConfigError
from consumerd.landing.chain import FileMetadata
from consumerd.landing.coverage import NOTHING, Coverage, sum_up
from consumerd.landing.damage import UNPLANNABLE, describe_damage
from consumerd.landing.findings import Finding
from consumerd.landing.holding import FEW_PIECES, Holding
from consumerd.landing.ranges import EMPTY, RangeSet, Span, union
from consumerd.landing.values import ChainRef, LandedChain, LandedFile, Landing, LogId


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFile:
    """The rows to take from one file.

    Attributes:
        ranges: offsets of which all rows are taken; neither the plan nor the table has them elsewhere.
        contested: offsets of which a row is taken unless the table, or an earlier file of the plan, has its identity.
        whole: all rows are taken and none is contested, so nothing is filtered; ``metadata.count`` is their number.
        adds: coverage that the file's rows add.
    """

    log: LogId
    chain: ChainRef
    number: int
    file: LandedFile
    metadata: FileMetadata
    extension: str
    ranges: RangeSet
    contested: RangeSet
    whole: bool
    adds: Coverage

    @property
    def path(self) -> str:
        """The file's path."""
        return self.file.path


@dataclass(frozen=True, slots=True)
class PassedFile:
    """A file without rows to take: empty, or known to the table or to earlier files of the plan.

    ``behind`` is how many files of the plan come before it: once these are in the table it is done with, and no sooner,
    since one of them may turn out to be damaged.
    """

    chain: ChainRef
    span: Span
    behind: int


@dataclass(frozen=True, kw_only=True)
class LandingPlan:
    """Files to take over, ordered by log, then from the highest chain down.

    ``damaged`` says what could not be planned: files and chains that a human must look at; a job that
    does not mind takes the rest, and finds them again in its next plan.
    """

    cluster: str
    files: tuple[PlannedFile, ...]
    passed: tuple[PassedFile, ...]
    damaged: tuple[Finding, ...] = ()

    @cached_property
    def id(self) -> str:
        """Name of the plan: a digest of the ranges and files."""
        content = [
            [planned.chain, planned.file.position, planned.ranges.encode(), planned.contested.encode()]
            for planned in self.files
        ]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]

    @cached_property
    def adds(self) -> Coverage:
        """Coverage that the plan adds to the table."""
        taken: defaultdict[ChainRef, list[Span]] = defaultdict(list)
        for passed in self.passed:
            taken[passed.chain].append(passed.span)
        of_passed = Coverage(cluster=self.cluster, taken={ref: RangeSet.of(spans) for ref, spans in taken.items()})
        return sum_up([of_passed, *(planned.adds for planned in self.files)])

    @property
    def is_empty(self) -> bool:
        """True if there is no row to take."""
        return not self.files

    def split(self, max_records: int) -> Iterator[LandingPlan]:
        """Yield parts of about ``max_records`` each, at least one file, to be committed in this order."""
        begin = count = 0
        for number, planned in enumerate(self.files):
            if number > begin and count + planned.metadata.count > max_records:
                yield self._cut(begin, number)
                begin, count = number, 0
            count += planned.metadata.count
        yield self._cut(begin, len(self.files))

    def _cut(self, begin: int, end: int) -> LandingPlan:
        """Return the part with files ``begin`` to ``end``, and the passed files that belong to it."""
        passed = [one for one in self.passed if (begin < one.behind or begin == 0) and one.behind <= end]
        return replace(
            self,
            files=self.files[begin:end],
            passed=tuple(replace(one, behind=one.behind - begin) for one in passed),
        )


def plan_landing(landing: Landing, covered: Coverage = NOTHING, *, most_pieces: int = FEW_PIECES) -> LandingPlan:
    """Plan what of a zone is not in a table that covers ``covered`` yet.

    Of a file up to ``most_pieces`` ranges are remembered one by one; where it has more, other chains' rows of its
    offsets are contested.

    The metadata of every file that is not ``covered.taken`` must have been read (``footers.read_new``). Raises
    ConfigError where the table is of another cluster.
    """
    if covered.cluster not in (None, landing.cluster):
        raise ConfigError(
            f"the table holds records of cluster {covered.cluster}, and {landing.roots[0].path} is of {landing.cluster}: the same offsets are "
            "other records there; give each cluster tables of its own (pipeline.path)"
        )
    chains: defaultdict[LogId, list[LandedChain]] = defaultdict(list)
    for chain in landing.chains:
        chains[chain.log].append(chain)
    planned: list[PlannedFile] = []
    passed: list[PassedFile] = []
    damaged = [finding for finding in landing.findings if finding.kind in UNPLANNABLE]
    for log in sorted(chains):
        given = _Given(covered.covered.get(log, EMPTY), covered.doubtful.get(log, EMPTY))
        for chain in sorted(chains[log], key=lambda chain: chain.priority):
            taken = covered.taken.get(chain.ref, EMPTY)
            damaged += _plan_chain(chain, taken, given, planned, passed, most_pieces)
    return LandingPlan(cluster=landing.cluster, files=tuple(planned), passed=tuple(passed), damaged=tuple(damaged))


@dataclass(slots=True)
class _Given:
    """Offsets of one log that somebody gives already: for certain, or as far as its file holds them."""

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
    """Plan one chain's files, which as a rule do not overlap, so that what they give is added up once, at the end."""
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
    """Plan one file; None if it has nothing to give."""
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
        number=chain.number,
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
