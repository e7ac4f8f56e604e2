# SPDX-License-Identifier: Apache-2.0
"""Events that the machine handles, and effects that it asks for: plain values.

Pure. An effect with an outcome carries a ``serial``, and the event that reports the outcome repeats it. The machine
ignores a serial that was answered already, or that belongs to an ended session, so late and repeated events change
nothing.
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
    """The session's epoch or lease phase changed to these."""

    epoch: SessionEpoch
    phase: LeasePhase


@dataclass(frozen=True, slots=True)
class Registered:
    """Our node under ``ids`` exists, with this id."""

    serial: int
    consumer: ConsumerId


@dataclass(frozen=True, slots=True)
class RegisterFailed:
    """Our node could not be created; it is to be tried again."""

    serial: int


@dataclass(frozen=True, slots=True)
class Changed:
    """Something that views are read from changed; ``cause`` names it in a few words."""

    cause: str


@dataclass(frozen=True, slots=True)
class ViewRead:
    """A view of the group was read.

    ``grants`` are the partitions that it gives to us; ``listed`` is true if it has our node under ``ids``.
    """

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
    """The outcome of a check of the view; an unreadable one counts as changed."""

    serial: int
    unchanged: bool


@dataclass(frozen=True, slots=True)
class Created:
    """The owner node is ours."""


@dataclass(frozen=True, slots=True)
class Taken:
    """The owner node is another member's."""

    holder: Holder


@dataclass(frozen=True, slots=True)
class Occupied:
    """The owner node exists, and its holder was not read.

    In a handover most such nodes are deleted within a second.
    """


@dataclass(frozen=True, slots=True)
class NotSent:
    """Nothing was created, for a reason unrelated to the partition, such as a lost connection."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """The owner node may or may not have been created."""


ClaimOutcome = Created | Taken | Occupied | NotSent | Unknown


@dataclass(frozen=True, slots=True)
class ClaimsEnded:
    """The outcomes of a batch of claims."""

    serial: int
    outcomes: Mapping[TopicPartition, ClaimOutcome]


@dataclass(frozen=True, slots=True)
class ReleasesEnded:
    """The partitions of a batch that are certainly released; others are tried again."""

    serial: int
    released: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class RethreadsEnded:
    """The owner nodes of a batch that hold their new thread now."""

    serial: int
    written: Mapping[TopicPartition, ThreadId]


@dataclass(frozen=True, slots=True)
class DrainEnded:
    """The listener will publish and commit nothing more for a batch."""

    serial: int


@dataclass(frozen=True, slots=True)
class DropEnded:
    """The listener has dropped a batch."""

    serial: int


@dataclass(frozen=True, slots=True)
class OwnersChanged:
    """Owner nodes appeared or disappeared in a topic; None stands for any of our topics."""

    topic: str | None = None


@dataclass(frozen=True, slots=True)
class Inspected:
    """The holders that an inspection found; None means that there is no owner node.

    The nodes in ``there`` exist, but their holders were not read. Those in ``doubtful`` may have been re-created since
    they were last read. A partition that could not be read is in neither ``nodes`` nor ``there``. ``session_id`` is the
    session that read them.
    """

    serial: int
    nodes: Mapping[TopicPartition, Holder | None]
    session_id: int
    there: frozenset[TopicPartition] = frozenset()
    doubtful: frozenset[TopicPartition] = frozenset()


@dataclass(frozen=True, slots=True)
class Disowned:
    """The delivery of a partition found out that its claim is not valid any more."""

    partition: TopicPartition
    reason: str


@dataclass(frozen=True, slots=True)
class StraysFound:
    """Owner nodes of our session that no record explains: their claims' outcomes never became known."""

    partitions: Mapping[TopicPartition, ThreadId]


@dataclass(frozen=True, slots=True)
class Unregistered:
    """Our node under ``ids`` is gone, or will go with the session."""

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
    """Check that what ``stamp`` was read from has not changed, for these partitions.

    ``reconcile`` asks for the periodic check, which covers other topics too.
    """

    serial: int
    stamp: Stamp
    partitions: frozenset[TopicPartition]
    reconcile: bool


@dataclass(frozen=True, slots=True)
class ClaimPartitions:
    """Create owner nodes. For those in ``first``, a conflicting node need not be read.

    They were not tried before, and in a handover the previous owner's nodes go by themselves.
    """

    serial: int
    epoch: SessionEpoch
    grants: Mapping[TopicPartition, Grant]
    first: frozenset[TopicPartition] = frozenset()


@dataclass(frozen=True, slots=True)
class Release:
    """Delete our owner nodes."""

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
    """Give claimed partitions to the listener."""

    epoch: SessionEpoch
    grants: Mapping[TopicPartition, Grant]


@dataclass(frozen=True, slots=True)
class Drain:
    """Let the listener flush and commit, within ``deadline_s`` seconds."""

    serial: int
    partitions: frozenset[TopicPartition]
    deadline_s: float


@dataclass(frozen=True, slots=True)
class Revoke:
    """Invalidate the claims of these partitions, before anything else happens."""

    partitions: frozenset[TopicPartition]
    reason: str


@dataclass(frozen=True, slots=True)
class Drop:
    """Let the listener discard lost partitions."""

    serial: int
    partitions: frozenset[TopicPartition]
    reason: str


@dataclass(frozen=True, slots=True)
class Suspend:
    """Make all claims unusable until each is proved again."""


@dataclass(frozen=True, slots=True)
class Resume:
    """Make these claims usable again: their owner nodes were read and are ours."""

    partitions: frozenset[TopicPartition]


class Look(enum.IntEnum):
    """The thoroughness of an inspection of owner nodes."""

    NAMES = 0
    """Find which nodes exist: one read per topic of any size."""
    REMADE = 1
    """Also read the holders of nodes that may have been re-created since they were last read."""
    PROOF = 2
    """Also read the holders of all other nodes, except those that cannot have changed."""


@dataclass(frozen=True, slots=True)
class Inspect:
    """Inspect the owner nodes of these partitions."""

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
    """A partition granted to us is another member's; ``starved`` once its retries are used up."""

    partition: TopicPartition
    holder: Holder
    attempts: int
    starved: bool


@dataclass(frozen=True, slots=True)
class ReportRebalance:
    """Report that a rebalance is over."""

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
    """One rebalance of this member; ``phases`` are seconds by name, of those that took place."""

    causes: tuple[str, ...]
    seconds: float
    phases: Mapping[str, float]
    gained: int
    lost: int
    stayed: int
