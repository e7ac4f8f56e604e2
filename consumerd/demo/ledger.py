# SPDX-License-Identifier: Apache-2.0
"""The producer's ledger: the acknowledged records and their places.

It is written only from brokers' acknowledgements to the producer, and is all that the audit trusts. It has each
record's place, and a digest of key and value. Pure, except for :meth:`Ledger.write`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from consumerd.errors import ConsumerdError

_DIGEST_BYTES: Final = 16


class RecordPlace(NamedTuple):
    """The place of a record in the cluster's logs."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}@{self.offset}"


class AcknowledgedTwice(ConsumerdError):
    """Two records were acknowledged at one offset: producer or broker is wrong."""


def digest(key: bytes | None, value: bytes | None) -> bytes:
    """Return a 16-byte digest of key and value; null differs from the empty string."""
    hashed = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for part in (key, value):
        hashed.update(b"-" if part is None else b"%d:%b" % (len(part), part))
    return hashed.digest()


class Ledger:
    """All acknowledged records by place."""

    def __init__(self) -> None:
        self._digests: dict[RecordPlace, bytes] = {}
        self._ends: dict[tuple[str, int], int] = {}

    def __len__(self) -> int:
        return len(self._digests)

    @property
    def digests(self) -> Mapping[RecordPlace, bytes]:
        """The digest of each record."""
        return MappingProxyType(self._digests)

    @property
    def ends(self) -> Mapping[tuple[str, int], int]:
        """The next offset of each partition with records, by (topic, partition)."""
        return MappingProxyType(self._ends)

    def note(self, place: RecordPlace, key: bytes | None, value: bytes | None) -> None:
        """Add an acknowledged record. Raises AcknowledgedTwice."""
        if place in self._digests:
            raise AcknowledgedTwice(f"two records were acknowledged at {place}")
        self._digests[place] = digest(key, value)
        partition = place.topic, place.partition
        self._ends[partition] = max(self._ends.get(partition, 0), place.offset + 1)

    def write(self, path: Path) -> None:
        """Write the ledger as tab-separated lines with a header, sorted by place."""
        with path.open("w", encoding="ascii") as lines:
            lines.write("topic\tpartition\toffset\tblake2b\n")
            for place, found in sorted(self._digests.items()):
                lines.write(f"{place.topic}\t{place.partition}\t{place.offset}\t{found.hex()}\n")
