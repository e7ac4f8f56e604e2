# SPDX-License-Identifier: Apache-2.0
"""Creates and checks the topic in which mirrors store their positions.

The topic must be compacted: otherwise brokers would delete positions after a time, and a mirror would begin again.
"""

from __future__ import annotations

from typing import Final

from consumerd.access.principal import Resource
from consumerd.client.new_topic import NewTopic
from consumerd.client.remedies import advise_right
from consumerd.client.topic_admin import TopicAdmin
from consumerd.errors import BrokerError, ConfigError, UnsupportedVersion
from consumerd.wire.errorcodes import ErrorCode
from consumerd.wire.modern.topic_administration import BROKERS_DEFAULT

PARTITIONS: Final = 8
"""Partitions of a new positions topic. More would spread the load further, and take more requests to read."""

_POLICY: Final = "cleanup.policy"
_COMPACTED: Final = "compact"
_CONFIGS: Final = {
    _POLICY: _COMPACTED,
    # brokers compact no segment that is still written to, so small segments keep the topic small
    "segment.bytes": str(32 << 20),
    "min.cleanable.dirty.ratio": "0.1",
}
_MOST_REPLICAS: Final = 3
"""Replication factor for brokers before 2.4, which cannot be asked for their default; with fewer brokers, all."""


async def create_positions_topic(
    admin: TopicAdmin,
    topic: str,
    *,
    brokers: int,
    replication_factor: int | None = None,
    validate_only: bool = False,
) -> bool:
    """Create the topic if it does not exist; return True if it was created.

    Args:
        brokers: Number of brokers of the target.
        replication_factor: Replicas of each partition; None for the brokers' default.
        validate_only: True to create nothing, and only ask if it could be (brokers from 0.10.2 on).

    Raises ConfigError if it may not be created, or cannot be; BrokerError, RequestTimedOut, UnsupportedVersion.
    """
    wanted = BROKERS_DEFAULT if replication_factor is None else replication_factor
    try:
        failure = await _create(admin, topic, wanted, validate_only=validate_only)
    except UnsupportedVersion:
        if replication_factor is not None:
            raise
        failure = await _create(admin, topic, min(_MOST_REPLICAS, brokers), validate_only=validate_only)
    if failure is None or failure.code == ErrorCode.TOPIC_ALREADY_EXISTS:
        return failure is None
    if failure.code in (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED):
        right = (
            admin.principal.advise("Create", Resource.CLUSTER)
            if failure.code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED  # before 2.0
            else advise_right("Create", topic, admin.principal)
        )
        raise ConfigError(
            f"the target has no topic {topic} for the mirror's positions, and it may not be created ({failure}): "
            f"{right}, or create it with {PARTITIONS} partitions and {_POLICY}={_COMPACTED}"
        ) from failure
    if failure.retriable:
        raise failure
    raise ConfigError(f"the topic {topic} for the mirror's positions cannot be created: {failure}") from failure


async def _create(admin: TopicAdmin, topic: str, replication_factor: int, *, validate_only: bool) -> BrokerError | None:
    new = NewTopic(name=topic, partitions=PARTITIONS, replication_factor=replication_factor, configs=_CONFIGS)
    return (await admin.create_topics([new], validate_only=validate_only))[topic]


async def check_positions_topic(admin: TopicAdmin, topic: str) -> None:
    """Check that the topic is compacted, and that nothing else removes its records.

    Raises ConfigError if it is not, or if its settings may not be read; BrokerError, RequestTimedOut,
    UnsupportedVersion.
    """
    found = (await admin.describe_topics([topic], [_POLICY]))[topic]
    if isinstance(found, BrokerError):
        if found.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            raise ConfigError(f"{found}: {advise_right('DescribeConfigs', topic, admin.principal)}") from found
        raise found
    setting = found.get(_POLICY)
    if setting is None or setting.value != _COMPACTED:
        policy = "unknown" if setting is None else setting.value
        raise ConfigError(
            f"topic {topic} of the target has {_POLICY}={policy}, so brokers may delete the mirror's positions: set "
            f"{_POLICY}={_COMPACTED} if it is the mirror's own topic, or give another name"
        )
