# SPDX-License-Identifier: Apache-2.0
"""OffsetCommit: where a group's readers are (Kafka protocol guide, OffsetCommitRequest v0 to v3).

| version | adds |
|---|---|
| 0 | the broker writes the offsets into ZooKeeper, where the high-level consumer of 0.8 keeps them |
| 1 | the broker writes them into ``__consumer_offsets``; generation and member; a timestamp for each partition |
| 2 | a retention time for all of them in place of the timestamps |
| 3 | throttle time |
"""

from __future__ import annotations

from typing import ClassVar, Final

from consumerd.wire.apikeys import ApiKey
from consumerd.wire.declaration import INT16, INT32, INT64, STRING, ArrayOf, field, message
from consumerd.wire.schema import Request

NO_GENERATION: Final = -1
"""The ``generation_id`` of whoever is in no group that the broker manages; ``member_id`` is empty then."""
NOW_TIMESTAMP: Final = -1
"""The broker takes the time at which the commit arrives."""
DEFAULT_RETENTION_TIME: Final = -1
"""The broker keeps the offsets as long as its own setting says."""

# -- response


@message
class CommittedPartition:
    """Whether one partition's offset is kept."""

    partition: int = field(INT32)
    error_code: int = field(INT16, default=0)


@message
class CommittedTopic:
    """Whether one topic's offsets are kept."""

    topic: str = field(STRING)
    partitions: tuple[CommittedPartition, ...] = field(ArrayOf(CommittedPartition))


@message
class OffsetCommitResponse:
    """What was kept."""

    throttle_time_ms: int = field(INT32, "3+", default=0)
    topics: tuple[CommittedTopic, ...] = field(ArrayOf(CommittedTopic))


# -- request


@message
class CommitPartition:
    """The next offset to be read, and whatever the client wants to find again with it.

    ``timestamp`` in ms since the epoch.
    """

    partition: int = field(INT32)
    offset: int = field(INT64)
    timestamp: int = field(INT64, "1", default=NOW_TIMESTAMP)
    metadata: str | None = field(STRING, nullable="0+")


@message
class CommitTopic:
    """The offsets of one topic."""

    topic: str = field(STRING)
    partitions: tuple[CommitPartition, ...] = field(ArrayOf(CommitPartition))


@message
class OffsetCommitRequest(Request[OffsetCommitResponse]):
    """Keep these offsets; from version 1 on to be sent to the group's coordinator."""

    api: ClassVar[ApiKey] = ApiKey.OFFSET_COMMIT
    versions: ClassVar[range] = range(4)
    response: ClassVar[type] = OffsetCommitResponse

    group_id: str = field(STRING)
    generation_id: int = field(INT32, "1+", default=NO_GENERATION)
    member_id: str = field(STRING, "1+", default="")
    retention_time_ms: int = field(INT64, "2+", default=DEFAULT_RETENTION_TIME)
    topics: tuple[CommitTopic, ...] = field(ArrayOf(CommitTopic))
