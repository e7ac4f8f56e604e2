# SPDX-License-Identifier: Apache-2.0
"""Events for the state machine of a ZooKeeper-coordinated member, and effects that it requests.

Plain values. If an effect has an outcome, such as the result of a write, it has a ``serial`` number, and the event that
reports the outcome repeats the number. The machine ignores events whose number was reported already, or belongs to an
ended ZooKeeper session.

Terms: a *view* is the content of the group's nodes in ZooKeeper at one moment. A partition is *granted* to a member by
the assignment that follows from a view. An *owner node*, ``/consumers/G/owners/T/P``, names the present owner.
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
    """Event: the ZooKeeper session is a new one, or its lease has another phase.

    ``epoch`` counts the sessions of this process, from 1. A lease phase such as FRESH tells how old the last answer of
    ZooKeeper is.
    """

    epoch: SessionEpoch
    phase: LeasePhase


@dataclass(frozen=True, slots=True)
class Registered:
    """Event: the member's own node ``/consumers/G/ids/<consumer>`` exists.

    ``serial`` is the number of the :class:`Register` effect that asked for the node.
    """

    serial: int
    consumer: ConsumerId


@dataclass(frozen=True, slots=True)
class RegisterFailed:
    """Event: the member's own node below ``/consumers/G/ids`` could not be created; the machine retries it.

    ``serial`` is the number of the :class:`Register` effect that asked for the node.
    """

    serial: int


@dataclass(frozen=True, slots=True)
class Changed:
    """Event: members, topics or subscriptions of the group have changed; ``cause`` names the change."""

    cause: str


@dataclass(frozen=True, slots=True)
class ViewRead:
    """Event: the members and topics of the group were read from ZooKeeper.

    Attributes:
        serial: the number of the :class:`Read` effect that asked for them.
        grants: the partitions that the new assignment gives to this member.
        stamp: the versions of the nodes that were read.
        listed: True if the member's own node was among the nodes below ``/consumers/G/ids``.
    """

    serial: int
    grants: Mapping[TopicPartition, Grant]
    stamp: Stamp
    listed: bool


@dataclass(frozen=True, slots=True)
class ReadFailed:
    """Event: the members and topics of the group could not be read.

    ``serial`` is the number of the :class:`Read` effect that asked for them.
    """

    serial: int


@dataclass(frozen=True, slots=True)
class Verified:
    """Event: the group's nodes were compared with those last read.

    Attributes:
        serial: the number of the :class:`Verify` effect that asked for the comparison.
        unchanged: True if no node has changed; False if one has, or if the nodes cannot be read.
    """

    serial: int
    unchanged: bool


@dataclass(frozen=True, slots=True)
class Created:
    """Outcome of a claim: this member has created the partition's owner node."""


@dataclass(frozen=True, slots=True)
class Taken:
    """Outcome of a claim: the partition's owner node exists, and belongs to another member."""

    holder: Holder


@dataclass(frozen=True, slots=True)
class Occupied:
    """Outcome of a claim: the partition's owner node exists, and its owner was not read.

    In a handover most such nodes are deleted within a second.
    """


