# SPDX-License-Identifier: Apache-2.0
"""Streams of records for a program, as the sink of a member of a group.

Delivery writes each partition's batches to a :class:`StreamWriter`, which offers them to the partition's stream.
``write`` returns when the program has finished the batch, so there is one batch of each partition in a stream at a
time: back-pressure and the memory budget work as with any other sink.

When a record is finished
    A record is finished when the task that got it asks its stream for the next one, or calls ``commit_offsets``. Only
    positions after finished records are ever committed. A batch taken as a whole is finished as a whole.

    Example: a batch holds offsets 100 to 149, and the program is at work on record 120. The position is 120. A commit
    by another task commits 120; a commit by the program's own task, after its work on the record, commits 121.

    Records of a compressed message of Kafka 0.7 share an offset, so the position stays at the message's start until all
    of them are finished (``RecordBatch.position_after``). Example: a message from 1011 to 1784 holds 100 records. After
    99 of them the position is 1011, after the last one 1784.

Release of a partition
    In a rebalance, the stream hands out no further record of the partition. The writer waits for the one that the
    program is working on, up to the time limit of the drain, and the position after it is committed. Example: the
    partition is released while the program is at work on record 120. The program finishes it and asks for the next one:
    121 is committed, and the new owner begins there. If the program takes longer than ``rebalance.drain_timeout_ms``,
    the new owner begins at 120.

Record objects are made ``_PIECE_RECORDS`` at a time. Before each piece, the event loop runs once, even if the program
never waits, and the claim is checked.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from typing import Final, Protocol

from consumerd.client.consumer_records import ConsumerRecord, make_records
from consumerd.errors import LeasePaused, OwnershipLost
from consumerd.group.listener import PartitionListener
from consumerd.model import Claim, TopicPartition
from consumerd.sinks.base import PartitionWriter, Start
from consumerd.wire.records import RecordBatch, check_headers

_PIECE_RECORDS: Final = 500
"""Records made at once; this takes less than a millisecond."""


class OfferedBatch:
    """Batch of one partition that a program takes from a stream.

    The program takes the records one by one, or the batch as a whole.
    """

    def __init__(self, batch: RecordBatch, claim: Claim) -> None:
        self.batch: Final = batch
        self.claim: Final = claim
        self.handed = 0
        """Number of records handed out."""
        self.at_once = 1
        """Number of records that the program has in hand at a time: one, or the rest of the batch."""
        self.finished = 0
        """Number of records known to be finished, the one in hand included."""
        self.withdrawn = False
        """True if no further record may be handed out."""
        self.ended = asyncio.Event()
        """Set when the stream is done with the batch."""

    @property
    def is_handed_out(self) -> bool:
        """True if no record is left to hand out.

        The program has got all records, or the rest of the batch was withdrawn.
        """
        return self.withdrawn or self.handed == len(self.batch)

    @property
    def position(self) -> int:
        """Position at which a successor begins, so that it gets every unfinished record.

        It is after the last finished record, and at the batch's start while there is none.
        """
        # who asks for the next one has finished those before
        return self.batch.position_after(max(self.finished, self.handed - self.at_once))


class OfferQueue:
    """Batches that wait in one stream, and the records that the program is working on.

    :class:`MessageStream` takes from it; the connector and the writers do everything else.
    """

    def __init__(self) -> None:
        self._offers: deque[OfferedBatch] = deque()
        self.offer: OfferedBatch | None = None
        """The batch that is being handed out."""
        self.piece: Iterator[ConsumerRecord] = iter(())
        """Records of it that were made and not handed out yet."""
        self._task: asyncio.Task[object] | None = None
        self._changed = asyncio.Event()
        self._error: BaseException | None = None
        self._closed = False

    # -- for the stream

    async def next_offer(self) -> OfferedBatch:
        """Return the next batch that has records left, for the calling task.

        The records that this task got before count as finished. The batch's partition is still claimed. Waits without a
        time limit. Raises the error that ends the stream, once, and then StopAsyncIteration.
        """
        self._task = asyncio.current_task()
        self._finish()
        await asyncio.sleep(0)  # a program that never waits must not stop the event loop
        while True:
            if self.offer is not None and self.offer.is_handed_out:
                self._end_offer()
            if self._error is not None:
                error, self._error, self._closed = self._error, None, True
                raise error
            if self._closed:
                raise StopAsyncIteration
            if self.offer is None:
                if not self._offers:
                    self._changed.clear()
                    await self._changed.wait()
                    continue
                self.offer = self._offers.popleft()
            offer = self.offer
            try:
                offer.claim.check()
            except LeasePaused:
                await _wait_claim(offer.claim)
            except OwnershipLost:
                offer.withdrawn = True  # its pipeline ends, too
            else:
                return offer

    # -- for writers

    def put(self, offer: OfferedBatch) -> None:
        """Add a batch to the stream; it has at least one record."""
        self._offers.append(offer)
        self._changed.set()

    def withdraw(self, offer: OfferedBatch) -> None:
        """Hand out no further record of a batch.

        The batch ends when the program has finished the record that it is working on.
        """
        offer.withdrawn = True
        if offer is self.offer:
            self.piece = iter(())
            if offer.finished == offer.handed or self._task is None or self._task.done():
                self._end_offer()
        elif offer in self._offers:
            self._offers.remove(offer)
            offer.ended.set()

    def drop(self, offer: OfferedBatch) -> None:
        """Remove a batch at once, because its writer is gone."""
        self.withdraw(offer)
        if offer is self.offer:
            self._end_offer()

    # -- for the connector

    def finish_own(self) -> None:
        """Count the records that the calling task is working on as finished."""
        if self._task is asyncio.current_task():
            self._finish()
            if self.offer is not None and self.offer.withdrawn:
                self._end_offer()

    def leave_own(self) -> None:
        """Leave the record that the calling task is working on unfinished.

        Releases and shutdown no longer wait for this record.
        """
        if self._task is asyncio.current_task():
            self._task = None

    def fail(self, error: BaseException) -> None:
        """End the stream with an error, which the program's next read raises."""
        if self._error is None and not self._closed:
            self._error = error
            self._changed.set()

    def close(self) -> None:
        """End the stream. Records that the program has not got yet stay unfinished.

        The next owner of their partitions reads them again.
        """
        self._closed = True
        self._changed.set()

    # --

    def _finish(self) -> None:
        if self.offer is not None:
            self.offer.finished = self.offer.handed

    def _end_offer(self) -> None:
        offer, self.offer = self.offer, None
        self.piece = iter(())
        if offer is not None:
            offer.ended.set()


