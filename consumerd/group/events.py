# SPDX-License-Identifier: Apache-2.0
"""What the machine is told, and what it asks for: plain values.

Pure. Every effect that has an outcome carries a ``serial``, and the event that reports the outcome carries it back. The
machine forgets a serial that has been answered, or that belongs to a session that is over; so late and repeated events
change nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from consumerd.group.plan import Grant, Holder, Stamp
from consumerd.model import ConsumerId, SessionEpoch, ThreadId, TopicPartition
from consumerd.zk.port import LeasePhase

# -- events


@dataclass(frozen=True, slots=True)
class SessionChanged:
    """The session's epoch or lease phase is now this."""

    epoch: SessionEpoch
    phase: LeasePhase


@dataclass(frozen=True, slots=True)
class Registered:
    """Our node under ``ids`` is there, under this id."""

    serial: int
    consumer: ConsumerId


@dataclass(frozen=True, slots=True)
class RegisterFailed:
    """Our node could not be created for now."""

    serial: int


@dataclass(frozen=True, slots=True)
class Changed:
    """Something that a view is read from changed; ``cause`` says what, in a few words."""

    cause: str


@dataclass(frozen=True, slots=True)
class ViewRead:
    """A view of the group: what it grants to us, and whether our node under ``ids`` was in it."""

    serial: int
    grants: Mapping[TopicPartition, Grant]
    stamp: Stamp
    listed: bool


@dataclass(frozen=True, slots=True)
class ReadFailed:
    """A view could not be read."""

    serial: int


@dataclass(frozen=True, slots=True)
class Verified:
    """Whether the view still holds; one that could not be read again counts as changed."""

    serial: int
    unchanged: bool


@dataclass(frozen=True, slots=True)
class Created:
    """The owner node is ours."""


@dataclass(frozen=True, slots=True)
class Taken:
    """The owner node is another's."""

    holder: Holder


@dataclass(frozen=True, slots=True)
class Occupied:
    """The owner node is there, and whose it is was not looked at: most go by themselves, in a handover."""


@dataclass(frozen=True, slots=True)
class NotSent:
    """Nothing was created, for a reason that says nothing about the partition (no connection)."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """The owner node may or may not have been created."""


ClaimOutcome = Created | Taken | Occupied | NotSent | Unknown


@dataclass(frozen=True, slots=True)
class ClaimsEnded:
    """How the claims of a batch ended."""

    serial: int
    outcomes: Mapping[TopicPartition, ClaimOutcome]


@dataclass(frozen=True, slots=True)
class ReleasesEnded:
    """Which partitions of a batch are certainly released; the others are to be released again."""

    serial: int
    released: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class RethreadsEnded:
    """Which owner nodes of a batch hold their new thread now."""

    serial: int
    written: Mapping[TopicPartition, ThreadId]


@dataclass(frozen=True, slots=True)
class DrainEnded:
    """The listener has nothing more to publish or commit for a batch."""

    serial: int


@dataclass(frozen=True, slots=True)
class DropEnded:
    """The listener has dropped a batch."""

    serial: int


@dataclass(frozen=True, slots=True)
class OwnersChanged:
    """Owner nodes came or went in a topic that we own or want partitions of; None: it may be any of those."""

    topic: str | None = None


@dataclass(frozen=True, slots=True)
class Inspected:
    """What the owner nodes asked for hold (None: there is none). Of those in ``there`` it is only known that they are
    there; those in ``doubtful`` may have been made again. A partition that could not be looked at is left out of ``nodes`` and
    ``there``.

    ``session_id`` is the session in which they were read.
    """

    serial: int
    nodes: Mapping[TopicPartition, Holder | None]
    session_id: int
    there: frozenset[TopicPartition] = frozenset()
    doubtful: frozenset[TopicPartition] = frozenset()


@dataclass(frozen=True, slots=True)
class Disowned:
    """Whoever delivers found that its claim of a partition is of no use any more."""

    partition: TopicPartition
    reason: str


@dataclass(frozen=True, slots=True)
class StraysFound:
    """Owner nodes of our own session that nothing accounts for: claims whose outcome was never known."""

    partitions: Mapping[TopicPartition, ThreadId]


@dataclass(frozen=True, slots=True)
class Unregistered:
    """Our node under ``ids`` is gone, or goes with the session."""

    serial: int


@dataclass(frozen=True, slots=True)
class LeaveRequested:
    """Drain and release everything, and leave the group."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed."""