@dataclass(frozen=True, slots=True)
class NotSent:
    """Outcome of a claim: no owner node was created, because ZooKeeper was not reached."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """Outcome of a claim: ZooKeeper's answer was lost.

    The owner node may have been created or not.
    """


ClaimOutcome = Created | Taken | Occupied | NotSent | Unknown


@dataclass(frozen=True, slots=True)
class ClaimsEnded:
    """Event: the outcome of each claim of a :class:`ClaimPartitions` effect.

    ``serial`` is the number of that effect.
    """

    serial: int
    outcomes: Mapping[TopicPartition, ClaimOutcome]


@dataclass(frozen=True, slots=True)
class ReleasesEnded:
    """Event: the partitions of a :class:`Release` effect whose owner nodes are certainly deleted.

    ``serial`` is the number of that effect. The machine releases again the partitions of the effect that are not in
    ``released``.
    """

    serial: int
    released: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class RethreadsEnded:
    """Event: the owner nodes of a :class:`Rethread` effect that now name the new thread.

    Attributes:
        serial: the number of that effect.
        written: the thread in each node that was certainly written; the machine writes the other nodes again.
    """

    serial: int
    written: Mapping[TopicPartition, ThreadId]


@dataclass(frozen=True, slots=True)
class DrainEnded:
    """Event: delivery has drained the partitions of the :class:`Drain` effect with this serial.

    Delivery publishes and commits nothing more for these partitions.
    """

    serial: int


@dataclass(frozen=True, slots=True)
class DropEnded:
    """Event: delivery has discarded the partitions of the :class:`Drop` effect with this serial."""

    serial: int


@dataclass(frozen=True, slots=True)
class OwnersChanged:
    """Event: owner nodes of ``topic`` have appeared or disappeared in ZooKeeper.

    If ``topic`` is None, the owner nodes of any of the member's topics may have.
    """

    topic: str | None = None


@dataclass(frozen=True, slots=True)
class Inspected:
    """Event: owner nodes were read.

    A partition whose node could not be read is in none of ``nodes``, ``there`` and ``doubtful``.

    Attributes:
        serial: the number of the :class:`Inspect` effect that asked for the read.
        nodes: the holder by partition; None if there is no owner node.
        session_id: the ZooKeeper session that read the nodes.
        there: partitions with an owner node whose holder was not read.
        doubtful: partitions whose owner node may have been deleted and created again since it was last read.
    """

    serial: int
    nodes: Mapping[TopicPartition, Holder | None]
    session_id: int
    there: frozenset[TopicPartition] = frozenset()
    doubtful: frozenset[TopicPartition] = frozenset()


@dataclass(frozen=True, slots=True)
class Disowned:
    """Event: delivery has reported that its claim of ``partition`` is no longer valid, for ``reason``."""

    partition: TopicPartition
    reason: str


@dataclass(frozen=True, slots=True)
class StraysFound:
    """Event: this session has owner nodes that the machine does not know.

    The member created the nodes, and the answers of ZooKeeper were lost. ``partitions`` has the thread that each node
    names.
    """

    partitions: Mapping[TopicPartition, ThreadId]


@dataclass(frozen=True, slots=True)
class Unregistered:
    """Event: the member's own node below ``/consumers/G/ids`` is deleted, or will end with the session.

    ``serial`` is the number of the :class:`Unregister` effect that asked for the deletion.
    """

    serial: int


@dataclass(frozen=True, slots=True)
class LeaveRequested:
    """Event: the member is to drain and release all partitions, and leave the group."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Event: the time of the machine's ``deadline`` has come."""


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
    """Effect: create the member's node below ``/consumers/G/ids``, in the ZooKeeper session of ``epoch``.

    The outcome is :class:`Registered` or :class:`RegisterFailed`, with the number ``serial``.
    """

    serial: int
    epoch: SessionEpoch


@dataclass(frozen=True, slots=True)
class Read:
    """Effect: read the members and topics of the group from ZooKeeper.

    The outcome is :class:`ViewRead` or :class:`ReadFailed`, with the number ``serial``. ``consumer`` is this member's
    id, and ``epoch`` its session.
    """

    serial: int
    epoch: SessionEpoch
    consumer: ConsumerId


@dataclass(frozen=True, slots=True)
class Verify:
    """Effect: check that the group's nodes are still those of ``stamp``.

    Attributes:
        serial: the number that the outcome, :class:`Verified`, repeats.
        stamp: the versions of the nodes when they were last read.
        partitions: with the ``range`` assignor, only the topics of these partitions are checked.
        reconcile: True for the periodic check instead: each time some of all topics, in turn, and at times the owners
            of partitions.
    """

    serial: int
    stamp: Stamp
    partitions: frozenset[TopicPartition]
    reconcile: bool


@dataclass(frozen=True, slots=True)
class ClaimPartitions:
    """Effect: create the owner nodes of partitions that are granted to this member.

    Attributes:
        serial: the number that the outcome, :class:`ClaimsEnded`, repeats.
        epoch: the ZooKeeper session in which the nodes are created.
        grants: the partitions, each with the thread that the node names.
        first: those of the partitions that are claimed for the first time. If such a partition has an owner node
            already, its holder is not read, because in a handover the previous owner deletes the node soon.
    """

    serial: int
    epoch: SessionEpoch
    grants: Mapping[TopicPartition, Grant]
    first: frozenset[TopicPartition] = frozenset()


