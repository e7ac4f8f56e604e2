# SPDX-License-Identifier: Apache-2.0
"""One transactional id in the coordinator, and its record in ``__transaction_state``."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumerd.embedded.coordinator.transaction import LAST_EPOCH, CoordinatedTransaction
from consumerd.errors import CorruptMessageError
from consumerd.model import TopicPartition
from consumerd.wire.errorcodes import ErrorCode
from consumerd.wire.modern.transaction_topic import (
    TransactionKey,
    TransactionStatus,
    decode_transaction_key,
    decode_transaction_value,
    encode_transaction_key,
    encode_transaction_value,
)

T0, T1 = (TopicPartition.modern("t", number) for number in range(2))


def begun(timeout_ms: int = 1000) -> CoordinatedTransaction:
    """Return an id with a producer: id 5, epoch 0."""
    one = CoordinatedTransaction("x", producer_id=5)
    assert ErrorCode.NONE is one.renew(timeout_ms, present=None, fresh_id=9)
    return one


def test_a_transaction_goes_from_its_first_partition_to_its_markers() -> None:
    """And the next one begins with none of its partitions."""
    one = begun()
    assert ErrorCode.NONE is one.add(5, 0, [T0], 100)
    assert ErrorCode.NONE is one.add(5, 0, [T1], 200)
    assert 100 == one.started_ms
    assert ErrorCode.NONE is one.end(5, 0, commit=True)
    assert (True, True, {T0, T1}) == (one.is_ending, one.commits, one.partitions)
    for error in (one.add(5, 0, [T0], 300), one.end(5, 0, commit=True), one.renew(1, present=None, fresh_id=9)):
        assert ErrorCode.CONCURRENT_TRANSACTIONS is error
    one.complete()
    assert TransactionStatus.COMPLETE_COMMIT is one.status
    assert ErrorCode.NONE is one.end(5, 0, commit=True), "the answer may have been lost"
    assert ErrorCode.INVALID_TXN_STATE is one.end(5, 0, commit=False)
    assert ErrorCode.NONE is one.add(5, 0, [T1], 400)
    assert {T1} == one.partitions


def test_a_new_producer_fences_the_one_before() -> None:
    """What is open is aborted first, with an epoch of its own."""
    one = begun()
    one.add(5, 0, [T0], 100)
    assert ErrorCode.CONCURRENT_TRANSACTIONS is one.renew(1, present=None, fresh_id=9)
    assert (TransactionStatus.PREPARE_ABORT, 1) == (one.status, one.epoch)
    one.complete()
    assert ErrorCode.NONE is one.renew(1, present=None, fresh_id=9)
    assert (5, 2) == (one.producer_id, one.epoch)
    for error in (one.add(5, 0, [T0], 1), one.end(5, 0, commit=True), one.add(5, 1, [T0], 1)):
        assert ErrorCode.INVALID_PRODUCER_EPOCH is error
    assert ErrorCode.INVALID_PRODUCER_ID_MAPPING is one.add(6, 2, [T0], 1)


def test_a_running_producer_renews_its_own_epoch_only() -> None:
    """Again with the same request, if the answer was lost; not after it was fenced (KIP-360)."""
    one = begun()
    for _ in range(2):
        assert ErrorCode.NONE is one.renew(1, present=(5, 0), fresh_id=9)
        assert 1 == one.epoch
    assert ErrorCode.NONE is one.renew(1, present=None, fresh_id=9)
    assert ErrorCode.PRODUCER_FENCED is one.renew(1, present=(5, 1), fresh_id=9)
    assert 2 == one.epoch


def test_used_up_epochs_give_another_id() -> None:
    """Epochs have 16 bits; the last one is for the marker that fences."""
    one = begun()
    one.epoch = LAST_EPOCH - 1
    assert ErrorCode.NONE is one.renew(1, present=None, fresh_id=9)
    assert (9, 0) == (one.producer_id, one.epoch)


def test_a_transaction_is_overdue_after_its_timeout() -> None:
    """Only while it is open."""
    one = begun(timeout_ms=50)
    assert not one.is_overdue(10_000)
    one.add(5, 0, [T0], 100)
    assert not one.is_overdue(150)
    assert one.is_overdue(151)
    one.end(5, 0, commit=True)
    assert not one.is_overdue(10_000)


@given(
    status=st.sampled_from(TransactionStatus),
    partitions=st.sets(st.builds(TopicPartition.modern, st.sampled_from(["a", "b"]), st.integers(0, 5))),
    epoch=st.integers(-1, LAST_EPOCH),
)
def test_a_stored_id_is_restored(status: TransactionStatus, partitions: set[TopicPartition], epoch: int) -> None:
    """All but the former epoch, which only saves a retry."""
    one = CoordinatedTransaction("x", producer_id=5, epoch=epoch, timeout_ms=7, status=status, partitions=partitions)
    one.started_ms = 3
    stored = encode_transaction_value(one.store(9))
    assert one == CoordinatedTransaction.restore("x", decode_transaction_value(stored))


def test_keys_and_foreign_versions() -> None:
    """A record of another version is no state."""
    key = encode_transaction_key(TransactionKey(transactional_id="größe"))
    assert "größe" == decode_transaction_key(key).transactional_id
    for data in (None, b"", b"\0\1" + key[2:], key[:-1]):
        with pytest.raises(CorruptMessageError, match="__transaction_state"):
            decode_transaction_key(data)
