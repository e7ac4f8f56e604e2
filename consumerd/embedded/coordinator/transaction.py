# SPDX-License-Identifier: Apache-2.0
"""One transactional id in the coordinator: producer, epoch, open transaction. Pure.

As Kafka 1.1 (``TransactionMetadata``, ``TransactionStateManager``)::

    EMPTY or COMPLETE --partition added--> ONGOING --EndTxn--> PREPARE --markers written--> COMPLETE

- In PREPARE the outcome is decided. Until all markers are written, requests get CONCURRENT_TRANSACTIONS (51).
- A new producer of the id fences the former one. An open transaction is aborted first, with an epoch that no producer
  has, so that nothing of the former producer can come behind its marker.

Methods change nothing when they return an error. The caller stores the state after each change, before it answers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from consumerd.model import TopicPartition
from consumerd.wire.errorcodes import ErrorCode
from consumerd.wire.modern.transaction_topic import TransactionStatus, TransactionValue
from consumerd.wire.modern.transactions import NO_PRODUCER_EPOCH, TransactionTopic

LAST_EPOCH: Final = (1 << 15) - 1
_NO_TIME: Final = -1

_ENDING: Final = frozenset({TransactionStatus.PREPARE_COMMIT, TransactionStatus.PREPARE_ABORT})
_PREPARED: Final = {True: TransactionStatus.PREPARE_COMMIT, False: TransactionStatus.PREPARE_ABORT}
_COMPLETED: Final = {True: TransactionStatus.COMPLETE_COMMIT, False: TransactionStatus.COMPLETE_ABORT}


@dataclass(slots=True)
class CoordinatedTransaction:
    """State of one transactional id; ``partitions`` are those of the open transaction."""

    transactional_id: str
    producer_id: int
    epoch: int = NO_PRODUCER_EPOCH
    former_epoch: int = NO_PRODUCER_EPOCH
    """Epoch before the last renewal, whose request may be repeated."""
    timeout_ms: int = 0
    status: TransactionStatus = TransactionStatus.EMPTY
    partitions: set[TopicPartition] = field(default_factory=set)
    started_ms: int = _NO_TIME

    def copy(self) -> CoordinatedTransaction:
        """Return a copy, which does not change with the original."""
        return replace(self, partitions=set(self.partitions))

    def renew(self, timeout_ms: int, *, present: tuple[int, int] | None, fresh_id: int) -> ErrorCode:
        """Give the id to a new producer, or a new epoch to the present one.

        With an open transaction, that is to be aborted first: the result is CONCURRENT_TRANSACTIONS, and the status
        PREPARE_ABORT.

        Args:
            present: Producer id and epoch of a producer that renews its own; None for a new producer.
            fresh_id: Producer id to use when the epochs of the present one are used up.
        """
        if self.status in _ENDING:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        if present is not None and present not in (
            (self.producer_id, self.epoch),
            (self.producer_id, self.former_epoch),
        ):
            return ErrorCode.PRODUCER_FENCED
        if self.status is TransactionStatus.ONGOING:
            self.fence()
            return ErrorCode.CONCURRENT_TRANSACTIONS
        if present is None or present[1] == self.epoch:
            self.former_epoch = self.epoch if present is not None else NO_PRODUCER_EPOCH
            if self.epoch >= LAST_EPOCH - 1:
                self.producer_id, self.epoch, self.former_epoch = fresh_id, NO_PRODUCER_EPOCH, NO_PRODUCER_EPOCH
            self.epoch += 1
        self.timeout_ms = timeout_ms
        self.status = TransactionStatus.EMPTY
        return ErrorCode.NONE

    def fence(self) -> None:
        """Abort the open transaction with an epoch that no producer has."""
        self.epoch = min(self.epoch + 1, LAST_EPOCH)
        self.former_epoch = NO_PRODUCER_EPOCH
        self.status = TransactionStatus.PREPARE_ABORT

    def check(self, producer_id: int, epoch: int) -> ErrorCode:
        """Return NONE if a request is from the id's present producer."""
        if producer_id != self.producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        return ErrorCode.NONE if epoch == self.epoch else ErrorCode.INVALID_PRODUCER_EPOCH

    def add(self, producer_id: int, epoch: int, partitions: Iterable[TopicPartition], now_ms: int) -> ErrorCode:
        """Add partitions to the transaction, which begins with the first ones."""
        error = self.check(producer_id, epoch)
        if error is not ErrorCode.NONE:
            return error
        if self.status in _ENDING:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        if self.status is not TransactionStatus.ONGOING:
            self.partitions.clear()
            self.started_ms = now_ms
        self.status = TransactionStatus.ONGOING
        self.partitions.update(partitions)
        return ErrorCode.NONE

    def end(self, producer_id: int, epoch: int, *, commit: bool) -> ErrorCode:
        """Decide the transaction: afterwards the status is PREPARE, or COMPLETE for a repeated request."""
        error = self.check(producer_id, epoch)
        if error is not ErrorCode.NONE:
            return error
        if self.status is TransactionStatus.ONGOING:
            self.status = _PREPARED[commit]
            return ErrorCode.NONE
        if self.is_ending:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        return ErrorCode.NONE if self.status is _COMPLETED[commit] else ErrorCode.INVALID_TXN_STATE

    @property
    def is_ending(self) -> bool:
        """True if its markers are to be written."""
        return self.status in _ENDING

    @property
    def commits(self) -> bool:
        """True if its markers, to be written, are those of a commit."""
        return self.status is TransactionStatus.PREPARE_COMMIT

    def complete(self) -> None:
        """Note that all markers are written."""
        self.status = _COMPLETED[self.commits]
        self.partitions.clear()
        self.started_ms = _NO_TIME

    def is_overdue(self, now_ms: int) -> bool:
        """Return True if it is open for longer than its timeout."""
        return self.status is TransactionStatus.ONGOING and now_ms - self.started_ms > self.timeout_ms

    def store(self, now_ms: int) -> TransactionValue:
        """Return the state as a record of ``__transaction_state``."""
        topics: dict[str, list[int]] = {}
        for partition in sorted(self.partitions, key=lambda one: (one.topic, one.partition.number)):
            topics.setdefault(partition.topic, []).append(partition.partition.number)
        return TransactionValue(
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            timeout_ms=self.timeout_ms,
            status=self.status,
            topics=tuple(TransactionTopic(topic=topic, partitions=tuple(ones)) for topic, ones in topics.items()),
            updated_ms=now_ms,
            started_ms=self.started_ms,
        )

    @classmethod
    def restore(cls, transactional_id: str, value: TransactionValue) -> CoordinatedTransaction:
        """Return the state that a record of ``__transaction_state`` has. Raises ValueError for an unknown status."""
        return cls(
            transactional_id,
            producer_id=value.producer_id,
            epoch=value.producer_epoch,
            timeout_ms=value.timeout_ms,
            status=TransactionStatus(value.status),
            partitions={TopicPartition.modern(one.topic, n) for one in value.topics or () for n in one.partitions},
            started_ms=value.started_ms,
        )
