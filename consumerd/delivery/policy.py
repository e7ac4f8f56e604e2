# SPDX-License-Identifier: Apache-2.0
"""Where a partition starts, and where it goes on when its position is not in the log. Pure.

Sources of a start, in order: an operator's request; the sink's own durable record (the newest chain's end) and the
committed position, the larger of the two; then the rule for partitions younger than the group; then ``on_missing``. A
position that the broker does not hold goes by ``on_below`` or ``on_above``. Whatever is passed over becomes a
:class:`~consumerd.model.Gap`.

Going back. Where a log has lost its end, the position moves below what has landed: that is noted for the group
(:class:`~consumerd.offsets.store.LogTruncation`), a new chain is begun there, and then the position is committed. A crash
before the commit leaves a committed position above the new chain's end, which looks just as if another member had
consumed further. So the note names the very offset node that it makes void; whoever finds the node as it still is goes
on by the note. (An operator's request stays until the commit, and its chain bears its id.)
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
"""The command by which an operator says where a partition goes on."""

_BELOW: Final = "retention has overtaken the group"
_ABOVE: Final = "the log has lost its end in an unclean leader election, or the offset is another cluster's"


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetPolicy:
    """What to do without a position, and with one that the log does not hold (``nearest`` is the violated end)."""

    on_missing: OnMissing = "earliest"
    on_below: OnOutOfRange = "stop"
    on_above: OnOutOfRange = "stop"


class StartReason(enum.StrEnum):
    """How a first position came about; recorded by sinks that keep chains."""

    COMMITTED = "committed"
    LANDED = "landed"
    """The sink's own record is ahead of the committed position, or the only one there is."""
    CONSUMED_ELSEWHERE = GapReason.CONSUMED_ELSEWHERE.value
    """Committed by another member beyond what the sink has landed; the sink records the gap."""
    RESUMED = "resumed"
    """Goes on within the same claim after a failure."""
    MISSING_FILE = GapReason.MISSING_FILE.value
    """Committed by this group itself beyond what is landed, and nothing else: the newest files were removed."""
    NEW_PARTITION = "new partition"
    """Made after the group had begun with the topic: nothing of it may be missed."""
    NEW_INCARNATION = "new incarnation"
    """The stored position belongs to a topic that was deleted."""
    ON_MISSING = "on_missing"
    ON_BELOW = "on_below"
    ON_ABOVE = "on_above"
    REQUEST = "request"
    """An operator said where to go on."""


