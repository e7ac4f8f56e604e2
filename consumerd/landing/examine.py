# SPDX-License-Identifier: Apache-2.0
"""Audit of landed files: accounts for every offset of every log. Pure.

If only names were read, every offset of a file counts as landed. A file that is missing from the middle of a chain then
looks like a longer predecessor; footers tell the two apart.

Committed positions must have been read *before* the names of files. Every offset has landed before it is committed. So
if a position lies beyond the end of all chains, the offsets in between are in no file. If positions were read after the
names, the files with these offsets could be newer than the list of names.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from consumerd.landing.chain_checks import check_chain, check_succession
from consumerd.landing.findings import Finding, FindingKind, Severity, sort_findings
from consumerd.landing.holding import RECORDLESS, Holding
from consumerd.landing.ranges import EMPTY, RangeSet, Span, union
from consumerd.landing.report import Arrival, AuditReport, LogReport
from consumerd.landing.resuming import LandedComparison
from consumerd.landing.values import LandedChain, Landing, LogId
from consumerd.model import GapReason, Incarnation, TopicPartition

SPANS_NAMED: Final = 100
"""Largest number of ranges of one kind that a log's findings name one by one.

One more finding stands for the rest. The report has all of them.
"""

_LOST: Final = frozenset(
    {GapReason.RETENTION, GapReason.CORRUPT, GapReason.SKIPPED, GapReason.RESET, GapReason.MISSING_FILE}
)
"""Reasons of gaps whose records are in no landed file of the group.

With other reasons there were no records, or another member has them.
"""


class CommittedPosition(Protocol):
    """A group's stored position of one partition, and if it can be used.

    ``offsets.positions.Position`` implements this interface.
    """

    @property
    def value(self) -> int | None:
        """Stored position as a number, valid or not; None if no number is stored."""

    @property
    def valid(self) -> int | None:
        """Stored position, if it certainly belongs to the present topic; else None."""

    @property
    def malformed(self) -> bool:
        """True if the stored value is not a number, or otherwise no position."""

    @property
    def text(self) -> str:
        """Stored text, for a message about a malformed position."""

    @property
    def incarnation(self) -> Incarnation | None:
        """The topic's present identity; None where the topic does not exist."""

    def explain(self) -> str:
        """Return the reason why the position cannot be used, in words; empty if it can."""


Positions = Mapping[TopicPartition, CommittedPosition]
"""A group's stored positions, by partition."""


def examine(
    landing: Landing,
    *,
    depth: str,
    positions: Positions | None = None,
    group: str | None = None,
    more: Iterable[Finding] = (),
) -> AuditReport:
    """Return the audit of landed files: the offsets in files, and in gaps.

    Offsets that are in neither become findings.

    Args:
        depth: The part of the files that was read: ``names``, ``footers`` or ``data``.
        positions: The group's stored positions, to be compared with the landed files; None if they were not read.
        group: The group of ``positions``.
        more: Further findings for the report, such as those from reading the data files.
    """
    findings = [*landing.findings, *more]
    for _, chains in itertools.groupby(landing.chains, key=lambda chain: (chain.partition, chain.root.order)):
        succession = list(chains)
        findings += check_succession(succession)
        for chain in succession:
            findings += check_chain(chain)
    by_log: defaultdict[LogId, list[LandedChain]] = defaultdict(list)
    for chain in landing.chains:
        by_log[chain.log].append(chain)
    newest = _find_newest(landing.chains, positions or {})
    logs = []
    for log in sorted(by_log):
        known = None
        if positions is not None and newest[log.topic_partition] == log:
            known = positions.get(log.topic_partition)
        report, found = _examine_log(log, sorted(by_log[log], key=lambda chain: chain.priority), known)
        logs.append(report)
        findings += found
    for former, latter in itertools.pairwise(sorted(by_log)):
        if _is_truncation(former, latter):
            findings.append(_describe_truncation(former, by_log[former], latter, by_log[latter]))
    findings += _find_unlanded(positions or {}, newest)
    return AuditReport(
        depth=depth,
        cluster=landing.cluster,
        groups=tuple(sorted({root.record.group for root in landing.roots})),
        roots=tuple(str(root.path) for root in landing.roots),
        logs=tuple(logs),
        findings=sort_findings(findings),
        positions_of=group,
    )


