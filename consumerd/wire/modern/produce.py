# SPDX-License-Identifier: Apache-2.0
"""Produce: record sets to append (Kafka protocol guide, ProduceRequest v0 to v7).

| version | adds |
|---|---|
| 1 | throttle time |
| 2 | messages of magic 1; the broker's timestamp, for topics with LogAppendTime (KIP-32) |
| 3 | record batches, magic 2; transactional id (KIP-98) |
| 4 | error 56, KAFKA_STORAGE_ERROR (KIP-112) |
| 5 | log start offset in the response (KIP-107) |
| 6 | on a quota violation the broker first responds, and then stops reading the connection (KIP-219) |
| 7 | zstd (KIP-110); below, error 76 |

Versions 0 and 1 contain messages of magic 0, version 2 those of magic 1 (brokers also accept magic 0 there). From
version 3 on each partition has exactly one record batch (Kafka's ProduceRequest, ``validateRecords``).
"""

from __future__ import annotations

import struct
from typing import Final

from consumerd.wire.apikeys import ApiKey
from consumerd.wire.declaration import INT16, INT32, INT64, RECORDS, STRING, ArrayOf, field, message
from consumerd.wire.schema import Request, request

ACKS_NONE: Final = 0
"""Value of ``acks`` for which the broker sends no response."""
ACKS_LEADER: Final = 1
"""Value of ``acks`` for which the broker responds when the leader has appended the records."""
ACKS_ALL: Final = -1
"""Value of ``acks`` for which the broker responds when all in-sync replicas have the records."""

# -- response


@message
class ProducedPartition:
    """Part of a Produce response for one partition.

    ``base_offset`` is the offset of the first record, -1 with an error code. ``log_append_time_ms`` is -1 unless the
    topic uses LogAppendTime.
    """

    partition: int = field(INT32)
    error_code: int = field(INT16, default=0)
    base_offset: int = field(INT64)
    log_append_time_ms: int = field(INT64, "2+", default=-1)
    log_start_offset: int = field(INT64, "5+", default=-1)


@message
class ProducedTopic:
    """Part of a Produce response for one topic."""

    topic: str = field(STRING)
    partitions: tuple[ProducedPartition, ...] = field(ArrayOf(ProducedPartition))


@message
class ProduceResponse:
    """Produce response: base offset or error code of each partition."""

    topics: tuple[ProducedTopic, ...] = field(ArrayOf(ProducedTopic))
    throttle_time_ms: int = field(INT32, "1+", default=0)


# -- request


@message
class ProducePartition:
    """Part of a Produce request: the record set for one partition.

    The broker assigns its offsets.
    """

    partition: int = field(INT32)
    record_set: memoryview | bytes | None = field(RECORDS, nullable="0+")


@message
class ProduceTopic:
    """Part of a Produce request: record sets for one topic."""

    topic: str = field(STRING)
    partitions: tuple[ProducePartition, ...] = field(ArrayOf(ProducePartition))


@request(ApiKey.PRODUCE, versions=range(8), response=ProduceResponse)
class ProduceRequest(Request[ProduceResponse]):
    """Request to append record sets; with ``acks`` 0 there is no response.

    ``timeout_ms`` limits how long the broker waits for other replicas.
    """

    transactional_id: str | None = field(STRING, "3+", default=None, nullable="3+")
    acks: int = field(INT16)
    timeout_ms: int = field(INT32)
    topics: tuple[ProduceTopic, ...] = field(ArrayOf(ProduceTopic))

    @property
    def expects_response(self) -> bool:
        """False for ``acks`` 0, to which brokers do not respond."""
        return self.acks != ACKS_NONE


_STRING_LENGTH: Final = struct.Struct(">h")
_COUNT: Final = struct.Struct(">i")
_PARTITION: Final = struct.Struct(">ii")
"""Partition number and length of the record set."""
_ACKS_AND_TIMEOUT_BYTES: Final = 6
_FIRST_WITH_TRANSACTIONS: Final = 3


def count_parts(body: memoryview, version: int, *, most: int) -> int:
    """Return the number of topics and partitions in an undecoded Produce request.

    Counting stops after ``most`` + 1, or at the first malformed field.
    """
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
