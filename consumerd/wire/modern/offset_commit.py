# SPDX-License-Identifier: Apache-2.0
"""OffsetCommit: stores a group's offsets (Kafka protocol guide, OffsetCommitRequest v0 to v3).

| version | adds |
|---|---|
| 0 | the broker writes the offsets into ZooKeeper, where the high-level consumer of 0.8 keeps them |
| 1 | the broker writes them into ``__consumer_offsets``; generation and member; a timestamp for each partition |
| 2 | one retention time instead of the timestamps |
| 3 | throttle time |
"""

from __future__ import annotations

from typing import Final

from consumerd.wire.apikeys import ApiKey
from consumerd.wire.declaration import INT16, INT32, INT64, STRING, ArrayOf, field, message
from consumerd.wire.schema import Request, request

NO_GENERATION: Final = -1
"""``generation_id`` of a client that is no member of a group managed by brokers; its ``member_id`` is empty."""
NOW_TIMESTAMP: Final = -1
"""Value of ``timestamp`` for which the broker uses the time of the commit."""
DEFAULT_RETENTION_TIME: Final = -1
"""Value of the retention time for which the broker uses its own setting."""

# -- response


@message
class CommittedPartition:
    """Part of an OffsetCommit response for one partition: an error code."""

    partition: int = field(INT32)
    error_code: int = field(INT16, default=0)


@message
class CommittedTopic:
    """Part of an OffsetCommit response for one topic."""

    topic: str = field(STRING)
    partitions: tuple[CommittedPartition, ...] = field(ArrayOf(CommittedPartition))


@message
class OffsetCommitResponse:
    """OffsetCommit response: an error code for each partition."""

    throttle_time_ms: int = field(INT32, "3+", default=0)
    topics: tuple[CommittedTopic, ...] = field(ArrayOf(CommittedTopic))


# -- request


@message
class CommitPartition:
    """Offset to commit for one partition, with arbitrary metadata of the client.

    The offset is that of the next record to read. ``timestamp`` is in ms since the epoch.
    """

    partition: int = field(INT32)
    offset: int = field(INT64)
    timestamp: int = field(INT64, "1", default=NOW_TIMESTAMP)
    metadata: str | None = field(STRING, nullable="0+")


@message
class CommitTopic:
    """Offsets to commit for the partitions of one topic."""

    topic: str = field(STRING)
    partitions: tuple[CommitPartition, ...] = field(ArrayOf(CommitPartition))


@request(ApiKey.OFFSET_COMMIT, versions=range(4), response=OffsetCommitResponse)
class OffsetCommitRequest(Request[OffsetCommitResponse]):
    """Request to store a group's offsets; from version 1 on sent to the group's coordinator.

    ``generation_id`` is -1 and ``member_id`` empty for a commit by no member of a group. ``retention_time_ms`` -1 means
    the broker's setting.
    """

    group_id: str = field(STRING)
    generation_id: int = field(INT32, "1+", default=NO_GENERATION)
    member_id: str = field(STRING, "1+", default="")
    retention_time_ms: int = field(INT64, "2+", default=DEFAULT_RETENTION_TIME)
    topics: tuple[CommitTopic, ...] = field(ArrayOf(CommitTopic))
