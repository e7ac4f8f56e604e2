# SPDX-License-Identifier: Apache-2.0
"""Fetch: record sets from given offsets on (Kafka protocol guide, FetchRequest v0 to v11).

| version | adds |
|---|---|
| 1 | throttle time |
| 2 | messages of magic 1 (before it the broker converts down) |
| 3 | a limit for the whole response; partitions are served in the order asked for (KIP-74) |
| 4 | record batches, magic 2; isolation level, last stable offset, aborted transactions (KIP-98) |
| 5 | log start offset (KIP-107) |
| 6 | error 56, KAFKA_STORAGE_ERROR (KIP-112) |
| 7 | fetch sessions: only what changed is asked for and answered (KIP-227) |
| 8 | on a quota violation the broker answers first and goes silent then (KIP-219) |
| 9 | the leader epoch that the client believes in (KIP-320) |
| 10 | zstd (KIP-110); before it a topic of ``compression.type=zstd`` gets error 76, a producer's own comes as it is |
| 11 | rack of the client, preferred read replica (KIP-392) |
"""

from __future__ import annotations

from typing import ClassVar, Final

from consumerd.wire.apikeys import ApiKey
from consumerd.wire.declaration import INT8, INT16, INT32, INT64, RECORDS, STRING, ArrayOf, field, message
from consumerd.wire.primitives import MAX_INT32
from consumerd.wire.schema import Request

CONSUMER_REPLICA_ID: Final = -1
"""The ``replica_id`` of whoever is not a broker."""

READ_UNCOMMITTED: Final = 0
READ_COMMITTED: Final = 1

NO_SESSION_ID: Final = 0
"""Ask for a new session (with :data:`INITIAL_SESSION_EPOCH`) or for none (with :data:`FINAL_SESSION_EPOCH`)."""

INITIAL_SESSION_EPOCH: Final = 0
FINAL_SESSION_EPOCH: Final = -1

# -- response


@message
class AbortedTransaction:
    """From ``first_offset`` on, what ``producer_id`` wrote up to its next abort marker does not count."""

    producer_id: int = field(INT64)
    first_offset: int = field(INT64)


@message
class FetchedPartition:
    """What one partition gave.

    ``record_set`` is a view into the frame and may end in the middle of a message. With an error code it is empty or
    None, and the offsets are -1. With a ``preferred_read_replica`` it is empty: the records are to be had there.
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
    """What one topic's partitions gave."""

    topic: str = field(STRING)
    partitions: tuple[FetchedPartition, ...] = field(ArrayOf(FetchedPartition))


@message
class FetchResponse:
    """What was fetched; within a session, only of partitions with news."""

    throttle_time_ms: int = field(INT32, "1+", default=0)
    error_code: int = field(INT16, "7+", default=0)
    session_id: int = field(INT32, "7+", default=NO_SESSION_ID)
    topics: tuple[FetchedTopic, ...] = field(ArrayOf(FetchedTopic))


# -- request


@message
class FetchPartition:
    """Where to read one partition from, and how much of it at most."""

    partition: int = field(INT32)
    current_leader_epoch: int = field(INT32, "9+", default=-1)
    fetch_offset: int = field(INT64)
    log_start_offset: int = field(INT64, "5+", default=-1)
    partition_max_bytes: int = field(INT32)


@message
class FetchTopic:
    """What to read of one topic."""

    topic: str = field(STRING)
    partitions: tuple[FetchPartition, ...] = field(ArrayOf(FetchPartition))


@message
class ForgottenTopic:
    """Partitions that a session is to leave out from now on."""

    topic: str = field(STRING)
    partitions: tuple[int, ...] = field(ArrayOf(INT32))


@message
class FetchRequest(Request[FetchResponse]):
    """Read on; the broker waits up to ``max_wait_ms`` until there are ``min_bytes``."""

    api: ClassVar[ApiKey] = ApiKey.FETCH
    versions: ClassVar[range] = range(12)
    response: ClassVar[type] = FetchResponse

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
