# SPDX-License-Identifier: Apache-2.0
"""Requests to a group, its responses, and its stored form: plain values. Pure.

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
"""The member id in a first JoinGroup, and of clients that only commit."""


class GroupState(enum.Enum):
    """The state of a group, with its name in DescribeGroups of 1.1."""

    EMPTY = "Empty"
    """No members: a new group, one whose members have left, or one that only stores positions."""
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    """Called AwaitingSync until 1.0."""
    STABLE = "Stable"
    DEAD = "Dead"
    """Removed: a member that still knows it must join again."""


# -- requests and answers


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """A JoinGroup; in a first one, ``member_id`` is empty and ``new_member_id`` will be assigned."""

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
    """The response to a JoinGroup; ``members`` (ids, metadata) is for the leader only."""

    error: ErrorCode = ErrorCode.NONE
    member_id: str
    generation: int = 0
    protocol: str = ""
    leader: str = ""
    members: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncAnswer:
    """The response to a SyncGroup."""

    error: ErrorCode = ErrorCode.NONE
    assignment: bytes = b""


# -- effects


@dataclass(frozen=True, slots=True)
class Joined:
    """Respond to a JoinGroup."""

    ticket: Ticket
    answer: JoinAnswer


@dataclass(frozen=True, slots=True)
class Synced:
    """Respond to a SyncGroup."""

    ticket: Ticket
    answer: SyncAnswer


@dataclass(frozen=True, slots=True)
class Store:
    """Write the group to the log, then call :meth:`CoordinatedGroup.stored`.

    That call has the same generation and assignment.
    """

    group: StoredGroup
    assignment: Mapping[str, bytes]


Effect = Joined | Synced | Store


# -- what is stored and described


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMember:
    """A member as stored in the log and shown by DescribeGroups."""

    member_id: str
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredGroup:
    """A generation as stored; ``protocol`` and ``leader`` are None without members."""

    group_id: str
    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    members: tuple[StoredMember, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """A group in DescribeGroups; only a stable group has subscriptions, assignments and protocol."""

    state: GroupState
    protocol_type: str = ""
    protocol: str = ""
    members: tuple[StoredMember, ...] = ()