Event = (
    SessionChanged
    | Registered
    | RegisterFailed
    | Changed
    | ViewRead
    | ReadFailed
    | Verified
    | ClaimsEnded
    | ReleasesEnded
    | RethreadsEnded
    | DrainEnded
    | DropEnded
    | OwnersChanged
    | Inspected
    | Disowned
    | StraysFound
    | Unregistered
    | LeaveRequested
    | Tick
)

# -- effects


@dataclass(frozen=True, slots=True)
class Register:
    """Create our node under ``ids`` in this epoch."""

    serial: int
    epoch: SessionEpoch


@dataclass(frozen=True, slots=True)
class Read:
    """Read a view of the group."""

    serial: int
    epoch: SessionEpoch
    consumer: ConsumerId


@dataclass(frozen=True, slots=True)
class Verify:
    """Read again what ``stamp`` was made of, as far as it concerns these partitions; ``reconcile`` looks further."""

    serial: int
    stamp: Stamp
    partitions: frozenset[TopicPartition]
    reconcile: bool


@dataclass(frozen=True, slots=True)
class ClaimPartitions:
    """Create owner nodes. Of those in ``first``, which were not tried before, it need not be known who is in the way."""

    serial: int
    epoch: SessionEpoch
    grants: Mapping[TopicPartition, Grant]
    first: frozenset[TopicPartition] = frozenset()


@dataclass(frozen=True, slots=True)
class Release:
    """Delete owner nodes that are ours."""

    serial: int
    epoch: SessionEpoch
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class Rethread:
    """Write another of our threads into owner nodes that stay ours."""

    serial: int
    epoch: SessionEpoch
    threads: Mapping[TopicPartition, ThreadId]


@dataclass(frozen=True, slots=True)
class StartPartitions:
    """Give the listener partitions that are ours now."""

    epoch: SessionEpoch
    grants: Mapping[TopicPartition, Grant]


@dataclass(frozen=True, slots=True)
class Drain:
    """Let the listener flush and commit, within ``deadline_s``."""

    serial: int
    partitions: frozenset[TopicPartition]
    deadline_s: float


@dataclass(frozen=True, slots=True)
class Revoke:
    """Make the claims useless, before anything else happens."""

    partitions: frozenset[TopicPartition]
    reason: str


@dataclass(frozen=True, slots=True)
class Drop:
    """Let the listener throw away what it has of partitions that are lost."""

    serial: int
    partitions: frozenset[TopicPartition]
    reason: str


@dataclass(frozen=True, slots=True)
class Suspend:
    """Keep every claim from being used until it is proved again."""


@dataclass(frozen=True, slots=True)
class Resume:
    """These claims were proved again: their owner nodes are still ours."""

    partitions: frozenset[TopicPartition]


class Look(enum.IntEnum):
    """How closely owner nodes are looked at."""

    NAMES = 0
    """Which are there: one read a topic, whatever it holds."""
    REMADE = 1
    """Besides, whose those are that may have been made again since that was last known."""
    PROOF = 2
    """Besides, whose all the others are, unless nothing can have changed since they were read."""


@dataclass(frozen=True, slots=True)
class Inspect:
    """Look at the owner nodes of these partitions."""

    serial: int
    epoch: SessionEpoch
    partitions: frozenset[TopicPartition]
    look: Look


@dataclass(frozen=True, slots=True)
class Unregister:
    """Delete our node under ``ids``."""

    serial: int
    epoch: SessionEpoch
    consumer: ConsumerId


@dataclass(frozen=True, slots=True)
class ReportConflict:
    """A partition that we want is another's; ``starved`` from the time on when its retries are used up."""

    partition: TopicPartition
    holder: Holder
    attempts: int
    starved: bool


@dataclass(frozen=True, slots=True)
class ReportRebalance:
    """A rebalance is over."""

    rebalance: Rebalance


Effect = (
    Register
    | Read
    | Verify
    | ClaimPartitions
    | Release
    | Rethread
    | StartPartitions
    | Drain
    | Revoke
    | Drop
    | Suspend
    | Resume
    | Inspect
    | Unregister
    | ReportConflict
    | ReportRebalance
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebalance:
    """One rebalance as it happened here; ``phases`` are seconds by name, those that took place."""

    causes: tuple[str, ...]
    seconds: float
    phases: Mapping[str, float]
    gained: int
    lost: int
    stayed: int
