"""Where a partition starts, and where it goes on when its position is not in the log. Pure.

Sources of a start, in order: the sink's own durable record (the newest chain's end) and the committed position, the
larger of the two; then the rule for partitions younger than the group; then ``on_missing``. A position that the broker
does not hold goes by ``on_below`` or ``on_above``. Whatever is passed over becomes a :class:`~consumerd.model.Gap`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Literal, Protocol, assert_never

from consumerd.errors import OffsetOutOfRange
from consumerd.model import Gap, GapReason, Incarnation
from consumerd.offsets.store import StoredOffset

OnMissing = Literal["earliest", "latest", "stop"]
OnOutOfRange = Literal["earliest", "latest", "nearest", "stop"]
LogEnd = Literal["earliest", "latest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetPolicy:
    """What to do without a position, and with one that the log does not hold (``nearest`` is the violated end)."""

    on_missing: OnMissing = "earliest"
    on_below: OnOutOfRange = "stop"
    on_above: OnOutOfRange = "stop"


class LogRange(Protocol):
    """What a broker holds of a partition: offsets ``[earliest, latest)``."""

    @property
    def earliest(self) -> int:
        """The first offset held."""

    @property
    def latest(self) -> int:
        """The next offset to be written."""


class StartReason(enum.StrEnum):
    """How a first position came about; recorded by sinks that keep chains."""

    COMMITTED = "committed"
    LANDED = "landed"
    """The sink's own record is ahead of the committed position, or the only one there is."""
    CONSUMED_ELSEWHERE = GapReason.CONSUMED_ELSEWHERE.value
    """Committed by another member beyond what the sink has landed; the sink records the gap."""
    RESUMED = "resumed"
    """Goes on within the same claim after a failure."""
    NEW_PARTITION = "new partition"
    """Made after the group had begun with the topic: nothing of it may be missed."""
    NEW_INCARNATION = "new incarnation"
    """The stored position belongs to a topic that was deleted."""
    ON_MISSING = "on_missing"
    ON_BELOW = "on_below"
    ON_ABOVE = "on_above"


class StopCause(enum.StrEnum):
    """Why a partition is claimed and stopped; few and fixed, so that it can be a metric's label."""

    NO_OFFSET = "no offset"
    MALFORMED_OFFSET = "malformed offset"
    BELOW_LOG = "below log"
    ABOVE_LOG = "above log"
    CORRUPT = "corrupt"
    OVERSIZED = "oversized"
    REJECTED = "rejected"


@dataclass(frozen=True, slots=True, kw_only=True)
class StartFacts:
    """What is known when a partition was claimed.

    ``stored`` is the offset node as it was read after the claim, ``resume`` the sink's own record, ``newborn`` whether
    the partition was made after the group had begun with its topic. When the claim delivered before, ``earlier`` says
    how far.
    """

    incarnation: Incarnation
    stored: StoredOffset | None
    resume: int | None
    newborn: bool
    earlier: Earlier | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """How far the same claim had got before it had to start again: ``committed`` as noted from the store then."""

    acknowledged: int
    committed: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StartAt:
    """Start at ``position``.

    ``committed`` is what the store holds and counts, None where it holds nothing valid. ``gap`` is what another member
    consumed beyond the sink's record; ``behind`` says that the committed position is smaller than that record.
    ``out_of_range`` is set where a policy has moved a committed position that the broker does not hold.
    """

    position: int
    committed: int | None
    reason: StartReason
    gap: Gap | None = None
    behind: bool = False
    out_of_range: OffsetOutOfRange | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StartAtEnd:
    """Ask the broker for one end of the log, start there, and commit that at once."""

    end: LogEnd
    reason: StartReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Keep the partition claimed and deliver nothing of it; ``advice`` says what an operator can do.

    ``refused`` is the committed position that it is about, where it was refused before anything was opened there.
    """

    cause: StopCause
    advice: str
    refused: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Go on at ``position``; ``gaps`` are what is passed over, empty where the position moves back."""

    position: int
    reason: StartReason
    gaps: tuple[Gap, ...]


@dataclass(frozen=True, slots=True)
class TryAgain:
    """The position is in the log after all."""


def find_committed(stored: StoredOffset | None, incarnation: Incarnation) -> int | None:
    """Return the committed position, if there is one that can be read and that belongs to the topic as it is now."""
    if stored is None or stored.malformed is not None or not counts(stored, incarnation):
        return None
    return stored.position


def counts(stored: StoredOffset, incarnation: Incarnation) -> bool:
    """Tell whether a stored offset was written after the topic was made: else it is about an older one of that name."""
    return stored.mzxid > incarnation.czxid


def plan_start(facts: StartFacts, policy: OffsetPolicy) -> StartAt | StartAtEnd | Stop:
    """Decide where a claimed partition starts."""
    committed = find_committed(facts.stored, facts.incarnation)
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
        if not counts(facts.stored, facts.incarnation):
            return StartAtEnd(end="earliest", reason=StartReason.NEW_INCARNATION)
        return Stop(
            cause=StopCause.MALFORMED_OFFSET,
            advice=f"the committed offset reads {facts.stored.malformed!r}: write a decimal number there, or remove it",
        )
    if facts.newborn:
        return StartAtEnd(end="earliest", reason=StartReason.NEW_PARTITION)
    if policy.on_missing == "stop":
        return Stop(
            cause=StopCause.NO_OFFSET,
            advice="no offset is committed and offsets.on_missing is stop: commit one for the group",
        )
    return StartAtEnd(end=policy.on_missing, reason=StartReason.ON_MISSING)


def plan_out_of_range(error: OffsetOutOfRange, policy: OffsetPolicy) -> Move | Stop | TryAgain:
    """Decide what follows a position that the broker does not hold."""
    if in_log(error.offset, error):
        return TryAgain()
    below = error.offset < error.earliest
    choice = policy.on_below if below else policy.on_above
    log = f"the log is [{error.earliest}, {error.latest})"
    match choice:
        case "stop":
            return Stop(
                cause=StopCause.BELOW_LOG if below else StopCause.ABOVE_LOG,
                advice=f"{log}: commit an offset inside it, or set offsets.{'on_below' if below else 'on_above'}",
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
        return Move(position=target, reason=StartReason.ON_ABOVE, gaps=())
    gaps = [Gap(error.offset, error.earliest, GapReason.RETENTION)]
    if target > error.earliest:
        gaps.append(Gap(error.earliest, target, GapReason.RESET))
    return Move(position=target, reason=StartReason.ON_BELOW, gaps=tuple(gaps))


def in_log(position: int, log: LogRange) -> bool:
    """Tell whether a fetch from ``position`` is valid; the log's end is, since the next record goes there."""
    return log.earliest <= position <= log.latest
