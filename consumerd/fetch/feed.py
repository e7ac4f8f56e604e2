# SPDX-License-Identifier: Apache-2.0
"""Partition feeds: fetched record sets in, decoded batches out, in offset order.

A feed is the interface to the fetching of one partition. The broker loop calls :meth:`PartitionFeed.accept` with the
partition's part of each response; the delivery pipeline calls :meth:`PartitionFeed.next` for the next batch and
:meth:`PartitionFeed.done` when the sink has taken it. Four parts share the work::

    response -> intake -> backlog -> decoder -> batches -> pipeline

:mod:`consumerd.fetch.intake` cuts record sets into pieces and advances the cursor, :mod:`consumerd.fetch.backlog` keeps
them and their memory, :mod:`consumerd.fetch.decoding` decodes a piece on the event loop or in a thread, and
:mod:`consumerd.fetch.batches` returns the batches and fetches undecodable record sets again.

A piece is decoded only when the pipeline asks for it; with the native kernel, one more piece is decoded ahead.

Example: a response holds offsets 100 to 149 and 150 to 199, and the next request is sent for 200. Decoding shows that
the second batch is corrupt. The feed returns 100 to 149, drops the response for 200, and fetches 150 again. If that is
corrupt again, :meth:`PartitionFeed.next` raises CorruptMessageError.
"""

from __future__ import annotations

from typing import Final, Protocol

from consumerd.aio.backoff import Backoff
from consumerd.client.fetch_protocol import PartitionAnswer
from consumerd.errors import ConsumerdError, LocalProtocolError
from consumerd.fetch.backlog import Backlog
from consumerd.fetch.batches import BatchSource
from consumerd.fetch.buffer import Hold, PartitionAccount
from consumerd.fetch.cursor import Cursor, CursorState
from consumerd.fetch.decoding import PieceDecoder
from consumerd.fetch.intake import Intake
from consumerd.fetch.ports import FeedTools
from consumerd.model import Fault, TopicPartition
from consumerd.wire.records import RecordBatch

_LATE_ANSWER_S: Final = 2.0
"""Time, in seconds, after the end of a long poll until a missing response is reported."""


class FeedOwner(Protocol):
    """Interface of the fetcher that its partition feeds use."""

    def feed_ready(self, feed: PartitionFeed) -> None:
        """Decide anew about the feed's partition in the next request.

        Called when the feed can take more data, or resumes after a stop.
        """

    def find_fault(self, feed: PartitionFeed) -> Fault | None:
        """Return why the feed's partition cannot be fetched; None while it can be.

        The fault also has the time since when, in seconds of the fetcher's monotonic clock.
        """

    def feed_recovered(self, feed: PartitionFeed) -> None:
        """Clear the partition's fault after a response without error."""

    def feed_closed(self, feed: PartitionFeed) -> None:
        """Remove a closed feed from the fetcher."""


