# SPDX-License-Identifier: Apache-2.0
"""Decides where a partition starts, and where it goes on after an out-of-range position.

Pure. Sources of a start position, in order:

1. An operator's request.
2. The larger of the committed position and the sink's durable position, the end of its newest chain.
3. The earliest offset, for a partition that was created after the group had begun with its topic.
4. ``offsets.on_missing``.

If the broker does not hold the position, ``on_below`` or ``on_above`` decides. Offsets that are passed over become a
:class:`~consumerd.model.Gap`.

Examples, with a log that holds offsets [50, 300):

=================  =========  ==================  ===================================================
committed          chain end  policy              start
=================  =========  ==================  ===================================================
120                none                           120, committed
120                120                            120, landed
120                150                            150, landed: the last commit was lost
200                150                            200, consumed elsewhere: gap 150-199
none               none       on_missing latest   300, on_missing
30                 30         on_below stop       stopped: retention has deleted 30-49
30                 30         on_below earliest   50, on_below: gap 30-49
400                400        on_above stop       stopped: the log was truncated
400                400        on_above nearest    300, on_above: truncation noted, a new chain begins
=================  =========  ==================  ===================================================

**Moving back.** After a truncation (an unclean leader election), the position moves below what has landed. Three steps,
in order: the truncation is recorded in ZooKeeper (:class:`~consumerd.offsets.store.LogTruncation`), a new chain is
begun at the new position, the position is committed. A crash before the commit leaves a committed position above the
new chain's end, which looks as if another member had consumed further. So the record names the transaction that wrote
the offset node (``mzxid``): until the node is written again, it is void, and the record decides. (An operator's request
is not deleted before the commit, and its chain bears its id.)
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import Final, Literal, assert_never

from consumerd.errors import OffsetOutOfRange
from consumerd.model import Gap, GapReason, Incarnation, LogRange
from consumerd.offsets.store import LogTruncation, LostEnd, OffsetRequest, StoredOffset, Validity, judge

OnMissing = Literal["earliest", "latest", "stop"]
OnOutOfRange = Literal["earliest", "latest", "nearest", "stop"]
LogEnd = Literal["earliest", "latest"]
UnitPolicy = Literal["stop", "skip", "quarantine"]


OFFSETS_SET: Final = "`consumerd offsets set TOPIC/PARTITION=POSITION`"
"""The command by which an operator sets a partition's position."""

_BELOW: Final = "retention has overtaken the group"
_ABOVE: Final = "the log has lost its end in an unclean leader election, or the offset is another cluster's"


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetPolicy:
    """Policies for a missing position, and for one below or above the log.

    ``nearest`` is the end of the log that was exceeded.
    """

    on_missing: OnMissing = "earliest"
    on_below: OnOutOfRange = "stop"
    on_above: OnOutOfRange = "stop"


class StartReason(enum.StrEnum):
    """The reason for a start position; sinks that keep chains record it."""

    COMMITTED = "committed"
    LANDED = "landed"
    """The sink's durable position is ahead of the committed one, or the only one."""
    CONSUMED_ELSEWHERE = GapReason.CONSUMED_ELSEWHERE.value
    """Another member committed beyond the sink's durable position; the sink records the gap."""
    RESUMED = "resumed"
    """Resumes within the same claim after a failure."""
    MISSING_FILE = GapReason.MISSING_FILE.value
    """This group itself committed beyond its landed files: the newest files were removed."""
    NEW_PARTITION = "new partition"
    """Created after the group had begun with the topic, so no record may be missed."""
    NEW_INCARNATION = "new incarnation"
    """The stored position belongs to a deleted topic of the same name."""
    ON_MISSING = "on_missing"
    ON_BELOW = "on_below"
    ON_ABOVE = "on_above"
    REQUEST = "request"
    """An operator set the position."""


