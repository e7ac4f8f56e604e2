# SPDX-License-Identifier: Apache-2.0
"""Finds where a claimed partition starts: reads what :mod:`consumerd.delivery.policy` decides upon.

Everything is read after the claim. A member that held the partition before has committed for the last time by then, so
that nothing that it still acknowledged is delivered twice.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Final

from consumerd.aio.timeouts import timeout
from consumerd.client.log_range import LogRanges
from consumerd.delivery.policy import (
    Earlier,
    Former,
    OffsetPolicy,
    Reposition,
    StartAt,
    StartAtEnd,
    StartFacts,
    StartReason,
    Stop,
    find_committed,
    in_log,
    left_out,
    plan_lost_end,
    plan_out_of_range,
    plan_request,
    plan_start,
    stop_above,
)
from consumerd.delivery.ports import FeedSource, PartitionHistory
from consumerd.errors import ConnectionLost, CorruptMessageError, OffsetOutOfRange, RecordTooLarge
from consumerd.model import Claim, Gap, GapReason, LogRange, TopicPartition
from consumerd.offsets.store import LogTruncation, LogTruncations, LostEnd, OffsetRequest, OffsetStore, StoredOffset
from consumerd.sinks.base import PartitionWriter, RecallingWriter

_TRAILING_S: Final = 1.0
"""Time between two looks at a log's end, in seconds."""
_PROBE_S: Final = 10.0
"""Time limit of a fetch above the high watermark, in seconds: a broker that holds it has nothing to answer."""
_BELIEVED: Final = frozenset({StartReason.COMMITTED, StartReason.CONSUMED_ELSEWHERE})
"""Why to start at a committed position that no record of the sink's own bears out."""

_UNEXPLAINED: Final = _BELIEVED | {StartReason.RESUMED}
"""Why to start above the chain's end, if the chain is all that is known."""

_ALL_OURS: Final = frozenset({StartReason.NEW_PARTITION, StartReason.NEW_INCARNATION})
"""Why to start at the earliest offset of a log of which nothing may be missed."""


@dataclass(frozen=True, slots=True)
class _Situation:
    """A claim, the facts, and the number of the log's last truncation.

    ``pending`` is the truncation that a stop was about, until delivery goes on.
    """

    claim: Claim
    facts: StartFacts
    number: int
    pending: LostEnd | None = None

    @property
    def noted(self) -> bool:
        """Whether the last truncation is noted and nothing was delivered since."""
        known = self.facts.truncation
        return (
            self.pending is None
            and known is not None
            and known.number == self.number
            and known.makes_void(self.facts.stored)
            and self.facts.resume in (None, known.position)
        )


