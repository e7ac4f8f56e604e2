# SPDX-License-Identifier: Apache-2.0
"""CreateTopics, CreatePartitions and DescribeConfigs.

As Kafka 1.1 (AdminManager), with two differences: each topic has a replica on every broker, and DescribeConfigs lists
the settings that logs have here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from consumerd.embedded.handlers.context import RequestContext
from consumerd.embedded.log.settings import LogSettings
from consumerd.embedded.nodes import Nodes
from consumerd.embedded.topic_config import apply_config, describe_settings, is_setting
from consumerd.embedded.topics import InvalidPartitions, InvalidTopic, NoSuchTopic, TopicExists, Topics, find_collision
from consumerd.errors import ConfigError, ConsumerdError
from consumerd.model import find_topic_fault
from consumerd.wire.errorcodes import ErrorCode
from consumerd.wire.modern import topic_administration as wire

_FIRST_WITH_MESSAGES: Final = 1
_MOST_PARTITIONS: Final = 2000
"""Largest number of partitions of a topic made by request: each has an open file in this process."""

_CODES: Final[tuple[tuple[type[ConsumerdError], ErrorCode], ...]] = (
    (InvalidTopic, ErrorCode.INVALID_TOPIC_EXCEPTION),
    (InvalidPartitions, ErrorCode.INVALID_PARTITIONS),
    (TopicExists, ErrorCode.TOPIC_ALREADY_EXISTS),
    (NoSuchTopic, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    (ConfigError, ErrorCode.INVALID_CONFIG),
)


class InvalidReplication(ConsumerdError):
    """Raised for more replicas than brokers, or none (error 38)."""


class TopicAdministration:
    """Handlers of the requests of administrators.

    Args:
        nodes: The brokers of the cluster.
        settings: The broker's defaults for topics.
        partitions_of_new: Partition count where a request leaves it to the broker.
    """

    def __init__(self, topics: Topics, nodes: Nodes, settings: LogSettings, *, partitions_of_new: int) -> None:
        self._topics = topics
        self._nodes = nodes
        self._settings = settings
        self._partitions_of_new = partitions_of_new

    # -- CreateTopics

    async def create_topics(
        self, request: wire.CreateTopicsRequest, context: RequestContext
    ) -> wire.CreateTopicsResponse:
        """Create topics, or only check the request; respond when their logs are open."""
        created = []
        for one in request.topics:
            error, message = await self._create(one, validate_only=request.validate_only)
            told = message if context.version >= _FIRST_WITH_MESSAGES else None
            created.append(wire.CreatedTopic(topic=one.topic, error_code=error, error_message=told))
        return wire.CreateTopicsResponse(topics=tuple(created))

    async def _create(self, wanted: wire.CreatableTopic, *, validate_only: bool) -> tuple[ErrorCode, str | None]:
        config = {one.name: one.value for one in wanted.configs if one.value is not None}
        try:
            count = self._count_partitions(wanted)
            self._check(wanted, count, config)
            if not validate_only:
                await self._topics.create(wanted.topic, count, config)
        except ConsumerdError as error:
            return _code_of(error), str(error)
        return ErrorCode.NONE, None

    def _count_partitions(self, wanted: wire.CreatableTopic) -> int:
        if wanted.assignments:
            return len(wanted.assignments)
        is_default = wanted.partition_count == wire.BROKERS_DEFAULT
        return max(self._partitions_of_new, 1) if is_default else wanted.partition_count

    def _check(self, wanted: wire.CreatableTopic, count: int, config: Mapping[str, str]) -> None:
        """Raise the error that the creation would have."""
        if fault := find_topic_fault(wanted.topic):
            raise InvalidTopic(f"topic {wanted.topic!r}: {fault}")
        if self._topics.find(wanted.topic) is not None:
            raise TopicExists(f"Topic '{wanted.topic}' already exists.")
        if other := find_collision(wanted.topic, self._topics.names()):
            raise InvalidTopic(f"topic {wanted.topic!r}: there is {other!r}, which differs in '.' and '_' only")
        if count < 1:
            raise InvalidPartitions("Number of partitions must be larger than 0.")
        if count > _MOST_PARTITIONS:
            raise InvalidPartitions(f"{count} partitions, expected {_MOST_PARTITIONS} or less")
        brokers = len(self._nodes.ids)
        least = wire.BROKERS_DEFAULT if wanted.replication_factor == wire.BROKERS_DEFAULT else 1
        if not least <= wanted.replication_factor <= brokers:
            raise InvalidReplication(
                f"Replication factor: {wanted.replication_factor} larger than available brokers: {brokers}."
            )
        if unknown := [name for name in config if not is_setting(name)]:
            raise ConfigError(f"Unknown topic config name: {unknown[0]}")
        apply_config(self._settings, config)

    # -- CreatePartitions

    async def create_partitions(
        self, request: wire.CreatePartitionsRequest, _: RequestContext
    ) -> wire.CreatePartitionsResponse:
        """Add partitions to topics, or only check the request; respond when their logs are open."""
        extended = []
        for one in request.topics:
            error, message = await self._extend(one, validate_only=request.validate_only)
            extended.append(wire.ExtendedTopic(topic=one.topic, error_code=error, error_message=message))
        return wire.CreatePartitionsResponse(topics=tuple(extended))

    async def _extend(self, wanted: wire.ExtendableTopic, *, validate_only: bool) -> tuple[ErrorCode, str | None]:
        topic = self._topics.find(wanted.topic)
        if topic is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{wanted.topic}' does not exist."
        present = len(topic.partitions)
        if wanted.count == present:
            return ErrorCode.INVALID_PARTITIONS, f"Topic already has {present} partitions."
        if wanted.count < present:
            return (
                ErrorCode.INVALID_PARTITIONS,
                f"Topic currently has {present} partitions, which is higher than the requested {wanted.count}.",
            )
        if wanted.count > _MOST_PARTITIONS:
            return ErrorCode.INVALID_PARTITIONS, f"{wanted.count} partitions, expected {_MOST_PARTITIONS} or less"
        try:
            if not validate_only:
                await self._topics.extend(wanted.topic, wanted.count)
        except ConsumerdError as error:
            return _code_of(error), str(error)
        return ErrorCode.NONE, None

    # -- DescribeConfigs

    async def describe_configs(
        self, request: wire.DescribeConfigsRequest, context: RequestContext
    ) -> wire.DescribeConfigsResponse:
        """Return the settings of topics.

        As in Kafka 1.1, a topic that does not exist has the defaults.
        """
        return wire.DescribeConfigsResponse(
            resources=tuple([self._describe(one, context.version) for one in request.resources])
        )

    def _describe(self, wanted: wire.ConfigResource, version: int) -> wire.DescribedConfigs:
        error, message = ErrorCode.NONE, None
        entries: Sequence[wire.ConfigEntry] = ()
        if wanted.resource_type != wire.TOPIC_RESOURCE:
            error, message = ErrorCode.INVALID_REQUEST, "only topics have settings here"
        elif fault := find_topic_fault(wanted.resource_name):
            error, message = ErrorCode.INVALID_TOPIC_EXCEPTION, fault
        else:
            topic = self._topics.find(wanted.resource_name)
            own = {} if topic is None else dict(topic.config)
            entries = [
                _entry(name, own.get(name, default), is_own=name in own, version=version)
                for name, default in sorted({**describe_settings(self._settings), **own}.items())
                if wanted.names is None or name in wanted.names
            ]
        return wire.DescribedConfigs(
            error_code=error,
            error_message=message,
            resource_type=wanted.resource_type,
            resource_name=wanted.resource_name,
            entries=tuple(entries),
        )


def _entry(name: str, value: str, *, is_own: bool, version: int) -> wire.ConfigEntry:
    if version == 0:
        return wire.ConfigEntry(name=name, value=value, read_only=False, is_default=not is_own, is_sensitive=False)
    source = wire.TOPIC_SOURCE if is_own else wire.DEFAULT_SOURCE
    return wire.ConfigEntry(name=name, value=value, read_only=False, source=source, is_sensitive=False)


def _code_of(error: ConsumerdError) -> ErrorCode:
    if isinstance(error, InvalidReplication):
        return ErrorCode.INVALID_REPLICATION_FACTOR
    return next((code for kind, code in _CODES if isinstance(error, kind)), ErrorCode.UNKNOWN_SERVER_ERROR)
