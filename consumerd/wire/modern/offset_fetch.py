# SPDX-License-Identifier: Apache-2.0
"""OffsetFetch: reads a group's committed offsets (Kafka protocol guide, OffsetFetchRequest v0 to v3).

| version | adds |
|---|---|
| 0 | the broker reads the offsets from ZooKeeper |
| 1 | the broker reads them from ``__consumer_offsets``; the format is the same |
| 2 | null asks for all partitions; an error code for the whole response |
| 3 | throttle time |
"""

from __future__ import annotations

from typing import Final

from consumerd.wire.apikeys import ApiKey
from consumerd.wire.declaration import INT16, INT32, INT64, STRING, ArrayOf, field, message
from consumerd.wire.schema import Request, request

NO_OFFSET: Final = -1
"""Value of ``offset`` if none is committed for the partition.

Only version 0 has an error with it, UNKNOWN_TOPIC_OR_PARTITION.
"""

# -- response


@message
class KeptPartition:
    """Committed offset of one partition.

    It is the offset of the next record to read; -1 if the group has committed none.
    """

    partition: int = field(INT32)
    offset: int = field(INT64)
    metadata: str | None = field(STRING, nullable="0+")
    error_code: int = field(INT16, default=0)


@message
class KeptTopic:
    """Committed offsets of one topic."""

    topic: str = field(STRING)
    partitions: tuple[KeptPartition, ...] = field(ArrayOf(KeptPartition))


@message
class OffsetFetchResponse:
    """Committed offsets of the group."""

    throttle_time_ms: int = field(INT32, "3+", default=0)
    topics: tuple[KeptTopic, ...] = field(ArrayOf(KeptTopic))
    error_code: int = field(INT16, "2+", default=0)


# -- request


@message
class OffsetFetchTopic:
    """Partitions of one topic whose committed offsets are requested."""

    topic: str = field(STRING)
    partitions: tuple[int, ...] = field(ArrayOf(INT32))


@request(ApiKey.OFFSET_FETCH, versions=range(4), response=OffsetFetchResponse)
class OffsetFetchRequest(Request[OffsetFetchResponse]):
    """Request for a group's committed offsets; from version 1 on sent to its coordinator.

    ``topics`` None asks for all partitions with a committed offset.
    """

    group_id: str = field(STRING)
    topics: tuple[OffsetFetchTopic, ...] | None = field(ArrayOf(OffsetFetchTopic), nullable="2+")