@dataclass(slots=True)
class _ChainAccount:
    """Offsets of one chain of landed files, sorted into files, records and gaps."""

    span: Span
    files: RangeSet
    held: RangeSet
    gaps: dict[GapReason, RangeSet]


def _account(chain: LandedChain) -> _ChainAccount:
    spans: list[Span] = []
    held: list[Span] = []
    gaps: defaultdict[GapReason, list[tuple[int, int]]] = defaultdict(list)
    end = chain.record.origin
    for file in chain.files:
        span = file.span
        if span is None:
            continue
        end = max(end, span.end)
        if file.damage is not None:
            continue
        spans.append(span)
        if file.metadata is None:
            held.append(span)
        elif not file.metadata.gaps:
            held += [span] if file.metadata.count else []
        else:
            holding = Holding.of(file.metadata)
            markers = RangeSet.of((gap.start, gap.end) for gap in file.metadata.gaps if gap.reason in RECORDLESS)
            held += (holding.certain | holding.doubtful) - markers
            for gap in file.metadata.gaps:
                gaps[gap.reason].append((gap.start, gap.end))
    return _ChainAccount(
        span=Span(chain.record.origin, end),
        files=RangeSet.of(spans),
        held=RangeSet.of(held),
        gaps={reason: RangeSet.of(found) for reason, found in gaps.items()},
    )


def _examine_log(
    log: LogId, chains: Sequence[LandedChain], known: CommittedPosition | None
) -> tuple[LogReport, list[Finding]]:
    """Check the offsets of one log's chains, given from the highest number down."""
    accounts = [_account(chain) for chain in chains]
    findings: list[Finding] = []
    landed, repeated = EMPTY, EMPTY
    for chain, account in zip(chains, accounts, strict=True):
        common = account.held & landed
        findings += _describe_repeated(log, chain, common)
        repeated, landed = repeated | common, landed | account.held
    hull = RangeSet.of([(min(one.span.start for one in accounts), max(one.span.end for one in accounts))])
    gaps = _sum_gaps(accounts, landed)
    for reason, ranges in gaps.items():
        findings += _describe_gaps(log, reason, ranges)
    findings += _describe_summed(log, chains)
    explained = union([landed, *gaps.values(), *(one.files for one in accounts)])
    spans = RangeSet.of(one.span for one in accounts)
    jumped = hull - spans
    findings += _describe_jumps(log, chains, jumped)
    start, end = min(one.span.start for one in accounts), max(one.span.end for one in accounts)
    if known is not None:
        findings += _check_position(log, end, known, settled=all(chain.end is not None for chain in chains))
    files = [file for chain in chains for file in chain.files]
    read = [file.metadata for file in files if file.metadata is not None]
    times = [one for one in read if one.min_timestamp is not None and one.max_timestamp is not None]
    complete = all(file.metadata is not None or file.damage is not None for file in files)
    report = LogReport(
        log=log,
        start=start,
        end=end,
        landed=landed,
        gaps=gaps,
        missing=spans - explained,
        jumped=jumped,
        repeated=repeated,
        records=sum(one.count for one in read) if complete else None,
        files=len(files),
        size=sum(file.size or 0 for file in files) if complete else None,
        min_timestamp=min((one.min_timestamp for one in times if one.min_timestamp is not None), default=None),
        max_timestamp=max((one.max_timestamp for one in times if one.max_timestamp is not None), default=None),
        committed=known.valid if known is not None and _is_of(known, log) else None,
        chains=tuple(sorted(chains, key=lambda chain: (str(chain.root.path), chain.number))),
        arrivals=tuple(_arrivals(chains)),
    )
    return report, findings


def _sum_gaps(accounts: Sequence[_ChainAccount], landed: RangeSet) -> dict[GapReason, RangeSet]:
    """Return the offsets that no chain has landed, by reason.

    An offset with several reasons counts for the first of them.
    """
    left = landed
    gaps: dict[GapReason, RangeSet] = {}
    for reason in GapReason:
        found = union(account.gaps.get(reason, EMPTY) for account in accounts) - left
        if found:
            gaps[reason] = found
            left = left | found
    return gaps


