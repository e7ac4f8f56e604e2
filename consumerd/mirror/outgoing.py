# SPDX-License-Identifier: Apache-2.0
"""Batches that a mirror writes to its target: records, and what it stores. Pure.

Example: ``batch_bytes`` is 512 KiB. A fetched batch of 700 KiB fills a first outgoing batch with the records up to 512
KiB; the others begin the next one, which is sent when it is full, or with the flush.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from consumerd.mirror.records import Key, encode_key
from consumerd.model import TopicPartition
from consumerd.wire.modern.building import NO_HEADERS, ProducerBatch
from consumerd.wire.modern.record_set import decode_record_set
from consumerd.wire.record_fields import NO_TIMESTAMP
from consumerd.wire.records import RecordBatch

_NOWHERE: Final = TopicPartition.modern("outgoing", 0)

_ROW_BYTES: Final = 12
"""Bytes of a record beside key, value and headers, about."""


class MirroredBatch:
    """Consecutive records that are written to the target as one batch.

    Attributes:
        offsets: source offset of each record.
        next_offsets: source offset behind each record; for Kafka 0.6 and 0.7 only, else empty.
        indexes: place of each record among those with its offset, from 0; as above.

    Args:
        codec: number of the compression codec; 0 for none.
        counts_bytes: True for Kafka 0.6 and 0.7.
    """

    def __init__(self, *, codec: int, counts_bytes: bool) -> None:
        self._counts_bytes = counts_bytes
        self._codec = codec
        self.content: Final = ProducerBatch(codec=codec)
        self.offsets = array("q")
        self.next_offsets = array("q")
        self.indexes = array("q")

    def __len__(self) -> int:
        return self.content.count

    @property
    def size(self) -> int:
        """Size in bytes before compression."""
        return self.content.size

    def add(self, batch: RecordBatch, begin: int, end: int, size: int, *, arrival_ms: int | None) -> int:
        """Add rows ``[begin, end)`` as far as they fit; return the row behind them.

        The records of one message of Kafka 0.6 or 0.7, which share their offset, stay together.

        Args:
            size: bytes that the whole of this batch may have; its first record, or message, may have more.
            arrival_ms: timestamp for records without one, in ms since the epoch; None leaves them without.
        """
        timestamps = None
        if arrival_ms is not None and NO_TIMESTAMP in batch.timestamps:
            timestamps = array("q", [arrival_ms if one == NO_TIMESTAMP else one for one in batch.timestamps])
        room = size - self.size
        if not self._counts_bytes:
            stop = self.content.add_columns(batch, begin, end, room=room, timestamps=timestamps)
        else:
            stop = _find_stop(batch, begin, end, room, at_least_one=not len(self))
            stop = self.content.add_columns(batch, begin, stop, timestamps=timestamps)
        self.offsets.extend(batch.offsets[begin:stop])
        if self._counts_bytes:
            self.next_offsets.extend(batch.list_following(slice(begin, stop)))
            self.indexes.extend(batch.indexes[begin:stop] or bytes(stop - begin))
        return stop

    def split(self) -> list[MirroredBatch]:
        """Return smaller batches with the same records, of which there are several.

        They are two; more only where timestamps are more than an int64 apart.
        """
        data = self.content.seal((0, 0, 0), transactional=False)
        batch = decode_record_set(data, partition=_NOWHERE, start=0)
        middle = self._find_middle()
        parts: list[MirroredBatch] = []
        for row, end in ((0, middle), (middle, len(self))):
            while row < end:
                parts.append(self._part(batch, row, end))
                row += len(parts[-1])
        return parts

    def _find_middle(self) -> int:
        """Return a middle, if possible between two messages of Kafka 0.7."""
        middle = len(self) // 2
        borders = (row for row in range(1, len(self)) if self.offsets[row] != self.offsets[row - 1])
        return min(borders, key=lambda row: abs(row - middle), default=middle)

    def _part(self, batch: RecordBatch, begin: int, end: int) -> MirroredBatch:
        part = MirroredBatch(codec=self._codec, counts_bytes=self._counts_bytes)
        rows = slice(begin, part.content.add_columns(batch, begin, end))
        part.offsets, part.next_offsets, part.indexes = self.offsets[rows], self.next_offsets[rows], self.indexes[rows]
        return part


def encode_changes(changes: Sequence[tuple[Key, bytes | None]], now_ms: int) -> ProducerBatch:
    """Return a batch for the positions topic.

    Args:
        changes: keys and values of its records; None removes a key.
        now_ms: timestamp of the records, in ms since the epoch.
    """
    batch = ProducerBatch()
    batch.add([(number, now_ms, encode_key(key), value, NO_HEADERS) for number, (key, value) in enumerate(changes)])
    return batch


def _find_stop(batch: RecordBatch, begin: int, end: int, room: int, *, at_least_one: bool) -> int:
    """Return the row behind the last message that fits into ``room`` bytes."""
    spans = (batch.key_starts, batch.key_ends, batch.value_starts, batch.value_ends)
    ends = list(accumulate(map(_size_of, *(column[begin:end] for column in spans))))
    stop = begin + bisect_right(ends, room)
    while begin < stop < end and batch.offsets[stop] == batch.offsets[stop - 1]:
        stop -= 1
    if stop == begin and at_least_one:
        stop += 1
        while stop < end and batch.offsets[stop] == batch.offsets[stop - 1]:
            stop += 1
    return stop


def _size_of(key: int, key_end: int, value: int, value_end: int) -> int:
    return key_end - key + value_end - value + _ROW_BYTES
