# SPDX-License-Identifier: Apache-2.0
"""ListOffsets: a partition's first offset, its next one, or the first from a time on (guide: OffsetRequest, v0 to v2).

Version 0 gives start offsets of log segments, newest first, up to ``max_num_offsets``, and by time only as exactly as
segments are modified. From version 1 on it is one offset, by the records' own timestamps (KIP-79); version 2 adds the
isolation level and the throttle time. The topics of response v2 follow the throttle time.
"""

from __future__ import annotations

from typing import ClassVar, Final

from consumerd.wire.apikeys import ApiKey
from consumerd.wire.declaration import INT8, INT16, INT32, INT64, STRING, ArrayOf, field, message
from consumerd.wire.schema import Request

LATEST_TIMESTAMP: Final = -1
"""Asks for the next offset to be written (under ``read_committed``: the last stable offset)."""

EARLIEST_TIMESTAMP: Final = -2
"""Asks for the first offset that the broker still holds."""

# -- response


@message
class ListedPartition:
    """The answer for one partition: ``offsets`` in version 0, ``timestamp`` and ``offset`` (-1: none) from 1 on."""

    partition: int = field(INT32)
    error_code: int = field(INT16, default=0)
    offsets: tuple[int, ...] = field(ArrayOf(INT64), "0", default=())
    timestamp: int = field(INT64, "1+", default=-1)
    offset: int = field(INT64, "1+", default=-1)


@message
class ListedTopic:
    """The answers for one topic."""

    topic: str = field(STRING)
    partitions: tuple[ListedPartition, ...] = field(ArrayOf(ListedPartition))


@message
class ListOffsetsResponse:
    """The answers."""

    throttle_time_ms: int = field(INT32, "2+", default=0)
    topics: tuple[ListedTopic, ...] = field(ArrayOf(ListedTopic))


# -- request


@message
class ListPartition:
    """Which offset to look up: by time in ms, or one of the two special timestamps."""

    partition: int = field(INT32)
    timestamp: int = field(INT64)
    max_num_offsets: int = field(INT32, "0", default=1)


@message
class ListTopic:
    """What to look up in one topic."""

    topic: str = field(STRING)
    partitions: tuple[ListPartition, ...] = field(ArrayOf(ListPartition))


@message
class ListOffsetsRequest(Request[ListOffsetsResponse]):
    """Look offsets up; to be sent to the partitions' leader."""

    api: ClassVar[ApiKey] = ApiKey.LIST_OFFSETS
    versions: ClassVar[range] = range(3)
    response: ClassVar[type] = ListOffsetsResponse

    replica_id: int = field(INT32, default=-1)
    isolation_level: int = field(INT8, "2+", default=0)
    topics: tuple[ListTopic, ...] = field(ArrayOf(ListTopic))
