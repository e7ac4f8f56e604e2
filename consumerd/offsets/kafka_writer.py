# SPDX-License-Identifier: Apache-2.0
"""Commits of clients that are no members: OffsetCommit requests, and the operators' writer.

Sources: Kafka protocol guide (OffsetCommitRequest); ``GroupCoordinator`` of 0.9 to 4.3, which refuses such a commit
with UNKNOWN_MEMBER_ID while brokers coordinate members of the group.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from consumerd.access.principal import OUR_PRINCIPAL, Principal
from consumerd.client.coordinator import CoordinatorFinder
from consumerd.errors import (
    BrokerError,
    ConnectionLost,
    CoordinationError,
    OffsetError,
    ProtocolError,
    RemoteProtocolError,
)
from consumerd.model import Incarnation, TopicPartition
from consumerd.net.connection import BrokerConnection
from consumerd.offsets.commit_metadata import CommitMetadata, format_metadata, parse_metadata
from consumerd.offsets.kafka import KafkaPositions
from consumerd.offsets.kafka_errors import OF_ANOTHER_GROUP, explain_kafka_error
from consumerd.wire.errorcodes import ErrorCode, broker_error
from consumerd.wire.modern.offset_commit import (
    DEFAULT_RETENTION_TIME,
    NO_GENERATION,
    CommitPartition,
    CommitTopic,
    OffsetCommitRequest,
)

PARTITIONS_PER_REQUEST: Final = 1000
"""A broker appends a request's positions as one batch, which must not exceed its ``message.max.bytes`` (1 MB)."""
_FIRST_TO_KAFKA: Final = 1


def plan_commit(positions: Mapping[TopicPartition, tuple[int, str]]) -> tuple[CommitTopic, ...]:
    """Return positions, each with its metadata, in the form of an OffsetCommit request."""
    by_topic = defaultdict[str, list[CommitPartition]](list)
    for partition, (offset, text) in sorted(positions.items()):
        made = CommitPartition(partition=partition.partition.number, offset=offset, metadata=text)
        by_topic[partition.topic].append(made)
    return tuple(CommitTopic(topic=topic, partitions=tuple(made)) for topic, made in by_topic.items())


async def commit_offsets(
    connection: BrokerConnection,
    group: str,
    topics: Sequence[CommitTopic],
    *,
    timeout_s: float,
    generation: int = NO_GENERATION,
    member_id: str = "",
    retention_ms: int = DEFAULT_RETENTION_TIME,
) -> Mapping[TopicPartition, int]:
    """Send one OffsetCommit request; return the error code of each partition, 0 for success.

    A partition that the response leaves out is missing in the result.

    Args:
        timeout_s: Time limit of the request, in seconds.
        generation: Generation of the group, for a commit of a member that brokers coordinate. Without ``generation``
            and ``member_id``, the commit is that of a client that is no member.
        retention_ms: Time in ms after which the broker forgets the positions unless they are committed again; -1 for
            the broker's setting.

    Raises CoordinationError if the broker keeps positions in ZooKeeper only; ConnectionLost; ProtocolError.
    """
    version = connection.version_of(OffsetCommitRequest)
    if version < _FIRST_TO_KAFKA:
        raise CoordinationError(
            f"{connection.address}: the broker keeps positions in ZooKeeper only (OffsetCommit v{version}); "
            "offsets.storage: kafka needs brokers of 0.8.2 or later"
        )
    request = OffsetCommitRequest(
        group_id=group,
        generation_id=generation,
        member_id=member_id,
        retention_time_ms=retention_ms,
        topics=tuple(topics),
    )
    response = await connection.request(request, timeout_s=timeout_s, version=version)
    return {
        TopicPartition.modern(topic.topic, one.partition): one.error_code
        for topic in response.topics
        for one in topic.partitions
    }


