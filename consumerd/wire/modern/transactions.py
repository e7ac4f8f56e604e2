# SPDX-License-Identifier: Apache-2.0
"""Requests of idempotent and transactional producers, since 0.11 (KIP-98; Kafka's message definitions).

1. InitProducerId returns a producer id and an epoch. With a transactional id it fences the former producer of that id:
   the epoch grows, and the former producer's open transaction is aborted.
2. AddPartitionsToTxn adds the partitions to write to, before the first Produce request for them.
3. AddOffsetsToTxn adds a group, and TxnOffsetCommit, which goes to the group's coordinator, its offsets.
4. EndTxn commits or aborts. The broker writes a marker into each partition.

All but TxnOffsetCommit go to the transaction coordinator, which FindCoordinator returns for the transactional id.

| request | version | adds |
|---|---|---|
| all | 1 | on a quota violation the broker first responds, and then stops reading the connection (KIP-219) |
| AddPartitionsToTxn, AddOffsetsToTxn, EndTxn | 2 | error 90, PRODUCER_FENCED, instead of 47 (KIP-588) |
| InitProducerId | 2 | flexible |
| InitProducerId | 3 | the present producer id and epoch, so that a fenced producer cannot fence others (KIP-360) |
| InitProducerId | 4 | error 90 instead of 47 |
| TxnOffsetCommit | 2 | leader epoch of each offset |
| TxnOffsetCommit | 3 | flexible; generation and member, so that a former member of the group is fenced (KIP-447) |
"""

from __future__ import annotations

from typing import Final

from consumerd.wire.apikeys import ApiKey
from consumerd.wire.declaration import BOOLEAN, INT16, INT32, INT64, STRING, ArrayOf, field, message
from consumerd.wire.schema import Request, request

NO_PRODUCER_ID: Final = -1
"""Producer id of a producer that has none yet, and in a response with an error code."""
NO_PRODUCER_EPOCH: Final = -1
FIRST_WITH_PRESENT_PRODUCER: Final = 3
"""First version of InitProducerId that contains the present producer id and epoch."""
FIRST_WITH_GENERATION: Final = 3
"""First version of TxnOffsetCommit that contains the member of the group."""

# -- InitProducerId


@message(flexible="2+")
class InitProducerIdResponse:
    """InitProducerId response: the producer's id and epoch; both are -1 with an error code."""

    throttle_time_ms: int = field(INT32, default=0)
    error_code: int = field(INT16, default=0)
    producer_id: int = field(INT64)
    producer_epoch: int = field(INT16)


@request(ApiKey.INIT_PRODUCER_ID, versions=range(5), response=InitProducerIdResponse, flexible="2+")
class InitProducerIdRequest(Request[InitProducerIdResponse]):
    """Request for a producer id; without a transactional id any broker can answer.

    ``transaction_timeout_ms`` is the time after which the coordinator aborts a transaction of this producer.
    ``producer_id`` and ``producer_epoch`` are those of a producer that wants a new epoch; -1 for one that begins.
    """

    transactional_id: str | None = field(STRING, nullable="0+")
    transaction_timeout_ms: int = field(INT32)
    producer_id: int = field(INT64, "3+", default=NO_PRODUCER_ID)
    producer_epoch: int = field(INT16, "3+", default=NO_PRODUCER_EPOCH)


# -- AddPartitionsToTxn


@message
class AddedPartition:
    """Part of an AddPartitionsToTxn response for one partition: an error code."""

    partition: int = field(INT32)
    error_code: int = field(INT16, default=0)


@message
class AddedTopic:
    """Part of an AddPartitionsToTxn response for one topic."""

    topic: str = field(STRING)
    partitions: tuple[AddedPartition, ...] = field(ArrayOf(AddedPartition))


@message
class AddPartitionsToTxnResponse:
    """AddPartitionsToTxn response: an error code for each partition.

    No partition is added unless all codes are 0.
    """

    throttle_time_ms: int = field(INT32, default=0)
    topics: tuple[AddedTopic, ...] = field(ArrayOf(AddedTopic))


@message
class TransactionTopic:
    """Partitions of one topic to add to a transaction."""

    topic: str = field(STRING)
    partitions: tuple[int, ...] = field(ArrayOf(INT32))


