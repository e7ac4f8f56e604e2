# SPDX-License-Identifier: Apache-2.0
"""Requests of one member to its group's coordinator: JoinGroup, SyncGroup, Heartbeat, LeaveGroup.

Each method sends one request, and raises its failure: the member decides when to try again.

The first three requests share a connection of their own (:attr:`~consumerd.net.pool.Purpose.GROUP`). A broker answers
the requests of a connection one after the other, and a join waits for all members, up to the rebalance timeout.
Commits, LeaveGroup and DescribeGroups must not wait for it, so they use another connection.

Sources: Kafka protocol guide; ``AbstractCoordinator.java`` of 0.9 to 3.9.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from consumerd.client.coordinator import CoordinatorFinder
from consumerd.client.group_coordinators import describe_group
from consumerd.cluster.view import Broker
from consumerd.net.connection import BrokerConnection
from consumerd.wire.errorcodes import ErrorCode, broker_error
from consumerd.wire.modern.consumer_protocol import PROTOCOL_TYPE
from consumerd.wire.modern.groups import (
    DescribedGroup,
    GroupProtocol,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    MemberAssignment,
    SyncGroupRequest,
)

_FIRST_WITH_REBALANCE_TIMEOUT: Final = 1
"""First version of JoinGroup with the field."""
_JOIN_SLACK_S: Final = 5.0
"""Time, in seconds, for the answer of a join after the rebalance timeout, as in Java."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedGroup:
    """Result of JoinGroup.

    Attributes:
        rebalance_timeout_s: Time for which the coordinator waits for us in a rebalance, in seconds. It is the session
            timeout if the broker has version 0 of the request only (before 0.10.1).
    """

    answer: JoinGroupResponse
    rebalance_timeout_s: float


