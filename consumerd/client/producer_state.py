# SPDX-License-Identifier: Apache-2.0
"""State of an idempotent or transactional producer: its id, sequences and transaction. Pure.

:class:`ProducerState` decides what a producer may send and what it has to ask brokers next. ``client.transactions``
asks them and reports the answers; ``client.sender`` reports the outcome of batches. Sources: KIP-98, KIP-360, Kafka's
``TransactionManager`` and ``ProducerStateManager``.

Sequences
    Each record of a partition has a sequence number, counted from 0 for each producer id and epoch. A broker accepts a
    batch only if its first number follows the last one that it has. It acknowledges a batch that it already has without
    appending it again. So a batch keeps its number for all attempts, and the partition's next batch gets a number only
    when this one is finished (a partition has at most one batch in flight).

    Example: batch A has the numbers 0 to 9 and its response is lost. It is sent again with number 0. If the broker has
    it, the broker answers with A's offsets. Batch B gets the numbers 10 to 14.

    - A batch that was surely not written gives its numbers back.
    - A batch with an unknown outcome leaves the sequence *unresolved*: the broker may expect 10 or 20 next. A new epoch
      begins again at 0. An idempotent producer takes the next epoch on its own, since no other producer uses its
      id. A transactional producer asks the coordinator for one after the transaction was aborted; brokers before 2.5
      cannot do that without fencing other producers, so the producer ends there.

Phases of a transactional producer::

    NEW --init--> STARTING --identified--> READY --begin--> OPEN --commit--> COMMITTING --ended--> READY
                                                             |  \\--abort--> ABORTING ----ended--> READY, or
                                                             |                              RENEWING, then READY
                                                             +--a record failed--> ABORTABLE --abort--> ABORTING
    any phase --fenced, not allowed--> FAILED, for good

An idempotent producer without transactional id is STARTING, then OPEN for good.
"""

from __future__ import annotations

import copy
import enum
from dataclasses import dataclass, field
from typing import Final

from consumerd.client.producer_actions import (
    Action,
    AddOffsets,
    AddPartitions,
    BatchSequence,
    CommitOffsets,
    EndTransaction,
    InitProducer,
    ProducerEpoch,
    TransactionOffsets,
)
from consumerd.errors import (
    BrokerError,
    ConsumerdError,
    LocalProtocolError,
    ProduceError,
    ProducerFenced,
    TransactionFailed,
    UnsupportedVersion,
)
from consumerd.model import TopicPartition
from consumerd.wire.errorcodes import ErrorCode
from consumerd.wire.record_fields import advance_sequence

_LAST_EPOCH: Final = (1 << 15) - 1
_NOTHING_ACKNOWLEDGED: Final = -1
_UNKNOWN_LOG_START: Final = -1

_FENCED: Final = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED})
_SEQUENCE_REFUSED: Final = frozenset({ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID})

_PASSING: Final = frozenset({ErrorCode.CONCURRENT_TRANSACTIONS})
"""Codes after which a request is repeated, besides the retriable ones: the previous transaction is still ending."""

_NO_ABORT_HELPS: Final = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_TRANSACTION_TIMEOUT,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.UNSUPPORTED_VERSION,
    }
)
"""Codes that end the producer, whichever request gets them."""


class Phase(enum.Enum):
    """Phase of a producer with an id; the module has the transitions."""

    NEW = "new"
    STARTING = "starting"
    READY = "ready"
    OPEN = "open"
    ABORTABLE = "abortable"
    COMMITTING = "committing"
    ABORTING = "aborting"
    RENEWING = "renewing"
    FAILED = "failed"


class Verdict(enum.Enum):
    """Decision on a batch that could be sent."""

    SEND = "send"
    WAIT = "wait"
    FAIL = "fail"


class Remedy(enum.Enum):
    """Decision on a batch whose sequence number a broker has refused."""

    REPEAT = "repeat"
    """Send it again with the same number."""
    RENUMBER = "renumber"
    """Send it again with a new number."""
    GIVE_UP = "give up"
    FENCED = "fenced"
    """Give it up, since the producer has ended."""