class MessageStream:
    """Stream of the records of some partitions: an asynchronous iterator of :class:`ConsumerRecord`.

    One task iterates it. Records of one partition come in offset order. The iteration ends when the connector is shut
    down. If a policy stops one of the stream's partitions, or the connector fails, the iteration raises that error
    once, and then ends.
    """

    def __init__(self, offers: OfferQueue) -> None:
        self._offers = offers

    def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        """Return the stream itself."""
        return self

    async def __anext__(self) -> ConsumerRecord:
        """Return the next record; the one before counts as finished.

        Waits without a time limit; safe to cancel. Raises the error that ends the stream, once.
        """
        offers = self._offers
        for record in offers.piece:
            offers.offer.handed += 1  # type: ignore[union-attr]  # a piece belongs to an offer
            return record
        while True:
            offer = await offers.next_offer()
            begin, offer.at_once = offer.handed, 1
            offers.piece = iter(make_records(offer.batch.rows(begin, begin + _PIECE_RECORDS)))
            for record in offers.piece:
                offer.handed += 1
                return record

    async def batches(self) -> AsyncIterator[RecordBatch]:
        """Yield whole batches, as columns; ``RecordBatch.to_arrow`` makes Arrow's columns of them.

        A batch is finished when the next one is asked for. Until then its memory counts as used in
        ``fetch.memory_budget_bytes``. Raises the error that ends the stream, once.
        """
        while True:
            try:
                offer = await self._offers.next_offer()
            except StopAsyncIteration:
                return
            begin, offer.handed = offer.handed, len(offer.batch)
            offer.at_once = offer.handed - begin
            yield offer.batch.rest_rows(begin)


async def _wait_claim(claim: Claim) -> None:
    """Wait until a claim is usable or lost."""
    try:
        await claim.wait_usable()
    except OwnershipLost:
        return


class StreamChooser(Protocol):
    """Chooses the stream that gets a claimed partition's records."""

    def choose(self, claim: Claim) -> OfferQueue:
        """Return the queue of the partition's stream."""

    def release(self, partitions: Collection[TopicPartition]) -> None:
        """Note that these partitions are released or lost."""


class StreamsOfThreads:
    """Gives each partition to the stream of its thread.

    The owner node in ZooKeeper names the thread, and with it the stream's number.

    Args:
        find: Returns the queues of the streams that read a topic.
    """

    def __init__(self, find: Callable[[str], Sequence[OfferQueue]]) -> None:
        self._find = find

    def choose(self, claim: Claim) -> OfferQueue:
        """Return the queue of the claim's thread, which may change while the partition is claimed."""
        return self._find(claim.partition.topic)[int(claim.thread.rpartition("-")[2])]

    def release(self, partitions: Collection[TopicPartition]) -> None:
        """Do nothing: no partition has a stream of its own."""


