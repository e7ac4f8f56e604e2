# SPDX-License-Identifier: Apache-2.0
"""Requests to a group of the coordinator, its responses, and its description: plain values.

Pure. Source: the requests of Kafka's protocol guide; ``GroupMetadata.scala``.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from consumerd.embedded.coordinator.member import Protocol, Ticket
from consumerd.wire.errorcodes import ErrorCode
from consumerd.wire.modern.offsets_topic import GroupMember, GroupValue

UNKNOWN_MEMBER: Final = ""
"""The member id in a first JoinGroup, and of clients that only commit."""


class GroupState(enum.Enum):
    """The state of a group, with its name in DescribeGroups of 1.1."""

    EMPTY = "Empty"
    """No members: a new group, one whose members have left, or one that only stores positions."""
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    """All members have joined, and the leader's assignment is awaited.

    Called AwaitingSync until 1.0.
    """
    STABLE = "Stable"
    DEAD = "Dead"
    """Removed: a member that still knows it must join again."""


# -- requests and responses


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """A JoinGroup request.

    In a member's first request, ``member_id`` is empty; ``new_member_id`` is the id that it gets then. ``ticket`` is
    the number by which the response finds the request. Timeouts are in ms. ``protocols`` are the supported assignors.
    """

    ticket: Ticket
    member_id: str
    new_member_id: str
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[Protocol, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinResult:
    """The response to a JoinGroup.

    ``members`` has the id and the subscription of each member, in the response to the group's leader only. ``protocol``
    is the assignor that was chosen; ``leader`` is the leader's member id.
    """

    error: ErrorCode = ErrorCode.NONE
    member_id: str
    generation: int = 0
    protocol: str = ""
    leader: str = ""
    members: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncResult:
    """The response to a SyncGroup: an error code, or the member's part of the assignment."""

    error: ErrorCode = ErrorCode.NONE
    assignment: bytes = b""


# -- effects: what the caller of a group has to do


@dataclass(frozen=True, slots=True)
class Joined:
    """Effect: respond to the JoinGroup request with this ticket number."""

    ticket: Ticket
    result: JoinResult


@dataclass(frozen=True, slots=True)
class Synced:
    """Effect: respond to the SyncGroup request with this ticket number."""

    ticket: Ticket
    result: SyncResult


@dataclass(frozen=True, slots=True)
class Store:
    """Effect: write the group to the log, then call :meth:`CoordinatedGroup.stored`.

    ``group`` is the value to write. ``stored`` must be called with its generation, ``assignment`` (by member id), and
    the error code of the write.
    """

    group: GroupValue
    assignment: Mapping[str, bytes]


Effect = Joined | Synced | Store


# -- descriptions


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """A group as DescribeGroups returns it.

    Only a stable group has subscriptions, assignments and an assignor's name.
    """

    state: GroupState
    protocol_type: str = ""
    protocol: str = ""
    members: tuple[GroupMember, ...] = ()
