# SPDX-License-Identifier: Apache-2.0
"""OffsetFetch: where a group's readers were (Kafka protocol guide, OffsetFetchRequest v0 to v3).

| version | adds |
|---|---|
| 0 | the broker reads the offsets from ZooKeeper |
| 1 | the broker reads them from ``__consumer_offsets``; nothing else differs |
| 2 | null asks for all partitions; an error code for the whole answer |
| 3 | throttle time |
"""

from __future__ import annotations

from typing import ClassVar, Final

from consumerd.wire.apikeys import ApiKey
from consumerd.wire.declaration import INT16, INT32, INT64, STRING, ArrayOf, field, message
from consumerd.wire.schema import Request

NO_OFFSET: Final = -1
"""Nothing is kept for the partition. Not an error, except in version 0, which says UNKNOWN_TOPIC_OR_PARTITION with it."""

# -- response


@message
class KeptPartition:
    """What is kept for one partition."""

    partition: int = field(INT32)
    offset: int = field(INT64)
    metadata: str | None = field(STRING, nullable="0+")
    error_code: int = field(INT16, default=0)


@message
class KeptTopic:
    """What is kept for one topic."""

    topic: str = field(STRING)
    partitions: tuple[KeptPartition, ...] = field(ArrayOf(KeptPartition))


@message
class OffsetFetchResponse:
    """What is kept."""

    throttle_time_ms: int = field(INT32, "3+", default=0)
    topics: tuple[KeptTopic, ...] = field(ArrayOf(KeptTopic))
    error_code: int = field(INT16, "2+", default=0)


# -- request


@message
class OffsetFetchTopic:
    """Partitions of one topic."""

    topic: str = field(STRING)
    partitions: tuple[int, ...] = field(ArrayOf(INT32))


@message
class OffsetFetchRequest(Request[OffsetFetchResponse]):
    """Give what is kept; from version 1 on to be sent to the group's coordinator. ``topics`` None: of all that it has."""

    api: ClassVar[ApiKey] = ApiKey.OFFSET_FETCH
    versions: ClassVar[range] = range(4)
    response: ClassVar[type] = OffsetFetchResponse

    group_id: str = field(STRING)
    topics: tuple[OffsetFetchTopic, ...] | None = field(ArrayOf(OffsetFetchTopic), nullable="2+")
