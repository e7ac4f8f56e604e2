# SPDX-License-Identifier: Apache-2.0
"""Intake of fetch responses: queues record sets for decoding, and advances the fetch position.

A unit is a message, a wrapper message or a batch. Unit headers predict the end of a record set, so the cursor advances,
and the next request is sent, before the records are decoded. The decoder's result overrides the prediction.

| response to a request at offset 100 | record set | cursor |
|---|---|---|
| whole units, offsets 100 to 149 | is queued | advances to 150 |
| whole units with offsets above the high watermark | is queued | stops until the decoder has checked them |
| a first unit that is cut off | is dropped | requests more bytes at 100 |
| a first unit that is cut off and above the size limit | becomes a failure the second time | stops |
| a first unit of an impossible size | is queued | stops until the decoder has checked it |
"""

from __future__ import annotations

from typing import Final

from consumerd.client.fetch_protocol import PartitionAnswer, RecordSet
from consumerd.errors import ConsumerdError, CorruptMessageError, RecordTooLarge
from consumerd.fetch.backlog import Backlog, Chunk, keep_records
from consumerd.fetch.buffer import Hold, Kind
from consumerd.fetch.cursor import Cursor
from consumerd.fetch.ports import FeedTools
from consumerd.wire import kernel
from consumerd.wire.pieces import Piece


class Intake:
    """Queues one partition's fetched record sets for decoding.

    It also keeps the high watermark and the last stable offset of the newest response.
    """

    def __init__(self, cursor: Cursor, backlog: Backlog, tools: FeedTools) -> None:
        self.high_watermark: int | None = None
        self.last_stable_offset: int | None = None
        self.noted_at: float | None = None
        """Time of the last response that named the partition."""
        self._cursor: Final = cursor
        self._backlog: Final = backlog
        self._tools: Final = tools
        self._oversized: tuple[int, int | None] | None = None

    def note(self, answer: PartitionAnswer) -> None:
        """Keep the high watermark and last stable offset that a response reports."""
        self.noted_at = self._tools.now()
        self.high_watermark = answer.high_watermark
        self.last_stable_offset = answer.last_stable_offset

    def take(self, records: RecordSet, asked_bytes: int, hold: Hold) -> bool:
        """Queue the record set of the last response; return True if it was queued.

        False if it was dropped because its first message is cut off or too large. :meth:`note` must have been called
        with the response before.

        Args:
            records: The record set.
            asked_bytes: Limit that the request set for the partition's records, in bytes.
            hold: Memory reserved for the whole response; the bytes of the record set are split off from it.
        """
        records, held_bytes = keep_records(records, self._tools.allocate)
        cursor, limit = self._cursor, self._tools.settings.max_message_bytes
        unit_bytes = records.first_unit_bytes()
        # Brokers from 0.10.1 on return a first message whole, beyond any limit of the request: check our own limit.
        if len(records.data) > limit and unit_bytes is not None and unit_bytes > limit:
            self.fail_too_large(unit_bytes, records, hold)
            return False
        pieces = self._cut(records)
        if pieces:
            self._append(records, pieces, held_bytes, hold)
            claimed = pieces[-1].next_offset
            if self.high_watermark is not None and claimed > self.high_watermark:
                cursor.fail()
            else:
                cursor.advance(max(cursor.position, claimed))
            return True
        if unit_bytes == 0:
            pieces = [Piece(0, len(records.data), cursor.position, compressed=False)]
            self._append(records, pieces, held_bytes, hold)
            cursor.fail()
            return True
        if (too_large := cursor.grow(asked_bytes, unit_bytes)) is not None:
            self.fail_too_large(too_large.size, records, hold)
        return False

    def _append(self, records: RecordSet, pieces: list[Piece], held_bytes: int, hold: Hold) -> None:
        chunk = Chunk(records, pieces, high_watermark=self.high_watermark, held_bytes=held_bytes, hold=hold)
        self._backlog.append(chunk)

    def _cut(self, records: RecordSet) -> list[Piece]:
        settings, expansion = self._tools.settings, self._cursor.expansion
        if kernel.records is None:
            return records.cut(slice_bytes=settings.slice_bytes, expansion=expansion)
        slice_bytes = settings.native_slice_bytes
        pieces = records.cut(slice_bytes=slice_bytes, expansion=expansion)
        # Batches of compressed pieces need memory of their own, so pieces are limited to the partition's share of it.
        share = max(settings.slice_bytes, self._tools.marks().batch)
        if share < slice_bytes and any(piece.compressed for piece in pieces):
            return records.cut(slice_bytes=share, expansion=expansion)
        return pieces

    def fail_too_large(self, size: int | None, records: RecordSet | None = None, hold: Hold | None = None) -> None:
        """Fail, because the message or batch at the fetch position exceeds the size limit.

        The size is known from its header only, and its checksum could not be verified. So it is fetched once more
        before the failure is reported. An impossible header is reported as corruption instead.

        Args:
            size: Size of the message or batch in bytes; None if its header was not fetched.
            records: The record set that begins with it; None if nothing was fetched.
            hold: Reservation from which its bytes are split off; the failure contains them.
        """
        cursor, limit = self._cursor, self._tools.settings.max_message_bytes
        partition, position = cursor.partition, cursor.position
        if records is None:
            self._backlog.fail(RecordTooLarge(partition, position, limit, size))
            return
        if self._oversized != (position, size):
            self._oversized = position, size
            return
        raw = bytes(records.data[:size])
        next_offset = records.read_claim(position)
        error: ConsumerdError = RecordTooLarge(partition, position, limit, size, next_offset=next_offset, raw=raw)
        if next_offset is None and records.has_head:
            message = (
                f"{partition}: what was fetched at offset {position} begins with no head of a message, size {size}"
            )
            error = CorruptMessageError(message, partition=partition, offset=position, raw=raw)
        kept = None
        if hold is not None:
            kept = hold.split(len(raw))
            kept.become(Kind.FETCHED, len(raw))
        self._backlog.fail(error, kept)
