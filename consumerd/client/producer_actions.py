# SPDX-License-Identifier: Apache-2.0
"""Identity of a producer, and the requests that an idempotent or transactional producer makes. Pure.

``client.producer_state`` decides on the next request, ``client.transaction_requests`` sends it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from consumerd.model import TopicPartition


class ProducerEpoch(NamedTuple):
    """A producer id and its epoch."""

    producer_id: int
    epoch: int


class BatchSequence(NamedTuple):
    """Producer id, producer epoch and first sequence number of a batch."""

    producer_id: int
    epoch: int
    base_sequence: int


# -- requests to make


@dataclass(frozen=True, slots=True)
class InitProducer:
    """Ask for a producer id and epoch (InitProducerId).

    Attributes:
        present: Id and epoch to renew; None for a producer that begins.
    """

    present: ProducerEpoch | None


@dataclass(frozen=True, slots=True)
class AddPartitions:
    """Add partitions to the transaction (AddPartitionsToTxn)."""

    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class TransactionOffsets:
    """Offsets of a consumer group to commit with the transaction.

    Attributes:
        offsets: Offset of the next record to read, and metadata, by partition.
        generation_id: Generation of the group, -1 for a producer that is no member of it.
        member_id: Member of the group; empty for none.
    """

    group_id: str
    offsets: Mapping[TopicPartition, tuple[int, str]]
    generation_id: int = -1
    member_id: str = ""


@dataclass(frozen=True, slots=True)
class AddOffsets:
    """Add a group to the transaction (AddOffsetsToTxn)."""

    group_id: str


@dataclass(frozen=True, slots=True)
class CommitOffsets:
    """Write a group's offsets, which count from the commit on (TxnOffsetCommit)."""

    group: TransactionOffsets


@dataclass(frozen=True, slots=True)
class EndTransaction:
    """Commit or abort the transaction (EndTxn)."""

    commit: bool


Action: TypeAlias = InitProducer | AddPartitions | AddOffsets | CommitOffsets | EndTransaction
"""A request that the producer has to make next."""
