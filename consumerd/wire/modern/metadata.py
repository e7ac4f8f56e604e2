# SPDX-License-Identifier: Apache-2.0
"""Metadata: brokers, topics, partitions and their leaders (Kafka protocol guide, Metadata v0 to v12).

| version | adds |
|---|---|
| 1 | rack, controller, internal topics; null asks for all topics, and an empty list for none |
| 2 | cluster id |
| 3 | throttle time |
| 4 | whether the broker may create the topics |
| 5 | offline replicas |
| 7 | leader epoch |
| 8 | authorized operations of cluster and topics, if asked for |
| 9 | flexible |
| 10 | topic ids: the identity of a topic, which another topic of the same name does not have |
| 11 | authorized operations of the cluster no more |
| 12 | topics may be requested by id, which no request here does |

Up to version 3, a request that names a missing topic creates it on brokers with ``auto.create.topics.enable``, the
default.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from consumerd.wire.apikeys import ApiKey
from consumerd.wire.declaration import (
    BOOLEAN,
    INT16,
    INT32,
    NO_UUID,
    STRING,
    UUID,
    ArrayOf,
    Unwrapped,
    field,
    message,
)
from consumerd.wire.schema import Request, request

if TYPE_CHECKING:
    import uuid

FIRST_WITH_TOPIC_IDS: Final = 10

_NOT_ASKED_FOR: Final = -(1 << 31)
"""Authorized operations that the request did not ask for."""


@message
class MetadataBroker:
    """A broker in the Metadata response.

    ``host`` and ``port`` are those of its listener with the same name as the listener that received the request.
    """

    node_id: int = field(INT32)
    host: str = field(STRING)
    port: int = field(INT32)
    rack: str | None = field(STRING, "1+", default=None, nullable="1+")


@message
class MetadataPartition:
    """A partition in the Metadata response.

    Without a leader ``leader`` is -1, and ``error_code`` may be 5 (LEADER_NOT_AVAILABLE). ``replicas``, ``isr``
    (in-sync replicas) and ``offline_replicas`` are broker ids.
    """

    error_code: int = field(INT16, default=0)
    partition: int = field(INT32)
    leader: int = field(INT32)
    leader_epoch: int = field(INT32, "7+", default=-1)
    replicas: tuple[int, ...] = field(ArrayOf(INT32))
    isr: tuple[int, ...] = field(ArrayOf(INT32))
    offline_replicas: tuple[int, ...] = field(ArrayOf(INT32), "5+", default=())


@message
class MetadataTopic:
    """A topic in the Metadata response; its partitions are in no particular order."""

    error_code: int = field(INT16, default=0)
    topic: str = field(STRING)
    topic_id: uuid.UUID = field(UUID, "10+", default=NO_UUID)
    is_internal: bool = field(BOOLEAN, "1+", default=False)
    partitions: tuple[MetadataPartition, ...] = field(ArrayOf(MetadataPartition))
    topic_authorized_operations: int = field(INT32, "8+", default=_NOT_ASKED_FOR)


@message(flexible="9+")
class MetadataResponse:
    """Metadata response: the cluster as known to the responding broker.

    ``controller_id`` is -1 if there is no controller.
    """

    throttle_time_ms: int = field(INT32, "3+", default=0)
    brokers: tuple[MetadataBroker, ...] = field(ArrayOf(MetadataBroker))
    cluster_id: str | None = field(STRING, "2+", default=None, nullable="2+")
    controller_id: int = field(INT32, "1+", default=-1)
    topics: tuple[MetadataTopic, ...] = field(ArrayOf(MetadataTopic))
    cluster_authorized_operations: int = field(INT32, "8-10", default=_NOT_ASKED_FOR)


@message
class MetadataRequestTopic:
    """A requested topic in a Metadata request, by name."""

    topic_id: uuid.UUID = field(UUID, "10+", default=NO_UUID)
    topic: str = field(STRING)


@request(ApiKey.METADATA, versions=range(13), response=MetadataResponse, flexible="9+")
class MetadataRequest(Request[MetadataResponse]):
    """Request for metadata of ``topics``; None asks for all topics, in every version.

    ``allow_auto_topic_creation`` True lets brokers create missing topics.
    """

    topics: tuple[str, ...] | None = field(
        ArrayOf(Unwrapped(MetadataRequestTopic, "topic")), nullable="1+", none_is_empty="0"
    )
    allow_auto_topic_creation: bool = field(BOOLEAN, "4+", default=True)
    include_cluster_authorized_operations: bool = field(BOOLEAN, "8-10", default=False)
    include_topic_authorized_operations: bool = field(BOOLEAN, "8+", default=False)
