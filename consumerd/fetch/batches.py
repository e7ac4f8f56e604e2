# SPDX-License-Identifier: Apache-2.0
"""Decoded batches of one partition, in offset order, and the reactions to decoding errors.

A piece is a part of a record set: one or more units (messages, wrappers, batches).

| decoding a piece at offset 100 gives | then |
|---|---|
| records up to the offset that the batch headers predict | a batch; the next piece follows |
| records up to another offset, say 130 | a batch; later record sets are dropped, and 130 is fetched |
| nothing: the offsets of all records are below 100 | the next piece of the same record set is decoded |
| more bytes than its headers declare | it is decoded again with the largest limit, then fails as too large |
| a corrupt unit, or an offset above the high watermark | 100 is fetched again; fails if it is corrupt again |
| a codec without its library | fails; 100 is fetched again |

A corrupt record set is fetched once more because the network may have damaged it; in Kafka 0.7 with more bytes behind
it, if the end of the damage could not be told. No checksum covers the offsets of
magic 0 and 1, so they must lie between the position and the high watermark.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from consumerd.errors import ConfigError, CorruptMessageError, DecompressedTooLarge, RecordTooLarge
from consumerd.fetch.backlog import Backlog
from consumerd.fetch.cursor import Cursor
from consumerd.fetch.decoding import PieceDecoder, Work
from consumerd.fetch.ports import FeedTools
from consumerd.wire.records import RecordBatch


class BatchSource:
    """Decodes a partition's fetched record sets into batches, in offset order."""

    def __init__(
        self,
        cursor: Cursor,
        backlog: Backlog,
        decoder: PieceDecoder,
        tools: FeedTools,
        *,
        ready: Callable[[], None],
    ) -> None:
        self._cursor: Final = cursor
        self._backlog: Final = backlog
        self._decoder: Final = decoder
        self._tools: Final = tools
        self._ready: Final = ready
        self._suspect: int | None = None
        """Position at which a record set was corrupt once."""

    @property
    def is_empty(self) -> bool:
        """True if no fetched data of the partition waits for decoding or is being decoded."""
        return not self._backlog and self._decoder.under_way is None

    async def take(self) -> RecordBatch | None:
        """Decode the next part of the oldest record set into a batch.

        Returns None if the step gave no batch: the data was dropped or is fetched again, all its records lie below the
        position, or a thread decodes it now. The caller then calls again, unless :attr:`is_empty` is True.

        Must not be called while :attr:`is_empty` is True. Waits without timeout for memory and for the decoding thread.
        Safe to cancel. Raises ConfigError if a codec's library is missing. A corrupt or too large message is not raised
        here: it is queued in the backlog as the partition's failure.
        """
        if self._decoder.under_way is not None:
            await self._decoder.wait()
            return self._collect()
        work = await self._decoder.take_work()
        return None if work is None else self._settle(work, partial(self._decoder.decode, work))

    def rewind(self, position: int) -> None:
        """Drop all queued record sets and a queued failure, and fetch again from offset ``position``.

        The next offset to decode stays as it is.
        """
        self.drop()
        self._backlog.take_failure()
        self._cursor.seek(position)
        self._ready()

    def seek(self, position: int) -> None:
        """Drop the record sets fetched before, and fetch and decode from offset ``position`` on."""
        self._suspect = None
        self._backlog.position = position
        self.rewind(position)

    def drop(self) -> None:
        """Drop undecoded record sets.

        Batches at the sink keep their memory until they are given back.
        """
        self._backlog.drop()
        self._decoder.drop()

    def _collect(self) -> RecordBatch | None:
        taken = self._decoder.collect()
        if taken is None:
            return None
        future, work = taken
        try:
            return self._settle(work, future.result)
        finally:
            # The failure in the future references this frame (traceback), which would keep the fetched bytes in memory.
            del future, taken

    def _settle(self, work: Work, result: Callable[[], RecordBatch]) -> RecordBatch | None:
        try:
            return self._lend(work, result())
        except DecompressedTooLarge as error:
            self._widen(work, error)
        except CorruptMessageError as error:
            self._doubt(work, error)
        except ConfigError:
            self._give_up(work)
            raise
        finally:
            del result  # see _collect
        return None

    def _lend(self, work: Work, batch: RecordBatch) -> RecordBatch | None:
        backlog, chunk, size = self._backlog, work.chunk, work.piece.end - work.piece.begin
        if batch.next_offset == work.start and backlog.begins_with(chunk):
            # All records of the piece are below the position, though its header told otherwise; try the next piece.
            work.hold.release()
            backlog.finish(chunk)
            return None
        self._check(work, batch)
        self._cursor.observe_expansion(size, batch.size_bytes)
        backlog.lend(batch, chunk, work.hold)
        backlog.position = batch.next_offset
        self._suspect = None
        if batch.next_offset != work.piece.next_offset:
            self.rewind(batch.next_offset)
        self._tools.hooks.batch_fetched(
            self._cursor.partition,
            records=len(batch),
            size=batch.size_bytes,
            high_watermark=chunk.high_watermark,
        )
        return batch

    def _check(self, work: Work, batch: RecordBatch) -> None:
        """Refuse offsets that cannot be. Raises CorruptMessageError."""
        high_watermark = work.chunk.high_watermark
        if work.start < batch.next_offset and (high_watermark is None or batch.next_offset <= high_watermark):
            return
        partition = self._cursor.partition
        raise CorruptMessageError(
            f"{partition}: the record set fetched at offset {work.start} leads to offset {batch.next_offset}, "
            f"expected one after it and up to the high watermark {high_watermark}",
            partition=partition,
            offset=work.start,
            raw=bytes(work.chunk.records.data[work.piece.begin : work.piece.end]),
        )

    def _give_up(self, work: Work) -> None:
        """Drop a piece whose codec has no library here."""
        work.hold.release()
        self._backlog.finish(work.chunk)
        self.rewind(work.start)

    def _widen(self, work: Work, error: DecompressedTooLarge) -> None:
        """Decode a piece again, with the largest limit, after it exceeded its declared size.

        The second time it fails as too large.
        """
        limit = self._tools.settings.max_message_bytes
        work.hold.release()
        if work.expanded_bytes < limit:
            self._backlog.put_back(work.chunk, replace(work.piece, expanded_bytes=limit))
            return
        self._backlog.finish(work.chunk)
        offset = work.start if error.offset is None else error.offset
        self.rewind(work.start)
        too_large = RecordTooLarge(self._cursor.partition, offset, limit, next_offset=error.next_offset, raw=error.raw)
        self._backlog.fail(too_large)

    def _doubt(self, work: Work, error: CorruptMessageError) -> None:
        """Fetch a corrupt record set once more; fail if it is corrupt again."""
        work.hold.release()
        self._backlog.finish(work.chunk)
        self._tools.hooks.fetch_error(self._cursor.partition, "CORRUPT_MESSAGE")
        again = self._suspect == work.start
        self._suspect = None if again else work.start
        self.rewind(work.start)
        if again:
            self._backlog.fail(error)
        elif error.next_offset is None:
            self._cursor.enlarge(work.chunk.records.proof_bytes)
