# SPDX-License-Identifier: Apache-2.0
"""Decides where a partition starts, and where it continues after an out-of-range position.

Pure. Sources of a start position, in order:

1. An operator's request.
2. The larger of the committed position and the sink's durable position, the end of its newest chain
   (:mod:`consumerd.landing.resuming`).
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
new chain's end, which looks as if another member had consumed further. So the note in ZooKeeper also names the
committed position that it makes void, by a number that identifies that one commit (``PositionToken.mark``). As long as
this position is stored, it is ignored, and delivery starts at the position of the note. (An operator's request needs no
such note: it is deleted with the commit, and the chain that it begins has its id.)
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import Final, Literal, assert_never

from consumerd.errors import OffsetOutOfRange
from consumerd.landing.resuming import LandedComparison
from consumerd.model import Gap, GapReason, Incarnation, LogRange
from consumerd.offsets.store import (
    LogTruncation,
    LostEnd,
    OffsetRequest,
    StoredOffset,
    Validity,
    is_believed,
    judge,
)

OnMissing = Literal["earliest", "latest", "stop"]
OnOutOfRange = Literal["earliest", "latest", "nearest", "stop"]
LogEnd = Literal["earliest", "latest"]
UnitPolicy = Literal["stop", "skip", "quarantine"]


OFFSETS_SET: Final = "`consumerd offsets set TOPIC/PARTITION=POSITION`"
"""The command by which an operator sets a partition's position."""

_BELOW: Final = "retention has overtaken the group"
_ABOVE: Final = "the log was truncated by an unclean leader election, or the offset is another cluster's"
_REPLACED: Final = "the broker was wiped and its log is another one, or the offset is another cluster's"


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetPolicy:
    """Policies for a missing position, and for one below or above the log.

    ``nearest`` continues at the log's start if the position is below it, else at its end.
    """

    on_missing: OnMissing = "earliest"
    on_below: OnOutOfRange = "stop"
    on_above: OnOutOfRange = "stop"


class StartReason(enum.StrEnum):
    """Reason for a start position; sinks that land files record it."""

    COMMITTED = "committed"
    LANDED = "landed"
    """The landed files end above the committed position, or none is committed."""
    CONSUMED_ELSEWHERE = GapReason.CONSUMED_ELSEWHERE.value
    """Another member committed a position beyond the landed files; the sink records the gap."""
    RESUMED = "resumed"
    """Delivery continues after a failure, within the same claim."""
    MISSING_FILE = GapReason.MISSING_FILE.value
    """This group itself committed a position beyond its landed files: the newest files were removed."""
    NEW_PARTITION = "new partition"
    """The partition was created after the group had begun with the topic.

    So no record may be missed.
    """
    NEW_INCARNATION = "new incarnation"
    """The stored position belongs to a deleted topic of the same name."""
    ON_MISSING = "on_missing"
    ON_BELOW = "on_below"
    ON_ABOVE = "on_above"
    REQUEST = "request"
    """An operator set the position (``consumerd offsets set``)."""


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
    """Facts about a claimed partition that decide its start.

    Args:
        incarnation: The present topic's identity.
        stored: The committed position with its metadata, as read after the claim; None if there is none.
        resume: The offset after the sink's landed files; None without files, or if a truncation has voided them.
        newborn: True if the partition was created after the group had begun with its topic: no record may be missed.
        earlier: Progress of an earlier attempt under the same claim; None for the first attempt.
        previous: Positions that this process may have committed for an older topic of the same name; None without any.
        truncation: The last recorded truncation of the log; None without any.
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
        """Committed position; None if there is none, or if it is void.

        It is void if it was committed for a deleted topic of the same name, or for the part of the log that a
        truncation has removed.
        """
        if self.truncation is not None and self.truncation.makes_void(self.stored):
            return None
        return find_committed(self.stored, self.incarnation)


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierAttempt:
    """Positions at the end of an earlier attempt under the same claim.

    ``acknowledged`` is the acknowledged position, ``committed`` the committed position as known at that time, None
    without one.
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
        """Return True if ``stored`` may be a late commit for the older topic.

        That is the case if the topic is, or may be, a later one (``incarnation`` differs) and the stored position lies
        in ``[committed, acknowledged]``. A position that was committed with the id of the present topic is of that one:
        a late commit names the older topic.
        """
        is_recreated = incarnation.is_later_topic(self.incarnation) is not False  # None: topic ids have no order
        is_named = bool(incarnation.topic_id) and judge(stored, incarnation) is Validity.VALID
        return is_recreated and not is_named and self.committed <= stored.position <= self.acknowledged


