# SPDX-License-Identifier: Apache-2.0
"""Record batches: magic 2, written by brokers of 0.11 and later.

Owns the batch header, and which batches a consumer does not see: control batches always, those of aborted
transactions under ``read_committed``; its records belong to ``record_reader``. Layout and rules: Kafka's DefaultRecordBatch, KIP-98; how a
consumer applies the list of aborted transactions: Kafka's Fetcher (``consumeAbortedTransactionsUpTo``).

::

    base offset int64, length int32, leader epoch int32, magic int8, CRC-32C uint32 (of all that follows),
    attributes int16, last offset delta int32, base timestamp int64, max timestamp int64,
    producer id int64, producer epoch int16, base sequence int32, count int32, records

A compacted batch keeps its offsets, so that its records may have holes, may end before the last offset delta, or may
be gone altogether.
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
from consumerd.wire.modern.entry import CODEC_MASK, LOG_APPEND_TIME_FLAG
from consumerd.wire.modern.fetch import AbortedTransaction
from consumerd.wire.modern.record_reader import LEAST_RECORD_BYTES, RecordReader
from consumerd.wire.records import Limits
from consumerd.wire.varint import read_varint, read_varlong

HEADER: Final = struct.Struct(">qiiBIhiqqqhii")
HEADER_BYTES: Final = HEADER.size
CHECKED_FROM: Final = 21
"""The first byte of a batch that its checksum covers: the attributes."""
LAST_OFFSET_DELTA: Final = struct.Struct(">i")
LAST_OFFSET_DELTA_AT: Final = 23
LEAST_LENGTH: Final = HEADER_BYTES - 12
"""What the length field says of a batch without records."""

TRANSACTIONAL_FLAG: Final = 0x10
CONTROL_FLAG: Final = 0x20

_CONTROL_KEY: Final = struct.Struct(">hh")
_ABORT_MARKER: Final = 0


class AbortedTransactions:
    """Which producers are in the middle of an aborted transaction, while batches go by in order.

    ``aborted`` is the list of the Fetch response.
    """

    def __init__(self, aborted: Sequence[AbortedTransaction]) -> None:
        self._to_come = sorted(aborted, key=lambda one: one.first_offset, reverse=True)
        self._producers: set[int] = set()

    def __bool__(self) -> bool:
        """Whether there are any, or may be further on."""
        return bool(self._to_come or self._producers)

    def covers(self, producer_id: int, last_offset: int) -> bool:
        """Return whether a transactional batch that ends at ``last_offset`` belongs to an aborted transaction."""
        while self._to_come and self._to_come[-1].first_offset <= last_offset:
            self._producers.add(self._to_come.pop().producer_id)
        return producer_id in self._producers

    def end(self, producer_id: int) -> None:
        """Note the abort marker of a producer: what it writes from here on is another transaction."""
        self._producers.discard(producer_id)


def read_batch(
    data: Buffer, at: int, end: int, columns: ColumnBuilder, limits: Limits, aborted: AbortedTransactions | None
) -> None:
    """Read the batch that fills ``[at, end)`` and commit it; ``aborted`` is None but under ``read_committed``.

    Raises CorruptMessageError (without coordinates).
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
        if of_aborted and aborted is not None and count and _is_abort_marker(data, at + HEADER_BYTES, end):
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


def _is_abort_marker(data: Buffer, at: int, end: int) -> bool:
    """Read the key of a control batch's only record: version, type (EndTransactionMarker)."""
    _, at = read_varint(data, at, end)
    _, at = read_varlong(data, at + 1, end)
    _, at = read_varint(data, at, end)
    length, at = read_varint(data, at, end)
    if not _CONTROL_KEY.size <= length <= end - at:
        raise CorruptMessageError(f"a control record with a key of {length} bytes")
    return bool(_CONTROL_KEY.unpack_from(data, at)[1] == _ABORT_MARKER)