class StopCause(enum.StrEnum):
    """The reason why a claimed partition is stopped; also a metric label."""

    NO_OFFSET = "no offset"
    MALFORMED_OFFSET = "malformed offset"
    BELOW_LOG = "below log"
    ABOVE_LOG = "above log"
    CORRUPT = "corrupt"
    OVERSIZED = "oversized"
    REJECTED = "rejected"
    MISSING_LIBRARY = "missing library"
    """The data are valid, but this installation lacks the library of their compression codec."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartFacts:
    """The facts about a claimed partition that decide its start.

    Args:
        stored: The offset node as read after the claim.
        resume: The sink's durable position, unless a truncation has voided it.
        newborn: True if the partition was created after the group had begun with its topic.
        earlier: Progress of an earlier attempt under the same claim, if there was one.
        previous: Positions committed by this process for an older topic of the same name, if any.
        truncation: The last recorded truncation of the log.
    """

    incarnation: Incarnation
    stored: StoredOffset | None
    resume: int | None
    newborn: bool
    earlier: EarlierAttempt | None = None
    previous: PreviousClaim | None = None
    truncation: LogTruncation | None = None

    @property
    def committed(self) -> int | None:
        """The committed position, or None if there is none or it is void."""
        if self.truncation is not None and self.truncation.makes_void(self.stored):
            return None
        return find_committed(self.stored, self.incarnation)


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierAttempt:
    """Progress of an earlier attempt under the same claim.

    ``committed`` is the committed position as known at the time.
    """

    acknowledged: int
    committed: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviousClaim:
    """Positions that this process may have committed under an older claim: ``[committed, acknowledged]``.

    A commit sent at the moment when the topic is re-created gets a newer transaction id than the topic, although it is
    about the old topic. Only its sender can know that.

    Example: this process delivered T/0 of the old topic up to 500 and had committed 400. The topic is re-created, and
    its offset node reads 450, written after the re-creation. 450 lies in [400, 500], so it is taken for an old commit,
    and delivery starts at the earliest offset.
    """

    incarnation: Incarnation
    committed: int
    acknowledged: int

    def voids(self, stored: StoredOffset, incarnation: Incarnation) -> bool:
        """Return True if ``stored`` is such a position, found in a newer incarnation."""
        return self.incarnation < incarnation and self.committed <= stored.position <= self.acknowledged


@dataclass(frozen=True, slots=True, kw_only=True)
class StartAt:
    """Start at ``position``.

    Args:
        committed: The valid committed position in the store, or None.
        gap: Offsets that another member consumed, that a request leaves out, or that a new log has lost already.
        behind: True if the committed position is lower than the sink's durable position.
        out_of_range: Set if a policy has moved a committed position that the broker does not hold.
        missing: Offsets that had landed, but whose file is missing now.
        lead: A gap to be landed before anything is committed.
        new_chain: As in :class:`~consumerd.sinks.base.Start`, like ``truncation`` and ``begun_by``, a request's id.
        request: The request that the first commit carries out.
        before: The position that a request, or the re-creation of the topic, overrode.
        stable_end: The last stable offset, if the position lies beyond it: nothing is delivered until the open
            transaction before it has ended.
        ahead: True if a request asks for a position that the log has not reached yet.
    """

    position: int
    committed: int | None
    reason: StartReason
    gap: Gap | None = None
    behind: bool = False
    out_of_range: OffsetOutOfRange | None = None
    missing: Gap | None = None
    lead: Gap | None = None
    new_chain: bool = False
    truncation: int = 0
    begun_by: str | None = None
    request: OffsetRequest | None = None
    before: int | None = None
    stable_end: int | None = None
    ahead: bool = False

    def blame(self, missing: Gap) -> StartAt:
        """Return the same start, with the ``missing`` offsets split off from ``gap``."""
        if self.gap is None:
            return replace(self, missing=missing)
        elsewhere = Gap(missing.end, self.gap.end, self.gap.reason) if missing.end < self.gap.end else None
        reason = self.reason if elsewhere is not None else StartReason.MISSING_FILE
        return replace(self, missing=missing, gap=elsewhere, reason=reason)

    @property
    def first_offset(self) -> int:
        """The first offset to be fetched."""
        return self.position if self.lead is None else self.lead.end

    def repeats(self, earlier: StartAt) -> bool:
        """Return True if this only repeats a start whose commit was not confirmed.

        Then the earlier start tells the reason.
        """
        if self.first_offset != earlier.first_offset:
            return False
        if self.request is not None:
            return earlier.request is not None and earlier.request.id == self.request.id
        return self.reason in (StartReason.RESUMED, StartReason.LANDED)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartAtEnd:
    """Start at one end of the log, and commit that position at once."""

    end: LogEnd
    reason: StartReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Keep the partition claimed, but deliver nothing of it.

    Args:
        cause: The reason, as a label.
        advice: The reason and the way out, for operators.
        refused: The committed position that was refused before a writer was started there.
        by_sink: True if the sink refused.
        lost_end: The truncation that an operator has to decide upon. The stop does not end when the log grows.
    """

    cause: StopCause
    advice: str
    refused: int | None = None
    by_sink: bool = False
    lost_end: LostEnd | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reposition:
    """Go on at ``position``; ``gaps`` are passed over, and empty if the position moves back."""

    position: int
    reason: StartReason
    gaps: tuple[Gap, ...]