def _arrivals(chains: Iterable[LandedChain]) -> Iterator[Arrival]:
    for chain in chains:
        for file in chain.files:
            if file.metadata is not None and file.landed_ms is not None and file.metadata.count:
                yield Arrival(
                    landed_ms=file.landed_ms,
                    records=file.metadata.count,
                    max_timestamp=file.metadata.max_timestamp,
                )


# -- findings


def _describe_repeated(log: LogId, chain: LandedChain, ranges: RangeSet) -> Iterator[Finding]:
    tail = f"of {chain.folder} is in another chain, too, and counts there"
    for span, what in _name(ranges):
        yield _find(FindingKind.REPEATED, Severity.NOTICE, log, f"{log}: {what} {tail}", span, chain=chain.number)


def _describe_gaps(log: LogId, reason: GapReason, ranges: RangeSet) -> Iterator[Finding]:
    severity = Severity.WARNING if reason in _LOST else Severity.NOTICE
    if reason is GapReason.ERASED and len(ranges.spans) > 1:
        # an erasure of one key cuts out a piece for each of its records: one note says as much as all of them
        span = Span(ranges.spans[0].start, ranges.spans[-1].end)
        count = sum(one.size for one in ranges.spans)
        detail = f"{log}: {count} offsets in {len(ranges.spans)} pieces of {span} were removed: {reason}"
        yield _find(FindingKind.GAP, severity, log, detail, span)
        return
    for span, what in _name(ranges):
        yield _find(FindingKind.GAP, severity, log, f"{log}: {what} was not landed: {reason}", span)


def _describe_summed(log: LogId, chains: Iterable[LandedChain]) -> Iterator[Finding]:
    """Yield findings about gaps of which a file records only the sum.

    Their number of offsets is known, but not which offsets they are.
    """
    for chain in chains:
        for file in chain.files:
            for gap in file.metadata.gaps if file.metadata is not None else ():
                if gap.offsets < gap.end - gap.start:
                    span = Span(gap.start, gap.end)
                    detail = f"{log}: {gap.offsets} offsets within {span} were not landed: {gap.reason} ({file.path})"
                    severity = Severity.WARNING if gap.reason in _LOST else Severity.NOTICE
                    yield _find(FindingKind.GAP, severity, log, detail, span, chain=chain.number)


def _name(ranges: RangeSet) -> Iterator[tuple[Span, str]]:
    """Yield ranges of offsets with their text.

    If there are many, the last one summarizes the rest.
    """
    for span in ranges.spans[:SPANS_NAMED]:
        yield span, str(span)
    if rest := ranges.spans[SPANS_NAMED:]:
        span = Span(rest[0].start, rest[-1].end)
        yield span, f"a part of {span} ({sum(one.size for one in rest)} offsets in {len(rest)} pieces)"


def _describe_jumps(log: LogId, chains: Sequence[LandedChain], jumped: RangeSet) -> Iterator[Finding]:
    for span in jumped:
        after = [chain for chain in chains if chain.record.origin == span.end]
        asked = next((chain.record.request_id for chain in after if chain.record.request_id is not None), None)
        if asked is not None:
            severity, what = Severity.WARNING, f"was passed over by an operator's request ({asked})"
        else:
            severity, what = Severity.CRITICAL, "lies between two chains, and none of the roots that were given has it"
        yield _find(FindingKind.JUMP, severity, log, f"{log}: {span} {what}", span)


def _is_truncation(former: LogId, latter: LogId) -> bool:
    return former.topic_partition == latter.topic_partition and former.incarnation.is_same_topic(latter.incarnation)


def _describe_truncation(
    former: LogId, before: Sequence[LandedChain], latter: LogId, after: Sequence[LandedChain]
) -> Finding:
    """Return the finding about a truncated log, with the landed offsets that it lost."""
    first = min(after, key=lambda chain: chain.record.origin)
    origin, end = first.record.origin, max(_account(chain).span.end for chain in before)
    asked = first.record.request_id
    reason = first.record.reason if asked is None else f"{first.record.reason} {asked}"
    lost = f"{Span(origin, end)} was landed from it before" if origin < end else "nothing that it lost was landed"
    detail = (
        f"{latter}: an unclean election took the log's end away; {first.folder} goes on at {origin} ({reason}); "
        f"{lost}, as "
        f"{former}. Both are kept"
    )
    return _find(
        FindingKind.LOG_TRUNCATED, Severity.WARNING, latter, detail, Span(origin, max(origin, end)), chain=first.number
    )


