# SPDX-License-Identifier: Apache-2.0
"""Requests that create topics, add partitions and read configuration (Kafka's message definitions).

CreateTopics and CreatePartitions go to the controller. DescribeConfigs of topics can go to any broker.

| request | since | version | adds |
|---|---|---|---|
| CreateTopics | 0.10.1 | 1 | validation without creation; error messages |
| | | 2 | throttle time |
| | | 3 | on a quota violation the broker first responds, then stops reading (KIP-219) |
| | | 4 | -1 as partition count and replication factor, for the broker's defaults (KIP-464) |
| CreatePartitions | 1.0 | 1 | as version 3 of CreateTopics |
| DescribeConfigs | 0.11 | 1 | source and synonyms of a value instead of ``is_default`` (KIP-226) |
| | | 2 | as version 3 of CreateTopics |
"""

from __future__ import annotations

from typing import Final

from consumerd.wire.apikeys import ApiKey
from consumerd.wire.declaration import BOOLEAN, INT8, INT16, INT32, STRING, ArrayOf, field, message
from consumerd.wire.schema import Request, request

TOPIC_RESOURCE: Final = 2
"""Value of ``resource_type`` for a topic."""
BROKER_RESOURCE: Final = 4
"""Value of ``resource_type`` for a broker; its name is its id."""

BROKERS_DEFAULT: Final = -1
"""Partition count and replication factor that leave the number to the brokers."""
FIRST_WITH_DEFAULTS: Final = 4
"""First version of CreateTopics that takes :data:`BROKERS_DEFAULT`."""

UNKNOWN_SOURCE: Final = 0
TOPIC_SOURCE: Final = 1
"""Value of ``source`` for a configuration set for the topic itself (DYNAMIC_TOPIC_CONFIG)."""
DEFAULT_SOURCE: Final = 5
"""Value of ``source`` for Kafka's own default (DEFAULT_CONFIG)."""

# -- CreateTopics


@message
class TopicConfig:
    """A configuration of a topic to create, such as ``cleanup.policy``."""

    name: str = field(STRING)
    value: str | None = field(STRING, nullable="0+")


@message
class ReplicaAssignment:
    """Replicas of one partition of a topic to create.

    They are broker ids; the first is the preferred leader.
    """

    partition: int = field(INT32)
    replicas: tuple[int, ...] = field(ArrayOf(INT32))


@message
class CreatableTopic:
    """A topic to create: with counts, or with an assignment of replicas.

    With an assignment, both counts are -1.
    """

    topic: str = field(STRING)
    partition_count: int = field(INT32)
    replication_factor: int = field(INT16)
    assignments: tuple[ReplicaAssignment, ...] = field(ArrayOf(ReplicaAssignment))
    configs: tuple[TopicConfig, ...] = field(ArrayOf(TopicConfig))


@message
class CreatedTopic:
    """Part of a CreateTopics response for one topic: an error code and a message."""

    topic: str = field(STRING)
    error_code: int = field(INT16, default=0)
    error_message: str | None = field(STRING, "1+", default=None, nullable="1+")


@message
class CreateTopicsResponse:
    """CreateTopics response: the outcome of each topic."""

    throttle_time_ms: int = field(INT32, "2+", default=0)
    topics: tuple[CreatedTopic, ...] = field(ArrayOf(CreatedTopic))


@request(ApiKey.CREATE_TOPICS, versions=range(5), response=CreateTopicsResponse)
class CreateTopicsRequest(Request[CreateTopicsResponse]):
    """Request to create topics; sent to the controller.

    It is answered when all brokers know the topics, or after ``timeout_ms`` with error 7, REQUEST_TIMED_OUT.
    """

    topics: tuple[CreatableTopic, ...] = field(ArrayOf(CreatableTopic))
    timeout_ms: int = field(INT32)
    validate_only: bool = field(BOOLEAN, "1+", default=False)


# -- CreatePartitions


@message
class PartitionReplicas:
    """Replicas of one added partition, as broker ids."""

    replicas: tuple[int, ...] = field(ArrayOf(INT32))


@message
class ExtendableTopic:
    """A topic that is to have ``count`` partitions, those that it has included.

    None for ``assignments`` lets the controller place the new ones.
    """

    topic: str = field(STRING)
    count: int = field(INT32)
    assignments: tuple[PartitionReplicas, ...] | None = field(ArrayOf(PartitionReplicas), nullable="0+")


@message
class ExtendedTopic:
    """Part of a CreatePartitions response for one topic: an error code and a message."""

    topic: str = field(STRING)
    error_code: int = field(INT16, default=0)
    error_message: str | None = field(STRING, nullable="0+")


@message
class CreatePartitionsResponse:
    """CreatePartitions response: the outcome of each topic."""

    throttle_time_ms: int = field(INT32, default=0)
    topics: tuple[ExtendedTopic, ...] = field(ArrayOf(ExtendedTopic))


@request(ApiKey.CREATE_PARTITIONS, versions=range(2), response=CreatePartitionsResponse)
class CreatePartitionsRequest(Request[CreatePartitionsResponse]):
    """Request to add partitions to topics; sent to the controller."""

    topics: tuple[ExtendableTopic, ...] = field(ArrayOf(ExtendableTopic))
    timeout_ms: int = field(INT32)
    validate_only: bool = field(BOOLEAN)


# -- DescribeConfigs


@message
class ConfigSynonym:
    """Another place that sets a configuration, in order of precedence."""

    name: str = field(STRING)
    value: str | None = field(STRING, nullable="0+")
    source: int = field(INT8)


@message
class ConfigEntry:
    """A configuration's present value; None for a value that is not set, or is sensitive."""

    name: str = field(STRING)
    value: str | None = field(STRING, nullable="0+")
    read_only: bool = field(BOOLEAN)
    is_default: bool = field(BOOLEAN, "0", default=False)
    source: int = field(INT8, "1+", default=UNKNOWN_SOURCE)
    is_sensitive: bool = field(BOOLEAN)
    synonyms: tuple[ConfigSynonym, ...] = field(ArrayOf(ConfigSynonym), "1+", default=())


@message
class DescribedConfigs:
    """Part of a DescribeConfigs response for one topic or broker."""

    error_code: int = field(INT16, default=0)
    error_message: str | None = field(STRING, nullable="0+")
    resource_type: int = field(INT8)
    resource_name: str = field(STRING)
    entries: tuple[ConfigEntry, ...] = field(ArrayOf(ConfigEntry))


@message
class DescribeConfigsResponse:
    """DescribeConfigs response: configurations of each topic or broker."""

    throttle_time_ms: int = field(INT32, default=0)
    resources: tuple[DescribedConfigs, ...] = field(ArrayOf(DescribedConfigs))


@message
class ConfigResource:
    """A topic or broker whose configurations are requested; None for ``names`` requests all of them."""

    resource_type: int = field(INT8)
    resource_name: str = field(STRING)
    names: tuple[str, ...] | None = field(ArrayOf(STRING), nullable="0+")


@request(ApiKey.DESCRIBE_CONFIGS, versions=range(3), response=DescribeConfigsResponse)
class DescribeConfigsRequest(Request[DescribeConfigsResponse]):
    """Request for configurations of topics or brokers.

    Any broker answers for topics; for a broker only that broker itself does.
    """

    resources: tuple[ConfigResource, ...] = field(ArrayOf(ConfigResource))
    include_synonyms: bool = field(BOOLEAN, "1+", default=False)
