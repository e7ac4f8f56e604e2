# SPDX-License-Identifier: Apache-2.0
"""Positions of a group in Kafka, read from its coordinator.

A Java consumer keeps its positions in Kafka with ``offsets.storage=kafka``. Versions 1 to 3 of OffsetFetch read
positions in Kafka (Kafka protocol guide). Version 0 reads positions in ZooKeeper, so it is never used: brokers that
know only that version keep no positions in Kafka.

- Without the topic ``__consumer_offsets`` no group has positions in Kafka, and no broker is asked: the first request
  for a coordinator would create the topic.
- Offset -1 means that the partition has no position. An answer with an error code has -1, too, so each error code
  is examined; the Java consumer takes some of these answers for "no position".
- A requested partition that is missing in the answer is an error.

Kafka says nothing about the age of a position. A broker drops the positions of a deleted topic from 0.9 on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from consumerd.client.coordinator import CoordinatorFinder
from consumerd.cluster.topics import TopicRegistry
from consumerd.errors import (
    BrokerError,
    ConnectionLost,
    ConsumerdError,
    ProtocolError,
    RemoteProtocolError,
    UnsupportedVersion,
)
from consumerd.model import PartitionKey, TopicPartition
from consumerd.net.connection import BrokerConnection
from consumerd.wire.errorcodes import broker_error
from consumerd.wire.modern.offset_fetch import (
    NO_OFFSET,
    KeptPartition,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchTopic,
)

OFFSETS_TOPIC: Final = "__consumer_offsets"
"""The topic in which brokers keep positions."""
_FIRST_FROM_KAFKA: Final = 1
_FIRST_WITH_ALL: Final = 2
"""First version in which null asks for every partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaOffset:
    """A position that is committed to Kafka, with the metadata text of its commit."""

    offset: int
    metadata: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaOffsets:
    """Positions of a group as its coordinator has returned them.

    Attributes:
        offsets: the positions; a partition without a position is missing.
        failures: the error of each partition whose position the coordinator did not tell.
    """

    offsets: Mapping[TopicPartition, KafkaOffset] = field(default_factory=dict)
    failures: Mapping[TopicPartition, ConsumerdError] = field(default_factory=dict)


class KafkaPositions:
    """Reads the positions of one group from its coordinator in Kafka.

    Args:
        topics: Source of the names of existing topics and partitions.
        request_timeout_s: Time limit of each request, in seconds.
        keeps_failure: True if the object serves a single command: once the coordinator has not answered, every later
            call fails at once.
        every_partition: All partitions of the cluster, if they are known; None to read them when they are needed.
            Brokers before 0.10.2 cannot list all positions, so they are asked for each partition.
        is_kept: True if the cluster surely has the topic ``__consumer_offsets``, as when a broker coordinates the
            caller. It is not looked for then: a broker that has just started may not know it, and a position that is
            not told would count as none.
    """

    def __init__(
        self,
        topics: TopicRegistry,
        coordinator: CoordinatorFinder,
        group: str,
        *,
        request_timeout_s: float,
        keeps_failure: bool = True,
        every_partition: Collection[TopicPartition] | None = None,
        is_kept: bool = False,
    ) -> None:
        self._topics = topics
        self._is_kept = is_kept
        self._keeps_failure = keeps_failure
        self._every_partition = every_partition
        self._coordinator = coordinator
        self._group = group
        self._request_timeout_s = request_timeout_s
        self._failure: ConsumerdError | None = None

    async def may_have(self) -> bool:
        """Return False if the cluster has no topic ``__consumer_offsets``.

        No group has positions in Kafka then. Raises CoordinationError.
        """
        if self._is_kept:
            return True
        return (await self._topics.find_incarnations((OFFSETS_TOPIC,)))[OFFSETS_TOPIC] is not None

    async def find(self, partitions: Collection[TopicPartition]) -> KafkaOffsets:
        """Return the positions of these partitions, which should exist.

        If the coordinator tells some of the positions only, the result has the errors of the others. Raises
        BrokerError, ConnectionLost or ProtocolError if it tells none; CoordinationError if topics cannot be read.
        """
        modern = [one for one in partitions if not one.is_legacy]
        return await self._ask(modern) if modern and await self.may_have() else KafkaOffsets()

    async def find_of_topics(self, topics: Collection[str]) -> KafkaOffsets:
        """Return the positions of all partitions of these topics.

        If the coordinator tells some of the positions only, the result has the errors of the others. Raises
        BrokerError, ConnectionLost or ProtocolError if it tells none; CoordinationError if topics cannot be read.
        """
        return await self.find(await self._topics.list_partitions(topics) if await self.may_have() else [])

    async def find_all(self) -> KafkaOffsets:
        """Return every position that the group has in Kafka.

        If the coordinator tells some of the positions only, the result has the errors of the others. Raises
        BrokerError, ConnectionLost or ProtocolError if it tells none; CoordinationError if topics cannot be read.
        """
        return await self._ask(None) if await self.may_have() else KafkaOffsets()

    async def _ask(self, partitions: Collection[TopicPartition] | None) -> KafkaOffsets:
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        try:
            return await self._coordinator.ask(lambda connection: self._fetch(connection, partitions))
        except UnsupportedVersion:
            return KafkaOffsets()  # brokers without coordinators keep no positions
        except (BrokerError, ConnectionLost, ProtocolError) as error:
            if self._keeps_failure:
                self._failure = error
            raise

    async def _fetch(self, connection: BrokerConnection, partitions: Collection[TopicPartition] | None) -> KafkaOffsets:
        version = connection.version_of(OffsetFetchRequest)
        if version < _FIRST_FROM_KAFKA:
            return KafkaOffsets()
        if partitions is None and version < _FIRST_WITH_ALL:
            partitions = self._every_partition
            if partitions is None:
                partitions = await self._topics.list_partitions(await self._topics.list_topics())
        request = OffsetFetchRequest(
            group_id=self._group, topics=None if partitions is None else plan_topics(partitions)
        )
        response = await connection.request(request, timeout_s=self._request_timeout_s, version=version)
        return read_offsets(response, partitions, f"OffsetFetch of group {self._group!r} at {connection.address}")