@dataclass(frozen=True, slots=True, kw_only=True)
class StartAt:
    """Decision to deliver a partition from ``position`` on.

    A *chain* is a run of landed files of the partition without overlap.

    Args:
        committed: The valid committed position, or None.
        gap: Offsets that another member consumed, that a request leaves out, or that a new log has lost already.
        behind: True if the committed position is lower than the end of the landed files.
        out_of_range: Set if a policy has moved a committed position that the broker does not hold.
        missing: Offsets that had landed, but whose file is missing now.
        lead: A gap that the sink must record before anything is committed.
        new_chain: True if a new chain begins at the position, as in :class:`~consumerd.sinks.base.Start`.
        truncation: Number of truncations of the log (unclean leader elections) so far.
        begun_by: Id of the operator's request that begins the chain, or None.
        request: The operator's request that the first commit carries out, or None.
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
        """Return a copy in which ``missing`` explains the first part of ``gap``.

        The records of ``missing`` had landed, and their file was removed. ``gap`` becomes the rest, which another
        member has consumed, or None if nothing is left.
        """
        if self.gap is None:
            return replace(self, missing=missing)
        elsewhere = Gap(missing.end, self.gap.end, self.gap.reason) if missing.end < self.gap.end else None
        reason = self.reason if elsewhere is not None else StartReason.MISSING_FILE
        return replace(self, missing=missing, gap=elsewhere, reason=reason)

    @property
    def first_offset(self) -> int:
        """First offset to be fetched: the position, or the end of ``lead``."""
        return self.position if self.lead is None else self.lead.end

    def repeats(self, earlier: StartAt) -> bool:
        """Return True if this start is the same as ``earlier``, whose commit was not confirmed.

        The pipeline then reports the reason of the earlier start, because that of a repetition says less.
        """
        if self.first_offset != earlier.first_offset:
            return False
        if self.request is not None:
            return earlier.request is not None and earlier.request.id == self.request.id
        return self.reason in (StartReason.RESUMED, StartReason.LANDED)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartAtEnd:
    """Decision to start at the earliest or latest offset of the log (``end``).

    The caller reads that offset from a broker, and commits it before delivery.
    """

    end: LogEnd
    reason: StartReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Decision to keep a partition claimed, but deliver nothing of it.

    Args:
        cause: The reason, as a label.
        advice: The reason and the way out, for operators.
        refused: The committed position that a policy refused before a writer was started there; None if the stop has
            another cause. The stop ends when another position is committed.
        by_sink: True if the sink has refused a record or a call.
        lost_end: The truncation about which an operator has to decide; None without one. With it, the stop does not end
            when the log grows.
    """

    cause: StopCause
    advice: str
    refused: int | None = None
    by_sink: bool = False
    lost_end: LostEnd | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reposition:
    """Decision, by a policy for out-of-range positions, to continue at ``position``.

    ``reason`` says which policy. ``gaps`` are the offsets passed over; empty if the position moves back.
    """

    position: int
    reason: StartReason
    gaps: tuple[Gap, ...]


@dataclass(frozen=True, slots=True)
class TryAgain:
    """Decision to fetch again: the out-of-range position is in the log after all."""


def find_committed(stored: StoredOffset | None, incarnation: Incarnation) -> int | None:
    """Return the committed position; None if there is none for the present topic.

    A stored position that was probably written for a deleted topic of the same name does not count.

    Args:
        stored: The position in the store, with its metadata; None if there is none.
        incarnation: Identifies the present topic among those of its name.
    """
    believed = stored is not None and is_believed(judge(stored, incarnation), incarnation)
    return stored.position if stored is not None and believed else None


