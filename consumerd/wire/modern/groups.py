# SPDX-License-Identifier: Apache-2.0
"""The requests of group members, and those that look at groups from outside (Kafka protocol guide, since 0.9).

A member joins, which ends when all have joined and one of them is the leader; syncs, which ends when the leader has said
who gets what; and sends heartbeats until one says that the others join again. What members say in ``metadata`` and
``assignment`` is the business of their protocol type: see ``consumer_protocol`` for consumers.

All of them have version 1 for the throttle time alone (0.11), but JoinGroup: its version 1 adds the time that members
have for joining again (KIP-62), and its version 2 the throttle time.
"""

from __future__ import annotations

from typing import ClassVar, Final

from consumerd.wire.apikeys import ApiKey
from consumerd.wire.declaration import BYTES, INT16, INT32, STRING, ArrayOf, field, message
from consumerd.wire.schema import Request

NO_MEMBER_ID: Final = ""
"""Joins as a new member, who learns its id from the answer."""

# -- JoinGroup


@message
class JoinedMember:
    """A member, and what it said of itself for the protocol that was chosen."""

    member_id: str = field(STRING)
    metadata: bytes = field(BYTES)


@message
class JoinGroupResponse:
    """The new generation. ``members`` is empty for all but the leader; with an error ``generation_id`` is 0."""

    throttle_time_ms: int = field(INT32, "2+", default=0)
    error_code: int = field(INT16, default=0)
    generation_id: int = field(INT32)
    protocol_name: str = field(STRING)
    leader: str = field(STRING)
    member_id: str = field(STRING)
    members: tuple[JoinedMember, ...] = field(ArrayOf(JoinedMember))


@message
class GroupProtocol:
    """A protocol that a member knows (for consumers: an assignor), and what it says of itself in it."""

    name: str = field(STRING)
    metadata: bytes = field(BYTES)


@message
class JoinGroupRequest(Request[JoinGroupResponse]):
    """Join, or join again. ``protocols`` in the order in which they are liked.

    ``rebalance_timeout_ms`` -1, as in version 0: as long as the session.
    """

    api: ClassVar[ApiKey] = ApiKey.JOIN_GROUP
    versions: ClassVar[range] = range(3)
    response: ClassVar[type] = JoinGroupResponse

    group_id: str = field(STRING)
    session_timeout_ms: int = field(INT32)
    rebalance_timeout_ms: int = field(INT32, "1+", default=-1)
    member_id: str = field(STRING)
    protocol_type: str = field(STRING)
    protocols: tuple[GroupProtocol, ...] = field(ArrayOf(GroupProtocol))


# -- SyncGroup


@message
class SyncGroupResponse:
    """What the leader has given to this member; empty with an error."""

    throttle_time_ms: int = field(INT32, "1+", default=0)
    error_code: int = field(INT16, default=0)
    assignment: bytes = field(BYTES)


@message
class MemberAssignment:
    """What a member gets."""

    member_id: str = field(STRING)
    assignment: bytes = field(BYTES)


@message
class SyncGroupRequest(Request[SyncGroupResponse]):
    """Wait for the assignment; the leader brings it."""

    api: ClassVar[ApiKey] = ApiKey.SYNC_GROUP
    versions: ClassVar[range] = range(2)
    response: ClassVar[type] = SyncGroupResponse

    group_id: str = field(STRING)
    generation_id: int = field(INT32)
    member_id: str = field(STRING)
    assignments: tuple[MemberAssignment, ...] = field(ArrayOf(MemberAssignment))


# -- Heartbeat and LeaveGroup


@message
class HeartbeatResponse:
    """Whether the member is still one; REBALANCE_IN_PROGRESS asks it to join again."""

    throttle_time_ms: int = field(INT32, "1+", default=0)
    error_code: int = field(INT16, default=0)


@message
class HeartbeatRequest(Request[HeartbeatResponse]):
    """Say that the member lives."""

    api: ClassVar[ApiKey] = ApiKey.HEARTBEAT
    versions: ClassVar[range] = range(2)
    response: ClassVar[type] = HeartbeatResponse

    group_id: str = field(STRING)
    generation_id: int = field(INT32)
    member_id: str = field(STRING)


@message
class LeaveGroupResponse:
    """Whether it was a member."""

    throttle_time_ms: int = field(INT32, "1+", default=0)
    error_code: int = field(INT16, default=0)


@message
class LeaveGroupRequest(Request[LeaveGroupResponse]):
    """Leave now rather than when the session ends."""

    api: ClassVar[ApiKey] = ApiKey.LEAVE_GROUP
    versions: ClassVar[range] = range(2)
    response: ClassVar[type] = LeaveGroupResponse

    group_id: str = field(STRING)
    member_id: str = field(STRING)


# -- DescribeGroups and ListGroups


@message
class DescribedMember:
    """A member, from where it speaks, and what it has; metadata and assignment are empty while the group is not stable."""

    member_id: str = field(STRING)
    client_id: str = field(STRING)
    client_host: str = field(STRING)
    metadata: bytes = field(BYTES)
    assignment: bytes = field(BYTES)


@message
class DescribedGroup:
    """A group; one that the coordinator does not know is in state Dead."""

    error_code: int = field(INT16, default=0)
    group_id: str = field(STRING)
    state: str = field(STRING)
    protocol_type: str = field(STRING)
    protocol: str = field(STRING)
    members: tuple[DescribedMember, ...] = field(ArrayOf(DescribedMember))


@message
class DescribeGroupsResponse:
    """The groups asked for."""

    throttle_time_ms: int = field(INT32, "1+", default=0)
    groups: tuple[DescribedGroup, ...] = field(ArrayOf(DescribedGroup))


@message
class DescribeGroupsRequest(Request[DescribeGroupsResponse]):
    """Describe these groups; to be sent to their coordinator."""

    api: ClassVar[ApiKey] = ApiKey.DESCRIBE_GROUPS
    versions: ClassVar[range] = range(2)
    response: ClassVar[type] = DescribeGroupsResponse

    groups: tuple[str, ...] = field(ArrayOf(STRING))


@message
class GroupListing:
    """A group; ``protocol_type`` is empty for one that only commits offsets."""

    group_id: str = field(STRING)
    protocol_type: str = field(STRING)


@message
class ListGroupsResponse:
    """The groups that the broker coordinates."""

    throttle_time_ms: int = field(INT32, "1+", default=0)
    error_code: int = field(INT16, default=0)
    groups: tuple[GroupListing, ...] = field(ArrayOf(GroupListing))


@message
class ListGroupsRequest(Request[ListGroupsResponse]):
    """Has no fields."""

    api: ClassVar[ApiKey] = ApiKey.LIST_GROUPS
    versions: ClassVar[range] = range(2)
    response: ClassVar[type] = ListGroupsResponse