@dataclass(frozen=True, slots=True)
class Release:
    """Effect: delete this member's owner nodes of these partitions, in the session of ``epoch``.

    The outcome is :class:`ReleasesEnded`, with the number ``serial``.
    """

    serial: int
    epoch: SessionEpoch
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class Rethread:
    """Effect: write another of this member's threads into owner nodes that this member already has.

    The outcome is :class:`RethreadsEnded`, with the number ``serial``.
    """

    serial: int
    epoch: SessionEpoch
    threads: Mapping[TopicPartition, ThreadId]


@dataclass(frozen=True, slots=True)
class StartPartitions:
    """Effect: give claims of these partitions to delivery, which starts to deliver them.

    ``epoch`` is the ZooKeeper session of the owner nodes.
    """

    epoch: SessionEpoch
    grants: Mapping[TopicPartition, Grant]


@dataclass(frozen=True, slots=True)
class Drain:
    """Effect: let delivery flush and commit these partitions, within ``deadline_s`` seconds.

    The outcome is :class:`DrainEnded`, with the number ``serial``.
    """

    serial: int
    partitions: frozenset[TopicPartition]
    deadline_s: float


@dataclass(frozen=True, slots=True)
class Revoke:
    """Effect: invalidate the claims of these partitions; carried out before all other effects."""

    partitions: frozenset[TopicPartition]
    reason: str


@dataclass(frozen=True, slots=True)
class Drop:
    """Effect: let delivery discard the unflushed records of partitions that are lost for ``reason``.

    The outcome is :class:`DropEnded`, with the number ``serial``.
    """

    serial: int
    partitions: frozenset[TopicPartition]
    reason: str


@dataclass(frozen=True, slots=True)
class Suspend:
    """Effect: make all claims unusable until their owner nodes were read again."""


@dataclass(frozen=True, slots=True)
class Resume:
    """Effect: make these claims usable again; their owner nodes were read and are this member's."""

    partitions: frozenset[TopicPartition]


class Look(enum.IntEnum):
    """Thoroughness of reading owner nodes: names only, or also the content of some."""

    NAMES = 0
    """Only find which owner nodes exist, with one read for each topic."""
    REMADE = 1
    """Also read the holders of nodes that may have been re-created since they were last read."""
    PROOF = 2
    """Also read the holders of all other nodes, except those that cannot have changed."""


@dataclass(frozen=True, slots=True)
class Inspect:
    """Effect: read the owner nodes of these partitions, as thoroughly as ``look`` says.

    The outcome is :class:`Inspected`, with the number ``serial``.
    """

    serial: int
    epoch: SessionEpoch
    partitions: frozenset[TopicPartition]
    look: Look


@dataclass(frozen=True, slots=True)
class Unregister:
    """Effect: delete the member's own node below ``/consumers/G/ids``.

    The outcome is :class:`Unregistered`, with the number ``serial``. ``consumer`` is the member's id, and ``epoch`` its
    session.
    """

    serial: int
    epoch: SessionEpoch
    consumer: ConsumerId


@dataclass(frozen=True, slots=True)
class ReportConflict:
    """Effect: log that a partition granted to this member is owned by another one.

    Attributes:
        holder: the owner, as its node names it.
        attempts: number of attempts to claim the partition so far.
        starved: True for the one attempt that uses up the configured retries. The member goes on trying to claim the
            partition.
    """

    partition: TopicPartition
    holder: Holder
    attempts: int
    starved: bool


@dataclass(frozen=True, slots=True)
class ReportRebalance:
    """Effect: report that a rebalance is over, to logs and metrics."""

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
    """One rebalance of this member, for logs and metrics.

    Attributes:
        causes: its reasons in words, in order of their first occurrence.
        seconds: its duration.
        phases: the seconds of each phase that took place (settle, snapshot, drain, release, claim).
        gained: number of partitions that this member has started.
        lost: number of partitions that it has given up or lost.
        stayed: number of partitions that it owned throughout.
    """

    causes: tuple[str, ...]
    seconds: float
    phases: Mapping[str, float]
    gained: int
    lost: int
    stayed: int
