# SPDX-License-Identifier: Apache-2.0
"""Produce: record sets to be appended (Kafka protocol guide, ProduceRequest v0 to v7).

| version | adds |
|---|---|
| 1 | throttle time |
| 2 | messages of magic 1; the time that the broker gave the records, for topics with LogAppendTime (KIP-32) |
| 3 | record batches, magic 2; transactional id (KIP-98) |
| 4 | error 56, KAFKA_STORAGE_ERROR (KIP-112) |
| 5 | the log's first offset in the answer (KIP-107) |
| 6 | on a quota violation the broker answers first and goes silent then (KIP-219) |
| 7 | zstd (KIP-110); before it error 76 |

Versions 0 and 1 carry messages of magic 0, version 2 those of magic 1 (a broker takes older ones there, too), and from 3
on each partition has exactly one record batch (Kafka's ProduceRequest, ``validateRecords``).
"""

from __future__ import annotations

import struct
from typing import ClassVar, Final

from consumerd.wire.apikeys import ApiKey
from consumerd.wire.declaration import INT16, INT32, INT64, RECORDS, STRING, ArrayOf, field, message
from consumerd.wire.schema import Request

ACKS_NONE: Final = 0
"""The broker does not answer at all."""
ACKS_LEADER: Final = 1
ACKS_ALL: Final = -1
"""Answer when all replicas in sync have it."""

# -- response


@message
class ProducedPartition:
    """What became of one partition's record set.

    ``base_offset`` is the first offset that it was given, -1 with an error. ``log_append_time_ms`` is -1 unless the
    topic's timestamps are the broker's.
    """

    partition: int = field(INT32)
    error_code: int = field(INT16, default=0)
    base_offset: int = field(INT64)
    log_append_time_ms: int = field(INT64, "2+", default=-1)
    log_start_offset: int = field(INT64, "5+", default=-1)


@message
class ProducedTopic:
    """What became of one topic's record sets."""

    topic: str = field(STRING)
    partitions: tuple[ProducedPartition, ...] = field(ArrayOf(ProducedPartition))


@message
class ProduceResponse:
    """What became of each record set."""

    topics: tuple[ProducedTopic, ...] = field(ArrayOf(ProducedTopic))
    throttle_time_ms: int = field(INT32, "1+", default=0)


# -- request


@message
class ProducePartition:
    """A record set, whose offsets the broker assigns."""

    partition: int = field(INT32)
    record_set: memoryview | bytes | None = field(RECORDS, nullable="0+")


@message
class ProduceTopic:
    """The record sets of one topic."""

    topic: str = field(STRING)
    partitions: tuple[ProducePartition, ...] = field(ArrayOf(ProducePartition))


@message
class ProduceRequest(Request[ProduceResponse]):
    """Append; with ``acks`` 0 no answer follows.

    ``timeout_ms`` bounds how long the broker waits for other replicas.
    """

    api: ClassVar[ApiKey] = ApiKey.PRODUCE
    versions: ClassVar[range] = range(8)
    response: ClassVar[type] = ProduceResponse

    transactional_id: str | None = field(STRING, "3+", default=None, nullable="3+")
    acks: int = field(INT16)
    timeout_ms: int = field(INT32)
    topics: tuple[ProduceTopic, ...] = field(ArrayOf(ProduceTopic))

    @property
    def expects_response(self) -> bool:
        """False for ``acks`` 0, which brokers do not answer."""
        return self.acks != ACKS_NONE


_STRING_LENGTH: Final = struct.Struct(">h")
_COUNT: Final = struct.Struct(">i")
_PARTITION: Final = struct.Struct(">ii")
"""Its number, and the length of its record set."""
_ACKS_AND_TIMEOUT_BYTES: Final = 6
_FIRST_WITH_TRANSACTIONS: Final = 3


def count_parts(body: memoryview, version: int, *, most: int) -> int:
    """Count the topics and partitions of a request that is not read yet, up to ``most`` and one, or to what is damaged."""
    count = at = 0

    def skip_string() -> int:
        return at + _STRING_LENGTH.size + max(int(_STRING_LENGTH.unpack_from(body, at)[0]), 0)

    try:
        if version >= _FIRST_WITH_TRANSACTIONS:
            at = skip_string()
        at += _ACKS_AND_TIMEOUT_BYTES
        (topics,) = _COUNT.unpack_from(body, at)
        at += _COUNT.size
        while topics > 0 and count <= most:
            topics -= 1
            count += 1
            at = skip_string()
            (partitions,) = _COUNT.unpack_from(body, at)
            at += _COUNT.size
            while partitions > 0 and count <= most:
                partitions -= 1
                count += 1
                at += _PARTITION.size + max(_PARTITION.unpack_from(body, at)[1], 0)
    except struct.error:
        pass
    return count
