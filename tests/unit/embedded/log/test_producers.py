# SPDX-License-Identifier: Apache-2.0
"""Producers of a log: duplicates, gaps, epochs; open and aborted transactions; what survives a restart and compaction."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from consumerd.embedded.appending import Marker
from consumerd.embedded.log.errors import ForgottenProducer, SequenceGap, StaleEpoch
from consumerd.embedded.log.files import OsLogFiles
from consumerd.embedded.log.partition_log import PRODUCERS_NAME, Appended, PartitionLog
from consumerd.embedded.log.producers import AbortedSpan, find_owner
from consumerd.embedded.log.settings import CleanupPolicy, LogSettings
from consumerd.model import TopicPartition
from consumerd.wire.modern.building import build_record_set
from consumerd.wire.modern.fetch import AbortedTransaction
from consumerd.wire.modern.record_set import decode_record_set
from consumerd.wire.records import NewRecord

PARTITION = TopicPartition.modern("t", 0)
NOW_MS = 1_500_000_000_000

Opener = Callable[..., PartitionLog]


@pytest.fixture
def open_log(tmp_path: Path) -> Opener:
    def opened(**settings: Any) -> PartitionLog:
        return PartitionLog.open(
            tmp_path, PARTITION, settings=LogSettings(**settings), files=OsLogFiles(), now_ms=lambda: NOW_MS
        )

    return opened


def append(
    log: PartitionLog, *values: str, producer: int = 7, epoch: int = 0, first: int = 0, transactional: bool = True
) -> Appended:
    records = [NewRecord(key=value[:1].encode(), value=value.encode(), timestamp=NOW_MS) for value in values]
    return log.append(
        build_record_set(records, magic=2, producer=(producer, epoch, first), transactional=transactional)
    )


def end(log: PartitionLog, *, commit: bool, producer: int = 7, epoch: int = 0) -> Appended:
    return log.append_own(Marker(producer_id=producer, epoch=epoch, commit=commit, time_ms=NOW_MS).build)


def read_committed(log: PartitionLog) -> list[bytes | None]:
    """Return what a reader of committed records sees of one read, as Fetch gives it."""
    stable = log.last_stable_offset
    with log.read(log.start_offset, 1 << 20, whole_first=True, before=stable) as found:
        data = found.read()
    aborted = tuple(
        AbortedTransaction(producer_id=one.producer_id, first_offset=one.first_offset)
        for one in log.list_aborted(log.start_offset, stable)
    )
    batch = decode_record_set(data, partition=PARTITION, start=log.start_offset, read_committed=True, aborted=aborted)
    return [record.value for record in batch.records()]


def test_a_batch_that_is_there_is_not_appended_again(open_log: Opener) -> None:
    """One of the last five is found, and answered with its own offset."""
    log = open_log()
    offsets = [append(log, "a", "b", first=2 * number, transactional=False).base_offset for number in range(5)]

    assert [0, 2, 4, 6, 8] == offsets
    assert offsets == [append(log, "a", "b", first=2 * n, transactional=False).base_offset for n in range(5)]
    assert 10 == log.end_offset


def test_gaps_and_unknown_producers_are_told_apart(open_log: Opener) -> None:
    """45 and 59: a producer that knows the difference knows whether records are lost."""
    log = open_log()
    with pytest.raises(ForgottenProducer):
        append(log, "a", first=5)
    append(log, "a")
    with pytest.raises(SequenceGap, match="sequence 2, expected 1"):
        append(log, "b", first=2)
    with pytest.raises(SequenceGap, match="sequence 0, expected 1"):
        append(log, "other", "length")
    assert 1 == log.end_offset


def test_sequences_wrap_around(open_log: Opener) -> None:
    """After 2,147,483,647 comes 0."""
    log = open_log()
    data = bytearray(build_record_set([NewRecord(value=b"v", timestamp=NOW_MS)], magic=2, producer=(7, 0, 0)))
    log.append(bytes(data))
    owner = find_owner(build_record_set([NewRecord(value=b"v")] * 3, magic=2, producer=(7, 0, (1 << 31) - 2)))
    assert owner is not None
    assert 0 == owner.last


def test_an_older_epoch_is_fenced_and_a_newer_one_begins_at_0(open_log: Opener) -> None:
    """By a batch, and by a marker alone."""
    log = open_log()
    append(log, "a")
    with pytest.raises(SequenceGap):
        append(log, "b", epoch=1, first=1)
    end(log, commit=False, epoch=1)
    with pytest.raises(StaleEpoch):
        append(log, "late", first=1)
    with pytest.raises(StaleEpoch):
        end(log, commit=True)
    append(log, "b", epoch=1)
    end(log, commit=True, epoch=1)
    assert [b"b"] == read_committed(log)


def test_the_last_stable_offset_is_the_oldest_open_transaction(open_log: Opener) -> None:
    """Of several at a time."""
    log = open_log()
    append(log, "plain", producer=1, transactional=False)
    append(log, "a", producer=7)
    append(log, "b", producer=8)
    assert 1 == log.last_stable_offset
    assert [b"plain"] == read_committed(log)
    end(log, commit=False, producer=7)
    assert 2 == log.last_stable_offset
    end(log, commit=True, producer=8)
    assert log.end_offset == log.last_stable_offset == 5
    assert [b"plain", b"b"] == read_committed(log)


def test_aborted_transactions_are_listed_where_they_are(open_log: Opener) -> None:
    """A reader behind the marker does not need them."""
    log = open_log()
    append(log, "a")
    end(log, commit=False)
    append(log, "b", first=1)
    end(log, commit=True)
    assert [AbortedSpan(7, 0, 1)] == log.list_aborted(0, 4)
    assert [] == log.list_aborted(2, 4)


def test_a_marker_without_a_transaction_aborts_nothing(open_log: Opener) -> None:
    """As a coordinator writes that was interrupted between the marker and its note of it."""
    log = open_log()
    append(log, "a")
    end(log, commit=True)
    end(log, commit=False)
    assert [] == log.list_aborted(0, 9)
    assert [b"a"] == read_committed(log)


def test_producers_are_found_again_after_a_restart(open_log: Opener, tmp_path: Path) -> None:
    """From the log alone; a log without any is not read."""
    log = open_log()
    assert not (tmp_path / "t-0" / PRODUCERS_NAME).exists()
    append(log, "a")
    end(log, commit=False)
    append(log, "b", "c", first=1)
    log.close()
    assert (tmp_path / "t-0" / PRODUCERS_NAME).exists()

    again = open_log()
    assert 2 == again.last_stable_offset
    assert [AbortedSpan(7, 0, 1)] == again.list_aborted(0, 9)
    assert 2 == append(again, "b", "c", first=1).base_offset
    with pytest.raises(SequenceGap):
        append(again, "gap", first=9)
    end(again, commit=True)
    assert [b"b", b"c"] == read_committed(again)


def test_compaction_keeps_neither_aborted_records_nor_what_is_undecided(open_log: Opener) -> None:
    """An aborted value must not replace the committed one of its key, and an open one may still be aborted."""
    log = open_log(cleanup_policy=CleanupPolicy.COMPACT, segment_bytes=200, min_cleanable_ratio=0.0)
    append(log, "k committed")
    end(log, commit=True)
    append(log, "k aborted", first=1)
    end(log, commit=False)
    append(log, "x plain", producer=1, transactional=False)
    append(log, "k open", first=2)
    append(log, "x newer", producer=1, first=1, transactional=False)
    append(log, "y last", producer=1, first=2, transactional=False)
    assert log.compact()
    assert [b"k committed"] == committed_everywhere(log)[:1]
    end(log, commit=True)
    append(log, "z", producer=1, first=3, transactional=False)
    assert log.compact()
    assert [b"k open", b"x newer", b"y last", b"z"] == committed_everywhere(log)


def committed_everywhere(log: PartitionLog) -> list[bytes | None]:
    """Return what a reader of committed records sees of all segments."""
    found: list[bytes | None] = []
    at, stable = log.start_offset, log.last_stable_offset
    while at < stable:
        with log.read(at, 1 << 20, whole_first=True, before=stable) as piece:
            data = piece.read()
        aborted = tuple(
            AbortedTransaction(producer_id=one.producer_id, first_offset=one.first_offset)
            for one in log.list_aborted(at, stable)
        )
        batch = decode_record_set(data, partition=PARTITION, start=at, read_committed=True, aborted=aborted)
        found += [record.value for record in batch.records()]
        if batch.next_offset <= at:
            break
        at = batch.next_offset
    return found


def test_retention_forgets_what_it_has_removed(open_log: Opener) -> None:
    """A producer without records is unknown (59), which it survives; its aborted transactions are listed no more."""
    log = open_log(segment_bytes=150, retention_bytes=1)
    append(log, "a")
    end(log, commit=False)
    append(log, "b", producer=8, transactional=False)
    append(log, "c", producer=8, first=1, transactional=False)
    assert log.apply_retention() > 0
    assert [] == log.list_aborted(0, 99)
    with pytest.raises(ForgottenProducer):
        append(log, "d", first=1)
