"""Which file gives which record: what of a landing zone is to be taken over, each record once. Pure.

Files of one log are gone through from the highest chain down (``LandedChain.priority``). Each gives the offsets that nobody
before it has given and the table does not have, its recorded gaps left out: what one chain has not landed (consumed
elsewhere, retention, compaction before it was read) another one may have. Transaction markers are records of nobody's.

A file that has summed its gaps up does not tell which of their offsets it holds. It gives what it holds; whoever
comes after it finds those offsets *contested*, and takes of them what is not in the table and not in the file before.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from consumerd.sinks.chain import FileMetadata
from consumerd.spark.landing.coverage import NOTHING, Coverage, sum_up
from consumerd.spark.landing.damage import UNPLANNABLE, describe_damage
from consumerd.spark.landing.findings import Finding
from consumerd.spark.landing.holding import Holding
from consumerd.spark.landing.ranges import EMPTY, RangeSet, Span, union
from consumerd.spark.landing.values import ChainRef, LandedChain, LandedFile, Landing, LogId


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFile:
    """What is to be taken from one file.

    Rows whose ``offset`` is in ``ranges`` are to be taken as they are: nothing else in the plan or the table has them.
    Of rows whose offset is in ``contested``, those whose identity is neither in the table nor given by a file earlier in the
    plan. ``whole``: all of its rows are to be taken and none is contested, so that
    nothing needs to be filtered; ``metadata.count`` says how many they are.
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


@dataclass(frozen=True, kw_only=True)
class LandingPlan:
    """What is to be taken over, in order: by log, then from the highest chain down.

    ``passed`` are files that have nothing to give (empty, or all of it is in the table or in a higher chain), by chain and
    positions. ``damaged`` says what could not be planned: files and chains that a human must look at; a job that
    does not mind takes the rest, and finds them again in its next plan.
    """

    files: tuple[PlannedFile, ...]
    passed: Coverage
    damaged: tuple[Finding, ...] = ()

    @cached_property
    def id(self) -> str:
        """The plan's name: the same for the same ranges of the same files, whenever and wherever it is made."""
        content = [
            [planned.chain, planned.file.position, planned.ranges.encode(), planned.contested.encode()]
            for planned in self.files
        ]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]

    @cached_property
    def adds(self) -> Coverage:
        """What the table covers besides, once the plan is carried out and committed."""
        return sum_up([self.passed, *(planned.adds for planned in self.files)])

    @property
    def is_empty(self) -> bool:
        """Whether there is no row to take."""
        return not self.files

    def split(self, max_records: int) -> Iterator[LandingPlan]:
        """Yield plans of about ``max_records`` each (one file at least), to be committed one after the other, in this order."""
        part: list[PlannedFile] = []
        passed, count = self.passed, 0
        for planned in self.files:
            if part and count + planned.metadata.count > max_records:
                yield LandingPlan(files=tuple(part), passed=passed, damaged=self.damaged)
                part, passed, count = [], NOTHING, 0
            part.append(planned)
            count += planned.metadata.count
        yield LandingPlan(files=tuple(part), passed=passed, damaged=self.damaged)


def plan_landing(landing: Landing, covered: Coverage = NOTHING) -> LandingPlan:
    """Plan what of a zone is not in a table that covers ``covered`` yet.

    The metadata of every file that is not ``covered.taken`` must have been read (``footers.read_new``).
    """
    chains: defaultdict[LogId, list[LandedChain]] = defaultdict(list)
    for chain in landing.chains:
        chains[chain.log].append(chain)
    planned: list[PlannedFile] = []
    passed: defaultdict[ChainRef, list[Span]] = defaultdict(list)
    damaged = [finding for finding in landing.findings if finding.kind in UNPLANNABLE]
    for log in sorted(chains):
        given = _Given(covered.covered.get(log, EMPTY), covered.doubtful.get(log, EMPTY))
        for chain in sorted(chains[log], key=lambda chain: chain.priority):
            damaged += _plan_chain(chain, covered.taken.get(chain.ref, EMPTY), given, planned, passed[chain.ref])
    taken = {ref: RangeSet.of(spans) for ref, spans in passed.items() if spans}
    return LandingPlan(files=tuple(planned), passed=Coverage(taken=taken), damaged=tuple(damaged))


@dataclass(slots=True)
class _Given:
    """Offsets of one log that somebody gives already: for certain, or as far as its file holds them."""

    certain: RangeSet
    doubtful: RangeSet


def _plan_chain(
    chain: LandedChain, taken: RangeSet, given: _Given, planned: list[PlannedFile], passed: list[Span]
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
        holding = Holding.of(file.metadata)
        found = _plan_file(chain, file, file.metadata, holding, given)
        pending.append(holding)
        if found is not None:
            planned.append(found)
        elif file.metadata.next_offset > file.position:
            passed.append(Span(file.position, file.metadata.next_offset))
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
