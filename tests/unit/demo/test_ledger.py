# SPDX-License-Identifier: Apache-2.0
"""The producer's ledger: the one thing that the audit believes."""

from __future__ import annotations

from pathlib import Path

import pytest

from consumerd.demo.ledger import AcknowledgedTwice, Ledger, RecordPlace, SentLedger, digest
from consumerd.model import BrokerId, PartitionKey, TopicPartition


def place(topic: str, number: int, offset: int) -> RecordPlace:
    return RecordPlace(topic, PartitionKey(number), offset)


def sent_to(topic: str, broker: int, number: int) -> RecordPlace:
    """A record of Kafka 0.7, whose offset nobody has told."""
    return RecordPlace(topic, PartitionKey(number, BrokerId(broker)), None)


def test_it_knows_each_record_and_where_each_partition_ends() -> None:
    """Progress is measured by the ends, the audit by the digests."""
    ledger = Ledger()
    ledger.note(place("orders", 1, 7), b"k", b"v")
    ledger.note(place("orders", 1, 3), b"k", None)
    ledger.note(place("clicks", 0, 0), None, b"v")

    assert len(ledger) == 3
    assert ledger.ends == {TopicPartition("orders", PartitionKey(1)): 8, TopicPartition("clicks", PartitionKey(0)): 1}
    assert ledger.digests[place("orders", 1, 3)] == digest(b"k", None)


def test_two_records_at_one_offset_are_refused() -> None:
    """The second would hide the first, and with it a loss."""
    ledger = Ledger()
    ledger.note(place("orders", 1, 7), b"k", b"v")

    with pytest.raises(AcknowledgedTwice, match="orders/1@7"):
        ledger.note(place("orders", 1, 7), b"k", b"v")


def test_digests_tell_null_from_empty_and_the_key_from_the_value() -> None:
    """Each of these is another record."""
    alike = [
        (None, None), (b"", None), (None, b""), (b"", b""), (b"ab", b"c"), (b"a", b"bc"), (b"-", None), (None, b"-"),
    ]  # fmt: skip

    assert len({digest(key, value) for key, value in alike}) == len(alike)


def test_it_is_written_for_others_to_read(tmp_path: Path) -> None:
    """Whoever doubts the audit can make their own."""
    ledger = Ledger()
    ledger.note(place("orders", 10, 0), b"k", b"v")
    ledger.note(place("orders", 2, 0), b"k", b"w")

    ledger.write(tmp_path / "ledger.tsv")

    assert (tmp_path / "ledger.tsv").read_text().splitlines() == [
        "topic\tpartition\toffset\tblake2b",
        f"orders\t2\t0\t{digest(b'k', b'w').hex()}",
        f"orders\t10\t0\t{digest(b'k', b'v').hex()}",
    ]


def test_without_offsets_a_record_is_known_by_its_value(tmp_path: Path) -> None:
    """Brokers of Kafka 0.7 tell no offset, and do not store keys."""
    ledger = SentLedger()
    ledger.note(sent_to("orders", 1, 0), b"k", b"w")
    ledger.note(sent_to("orders", 0, 3), b"k", b"v")

    assert len(ledger) == 2
    assert ledger.places == {
        digest(None, b"w"): sent_to("orders", 1, 0),
        digest(None, b"v"): sent_to("orders", 0, 3),
    }
    ledger.write(tmp_path / "ledger.tsv")
    assert (tmp_path / "ledger.tsv").read_text().splitlines() == [
        "topic\tpartition\tblake2b",
        f"orders\t0-3\t{digest(None, b'v').hex()}",
        f"orders\t1-0\t{digest(None, b'w').hex()}",
    ]


def test_without_offsets_two_records_with_one_value_are_refused() -> None:
    """The audit could not tell a double from the other one."""
    ledger = SentLedger()
    ledger.note(sent_to("orders", 0, 3), b"k", b"v")

    with pytest.raises(AcknowledgedTwice, match="orders/0-1: two records with the same value"):
        ledger.note(sent_to("orders", 0, 1), b"other", b"v")