@dataclass(frozen=True, slots=True)
class TryAgain:
    """The position is in the log after all."""


def find_committed(stored: StoredOffset | None, incarnation: Incarnation) -> int | None:
    """Return the committed position if it is readable and of this incarnation, else None."""
    return stored.position if stored is not None and judge(stored, incarnation) is Validity.VALID else None


def plan_start(facts: StartFacts, policy: OffsetPolicy) -> StartAt | StartAtEnd | Stop:
    """Decide where a claimed partition starts."""
    committed = facts.committed
    if (
        facts.previous is not None
        and facts.stored is not None
        and facts.previous.voids(facts.stored, facts.incarnation)
    ):
        committed = None
        if facts.resume is None:
            return StartAtEnd(end="earliest", reason=StartReason.NEW_INCARNATION)
    truncation = facts.truncation
    if truncation is not None and truncation.makes_void(facts.stored):
        if facts.resume is not None:
            return StartAt(position=facts.resume, committed=None, reason=StartReason.LANDED)
        return StartAt(position=truncation.position, committed=None, reason=StartReason.ON_ABOVE)
    earlier = facts.earlier
    if earlier is not None and committed in (earlier.committed, earlier.acknowledged):
        # the committed position was not moved by others, so our own acknowledged position is the best source
        position = max(earlier.acknowledged, facts.resume or 0)
        return StartAt(position=position, committed=committed, reason=StartReason.RESUMED)
    if facts.resume is not None:
        return _plan_resume(facts.resume, committed)
    if committed is not None:
        return StartAt(position=committed, committed=committed, reason=StartReason.COMMITTED)
    return _plan_missing(facts, policy)


def plan_request(request: OffsetRequest, facts: StartFacts, *, lost_end: bool = False) -> StartAt:
    """Decide how an operator's request is carried out, or continued after a crash.

    Nothing is delivered before the commit, so the request's chain is empty until then. Planned again after a crash, the
    request continues in that chain instead of beginning another.

    Args:
        lost_end: True if the log ends below the consumed position. From its end on, the same offsets are other records,
            which must not land in an old chain.
    """
    resume, position = facts.resume, request.position
    before = resume if resume is not None else facts.committed
    start = StartAt(
        position=position,
        committed=None,
        reason=StartReason.REQUEST,
        begun_by=request.id,
        request=request,
        before=before,
    )
    if resume is None:
        return replace(start, new_chain=request.new_chain, gap=left_out(before, position))
    if position < resume or request.new_chain or lost_end:
        return replace(start, new_chain=True, gap=left_out(resume, position))
    return replace(start, position=resume, begun_by=None, lead=left_out(resume, position))


def left_out(last: int | None, position: int) -> Gap | None:
    """Return the gap from ``last`` to ``position``, or None if there is none.

    ``last`` is the next offset that would have been delivered.
    """
    return Gap(last, position, GapReason.RESET) if last is not None and position > last else None


def _plan_resume(resume: int, committed: int | None) -> StartAt:
    if committed is not None and committed > resume:
        return StartAt(
            position=committed,
            committed=committed,
            reason=StartReason.CONSUMED_ELSEWHERE,
            gap=Gap(resume, committed, GapReason.CONSUMED_ELSEWHERE),
        )
    behind = committed is not None and committed < resume
    return StartAt(position=resume, committed=committed, reason=StartReason.LANDED, behind=behind)


