# SPDX-License-Identifier: Apache-2.0
"""One partition's records, in order, from fetched record sets: what a pipeline reads.

A feed owns its partition's cursor, the record sets that came and were not decoded yet, and the memory of both. The
broker loop puts answers in (:meth:`PartitionFeed.accept`), the pipeline takes batches out (:meth:`PartitionFeed.next`).

Decoding happens when the pipeline asks, piece by piece. In pure Python a piece takes a few milliseconds on the event
loop, so nothing else waits for long, and a compressed unit too large for that is decoded in a thread. (A thread for
everything would be slower: pure Python holds the interpreter's lock for 5 ms at a time, and each read of a socket would wait
that long.) The native kernel lets go of that lock, so that with it all but what is small is decoded in a thread, in large
pieces, while the loop receives the next answer; and one piece is decoded ahead, while the sink has the batch before it, where
there is memory that nobody else waits for.

With the kernel a record set that is most of its answer stays where it was received, and its batches are views of that.
A smaller one is copied, so that one slow partition does not keep the whole answer's memory. Whatever a batch's buffer is
a part of is held until the batch is given back.

What the headers promised (:mod:`consumerd.fetch.slices`) is only a prediction that lets the next request leave early. The
decoder's word counts: where it ends elsewhere, what was fetched beyond is dropped and fetched again from there. A record
set that fails its checksum, or begins with a size above the limit, is fetched once more before anybody hears of it, since
the fault may lie on the way.

Memory for decoding is reserved first, by what compressed units say they expand to, and they are held to that while they
are decompressed. One that gives more is tried again with room for the largest that is allowed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Protocol

from consumerd.aio.backoff import Backoff
from consumerd.errors import (
    ConfigError,
    ConsumerdError,
    CorruptMessageError,
    DecompressedTooLarge,
    LocalProtocolError,
    RecordTooLarge,
)
from consumerd.fetch.buffer import Hold, Kind, Lane, Marks, MemoryBudget, PartitionAccount
from consumerd.fetch.cursor import Cursor, CursorState
from consumerd.fetch.ports import FetchSettings
from consumerd.fetch.reserving import reserve
from consumerd.fetch.slices import Piece, cut_record_set, first_unit_bytes
from consumerd.fetch.turnstile import Turnstile
from consumerd.model import Fault, TopicPartition
from consumerd.telemetry.hooks import Hooks
from consumerd.wire import kernel
from consumerd.wire.modern.extent import HEAD_BYTES, read_claim
from consumerd.wire.modern.fetch import FetchedPartition
from consumerd.wire.modern.record_set import decode_record_set
from consumerd.wire.records import Limits, RecordBatch

_MOST: Final = 2
"""A record set that is so many parts of its answer, or more, may keep the answer's memory."""
_COPIES: Final = 2
"""While a piece is decoded its bytes are there twice (for checksums and codecs), and what they expand to as well."""
_THREAD_EXPANSION: Final = 8
"""A piece that expands to this many times ``FetchSettings.thread_bytes`` is decoded in a thread, however small it is."""
_PATIENCE_S: Final = 2.0
"""How much later than a long poll ends an answer may come before anybody hears of it."""


class FeedOwner(Protocol):
    """What a feed needs of whoever fetches for it, and tells it."""

    @property
    def marks(self) -> Marks:
        """How much each partition may hold now."""

    def feed_ready(self, feed: PartitionFeed) -> None:
        """There may be room, or a wish, for more."""

    def find_fault(self, feed: PartitionFeed) -> Fault | None:
        """Return why the partition cannot be fetched; None while it can be."""

    def feed_recovered(self, feed: PartitionFeed) -> None:
        """The partition answers again after errors."""

    def feed_closed(self, feed: PartitionFeed) -> None:
        """Nothing is wanted any more."""

    def memory_short(self) -> None:
        """A batch has to wait for memory."""