@request(ApiKey.ADD_PARTITIONS_TO_TXN, versions=range(3), response=AddPartitionsToTxnResponse)
class AddPartitionsToTxnRequest(Request[AddPartitionsToTxnResponse]):
    """Request to add partitions to the producer's transaction, which begins with the first of them."""

    transactional_id: str = field(STRING)
    producer_id: int = field(INT64)
    producer_epoch: int = field(INT16)
    topics: tuple[TransactionTopic, ...] = field(ArrayOf(TransactionTopic))


# -- AddOffsetsToTxn


@message
class AddOffsetsToTxnResponse:
    """AddOffsetsToTxn response: an error code."""

    throttle_time_ms: int = field(INT32, default=0)
    error_code: int = field(INT16, default=0)


@request(ApiKey.ADD_OFFSETS_TO_TXN, versions=range(3), response=AddOffsetsToTxnResponse)
class AddOffsetsToTxnRequest(Request[AddOffsetsToTxnResponse]):
    """Request to add a group's partition of ``__consumer_offsets`` to the producer's transaction."""

    transactional_id: str = field(STRING)
    producer_id: int = field(INT64)
    producer_epoch: int = field(INT16)
    group_id: str = field(STRING)


# -- EndTxn


@message
class EndTxnResponse:
    """EndTxn response: an error code.

    Without one the outcome is decided and durable. Markers may be written later.
    """

    throttle_time_ms: int = field(INT32, default=0)
    error_code: int = field(INT16, default=0)


@request(ApiKey.END_TXN, versions=range(3), response=EndTxnResponse)
class EndTxnRequest(Request[EndTxnResponse]):
    """Request to commit the producer's transaction, or to abort it."""

    transactional_id: str = field(STRING)
    producer_id: int = field(INT64)
    producer_epoch: int = field(INT16)
    committed: bool = field(BOOLEAN)


# -- TxnOffsetCommit


@message
class TxnCommittedPartition:
    """Part of a TxnOffsetCommit response for one partition: an error code."""

    partition: int = field(INT32)
    error_code: int = field(INT16, default=0)


@message
class TxnCommittedTopic:
    """Part of a TxnOffsetCommit response for one topic."""

    topic: str = field(STRING)
    partitions: tuple[TxnCommittedPartition, ...] = field(ArrayOf(TxnCommittedPartition))


@message(flexible="3+")
class TxnOffsetCommitResponse:
    """TxnOffsetCommit response: an error code for each partition."""

    throttle_time_ms: int = field(INT32, default=0)
    topics: tuple[TxnCommittedTopic, ...] = field(ArrayOf(TxnCommittedTopic))


@message
class TxnCommitPartition:
    """Offset to commit for one partition, with arbitrary metadata of the client.

    The offset is that of the next record to read.
    """

    partition: int = field(INT32)
    offset: int = field(INT64)
    leader_epoch: int = field(INT32, "2+", default=-1)
    metadata: str | None = field(STRING, nullable="0+")


@message
class TxnCommitTopic:
    """Offsets to commit for the partitions of one topic."""

    topic: str = field(STRING)
    partitions: tuple[TxnCommitPartition, ...] = field(ArrayOf(TxnCommitPartition))


@request(ApiKey.TXN_OFFSET_COMMIT, versions=range(4), response=TxnOffsetCommitResponse, flexible="3+")
class TxnOffsetCommitRequest(Request[TxnOffsetCommitResponse]):
    """Request to commit a group's offsets with the producer's transaction; sent to the group's coordinator.

    ``generation_id`` is -1 and ``member_id`` empty for a producer that is no member of the group.
    """

    transactional_id: str = field(STRING)
    group_id: str = field(STRING)
    producer_id: int = field(INT64)
    producer_epoch: int = field(INT16)
    generation_id: int = field(INT32, "3+", default=-1)
    member_id: str = field(STRING, "3+", default="")
    group_instance_id: str | None = field(STRING, "3+", default=None, nullable="3+")
    topics: tuple[TxnCommitTopic, ...] = field(ArrayOf(TxnCommitTopic))
