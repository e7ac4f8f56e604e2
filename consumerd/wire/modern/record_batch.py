# SPDX-License-Identifier: Apache-2.0
"""Record batches: magic 2, written by brokers since 0.11.

Owns the batch header, and the decision which batches consumers do not see: control batches, and under
``read_committed`` the batches of aborted transactions. Records inside of a batch belong to ``record_reader``. Sources:
Kafka's DefaultRecordBatch, KIP-98; Kafka's Fetcher for aborted transactions (``consumeAbortedTransactionsUpTo``).

::

    base offset int64, length int32, leader epoch int32, magic int8, CRC-32C uint32 (of all that follows),
    attributes int16, last offset delta int32, base timestamp int64, max timestamp int64,
    producer id int64, producer epoch int16, base sequence int32, count int32, records

Compaction removes records but keeps a batch's offset range. So records may have gaps, may end before the last offset
delta, and the batch may even be empty. Example: base offset 100, last offset delta 9, count 2, records with deltas 0
and 4: the records 100 and 104, gaps [101, 104) and [105, 110), and the next offset is 110.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from typing import Final

from consumerd.errors import CorruptMessageError
from consumerd.model import GapReason
from consumerd.wire import kernel
from consumerd.wire.checksum import span_crc32c
from consumerd.wire.columns import CREATE_TIME, LOG_APPEND_TIME, ColumnBuilder
from consumerd.wire.compression import decompress
from consumerd.wire.kernel import Buffer
from consumerd.wire.modern.entry import CODEC_MASK, LOG_APPEND_TIME_FLAG, MAGIC_AT
from consumerd.wire.modern.fetch import AbortedTransaction
from consumerd.wire.modern.record_reader import LEAST_RECORD_BYTES, RecordReader
from consumerd.wire.records import Limits
from consumerd.wire.varint import read_varint, read_varlong

HEADER: Final = struct.Struct(">qiiBIhiqqqhii")
HEADER_BYTES: Final = HEADER.size
CHECKED_FROM: Final = 21
"""Position in a batch of the first byte that its checksum covers: the attributes."""
ATTRIBUTES_AT: Final = CHECKED_FROM + 1
"""Position of the low byte of a batch's attributes, which has the codec."""
CHECKSUM_AT: Final = MAGIC_AT + 1
LAST_OFFSET_DELTA_AT: Final = 23
LEAST_LENGTH: Final = HEADER_BYTES - 12
"""Length field of a batch without records."""

TRANSACTIONAL_FLAG: Final = 0x10
CONTROL_FLAG: Final = 0x20

CONTROL_KEY: Final = struct.Struct(">hh")
"""Key of a control record: its version and its type."""
ABORT_MARKER: Final = 0
COMMIT_MARKER: Final = 1


class AbortedTransactions:
    """Tracks which producers are inside of an aborted transaction, as batches are read in order.

    Example: the Fetch response lists producer 7, first offset 100:

    ===========  ========  =======================  ===========================================
    batch        producer  transactional            outcome
    ===========  ========  =======================  ===========================================
    100-104      7         yes                      gap: aborted
    105-109      8         yes                      records: producer 8 is not in the list
    110          7         abort marker             gap: control batch; ends the transaction
    111-113      7         yes                      records: another transaction
    ===========  ========  =======================  ===========================================

    Args:
        aborted: the list of aborted transactions in the Fetch response.
    """

    def __init__(self, aborted: Sequence[AbortedTransaction]) -> None:
        self._to_come = sorted(aborted, key=lambda one: one.first_offset, reverse=True)
        self._producers: set[int] = set()

    def __bool__(self) -> bool:
        """Return True if a transaction is open, or may begin in a later batch."""
        return bool(self._to_come or self._producers)

    def covers(self, producer_id: int, last_offset: int) -> bool:
        """Return True if a transactional batch belongs to an aborted transaction.

        Batches must be asked about in ascending order.

        Args:
            producer_id: Producer of the batch.
            last_offset: Last offset of the batch.
        """
        while self._to_come and self._to_come[-1].first_offset <= last_offset:
            self._producers.add(self._to_come.pop().producer_id)
        return producer_id in self._producers

    def end(self, producer_id: int) -> None:
        """Note the abort marker of a producer, which ends the producer's aborted transaction."""
        self._producers.discard(producer_id)


