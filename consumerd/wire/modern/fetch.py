# SPDX-License-Identifier: Apache-2.0
"""Fetch: record sets from given offsets (Kafka protocol guide, FetchRequest v0 to v11).

| version | adds |
|---|---|
| 1 | throttle time |
| 2 | messages of magic 1 (before, the broker converts down) |
| 3 | a size limit for the whole response; partitions are served in the order of the request (KIP-74) |
| 4 | record batches, magic 2; isolation level, last stable offset, aborted transactions (KIP-98) |
| 5 | log start offset (KIP-107) |
| 6 | error 56, KAFKA_STORAGE_ERROR (KIP-112) |
| 7 | fetch sessions: requests and responses contain only changes (KIP-227) |
| 8 | on a quota violation the broker first responds, and then stops reading the connection (KIP-219) |
| 9 | the leader epoch known to the client (KIP-320) |
| 10 | zstd (KIP-110); below, topics with ``compression.type=zstd`` get error 76, others return a producer's zstd |
| 11 | rack of the client, preferred read replica (KIP-392) |
"""

from __future__ import annotations

from typing import Final

from consumerd.wire.apikeys import ApiKey
from consumerd.wire.declaration import INT8, INT16, INT32, INT64, RECORDS, STRING, ArrayOf, field, message
from consumerd.wire.primitives import MAX_INT32
from consumerd.wire.schema import Request, request

CONSUMER_REPLICA_ID: Final = -1
"""``replica_id`` of all clients that are not brokers."""

READ_UNCOMMITTED: Final = 0
READ_COMMITTED: Final = 1

NO_SESSION_ID: Final = 0
"""Requests a new session (with :data:`INITIAL_SESSION_EPOCH`) or none (with :data:`FINAL_SESSION_EPOCH`)."""

INITIAL_SESSION_EPOCH: Final = 0
FINAL_SESSION_EPOCH: Final = -1

# -- response


@message
class AbortedTransaction:
    """An aborted transaction in a Fetch response; consumers under ``read_committed`` skip its records.

    These are the batches of ``producer_id`` from ``first_offset`` to the producer's next abort marker.
    """

    producer_id: int = field(INT64)
    first_offset: int = field(INT64)


@message
class FetchedPartition:
    """Part of a Fetch response for one partition.

    ``record_set`` is a view of the response frame, and may end with a partial message. With an error code it is empty
    or None, and offsets are -1. With a ``preferred_read_replica`` (a broker id, else -1) it is empty; the records have
    to be fetched from that replica.
    """

    partition: int = field(INT32)
    error_code: int = field(INT16, default=0)
    high_watermark: int = field(INT64)
    last_stable_offset: int = field(INT64, "4+", default=-1)
    log_start_offset: int = field(INT64, "5+", default=-1)
    aborted_transactions: tuple[AbortedTransaction, ...] | None = field(
        ArrayOf(AbortedTransaction), "4+", default=None, nullable="4+"
    )
    preferred_read_replica: int = field(INT32, "11+", default=-1)
    record_set: memoryview | bytes | None = field(RECORDS, nullable="0+")


@message
class FetchedTopic:
    """Part of a Fetch response for the partitions of one topic."""

    topic: str = field(STRING)
    partitions: tuple[FetchedPartition, ...] = field(ArrayOf(FetchedPartition))


@message
class FetchResponse:
    """Fetch response: record sets by topic.

    Within a fetch session, the response has only partitions with new records or other changes.
    """

    throttle_time_ms: int = field(INT32, "1+", default=0)
    error_code: int = field(INT16, "7+", default=0)
    session_id: int = field(INT32, "7+", default=NO_SESSION_ID)
    topics: tuple[FetchedTopic, ...] = field(ArrayOf(FetchedTopic))


# -- request


@message
class FetchPartition:
    """Part of a Fetch request for one partition: position and size limit."""

    partition: int = field(INT32)
    current_leader_epoch: int = field(INT32, "9+", default=-1)
    fetch_offset: int = field(INT64)
    log_start_offset: int = field(INT64, "5+", default=-1)
    partition_max_bytes: int = field(INT32)


@message
class FetchTopic:
    """Part of a Fetch request: the partitions of one topic."""

    topic: str = field(STRING)
    partitions: tuple[FetchPartition, ...] = field(ArrayOf(FetchPartition))


@message
class ForgottenTopic:
    """Part of a Fetch request: partitions to remove from the fetch session."""

    topic: str = field(STRING)
    partitions: tuple[int, ...] = field(ArrayOf(INT32))


@request(ApiKey.FETCH, versions=range(12), response=FetchResponse)
class FetchRequest(Request[FetchResponse]):
    """Fetch request; the broker waits up to ``max_wait_ms`` for ``min_bytes`` of records."""

    replica_id: int = field(INT32, default=CONSUMER_REPLICA_ID)
    max_wait_ms: int = field(INT32)
    min_bytes: int = field(INT32)
    max_bytes: int = field(INT32, "3+", default=MAX_INT32)
    isolation_level: int = field(INT8, "4+", default=READ_UNCOMMITTED)
    session_id: int = field(INT32, "7+", default=NO_SESSION_ID)
    session_epoch: int = field(INT32, "7+", default=FINAL_SESSION_EPOCH)
    topics: tuple[FetchTopic, ...] = field(ArrayOf(FetchTopic))
    forgotten_topics: tuple[ForgottenTopic, ...] = field(ArrayOf(ForgottenTopic), "7+", default=())
    rack_id: str = field(STRING, "11+", default="")