@dataclass(slots=True, kw_only=True)
class FeedTools:
    """What all feeds of a fetcher share."""

    settings: FetchSettings
    budget: MemoryBudget
    hooks: Hooks
    owner: FeedOwner
    executor: Executor
    turnstile: Turnstile
    allocate: Callable[[int], memoryview] | None
    """Gives memory for what is decompressed, or copied out of an answer, of so many bytes; None where each makes its own."""
    now: Callable[[], float]
    random: Callable[[], float]


class _Chunk:
    """A record set as it came; its bytes stay held until the last piece is decoded, and no batch out is a view of them.

    ``held_bytes`` is what they keep in memory: themselves, or the whole answer. ``views`` counts the batches.
    """

    __slots__ = ("aborted", "data", "held_bytes", "high_watermark", "hold", "pieces", "undecoded", "views")

    def __init__(self, kept: _Kept, pieces: list[Piece], hold: Hold, answer: FetchedPartition) -> None:
        self.data = kept.data
        self.held_bytes = kept.held_bytes
        self.pieces = deque(pieces)
        self.undecoded = len(pieces)
        self.hold = hold.split(kept.held_bytes)
        self.hold.become(Kind.FETCHED, kept.held_bytes)
        self.views = 0
        self.high_watermark = answer.high_watermark
        self.aborted = answer.aborted_transactions or ()

    def is_seen_by(self, batch: RecordBatch) -> bool:
        """Tell whether a batch's buffer is a view of these bytes."""
        data, buffer = self.data, batch.buffer
        return isinstance(data, memoryview) and isinstance(buffer, memoryview) and buffer.obj is data.obj

    def settle(self) -> bool:
        """Give back what nobody needs any more; tell whether that is all of it."""
        if self.undecoded:
            return False
        if self.views:
            self.hold.join_batch()
            return False
        self.hold.release()
        return True


@dataclass(frozen=True, slots=True)
class _Kept:
    """A record set's bytes, and how many bytes are in memory for as long as those are."""

    data: bytes | memoryview
    held_bytes: int


def _keep_records(records: bytes | memoryview, allocate: Callable[[int], memoryview] | None) -> _Kept:
    """Return a record set as it is kept until it is decoded."""
    if kernel.records is None:
        data = bytes(records)
        return _Kept(data, len(data))
    if isinstance(records, memoryview):
        answer_bytes = memoryview(records.obj).nbytes
        if len(records) * _MOST >= answer_bytes:
            return _Kept(records, answer_bytes)
    if allocate is None:
        return _Kept(memoryview(bytes(records)), len(records))
    copy = allocate(len(records))
    copy[:] = records
    return _Kept(copy.toreadonly(), len(records))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """A piece that is being decoded, from position ``start`` on, and the memory reserved for it.

    ``expanded_bytes`` is what decompressing it may give.
    """

    chunk: _Chunk
    piece: Piece
    start: int
    expanded_bytes: int
    hold: Hold


@dataclass(frozen=True, slots=True)
class _Lent:
    """A batch's memory, and the record set that its buffer is a view of."""

    hold: Hold
    chunk: _Chunk | None


