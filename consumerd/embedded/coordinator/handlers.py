# SPDX-License-Identifier: Apache-2.0
"""Handlers of FindCoordinator, group requests, OffsetCommit and OffsetFetch.

They convert between the wire's values and the coordinator's, for all versions; decisions are made elsewhere. Errors are
responses; a client's mistakes raise nothing.

Source: Kafka's ``KafkaApis.scala`` of 1.1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import structlog

from consumerd.embedded.coordinator.coordinator import GroupCoordinator
from consumerd.embedded.coordinator.member import Protocol
from consumerd.embedded.coordinator.positions import CoordinatedPosition
from consumerd.embedded.coordinator.zookeeper_positions import IllegalGroupId, ZooKeeperPositions
from consumerd.embedded.handlers.context import Handler, RequestContext
from consumerd.embedded.topics import Topics
from consumerd.embedded.znodes import BrokerAddress
from consumerd.errors import CoordinationError
from consumerd.model import BrokerId, TopicPartition
from consumerd.wire.apikeys import ApiKey
from consumerd.wire.errorcodes import ErrorCode
from consumerd.wire.modern import find_coordinator, groups, offset_commit, offset_fetch

_NO_BROKER: Final = -1
_LAST_MS: Final = 2**63 - 1

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


def group_handlers(
    coordinator: GroupCoordinator,
    positions: ZooKeeperPositions,
    *,
    topics: Topics,
    address: BrokerAddress,
    find_address: Callable[[BrokerId], BrokerAddress | None] | None = None,
    find_transactional: Callable[[str], BrokerId | ErrorCode] | None = None,
    now_ms: Callable[[], int],
) -> Mapping[ApiKey, Handler]:
    """Return the handlers of group requests, offset commits and offset fetches, by API.

    Args:
        coordinator: Handles the requests that are not about positions in ZooKeeper.
        positions: Positions in ZooKeeper, for version 0 of OffsetCommit and OffsetFetch.
        topics: The existing topics: commits for others are refused.
        address: The address of this broker.
        find_address: Returns the address of a live broker, for FindCoordinator; without it there is only this broker.
        find_transactional: Returns the coordinator of a transactional id, or an error; without it there is none.
        now_ms: Returns the calendar time in ms since the Unix epoch.
    """
    finders: dict[int, Callable[[str], BrokerId | ErrorCode]] = {find_coordinator.GROUP: coordinator.find}
    if find_transactional is not None:
        finders[find_coordinator.TRANSACTION] = find_transactional
    of_groups = GroupRequests(coordinator, find_address or {address.broker_id: address}.get, finders)
    of_positions = PositionRequests(coordinator, positions, topics, now_ms)
    return {
        ApiKey.FIND_COORDINATOR: of_groups.find_coordinator,
        ApiKey.JOIN_GROUP: of_groups.join,
        ApiKey.SYNC_GROUP: of_groups.sync,
        ApiKey.HEARTBEAT: of_groups.heartbeat,
        ApiKey.LEAVE_GROUP: of_groups.leave,
        ApiKey.DESCRIBE_GROUPS: of_groups.describe,
        ApiKey.LIST_GROUPS: of_groups.list,
        ApiKey.OFFSET_COMMIT: of_positions.commit,
        ApiKey.OFFSET_FETCH: of_positions.fetch,
    }


class GroupRequests:
    """Handlers of group members' requests, and of those that describe groups."""

    def __init__(
        self,
        coordinator: GroupCoordinator,
        find_address: Callable[[BrokerId], BrokerAddress | None],
        finders: Mapping[int, Callable[[str], BrokerId | ErrorCode]],
    ) -> None:
        self._coordinator = coordinator
        self._find_address = find_address
        self._finders = finders

    async def find_coordinator(
        self, request: find_coordinator.FindCoordinatorRequest, _: RequestContext
    ) -> find_coordinator.FindCoordinatorResponse:
        """Return the coordinator of a group or transactional id.

        It is an error until the coordinator's topic exists.
        """
        error = ErrorCode.INVALID_REQUEST
        if (find := self._finders.get(request.key_type)) is not None:
            found = find(request.key)
            error = found if isinstance(found, ErrorCode) else ErrorCode.COORDINATOR_NOT_AVAILABLE
            address = None if isinstance(found, ErrorCode) else self._find_address(found)
            if address is not None:
                return find_coordinator.FindCoordinatorResponse(
                    node_id=address.broker_id, host=address.host, port=address.port
                )
        return find_coordinator.FindCoordinatorResponse(error_code=error, node_id=_NO_BROKER, host="", port=_NO_BROKER)

    async def join(self, request: groups.JoinGroupRequest, context: RequestContext) -> groups.JoinGroupResponse:
        """Add a member to its group, and respond when all members have joined."""
        result = await self._coordinator.join(
            request.group_id,
            member_id=request.member_id,
            client_id=context.client_id or "",
            # as Java prints an address without a name
            client_host=f"/{context.peer_host}",
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            protocol_type=request.protocol_type,
            protocols=[Protocol(one.name, bytes(one.metadata)) for one in request.protocols],
            hangup=context.hangup,
        )
        return groups.JoinGroupResponse(
            error_code=result.error,
            generation_id=result.generation,
            protocol_name=result.protocol,
            leader=result.leader,
            member_id=result.member_id,
            members=tuple(groups.JoinedMember(member_id=one, metadata=data) for one, data in result.members),
        )

    async def sync(self, request: groups.SyncGroupRequest, context: RequestContext) -> groups.SyncGroupResponse:
        """Respond with the member's assignment, when the group's leader has sent it."""
        result = await self._coordinator.sync(
            request.group_id,
            member_id=request.member_id,
            generation=request.generation_id,
            assignment={one.member_id: bytes(one.assignment) for one in request.assignments},
            hangup=context.hangup,
        )
        return groups.SyncGroupResponse(error_code=result.error, assignment=result.assignment)

    async def heartbeat(self, request: groups.HeartbeatRequest, _: RequestContext) -> groups.HeartbeatResponse:
        """Restart the session timeout of the group member that has sent the heartbeat."""
        error = self._coordinator.heartbeat(
            request.group_id, member_id=request.member_id, generation=request.generation_id
        )
        return groups.HeartbeatResponse(error_code=error)

    async def leave(self, request: groups.LeaveGroupRequest, _: RequestContext) -> groups.LeaveGroupResponse:
        """Remove the member that has sent the request from its group."""
        error = self._coordinator.leave(request.group_id, member_id=request.member_id)
        return groups.LeaveGroupResponse(error_code=error)

    async def describe(self, request: groups.DescribeGroupsRequest, _: RequestContext) -> groups.DescribeGroupsResponse:
        """Return the descriptions of the requested groups, each group once."""
        return groups.DescribeGroupsResponse(groups=tuple(map(self._describe, dict.fromkeys(request.groups))))

    def _describe(self, group_id: str) -> groups.DescribedGroup:
        error, group = self._coordinator.describe(group_id)
        return groups.DescribedGroup(
            error_code=error,
            group_id=group_id,
            # a group that is not coordinated here has no state
            state="" if error is not ErrorCode.NONE else self._coordinator.settings.name_state(group.state),
            protocol_type=group.protocol_type,
            protocol=group.protocol,
            members=tuple(
                groups.DescribedMember(
                    member_id=member.member_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    metadata=member.subscription,
                    assignment=member.assignment,
                )
                for member in group.members
            ),
        )

    async def list(self, _: groups.ListGroupsRequest, __: RequestContext) -> groups.ListGroupsResponse:
        """Return the ids of all groups that this broker coordinates."""
        error, found = self._coordinator.groups()
        return groups.ListGroupsResponse(
            error_code=error,
            groups=tuple(groups.GroupListing(group_id=one, protocol_type=protocol) for one, protocol in found),
        )


