# SPDX-License-Identifier: Apache-2.0
"""What is asked of a group, what it answers, and what of it is kept. Pure values.

Source: the requests of Kafka's protocol guide; ``GroupMetadata.scala``.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from consumerd.embedded.coordinator.member import Protocol, Ticket
from consumerd.wire.errorcodes import ErrorCode

UNKNOWN_MEMBER: Final = ""
"""The member id of one that joins for the first time, and of clients that only commit."""


class GroupState(enum.Enum):
    """Where a group stands; the values are those that DescribeGroups gives in 1.1."""

    EMPTY = "Empty"
    """No members: a new group, one whose members have left, or one that only keeps positions."""
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    """Until 1.0 it was called AwaitingSync."""
    STABLE = "Stable"
    DEAD = "Dead"
    """Removed: whoever still holds it starts over."""


# -- requests and answers


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """A JoinGroup; ``member_id`` is empty at the first time, and then ``new_member_id`` is given to the member."""

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
class JoinAnswer:
    """What a JoinGroup gets; ``members`` (id and metadata) for the leader only."""

    error: ErrorCode = ErrorCode.NONE
    member_id: str
    generation: int = 0
    protocol: str = ""
    leader: str = ""
    members: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncAnswer:
    """What a SyncGroup gets."""

    error: ErrorCode = ErrorCode.NONE
    assignment: bytes = b""


# -- effects


@dataclass(frozen=True, slots=True)
class Joined:
    """Answer a JoinGroup."""

    ticket: Ticket
    answer: JoinAnswer


@dataclass(frozen=True, slots=True)
class Synced:
    """Answer a SyncGroup."""

    ticket: Ticket
    answer: SyncAnswer


@dataclass(frozen=True, slots=True)
class Store:
    """Write the group to the log, then call :meth:`Group.stored` with the same generation and assignment."""

    group: StoredGroup
    assignment: Mapping[str, bytes]


Effect = Joined | Synced | Store


# -- what is stored and described


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMember:
    """A member as the log keeps it and DescribeGroups shows it."""

    member_id: str
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredGroup:
    """A generation as the log keeps it; ``protocol`` and ``leader`` are None without members."""

    group_id: str
    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    members: tuple[StoredMember, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """What DescribeGroups says; subscriptions, assignments and protocol only of a stable group."""

    state: GroupState
    protocol_type: str = ""
    protocol: str = ""
    members: tuple[StoredMember, ...] = ()
