# SPDX-License-Identifier: Apache-2.0
"""Accounts for every offset of every log of a landing zone. Pure.

By names alone every offset of a file counts as landed, and a file that is missing from the middle of a chain cannot be
told from a longer predecessor; footers tell both. Positions must have been read *before* the names: what is committed
has landed before, so that a position beyond all chains is one that nobody has landed, and not one that came in between.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from consumerd.landing.chain_checks import check_chain, check_succession
from consumerd.landing.findings import Finding, FindingKind, Severity
from consumerd.landing.holding import RECORDLESS, Holding
from consumerd.landing.ranges import EMPTY, RangeSet, Span, union
from consumerd.landing.report import Arrival, AuditReport, ChainReport, LogReport, sort_findings
from consumerd.landing.values import LandedChain, Landing, LogId
from consumerd.model import GapReason, Incarnation, TopicPartition

SPANS_NAMED: Final = 100
"""Pieces of one kind that a log's findings name one by one; the rest is one finding more. The report has all of them."""

_LOST: Final = frozenset(
    {GapReason.RETENTION, GapReason.CORRUPT, GapReason.SKIPPED, GapReason.RESET, GapReason.MISSING_FILE}
)
"""Reasons that mean records which nobody will find here; others mean that there were none, or that somebody else has them."""


class CommittedPosition(Protocol):
    """A group's stored position of one partition, as it counts today (``offsets.positions.Position``)."""

    @property
    def value(self) -> int | None:
        """The number as it is stored, valid or not; None where there is no number."""

    @property
    def valid(self) -> int | None:
        """The position if it can be used."""

    @property
    def malformed(self) -> bool:
        """True if something is stored that is no position."""

    @property
    def text(self) -> str:
        """The stored text where it is malformed."""

    @property
    def incarnation(self) -> Incarnation | None:
        """The topic's incarnation; None where the topic does not exist."""

    def explain(self) -> str:
        """Say why the position cannot be used."""


Positions = Mapping[TopicPartition, CommittedPosition]
"""A group's stored positions."""


def examine(
    landing: Landing,
    *,
    depth: str,
    positions: Positions | None = None,
    group: str | None = None,
    more: Iterable[Finding] = (),
) -> AuditReport:
    """Account for a zone as it was read; ``more`` are findings from elsewhere (the data) that belong into the report."""
    findings = [*landing.findings, *more]
    for _, chains in itertools.groupby(landing.chains, key=lambda chain: (chain.partition, chain.root.order)):
        succession = list(chains)
        findings += check_succession(succession)
        for chain in succession:
            findings += check_chain(chain)
    by_log: defaultdict[LogId, list[LandedChain]] = defaultdict(list)
    for chain in landing.chains:
        by_log[chain.log].append(chain)
    newest = {log.topic_partition: log for log in sorted(by_log)}
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
    """What one chain holds."""

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
    """Account for one log's chains, given from the highest down."""
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
        findings += _check_position(log, end, known, settled=_knows_end(chains))
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
        chains=tuple(sorted(map(_describe_chain, chains), key=lambda one: (one.root, one.number))),
        arrivals=tuple(_arrivals(chains)),
    )
    return report, findings


def _sum_gaps(accounts: Sequence[_ChainAccount], landed: RangeSet) -> dict[GapReason, RangeSet]:
    """Return what no chain has landed, by reason; what has several reasons is of the first of them."""
    left = landed
    gaps: dict[GapReason, RangeSet] = {}
    for reason in GapReason:
        found = union(account.gaps.get(reason, EMPTY) for account in accounts) - left
        if found:
            gaps[reason] = found
            left = left | found
    return gaps


def _describe_chain(chain: LandedChain) -> ChainReport:
    return ChainReport(
        root=str(chain.root.path),
        number=chain.number,
        origin=chain.record.origin,
        end=chain.end,
        reason=chain.record.reason,
        request_id=chain.record.request_id,
        sealed=chain.sealed,
        extension=chain.record.extension,
        files=len(chain.files),
    )


def _arrivals(chains: Iterable[LandedChain]) -> Iterator[Arrival]:
    for chain in chains:
        for file in chain.files:
            if file.metadata is not None and file.landed_ms is not None and file.metadata.count:
                yield Arrival(
                    landed_ms=file.landed_ms,
                    records=file.metadata.count,
                    size=file.size or 0,
                    min_timestamp=file.metadata.min_timestamp,
                    max_timestamp=file.metadata.max_timestamp,
                )


# -- findings


def _describe_repeated(log: LogId, chain: LandedChain, ranges: RangeSet) -> Iterator[Finding]:
    tail = f"of {chain.folder} is in another chain, too, and counts there"
    for span, what in _name(ranges):
        yield _find(FindingKind.REPEATED, Severity.NOTE, log, f"{log}: {what} {tail}", span, chain=chain.number)