class PositionRequests:
    """Handlers of OffsetCommit and OffsetFetch.

    Version 0 of both uses ZooKeeper, later versions the topic ``__consumer_offsets``.
    """

    def __init__(
        self,
        coordinator: GroupCoordinator,
        zookeeper: ZooKeeperPositions,
        topics: Topics,
        now_ms: Callable[[], int],
    ) -> None:
        self._coordinator = coordinator
        self._zookeeper = zookeeper
        self._topics = topics
        self._now_ms = now_ms

    async def commit(
        self, request: offset_commit.OffsetCommitRequest, context: RequestContext
    ) -> offset_commit.OffsetCommitResponse:
        """Store a group's positions; those of topics that do not exist are refused."""
        asked = {
            TopicPartition.modern(topic.topic, one.partition): one
            for topic in request.topics
            for one in topic.partitions
        }
        known = {partition: one for partition, one in asked.items() if self._exists(partition)}
        errors = dict.fromkeys(asked, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if context.version == 0:
            for partition, one in known.items():
                errors[partition] = await self._commit_to_zookeeper(request.group_id, partition, one)
        else:
            committed = await self._coordinator.commit(
                request.group_id,
                member_id=request.member_id,
                generation=request.generation_id,
                positions={partition: self._position(request, one) for partition, one in known.items()},
            )
            errors.update(committed)
        return offset_commit.OffsetCommitResponse(
            topics=tuple(
                offset_commit.CommittedTopic(
                    topic=topic.topic,
                    partitions=tuple(
                        offset_commit.CommittedPartition(
                            partition=one.partition,
                            error_code=errors[TopicPartition.modern(topic.topic, one.partition)],
                        )
                        for one in topic.partitions
                    ),
                )
                for topic in request.topics
            )
        )

    async def fetch(
        self, request: offset_fetch.OffsetFetchRequest, context: RequestContext
    ) -> offset_fetch.OffsetFetchResponse:
        """Return the requested positions of a group, or all of them if none are named."""
        if context.version == 0:
            kept = {
                partition: await self._fetch_from_zookeeper(request.group_id, partition)
                for partition in _partitions(request)
            }
            return _fetched(kept)
        error, positions = self._coordinator.positions(request.group_id)
        if error is not ErrorCode.NONE and context.version >= 2:
            return _fetched({}, error)
        wanted = list(positions) if request.topics is None else _partitions(request)
        return _fetched({partition: _kept(partition, positions.get(partition), error) for partition in wanted})

    def _exists(self, partition: TopicPartition) -> bool:
        """Return True if the topic exists; as in Kafka, partition numbers are not checked."""
        return self._topics.find(partition.topic) is not None

    def _position(
        self, request: offset_commit.OffsetCommitRequest, one: offset_commit.CommitPartition
    ) -> CoordinatedPosition:
        """Compute the expiry of a position.

        The retention time of the request (version 2) or of the broker is added to the position's own timestamp (version
        1) or to the present time.
        """
        retention_ms = request.retention_time_ms
        if retention_ms == offset_commit.DEFAULT_RETENTION_TIME:
            retention_ms = self._coordinator.settings.offsets_retention_ms
        now_ms = self._now_ms()
        from_ms = now_ms if one.timestamp == offset_commit.NOW_TIMESTAMP else one.timestamp
        # a client may send any int64: clamp the expiry to the range of timestamps
        expire_ms = max(0, min(from_ms + retention_ms, _LAST_MS))
        return CoordinatedPosition(
            offset=one.offset, metadata=one.metadata or "", commit_ms=now_ms, expire_ms=expire_ms
        )

    async def _commit_to_zookeeper(
        self, group_id: str, partition: TopicPartition, one: offset_commit.CommitPartition
    ) -> ErrorCode:
        if len(one.metadata or "") > self._coordinator.settings.max_metadata_characters:
            return ErrorCode.OFFSET_METADATA_TOO_LARGE
        try:
            await self._zookeeper.commit(group_id, partition, one.offset)
        except IllegalGroupId:
            return ErrorCode.INVALID_GROUP_ID
        except CoordinationError as error:
            log.warning("commit_failed", group=group_id, partition=str(partition), error=str(error))
            return ErrorCode.UNKNOWN_SERVER_ERROR
        return ErrorCode.NONE

    async def _fetch_from_zookeeper(self, group_id: str, partition: TopicPartition) -> offset_fetch.KeptPartition:
        if not self._exists(partition):
            return _kept(partition, None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        try:
            offset = await self._zookeeper.find(group_id, partition)
        except IllegalGroupId:
            return _kept(partition, None, ErrorCode.INVALID_GROUP_ID)
        except CoordinationError as error:
            log.warning("position_unreadable", group=group_id, partition=str(partition), error=str(error))
            return _kept(partition, None, ErrorCode.UNKNOWN_SERVER_ERROR)
        if offset is None:
            # version 0's code for "nothing committed"
            return _kept(partition, None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return offset_fetch.KeptPartition(partition=partition.partition.number, offset=offset, metadata="")


def _partitions(request: offset_fetch.OffsetFetchRequest) -> list[TopicPartition]:
    return [TopicPartition.modern(topic.topic, number) for topic in request.topics or () for number in topic.partitions]


def _kept(
    partition: TopicPartition, position: CoordinatedPosition | None, error: ErrorCode
) -> offset_fetch.KeptPartition:
    if position is None:
        return offset_fetch.KeptPartition(
            partition=partition.partition.number, offset=offset_fetch.NO_OFFSET, metadata="", error_code=error
        )
    return offset_fetch.KeptPartition(
        partition=partition.partition.number, offset=position.offset, metadata=position.metadata
    )


def _fetched(
    kept: Mapping[TopicPartition, offset_fetch.KeptPartition], error: ErrorCode = ErrorCode.NONE
) -> offset_fetch.OffsetFetchResponse:
    by_topic: dict[str, list[offset_fetch.KeptPartition]] = {}
    for partition, one in kept.items():
        by_topic.setdefault(partition.topic, []).append(one)
    return offset_fetch.OffsetFetchResponse(
        topics=tuple(offset_fetch.KeptTopic(topic=topic, partitions=tuple(ones)) for topic, ones in by_topic.items()),
        error_code=error,
    )
