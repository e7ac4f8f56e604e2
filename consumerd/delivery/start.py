"""Finds where a claimed partition starts: reads what :mod:`consumerd.delivery.policy` decides upon.

Everything is read after the claim. A member that held the partition before has committed for the last time by then, so
that nothing that it still acknowledged is delivered twice.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final

from consumerd.delivery.policy import (
    Earlier,
    Former,
    LogRange,
    Move,
    OffsetPolicy,
    StartAt,
    StartAtEnd,
    StartFacts,
    StartReason,
    Stop,
    find_committed,
    in_log,
    left_out,
    mark_truncation,
    plan_out_of_range,
    plan_request,
    plan_start,
)
from consumerd.delivery.ports import LogRanges, PartitionHistory
from consumerd.errors import ConnectionLost, OffsetOutOfRange
from consumerd.model import Claim, Gap, GapReason, TopicPartition
from consumerd.offsets.store import OffsetRequest, OffsetStore, StoredOffset
from consumerd.sinks.base import PartitionWriter, RecallingWriter

_TRAILING_S: Final = 1.0
_BELIEVED: Final = frozenset({StartReason.COMMITTED, StartReason.CONSUMED_ELSEWHERE})
"""Why to start at a committed position that no record of the sink's own bears out."""

_UNEXPLAINED: Final = _BELIEVED | {StartReason.RESUMED}
"""Why to start above the chain's end, if the chain is all that is known."""

_ALL_OURS: Final = frozenset({StartReason.NEW_PARTITION, StartReason.NEW_INCARNATION})
"""Why to start at the earliest offset of a log of which nothing may be missed."""


class StartFinder:
    """Gathers the facts for a start, and looks whether a stopped partition's situation has changed."""

    def __init__(self, store: OffsetStore, ranges: LogRanges, history: PartitionHistory, policy: OffsetPolicy) -> None:
        self._store = store
        self._ranges = ranges
        self._history = history
        self._policy = policy

    async def find(
        self,
        claim: Claim,
        writer: PartitionWriter,
        *,
        request: OffsetRequest | None = None,
        move: Move | None = None,
        earlier: Earlier | None = None,
        former: Former | None = None,
    ) -> StartAt | Stop:
        """Decide where to start: where a request says, else where a policy has moved to, else where things stand.

        Raises CoordinationError, BrokerError, ConnectionLost.
        """
        decided = await self._decide(claim, writer, request=request, move=move, earlier=earlier, former=former)
        if isinstance(decided, StartAt) and decided.reason in _UNEXPLAINED and isinstance(writer, RecallingWriter):
            resume = writer.resume_position
            # asked only where it matters: it costs a read, and a position above the chain's end is rare
            missing = (
                await writer.find_missing(decided.position) if resume is None or decided.position > resume else None
            )
            return decided if missing is None else decided.blame(missing)
        return decided

    async def _decide(
        self,
        claim: Claim,
        writer: PartitionWriter,
        *,
        request: OffsetRequest | None,
        move: Move | None,
        earlier: Earlier | None,
        former: Former | None,
    ) -> StartAt | Stop:
        partition, resume = claim.partition, writer.resume_position
        stored = await self._load(partition)
        facts = StartFacts(
            incarnation=claim.incarnation,
            stored=stored,
            resume=resume,
            begun_by=writer.request_id,
            newborn=False,
            earlier=earlier,
            former=former,
        )
        if request is not None:
            plan = plan_request(request, facts)
            return replace(plan, truncated=move is not None and plan.new_chain)
        if move is not None:
            return _begin_again(move.position, move.reason, stored)
        # asked only where it matters: it costs two reads a partition
        if stored is None and resume is None:
            facts = replace(facts, newborn=await self._history.made_after_group(partition))
        decided = plan_start(facts, self._policy)
        if isinstance(decided, StartAtEnd):
            log = await self._read_range(partition)
            position = log.earliest if decided.end == "earliest" else log.latest
            before = None if stored is None or stored.malformed is not None else stored.position
            plan = StartAt(position=position, committed=None, reason=decided.reason, before=before)
            if position == 0 or decided.reason not in _ALL_OURS:
                return plan
            return replace(plan, gap=Gap(0, position, GapReason.RETENTION))  # a log begins at 0
        if isinstance(decided, StartAt) and decided.reason in _BELIEVED:
            return await self._settle_above(partition, decided, stored, resume)
        return decided

    async def _settle_above(
        self, partition: TopicPartition, plan: StartAt, stored: StoredOffset | None, resume: int | None
    ) -> StartAt | Stop:
        """Decide about a committed position above the log's end (its high watermark) before a sink's record moves there: a chain that holds a
        place where no record can be would have to be believed from then on.

        Where the log still holds the sink's own position, that is the truth: nothing below it is delivered again. Asked
        twice, since a new leader may trail for a moment.
        """
        log = await self._read_range(partition)
        if plan.position <= log.latest:
            return plan
        if plan.position <= await self._read_high_watermark(partition):
            # under read_committed the readable end stands still at an open transaction; a member that reads uncommitted has
            # passed it. The broker holds the position, and answers when the transaction has ended
            return replace(plan, stable_end=log.latest)
        await asyncio.sleep(_TRAILING_S)
        log = await self._read_range(partition)
        end = max(log.latest, await self._read_high_watermark(partition))
        error = OffsetOutOfRange(partition, plan.position, log.earliest, log.latest)
        outcome = plan_out_of_range(error, self._policy) if plan.position > end else plan
        if isinstance(outcome, Move) and resume is not None and resume <= end:
            return StartAt(
                position=resume,
                committed=None,
                reason=outcome.reason,
                lead=left_out(resume, outcome.position),
                out_of_range=error,
            )
        if isinstance(outcome, Move):
            return replace(_begin_again(outcome.position, outcome.reason, stored), out_of_range=error)
        return replace(outcome, refused=plan.position) if isinstance(outcome, Stop) else plan

    async def moved(self, claim: Claim, earlier: Earlier | None) -> bool:
        """Tell whether somebody else has changed the committed position since. Raises CoordinationError."""
        committed = find_committed(await self._load(claim.partition), claim.incarnation)
        known = (None,) if earlier is None else (earlier.committed, earlier.acknowledged)
        return committed not in known

    async def moved_from(self, claim: Claim, refused: int) -> bool:
        """Tell whether another position is committed than the one that was refused. Raises CoordinationError."""
        return find_committed(await self._load(claim.partition), claim.incarnation) != refused

    async def holds(self, partition: TopicPartition, position: int) -> bool:
        """Tell whether the broker holds ``position``. Raises BrokerError, ConnectionLost."""
        log = await self._read_range(partition)
        return in_log(position, log) or log.latest < position <= await self._read_high_watermark(partition)

    async def _read_high_watermark(self, partition: TopicPartition) -> int:
        end = (await self._ranges.high_watermarks([partition])).get(partition)
        if end is None:
            raise ConnectionLost(f"{partition}: no broker says where its log ends")
        return end

    async def _read_range(self, partition: TopicPartition) -> LogRange:
        log = (await self._ranges.read([partition])).get(partition)
        if log is None:
            raise ConnectionLost(f"{partition}: no broker says what offsets it holds")
        return log

    async def _load(self, partition: TopicPartition) -> StoredOffset | None:
        return (await self._store.load([partition]))[partition]


def _begin_again(position: int, reason: StartReason, stored: StoredOffset | None) -> StartAt:
    """Start below what was committed, since the log has lost its end."""
    return StartAt(
        position=position,
        committed=None,
        reason=reason,
        new_chain=True,
        truncated=True,
        begun_by=mark_truncation(stored, position),
    )
