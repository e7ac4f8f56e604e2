# SPDX-License-Identifier: Apache-2.0
"""Requests of group members, and requests that describe groups (Kafka protocol guide, since 0.9).

1. A member sends JoinGroup. The response comes when all members have joined, and names one of them as leader.
2. All members send SyncGroup, the leader with the assignment. The response is the member's part of it.
3. Members send Heartbeat until a response tells them to join again.

Contents of ``metadata`` and ``assignment`` depend on the protocol type; ``consumer_protocol`` has those of consumers.

Version 1 of these requests adds the throttle time (0.11), except for JoinGroup: there version 1 adds the rebalance
timeout (KIP-62), and version 2 the throttle time.
"""

from __future__ import annotations

from typing import Final

from consumerd.wire.apikeys import ApiKey
from consumerd.wire.declaration import BYTES, INT16, INT32, STRING, ArrayOf, field, message
from consumerd.wire.schema import Request, request

NO_MEMBER_ID: Final = ""
"""``member_id`` of a new member; the response has its id."""

# -- JoinGroup


@message
class JoinedMember:
    """A group member in the JoinGroup response, with its metadata for the chosen protocol."""

    member_id: str = field(STRING)
    metadata: bytes = field(BYTES)


@message
class JoinGroupResponse:
    """JoinGroup response: the new generation of the group.

    ``members`` is empty for all members but the leader. With an error code ``generation_id`` is 0.
    """

    throttle_time_ms: int = field(INT32, "2+", default=0)
    error_code: int = field(INT16, default=0)
    generation_id: int = field(INT32)
    protocol_name: str = field(STRING)
    leader: str = field(STRING)
    member_id: str = field(STRING)
    members: tuple[JoinedMember, ...] = field(ArrayOf(JoinedMember))


@message
class GroupProtocol:
    """A protocol that a group member supports, with the member's metadata for it.

    For consumers a protocol is an assignor, such as ``range``.
    """

    name: str = field(STRING)
    metadata: bytes = field(BYTES)


@request(ApiKey.JOIN_GROUP, versions=range(3), response=JoinGroupResponse)
class JoinGroupRequest(Request[JoinGroupResponse]):
    """Request to join, or rejoin, a group; ``protocols`` is in order of preference.

    ``member_id`` is empty for a new member. ``rebalance_timeout_ms`` -1 means the session timeout, which version 0
    always uses.
    """

    group_id: str = field(STRING)
    session_timeout_ms: int = field(INT32)
    rebalance_timeout_ms: int = field(INT32, "1+", default=-1)
    member_id: str = field(STRING)
    protocol_type: str = field(STRING)
    protocols: tuple[GroupProtocol, ...] = field(ArrayOf(GroupProtocol))


# -- SyncGroup


@message
class SyncGroupResponse:
    """SyncGroup response: the assignment of this member; empty with an error code."""

    throttle_time_ms: int = field(INT32, "1+", default=0)
    error_code: int = field(INT16, default=0)
    assignment: bytes = field(BYTES)


@message
class MemberAssignment:
    """Assignment of one group member, as the leader sends it."""

    member_id: str = field(STRING)
    assignment: bytes = field(BYTES)


@request(ApiKey.SYNC_GROUP, versions=range(2), response=SyncGroupResponse)
class SyncGroupRequest(Request[SyncGroupResponse]):
    """Request for a member's assignment; the leader's request contains that of all members."""

    group_id: str = field(STRING)
    generation_id: int = field(INT32)
    member_id: str = field(STRING)
    assignments: tuple[MemberAssignment, ...] = field(ArrayOf(MemberAssignment))


# -- Heartbeat and LeaveGroup


@message
class HeartbeatResponse:
    """Heartbeat response; REBALANCE_IN_PROGRESS tells the member to rejoin."""

    throttle_time_ms: int = field(INT32, "1+", default=0)
    error_code: int = field(INT16, default=0)


@request(ApiKey.HEARTBEAT, versions=range(2), response=HeartbeatResponse)
class HeartbeatRequest(Request[HeartbeatResponse]):
    """Request that keeps a group member alive."""

    group_id: str = field(STRING)
    generation_id: int = field(INT32)
    member_id: str = field(STRING)


@message
class LeaveGroupResponse:
    """LeaveGroup response; an error code if the sender was no member."""

    throttle_time_ms: int = field(INT32, "1+", default=0)
    error_code: int = field(INT16, default=0)


@request(ApiKey.LEAVE_GROUP, versions=range(2), response=LeaveGroupResponse)
class LeaveGroupRequest(Request[LeaveGroupResponse]):
    """Request to leave a group at once, instead of when the session times out."""

    group_id: str = field(STRING)
    member_id: str = field(STRING)


# -- DescribeGroups and ListGroups


@message
class DescribedMember:
    """A group member in the DescribeGroups response.

    Metadata and assignment are empty while the group is not stable.
    """

    member_id: str = field(STRING)
    client_id: str = field(STRING)
    client_host: str = field(STRING)
    metadata: bytes = field(BYTES)
    assignment: bytes = field(BYTES)


@message
class DescribedGroup:
    """A group in the DescribeGroups response; state Dead if the coordinator does not know it."""

    error_code: int = field(INT16, default=0)
    group_id: str = field(STRING)
    state: str = field(STRING)
    protocol_type: str = field(STRING)
    protocol: str = field(STRING)
    members: tuple[DescribedMember, ...] = field(ArrayOf(DescribedMember))


@message
class DescribeGroupsResponse:
    """DescribeGroups response: the requested groups with their members."""

    throttle_time_ms: int = field(INT32, "1+", default=0)
    groups: tuple[DescribedGroup, ...] = field(ArrayOf(DescribedGroup))


@request(ApiKey.DESCRIBE_GROUPS, versions=range(2), response=DescribeGroupsResponse)
class DescribeGroupsRequest(Request[DescribeGroupsResponse]):
    """Request for the state and members of groups; sent to their coordinator."""

    groups: tuple[str, ...] = field(ArrayOf(STRING))


@message
class GroupListing:
    """A group in the ListGroups response.

    ``protocol_type`` is empty for a group that only commits offsets.
    """

    group_id: str = field(STRING)
    protocol_type: str = field(STRING)


@message
class ListGroupsResponse:
    """ListGroups response: the groups that the broker coordinates."""

    throttle_time_ms: int = field(INT32, "1+", default=0)
    error_code: int = field(INT16, default=0)
    groups: tuple[GroupListing, ...] = field(ArrayOf(GroupListing))


@request(ApiKey.LIST_GROUPS, versions=range(2), response=ListGroupsResponse)
class ListGroupsRequest(Request[ListGroupsResponse]):
    """Request for the groups that a broker coordinates; it has no fields."""
