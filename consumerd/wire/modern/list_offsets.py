# SPDX-License-Identifier: Apache-2.0
"""ListOffsets: log start offset, log end offset, or first offset of a time.

Source: Kafka protocol guide, OffsetRequest v0 to v2. Version 0 returns start offsets of log segments, newest first, up
to ``max_num_offsets``. Lookup by time is only as precise as the segments' modification times. From version 1 on it
returns one offset, by the timestamps of records (KIP-79). Version 2 adds the isolation level, and the throttle time
before the topics of the response.
"""

from __future__ import annotations

from typing import Final

from consumerd.wire.apikeys import ApiKey
from consumerd.wire.declaration import INT8, INT16, INT32, INT64, STRING, ArrayOf, field, message
from consumerd.wire.schema import Request, request

LATEST_TIMESTAMP: Final = -1
"""Special timestamp that asks for the log end offset; under ``read_committed``, for the last stable offset."""

EARLIEST_TIMESTAMP: Final = -2
"""Special timestamp that asks for the log start offset."""

# -- response


@message
class ListedPartition:
    """Part of a ListOffsets response for one partition.

    Version 0 has ``offsets``. Later versions have ``offset`` (-1: none found) and ``timestamp``, that of the found
    record in ms since the epoch.
    """

    partition: int = field(INT32)
    error_code: int = field(INT16, default=0)
    offsets: tuple[int, ...] = field(ArrayOf(INT64), "0", default=())
    timestamp: int = field(INT64, "1+", default=-1)
    offset: int = field(INT64, "1+", default=-1)


@message
class ListedTopic:
    """Part of a ListOffsets response for one topic."""

    topic: str = field(STRING)
    partitions: tuple[ListedPartition, ...] = field(ArrayOf(ListedPartition))


@message
class ListOffsetsResponse:
    """ListOffsets response: offsets by topic and partition."""

    throttle_time_ms: int = field(INT32, "2+", default=0)
    topics: tuple[ListedTopic, ...] = field(ArrayOf(ListedTopic))


# -- request


@message
class ListPartition:
    """Part of a ListOffsets request for one partition.

    ``timestamp`` is a time in ms since the epoch, or a special number: -1 for the log end offset, -2 for the log start
    offset.
    """

    partition: int = field(INT32)
    timestamp: int = field(INT64)
    max_num_offsets: int = field(INT32, "0", default=1)


@message
class ListTopic:
    """Part of a ListOffsets request for one topic."""

    topic: str = field(STRING)
    partitions: tuple[ListPartition, ...] = field(ArrayOf(ListPartition))


@request(ApiKey.LIST_OFFSETS, versions=range(3), response=ListOffsetsResponse)
class ListOffsetsRequest(Request[ListOffsetsResponse]):
    """Request for offsets by time, or of the log's ends; sent to the partitions' leader."""

    replica_id: int = field(INT32, default=-1)
    isolation_level: int = field(INT8, "2+", default=0)
    topics: tuple[ListTopic, ...] = field(ArrayOf(ListTopic))
