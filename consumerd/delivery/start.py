# SPDX-License-Identifier: Apache-2.0
"""Finds a claimed partition's start: reads the facts for :mod:`consumerd.delivery.policy`.

Everything is read after the claim. The previous owner has made its last commit by then, so nothing that it acknowledged
is delivered twice.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Final

from consumerd.aio.timeouts import timeout
from consumerd.client.log_range import LogRanges
from consumerd.delivery.policy import (
    EarlierAttempt,
    OffsetPolicy,
    PreviousClaim,
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
from consumerd.offsets.store import (
    NO_MARK,
    LogTruncation,
    LogTruncations,
    LostEnd,
    OffsetRequest,
    OffsetStore,
    StoredOffset,
    find_mark,
)
from consumerd.sinks.base import PartitionWriter, RecallingWriter, RememberingWriter

_TRAILING_S: Final = 1.0
"""Interval, in seconds, between two reads of a log end that seems too low."""
_PROBE_S: Final = 10.0
"""Time limit, in seconds, of a fetch above the high watermark: a broker that holds the offset has nothing to return."""
_BELIEVED: Final = frozenset({StartReason.COMMITTED, StartReason.CONSUMED_ELSEWHERE})
"""Reasons to start at a committed position that the sink has no record of."""

_UNEXPLAINED: Final = _BELIEVED | {StartReason.RESUMED}
"""Reasons to start above the chain's end, as far as the chain tells."""

_ALL_OURS: Final = frozenset({StartReason.NEW_PARTITION, StartReason.NEW_INCARNATION})
"""Reasons to start at the earliest offset of a log of which no record may be missed."""


@dataclass(frozen=True, slots=True)
class _Situation:
    """A claim, its facts, and the number of the log's last truncation.

    ``pending`` is the truncation that delivery stopped for; it is set until delivery continues.
    """

    claim: Claim
    facts: StartFacts
    number: int
    pending: LostEnd | None = None

    @property
    def noted(self) -> bool:
        """True if the last truncation is recorded and nothing was delivered since."""
        known = self.facts.truncation
        return (
            self.pending is None
            and known is not None
            and known.number == self.number
            and known.makes_void(self.facts.stored)
            and self.facts.resume in (None, known.position)
        )