def _describe_gaps(log: LogId, reason: GapReason, ranges: RangeSet) -> Iterator[Finding]:
    severity = Severity.WARNING if reason in _LOST else Severity.NOTE
    for span, what in _name(ranges):
        yield _find(FindingKind.GAP, severity, log, f"{log}: {what} was not landed: {reason}", span)


def _describe_summed(log: LogId, chains: Iterable[LandedChain]) -> Iterator[Finding]:
    """Tell of gaps that a file has summed up: how many offsets they are is known, and not which."""
    for chain in chains:
        for file in chain.files:
            for gap in file.metadata.gaps if file.metadata is not None else ():
                if gap.offsets < gap.end - gap.start:
                    span = Span(gap.start, gap.end)
                    detail = f"{log}: {gap.offsets} offsets within {span} were not landed: {gap.reason} ({file.path})"
                    severity = Severity.WARNING if gap.reason in _LOST else Severity.NOTE
                    yield _find(FindingKind.GAP, severity, log, detail, span, chain=chain.number)


def _name(ranges: RangeSet) -> Iterator[tuple[Span, str]]:
    """Yield spans with what to call each; where there are very many, the last stands for the rest."""
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
            detail = f"{log}: {span} was passed over by an operator's request ({asked})"
            yield _find(FindingKind.JUMP, Severity.WARNING, log, detail, span)
        else:
            detail = f"{log}: {span} lies between two chains, and none of the roots that were given has it"
            yield _find(FindingKind.JUMP, Severity.ERROR, log, detail, span)


def _is_truncation(former: LogId, latter: LogId) -> bool:
    same = former.topic_partition == latter.topic_partition
    return same and former.incarnation.czxid == latter.incarnation.czxid


def _describe_truncation(
    former: LogId, before: Sequence[LandedChain], latter: LogId, after: Sequence[LandedChain]
) -> Finding:
    """Tell that a log had lost its end, and which of what was landed it does not hold any more."""
    first = min(after, key=lambda chain: chain.record.origin)
    origin, end = first.record.origin, max(_account(chain).span.end for chain in before)
    asked = first.record.request_id
    reason = first.record.reason if asked is None else f"{first.record.reason} {asked}"
    lost = f"{Span(origin, end)} was landed from it before" if origin < end else "nothing that it lost was landed"
    detail = (
        f"{latter}: an unclean election took the log's end away; {first.folder} goes on at {origin} ({reason}); {lost}, as "
        f"{former}. Both are kept"
    )
    return _find(
        FindingKind.LOG_TRUNCATED, Severity.WARNING, latter, detail, Span(origin, max(origin, end)), chain=first.number
    )


def _knows_end(chains: Sequence[LandedChain]) -> bool:
    return all(chain.end is not None for chain in chains)


def _is_of(known: CommittedPosition, log: LogId) -> bool:
    """Tell whether the topic is still the one that the log's files were landed from."""
    return known.incarnation is not None and known.incarnation.czxid == log.incarnation.czxid


def _check_position(log: LogId, end: int, known: CommittedPosition, *, settled: bool) -> Iterator[Finding]:
    committed = known.valid
    if known.malformed:
        detail = f"{log}: the group's position is no number: {known.text[:40]!r}"
        yield _find(FindingKind.COMMITTED_AHEAD, Severity.ERROR, log, detail, Span(end, end))
    elif known.incarnation is None:
        detail = f"{log}: the topic is not in the cluster any more"
        yield _find(FindingKind.COMMITTED_BEHIND, Severity.NOTE, log, detail, Span(end, end))
    elif not _is_of(known, log):
        detail = (
            f"{log}: the topic was made again (incarnation {known.incarnation}), and nothing of that has been landed"
        )
        yield _find(FindingKind.COMMITTED_BEHIND, Severity.WARNING, log, detail, Span(end, end))
    elif committed is None:
        detail = f"{log}: {known.explain()}, and {end} is the end of what has been landed"
        yield _find(FindingKind.COMMITTED_BEHIND, Severity.WARNING, log, detail, Span(end, end))
    elif committed > end and settled:
        span = Span(end, committed)
        detail = (
            f"{log}: the group has committed {committed}, and {span} has not been landed: somebody else has consumed "
            "it, or files are lost"
        )
        yield _find(FindingKind.COMMITTED_AHEAD, Severity.ERROR, log, detail, span)
    elif committed < end:
        span = Span(committed, end)
        yield _find(
            FindingKind.COMMITTED_BEHIND,
            Severity.NOTE,
            log,
            f"{log}: {span} has been landed and was not committed when the audit began",
            span,
        )


def _find_unlanded(positions: Positions, newest: Mapping[TopicPartition, LogId]) -> Iterator[Finding]:
    """Tell of partitions that the group has positions of, and that no root has a chain of."""
    for partition in sorted(set(positions) - set(newest)):
        stored = positions[partition]
        # of a deleted topic as well: its records are asked for here, wherever the topic is by now
        position = stored.value if stored.incarnation is None else stored.valid
        if position:
            yield Finding(
                kind=FindingKind.COMMITTED_AHEAD,
                severity=Severity.ERROR,
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
