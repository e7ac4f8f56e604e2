# SPDX-License-Identifier: Apache-2.0
"""Metadata: this broker, its topics and partitions; may create requested topics.

A topic created by a request is answered with LEADER_NOT_AVAILABLE and no partitions, as in Kafka
(KafkaApis.createTopic), so that clients ask again. It is served by then. An illegal name is an INVALID_TOPIC_EXCEPTION
only if it would be created; otherwise it is unknown like any other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from consumerd.embedded.faults import BrokerFaults
from consumerd.embedded.handlers.context import RequestContext
from consumerd.embedded.log.errors import LogError
from consumerd.embedded.topic_names import INTERNAL_TOPICS
from consumerd.embedded.topics import InvalidTopic, Topic, TopicExists, Topics
from consumerd.errors import CoordinationError
from consumerd.model import BrokerId, TopicPartition
from consumerd.wire.errorcodes import ErrorCode
from consumerd.wire.modern.metadata import (
    MetadataBroker,
    MetadataPartition,
    MetadataRequest,
    MetadataResponse,
    MetadataTopic,
)

_FIRST_WITH_CONTROLLER: Final = 1
_FIRST_WITH_CLUSTER_ID: Final = 2

_NO_LEADER: Final = -1
_NO_CONTROLLER: Final = -1


class MetadataHandler:
    """Describes ``topics``.

    Args:
        broker: Returns this broker as clients see it, once it listens.
        cluster_id: Returns the cluster's id.
        partitions_of_new: Partitions of automatically created topics; 0 disables creation.
    """

    def __init__(
        self,
        topics: Topics,
        faults: BrokerFaults,
        *,
        broker: Callable[[], MetadataBroker],
        cluster_id: Callable[[], str | None],
        partitions_of_new: int,
    ) -> None:
        self._topics = topics
        self._faults = faults
        self._broker = broker
        self._cluster_id = cluster_id
        self._partitions_of_new = partitions_of_new

    async def __call__(self, request: MetadataRequest, context: RequestContext) -> MetadataResponse:
        """Respond. Creating a topic is bounded by the ZooKeeper session's calls."""
        broker = self._broker()
        full = context.version >= _FIRST_WITH_CONTROLLER
        names = self._topics.names() if request.topics is None else tuple(dict.fromkeys(request.topics))
        topics = []
        for name in names:
            topic = self._topics.find(name)
            if topic is not None:
                topics.append(self._describe(topic, BrokerId(broker.node_id), full=full))
            elif request.topics is not None:
                internal = full and name in INTERNAL_TOPICS
                code = await self._miss(name, create=request.allow_auto_topic_creation)
                topics.append(MetadataTopic(error_code=code, topic=name, is_internal=internal, partitions=()))
        return MetadataResponse(
            brokers=(broker,),
            cluster_id=self._cluster_id() if context.version >= _FIRST_WITH_CLUSTER_ID else None,
            controller_id=broker.node_id if full else _NO_CONTROLLER,
            topics=tuple(topics),
        )

    def _describe(self, topic: Topic, broker: BrokerId, *, full: bool) -> MetadataTopic:
        return MetadataTopic(
            topic=topic.name,
            is_internal=full and topic.name in INTERNAL_TOPICS,
            partitions=tuple(self._describe_partition(topic, number, broker) for number in topic.partitions),
        )

    def _describe_partition(self, topic: Topic, number: int, broker: BrokerId) -> MetadataPartition:
        partition = TopicPartition.modern(topic.name, number)
        replicas = topic.replicas[number]
        if self._topics.find_log(partition) is None:
            return MetadataPartition(
                error_code=ErrorCode.LEADER_NOT_AVAILABLE,
                partition=number,
                leader=_NO_LEADER,
                replicas=replicas,
                isr=(),
            )
        leader = self._faults.find_leader(partition)
        return MetadataPartition(
            partition=number, leader=broker if leader is None else leader, replicas=replicas, isr=(broker,)
        )

    async def _miss(self, name: str, *, create: bool) -> ErrorCode:
        """Create a missing topic if that is wanted; return the error code for the client."""
        if not create or not self._partitions_of_new or name in INTERNAL_TOPICS:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        try:
            await self._topics.create(name, self._partitions_of_new)
        except InvalidTopic:
            return ErrorCode.INVALID_TOPIC_EXCEPTION
        except (TopicExists, CoordinationError, LogError, OSError):
            # created by another client meanwhile, or ZooKeeper or the disk fails: the client is to ask again
            pass
        return ErrorCode.LEADER_NOT_AVAILABLE
