# SPDX-License-Identifier: Apache-2.0
"""Backlog of one partition: its fetched record sets and its batches, with their memory.

::

    record sets, cut into pieces  ->  a piece that is being decoded  ->  batches at the sink  ->  released

A failure may follow the last record set. The pipeline gets it after all batches before it.

Memory. A record set is a copy, or a view that keeps the whole response in memory. A batch is a view of its record set,
or has a buffer of its own. The bytes of a record set are released when all its pieces are decoded and no batch views
them.

Example: a response of 10 MB has two record sets, of 6 and of 4 MB. The first is at least half of the response, so it
stays a view and keeps 10 MB in memory. The second is copied and keeps 4 MB.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from consumerd.client.fetch_protocol import RecordSet
from consumerd.errors import ConsumerdError
from consumerd.fetch.buffer import Hold, Kind, PartitionAccount
from consumerd.fetch.cursor import Cursor
from consumerd.wire import kernel
from consumerd.wire.pieces import Piece
from consumerd.wire.records import RecordBatch

_KEEP_ANSWER_IF_AT_LEAST_HALF: Final = 2
"""A record set that is at least this part (one half) of its response may keep the response's memory."""


class Chunk:
    """A fetched record set with its memory reservation, cut into pieces to be decoded.

    Args:
        pieces: The parts of the record set, of one or more whole messages or batches each, in offset order.
        high_watermark: High watermark of the same response; None for Kafka 0.7, which has none.
        held_bytes: Bytes of the buffer that the record set keeps in memory: its own size if it was copied, the size of
            the whole response if it is a view of the response.
        hold: Reservation of the response's memory. ``held_bytes`` are split off from it for this record set.
    """

    __slots__ = ("held_bytes", "high_watermark", "hold", "pieces", "records", "undecoded", "views")

    def __init__(
        self, records: RecordSet, pieces: list[Piece], *, high_watermark: int | None, held_bytes: int, hold: Hold
    ) -> None:
        self.records: Final = records
        self.high_watermark: Final = high_watermark
        self.held_bytes: Final = held_bytes
        self.pieces: Final = deque(pieces)
        self.undecoded = len(pieces)
        self.hold: Final = hold.split(held_bytes)
        self.hold.become(Kind.FETCHED, held_bytes)
        self.views = 0
        """Number of batches at the sink whose buffers are views of the record set."""

    def is_seen_by(self, batch: RecordBatch) -> bool:
        """Return True if a batch's buffer is a view of the record set."""
        data, buffer = self.records.data, batch.buffer
        return isinstance(data, memoryview) and isinstance(buffer, memoryview) and buffer.obj is data.obj

    def settle(self) -> bool:
        """Release the record set's memory if nothing needs it; return True if released.

        It is needed until every piece is decoded and no batch is a view of the record set. If all pieces are decoded
        but batches are views of the record set, its bytes count from now on as bytes of decoded batches.
        """
        if self.undecoded:
            return False
        if self.views:
            self.hold.join_batch()
            return False
        self.hold.release()
        return True


def keep_records(records: RecordSet, allocate: Callable[[int], memoryview] | None) -> tuple[RecordSet, int]:
    """Return a record set to keep until decoding, and its bytes of memory.

    With the native kernel, a record set that is at least half of its response stays in the receive buffer, and the
    bytes are those of the whole response. A smaller one is copied, so that one slow partition does not keep the whole
    response in memory. Without the native kernel every record set is copied.

    Args:
        allocate: Called with a size in bytes; returns the memory for a copy. None: a plain Python buffer is used.
    """
    data = records.data
    size = len(data)
    if kernel.records is None:
        return records.with_data(bytes(data)), size
    if isinstance(data, memoryview):
        answer_bytes = memoryview(data.obj).nbytes
        if size * _KEEP_ANSWER_IF_AT_LEAST_HALF >= answer_bytes:
            return records, answer_bytes
    if allocate is None:
        return records.with_data(memoryview(bytes(data))), size
    copy = allocate(size)
    copy[:] = data
    return records.with_data(copy.toreadonly()), size


@dataclass(frozen=True, slots=True)
class _Lent:
    """A batch at the sink: its memory, and the record set that it views."""

    hold: Hold
    chunk: Chunk | None


