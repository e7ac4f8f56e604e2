# SPDX-License-Identifier: Apache-2.0
"""Groups that brokers coordinate: listed by every broker, described by their coordinators (since 0.9).

A broker lists the groups that it coordinates (ListGroups), so every broker is asked. The details of a group come from
the broker that listed the group (DescribeGroups). FindCoordinator is not used: it would create ``__consumer_offsets``.

A listing may be incomplete, and says why:

- a broker has not answered, or is still loading its part of ``__consumer_offsets`` (code 14);
- a broker does not let us list groups (code 31), or is older than 0.9 and knows no groups;
- brokers before 0.10.1 leave out groups without members, which may have positions.

Sources: Kafka protocol guide; ``GroupCoordinator.handleListGroups``, which returns code 14 together with the groups
that are already loaded.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from consumerd.access.principal import OUR_PRINCIPAL, Principal, Resource
from consumerd.aio.backoff import Backoff
from consumerd.aio.parallel import map_bounded
from consumerd.aio.timeouts import timeout
from consumerd.client.leaders import Connections
from consumerd.cluster.view import Broker
from consumerd.errors import (
    BrokerError,
    ConnectionLost,
    ProtocolError,
    RemoteProtocolError,
    RequestTimedOut,
    UnsupportedVersion,
)
from consumerd.model import BrokerId, PartitionKey, TopicPartition, find_topic_fault
from consumerd.net.connection import BrokerConnection
from consumerd.net.pool import Purpose
from consumerd.wire.errorcodes import ErrorCode, broker_error
from consumerd.wire.modern.consumer_protocol import PROTOCOL_TYPE, decode_assignment, decode_subscription
from consumerd.wire.modern.groups import (
    DescribedGroup,
    DescribedMember,
    DescribeGroupsRequest,
    JoinGroupRequest,
    ListGroupsRequest,
    ListGroupsResponse,
)

_BROKERS_AT_ONCE: Final = 16
_GROUPS_PER_REQUEST: Final = 100
_FIRST_JOIN_OF_0_10_1: Final = 1
"""Version of JoinGroup that brokers speak from 0.10.1 on; those also list groups without members."""

_DEAD: Final = "Dead"
"""State of a group that its coordinator does not know."""
NO_MEMBERS: Final = "Empty"
"""State of a group that has positions and no members."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedGroup:
    """Group in a broker's answer to ListGroups.

    Attributes:
        protocol_type: Such as ``consumer``; empty for a group without members, which only has positions.
        coordinator: Broker that lists the group, which is its coordinator.
    """

    group: str
    protocol_type: str
    coordinator: Broker


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedGroups:
    """Groups that the brokers of a cluster have listed.

    Attributes:
        groups: Group by its id.
        problems: Reason why groups of a broker may be missing, for the brokers concerned.
        too_old: Brokers before 0.9, which list no groups.
        complete: Brokers that have listed every group that they coordinate, including those without members.
        silent: Brokers that have not answered.
    """

    groups: Mapping[str, ListedGroup] = field(default_factory=dict)
    problems: Mapping[BrokerId, str] = field(default_factory=dict)
    too_old: frozenset[BrokerId] = frozenset()
    complete: frozenset[BrokerId] = frozenset()
    silent: frozenset[BrokerId] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberDetails:
    """Member of a group that a broker coordinates.

    Attributes:
        topics: Topics that it subscribes to; empty if that cannot be decoded, or while the group rebalances.
        partitions: Partitions assigned to it; empty if that cannot be decoded, or while the group rebalances.
        problem: Reason why its subscription or its assignment cannot be decoded; else empty.
    """

    member_id: str
    client_id: str
    host: str
    topics: tuple[str, ...] = ()
    partitions: tuple[TopicPartition, ...] = ()
    problem: str = ""

    @property
    def name(self) -> str:
        """Client id and address of the member, as operators are shown: ``client/host``."""
        return f"{self.client_id or self.member_id}/{self.host}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDetails:
    """Description of a group by the broker that coordinates it.

    Attributes:
        coordinator: None if it is not known.
        state: Kafka's name: Stable, PreparingRebalance, AwaitingSync (later: CompletingRebalance), Empty, Dead.
        protocol_type: ``consumer`` for consumers, ``connect`` for Kafka Connect; empty without members.
        protocol: Assignor of consumers; empty while there is none.
        failure: Reason why there is no description; else empty.
        is_silent: True if the coordinator has not answered.
    """

    group: str
    coordinator: Broker | None = None
    state: str = ""
    protocol_type: str = ""
    protocol: str = ""
    members: tuple[MemberDetails, ...] = ()
    failure: str = ""
    is_silent: bool = False

    @property
    def is_consumer(self) -> bool:
        """True if its members are consumers, whose subscriptions and assignments can be decoded."""
        return self.protocol_type == PROTOCOL_TYPE

    @property
    def exists(self) -> bool:
        """True if the coordinator knows the group."""
        return self.state != _DEAD

    @property
    def owners(self) -> Mapping[TopicPartition, str]:
        """Name (client id and address) of the member that each assigned partition belongs to."""
        return {partition: member.name for member in self.members for partition in member.partitions}


