# SPDX-License-Identifier: Apache-2.0
"""Topics created, extended and described on any cluster: real brokers of Kafka, and the embedded one."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from consumerd.access.address import parse_bootstrap
from consumerd.aio.tasks import alongside
from consumerd.client.new_topic import NewTopic
from consumerd.client.topic_admin import TopicAdmin
from consumerd.client.topics import MetadataDirectory
from consumerd.cluster.from_brokers import BrokerSource
from consumerd.cluster.view import Broker
from consumerd.errors import BrokerError
from consumerd.model import BrokerId
from consumerd.net.dialer import Dialer
from consumerd.net.pool import ConnectionPool
from consumerd.net.stream import TcpConnector
from consumerd.wire.errorcodes import ErrorCode


@asynccontextmanager
async def topic_admin(bootstrap: str) -> AsyncIterator[TopicAdmin]:
    """Connect to a cluster."""
    dialer = Dialer(TcpConnector(max_frame_bytes=1 << 24), client_id="admin", now=time.monotonic)
    brokers = [
        Broker(id=BrokerId(-1 - number), host=one.host, port=one.port)
        for number, one in enumerate(parse_bootstrap(bootstrap))
    ]
    async with ConnectionPool(dialer, now=time.monotonic, random=random.random) as pool:
        directory = MetadataDirectory(
            lambda known: BrokerSource(pool, known, random=random.random), lambda: brokers, random=random.random
        )
        async with alongside(directory.run(), name="directory"):
            yield TopicAdmin(pool, directory, random=random.random)


async def administer(bootstrap: str, name: str, other: str) -> None:
    """Create a topic like another one, extend it, read its settings; what is wrong is told for each topic."""
    async with topic_admin(bootstrap) as admin:
        wanted = NewTopic(
            name=name, partitions=3, replication_factor=1, configs={"cleanup.policy": "compact", "segment.ms": "5000"}
        )
        assert {name: None} == await admin.create_topics([wanted], validate_only=True)
        assert {name: None, other: None} == await admin.create_topics(
            [wanted, NewTopic(name=other, partitions=1, replication_factor=1)]
        )
        refused = await admin.create_topics(
            [
                wanted,
                NewTopic(name=f"{name}-replicas", partitions=1, replication_factor=9),
                NewTopic(name=f"{name}-setting", partitions=1, replication_factor=1, configs={"no.such": "1"}),
            ]
        )
        assert {
            name: ErrorCode.TOPIC_ALREADY_EXISTS,
            f"{name}-replicas": ErrorCode.INVALID_REPLICATION_FACTOR,
            f"{name}-setting": ErrorCode.INVALID_CONFIG,
        } == {topic: code_of(one) for topic, one in refused.items()}
        assert name in str(refused[name])

        extended = await admin.add_partitions({name: 5, other: 1, f"{name}-absent": 2})
        assert extended[name] is None
        assert ErrorCode.INVALID_PARTITIONS == code_of(extended[other])
        assert ErrorCode.UNKNOWN_TOPIC_OR_PARTITION == code_of(extended[f"{name}-absent"])

        described = await admin.describe_topics([name, other], ["cleanup.policy", "segment.ms", "retention.ms"])
        first, second = described[name], described[other]
        assert not isinstance(first, BrokerError)
        assert not isinstance(second, BrokerError)
        assert {"cleanup.policy": "compact", "segment.ms": "5000", "retention.ms": "604800000"} == {
            setting: found.value for setting, found in first.items()
        }
        assert {"cleanup.policy", "segment.ms"} == {setting for setting, found in first.items() if found.is_own}
        assert not [setting for setting, found in second.items() if found.is_own]


def code_of(outcome: BrokerError | None) -> int:
    """Return the code of an outcome that is an error."""
    assert outcome is not None
    return outcome.code