def plan_start(facts: StartFacts, policy: OffsetPolicy) -> StartAt | StartAtEnd | Stop:
    """Return the decision where a claimed partition starts, without an operator's request.

    The order of the sources, and examples, are in the module's description. A StartAtEnd names an end of the log, whose
    offset the caller has to read from a broker.
    """
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
    """Return the start that carries out an operator's request, or continues it after a crash.

    The request begins a new chain of landed files. Nothing is delivered before the commit, so the chain is empty until
    then. Planned again after a crash, the request continues in that chain instead of beginning another.

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
    """Return the gap from ``last`` to ``position``, which a request or a reset leaves out.

    None if ``last`` is unknown (None), or not below ``position``.

    Args:
        last: Next offset that would have been delivered; None if it is unknown.
        position: The new position.
    """
    return Gap(last, position, GapReason.RESET) if last is not None and position > last else None


def _plan_resume(resume: int, committed: int | None) -> StartAt:
    compared = LandedComparison(committed, resume)
    start = StartAt(
        position=compared.position,
        committed=committed,
        reason=StartReason.LANDED,
        behind=compared.not_committed is not None,
    )
    if compared.not_landed is None:
        return start
    gap = Gap(*compared.not_landed, GapReason.CONSUMED_ELSEWHERE)
    return replace(start, reason=StartReason.CONSUMED_ELSEWHERE, gap=gap)


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
    """Return the decision after the broker has refused the position as out of range.

    TryAgain if the position is in the log's range after all; Stop or Reposition as the policy says.

    Args:
        error: The position and the log's range, confirmed with ListOffsets.
        policy: The group's settings.
        truncation: Number of unclean leader elections that have cut the log so far.
    """
    if not error.replaced and in_log(error.offset, LogRange(error.earliest, error.latest)):
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
            lost = LostEnd(number=number, position=error.offset, earliest=error.earliest, latest=error.latest)
            return stop_above(lost, replaced=error.replaced)
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


def stop_above(lost: LostEnd, *, replaced: bool = False) -> Stop:
    """Return the stop of a partition whose position is above its log's end.

    The log was truncated, and an operator must decide where delivery continues.

    Args:
        lost: The position and the log's range.
        replaced: True if the log has no replicas, so that it is another one, as in ``OffsetOutOfRange.replaced``.
    """
    # records of the old log that were delivered, but not landed, may have ended above the new log's end
    where = "above the log" if lost.position > lost.latest else "of an earlier log than the present one"
    return Stop(
        cause=StopCause.ABOVE_LOG,
        advice=f"offset {lost.position} is {where}, which was [{lost.earliest}, {lost.latest}) when it was seen "
        f"({_REPLACED if replaced else _ABOVE}): say where to go on with {OFFSETS_SET}, or set offsets.on_above. "
        "That the log grows beyond the "
        "offset does not end this: the records there are others",
        lost_end=lost,
    )


def wait_above(lost: LostEnd, safe: int) -> Stop:
    """Return a stop that ends by itself, as soon as the log's end reaches ``safe``.

    No landed record is beyond the log's end, so no operator has to decide, unlike in :func:`stop_above`.

    Args:
        lost: The position that was found above the log, and the log's range at that time.
        safe: Position at which delivery continues: acknowledged by the sink, or set by an operator ahead of the log.
    """
    return Stop(
        cause=StopCause.ABOVE_LOG,
        advice=f"offset {lost.position} is above the log, which was [{lost.earliest}, {lost.latest}) when it was seen: "
        f"it goes on at {safe} as soon as the log reaches it; or say where to go on with {OFFSETS_SET}",
    )


def plan_lost_end(lost: LostEnd, log: LogRange, on_above: OnOutOfRange) -> Reposition:
    """Return the position at which delivery continues after a stop above the log's end.

    The log may have grown beyond the old position meanwhile. With the policy ``nearest`` the position is the end that
    the log had then, limited to its present range.
    """
    position = log.latest
    if on_above == "earliest":
        position = log.earliest
    elif on_above == "nearest":
        position = min(max(lost.latest, log.earliest), log.latest)
    return Reposition(position=position, reason=StartReason.ON_ABOVE, gaps=())


def in_log(position: int, log: LogRange) -> bool:
    """Return True if ``position`` is from the log's first offset to its end.

    The end is included: the next record will have that offset, so a fetch there is valid.
    """
    return log.earliest <= position <= log.latest