class StartFinder:
    """Finds the offset from which a claimed partition is delivered.

    For a stopped partition, three methods tell if the reason of the stop is gone: :meth:`holds` (the broker has the
    position now), :meth:`moved` and :meth:`moved_from` (another process has committed another position).
    """

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
        earlier: EarlierAttempt | None = None,
        previous: PreviousClaim | None = None,
    ) -> StartAt | Stop:
        """Decide where to start a claimed partition, or that a policy stops it.

        An operator's ``request`` decides first, then a reset by a policy (``move``), then the stored positions. If the
        log was truncated, that is recorded in ZooKeeper before this returns. Raises CoordinationError, BrokerError,
        ConnectionLost.

        Args:
            claim: The claim of the partition.
            writer: The sink's writer, which knows the end of the landed files.
            request: The operator's request for a position; None without one.
            move: The position to which a policy moves an out-of-range position; None without a reset.
            earlier: Progress of an earlier attempt under the same claim; None for the first attempt.
            previous: Positions that an earlier claim may have committed for an older topic of the same name, or None.
        """
        stored = await self._load(claim.partition)
        known = await self._truncations.find(claim)
        truncation = known.last
        # if ZooKeeper has lost its data, the chain still has the truncation's number
        landed = writer.truncation if isinstance(writer, RecallingWriter) else 0
        number = max(landed, 0 if truncation is None else truncation.number)
        # a chain from before the truncation says nothing about the present log
        void = isinstance(writer, RecallingWriter) and landed < number
        pending = None if known.lost_end is None or known.lost_end.number <= number else known.lost_end
        resume = None if void else writer.resume_position
        if (
            pending is not None
            and not pending.makes_void(stored)
            and resume is not None
            and (resume > pending.latest or not self._ranges.logs_are_replicated)
        ):
            # another member has gone on in the present log, and the chain ends in the log before the truncation
            void, resume = True, None
        facts = StartFacts(
            incarnation=claim.incarnation,
            stored=stored,
            resume=resume,
            # brokers forget the positions of a deleted topic, so the new one looks like one never consumed
            newborn=isinstance(writer, RememberingWriter) and writer.has_earlier_topic,
            earlier=earlier,
            previous=previous,
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
            # looked up only for positions above the chain's end, which are rare: it costs a read
            missing = (
                await writer.find_missing(decided.position) if resume is None or decided.position > resume else None
            )
            return decided if missing is None else decided.blame(missing)
        return decided

    async def _carry_out(self, situation: _Situation, request: OffsetRequest, *, moved: bool) -> StartAt:
        """Decide how a request is carried out.

        The reason for the request may be a truncation that is not recorded yet; then it is recorded here.
        """
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
        """Decide after a stop above the log's end; the log may have grown meanwhile."""
        if not pending.makes_void(situation.facts.stored):
            # another member has committed since: its position is valid, in the log after the truncation
            decided = await self._decide(situation)
            if isinstance(decided, Stop) or decided.truncation:
                return decided
            return replace(decided, committed=None, truncation=await self._note(situation, decided.position))
        if self._policy.on_above == "stop":
            stop = stop_above(pending, replaced=not self._ranges.logs_are_replicated)
            return replace(stop, refused=situation.facts.committed)
        partition = situation.claim.partition
        log = await self._read_range(partition)
        move = plan_lost_end(pending, log, self._policy.on_above)
        return await self._move_below(
            situation, move, self._explain_end(partition, pending.position, LogRange(log.earliest, pending.latest))
        )

    async def _decide(self, situation: _Situation) -> StartAt | Stop:
        claim, facts = situation.claim, situation.facts
        partition, stored, resume = claim.partition, facts.stored, facts.resume
        # looked up only without any position: it costs two reads per partition
        if stored is None and resume is None and not facts.newborn:
            facts = replace(facts, newborn=await self._history.made_after_group(partition))
        decided = plan_start(facts, self._policy)
        if isinstance(decided, StartAtEnd):
            log = await self._read_range(partition)
            position = log.earliest if decided.end == "earliest" else log.latest
            before = None if stored is None or stored.malformed is not None else stored.position
            plan = StartAt(position=position, committed=None, reason=decided.reason, before=before)
            if position == 0 or decided.reason not in _ALL_OURS:
                return plan
            return replace(plan, gap=Gap(0, position, GapReason.RETENTION))  # every log begins at offset 0
        if isinstance(decided, StartAt) and decided.reason in _BELIEVED:
            return await self._settle_above(situation, decided)
        return decided

    async def _settle_above(self, situation: _Situation, plan: StartAt) -> StartAt | Stop:
        """Decide about a committed position above the log's end.

        This happens before the sink's chain is moved to that position. Otherwise the chain would record offsets that do
        not exist, and later starts would rely on it.

        If the log still holds the sink's own position, nothing below that is delivered again. It is a truncation
        nevertheless: the member that committed may have landed the lost records, in its own folder.
        """
        partition = situation.claim.partition
        log = await self._read_range(partition)
        if plan.position <= log.latest:
            return plan
        lost: OffsetOutOfRange | None
        if not self._ranges.logs_are_replicated:
            # Final, since the new log may grow beyond the position. Nor would a fetch tell: Kafka 0.7 answers without
            # an error at any offset of a log to which nothing was written.
            lost = self._explain_end(partition, plan.position, log)
        elif plan.position <= await self._read_high_watermark(partition):
            # under read_committed, the readable end does not pass an open transaction; a member that reads uncommitted
            # has committed beyond it. The broker holds the position, and serves it when the transaction has ended
            return replace(plan, stable_end=log.latest)
        else:
            lost = await self._confirm_end_below(partition, plan.position)
        if lost is None:
            return plan
        outcome = plan_out_of_range(lost, self._policy, truncation=situation.number)
        if isinstance(outcome, Stop):
            return replace(outcome, refused=plan.position)
        return await self._move_below(situation, outcome, lost) if isinstance(outcome, Reposition) else plan

    async def _move_below(self, situation: _Situation, move: Reposition, lost: OffsetOutOfRange) -> StartAt:
        """Continue below a committed position that a truncation removed from the log.

        Delivery starts after the records that this sink has landed, so none is delivered twice. But it starts at the
        position of ``move`` if the log was replaced: then the sink has landed none of the present log.
        """
        resume, position, gap = situation.facts.resume, move.position, None
        if resume is not None and resume <= lost.latest and not lost.replaced:
            position, gap = max(resume, position), left_out(resume, position)
        begun = await self._begin_again(situation, position, move.reason)
        return replace(begun, gap=gap, out_of_range=lost)

    async def _ends_below(self, partition: TopicPartition, position: int) -> bool:
        """Return True if the log ends below ``position``, also behind an open transaction.

        Raises BrokerError, ConnectionLost.
        """
        if await self._reaches(partition, position):
            return False
        if not self._ranges.logs_are_replicated:
            return True
        return await self._confirm_end_below(partition, position) is not None

    async def _reaches(self, partition: TopicPartition, position: int) -> bool:
        """Return True if the log ends at or above ``position``. Raises BrokerError, ConnectionLost."""
        log = await self._read_range(partition)
        if position <= log.latest or not self._ranges.logs_are_replicated:
            return position <= log.latest
        return position <= await self._read_high_watermark(partition)

    def _explain_end(self, partition: TopicPartition, position: int, log: LogRange) -> OffsetOutOfRange:
        """Return the error of a position above a log's end."""
        replaced = not self._ranges.logs_are_replicated
        return OffsetOutOfRange(partition, position, log.earliest, log.latest, replaced=replaced)

    async def _confirm_end_below(self, partition: TopicPartition, position: int) -> OffsetOutOfRange | None:
        """Return the error of a fetch at ``position``, or None if the log reaches it.

        Before the fetch, the log end is read once more.

        The high watermark of a new leader may lag: for a moment, or for ``replica.lag.time.max.ms`` while a dead broker
        is still in the ISR. The log end offset tells a lagging log from a truncated one, but ListOffsets does not
        return it to consumers. A fetch depends on it (Kafka's ``Log.read``): above the log end offset it is refused;
        between high watermark and log end offset it returns nothing, and 0.8.2 returns UNKNOWN.
        """
        await asyncio.sleep(_TRAILING_S)
        if await self._reaches(partition, position):
            return None
        return await self._fetch_above(partition, position)

    async def _fetch_above(self, partition: TopicPartition, position: int) -> OffsetOutOfRange | None:
        """Return the error of a fetch at ``position``, or None if the broker holds it.

        Raises ConnectionLost if no broker answers.
        """
        feed = self._feeds.feed(partition, position)
        try:
            async with timeout(_PROBE_S):
                feed.done(await feed.next())
        except OffsetOutOfRange as error:
            return error
        except (CorruptMessageError, RecordTooLarge):
            return None  # an unreadable unit proves that the offset exists
        except TimeoutError:
            if feed.fault is not None or feed.heard_at is None:
                raise ConnectionLost(f"{partition}: no broker says whether it holds offset {position}") from None
            return None
        finally:
            feed.close()
        return None

    async def _begin_again(self, situation: _Situation, position: int, reason: StartReason) -> StartAt:
        """Start below the committed position, after a truncation."""
        number = await self._note(situation, position)
        return StartAt(position=position, committed=None, reason=reason, truncation=number)

    async def _note(self, situation: _Situation, position: int) -> int:
        """Record the truncation and the new position, unless recorded; return its number.

        Raises CoordinationError.
        """
        facts, known, number = situation.facts, situation.facts.truncation, situation.number + 1
        if situation.noted and facts.resume in (None, position):
            if known is not None and known.position == position:
                return known.number
            number = situation.number  # recorded, but no chain has begun at its position: record the new one instead
        if situation.pending is not None:
            number = max(number, situation.pending.number)
        noted = LogTruncation(number=number, position=position, voids=find_mark(facts.stored))
        await self._truncations.note(situation.claim, noted)
        return number

    async def note_lost_end(self, claim: Claim, lost: LostEnd) -> None:
        """Record in ZooKeeper that a truncation has made the stored position void. Raises CoordinationError.

        If another position was committed meanwhile, that one is valid, and only positions of landed files are void.
        """
        stored = await self._load(claim.partition)
        is_void = find_committed(stored, claim.incarnation) == lost.position
        await self._truncations.note_lost_end(claim, replace(lost, voids=find_mark(stored) if is_void else NO_MARK))

    async def moved(self, claim: Claim, earlier: EarlierAttempt | None) -> bool:
        """Return True if another process has changed the committed position.

        With ``earlier``, that is so if the committed position is neither the one that was committed nor the one that
        was acknowledged when the last attempt under this claim ended. Without ``earlier`` (the first attempt), any
        committed position was written by another process. Raises CoordinationError.
        """
        committed = find_committed(await self._load(claim.partition), claim.incarnation)
        known = (None,) if earlier is None else (earlier.committed, earlier.acknowledged)
        return committed not in known

    async def moved_from(self, claim: Claim, refused: int) -> bool:
        """Return True if the committed position is not ``refused`` any more. Raises CoordinationError."""
        return find_committed(await self._load(claim.partition), claim.incarnation) != refused

    async def holds(self, partition: TopicPartition, position: int) -> bool:
        """Return True if the log holds ``position``, so that it can be fetched.

        The log end is included. Raises BrokerError, ConnectionLost.
        """
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