def _find_newest(chains: Sequence[LandedChain], positions: Positions) -> dict[TopicPartition, LogId]:
    """Return the newest log of each partition.

    Topic ids have no order. There it is the log of the present topic, or else that of the chain with the highest
    number.
    """
    newest: dict[TopicPartition, LandedChain] = {}
    for chain in chains:
        before = newest.get(chain.partition)
        if before is None or _is_newer(chain, before, positions.get(chain.partition)):
            newest[chain.partition] = chain
    return {partition: chain.log for partition, chain in newest.items()}


def _is_newer(chain: LandedChain, other: LandedChain, known: CommittedPosition | None) -> bool:
    ours, theirs = chain.record.incarnation, other.record.incarnation
    if ours.is_same_topic(theirs):
        return ours.truncation > theirs.truncation
    later = ours.is_later_topic(theirs)
    if later is not None:
        return later
    present = None if known is None else known.incarnation
    if present is not None and ours.is_same_topic(present) is not theirs.is_same_topic(present):
        return ours.is_same_topic(present)
    return chain.number > other.number


def _is_of(known: CommittedPosition, log: LogId) -> bool:
    """Return True if the topic is still the one that the files were landed from."""
    return known.incarnation is not None and known.incarnation.is_same_topic(log.incarnation)


def _check_position(log: LogId, end: int, known: CommittedPosition, *, settled: bool) -> Iterator[Finding]:
    committed = known.valid
    if known.malformed:
        detail = f"{log}: the group's position is no number: {known.text[:40]!r}"
        yield _find(FindingKind.COMMITTED_AHEAD, Severity.CRITICAL, log, detail, Span(end, end))
    elif known.incarnation is None:
        detail = f"{log}: the topic is not in the cluster any more"
        yield _find(FindingKind.COMMITTED_BEHIND, Severity.NOTICE, log, detail, Span(end, end))
    elif not _is_of(known, log):
        detail = (
            f"{log}: the topic was re-created (incarnation {known.incarnation}), and nothing of that has been landed"
        )
        yield _find(FindingKind.COMMITTED_BEHIND, Severity.WARNING, log, detail, Span(end, end))
    elif committed is None:
        detail = f"{log}: {known.explain()}, and {end} is the end of what has been landed"
        yield _find(FindingKind.COMMITTED_BEHIND, Severity.WARNING, log, detail, Span(end, end))
    else:
        compared = LandedComparison(committed, end)
        if compared.not_landed is not None and settled:
            detail = (
                f"{log}: the group has committed {committed}, and {compared.not_landed} has not been landed: another "
                "member has consumed it, or files are lost"
            )
            yield _find(FindingKind.COMMITTED_AHEAD, Severity.CRITICAL, log, detail, compared.not_landed)
        if compared.not_committed is not None:
            detail = f"{log}: {compared.not_committed} has been landed and was not committed when the audit began"
            yield _find(FindingKind.COMMITTED_BEHIND, Severity.NOTICE, log, detail, compared.not_committed)


def _find_unlanded(positions: Positions, newest: Mapping[TopicPartition, LogId]) -> Iterator[Finding]:
    """Yield findings about partitions that have a position and no chain."""
    for partition in sorted(set(positions) - set(newest)):
        stored = positions[partition]
        # a deleted topic's position counts too: its records must have landed, though the topic is gone
        position = stored.value if stored.incarnation is None else stored.valid
        if position:
            yield Finding(
                kind=FindingKind.COMMITTED_AHEAD,
                severity=Severity.CRITICAL,
                detail=f"{partition}: the group has committed {position}, and none of the roots has a chain of it",
                topic=partition.topic,
                partition=str(partition.partition),
                end=position,
            )


def _find(
    kind: FindingKind, severity: Severity, log: LogId, detail: str, span: Span, *, chain: int | None = None
) -> Finding:
    return Finding(
        kind=kind,
        severity=severity,
        detail=detail,
        topic=log.topic,
        partition=str(log.partition),
        incarnation=str(log.incarnation),
        chain=chain,
        start=span.start,
        end=span.end,
    )