class StopCause(enum.StrEnum):
    """Why a partition is claimed and stopped; few and fixed, so that it can be a metric's label."""

    NO_OFFSET = "no offset"
    MALFORMED_OFFSET = "malformed offset"
    BELOW_LOG = "below log"
    ABOVE_LOG = "above log"
    CORRUPT = "corrupt"
    OVERSIZED = "oversized"
    REJECTED = "rejected"
    MISSING_LIBRARY = "missing library"
    """Nothing is wrong with the data: what it is compressed with cannot be read by this installation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartFacts:
    """What is known when a partition was claimed.

    ``stored`` is the offset node as it was read after the claim, ``resume`` the sink's own record unless a truncation has
    made it void, ``newborn`` whether the partition was made after the group had begun with its topic, ``truncation`` the
    last time that the log has lost its end. When the claim delivered before, ``earlier`` says how far; when this process
    held the partition of an older topic of the same name, ``former`` does.
    """

    incarnation: Incarnation
    stored: StoredOffset | None
    resume: int | None
    newborn: bool
    earlier: Earlier | None = None
    former: Former | None = None
    truncation: LogTruncation | None = None

    @property
    def committed(self) -> int | None:
        """The committed position, if there is one that counts."""
        if self.truncation is not None and self.truncation.makes_void(self.stored):
            return None
        return find_committed(self.stored, self.incarnation)


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """How far the same claim had got before it had to start again: ``committed`` as noted from the store then."""

    acknowledged: int
    committed: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Former:
    """What this process may have committed under an older claim: any position of ``[committed, acknowledged]``.

    A commit that is sent at the moment in which the topic is made again carries the younger transaction, though it is
    about the older topic: only who sent it can know that.
    """

    incarnation: Incarnation
    committed: int
    acknowledged: int

    def voids(self, stored: StoredOffset, incarnation: Incarnation) -> bool:
        """Tell whether ``stored`` is one of those, met in a later making of the topic."""
        return self.incarnation < incarnation and self.committed <= stored.position <= self.acknowledged


@dataclass(frozen=True, slots=True, kw_only=True)
class StartAt:
    """Start at ``position``.

    ``committed`` is what the store holds and counts, None where it holds nothing valid. ``gap`` is what another member
    consumed beyond the sink's record, what a request leaves out, or what a new log has lost already; ``behind`` says
    that the committed position is smaller than that record. ``out_of_range`` is set where a policy has moved a committed position that the broker does
    not hold. ``missing`` was landed once, and its file is not there any more. ``lead`` is to be delivered, as a gap,
    and to be safe before anything is committed. ``before`` is where it would have started without the request, or had
    the topic not been made again. ``stable_end`` is set where the position lies beyond the last stable offset: nothing
    is delivered until the open transaction before it has ended. ``ahead`` is set where a request asks for a position
    that the log does not reach yet. ``new_chain``, ``truncation``
    and ``begun_by`` (a request's id) are as in :class:`~consumerd.sinks.base.Start`; ``request`` is what the
    first commit fulfils.
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
        """Return the same start, with what another member seemed to have consumed told from what is missing."""
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
        """Tell whether this only goes on with a start whose commit was not heard of; that one says how it came about."""
        if self.first_offset != earlier.first_offset:
            return False
        if self.request is not None:
            return earlier.request is not None and earlier.request.id == self.request.id
        return self.reason in (StartReason.RESUMED, StartReason.LANDED)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartAtEnd:
    """Ask the broker for one end of the log, start there, and commit that at once."""

    end: LogEnd
    reason: StartReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Keep the partition claimed and deliver nothing of it; ``advice`` says what an operator can do.

    Args:
        cause: The reason, as a label.
        advice: The reason and the way out, for people.
        refused: The committed position that was refused before anything was opened there.
        by_sink: True where it is the sink that refused.
        lost_end: The truncation that somebody has to decide upon. The log may grow as it likes: it ends no such stop.
    """

    cause: StopCause
    advice: str
    refused: int | None = None
    by_sink: bool = False
    lost_end: LostEnd | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reposition:
    """Go on at ``position``; ``gaps`` are what is passed over, empty where the position moves back."""

    position: int
    reason: StartReason
    gaps: tuple[Gap, ...]


@dataclass(frozen=True, slots=True)
class TryAgain:
    """The position is in the log after all."""


def find_committed(stored: StoredOffset | None, incarnation: Incarnation) -> int | None:
    """Return the committed position, if there is one that can be read and that belongs to the topic as it is now."""
    return stored.position if stored is not None and judge(stored, incarnation) is Validity.VALID else None


def plan_start(facts: StartFacts, policy: OffsetPolicy) -> StartAt | StartAtEnd | Stop:
    """Decide where a claimed partition starts."""
    committed = facts.committed
    if facts.former is not None and facts.stored is not None and facts.former.voids(facts.stored, facts.incarnation):
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
        # nobody moved the committed position meanwhile: what we know ourselves is the best there is
        position = max(earlier.acknowledged, facts.resume or 0)
        return StartAt(position=position, committed=committed, reason=StartReason.RESUMED)
    if facts.resume is not None:
        return _plan_resume(facts.resume, committed)
    if committed is not None:
        return StartAt(position=committed, committed=committed, reason=StartReason.COMMITTED)
    return _plan_missing(facts, policy)


def plan_request(request: OffsetRequest, facts: StartFacts, *, lost_end: bool = False) -> StartAt:
    """Decide how an operator's request is carried out; one that was interrupted goes on where it was.

    Its chain, if it has begun, ends where it begins, since nothing is delivered before the commit: asked for once more,
    the writer begins no other. ``lost_end``: the log ends below what the group has consumed, so that from its end on
    the same offsets are other records, which no chain of before may hold.
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
    """Return what is left out where delivery goes on at ``position`` and ``last`` would have come next, if anything."""
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
        error: The position and the log, confirmed.
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
    """Return the stop for a position above the log's end, and its way out."""
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
        safe: The position up to which all is safe: as an operator has asked for, or as far as a sink has taken records.
    """
    return Stop(
        cause=StopCause.ABOVE_LOG,
        advice=f"offset {lost.position} is above the log, which was [{lost.earliest}, {lost.latest}) when it was seen: "
        f"it goes on at {safe} as soon as the log reaches it; or say where to go on with {OFFSETS_SET}",
    )


def plan_lost_end(lost: LostEnd, log: LogRange, on_above: OnOutOfRange) -> Reposition:
    """Decide by a policy where to go on after a stop above the log's end.

    The policy was set since. The log may have grown beyond the old position: ``nearest`` is the end that was found
    then, as far as the log holds it.
    """
    position = log.latest
    if on_above == "earliest":
        position = log.earliest
    elif on_above == "nearest":
        position = min(max(lost.latest, log.earliest), log.latest)
    return Reposition(position=position, reason=StartReason.ON_ABOVE, gaps=())


def in_log(position: int, log: LogRange) -> bool:
    """Tell whether a fetch from ``position`` is valid; the log's end is, since the next record goes there."""
    return log.earliest <= position <= log.latest