def _plan_missing(facts: StartFacts, policy: OffsetPolicy) -> StartAtEnd | Stop:
    if facts.stored is not None:
        if judge(facts.stored, facts.incarnation) is Validity.ANOTHER_INCARNATION:
            return StartAtEnd(end="earliest", reason=StartReason.NEW_INCARNATION)
        return Stop(
            cause=StopCause.MALFORMED_OFFSET,
            advice=f"the committed offset reads {facts.stored.malformed!r}: say where to begin with {OFFSETS_SET}, "
            "or remove the node",
        )
    if facts.newborn:
        return StartAtEnd(end="earliest", reason=StartReason.NEW_PARTITION)
    if policy.on_missing == "stop":
        return Stop(
            cause=StopCause.NO_OFFSET,
            advice=f"no offset is committed and offsets.on_missing is stop: say where to begin with {OFFSETS_SET}",
        )
    return StartAtEnd(end=policy.on_missing, reason=StartReason.ON_MISSING)


def plan_out_of_range(
    error: OffsetOutOfRange, policy: OffsetPolicy, *, truncation: int = 0
) -> Reposition | Stop | TryAgain:
    """Decide what follows a position that the broker does not hold.

    Args:
        error: The position and the log's range, confirmed.
        policy: The group's settings.
        truncation: The number of the log's last truncation.
    """
    if in_log(error.offset, LogRange(error.earliest, error.latest)):
        return TryAgain()
    below = error.offset < error.earliest
    choice = policy.on_below if below else policy.on_above
    match choice:
        case "stop" if below:
            return Stop(
                cause=StopCause.BELOW_LOG,
                advice=f"offset {error.offset} is below the log, which is [{error.earliest}, {error.latest}) "
                f"({_BELOW}): say where to go on with {OFFSETS_SET}, or set offsets.on_below",
            )
        case "stop":
            number = truncation + 1
            return stop_above(
                LostEnd(number=number, position=error.offset, earliest=error.earliest, latest=error.latest)
            )
        case "nearest":
            target = error.earliest if below else error.latest
        case "earliest":
            target = error.earliest
        case "latest":
            target = error.latest
        case _:
            assert_never(choice)
    if not below:
        return Reposition(position=target, reason=StartReason.ON_ABOVE, gaps=())
    gaps = [Gap(error.offset, error.earliest, GapReason.RETENTION)]
    if target > error.earliest:
        gaps.append(Gap(error.earliest, target, GapReason.RESET))
    return Reposition(position=target, reason=StartReason.ON_BELOW, gaps=tuple(gaps))


def stop_above(lost: LostEnd) -> Stop:
    """Return the stop for a position above the log's end."""
    return Stop(
        cause=StopCause.ABOVE_LOG,
        advice=f"offset {lost.position} is above the log, which was [{lost.earliest}, {lost.latest}) when it was seen "
        f"({_ABOVE}): say where to go on with {OFFSETS_SET}, or set offsets.on_above. That the log grows beyond the "
        "offset does not end this: the records there are others",
        lost_end=lost,
    )


def wait_above(lost: LostEnd, safe: int) -> Stop:
    """Return the stop for a position that the log has not reached yet.

    Args:
        lost: The log as it was found.
        safe: The position at which delivery goes on: set by an operator, or acknowledged by the sink.
    """
    return Stop(
        cause=StopCause.ABOVE_LOG,
        advice=f"offset {lost.position} is above the log, which was [{lost.earliest}, {lost.latest}) when it was seen: "
        f"it goes on at {safe} as soon as the log reaches it; or say where to go on with {OFFSETS_SET}",
    )


def plan_lost_end(lost: LostEnd, log: LogRange, on_above: OnOutOfRange) -> Reposition:
    """Decide where a policy goes on after a stop above the log's end.

    The log may have grown beyond the old position meanwhile. ``nearest`` is the end as it was found then, limited to
    the log's present range.
    """
    position = log.latest
    if on_above == "earliest":
        position = log.earliest
    elif on_above == "nearest":
        position = min(max(lost.latest, log.earliest), log.latest)
    return Reposition(position=position, reason=StartReason.ON_ABOVE, gaps=())


def in_log(position: int, log: LogRange) -> bool:
    """Return True if a fetch from ``position`` is valid.

    The log's end is valid: the next record will have that offset.
    """
    return log.earliest <= position <= log.latest