NO_GROUP: Final = GroupDetails(group="", state=_DEAD)
"""Description of a group that no broker knows."""


class GroupCoordinators:
    """Asks the brokers of a cluster for the groups that they coordinate.

    Args:
        request_timeout_s: Time limit of each request, in seconds.
        patience_s: Time limit for one broker to finish loading its groups, in seconds.
        principal: Our identity at brokers, for advice.
    """

    def __init__(
        self,
        connections: Connections,
        *,
        random: Callable[[], float],
        request_timeout_s: float,
        patience_s: float,
        principal: Principal = OUR_PRINCIPAL,
    ) -> None:
        self._principal = principal
        self._connections = connections
        self._random = random
        self._request_timeout_s = request_timeout_s
        self._patience_s = patience_s

    async def list_groups(self, brokers: Iterable[Broker]) -> ListedGroups:
        """Return the groups that these brokers coordinate, as far as they answer. Raises nothing."""
        answers = await map_bounded(sorted(brokers, key=lambda one: one.id), self._list, in_flight=_BROKERS_AT_ONCE)
        groups: dict[str, ListedGroup] = {}
        for answer in answers.values():
            for one in answer.groups:
                known = groups.get(one.group)
                # a coordinator that has just been replaced may still list the group, without its members
                if known is None or (one.protocol_type and not known.protocol_type):
                    groups[one.group] = one
        by_id = {broker.id: answer for broker, answer in answers.items()}
        return ListedGroups(
            groups=dict(sorted(groups.items())),
            problems={broker.id: f"broker {broker}: {one.problem}" for broker, one in answers.items() if one.problem},
            too_old=frozenset(broker for broker, one in by_id.items() if one.is_too_old),
            complete=frozenset(broker for broker, one in by_id.items() if one.is_complete),
            silent=frozenset(broker for broker, one in by_id.items() if one.is_silent),
        )

    async def describe_groups(self, groups: Iterable[ListedGroup]) -> dict[str, GroupDetails]:
        """Return the description of each group, by group id. Raises nothing.

        A group without an answer has the reason in its ``failure``.
        """
        by_broker: dict[Broker, list[str]] = defaultdict(list)
        for one in groups:
            by_broker[one.coordinator].append(one.group)
        batches = [
            (broker, tuple(names[begin : begin + _GROUPS_PER_REQUEST]))
            for broker, names in by_broker.items()
            for begin in range(0, len(names), _GROUPS_PER_REQUEST)
        ]
        described = await map_bounded(batches, self._describe, in_flight=_BROKERS_AT_ONCE)
        return {details.group: details for batch in described.values() for details in batch}

    # -- one broker

    async def _list(self, broker: Broker) -> _Listed:
        """List one broker's groups, again while it is loading."""
        backoff = Backoff(initial_s=0.1, maximum_s=1.0, random=self._random)
        listed = _Listed(problem=f"no answer to ListGroups within {self._patience_s:g} s", is_silent=True)
        try:
            async with timeout(self._patience_s):
                while True:
                    listed = await self._list_once(broker)
                    if not listed.may_change:
                        return listed
                    await asyncio.sleep(backoff.next())
        except TimeoutError:
            return listed

    async def _list_once(self, broker: Broker) -> _Listed:
        try:
            connection = await self._connections.get(broker, Purpose.CONTROL)
            version = connection.version_of(ListGroupsRequest)
            response = await connection.request(ListGroupsRequest(), timeout_s=self._request_timeout_s, version=version)
        except UnsupportedVersion:
            return _Listed(is_too_old=True)
        except ConnectionLost as error:
            return _Listed(problem=str(error), is_silent=True, may_change=not isinstance(error, RequestTimedOut))
        except ProtocolError as error:
            return _Listed(problem=str(error))
        return _read_listing(response, broker, connection, self._principal)

    async def _describe(self, batch: tuple[Broker, tuple[str, ...]]) -> list[GroupDetails]:
        broker, names = batch
        try:
            connection = await self._connections.get(broker, Purpose.CONTROL)
            response = await connection.request(DescribeGroupsRequest(groups=names), timeout_s=self._request_timeout_s)
        except (ConnectionLost, ProtocolError) as error:
            silent = isinstance(error, ConnectionLost)
            return [GroupDetails(group=one, coordinator=broker, failure=str(error), is_silent=silent) for one in names]
        answered = {one.group_id: one for one in response.groups}
        return [read_description(answered.get(name), name, broker, self._principal) for name in names]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listed:
    """Answer of one broker.

    Attributes:
        problem: Why groups may be missing; empty if none is.
        may_change: True if the same request may soon be answered in full.
    """

    groups: Sequence[ListedGroup] = ()
    problem: str = ""
    may_change: bool = False
    is_complete: bool = False
    is_too_old: bool = False
    is_silent: bool = False