def plan_topics(partitions: Collection[TopicPartition]) -> tuple[OffsetFetchTopic, ...]:
    """Return partitions in the form of an OffsetFetch request: grouped by topic."""
    by_topic: dict[str, list[int]] = defaultdict(list)
    for partition in sorted(partitions):
        by_topic[partition.topic].append(partition.partition.number)
    return tuple(OffsetFetchTopic(topic=topic, partitions=tuple(numbers)) for topic, numbers in by_topic.items())


def read_offsets(
    response: OffsetFetchResponse, partitions: Collection[TopicPartition] | None, context: str
) -> KafkaOffsets:
    """Return the positions in an OffsetFetch response.

    Args:
        partitions: The requested partitions; None if all were requested.
        context: Names of the request and the broker, for error texts.

    Raises BrokerError for an error of the whole response, and for an error of one partition if a second request may
    succeed (the coordinator has moved or still loads). Other errors of partitions are in the result.
    """
    if response.error_code:
        raise broker_error(response.error_code, context)
    answered = {
        TopicPartition(topic.topic, PartitionKey(one.partition)): one
        for topic in response.topics
        for one in topic.partitions
    }
    offsets: dict[TopicPartition, KafkaOffset] = {}
    failures: dict[TopicPartition, ConsumerdError] = {}
    for partition in answered if partitions is None else partitions:
        found = _read_partition(answered.get(partition), f"{context} for {partition}")
        if isinstance(found, KafkaOffset):
            offsets[partition] = found
        elif found is not None:
            failures[partition] = found
    for failure in failures.values():
        # codes of the coordinator pass; one that tells of the topic (3) may last, and is the partition's own
        if isinstance(failure, BrokerError) and failure.retriable and not failure.refresh:
            raise failure
    return KafkaOffsets(offsets=offsets, failures=failures)


def _read_partition(answer: KeptPartition | None, context: str) -> KafkaOffset | ConsumerdError | None:
    """Return a partition's position, None if it has none, or the error."""
    if answer is None:
        return RemoteProtocolError(f"{context}: the partition is missing in the answer")
    if answer.error_code:
        return broker_error(answer.error_code, context)
    if answer.offset >= 0:
        return KafkaOffset(offset=answer.offset, metadata=answer.metadata or "")
    if answer.offset == NO_OFFSET:
        return None
    return RemoteProtocolError(f"{context}: expected an offset, or -1 for none, got {answer.offset}")
