# SPDX-License-Identifier: Apache-2.0
"""Mutants of idempotent and transactional producers, and of the embedded broker's transactions."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_CLIENT: Final = "tests/unit/client/test_transactions.py::"
_STATES: Final = "tests/property/test_transactions.py::"
_LOGS: Final = "tests/unit/embedded/log/test_producers.py::"
_IDS: Final = "tests/unit/embedded/coordinator/test_transaction.py::"
_STATE: Final = "client/producer_state.py"

TRANSACTIONAL: Final = (
    Mutant(
        name="a-retried-batch-gets-other-numbers",
        promise=0,
        file="client/sender.py",
        old="            if self._state is not None and batch.sequence is None and batch.to_send:\n",
        new="            if self._state is not None and batch.to_send:\n",
        tests=(_CLIENT + "test_a_lost_answer_of_produce_writes_no_batch_twice",),
    ),
    Mutant(
        name="the-id-of-an-error-is-used",
        promise=0,
        file="client/transaction_requests.py",
        old="    _check(response.error_code, context)\n    if response.producer_id < 0 or response.producer_epoch < 0:\n",
        new="    if response.producer_id < -1:\n",
        tests=(_CLIENT + "test_no_record_is_written_with_the_id_of_an_error",),
    ),
    Mutant(
        name="a-fenced-producer-may-abort-and-go-on",
        promise=0,
        file=_STATE,
        old="            if error.code in _FENCED:\n",
        new="            if error.code in _FENCED and error.code < 0:\n",
        tests=(_CLIENT + "test_a_fenced_producer_has_ended",),
        dies_of=r"consumerd\.errors\.TransactionFailed",
    ),
    Mutant(
        name="records-go-out-before-their-partition-is-in-the-transaction",
        promise=0,
        file=_STATE,
        old="        is_added = self.transactional_id is None or partition in self._transaction.added\n",
        new="        is_added = True\n",
        tests=(_STATES + "test_a_transaction_is_ended_only_when_its_records_have_outcomes",),
    ),
    Mutant(
        name="a-transaction-is-committed-without-a-record-that-was-refused",
        promise=0,
        file="client/sender.py",
        old="        state.lost(batch.partition, batch.sequence, outcome)\n",
        new="        pass\n",
        tests=(_CLIENT + "test_a_record_that_is_refused_spoils_its_transaction",),
    ),
    Mutant(
        name="numbers-of-a-refused-batch-are-not-used-again",
        promise=0,
        file=_STATE,
        old="            sequence.next_number = batch.base_sequence\n",
        new="            pass\n",
        tests=(_CLIENT + "test_a_record_that_is_refused_spoils_its_transaction",),
    ),
    Mutant(
        name="a-batch-in-doubt-is-sent-with-new-numbers",
        promise=0,
        file=_STATE,
        old="        if in_doubt or self.transactional_id is not None:\n",
        new="        if self.transactional_id is not None:\n",
        tests=(_CLIENT + "test_a_batch_in_doubt_is_not_sent_with_new_numbers",),
    ),
    Mutant(
        name="an-unknown-outcome-keeps-the-epoch",
        promise=0,
        file=_STATE,
        old="            self._unresolved = True\n",
        new="            pass\n",
        tests=(_CLIENT + "test_after_an_unknown_outcome_an_abort_takes_a_new_epoch",),
    ),
    Mutant(
        name="a-new-epoch-is-taken-from-a-successor",
        promise=0,
        file="client/transaction_requests.py",
        old="        producer_id, epoch = (NO_PRODUCER_ID, NO_PRODUCER_EPOCH) if present is None else present\n",
        new="        producer_id, epoch = NO_PRODUCER_ID, NO_PRODUCER_EPOCH\n",
        tests=(_CLIENT + "test_a_new_epoch_fences_no_successor",),
    ),
    Mutant(
        name="a-commit-that-may-have-happened-is-aborted",
        promise=0,
        file=_STATE,
        old="        elif self.phase is Phase.COMMITTING and self._transaction.may_end:\n",
        new="        elif self.phase is Phase.COMMITTING and self._transaction.may_end and self.failure is not None:\n",
        tests=(_CLIENT + "test_a_commit_without_an_answer_is_repeated_by_the_caller",),
        dies_of=r"consumerd\.errors\.DeliveryTimedOut",
    ),
    Mutant(
        name="retention-of-a-quiet-partition-ends-a-transaction",
        promise=0,
        file=_STATE,
        old="            if sequence.last_acknowledged_offset < log_start_offset:\n",
        new="            if sequence.last_acknowledged_offset < 0:\n",
        tests=(_CLIENT + "test_a_transaction_goes_on_where_retention_has_removed_the_producer",),
        dies_of=r"consumerd\.errors\.TransactionFailed",
    ),
    Mutant(
        name="a-lost-record-passes-for-a-removed-one",
        promise=0,
        file=_STATE,
        old="            if sequence.last_acknowledged_offset < log_start_offset:\n",
        new="            if log_start_offset >= 0:\n",
        tests=(_CLIENT + "test_a_transaction_whose_records_were_lost_is_aborted",),
    ),
    Mutant(
        name="closing-leaves-a-transaction-open",
        promise=0,
        file="client/producer.py",
        old="        if self._transactions is not None and self._transactions.is_open:\n",
        new="        if self._transactions is None:\n",
        tests=(_CLIENT + "test_closing_aborts_what_is_open",),
    ),
    Mutant(
        name="the-broker-appends-a-batch-again",
        promise=0,
        file="embedded/log/producers.py",
        old="                if (one.first, one.last) == (batch.first, batch.last):\n",
        new="                if (one.first, one.last) == (batch.first, batch.last + 1):\n",
        tests=(_LOGS + "test_a_batch_that_is_there_is_not_appended_again",),
        dies_of=r"consumerd\.embedded\.log\.errors\.SequenceGap",
    ),
    Mutant(
        name="a-marker-does-not-fence-in-the-log",
        promise=0,
        file="embedded/log/producers.py",
        old="            known.epoch = batch.epoch\n",
        new="            known.epoch = known.epoch if batch.is_control else batch.epoch\n",
        tests=(_LOGS + "test_an_older_epoch_is_fenced_and_a_newer_one_begins_at_0",),
        dies_of=r"consumerd\.embedded\.log\.errors\.SequenceGap",
    ),
    Mutant(
        name="readers-of-committed-records-pass-an-open-transaction",
        promise=0,
        file="embedded/log/partition_log.py",
        old="        return end if unstable is None else min(unstable, end)\n",
        new="        return end if unstable is None else max(unstable, end)\n",
        tests=(_LOGS + "test_the_last_stable_offset_is_the_oldest_open_transaction",),
    ),
    Mutant(
        name="compaction-keeps-the-aborted-value-of-a-key",
        promise=0,
        file="embedded/log/compaction.py",
        old="    return owner is not None and any(span.covers(owner) for span in aborted)\n",
        new="    return owner is None and any(span.covers(owner) for span in aborted)\n",
        tests=(_LOGS + "test_compaction_keeps_neither_aborted_records_nor_what_is_undecided",),
    ),
    Mutant(
        name="producers-are-forgotten-with-a-restart",
        promise=0,
        file="embedded/log/partition_log.py",
        old="        if not self._has_producers:\n            return\n",
        new="        if self._has_producers:\n            return\n",
        tests=(_LOGS + "test_producers_are_found_again_after_a_restart",),
    ),
    Mutant(
        name="the-coordinator-lets-two-producers-write",
        promise=0,
        file="embedded/coordinator/transaction.py",
        old="        return ErrorCode.NONE if epoch == self.epoch else ErrorCode.INVALID_PRODUCER_EPOCH\n",
        new="        return ErrorCode.NONE\n",
        tests=(_IDS + "test_a_new_producer_fences_the_one_before",),
    ),
    Mutant(
        name="a-decided-transaction-takes-more-partitions",
        promise=0,
        file="embedded/coordinator/transaction.py",
        old="        if self.status in _ENDING:\n            return ErrorCode.CONCURRENT_TRANSACTIONS\n        if self.status is not",
        new="        if self.status is not",
        tests=(_IDS + "test_a_transaction_goes_from_its_first_partition_to_its_markers",),
    ),
)