class KafkaOffsetWriter:
    """Writes positions to Kafka for an operator, while no member of the group is alive.

    Args:
        request_timeout_s: Time limit of each request, in seconds.
        new_id: Returns a text of hexadecimal digits, another one with each call.
        positions: Reads what is committed, in a cluster without ZooKeeper: truncations are kept there.
        principal: Our identity at brokers, for advice.
    """

    def __init__(
        self,
        coordinator: CoordinatorFinder,
        group: str,
        *,
        request_timeout_s: float,
        new_id: Callable[[], str],
        positions: KafkaPositions | None = None,
        principal: Principal = OUR_PRINCIPAL,
    ) -> None:
        self._principal = principal
        self._positions = positions
        self._coordinator = coordinator
        self._group = group
        self._request_timeout_s = request_timeout_s
        self._new_id = new_id

    async def write(self, partition: TopicPartition, position: int, incarnation: Incarnation | None) -> None:
        """Write the position of one partition.

        Raises OffsetError if the coordinator refuses it; CoordinationError, after which it may have been written.

        Args:
            incarnation: The topic's incarnation, to be stored with the position. If it is None, readers cannot tell
                whether the position is older than the topic.
        """
        text = "" if incarnation is None else await self._describe(partition, incarnation)
        await self._commit({partition: (position, text)}, DEFAULT_RETENTION_TIME)

    async def write_translated(self, positions: Mapping[TopicPartition, tuple[int, str]], *, retention_ms: int) -> None:
        """Write positions, each with its metadata, as a client without generation.

        Raises OffsetError if the coordinator refuses one, such as while the group has members; CoordinationError, after
        which some or all may have been written.

        Args:
            retention_ms: Time in ms after which brokers forget the positions unless they are committed again.
        """
        every = list(positions.items())
        for first in range(0, len(every), PARTITIONS_PER_REQUEST):
            await self._commit(dict(every[first : first + PARTITIONS_PER_REQUEST]), retention_ms)

    async def _commit(self, positions: Mapping[TopicPartition, tuple[int, str]], retention_ms: int) -> None:
        topics = plan_commit(positions)

        async def send(connection: BrokerConnection) -> None:
            codes = await commit_offsets(
                connection, self._group, topics, timeout_s=self._request_timeout_s, retention_ms=retention_ms
            )
            for partition in positions:
                context = f"OffsetCommit of group {self._group!r} at {connection.address} for {partition}"
                if (code := codes.get(partition)) is None:
                    raise RemoteProtocolError(f"{context}: the partition is missing in the answer")
                if code != ErrorCode.NONE:
                    raise broker_error(code, context)

        try:
            await self._coordinator.ask(send)
        except (BrokerError, ConnectionLost, ProtocolError) as error:
            topic = next(iter(positions)).topic if len({one.topic for one in positions}) == 1 else ""
            text = explain_kafka_error(error, self._group, self._principal, topic)
            if self._positions is not None and isinstance(error, BrokerError) and error.code in OF_ANOTHER_GROUP:
                text = f"{error}: a member has joined the group meanwhile; stop all members, and give the command again"
            is_refused = isinstance(error, BrokerError) and not error.retriable
            raise (OffsetError if is_refused else CoordinationError)(text) from error

    async def _describe(self, partition: TopicPartition, incarnation: Incarnation) -> str:
        if not incarnation.topic_id or not incarnation.is_known:
            return format_metadata(incarnation, self._new_id())
        # in place of a request in ZooKeeper: without it, sinks would go on at the end of what they have landed
        made = CommitMetadata(incarnation=incarnation, request_id=self._new_id())
        known = None if self._positions is None else await self._read(partition, self._positions)
        if known is not None and known.incarnation.is_same_topic(incarnation):
            made = replace(made, incarnation=known.incarnation, lost_end=known.lost_end, voids=known.voids)
        return made.encode(self._new_id())

    async def _read(self, partition: TopicPartition, positions: KafkaPositions) -> CommitMetadata | None:
        try:
            found = await positions.find([partition])
        except (BrokerError, ConnectionLost, ProtocolError) as error:
            raise CoordinationError(explain_kafka_error(error, self._group, self._principal)) from error
        if (failure := found.failures.get(partition)) is not None:
            text = explain_kafka_error(failure, self._group, self._principal, partition.topic)
            raise CoordinationError(text) from failure
        offset = found.offsets.get(partition)
        return None if offset is None else parse_metadata(offset.metadata)