class PartitionFeed:
    """Fetched and decoded batches of one partition, in offset order.

    There is one consumer: calls of :meth:`next` must not overlap. Fetching stops at offset ``end`` (exclusive); None
    for no end. The last batch may contain records at or beyond ``end``, since batches are fetched whole.
    """

    def __init__(
        self, partition: TopicPartition, offset: int, tools: FeedTools, *, owner: FeedOwner, end: int | None = None
    ) -> None:
        settings = tools.settings
        self.cursor: Final = Cursor(partition, offset, limit_bytes=settings.max_message_bytes, end=end)
        self.backoff: Final = Backoff(
            initial_s=settings.backoff_initial_s, maximum_s=settings.backoff_maximum_s, random=tools.random
        )
        self.doubted_offset: int | None = None
        """Position that ListOffsets found above the log end offset once; it is checked a second time."""
        self.idle_since: float | None = tools.now()
        """Time at which the last call of :meth:`next` ended; None while a call waits."""
        self._tools: Final = tools
        self._owner: Final = owner
        self._backlog: Final = Backlog(self.cursor, ready=self._note_ready)
        self._intake: Final = Intake(self.cursor, self._backlog, tools)
        self._decoder: Final = PieceDecoder(partition, self._backlog, tools)
        self._batches: Final = BatchSource(self.cursor, self._backlog, self._decoder, tools, ready=self._note_ready)

    def __repr__(self) -> str:
        cursor = self.cursor
        return (
            f"<PartitionFeed {cursor.partition} at {cursor.position} {cursor.state.value}, {len(self._backlog)} chunks>"
        )

    # -- for everybody

    @property
    def partition(self) -> TopicPartition:
        """The partition that is fetched."""
        return self.cursor.partition

    @property
    def account(self) -> PartitionAccount:
        """The bytes of memory that the partition holds, fetched and at the sink."""
        return self._backlog.account

    @property
    def high_watermark(self) -> int | None:
        """High watermark in the newest response that named the partition.

        None before the first response, and for Kafka 0.7, whose responses have none.
        """
        high_watermark = self._intake.high_watermark
        return high_watermark if high_watermark is not None and high_watermark >= 0 else None

    @property
    def last_stable_offset(self) -> int | None:
        """Last stable offset in the newest response that named the partition.

        None before the first response, and if the broker does not report one.
        """
        return self._intake.last_stable_offset

    @property
    def unanswered_since(self) -> float | None:
        """Time at which the pending request was begun, if its response is overdue; else None.

        In seconds of the fetcher's monotonic clock. A response is overdue when it has not come some seconds after the
        end of the long poll.
        """
        asked_at = self.cursor.asked_at
        patience_s = self._tools.settings.max_wait_ms / 1000 + _LATE_ANSWER_S
        return asked_at if asked_at is not None and self._tools.now() - asked_at > patience_s else None

    @property
    def fault(self) -> Fault | None:
        """Reason why the partition cannot be fetched, and since when; None while it can be.

        The time is in seconds of the fetcher's monotonic clock.
        """
        return self._owner.find_fault(self)

    @property
    def heard_at(self) -> float | None:
        """Time at which the leader last confirmed the high watermark; None before the first response.

        In seconds of the fetcher's monotonic clock. A response within a fetch session (KIP-227) omits partitions
        without changes. So every response confirms the values of all partitions that the request covers, also of those
        that the response does not name.
        """
        noted_at, turn = self._intake.noted_at, self.cursor.round
        if noted_at is None or turn is None or turn.answered_at is None:
            return noted_at
        return max(noted_at, turn.answered_at)

    # -- for the pipeline

    async def next(self) -> RecordBatch:
        """Return the next batch; the caller releases it with :meth:`done`.

        A batch may have no records, only a higher ``next_offset``. Waits without timeout for records, memory, a leader.
        Safe to cancel: no records are lost. After an error the position is unchanged, and another call tries again.

        Raises OffsetOutOfRange (confirmed with ListOffsets), CorruptMessageError (twice in a row), RecordTooLarge,
        LocalProtocolError on a closed feed.
        """
        self._wake_up()
        self.idle_since = None
        try:
            batch = await self._next()
        finally:
            self.idle_since = self._tools.now()
        self._decoder.decode_ahead()
        return batch

    async def _next(self) -> RecordBatch:
        while True:
            if not self._batches.is_empty:
                batch = await self._batches.take()
                if batch is not None:
                    return batch
            elif (failure := self._backlog.take_failure()) is not None:
                try:
                    raise failure
                finally:
                    # The failure's traceback references this frame, which would keep the fetched bytes in memory.
                    del failure
            else:
                self._raise_closed()
                await self._backlog.wait()

    def done(self, batch: RecordBatch) -> None:
        """Return the memory of ``batch``, which the sink has taken, to the budget. Idempotent."""
        if self._backlog.give_back(batch) and self.account.has_emptied(self._tools.marks()):
            self._note_ready()

    def seek(self, position: int) -> None:
        """Continue at offset ``position``: the next batch begins there.

        Record sets fetched before are dropped. Raises LocalProtocolError on a closed feed.
        """
        self._raise_closed()
        self.doubted_offset = None
        self._batches.seek(position)

    def close(self) -> None:
        """Stop fetching and release all memory, including that of batches at the sink. Idempotent."""
        if self.cursor.state is CursorState.CLOSED:
            return
        self.cursor.close()
        self._batches.drop()
        self._backlog.give_back_all()
        self._backlog.take_failure()
        self._backlog.wake()
        self._owner.feed_closed(self)

    # -- for the broker loop and the fetcher

    def accept(self, answer: PartitionAnswer, asked_bytes: int, hold: Hold) -> bool:
        """Queue the record set of a response without error, and advance the fetch position.

        The caller ensures that the request was for the present position. Returns True if the response contained
        records.

        Args:
            answer: The partition's part of the response.
            asked_bytes: Limit that the request set for the partition's records, in bytes.
            hold: Memory reserved for the whole response; the bytes of the record set are split off from it.
        """
        self._intake.note(answer)
        self.doubted_offset = None
        if self.backoff.attempts:
            self.backoff.reset()
            self._owner.feed_recovered(self)
        if answer.records is None:
            return False
        if self._intake.take(answer.records, asked_bytes, hold) and self.idle_since is not None:
            self._decoder.decode_ahead()
        return True

    def park(self) -> None:
        """Drop undecoded record sets and stop fetching until :meth:`next` is called.

        The fetcher calls this under memory pressure. The dropped records are fetched again.
        """
        if self._backlog.failure is None and not self._batches.is_empty:
            self._batches.drop()
            self.cursor.park(self._backlog.position)

    def fail(self, error: ConsumerdError) -> None:
        """Stop fetching; :meth:`next` raises ``error`` after the batches that are already fetched.

        A call of :meth:`next` after that resumes fetching.
        """
        self._backlog.fail(error)

    def fail_too_large(self) -> None:
        """Make :meth:`next` fail: the message at the fetch position exceeds the largest accepted frame."""
        self._intake.fail_too_large(None)

    def _note_ready(self) -> None:
        self._owner.feed_ready(self)

    def _wake_up(self) -> None:
        """Resume fetching after parking, or after a failure that was raised."""
        waiting = self._backlog.failure is not None or not self._batches.is_empty
        if self.cursor.state is CursorState.PARKED or (self.cursor.state is CursorState.FAILED and not waiting):
            self.cursor.activate()
            self._note_ready()

    def _raise_closed(self) -> None:
        if self.cursor.state is CursorState.CLOSED:
            raise LocalProtocolError(f"{self.partition}: the feed is closed")