def read_batch(
    data: Buffer, at: int, end: int, columns: ColumnBuilder, limits: Limits, aborted: AbortedTransactions | None
) -> None:
    """Decode the record batch that fills ``data[at:end]`` into ``columns``.

    A control batch, and a batch of an aborted transaction, becomes a gap.

    Args:
        limits: limits of decompression.
        aborted: aborted transactions of the Fetch response, under ``read_committed``; None otherwise.

    Raises CorruptMessageError (without partition and offset).
    """
    (
        base_offset, _, _, _, checksum, attributes, last_delta, base_timestamp, max_timestamp, producer_id, _, _, count
    ) = HEADER.unpack_from(data, at)  # fmt: skip
    computed = span_crc32c(data, at + CHECKED_FROM, end)
    if computed != checksum:
        raise CorruptMessageError(f"CRC-32C is {computed:#010x}, the header says {checksum:#010x}")
    if last_delta < 0 or count < 0:
        raise CorruptMessageError(f"{count} records up to offset delta {last_delta}")
    if base_offset < columns.end:
        raise CorruptMessageError(f"offset {base_offset} where at least {columns.end} is due")
    last_offset = base_offset + last_delta
    of_aborted = aborted is not None and aborted.covers(producer_id, last_offset)
    if attributes & CONTROL_FLAG:
        if of_aborted and aborted is not None and count and is_abort_marker(data, at + HEADER_BYTES, end):
            aborted.end(producer_id)
        columns.skip_unit(base_offset, last_offset + 1, GapReason.CONTROL)
        return
    if of_aborted and attributes & TRANSACTIONAL_FLAG:
        columns.skip_unit(base_offset, last_offset + 1, GapReason.ABORTED)
        return
    start = at + HEADER_BYTES
    if codec := attributes & CODEC_MASK:
        budget = limits.decompressed_bytes - columns.decompressed_bytes
        records: Buffer = b""
        if count:
            packed = memoryview(data)[start:end]
            records = decompress(codec, packed, limit=budget, magic=2, room=columns.free_room(at))
        shift = columns.add_block(at, records)
        start, end = 0, len(records)
    else:
        records = data
        shift = columns.plain_shift(start)
    if count * LEAST_RECORD_BYTES > end - start:
        raise CorruptMessageError(f"{count} records in {end - start} bytes")
    appended_at = bool(attributes & LOG_APPEND_TIME_FLAG)
    # The kernel takes over a decompressed batch if its records are plain; otherwise the reader below has to.
    if (native := kernel.records) is not None and native.read_block(
        records, start, end, shift, columns, base_offset, last_delta, count, base_timestamp, max_timestamp, appended_at
    ):
        return
    rows = len(columns)
    reader = RecordReader(records, end, shift, columns, base_timestamp)
    stop = reader.read(start, count)
    if stop != end:
        raise CorruptMessageError(f"{end - stop} bytes left behind {count} records")
    if appended_at:
        columns.timestamps[rows:] = array("q", [max_timestamp]) * count
    columns.timestamp_types += (LOG_APPEND_TIME if appended_at else CREATE_TIME) * count
    segments = [(base_offset + first, base_offset + stop) for first, stop in reader.segments]
    columns.commit(segments, last_offset + 1, first_offset=base_offset)


def is_abort_marker(data: Buffer, at: int, end: int) -> bool:
    """Return whether the only record of a control batch is an abort marker.

    The record's key is a version int16 and a type int16 (Kafka's EndTransactionMarker).
    """
    _, at = read_varint(data, at, end)  # length
    _, at = read_varlong(data, at + 1, end)  # attributes, timestamp delta
    _, at = read_varint(data, at, end)  # offset delta
    length, at = read_varint(data, at, end)
    if not CONTROL_KEY.size <= length <= end - at:
        raise CorruptMessageError(f"a control record with a key of {length} bytes")
    return bool(CONTROL_KEY.unpack_from(data, at)[1] == ABORT_MARKER)
