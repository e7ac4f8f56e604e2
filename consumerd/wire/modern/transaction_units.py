# SPDX-License-Identifier: Apache-2.0
"""Producers and transaction markers in a record set fetched with ``read_uncommitted``.

Pure. Decoding of records belongs to ``record_set``. Sources: KIP-98, Kafka's DefaultRecordBatch and
EndTransactionMarker.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from consumerd.errors import CorruptMessageError
from consumerd.wire.kernel import Buffer
from consumerd.wire.modern.entry import MAGIC_AT
from consumerd.wire.modern.extent import BATCH_MAGIC, find_stop, following_offset
from consumerd.wire.modern.record_batch import (
    CONTROL_FLAG,
    HEADER,
    HEADER_BYTES,
    TRANSACTIONAL_FLAG,
    is_abort_marker,
)


class TransactionUnit(NamedTuple):
    """A batch or message of a record set, by its header.

    Attributes:
        next_offset: Offset behind it.
        producer_id: Producer whose transaction it belongs to; None for records outside of transactions.
        commits: For the marker that ends the producer's transaction: True if it commits, False if it aborts. None for
            records.
    """

    next_offset: int
    producer_id: int | None = None
    commits: bool | None = None


def walk_units(data: Buffer) -> Iterator[TransactionUnit]:
    """Yield the whole batches and messages of a record set.

    One that is cut off at the end is left out. Checksums are not looked at. Raises CorruptMessageError for a
    marker that cannot be read.
    """
    begin = 0
    while (end := find_stop(data, begin)) is not None and end <= len(data):
        following = following_offset(data, begin)
        if data[begin + MAGIC_AT] < BATCH_MAGIC:
            yield TransactionUnit(following)
        else:
            yield _read_batch(data, begin, end, following)
        begin = end


def _read_batch(data: Buffer, begin: int, end: int, following: int) -> TransactionUnit:
    header = HEADER.unpack_from(data, begin)
    attributes, producer_id, count = header[5], header[9], header[12]
    if not attributes & TRANSACTIONAL_FLAG:
        return TransactionUnit(following)
    if not attributes & CONTROL_FLAG:
        return TransactionUnit(following, producer_id)
    if count != 1:
        raise CorruptMessageError(f"a control batch of {count} records, expected 1")
    return TransactionUnit(following, producer_id, commits=not is_abort_marker(data, begin + HEADER_BYTES, end))