class StartFinder:
    """Gathers the facts for a start, and looks whether a stopped partition's situation has changed."""

    def __init__(
        self,
        store: OffsetStore,
        truncations: LogTruncations,
        ranges: LogRanges,
        feeds: FeedSource,
        history: PartitionHistory,
        policy: OffsetPolicy,
    ) -> None:
        self._store = store
        self._truncations = truncations
        self._ranges = ranges
        self._feeds = feeds
        self._history = history
        self._policy = policy

    async def find(
        self,
        claim: Claim,
        writer: PartitionWriter,
        *,
        request: OffsetRequest | None = None,
        move: Reposition | None = None,
        earlier: Earlier | None = None,
        former: Former | None = None,
    ) -> StartAt | Stop:
        """Decide where to start: where a request says, else where a policy has moved to, else where things stand.

        That the log has lost its end is noted for the group before this returns. Raises CoordinationError, BrokerError,
        ConnectionLost.
        """
        stored = await self._load(claim.partition)
        known = await self._truncations.find(claim)
        truncation = known.last
        # a chain knows better where ZooKeeper has lost its data
        landed = writer.truncation if isinstance(writer, RecallingWriter) else 0
        number = max(landed, 0 if truncation is None else truncation.number)
        # what a chain of before the truncation holds says nothing about the log as it is
        void = isinstance(writer, RecallingWriter) and landed < number
        pending = None if known.lost_end is None or known.lost_end.number <= number else known.lost_end
        resume = None if void else writer.resume_position
        if pending is not None and not pending.makes_void(stored) and resume is not None and resume > pending.latest:
            # another member has gone on in the log as it is; the chain ends in the log as it was
            void, resume = True, None
        facts = StartFacts(
            incarnation=claim.incarnation,
            stored=stored,
            resume=resume,
            newborn=False,
            earlier=earlier,
            former=former,
            truncation=truncation,
        )
        situation = _Situation(claim, facts, number, pending)
        decided: StartAt | Stop
        if request is not None:
            decided = await self._carry_out(situation, request, moved=move is not None)
        elif move is not None:
            decided = await self._begin_again(situation, move.position, move.reason)
        elif pending is not None:
            decided = await self._decide_pending(situation, pending)
        else:
            decided = await self._decide(situation)
        if isinstance(decided, Stop):
            return decided
        decided = replace(decided, truncation=max(number, decided.truncation))
        if decided.reason in _UNEXPLAINED and isinstance(writer, RecallingWriter) and not void:
            # asked only where it matters: it costs a read, and a position above the chain's end is rare
            missing = (
                await writer.find_missing(decided.position) if resume is None or decided.position > resume else None
            )
            return decided if missing is None else decided.blame(missing)
        return decided

    async def _carry_out(self, situation: _Situation, request: OffsetRequest, *, moved: bool) -> StartAt:
        """Decide how a request is carried out. What it is about may be that the log has lost its end, and nobody has noted it."""
        facts, lost_end = situation.facts, moved or situation.pending is not None
        if situation.noted:
            lost_end = False
        elif not lost_end:
            consumed = max((one for one in (facts.resume, facts.committed) if one is not None), default=None)
            lost_end = consumed is not None and await self._ends_below(situation.claim.partition, consumed)
        plan = plan_request(request, facts, lost_end=lost_end)
        plan = replace(plan, ahead=not await self._reaches(situation.claim.partition, plan.first_offset))
        return replace(plan, truncation=await self._note(situation, plan.position)) if lost_end else plan

    async def _decide_pending(self, situation: _Situation, pending: LostEnd) -> StartAt | Stop:
        """Decide after a stop above the log's end, which may have grown since."""
        if not pending.makes_void(situation.facts.stored):
            # another member has committed since: that counts, and the records from there on are of the truncation
            decided = await self._decide(situation)
            if isinstance(decided, Stop) or decided.truncation:
                return decided
            return replace(decided, committed=None, truncation=await self._note(situation, decided.position))
        if self._policy.on_above == "stop":
            return replace(stop_above(pending), refused=situation.facts.committed)
        partition = situation.claim.partition
        log = await self._read_range(partition)
        move = plan_lost_end(pending, log, self._policy.on_above)
        return await self._move_below(
            situation, move, OffsetOutOfRange(partition, pending.position, log.earliest, pending.latest)
        )

    async def _decide(self, situation: _Situation) -> StartAt | Stop:
        claim, facts = situation.claim, situation.facts
        partition, stored, resume = claim.partition, facts.stored, facts.resume
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
            return await self._settle_above(situation, decided)
        return decided

    async def _settle_above(self, situation: _Situation, plan: StartAt) -> StartAt | Stop:
        """Decide about a committed position above the log's end (its high watermark) before a sink's record moves there: a chain that holds a
        place where no record can be would have to be believed from then on.

        Where the log still holds the sink's own position, nothing below that is delivered again. But whoever committed may
        have landed what was above the log's end, in a folder of its own: so this is a truncation all the same.
        """
        partition = situation.claim.partition
        log = await self._read_range(partition)
        if plan.position <= log.latest:
            return plan
        if plan.position <= await self._read_high_watermark(partition):
            # under read_committed the readable end stands still at an open transaction; a member that reads uncommitted has
            # passed it. The broker holds the position, and answers when the transaction has ended
            return replace(plan, stable_end=log.latest)
        lost = await self._confirm_end_below(partition, plan.position)
        if lost is None:
            return plan
        outcome = plan_out_of_range(lost, self._policy, truncation=situation.number)
        if isinstance(outcome, Stop):
            return replace(outcome, refused=plan.position)
        return await self._move_below(situation, outcome, lost) if isinstance(outcome, Reposition) else plan

    async def _move_below(self, situation: _Situation, move: Reposition, lost: OffsetOutOfRange) -> StartAt:
        """Go on below a committed position, behind the records landed before the truncation."""
        resume, position, gap = situation.facts.resume, move.position, None
        if resume is not None and resume <= lost.latest:
            position, gap = max(resume, position), left_out(resume, position)
        begun = await self._begin_again(situation, position, move.reason)
        return replace(begun, gap=gap, out_of_range=lost)

    async def _ends_below(self, partition: TopicPartition, position: int) -> bool:
        """Tell whether the log ends below ``position``, an open transaction or none. Raises BrokerError, ConnectionLost."""
        if await self._reaches(partition, position):
            return False
        return await self._confirm_end_below(partition, position) is not None

    async def _reaches(self, partition: TopicPartition, position: int) -> bool:
        """Tell whether the log ends at or above ``position``. Raises BrokerError, ConnectionLost."""
        log = await self._read_range(partition)
        return position <= log.latest or position <= await self._read_high_watermark(partition)

    async def _confirm_end_below(self, partition: TopicPartition, position: int) -> OffsetOutOfRange | None:
        """Look once more, then fetch there; None: the log reaches to ``position`` after all.

        A new leader's high watermark may trail: for a moment, or for ``replica.lag.time.max.ms`` while a broker that
        died is in the ISR still. The log end offset tells such a log from one that has lost its end, but ListOffsets
        does not give it to consumers. A fetch goes by it (Kafka's ``Log.read``). Above the log end offset it is refused.
        Between high watermark and log end offset it is answered with nothing; 0.8.2 answers UNKNOWN.
        """
        await asyncio.sleep(_TRAILING_S)
        if await self._reaches(partition, position):
            return None
        return await self._fetch_above(partition, position)

    async def _fetch_above(self, partition: TopicPartition, position: int) -> OffsetOutOfRange | None:
        """Return a fetcher's confirmed verdict about ``position``. Raises ConnectionLost where no broker gives one."""
        feed = self._feeds.feed(partition, position)
        try:
            async with timeout(_PROBE_S):
                feed.done(await feed.next())
        except OffsetOutOfRange as error:
            return error
        except (CorruptMessageError, RecordTooLarge):
            return None  # what cannot be read is there
        except TimeoutError:
            if feed.fault is not None or feed.heard_at is None:
                raise ConnectionLost(f"{partition}: no broker says whether it holds offset {position}") from None
            return None
        finally:
            feed.close()
        return None

    async def _begin_again(self, situation: _Situation, position: int, reason: StartReason) -> StartAt:
        """Start below what was committed, since the log has lost its end."""
        number = await self._note(situation, position)
        return StartAt(position=position, committed=None, reason=reason, truncation=number)

    async def _note(self, situation: _Situation, position: int) -> int:
        """Note that the log has lost its end and where to go on, unless that is noted; return the truncation's number.

        Raises CoordinationError.
        """
        facts, known, number = situation.facts, situation.facts.truncation, situation.number + 1
        if situation.noted and facts.resume in (None, position):
            if known is not None and known.position == position:
                return known.number
            number = situation.number  # nothing has begun there
        if situation.pending is not None:
            number = max(number, situation.pending.number)
        voids = 0 if facts.stored is None else facts.stored.mzxid
        await self._truncations.note(situation.claim, LogTruncation(number=number, position=position, voids=voids))
        return number

    async def note_lost_end(self, claim: Claim, lost: LostEnd) -> None:
        """Note for the group that a position is void. Raises CoordinationError.

        Another position that was committed meanwhile is not void: the note is about the chain alone then.
        """
        stored = await self._load(claim.partition)
        is_void = find_committed(stored, claim.incarnation) == lost.position
        voids = stored.mzxid if is_void and stored is not None else 0
        await self._truncations.note_lost_end(claim, replace(lost, voids=voids))

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