class EvenStreams:
    """Gives each partition to the stream that has the fewest partitions.

    It stays there until it is released. For members that a broker coordinates: it assigns partitions to members, and
    knows nothing of their streams.

    Example: two streams read ``orders``, of which partitions 0, 2 and 4 are claimed. The first stream gets 0 and 4, the
    second one 2. When 0 is released and 6 claimed, 6 goes to the first stream.

    Args:
        find: Returns the queues of the streams that read a topic.
    """

    def __init__(self, find: Callable[[str], Sequence[OfferQueue]]) -> None:
        self._find = find
        self._chosen: dict[TopicPartition, OfferQueue] = {}

    def choose(self, claim: Claim) -> OfferQueue:
        """Return the queue of the partition, which is chosen at the first call."""
        if (known := self._chosen.get(claim.partition)) is not None:
            return known
        held = Counter(map(id, self._chosen.values()))
        fewest = min(self._find(claim.partition.topic), key=lambda queue: held[id(queue)])
        return self._chosen.setdefault(claim.partition, fewest)

    def release(self, partitions: Collection[TopicPartition]) -> None:
        """Forget the streams of these partitions."""
        for partition in partitions:
            self._chosen.pop(partition, None)


class StreamWriter:
    """Hands one partition's batches to the program's streams, for one claim of the partition.

    Args:
        choose: Returns the queue of the stream that gets the partition's records. It is called for each batch, since
            the stream may change.
    """

    resume_position = None
    request_id = None

    def __init__(self, claim: Claim, choose: Callable[[Claim], OfferQueue]) -> None:
        self._claim = claim
        self._choose = choose
        self._position = 0
        self._offer: OfferedBatch | None = None
        self._queue: OfferQueue | None = None
        self._stopped = False

    async def start(self, start: Start) -> None:
        """Set the position of the first record to hand to the program."""
        self._position = start.position

    @property
    def finished_position(self) -> int:
        """Offset after the last record that the program has finished."""
        return self._position if self._offer is None else max(self._position, self._offer.position)

    async def write(self, batch: RecordBatch) -> int:
        """Offer a batch to the program; return the offset after the finished records.

        Waits without a time limit until the program has finished the batch, or the partition is released. Raises
        CorruptMessageError for headers that cannot be read; then no record of the batch is offered.
        """
        check_headers(batch)
        if not len(batch):
            self._position = max(self._position, batch.next_offset)
        elif not self._stopped:
            await self._hand_over(OfferedBatch(batch.slice_from(self._position), self._claim))
        return self._position

    async def _hand_over(self, offer: OfferedBatch) -> None:
        queue = self._choose(self._claim)
        self._offer, self._queue = offer, queue
        queue.put(offer)
        try:
            await offer.ended.wait()
        finally:
            queue.drop(offer)
            self._position = self.finished_position
            self._offer = self._queue = None

    async def flush(self) -> int:
        """Return the offset after the last finished record; nothing is kept that could be flushed."""
        return self.finished_position

    def deadline(self) -> float | None:
        """Return None: the writer never has to be flushed by a certain time."""
        return None

    async def abandon(self) -> None:
        """Do nothing: there are no files or buffers to drop."""

    def stop(self) -> None:
        """Hand out no further record of the partition.

        A :meth:`write` that is under way returns when the program has finished the record that it is working on.
        """
        self._stopped = True
        if self._offer is not None and self._queue is not None:
            self._queue.withdraw(self._offer)


class StreamSink:
    """Sink whose destination is the program, with one writer for each partition.

    Args:
        chooser: Chooses the stream that gets a claimed partition's records.
    """

    def __init__(self, chooser: StreamChooser) -> None:
        self._chooser = chooser
        self._writers: dict[TopicPartition, StreamWriter] = {}

    async def open(self, claim: Claim) -> PartitionWriter:
        """Return a writer that hands the partition's records to the program, for one claim."""
        writer = self._writers[claim.partition] = StreamWriter(claim, self._chooser.choose)
        return writer

    async def close(self) -> None:
        """Do nothing: the sink holds no files or connections."""

    def stop(self, partitions: Collection[TopicPartition]) -> None:
        """Hand out no further record of these partitions, until they are opened again."""
        for partition in partitions:
            if (writer := self._writers.pop(partition, None)) is not None:
                writer.stop()
        self._chooser.release(partitions)


class StreamListener:
    """Passes claims and releases of partitions on to delivery.

    Before partitions are released, it stops the streams from handing out their records.
    """

    def __init__(self, deliveries: PartitionListener, sink: StreamSink) -> None:
        self._deliveries = deliveries
        self._sink = sink

    async def claimed(self, claims: Sequence[Claim]) -> None:
        """Begin to deliver these partitions."""
        await self._deliveries.claimed(claims)

    async def drain(self, partitions: Collection[TopicPartition], deadline_s: float) -> None:
        """Stop the streams of these partitions, then finish and commit what was handed out.

        Args:
            deadline_s: Time limit, in seconds.
        """
        self._sink.stop(partitions)
        await self._deliveries.drain(partitions, deadline_s)

    async def lost(self, partitions: Collection[TopicPartition]) -> None:
        """Stop the streams of these partitions, whose claims are revoked.

        Records that are not committed are dropped.
        """
        self._sink.stop(partitions)
        await self._deliveries.lost(partitions)