class Backlog:
    """A partition's undecoded record sets, its batches at the sink, and at most one failure.

    The failure, if any, is raised to the consumer when all record sets before it are consumed. ``ready`` is called
    each time that a record set is wholly decoded, because its bytes no longer keep the partition from being fetched.
    """

    def __init__(self, cursor: Cursor, *, ready: Callable[[], None]) -> None:
        self.position = cursor.position
        """The next offset to decode."""
        self.account: Final = PartitionAccount()
        self.failure: ConsumerdError | None = None
        self._failure_hold: Hold | None = None  # of the bytes that the failure carries
        self._cursor: Final = cursor
        self._chunks: deque[Chunk] = deque()
        self._lent: dict[int, _Lent] = {}
        self._arrived = asyncio.Event()
        self._ready: Final = ready

    def __len__(self) -> int:
        """Return the number of record sets that are not wholly decoded."""
        return len(self._chunks)

    # -- record sets

    def append(self, chunk: Chunk) -> None:
        """Add a fetched record set at the end of the queue."""
        self._chunks.append(chunk)
        self.account.held_bytes += chunk.held_bytes
        self._arrived.set()

    def first(self) -> tuple[Chunk, Piece] | None:
        """Return the piece to decode next and its record set, without removing the piece.

        None if no record set is waiting to be decoded.
        """
        if not self._chunks:
            return None
        chunk = self._chunks[0]
        return chunk, chunk.pieces[0]

    def begins_with(self, chunk: Chunk) -> bool:
        """Return True if the piece to decode next is of the record set ``chunk``."""
        return bool(self._chunks) and self._chunks[0] is chunk

    def take_piece(self) -> tuple[Chunk, Piece]:
        """Remove the next piece to decode; return its record set and the piece.

        The backlog must not be empty (see :meth:`first`). The caller decodes the piece, and then calls :meth:`finish`.
        """
        chunk = self._chunks[0]
        piece = chunk.pieces.popleft()
        if not chunk.pieces:
            self._chunks.popleft()
        return chunk, piece

    def put_back(self, chunk: Chunk, piece: Piece) -> None:
        """Put a piece back at the front of the queue, to be decoded again."""
        chunk.pieces.appendleft(piece)
        if not self.begins_with(chunk):
            self._chunks.appendleft(chunk)

    def finish(self, chunk: Chunk, count: int = 1) -> None:
        """Note that ``count`` pieces of the record set ``chunk`` were decoded or dropped.

        After the last piece, the record set's memory is released. If batches are views of the record set, it is
        released when the last one of these batches is given back.
        """
        chunk.undecoded -= count
        if chunk.undecoded == 0:
            self.account.held_bytes -= chunk.held_bytes
            if not chunk.settle():
                self.account.lent_bytes += chunk.held_bytes
            self._ready()

    def drop(self) -> None:
        """Drop all undecoded record sets.

        Batches at the sink keep their memory until they are given back.
        """
        chunks, self._chunks = self._chunks, deque()
        for chunk in chunks:
            self.finish(chunk, len(chunk.pieces))

    # -- batches at the sink

    def lend(self, batch: RecordBatch, chunk: Chunk, hold: Hold) -> None:
        """Note that a decoded batch is handed to the sink; its memory stays counted.

        Args:
            batch: The batch; :meth:`give_back` takes it back.
            chunk: The record set from which it was decoded.
            hold: Memory reserved for decoding; it is reduced to what the batch uses in addition to the record set.
        """
        seen = chunk if chunk.is_seen_by(batch) else None
        if seen is not None:
            seen.views += 1
        # A view's buffer is counted with its record set already.
        hold.become(Kind.BATCHES, batch.size_bytes - (0 if seen is None else len(batch.buffer)))
        self.account.lent_bytes += hold.size
        self.finish(chunk)
        self._lent[id(batch)] = _Lent(hold, seen)

    def give_back(self, batch: RecordBatch) -> bool:
        """Release a batch's memory, after the sink took it; return False if already released."""
        lent = self._lent.pop(id(batch), None)
        if lent is None:
            return False
        self._release(lent)
        return True

    def give_back_all(self) -> None:
        """Release the memory of all batches that are at the sink."""
        lent, self._lent = self._lent, {}
        for one in lent.values():
            self._release(one)

    def _release(self, lent: _Lent) -> None:
        self.account.lent_bytes -= lent.hold.size
        lent.hold.release()
        if lent.chunk is not None:
            lent.chunk.views -= 1
            if lent.chunk.settle():
                self.account.lent_bytes -= lent.chunk.held_bytes

    # -- its end

    def fail(self, error: ConsumerdError, hold: Hold | None = None) -> None:
        """Stop fetching, and queue ``error`` after the record sets already fetched.

        The consumer gets the error after the last of these record sets. An earlier queued error is replaced.

        Args:
            hold: Reservation for the bytes of a damaged or too large message, which the error contains; None without
                bytes.
        """
        self._cursor.fail()
        self.take_failure()
        self.failure = error.with_traceback(None)  # its frames would keep fetched and decompressed bytes in memory
        self._failure_hold = hold
        self._arrived.set()

    def take_failure(self) -> ConsumerdError | None:
        """Remove and return the queued failure; None if there is none.

        The memory reserved for the bytes in the failure is released.
        """
        failure, self.failure = self.failure, None
        hold, self._failure_hold = self._failure_hold, None
        if hold is not None:
            hold.release()
        return failure

    async def wait(self) -> None:
        """Wait for a record set, a failure, or a call of :meth:`wake`, without timeout."""
        self._arrived.clear()
        await self._arrived.wait()

    def wake(self) -> None:
        """Make a pending :meth:`wait` return, for example because the feed was closed."""
        self._arrived.set()
