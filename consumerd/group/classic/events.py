# SPDX-License-Identifier: Apache-2.0
"""Events for the state machine of a broker-coordinated member, and effects that it requests.

Plain values. If an effect has an outcome, such as the answer to a request, it has a ``serial`` number, and the event
that reports the outcome repeats the number. The machine ignores events whose number it does not wait for.

The effects Drain, Revoke, Drop and ReportRebalance are defined in :mod:`consumerd.group.events`, because members that
ZooKeeper coordinates have them, too.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from consumerd.group import events as ev
from consumerd.model import Incarnation, TopicPartition


class Refusal(enum.Enum):
    """Meaning of a coordinator's error for the member that sent the request."""

    UNAVAILABLE = "unavailable"
    """The coordinator did not answer, has moved, or loads its state.

    This process may still be a member in its view.
    """
    REBALANCE = "rebalance"
    """The group rebalances (REBALANCE_IN_PROGRESS)."""
    FENCED = "fenced"
    """The group has gone on without this member (ILLEGAL_GENERATION). It keeps its member id."""
    UNKNOWN_MEMBER = "unknown member"
    """The coordinator has removed the member (UNKNOWN_MEMBER_ID): the next join gets a new id."""
    REFUSED = "refused"
    """The group rejects this member's settings or rights.

    Examples: no permission, no assignor that all members support, a session timeout out of bounds.
    """


# -- events


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupJoined:
    """Event: JoinGroup succeeded.

    Attributes:
        serial: the number of the :class:`JoinGroup` effect that sent the request.
        member_id: the id that the coordinator has given this member.
        protocol: name of the assignor on which the members have agreed.
        leader: True if this member computes the assignment.
        members: for the leader, the metadata of all members by member id; empty for other members.
        rebalance_timeout_s: longest time that the coordinator waits for this member to join again, in seconds.
    """

    serial: int
    generation: int
    member_id: str
    protocol: str
    leader: bool
    members: Mapping[str, bytes]
    rebalance_timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSynced:
    """Event: SyncGroup succeeded; ``partitions`` are those assigned to this member.

    Attributes:
        serial: the number of the :class:`SyncGroup` effect that sent the request.
        sent_at: when the request was sent, in seconds of the machine's clock.
    """

    serial: int
    sent_at: float
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinFailed:
    """Event: JoinGroup or SyncGroup failed; ``reason`` is the error in words.

    ``serial`` is the number of the :class:`JoinGroup` or :class:`SyncGroup` effect that sent the request.
    """

    serial: int
    refusal: Refusal
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatEnded:
    """Event: a heartbeat was answered, or has failed.

    Attributes:
        serial: the number of the :class:`Heartbeat` effect that sent it.
        sent_at: when it was sent, in seconds of the machine's clock.
        refusal: meaning of the error; None if the coordinator accepted the heartbeat.
        reason: the error in words; empty without one.
    """

    serial: int
    sent_at: float
    refusal: Refusal | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class CommitRefused:
    """Event: the coordinator refused a commit of positions that named ``generation`` of the group."""

    generation: int
    refusal: Refusal
    reason: str


@dataclass(frozen=True, slots=True)
class SubscriptionChanged:
    """Event: this member has to join again, for ``cause``.

    Either its topics have changed, or it is the leader, and the topics that it assigned have other partitions now.
    """

    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Identified:
    """Event: the incarnations of the assigned partitions' topics were read.

    A topic that is created again under the same name has another incarnation.

    Attributes:
        serial: the number of the :class:`Identify` effect that asked for the read.
        incarnations: for each partition whose topic could be read; the machine asks again for the other partitions.
        problem: why the topics of the other partitions could not be read; None if all could.
    """

    serial: int
    incarnations: Mapping[TopicPartition, Incarnation]
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Left:
    """Event: the LeaveGroup request was answered, or it failed and is not repeated.

    ``serial`` is the number of the :class:`LeaveGroup` effect that sent the request.
    """

    serial: int


Event = (
    GroupJoined
    | GroupSynced
    | JoinFailed
    | HeartbeatEnded
    | CommitRefused
    | SubscriptionChanged
    | Identified
    | Left
    | ev.DrainEnded
    | ev.DropEnded
    | ev.Disowned
    | ev.LeaveRequested
    | ev.Tick
)

# -- effects


@dataclass(frozen=True, slots=True)
class JoinGroup:
    """Effect: send a JoinGroup request. ``member_id`` is empty for a new member.

    The outcome is :class:`GroupJoined` or :class:`JoinFailed`, with the number ``serial``.
    """

    serial: int
    member_id: str


@dataclass(frozen=True, slots=True)
class SyncGroup:
    """Effect: send a SyncGroup request. The leader first computes the assignment of ``joined.members``.

    The outcome is :class:`GroupSynced` or :class:`JoinFailed`, with the number ``serial``.
    """

    serial: int
    joined: GroupJoined


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Effect: send a heartbeat to the coordinator.

    The outcome is :class:`HeartbeatEnded`, with the number ``serial``.
    """

    serial: int
    generation: int
    member_id: str


@dataclass(frozen=True, slots=True)
class LeaveGroup:
    """Effect: cancel every other request, then send LeaveGroup.

    A broker reads no further request of a connection on which a JoinGroup waits. The outcome is :class:`Left`, with the
    number ``serial``.
    """

    serial: int
    member_id: str


@dataclass(frozen=True, slots=True)
class Identify:
    """Effect: read the incarnations of these partitions' topics; :class:`Identified` has the result.

    ``serial`` is the number that the result repeats. Claims name the incarnation of their topic, so that a topic that
    is created again is noticed.
    """

    serial: int
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class StartAssigned:
    """Effect: give claims of the assigned partitions to delivery, which starts to deliver them.

    Attributes:
        generation: the group's generation, in which alone the claims are valid.
        incarnations: the partitions, each with the identity of its topic.
    """

    generation: int
    incarnations: Mapping[TopicPartition, Incarnation]


Effect = (
    JoinGroup
    | SyncGroup
    | Heartbeat
    | LeaveGroup
    | Identify
    | StartAssigned
    | ev.Drain
    | ev.Revoke
    | ev.Drop
    | ev.ReportRebalance
)