class CoordinatorClient:
    """Sends a member's requests to the broker that coordinates its group.

    Args:
        joining: Finds the coordinator for JoinGroup, SyncGroup and Heartbeat, which have a connection of their own.
        finder: Finds the coordinator for all other requests.
        session_timeout_s: The coordinator removes a member that has sent no heartbeat for this time, in seconds.
        rebalance_timeout_s: Longest time that the coordinator waits for members to join again, in seconds. Brokers
            before 0.10.1 wait for the session timeout instead.
        request_timeout_s: Time limit, in seconds, of LeaveGroup and DescribeGroups. JoinGroup and SyncGroup may take
            longer; a Heartbeat may take a third of ``session_timeout_s``.
    """

    def __init__(
        self,
        joining: CoordinatorFinder,
        finder: CoordinatorFinder,
        group: str,
        *,
        session_timeout_s: float,
        rebalance_timeout_s: float,
        request_timeout_s: float,
    ) -> None:
        self._joining = joining
        self._finder = finder
        self._group = group
        self._session_timeout_s = session_timeout_s
        self._rebalance_timeout_s = rebalance_timeout_s
        self._request_timeout_s = request_timeout_s

    @property
    def broker(self) -> Broker | None:
        """Broker that coordinates the group, as last found; None while it is not known."""
        return self._joining.coordinator

    async def join(self, member_id: str, protocols: Sequence[tuple[str, bytes]]) -> JoinedGroup:
        """Send JoinGroup, and return the response with the group's new generation id.

        Takes up to the rebalance timeout.

        Args:
            member_id: Id that the coordinator gave us before; empty for a new member.
            protocols: Names of our assignors in order of preference, each with our encoded subscription.

        Raises BrokerError, ConnectionLost, ProtocolError, CoordinationError.
        """
        request = JoinGroupRequest(
            group_id=self._group,
            session_timeout_ms=round(self._session_timeout_s * 1000),
            member_id=member_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=tuple(GroupProtocol(name=name, metadata=metadata) for name, metadata in protocols),
        )
        longest_s = max(self._session_timeout_s, self._rebalance_timeout_s) + _JOIN_SLACK_S

        async def send(connection: BrokerConnection) -> JoinedGroup:
            sent, rebalance_timeout_s = request, self._session_timeout_s
            if connection.version_of(JoinGroupRequest) >= _FIRST_WITH_REBALANCE_TIMEOUT:
                rebalance_timeout_s = self._rebalance_timeout_s
                sent = replace(request, rebalance_timeout_ms=round(rebalance_timeout_s * 1000))
            response = await connection.request(sent, timeout_s=longest_s)
            self._check(response.error_code, "JoinGroup", connection)
            return JoinedGroup(answer=response, rebalance_timeout_s=rebalance_timeout_s)

        return await self._joining.ask_once(send)

    async def sync(self, generation: int, member_id: str, assignments: Mapping[str, bytes]) -> bytes:
        """Send SyncGroup, and return our encoded assignment.

        Takes until the group's leader has sent the assignments of all members.

        Args:
            generation: Generation id of the response to JoinGroup.
            assignments: Encoded assignment of each member id, from the group's leader; empty from other members.

        Raises BrokerError, ConnectionLost, ProtocolError, CoordinationError.
        """
        request = SyncGroupRequest(
            group_id=self._group,
            generation_id=generation,
            member_id=member_id,
            assignments=tuple(MemberAssignment(member_id=one, assignment=data) for one, data in assignments.items()),
        )
        longest_s = max(self._session_timeout_s, self._request_timeout_s) + _JOIN_SLACK_S

        async def send(connection: BrokerConnection) -> bytes:
            response = await connection.request(request, timeout_s=longest_s)
            self._check(response.error_code, "SyncGroup", connection)
            return response.assignment

        return await self._joining.ask_once(send)

    async def heartbeat(self, generation: int, member_id: str) -> None:
        """Send one Heartbeat, which keeps the member in the group.

        Args:
            generation: Generation id of the response to JoinGroup.

        Raises BrokerError if a rebalance has begun or the member was removed, ConnectionLost, ProtocolError,
        CoordinationError.
        """
        request = HeartbeatRequest(group_id=self._group, generation_id=generation, member_id=member_id)

        async def send(connection: BrokerConnection) -> None:
            # a connection that hangs is closed in time for another attempt before claims are worth nothing
            response = await connection.request(request, timeout_s=self._session_timeout_s / 3)
            self._check(response.error_code, "Heartbeat", connection)

        await self._joining.ask_once(send)

    async def leave(self, member_id: str) -> None:
        """Send LeaveGroup, so that the coordinator does not wait for the session timeout.

        Raises BrokerError, ConnectionLost, ProtocolError, CoordinationError.
        """
        request = LeaveGroupRequest(group_id=self._group, member_id=member_id)

        async def send(connection: BrokerConnection) -> None:
            response = await connection.request(request, timeout_s=self._request_timeout_s)
            self._check(response.error_code, "LeaveGroup", connection)

        await self._finder.ask_once(send)

    async def describe(self) -> DescribedGroup:
        """Return the group's state and members as the coordinator knows them.

        Raises BrokerError, ConnectionLost, ProtocolError, CoordinationError.
        """
        return await self._finder.ask_once(self._describe)

    async def describe_patiently(self) -> DescribedGroup:
        """Return the group's state and members; asks again while a failure may pass.

        The time is limited by the finder's ``patience_s``. Raises BrokerError, ConnectionLost, ProtocolError,
        CoordinationError.
        """
        return await self._finder.ask(self._describe)

    async def _describe(self, connection: BrokerConnection) -> DescribedGroup:
        return await describe_group(connection, self._group, timeout_s=self._request_timeout_s)

    def _check(self, code: int, request: str, connection: BrokerConnection) -> None:
        if code != ErrorCode.NONE:
            raise broker_error(code, f"{request} of group {self._group!r} at {connection.address}")


def list_consumers(described: DescribedGroup) -> Collection[str]:
    """Return the ids of a group's members; empty if the members are not consumers.

    Members of other kinds are, for example, the workers of Kafka Connect.
    """
    return [one.member_id for one in described.members] if described.protocol_type == PROTOCOL_TYPE else []
