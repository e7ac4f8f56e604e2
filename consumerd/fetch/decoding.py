# SPDX-License-Identifier: Apache-2.0
"""Decoding of one partition's fetched data, on the event loop or in a thread.

A piece is a part of a record set: one or more messages or batches.

| kernel | on the event loop | in a thread |
|---|---|---|
| native | pieces up to ``native_thread_bytes`` | all others, up to ``native_slice_bytes`` |
| none | pieces of about ``slice_bytes``, a few milliseconds each | large compressed units |

The native kernel releases the interpreter lock, so the loop receives the next response while a thread decodes. Pure
Python holds the lock for 5 ms at a time, and each read of a socket would wait that long, so decoding all pieces in a
thread would be slower.

One piece of a partition is decoded at a time.

Memory. Before decoding, a piece reserves memory for its bytes and for the decompressed size that its headers declare.
Decompression fails if it exceeds that size. With the native kernel one piece is decoded ahead, while the sink still has
the batch before it, if no other reservation waits for memory.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import Final

from consumerd.errors import CorruptMessageError
from consumerd.fetch.backlog import Backlog, Chunk
from consumerd.fetch.buffer import Hold, Lane
from consumerd.fetch.ports import FeedTools
from consumerd.fetch.reserving import reserve
from consumerd.model import TopicPartition
from consumerd.wire import kernel
from consumerd.wire.pieces import Piece
from consumerd.wire.records import Limits, RecordBatch

_COPIES: Final = 2
"""Checksums and codecs make one copy of a piece's bytes, and one of what they expand to."""
_THREAD_EXPANSION: Final = 8
"""Without the kernel, a piece that expands to this many times ``thread_bytes`` is decoded in a thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A piece of a record set to be decoded, and the memory reserved for it.

    ``chunk`` is the record set. ``start`` is the partition's position: records of the piece with lower offsets are left
    out. ``hold`` is the reservation.
    """

    chunk: Chunk
    piece: Piece
    start: int
    expanded_bytes: int
    """Limit of the decompressed size of the piece, in bytes."""
    hold: Hold


class PieceDecoder:
    """Decodes pieces of a partition's fetched record sets, one at a time.

    Single caller: calls of :meth:`take_work` must not overlap.
    """

    def __init__(self, partition: TopicPartition, backlog: Backlog, tools: FeedTools) -> None:
        self.under_way: tuple[asyncio.Future[RecordBatch], Work] | None = None
        """The piece given to a thread, until :meth:`collect` returns it."""
        self._partition: Final = partition
        self._backlog: Final = backlog
        self._tools: Final = tools

    async def take_work(self) -> Work | None:
        """Take the next piece, once there is memory, for the caller to decode.

        Returns None in two cases: the piece is large and was given to a thread (:attr:`under_way` is set then), or a
        seek or close has dropped the piece during the wait. Must not be called if the backlog has no piece. Waits
        without timeout. Safe to cancel: then the piece stays in the backlog.
        """
        first = self._backlog.first()
        assert first is not None
        chunk, piece = first
        in_thread = self._is_large(piece)
        if kernel.records is None or not in_thread:
            await self._tools.turnstile.enter(max(piece.end - piece.begin, self._expanded_bytes(piece)))
        needed = self._needed_bytes(piece)
        hold = await reserve(self._tools.budget, Lane.BATCH, least=needed, most=needed, short=self._tools.memory_short)
        if not self._backlog.begins_with(chunk):
            hold.release()
            return None
        work = self._take(hold)
        if in_thread:
            self._submit(work)
            return None
        return work

    def decode_ahead(self) -> None:
        """Start decoding the next piece in a thread before the pipeline asks for it.

        Does nothing without the native kernel, while a thread decodes another piece, for a small piece, and without
        memory to spare.
        """
        if kernel.records is None or self.under_way is not None:
            return
        first = self._backlog.first()
        if first is None or not self._is_large(first[1]):
            return
        hold = self._tools.budget.take_spare(Lane.BATCH, self._needed_bytes(first[1]))
        if hold is not None:
            self._submit(self._take(hold))

    def decode(self, work: Work) -> RecordBatch:
        """Decode a piece into a batch of records.

        Raises CorruptMessageError, DecompressedTooLarge, and ConfigError if the codec's library is missing.
        """
        # the memory of the decompressed piece is reserved already
        allocate = self._tools.allocate if work.piece.compressed else None
        try:
            return work.chunk.records.decode(
                work.piece,
                partition=self._partition,
                start=work.start,
                limits=Limits(decompressed_bytes=work.expanded_bytes),
                make_room=None if allocate is None else partial(allocate, work.expanded_bytes),
            )
        except CorruptMessageError as error:
            # The error and the frame that raised it reference each other, and would keep the fetched bytes in memory.
            raise error.with_traceback(None)  # noqa: B904 - it is the same one

    async def wait(self) -> None:
        """Wait until the thread has decoded its piece; return at once if no thread decodes.

        After a cancellation, the thread continues, and another call waits for it.
        """
        if self.under_way is not None and not self.under_way[0].done():
            await asyncio.wait([self.under_way[0]])

    def collect(self) -> tuple[asyncio.Future[RecordBatch], Work] | None:
        """Take over the piece given to a thread, and the future of its batch.

        The future has the batch or the decoding error. None if no piece was given to a thread, or :meth:`drop` has
        discarded it.
        """
        taken, self.under_way = self.under_way, None
        return taken

    def drop(self) -> None:
        """Discard the piece that was given to a thread, and its result.

        The memory reserved for the piece is released when the thread is done.
        """
        if (taken := self.collect()) is None:
            return
        future, work = taken
        if future.done():
            self._discard(future, work)
        else:
            future.add_done_callback(lambda done: self._discard(done, work))

    def _discard(self, future: asyncio.Future[RecordBatch], work: Work) -> None:
        if not future.cancelled():
            future.exception()
        work.hold.release()
        self._backlog.finish(work.chunk)

    def _take(self, hold: Hold) -> Work:
        start = self._backlog.position
        chunk, piece = self._backlog.take_piece()
        return Work(chunk=chunk, piece=piece, start=start, expanded_bytes=self._expanded_bytes(piece), hold=hold)

    def _submit(self, work: Work) -> None:
        loop = asyncio.get_running_loop()
        self.under_way = loop.run_in_executor(self._tools.executor, self.decode, work), work

    def _expanded_bytes(self, piece: Piece) -> int:
        return min(piece.expanded_bytes, self._tools.settings.max_message_bytes)

    def _needed_bytes(self, piece: Piece) -> int:
        return _COPIES * (piece.end - piece.begin + self._expanded_bytes(piece))

    def _is_large(self, piece: Piece) -> bool:
        """Return True if a piece is large enough to be decoded in a thread."""
        settings, size, expanded = self._tools.settings, piece.end - piece.begin, self._expanded_bytes(piece)
        if kernel.records is not None:
            return max(size, expanded) > settings.native_thread_bytes
        large = size > (settings.thread_bytes if piece.compressed else 2 * settings.slice_bytes)
        return large or expanded > _THREAD_EXPANSION * settings.thread_bytes
