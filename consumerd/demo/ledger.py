# SPDX-License-Identifier: Apache-2.0
"""The demo producer's ledger: the records that were produced, and their partitions.

It is written only from the outcomes that the producer reports, and is all that the audit trusts. Brokers of Kafka 0.8
and later acknowledge a record with its offset (:class:`Ledger`). Those of 0.6 and 0.7 tell no offset, so there the
content of a record tells it from the others (:class:`SentLedger`). Pure, except for ``write``.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from consumerd.errors import ConsumerdError
from consumerd.model import PartitionKey, TopicPartition

_DIGEST_BYTES: Final = 16


class RecordPlace(NamedTuple):
    """Topic, partition and offset of a record.

    The offset is None if the broker has not told it.
    """

    topic: str
    partition: PartitionKey
    offset: int | None

    def __str__(self) -> str:
        partition = f"{self.topic}/{self.partition}"
        return partition if self.offset is None else f"{partition}@{self.offset}"


class AcknowledgedTwice(ConsumerdError):
    """Raised if two records were acknowledged that cannot be told apart.

    They have the same topic, partition and offset, or without offsets the same content. Either the producer or the
    broker is wrong then.
    """


def digest(key: bytes | None, value: bytes | None) -> bytes:
    """Return a 16-byte digest of key and value; null differs from the empty string."""
    hashed = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for part in (key, value):
        hashed.update(b"-" if part is None else b"%d:%b" % (len(part), part))
    return hashed.digest()


class ProducedRecords(Protocol):
    """Interface of the ledgers."""

    def __len__(self) -> int:
        """Return the number of acknowledged records."""

    def note(self, place: RecordPlace, key: bytes | None, value: bytes | None) -> None:
        """Add an acknowledged record; raise AcknowledgedTwice if it cannot be told from another one."""

    def write(self, path: Path) -> None:
        """Write the ledger as tab-separated lines with a header, in order."""


class Ledger:
    """All acknowledged records of the demo, by topic, partition and offset.

    Attributes:
        digests: digest of each record.
        ends: next offset of each partition with records.
    """

    def __init__(self) -> None:
        self.digests: dict[RecordPlace, bytes] = {}
        self.ends: dict[TopicPartition, int] = {}

    def __len__(self) -> int:
        return len(self.digests)

    def note(self, place: RecordPlace, key: bytes | None, value: bytes | None) -> None:
        """Add an acknowledged record; raise AcknowledgedTwice if its place is taken."""
        assert place.offset is not None, "the producers ask for acknowledgements"
        if place in self.digests:
            raise AcknowledgedTwice(f"two records were acknowledged at {place}")
        self.digests[place] = digest(key, value)
        partition = TopicPartition(place.topic, place.partition)
        self.ends[partition] = max(self.ends.get(partition, 0), place.offset + 1)

    def write(self, path: Path) -> None:
        """Write the ledger as tab-separated lines with a header, sorted by topic, partition and offset."""
        with path.open("w", encoding="ascii") as lines:
            lines.write("topic\tpartition\toffset\tblake2b\n")
            for place, found in sorted(self.digests.items()):
                lines.write(f"{place.topic}\t{place.partition}\t{place.offset}\t{found.hex()}\n")


class SentLedger:
    """All records that brokers of Kafka 0.6 or 0.7 have received, by their content.

    Attributes:
        places: topic and partition of each record, without an offset, by the digest of its value. Messages have no key.
    """

    def __init__(self) -> None:
        self.places: dict[bytes, RecordPlace] = {}

    def __len__(self) -> int:
        return len(self.places)

    def note(self, place: RecordPlace, key: bytes | None, value: bytes | None) -> None:  # noqa: ARG002 - not stored
        """Add a record that a broker has received.

        Raises AcknowledgedTwice for a second one with the same value.
        """
        found = digest(None, value)
        if found in self.places:
            raise AcknowledgedTwice(f"{place}: two records with the same value were sent")
        self.places[found] = place

    def write(self, path: Path) -> None:
        """Write the ledger as tab-separated lines with a header, sorted by topic and partition."""
        with path.open("w", encoding="ascii") as lines:
            lines.write("topic\tpartition\tblake2b\n")
            for place, found in sorted((place, found) for found, place in self.places.items()):
                lines.write(f"{place.topic}\t{place.partition}\t{found.hex()}\n")