def _read_listing(
    response: ListGroupsResponse, broker: Broker, connection: BrokerConnection, principal: Principal
) -> _Listed:
    groups = [
        ListedGroup(group=one.group_id, protocol_type=one.protocol_type, coordinator=broker) for one in response.groups
    ]
    if response.error_code == ErrorCode.NONE:
        is_complete = connection.version_of(JoinGroupRequest) >= _FIRST_JOIN_OF_0_10_1
        return _Listed(groups=groups, is_complete=is_complete)
    error = broker_error(response.error_code, "ListGroups")
    return _Listed(groups=groups, problem=explain_group_error(error, principal), may_change=error.retriable)


def explain_group_error(error: BrokerError, principal: Principal, group: str = "") -> str:
    """Explain an error of ListGroups or DescribeGroups, with advice for the operator.

    Args:
        principal: Our identity at brokers.
        group: Group of the request; empty for ListGroups.
    """
    match error.code:
        case ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            advice = principal.advise("Describe", Resource.CLUSTER)
        case ErrorCode.GROUP_AUTHORIZATION_FAILED:
            advice = principal.advise("Describe", Resource.GROUP, group)
        case ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            advice = "the broker still reads its part of __consumer_offsets; ask again in a moment"
        case ErrorCode.NOT_COORDINATOR | ErrorCode.COORDINATOR_NOT_AVAILABLE:
            advice = "the group's coordinator is moving; ask again in a moment"
        case _:
            advice = "see the broker's log"
    return f"{error}: {advice}"


async def describe_group(connection: BrokerConnection, group: str, *, timeout_s: float) -> DescribedGroup:
    """Return a group's state and members, as its coordinator describes them.

    Args:
        connection: Connection to the coordinator.
        timeout_s: Time limit of the request, in seconds.

    Raises BrokerError, ConnectionLost, ProtocolError.
    """
    response = await connection.request(DescribeGroupsRequest(groups=(group,)), timeout_s=timeout_s)
    context = f"DescribeGroups of group {group!r} at {connection.address}"
    found = next((one for one in response.groups if one.group_id == group), None)
    if found is None:
        raise RemoteProtocolError(f"{context}: the group is missing in the answer")
    if found.error_code:
        raise broker_error(found.error_code, context)
    return found


def read_description(
    answer: DescribedGroup | None, group: str, broker: Broker | None, principal: Principal = OUR_PRINCIPAL
) -> GroupDetails:
    """Return a group's description from the coordinator's answer.

    Args:
        answer: The coordinator's answer; None if there was none. An error code in it, like a missing answer, becomes
            the description's ``failure``.
        group: Id of the group.
        broker: The coordinator; None if it is not known.
        principal: Our identity at brokers, for advice.
    """
    context = f"DescribeGroups of group {group!r} at broker {broker}"
    if answer is None:
        failure = str(RemoteProtocolError(f"{context}: the group is missing in the answer"))
        return GroupDetails(group=group, coordinator=broker, failure=failure)
    if answer.error_code != ErrorCode.NONE:
        failure = explain_group_error(broker_error(answer.error_code, context), principal, group)
        return GroupDetails(group=group, coordinator=broker, failure=failure)
    is_consumer = answer.protocol_type == PROTOCOL_TYPE
    return GroupDetails(
        group=group,
        coordinator=broker,
        state=answer.state,
        protocol_type=answer.protocol_type,
        protocol=answer.protocol,
        members=tuple(_read_member(one, is_consumer=is_consumer) for one in answer.members),
    )


def _read_member(member: DescribedMember, *, is_consumer: bool) -> MemberDetails:
    """Return a member; payloads of other protocol types, such as ``connect``, are left undecoded."""
    topics: tuple[str, ...] = ()
    partitions: tuple[TopicPartition, ...] = ()
    problem = ""
    if is_consumer:
        try:
            if member.metadata:
                topics = decode_subscription(member.metadata).topics
            if member.assignment:
                partitions = _read_assignment(member.assignment)
        except RemoteProtocolError as error:
            problem = str(error)
    return MemberDetails(
        member_id=member.member_id,
        client_id=member.client_id,
        host=member.client_host.removeprefix("/"),  # Java's form of an address is name/address, without a name here
        topics=tuple(sorted(topics)),
        partitions=partitions,
        problem=problem,
    )


def _read_assignment(data: bytes) -> tuple[TopicPartition, ...]:
    """Return assigned partitions. Raises RemoteProtocolError, also for names that are no topic's."""
    found = set()
    for topic in decode_assignment(data).topics:
        if fault := find_topic_fault(topic.topic):
            raise RemoteProtocolError(f"Assignment: topic {topic.topic[:60]!r}: {fault}")
        for number in topic.partitions:
            if number < 0:
                raise RemoteProtocolError(f"Assignment: {topic.topic}: partition {number}, expected 0 or more")
            found.add(TopicPartition(topic.topic, PartitionKey(number)))
    return tuple(sorted(found))


def find_owners(members: Collection[MemberDetails]) -> dict[TopicPartition, str]:
    """Return the member id of the owner of each assigned partition."""
    return {partition: one.member_id for one in members for partition in one.partitions}