@dataclass(slots=True)
class _Sequence:
    """Numbers of one partition: those of ``epoch``, from ``next_number`` on."""

    epoch: ProducerEpoch
    next_number: int = 0
    last_acknowledged_offset: int = _NOTHING_ACKNOWLEDGED


@dataclass(slots=True)
class _Transaction:
    """Content of the open transaction."""

    added: set[TopicPartition] = field(default_factory=set)
    wanted: set[TopicPartition] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)
    offsets: list[TransactionOffsets] = field(default_factory=list)
    may_exist: bool = False
    """True if the coordinator may know of it, so that it must be ended there."""
    exists: bool = False
    """True if the coordinator has confirmed a part of it."""
    may_end: bool = False
    """True if all records have their outcome, so that EndTxn may be sent."""


class ProducerState:
    """State of one idempotent or transactional producer.

    Args:
        transactional_id: None for a producer that is only idempotent.
    """

    def __init__(self, transactional_id: str | None) -> None:
        self.transactional_id: Final = transactional_id
        self.phase = Phase.STARTING if transactional_id is None else Phase.NEW
        self.failure: TransactionFailed | None = None
        """Error that ended the transaction, in phase ABORTABLE, or the producer, in phase FAILED."""
        self.last_failure: ConsumerdError | None = None
        """Error of the last request, if that is to be repeated; None after one that has succeeded."""
        self._identity: ProducerEpoch | None = None
        self._sequences: dict[TopicPartition, _Sequence] = {}
        self._unresolved = False
        self._transaction = _Transaction()

    @property
    def identity(self) -> ProducerEpoch | None:
        """Producer id and epoch; None until a broker has assigned them."""
        return self._identity

    # -- requests to make, and their outcomes

    def next_action(self) -> Action | None:
        """Return the request to make now; None if there is none."""
        match self.phase:
            case Phase.STARTING:
                return InitProducer(None)
            case Phase.RENEWING:
                return InitProducer(self._identity)
            case Phase.OPEN | Phase.COMMITTING if self.transactional_id is not None:
                return self._next_of_transaction()
            case Phase.ABORTING if self._transaction.may_end:
                return EndTransaction(commit=False)
        return None

    def _next_of_transaction(self) -> Action | None:
        transaction = self._transaction
        if transaction.wanted:
            return AddPartitions(frozenset(transaction.wanted))
        if transaction.offsets:
            first = transaction.offsets[0]
            return CommitOffsets(first) if first.group_id in transaction.groups else AddOffsets(first.group_id)
        if self.phase is Phase.COMMITTING and transaction.may_end:
            return EndTransaction(commit=True)
        return None

    def start(self, action: Action) -> None:
        """Note that a request is about to be sent.

        From then on the coordinator may know of the transaction, even if no answer comes.
        """
        if isinstance(action, AddPartitions | AddOffsets):
            self._transaction.may_exist = True

    def identified(self, identity: ProducerEpoch) -> None:
        """Note the producer id and epoch that a broker has assigned."""
        self.last_failure = None
        self._identity = identity
        self._unresolved = False
        self._transaction = _Transaction()
        self.phase = Phase.OPEN if self.transactional_id is None else Phase.READY

    def succeeded(self, action: Action) -> None:
        """Note that a request other than :class:`InitProducer` has succeeded.

        A result that comes after the phase has changed, as on an abort, is taken as far as it still matters.
        """
        self.last_failure = None
        transaction = self._transaction
        match action:
            case AddPartitions(partitions):
                transaction.exists = True
                transaction.added |= partitions
                transaction.wanted -= partitions
            case AddOffsets(group_id):
                transaction.exists = True
                transaction.groups.add(group_id)
            case CommitOffsets(group):
                if transaction.offsets and transaction.offsets[0] is group:
                    del transaction.offsets[0]
            case EndTransaction():
                self._ended()

    def _ended(self) -> None:
        if self.phase in (Phase.COMMITTING, Phase.ABORTING):
            self._transaction = _Transaction()
            self.phase = Phase.RENEWING if self._unresolved else Phase.READY

    def failed(self, action: Action, error: ConsumerdError) -> bool:
        """Note that a request has failed; return True if it is to be repeated.

        A request without an answer is repeated: all of these may be. The codes are those of KIP-98, KIP-360 and Kafka's
        ``TransactionManager``.
        """
        self.last_failure = error
        if isinstance(error, BrokerError):
            if error.code in _FENCED:
                self._fail(ProducerFenced(self._explain_fenced(error)), error)
            elif error.retriable or error.code in _PASSING:
                return True
            elif self._is_nothing_to_abort(action, error):
                self._ended()
            elif error.code in _NO_ABORT_HELPS or isinstance(action, InitProducer | EndTransaction):
                self._fail(TransactionFailed(f"{self._describe()} cannot go on: {error}", fatal=True), error)
            else:
                self.doom(error)
            return False
        if isinstance(error, UnsupportedVersion | LocalProtocolError):
            if isinstance(action, InitProducer | EndTransaction | AddPartitions):
                self._fail(TransactionFailed(self._explain_unsupported(action, error), fatal=True), error)
            else:
                self.doom(error)
            return False
        return True

    def _is_nothing_to_abort(self, action: Action, error: BrokerError) -> bool:
        """Return True if the coordinator does not know the transaction to be aborted.

        That is so if the only request to add something to it was refused, or got lost.
        """
        is_abort = isinstance(action, EndTransaction) and not action.commit
        return is_abort and error.code == ErrorCode.INVALID_TXN_STATE and not self._transaction.exists

    def _explain_unsupported(self, action: Action, error: ConsumerdError) -> str:
        if isinstance(action, InitProducer) and action.present is not None:
            return (
                f"{self._describe()}: the outcome of a batch is unknown, and brokers before 2.5 have no new epoch for "
                f"a running producer ({error}); close it and open another with the same transactional id"
            )
        return f"{self._describe()} needs brokers of 0.11 or later: {error}"

    def _explain_fenced(self, error: BrokerError) -> str:
        return (
            f"{self._describe()} is fenced: another producer has begun with this id, or the transaction took longer "
            f"than transaction_timeout_ms and was aborted. Its open transaction is void; {error}"
        )

    def _describe(self) -> str:
        if self.transactional_id is None:
            return "the idempotent producer"
        return f"the producer with transactional id {self.transactional_id!r}"

    def _fail(self, failure: TransactionFailed, cause: ConsumerdError) -> None:
        if self.phase is not Phase.FAILED:
            failure.__cause__ = cause
            self.failure, self.phase = failure, Phase.FAILED

    def doom(self, cause: ConsumerdError) -> None:
        """Note that the open transaction can only be aborted, because of ``cause``.

        Without an open transaction nothing happens.
        """
        if self.transactional_id is not None and self.phase in (Phase.OPEN, Phase.COMMITTING):
            failure = TransactionFailed(
                f"{self._describe()}: the transaction must be aborted (abort_transaction): {cause}", fatal=False
            )
            failure.__cause__ = cause
            self.failure, self.phase = failure, Phase.ABORTABLE
            self._transaction.offsets.clear()
            self._transaction.wanted.clear()

    # -- the program's calls

    def init(self) -> None:
        """Ask for a producer id, which fences the former producer.

        A repeated call goes on with it. Raises as :meth:`begin`.
        """
        if self.phase is Phase.NEW:
            self.phase = Phase.STARTING
        else:
            self._require(Phase.STARTING, Phase.READY, act="init_transactions")

    def begin(self) -> None:
        """Begin a transaction.

        Raises TransactionFailed after an error that ended it or the producer, LocalProtocolError in a wrong phase.
        """
        self._require(Phase.READY, act="begin_transaction")
        self.phase = Phase.OPEN

    def commit(self) -> None:
        """Accept no more records, in order to commit.

        A repeated call goes on with it. Raises as :meth:`begin`.
        """
        self._require(Phase.OPEN, Phase.COMMITTING, act="commit_transaction")
        self.phase = Phase.COMMITTING

    def abort(self) -> None:
        """Give the transaction up.

        A repeated call goes on with it. A commit that brokers may have been told of cannot be taken back. Raises as
        :meth:`begin`.
        """
        if self.phase is Phase.ABORTABLE:
            self.failure = None
        elif self.phase is Phase.COMMITTING and self._transaction.may_end:
            raise LocalProtocolError(
                "abort_transaction: the commit is under way and may have happened; call commit_transaction again"
            )
        else:
            self._require(Phase.OPEN, Phase.COMMITTING, Phase.ABORTING, Phase.RENEWING, act="abort_transaction")
        if self.phase is not Phase.RENEWING:
            self.phase = Phase.ABORTING
            self._transaction.offsets.clear()
            self._transaction.wanted.clear()

    @property
    def may_abort(self) -> bool:
        """True if :meth:`abort` is possible."""
        if self.phase is Phase.COMMITTING:
            return not self._transaction.may_end
        return self.transactional_id is not None and self.phase in (Phase.OPEN, Phase.ABORTABLE, Phase.ABORTING)

    def end(self) -> None:
        """Note that all records have their outcome, so that the transaction may be ended.

        A transaction that the coordinator has not heard of ends at once.
        """
        if self.phase in (Phase.COMMITTING, Phase.ABORTING):
            transaction = self._transaction
            transaction.may_end = True
            if not (transaction.may_exist or transaction.wanted or transaction.offsets):
                self._ended()

    def add_offsets(self, group: TransactionOffsets) -> None:
        """Add a group's offsets to the transaction. Raises as :meth:`begin`."""
        self._require(Phase.OPEN, act="send_offsets_to_transaction")
        self._transaction.offsets.append(group)

    def holds_offsets(self, group: TransactionOffsets) -> bool:
        """Return True if these offsets, the very object, are still to be written."""
        return any(one is group for one in self._transaction.offsets)

    def check_open(self) -> None:
        """Check that records may be buffered. Raises TransactionFailed, LocalProtocolError."""
        if self.phase is not Phase.OPEN and not (self.transactional_id is None and self.phase is Phase.STARTING):
            self._require(Phase.OPEN, act="writing a record")

    def _require(self, *phases: Phase, act: str) -> None:
        if self.failure is not None:
            raise copy.copy(self.failure)
        if self.phase not in phases:
            expected = " or ".join(one.value for one in phases)
            raise LocalProtocolError(
                f"{act}: {self._describe()} is {self.phase.value}, expected {expected}; "
                "the order is init_transactions, begin_transaction, records, commit_transaction or abort_transaction"
            )

    # -- batches

    def explain_unwritten(self, partition: TopicPartition) -> TransactionFailed:
        """Return the error for a batch that :meth:`judge` fails."""
        if self.failure is None:
            failure = TransactionFailed(f"{partition}: not written: the transaction was aborted", fatal=False)
        else:
            failure = copy.copy(self.failure)
            failure.__cause__ = self.failure.__cause__
        failure.partition = partition
        return failure

    def want(self, partition: TopicPartition) -> None:
        """Note that records for a partition are buffered, to add it to the transaction."""
        if self.transactional_id is not None and partition not in self._transaction.added:
            self._transaction.wanted.add(partition)

    def judge(self, partition: TopicPartition, *, numbered: bool) -> Verdict:
        """Decide if a waiting batch may be sent.

        Args:
            numbered: True if it has its sequence number already, from an earlier attempt. It is sent again even if the
                transaction will be aborted, since only its outcome tells the partition's next number.
        """
        if self.phase is Phase.FAILED:
            return Verdict.FAIL
        if numbered:
            return Verdict.SEND
        if self.phase in (Phase.ABORTABLE, Phase.ABORTING):
            return Verdict.FAIL
        if self.phase in (Phase.NEW, Phase.STARTING):
            return Verdict.WAIT
        is_added = self.transactional_id is None or partition in self._transaction.added
        return Verdict.SEND if is_added else Verdict.WAIT

    def number(self, partition: TopicPartition, count: int) -> BatchSequence:
        """Return the sequence of a partition's next batch, of ``count`` records."""
        assert self._identity is not None, "judged before"
        sequence = self._sequences.get(partition)
        if sequence is None or sequence.epoch != self._identity:
            # nothing of this partition is in flight, so its older numbers are not needed any more
            last = _NOTHING_ACKNOWLEDGED if sequence is None else sequence.last_acknowledged_offset
            sequence = self._sequences[partition] = _Sequence(self._identity, last_acknowledged_offset=last)
        first = sequence.next_number
        sequence.next_number = advance_sequence(first, count)
        return BatchSequence(*sequence.epoch, first)

    def written(self, partition: TopicPartition, last_offset: int) -> None:
        """Note that a partition's batch is written; ``last_offset`` is that of its last record."""
        self._sequences[partition].last_acknowledged_offset = last_offset

    def give_back(self, partition: TopicPartition, batch: BatchSequence) -> None:
        """Note that a batch was surely not written, so that its numbers are used again."""
        sequence = self._sequences.get(partition)
        if sequence is not None and sequence.epoch == batch[:2]:
            sequence.next_number = batch.base_sequence

    def lost(self, partition: TopicPartition, batch: BatchSequence, cause: ProduceError) -> None:
        """Note that a batch has failed for good; the transaction can only be aborted.

        If the batch may be written (``cause.in_doubt``), the sequence is unresolved.
        """
        if cause.in_doubt:
            self._leave_sequence(batch)
        else:
            self.give_back(partition, batch)
        self.doom(cause)

    def refused(
        self, partition: TopicPartition, batch: BatchSequence, code: int, *, in_doubt: bool, log_start_offset: int
    ) -> Remedy | None:
        """Decide on a batch after an error about producer ids or sequences; None for others.

        A broker forgets a producer when retention has removed all that the producer wrote. Then numbers begin again at
        0. In any other case the broker has lost records, or the number is wrong: an idempotent producer goes on in a
        new epoch, a transaction is aborted.

        Args:
            in_doubt: True if an earlier attempt may have written it.
            log_start_offset: First offset of the log, as in the response; -1 if unknown.
        """
        is_fenced = code in _FENCED
        if not is_fenced and code not in _SEQUENCE_REFUSED:
            return None
        if is_fenced and self.transactional_id is not None:
            cause = BrokerError(code, ErrorCode(code).name, f"Produce for {partition}")
            self._fail(ProducerFenced(self._explain_fenced(cause)), cause)
            return Remedy.FENCED
        sequence = self._sequences[partition]
        if code == ErrorCode.UNKNOWN_PRODUCER_ID:
            if log_start_offset == _UNKNOWN_LOG_START:
                return Remedy.REPEAT
            if sequence.last_acknowledged_offset < log_start_offset:
                # a copy of this batch, if there was one, is removed as well
                sequence.next_number = 0
                return Remedy.RENUMBER
        self._leave_sequence(batch)
        if in_doubt or self.transactional_id is not None:
            return Remedy.GIVE_UP
        return Remedy.RENUMBER

    def _leave_sequence(self, batch: BatchSequence) -> None:
        """Take a new epoch if possible, since a batch's numbers cannot be relied on."""
        if self._identity is None or batch[:2] != self._identity:
            return  # a newer epoch is used already
        if self.transactional_id is not None:
            self._unresolved = True
        elif self._identity.epoch < _LAST_EPOCH:
            self._identity = ProducerEpoch(self._identity.producer_id, self._identity.epoch + 1)
        elif self.phase is Phase.OPEN:
            self._identity, self.phase = None, Phase.STARTING
