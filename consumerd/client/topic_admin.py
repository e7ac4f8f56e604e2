# SPDX-License-Identifier: Apache-2.0
"""Creates topics, adds partitions, and reads the settings of topics.

CreateTopics and CreatePartitions go to the controller, which Metadata names. Brokers without ZooKeeper name any broker,
and pass the request on. A broker that is not the controller any more answers error 41; then the controller is looked up
again.

A request without an answer may have been carried out. It is repeated, so that TOPIC_ALREADY_EXISTS (36) can mean that
an earlier attempt has created the topic. Callers that care compare the topic with what they wanted.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from consumerd.access.principal import OUR_PRINCIPAL, Principal
from consumerd.client.leaders import Connections, Leaders
from consumerd.client.new_topic import NewTopic
from consumerd.client.retrying import retry_passing
from consumerd.cluster.view import Broker, ClusterView
from consumerd.errors import BrokerError, ConnectionLost, UnsupportedVersion
from consumerd.net.connection import BrokerConnection
from consumerd.net.pool import Purpose
from consumerd.wire.errorcodes import ErrorCode, broker_error
from consumerd.wire.modern.topic_administration import (
    BROKERS_DEFAULT,
    FIRST_WITH_DEFAULTS,
    TOPIC_RESOURCE,
    TOPIC_SOURCE,
    ConfigEntry,
    ConfigResource,
    CreatableTopic,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DescribeConfigsRequest,
    ExtendableTopic,
    TopicConfig,
)

T = TypeVar("T")

_BROKER_SHARE: Final = 5 / 6
"""Share of the request timeout that the controller gets, so that its own timeout error comes first."""


@dataclass(frozen=True, slots=True)
class TopicSetting:
    """Value of a topic's setting; None if the broker does not show it.

    ``is_own`` is True if it was set for the topic itself. Brokers before 1.1 do not tell a broker's own default from
    Kafka's: ``is_own`` then means that the value is not a default.
    """

    value: str | None
    is_own: bool


class TopicAdmin:
    """Administers topics of one cluster.

    Args:
        directory: Brokers and the controller.
        random: Returns floats in [0, 1), for backoffs and the choice of brokers.
        request_timeout_s: Time limit of each request, in seconds.
        patience_s: Time limit of each call, in seconds.
        principal: Our identity at the brokers, for advice.
    """

    def __init__(
        self,
        connections: Connections,
        directory: Leaders,
        *,
        random: Callable[[], float],
        request_timeout_s: float = 30.0,
        patience_s: float = 60.0,
        principal: Principal = OUR_PRINCIPAL,
    ) -> None:
        self.principal: Final = principal
        self._connections = connections
        self._directory = directory
        self._random = random
        self._request_timeout_s = request_timeout_s
        self._patience_s = patience_s

    async def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False
    ) -> Mapping[str, BrokerError | None]:
        """Create topics; return the outcome of each.

        It is None for success, or the broker's error.

        Args:
            validate_only: True to create nothing, and only check the request (brokers from 0.10.2 on).

        Raises RequestTimedOut with the last failure, UnsupportedVersion.
        """
        request = CreateTopicsRequest(
            topics=tuple(_wanted(one) for one in topics), timeout_ms=self._timeout_ms, validate_only=validate_only
        )
        leaves_counts = any(BROKERS_DEFAULT in (one.partitions, one.replication_factor) for one in topics)

        async def ask(connection: BrokerConnection) -> Mapping[str, BrokerError | None]:
            version = connection.version_of(CreateTopicsRequest)
            if leaves_counts and version < FIRST_WITH_DEFAULTS:
                raise UnsupportedVersion(
                    f"CREATE_TOPICS: broker {connection.address} speaks v{version}, counts of the brokers' choice need "
                    f"v{FIRST_WITH_DEFAULTS} (Kafka 2.4); name partitions and replication factor"
                )
            answer = await connection.request(request, timeout_s=self._request_timeout_s, version=version)
            context = f"CreateTopics at {connection.address}"
            return {one.topic: _outcome(one.error_code, one.error_message, context, one.topic) for one in answer.topics}

        return await self._ask_controller(ask)

    async def add_partitions(
        self, counts: Mapping[str, int], *, validate_only: bool = False
    ) -> Mapping[str, BrokerError | None]:
        """Give topics more partitions; return the outcome of each.

        It is None for success, or the broker's error.

        Args:
            counts: Number of partitions that each topic is to have, with those that it has.
            validate_only: True to change nothing, and only check the request.

        Raises RequestTimedOut with the last failure, UnsupportedVersion for brokers before 1.0.
        """
        request = CreatePartitionsRequest(
            topics=tuple(
                ExtendableTopic(topic=topic, count=count, assignments=None) for topic, count in counts.items()
            ),
            timeout_ms=self._timeout_ms,
            validate_only=validate_only,
        )

        async def ask(connection: BrokerConnection) -> Mapping[str, BrokerError | None]:
            answer = await connection.request(request, timeout_s=self._request_timeout_s)
            context = f"CreatePartitions at {connection.address}"
            return {one.topic: _outcome(one.error_code, one.error_message, context, one.topic) for one in answer.topics}

        return await self._ask_controller(ask)

    async def describe_topics(
        self, topics: Sequence[str], settings: Sequence[str] | None = None
    ) -> Mapping[str, Mapping[str, TopicSetting] | BrokerError]:
        """Return the settings of each topic by name, or the broker's error.

        Some releases answer for a topic that does not exist with the defaults.

        Args:
            settings: Names of the settings; None for all.

        Raises RequestTimedOut with the last failure, UnsupportedVersion for brokers before 0.11.
        """
        names = None if settings is None else tuple(settings)
        resources = tuple(
            ConfigResource(resource_type=TOPIC_RESOURCE, resource_name=topic, names=names) for topic in topics
        )

        async def ask(connection: BrokerConnection) -> Mapping[str, Mapping[str, TopicSetting] | BrokerError]:
            request = DescribeConfigsRequest(resources=resources)
            answer = await connection.request(request, timeout_s=self._request_timeout_s)
            context = f"DescribeConfigs at {connection.address}"
            found: dict[str, Mapping[str, TopicSetting] | BrokerError] = {}
            for one in answer.resources:
                failure = _outcome(one.error_code, one.error_message, context, one.resource_name)
                shown = {entry.name: _setting(entry) for entry in one.entries}
                found[one.resource_name] = shown if failure is None else failure
            return found

        return await self._ask(self._choose_any, ask)

    # -- asking

    @property
    def _timeout_ms(self) -> int:
        return max(1, round(self._request_timeout_s * _BROKER_SHARE * 1000))

    async def _ask_controller(
        self, ask: Callable[[BrokerConnection], Awaitable[Mapping[str, BrokerError | None]]]
    ) -> Mapping[str, BrokerError | None]:
        async def ask_again(connection: BrokerConnection) -> Mapping[str, BrokerError | None]:
            outcomes = await ask(connection)
            for outcome in outcomes.values():
                if outcome is not None and outcome.code == ErrorCode.NOT_CONTROLLER:
                    raise outcome
            return outcomes

        return await self._ask(self._choose_controller, ask_again)

    async def _ask(
        self, choose: Callable[[ClusterView], Broker | None], ask: Callable[[BrokerConnection], Awaitable[T]]
    ) -> T:
        async def ask_once() -> T:
            broker = choose(await self._directory.refresh("topics are administered"))
            if broker is None:
                raise ConnectionLost("no controller is known")  # retried as one that is lost
            return await ask(await self._connections.get(broker, Purpose.CONTROL))

        return await retry_passing(ask_once, who="controller", patience_s=self._patience_s, random=self._random)

    def _choose_controller(self, view: ClusterView) -> Broker | None:
        # brokers before 0.10 name no controller, and have none of these requests: any of them says so
        known = None if view.controller is None else view.brokers.get(view.controller)
        return known or self._choose_any(view)

    def _choose_any(self, view: ClusterView) -> Broker | None:
        return min(view.brokers.values(), key=lambda _: self._random(), default=None)


def _wanted(topic: NewTopic) -> CreatableTopic:
    return CreatableTopic(
        topic=topic.name,
        partition_count=topic.partitions,
        replication_factor=topic.replication_factor,
        assignments=(),
        configs=tuple(TopicConfig(name=name, value=value) for name, value in topic.configs.items()),
    )


def _outcome(code: int, message: str | None, context: str, topic: str) -> BrokerError | None:
    if not code:
        return None
    return broker_error(code, f"{context} for {topic}{f' ({message})' if message else ''}")


def _setting(entry: ConfigEntry) -> TopicSetting:
    # version 0 has no source, and tells defaults by a field of its own
    is_own = entry.source == TOPIC_SOURCE if entry.source else not entry.is_default
    return TopicSetting(entry.value, is_own)
