# SPDX-License-Identifier: Apache-2.0
"""Builder of the columns of a :class:`RecordBatch` whose offsets count bytes.

Those are the offsets of Kafka 0.6 and 0.7. The buffer is that of ``wire.columns``. Rows are added message by message: a
plain message is one record, a compressed one has any number of records, which share its offset and the offset after it.

Example: position 0 was asked for. A message of 40 bytes is followed by a compressed one of 50 bytes with two records::

    offsets, indexes            0, 40, 40       0, 0, 1
    next_offsets                40, 90, 90
    next_offset                 90

The native kernel fills the columns, too (``wire.kernel.StoredColumns``).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Final

from consumerd.model import Gap, GapReason, TopicPartition
from consumerd.wire import kernel
from consumerd.wire.columns import SpanBuffer, extend_steps, extend_values
from consumerd.wire.kernel import Buffer
from consumerd.wire.legacy.stored_message import HEAD_BYTES
from consumerd.wire.record_fields import NO_TIMESTAMP, NULL_SPAN
from consumerd.wire.records import RecordBatch

_NO_TIMESTAMPS: Final = array("q", [NO_TIMESTAMP])
_NULLS: Final = array("q", [NULL_SPAN])
_ZEROS: Final = array("q", [0])
_COLUMNS: Final = 7
"""Columns of int64 of each batch; ``indexes`` is the eighth."""


class ByteOffsetColumns(SpanBuffer):
    """Collects the records of one fetched message set, whose first byte has offset ``start``.

    Attributes:
        value_starts: with ``value_ends``, positions of the payloads in the buffer. A decoder appends to both, then
            calls :meth:`commit` or :meth:`roll_back`.
        offsets: with ``next_offsets``, the offsets of the committed records, and those after their messages.
        indexes: index of each committed record in its message. Rows missing at the end have index 0.
        shares_offsets: True if a message has several records. Otherwise all indexes are 0.
        start: offset of the first fetched byte.

    Args:
        data: the fetched bytes.
        start: offset of the first of them.
        make_room: as in :class:`~consumerd.wire.columns.SpanBuffer`.
    """

    def __init__(
        self,
        data: Buffer,
        partition: TopicPartition,
        start: int,
        make_room: Callable[[], memoryview] | None = None,
    ) -> None:
        super().__init__(data, make_room)
        self.value_starts = array("q")
        self.value_ends = array("q")
        self._partition = partition
        self.start: Final = start
        self.offsets = array("q")
        self.indexes = array("q")
        self.next_offsets = array("q")
        self.shares_offsets = False
        self._gaps: list[Gap] = []

    def add_payloads(self, at: int, stops: list[int], shift: int) -> list[int]:
        """Append the payloads of uncompressed messages of magic 1; return where the messages begin.

        Args:
            at: position of the first message.
            stops: position after each message.
            shift: position in the buffer minus position among ``at`` and ``stops``.
        """
        begins = [at, *stops[:-1]]
        extend_values(self.value_starts, begins, HEAD_BYTES + shift)
        extend_values(self.value_ends, stops, shift)
        return begins

    def commit_plain(self, at: int, stops: list[int]) -> None:
        """Add uncompressed messages of magic 1, with their offsets.

        Args:
            at: position of the first message in the fetched data.
            stops: position after each message.
        """
        begins = self.add_payloads(at, stops, self.plain_shift(at))
        extend_values(self.offsets, begins, self.start)
        extend_values(self.next_offsets, stops, self.start)

    def commit(self, at: int, stop: int) -> None:
        """Set the offsets of the records of one message.

        They are those that were appended since the last call. A compressed message without records becomes a gap.

        Args:
            at: position of the message in the fetched data.
            stop: position after it.
        """
        offset, following = self.start + at, self.start + stop
        count = len(self.value_starts) - len(self.offsets)
        if count > 1:
            self._pad_indexes()
            self.shares_offsets = True
            extend_steps(self.indexes, 0, 1, count)
        if count:
            self.offsets.extend(array("q", [offset]) * count)
            self.next_offsets.extend(array("q", [following]) * count)
        else:
            self._gaps.append(Gap(offset, following, GapReason.COMPACTION))

    def _pad_indexes(self) -> None:
        """Append the indexes of committed records that are not in the column yet."""
        self.indexes.extend(_ZEROS * (len(self.offsets) - len(self.indexes)))

    def roll_back(self) -> None:
        """Remove the records that were appended since the last call of :meth:`commit`."""
        count = len(self.offsets)
        del self.value_starts[count:], self.value_ends[count:]

    def finish(self, stop: int) -> RecordBatch:
        """Return the committed records as a batch.

        Args:
            stop: position in the data after the last message.
        """
        count = len(self.offsets)
        buffer, held_bytes = self.close(stop) if count else (b"", 0)
        if self.shares_offsets:
            self._pad_indexes()
        else:
            self.indexes = array("q")
        if (native := kernel.legacy) is not None:
            native.trim_stored(self)
        return RecordBatch(
            partition=self._partition,
            start=self.start,
            next_offset=self.start + stop,
            buffer=buffer,
            offsets=self.offsets,
            timestamps=_NO_TIMESTAMPS * count,
            key_starts=_NULLS * count,
            key_ends=_NULLS * count,
            value_starts=self.value_starts,
            value_ends=self.value_ends,
            indexes=self.indexes,
            next_offsets=self.next_offsets,
            gaps=tuple(self._gaps),
            size_bytes=held_bytes + 8 * (_COLUMNS * count + len(self.indexes)),
        )
