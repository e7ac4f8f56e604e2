# SPDX-License-Identifier: Apache-2.0
"""Metadata: the live brokers, topics and partitions; may create requested topics.

The response for a topic that the request creates is LEADER_NOT_AVAILABLE without partitions, as in Kafka
(KafkaApis.createTopic), so that clients ask again. By then the topic can be used. An illegal name is an
INVALID_TOPIC_EXCEPTION only if it would be created; otherwise it is unknown like any other.

A partition has LEADER_NOT_AVAILABLE while no live broker leads it. Version 0 lists only live replicas, with
REPLICA_NOT_AVAILABLE if one is missing; version 5 lists dead replicas as offline (MetadataCache.getPartitionMetadata).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from consumerd.embedded.faults import BrokerFaults
from consumerd.embedded.handlers.context import RequestContext
from consumerd.embedded.log.errors import LogError
from consumerd.embedded.nodes import Nodes
from consumerd.embedded.topics import INTERNAL_TOPICS, InvalidTopic, Topic, TopicExists, Topics
from consumerd.errors import CoordinationError
from consumerd.model import TopicPartition
from consumerd.wire.declaration import NO_UUID
from consumerd.wire.errorcodes import ErrorCode
from consumerd.wire.modern.metadata import (
    FIRST_WITH_TOPIC_IDS,
    MetadataBroker,
    MetadataPartition,
    MetadataRequest,
    MetadataResponse,
    MetadataTopic,
)

_FIRST_WITH_CONTROLLER: Final = 1
_FIRST_WITH_DEAD_REPLICAS: Final = 1
_FIRST_WITH_CLUSTER_ID: Final = 2
_FIRST_WITH_OFFLINE_REPLICAS: Final = 5
_FIRST_WITH_LEADER_EPOCH: Final = 7

_NO_LEADER: Final = -1
_NO_CONTROLLER: Final = -1


class MetadataHandler:
    """Handler of Metadata: describes brokers, topics and partitions.

    Args:
        broker: This broker as clients see it.
        nodes: All brokers of the cluster; without them there is only this one.
        cluster_id: Returns the cluster's id.
        partitions_of_new: Number of partitions of automatically created topics; 0 disables creation.
    """

    def __init__(
        self,
        topics: Topics,
        faults: BrokerFaults,
        *,
        broker: MetadataBroker,
        nodes: Nodes | None = None,
        cluster_id: Callable[[], str | None],
        partitions_of_new: int,
    ) -> None:
        self._topics = topics
        self._faults = faults
        self._broker = broker
        self._nodes = nodes
        self._cluster_id = cluster_id
        self._partitions_of_new = partitions_of_new

    async def __call__(self, request: MetadataRequest, context: RequestContext) -> MetadataResponse:
        """Describe the requested topics; create missing ones first if the request wants that."""
        full = context.version >= _FIRST_WITH_CONTROLLER
        names = self._topics.names() if request.topics is None else tuple(dict.fromkeys(request.topics))
        topics = []
        for name in names:
            topic = self._topics.find(name)
            if topic is not None:
                topics.append(self._describe(topic, context.version))
            elif request.topics is not None:
                internal = full and name in INTERNAL_TOPICS
                code = await self._miss(name, create=request.allow_auto_topic_creation)
                topics.append(MetadataTopic(error_code=code, topic=name, is_internal=internal, partitions=()))
        return MetadataResponse(
            brokers=self._brokers(),
            cluster_id=self._cluster_id() if context.version >= _FIRST_WITH_CLUSTER_ID else None,
            controller_id=self._controller() if full else _NO_CONTROLLER,
            topics=tuple(topics),
        )

    def _brokers(self) -> tuple[MetadataBroker, ...]:
        if self._nodes is None or self._nodes.is_single:
            return (self._broker,)
        live = self._nodes.addresses()
        return tuple(MetadataBroker(node_id=one.broker_id, host=one.host, port=one.port) for one in live)

    def _controller(self) -> int:
        if self._nodes is None or self._nodes.is_single:
            return self._broker.node_id
        return _NO_CONTROLLER if self._nodes.controller is None else self._nodes.controller

    def _is_dead(self, broker: int) -> bool:
        return self._nodes is not None and broker in self._nodes.ids and broker not in self._nodes.registered

    def _describe(self, topic: Topic, version: int) -> MetadataTopic:
        return MetadataTopic(
            topic=topic.name,
            topic_id=NO_UUID if topic.topic_id is None or version < FIRST_WITH_TOPIC_IDS else topic.topic_id,
            is_internal=version >= _FIRST_WITH_CONTROLLER and topic.name in INTERNAL_TOPICS,
            partitions=tuple(self._describe_partition(topic, number, version) for number in topic.partitions),
        )

    def _describe_partition(self, topic: Topic, number: int, version: int) -> MetadataPartition:
        partition = TopicPartition.modern(topic.name, number)
        replicas = topic.replicas[number]
        dead = tuple(one for one in replicas if self._is_dead(one))
        listed = replicas if version >= _FIRST_WITH_DEAD_REPLICAS else tuple(one for one in replicas if one not in dead)
        offline = dead if version >= _FIRST_WITH_OFFLINE_REPLICAS else ()
        state = self._topics.find_state(partition)
        if state is None or state.leader is None or self._is_dead(state.leader):
            return MetadataPartition(
                error_code=ErrorCode.LEADER_NOT_AVAILABLE,
                partition=number,
                leader=_NO_LEADER,
                replicas=listed,
                isr=(),
                offline_replicas=offline,
            )
        pretended = self._faults.find_leader(partition)
        isr = tuple(one for one in state.isr if version >= _FIRST_WITH_DEAD_REPLICAS or one not in dead)
        return MetadataPartition(
            error_code=ErrorCode.NONE if listed == replicas else ErrorCode.REPLICA_NOT_AVAILABLE,
            partition=number,
            leader=state.leader if pretended is None else pretended,
            leader_epoch=state.leader_epoch if version >= _FIRST_WITH_LEADER_EPOCH else -1,
            replicas=listed,
            isr=isr,
            offline_replicas=offline,
        )

    async def _miss(self, name: str, *, create: bool) -> ErrorCode:
        """Create a missing topic if ``create`` is set; return the error code for the client."""
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
