# SPDX-License-Identifier: Apache-2.0
"""Metadata: the brokers, and each topic's partitions with their leaders (Kafka protocol guide, Metadata v0 to v5).

| version | adds |
|---|---|
| 1 | rack, controller, internal topics; null asks for all topics, and an empty list for none |
| 2 | cluster id |
| 3 | throttle time |
| 4 | whether the broker may create what is asked for |
| 5 | offline replicas |

Up to version 3 naming a topic lets a broker with ``auto.create.topics.enable``, its default, create it.
"""

from __future__ import annotations

from typing import ClassVar

from consumerd.wire.apikeys import ApiKey
from consumerd.wire.declaration import BOOLEAN, INT16, INT32, STRING, ArrayOf, field, message
from consumerd.wire.schema import Request


@message
class MetadataBroker:
    """A broker, and where it listens for the protocol that the request came by."""

    node_id: int = field(INT32)
    host: str = field(STRING)
    port: int = field(INT32)
    rack: str | None = field(STRING, "1+", default=None, nullable="1+")


@message
class MetadataPartition:
    """A partition; ``leader`` is -1 while it has none, and ``error_code`` may then be 5 (LEADER_NOT_AVAILABLE)."""

    error_code: int = field(INT16, default=0)
    partition: int = field(INT32)
    leader: int = field(INT32)
    replicas: tuple[int, ...] = field(ArrayOf(INT32))
    isr: tuple[int, ...] = field(ArrayOf(INT32))
    offline_replicas: tuple[int, ...] = field(ArrayOf(INT32), "5+", default=())


@message
class MetadataTopic:
    """A topic; its partitions stand in no particular order."""

    error_code: int = field(INT16, default=0)
    topic: str = field(STRING)
    is_internal: bool = field(BOOLEAN, "1+", default=False)
    partitions: tuple[MetadataPartition, ...] = field(ArrayOf(MetadataPartition))


@message
class MetadataResponse:
    """The cluster as the broker that answered knows it; ``controller_id`` is -1 while there is none."""

    throttle_time_ms: int = field(INT32, "3+", default=0)
    brokers: tuple[MetadataBroker, ...] = field(ArrayOf(MetadataBroker))
    cluster_id: str | None = field(STRING, "2+", default=None, nullable="2+")
    controller_id: int = field(INT32, "1+", default=-1)
    topics: tuple[MetadataTopic, ...] = field(ArrayOf(MetadataTopic))


@message
class MetadataRequest(Request[MetadataResponse]):
    """Which topics to describe: None is all of them, in every version."""

    api: ClassVar[ApiKey] = ApiKey.METADATA
    versions: ClassVar[range] = range(6)
    response: ClassVar[type] = MetadataResponse

    topics: tuple[str, ...] | None = field(ArrayOf(STRING), nullable="1+", none_is_empty="0")
    allow_auto_topic_creation: bool = field(BOOLEAN, "4+", default=True)