class PartitionFeed:
    """The record feed of one partition. One consumer: calls of :meth:`next` do not overlap.

    From ``end`` on nothing is asked for. What comes with records before it may still go beyond it.
    """

    def __init__(self, partition: TopicPartition, offset: int, tools: FeedTools, *, end: int | None = None) -> None:
        settings = tools.settings
        self.cursor: Final = Cursor(partition, offset, limit_bytes=settings.max_message_bytes, end=end)
        self.account: Final = PartitionAccount()
        self.backoff: Final = Backoff(
            initial_s=settings.backoff_initial_s, maximum_s=settings.backoff_maximum_s, random=tools.random
        )
        self.doubted_offset: int | None = None
        """The offset that was found out of range once, above the log's end, which may trail after a failover."""
        self.idle_since: float | None = tools.now()
        """Since when nobody waits in :meth:`next`; None while somebody does."""
        self._tools = tools
        self._noted_at: float | None = None
        self._high_watermark = -1
        self._last_stable_offset: int | None = None
        self._log_start_offset: int | None = None
        self._chunks: deque[_Chunk] = deque()
        self._lent: dict[int, _Lent] = {}
        self._decoding: tuple[asyncio.Future[RecordBatch], _Work] | None = None
        self._failure: ConsumerdError | None = None
        self._failure_hold: Hold | None = None  # of what the failure carries
        self._position = offset
        self._suspect: int | None = None
        self._oversized: tuple[int, int | None] | None = None
        self._arrived = asyncio.Event()

    def __repr__(self) -> str:
        cursor = self.cursor
        return (
            f"<PartitionFeed {cursor.partition} at {cursor.position} {cursor.state.value}, {len(self._chunks)} chunks>"
        )

    # -- for the pipeline

    @property
    def partition(self) -> TopicPartition:
        """Whose records these are."""
        return self.cursor.partition

    @property
    def high_watermark(self) -> int | None:
        """The next offset to be written, as far as consumers see; None until the first answer."""
        return self._high_watermark if self._high_watermark >= 0 else None

    @property
    def last_stable_offset(self) -> int | None:
        """Where undecided transactions begin; None where the broker does not say."""
        return self._last_stable_offset

    @property
    def log_start_offset(self) -> int | None:
        """The first offset held; None where the broker does not say."""
        return self._log_start_offset

    @property
    def unanswered_since(self) -> float | None:
        """Since when the leader owes an answer, by the fetcher's clock, where that is longer than it should take."""
        asked_at = self.cursor.asked_at
        patience_s = self._tools.settings.max_wait_ms / 1000 + _PATIENCE_S
        return asked_at if asked_at is not None and self._tools.now() - asked_at > patience_s else None

    @property
    def fault(self) -> Fault | None:
        """Why the partition cannot be fetched, and since when, by the fetcher's clock; None while it can be."""
        return self._tools.owner.find_fault(self)

    @property
    def heard_at(self) -> float | None:
        """When its leader last said where the log ends; None before it did.

        In a fetch session an answer leaves out what has not changed: it speaks for every partition that is asked for.
        """
        turn = self.cursor.round
        times = [at for at in (self._noted_at, None if turn is None else turn.answered_at) if at is not None]
        return max(times) if self._noted_at is not None else None

    async def next(self) -> RecordBatch:
        """Return the next batch, which may have no records but a later ``next_offset``; give it back with :meth:`done`.

        Unbounded: waits for records, memory, a leader. Cancel freely, nothing is lost by it. After an error the
        position is unchanged, and another call tries again from there.

        Raises OffsetOutOfRange (confirmed), CorruptMessageError (twice in a row), RecordTooLarge, LocalProtocolError on
        a closed feed.
        """
        self._wake_up()
        self.idle_since = None
        try:
            batch = await self._next()
        finally:
            self.idle_since = self._tools.now()
        self._decode_ahead()
        return batch

    async def _next(self) -> RecordBatch:
        while True:
            if self._decoding is not None:
                if not self._decoding[0].done():
                    await asyncio.wait([self._decoding[0]])  # on cancellation its work stays for the next call
                batch = self._collect()
            elif self._chunks:
                batch = await self._decode_next()
            elif (failure := self._take_failure()) is not None:
                try:
                    raise failure
                finally:
                    del failure  # or it and this frame, in its traceback, hold each other, and what was fetched
            else:
                self._raise_closed()
                self._arrived.clear()
                await self._arrived.wait()
                continue
            if batch is not None:
                return batch

    def done(self, batch: RecordBatch) -> None:
        """Give a batch's memory back. Idempotent."""
        lent = self._lent.pop(id(batch), None)
        if lent is not None:
            self._give_back(lent)
            if self.account.has_emptied(self._tools.owner.marks):
                self._tools.owner.feed_ready(self)

    def seek(self, position: int) -> None:
        """Go on at ``position``; what was fetched is dropped."""
        self._raise_closed()
        self._suspect = self.doubted_offset = None
        self._position = position
        self._rewind(position)

    def close(self) -> None:
        """Stop fetching and give all memory back, that of batches still out included. Idempotent."""
        if self.cursor.state is CursorState.CLOSED:
            return
        self.cursor.close()
        self._drop()
        lent, self._lent = self._lent, {}
        for one in lent.values():
            self._give_back(one)
        self._take_failure()
        self._arrived.set()
        self._tools.owner.feed_closed(self)

    # -- for the broker loop

    def accept(self, answer: FetchedPartition, asked_bytes: int, hold: Hold) -> bool:
        """Take an answer without error to a request at the cursor's position, and move the cursor on.

        The bytes are taken out of ``hold``. Returns whether the answer brought records.
        """
        self._note(answer)
        records = answer.record_set
        if not records:
            return False
        kept = _keep_records(records, self._tools.allocate)
        data, cursor, settings = kept.data, self.cursor, self._tools.settings
        if len(data) > settings.max_message_bytes and self._refuse_too_large(data, hold):
            return True
        pieces = self._cut(data)
        if pieces and answer.aborted_transactions:
            # where an aborted transaction ends is written in the records, so that cutting them loses track of it
            compressed = any(piece.compressed for piece in pieces)
            pieces = [Piece(0, pieces[-1].end, pieces[-1].next_offset, compressed)]
        if pieces:
            self._append(_Chunk(kept, pieces, hold, answer))
            if pieces[-1].next_offset > answer.high_watermark:  # see _check: the decoder must have its say first
                cursor.fail()
            else:
                cursor.advance(max(cursor.position, pieces[-1].next_offset))
            return True
        unit_bytes = first_unit_bytes(data)
        if unit_bytes == 0:  # no size that can be one: nothing more is asked for until the decoder has had its say
            self._append(_Chunk(kept, [Piece(0, len(data), cursor.position, compressed=False)], hold, answer))
            cursor.fail()
        elif (too_large := cursor.grow(asked_bytes, unit_bytes)) is not None:
            self.fail_too_large(too_large.size, bytes(data), hold)
        return True

    def park(self) -> None:
        """Give back the memory of what nobody consumes; it is fetched again when somebody does."""
        if self._failure is None and (self._chunks or self._decoding is not None):
            self._drop()
            self.cursor.park(self._position)

    def fail(self, error: ConsumerdError, hold: Hold | None = None) -> None:
        """Have :meth:`next` raise ``error`` once everything before it was taken, and ask for nothing until then."""
        self.cursor.fail()
        self._take_failure()
        self._failure = error.with_traceback(None)  # its frames hold what was fetched and decompressed
        self._failure_hold = hold
        self._arrived.set()

    def _take_failure(self) -> ConsumerdError | None:
        """Return the failure that waits to be raised, and forget it.

        The memory of the bytes that it carries is given back.
        """
        failure, self._failure = self._failure, None
        hold, self._failure_hold = self._failure_hold, None
        if hold is not None:
            hold.release()
        return failure

    def fail_too_large(self, size: int | None, data: bytes = b"", hold: Hold | None = None) -> None:
        """Fail since the message at the cursor's position is above the limit; ``data`` is what came of it, and stays held
        until somebody hears of it.

        Its head alone says so, and where it ends, and no checksum could be checked: it is asked for once more before
        anybody hears of it, as what is corrupt is, and the end is held against the log's. A head that can be no unit's is
        damage, whatever size it has.
        """
        position, limit = self.cursor.position, self._tools.settings.max_message_bytes
        if data and self._oversized != (position, size):
            self._oversized = position, size
            return
        next_offset = read_claim(data, 0, position, self.high_watermark)
        error: ConsumerdError = RecordTooLarge(self.partition, position, limit, size, next_offset=next_offset, raw=data)
        if next_offset is None and len(data) >= HEAD_BYTES:
            message = (
                f"{self.partition}: what was fetched at offset {position} begins with no head of a message, size {size}"
            )
            error = CorruptMessageError(message, partition=self.partition, offset=position, raw=data)
        kept = None
        if hold is not None:
            kept = hold.split(len(data))
            kept.become(Kind.FETCHED, len(data))
        self.fail(error, kept)

    # -- what came and was not decoded

    def _cut(self, data: bytes | memoryview) -> list[Piece]:
        settings, expansion = self._tools.settings, self.cursor.expansion
        if kernel.records is None:
            return cut_record_set(data, slice_bytes=settings.slice_bytes, expansion=expansion)
        slice_bytes = settings.native_slice_bytes
        pieces = cut_record_set(data, slice_bytes=slice_bytes, expansion=expansion)
        # what is compressed becomes more
        share = max(settings.slice_bytes, self._tools.owner.marks.batch)
        if share < slice_bytes and any(piece.compressed for piece in pieces):
            return cut_record_set(data, slice_bytes=share, expansion=expansion)
        return pieces

    def _note(self, answer: FetchedPartition) -> None:
        """Remember what an answer says of the log; the partition is well."""
        self._noted_at = self._tools.now()
        self._high_watermark = answer.high_watermark
        self._last_stable_offset = answer.last_stable_offset if answer.last_stable_offset >= 0 else None
        self._log_start_offset = answer.log_start_offset if answer.log_start_offset >= 0 else None
        self.doubted_offset = None
        if self.backoff.attempts:
            self.backoff.reset()
            self._tools.owner.feed_recovered(self)

    def _refuse_too_large(self, data: bytes | memoryview, hold: Hold) -> bool:
        """Brokers from 0.10.1 on return a first message whole, whatever its size: hold them to the same limit."""
        size = first_unit_bytes(data)
        if not size or size <= self._tools.settings.max_message_bytes:
            return False
        self.fail_too_large(size, bytes(data[:size]), hold)
        return True

    def _append(self, chunk: _Chunk) -> None:
        self._chunks.append(chunk)
        self.account.held_bytes += chunk.held_bytes
        self._arrived.set()
        if self.idle_since is not None:
            self._decode_ahead()

    def _finish_pieces(self, chunk: _Chunk, count: int = 1) -> None:
        chunk.undecoded -= count
        if chunk.undecoded == 0:
            self.account.held_bytes -= chunk.held_bytes
            if not chunk.settle():
                self.account.lent_bytes += chunk.held_bytes
            self._tools.owner.feed_ready(self)

    def _give_back(self, lent: _Lent) -> None:
        self.account.lent_bytes -= lent.hold.size
        lent.hold.release()
        if lent.chunk is not None:
            lent.chunk.views -= 1
            if lent.chunk.settle():
                self.account.lent_bytes -= lent.chunk.held_bytes

    def _drop(self) -> None:
        """Forget what came. Batches that are out stay out, with their memory."""
        chunks, self._chunks = self._chunks, deque()
        for chunk in chunks:
            self._finish_pieces(chunk, len(chunk.pieces))
        if self._decoding is not None:
            (future, work), self._decoding = self._decoding, None
            if future.done():
                self._discard(future, work)
            else:
                future.add_done_callback(lambda done: self._discard(done, work))

    def _discard(self, future: asyncio.Future[RecordBatch], work: _Work) -> None:
        """Give back the memory of a decode that nobody waits for, once its thread has let go of it."""
        if not future.cancelled():
            future.exception()
        work.hold.release()
        self._finish_pieces(work.chunk)

    # -- decoding

    async def _decode_next(self) -> RecordBatch | None:
        """Decode the next piece, here or in a thread; None if there is nothing to hand out yet."""
        chunk = self._chunks[0]
        piece = chunk.pieces[0]
        in_thread = self._is_large(piece)
        if kernel.records is None or not in_thread:
            await self._tools.turnstile.enter(max(piece.end - piece.begin, self._expanded_bytes(piece)))
        needed = self._needed_bytes(piece)
        hold = self._tools.budget.take(Lane.BATCH, least=needed, most=needed)
        if hold is None:
            self._tools.owner.memory_short()
            hold = await reserve(self._tools.budget, Lane.BATCH, least=needed, most=needed)
        if not self._chunks or self._chunks[0] is not chunk:  # dropped by a seek or a close meanwhile
            hold.release()
            return None
        work = self._take_piece(hold)
        if in_thread:
            self._submit(work)
            return None
        try:
            return self._lend(work, self._decode(work))
        except DecompressedTooLarge as error:
            self._widen(work, error)
        except CorruptMessageError as error:
            self._doubt(work, error)
        except ConfigError:
            self._give_up(work)
            raise
        return None

    def _decode_ahead(self) -> None:
        """Begin with the next piece while nobody waits for it, if it goes into a thread and there is memory to spare."""
        if kernel.records is None or self._decoding is not None or not self._chunks:
            return
        piece = self._chunks[0].pieces[0]
        if not self._is_large(piece):
            return
        hold = self._tools.budget.take_spare(Lane.BATCH, self._needed_bytes(piece))
        if hold is not None:
            self._submit(self._take_piece(hold))

    def _expanded_bytes(self, piece: Piece) -> int:
        return min(piece.expanded_bytes, self._tools.settings.max_message_bytes)

    def _needed_bytes(self, piece: Piece) -> int:
        return _COPIES * (piece.end - piece.begin + self._expanded_bytes(piece))

    def _is_large(self, piece: Piece) -> bool:
        """Tell whether a piece is to be decoded in a thread."""
        settings, size, expanded = self._tools.settings, piece.end - piece.begin, self._expanded_bytes(piece)
        if kernel.records is not None:
            return max(size, expanded) > settings.native_thread_bytes
        large = size > (settings.thread_bytes if piece.compressed else 2 * settings.slice_bytes)
        return large or expanded > _THREAD_EXPANSION * settings.thread_bytes

    def _take_piece(self, hold: Hold) -> _Work:
        """Take the next piece out of what came."""
        chunk = self._chunks[0]
        piece = chunk.pieces.popleft()
        if not chunk.pieces:
            self._chunks.popleft()
        expanded = self._expanded_bytes(piece)
        return _Work(chunk=chunk, piece=piece, start=self._position, expanded_bytes=expanded, hold=hold)

    def _submit(self, work: _Work) -> None:
        loop = asyncio.get_running_loop()
        self._decoding = loop.run_in_executor(self._tools.executor, self._decode, work), work

    def _decode(self, work: _Work) -> RecordBatch:
        try:
            return decode_record_set(
                work.chunk.data[work.piece.begin : work.piece.end],
                partition=self.partition,
                start=work.start,
                limits=Limits(decompressed_bytes=work.expanded_bytes),
                read_committed=self._tools.settings.read_committed,
                aborted=work.chunk.aborted,
                high_watermark=work.chunk.high_watermark,
                following=memoryview(work.chunk.data)[work.piece.end :],
                attested=True,
                make_room=self._room_for(work) if work.piece.compressed else None,
            )
        except CorruptMessageError as error:
            # the frame that made it and it hold each other, and what was fetched with them
            raise error.with_traceback(None)  # noqa: B904 - it is the same one

    def _room_for(self, work: _Work) -> Callable[[], memoryview] | None:
        """Return what gives memory for all that a piece says it expands to; it is reserved already."""
        allocate = self._tools.allocate
        return None if allocate is None else partial(allocate, work.expanded_bytes)

    def _collect(self) -> RecordBatch | None:
        """Take what the thread has made, unless it was dropped meanwhile."""
        if self._decoding is None:
            return None
        (future, work), self._decoding = self._decoding, None
        try:
            return self._lend(work, future.result())
        except DecompressedTooLarge as error:
            self._widen(work, error)
        except CorruptMessageError as error:
            self._doubt(work, error)
        except ConfigError:
            self._give_up(work)
            raise
        finally:
            del future  # or the failure in it and this frame, in its traceback, hold each other, and what was fetched
        return None

    def _lend(self, work: _Work, batch: RecordBatch) -> RecordBatch | None:
        if batch.next_offset == work.start and self._chunks and self._chunks[0] is work.chunk:
            work.hold.release()  # what stands before the position, though its offsets did not say so
            self._finish_pieces(work.chunk)
            return None
        self._check(work, batch)
        self.cursor.observe_expansion(work.piece.end - work.piece.begin, batch.size_bytes)
        seen = work.chunk if work.chunk.is_seen_by(batch) else None
        if seen is not None:
            seen.views += 1
        # what its buffer is a part of is held already
        work.hold.become(Kind.BATCHES, batch.size_bytes - (0 if seen is None else len(batch.buffer)))
        self.account.lent_bytes += work.hold.size
        self._finish_pieces(work.chunk)
        self._lent[id(batch)] = _Lent(work.hold, seen)
        self._position = batch.next_offset
        self._suspect = None
        if batch.next_offset != work.piece.next_offset:
            self._rewind(batch.next_offset)
        self._tools.hooks.batch_fetched(
            self.partition, records=len(batch), size=batch.size_bytes, high_watermark=work.chunk.high_watermark
        )
        return batch

    def _check(self, work: _Work, batch: RecordBatch) -> None:
        """Refuse offsets that cannot be; the checksums of no format cover them. Raises CorruptMessageError."""
        if work.start < batch.next_offset <= work.chunk.high_watermark:
            return
        raise CorruptMessageError(
            f"{self.partition}: the record set fetched at offset {work.start} leads to offset {batch.next_offset}, "
            f"expected one after it and up to the high watermark {work.chunk.high_watermark}",
            partition=self.partition,
            offset=work.start,
            raw=bytes(work.chunk.data[work.piece.begin : work.piece.end]),
        )

    def _give_up(self, work: _Work) -> None:
        """Let go of a piece that cannot be decoded here, whatever it holds (a codec's library is missing)."""
        work.hold.release()
        self._finish_pieces(work.chunk)
        self._rewind(work.start)

    def _widen(self, work: _Work, error: DecompressedTooLarge) -> None:
        """Try a piece again that gives more than it says, with all the room that there may be, or refuse it."""
        limit = self._tools.settings.max_message_bytes
        work.hold.release()
        if work.expanded_bytes < limit:
            work.chunk.pieces.appendleft(replace(work.piece, expanded_bytes=limit))
            if not self._chunks or self._chunks[0] is not work.chunk:
                self._chunks.appendleft(work.chunk)
            return
        self._finish_pieces(work.chunk)
        offset = work.start if error.offset is None else error.offset
        self._rewind(work.start)
        self.fail(RecordTooLarge(self.partition, offset, limit, next_offset=error.next_offset, raw=error.raw))

    def _doubt(self, work: _Work, error: CorruptMessageError) -> None:
        """Fetch a corrupt record set once more; when it is corrupt again, say so."""
        work.hold.release()
        self._finish_pieces(work.chunk)
        self._tools.hooks.fetch_error(self.partition, "CORRUPT_MESSAGE")
        again = self._suspect == work.start
        self._suspect = None if again else work.start
        self._rewind(work.start)
        if again:
            self.fail(error)

    def _rewind(self, position: int) -> None:
        """Fetch again from ``position``: what came after it, and what was found out about it, counts no more."""
        self._drop()
        self._take_failure()
        self.cursor.seek(position)
        self._tools.owner.feed_ready(self)

    def _wake_up(self) -> None:
        """Set a parked partition going again, and a failed one whose error was raised."""
        waiting = self._failure is not None or self._chunks or self._decoding is not None
        if self.cursor.state is CursorState.PARKED or (self.cursor.state is CursorState.FAILED and not waiting):
            self.cursor.activate()
            self._tools.owner.feed_ready(self)

    def _raise_closed(self) -> None:
        if self.cursor.state is CursorState.CLOSED:
            raise LocalProtocolError(f"{self.partition}: the feed is closed")
