# SPDX-License-Identifier: Apache-2.0
"""Record accumulator of the producer: batches per partition, in order, within a memory limit.

The caller passes the current time, or a clock, to each call. The accumulator assigns records to batches, decides which
batch may be sent, and counts memory. It never waits: the producer makes callers wait for memory and for outcomes.

States of a batch. A *sealed* batch accepts no more records; *linger time* is how long an open one waits for more::

    open ---- full, linger time over, flush, memory full ----> sealed ------ take -----> in flight
      |                                                          ^                         |   |
      +----------------------------- take -----------------------|-------------------------+   |
                                                                 +---- put_back (retry) -------+--> finished

Invariants:

- A partition has at most one batch in flight, and it is the oldest one: no batch overtakes one that is retried.
- The memory charged for a record stays charged until its batch is finished.
- ``used_bytes`` never exceeds ``buffer_bytes``: memory is reserved before a record is appended.
- A batch has exactly one outcome. A batch that was split has the outcomes of its two parts.

Example: records 1 to 5 fill a batch, records 6 and 7 are in the open batch after it. The first batch is taken and in
flight. It fails with NOT_LEADER_OR_FOLLOWER and is put back; records 6 and 7 have to wait. It is sent to the new leader
and finished, then the second batch is taken.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from consumerd.client.producer_actions import BatchSequence
from consumerd.errors import ConsumerdError, RequestNotSent
from consumerd.model import TopicPartition
from consumerd.wire.records import NewRecord

RECORD_OVERHEAD_BYTES: Final = 256
"""Memory for the Python objects of a record and its delivery, besides key, value and headers, in bytes."""

_WIRE_OVERHEAD_BYTES: Final = 34
"""Offset, size and header of a message of magic 1, the largest; a record of magic 2 has fewer bytes."""
_HEADER_OVERHEAD_BYTES: Final = 10


def wire_size(key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]] = ()) -> int:
    """Return an upper bound of a record's size in a request, in bytes, uncompressed."""
    size = _WIRE_OVERHEAD_BYTES
    if key is not None:
        size += len(key)
    if value is not None:
        size += len(value)
    for name, content in headers:
        # a character takes at most four bytes
        size += _HEADER_OVERHEAD_BYTES + 4 * len(name) + len(content or b"")
    return size


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """Outcome of a batch that a broker has written.

    Args:
        base_offset: Offset of its first record. None if unknown: the records were sent, and nothing tells if they are
            stored (acks 0, and brokers of Kafka 0.6 and 0.7).
        log_append_time_ms: Broker's timestamp for all records, in ms since the epoch; None if each record keeps its
            own.
    """

    base_offset: int | None
    log_append_time_ms: int | None = None


class Batch:
    """Consecutive records of one partition that are sent together by the producer.

    Attributes:
        outcome: Result of sending: written, or the error; None until it is known. When it is set, the batch drops its
            records, so that a program that keeps a delivery keeps no payload in memory.
        in_doubt: True if an attempt that has failed may have written the records.
        timestamps: Timestamps of the records, in ms since the epoch; kept after the records were dropped, unless the
            broker's timestamp applies to all.
        parts: The two batches that this one was split into; None if it was not split.
        middle: Index of the first record of the second part.
        places: For each record, its index among those that are sent (``to_send``); None for one that hooks left out.
            None as a whole if the records that are sent are those that were appended.
        sealed: True if the batch accepts no more records.
        sequence: Producer id, epoch and first sequence number, from the first attempt on; None without idempotence.
        not_before: Time before which the batch is not sent, as of a monotonic clock in seconds.
        watchers: Functions that are called once, on the outcome or a split.
    """

    __slots__ = (
        "attempts", "charged_bytes", "created", "in_doubt", "last_failure", "middle", "not_before", "outcome",
        "partition", "parts", "places", "queue", "records", "sealed", "sequence", "size_bytes", "timestamps", "to_send",
        "watchers",
    )  # fmt: skip

    def __init__(self, queue: PartitionQueue, created: float) -> None:
        self.queue: Final = queue
        self.partition: Final = queue.partition
        self.created: Final = created
        self.records: list[NewRecord] = []
        self.to_send: Sequence[NewRecord] = self.records
        self.places: Sequence[int | None] | None = None
        self.size_bytes = 0
        self.charged_bytes = 0
        self.sealed = False
        self.attempts = 0
        self.sequence: BatchSequence | None = None
        self.in_doubt = False
        self.not_before = created
        self.last_failure: ConsumerdError | None = None
        self.outcome: Written | ConsumerdError | None = None
        self.timestamps: Sequence[int] = ()
        self.parts: tuple[Batch, Batch] | None = None
        self.middle = 0
        self.watchers: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return f"<Batch {self.partition}, {len(self.records)} records, {self.attempts} attempts, {self.outcome}>"

    @property
    def may_be_written(self) -> bool:
        """True if a failed attempt, or the one in flight, may have written the records."""
        return self.in_doubt or (self.queue.in_flight and self.queue.batches[0] is self)

    def settle(self, outcome: Written | ConsumerdError) -> None:
        """Set the outcome, written or an error; drop the records, and call the watchers."""
        assert self.outcome is None, "a batch has one outcome"
        self.outcome = outcome
        if isinstance(outcome, Written) and outcome.log_append_time_ms is None:
            self.timestamps = array("q", [one.timestamp for one in self.to_send])
        self._let_go()
        self._notify()

    def replace(self, left: Batch, right: Batch, middle: int) -> None:
        """Note that two batches take over this batch's records after a split; call the watchers.

        Args:
            left: Batch of the records before ``middle``.
            right: Batch of the other records.
            middle: Index of the first record of ``right``.
        """
        self.parts, self.middle = (left, right), middle
        self._let_go()
        self._notify()

    def _let_go(self) -> None:
        self.records = []
        self.to_send = self.records

    def _notify(self) -> None:
        watchers, self.watchers = self.watchers, []
        for watcher in watchers:
            watcher()


@dataclass(slots=True, eq=False)
class PartitionQueue:
    """Unfinished batches of one partition, oldest first; only the newest accepts more records.

    ``index`` is the partition's present place among the candidates of partitioners.
    """

    partition: TopicPartition
    index: int = 0
    batches: deque[Batch] = field(default_factory=deque)
    in_flight: bool = False


class Accumulator:
    """Unfinished batches of all partitions of a producer, and the memory that they use.

    Args:
        batch_bytes: Size at which a batch accepts no more records. A larger record gets a batch of its own.
        linger_s: Time that a batch waits for more records, in seconds.
        buffer_bytes: Memory limit of all batches together, in bytes.
    """

    def __init__(self, *, batch_bytes: int, linger_s: float, buffer_bytes: int) -> None:
        self._batch_bytes = batch_bytes
        self._linger_s = linger_s
        self._buffer_bytes = buffer_bytes
        self._active: dict[TopicPartition, PartitionQueue] = {}
        self.used_bytes = 0

    def reserve(self, size: int) -> bool:
        """Reserve memory for a record; return False if there is not enough.

        Args:
            size: Size of the record by :func:`wire_size`, in bytes.
        """
        used_bytes = self.used_bytes + size + RECORD_OVERHEAD_BYTES
        if used_bytes > self._buffer_bytes:
            return False
        self.used_bytes = used_bytes
        return True

    def give_back(self, size: int) -> None:
        """Release the memory that was reserved for a record that is not appended.

        Args:
            size: Size of the record by :func:`wire_size`, in bytes.
        """
        self.used_bytes -= size + RECORD_OVERHEAD_BYTES

    def opens_batch(self, queue: PartitionQueue, size: int) -> bool:
        """Return True if a record would begin a second or later batch of its partition.

        The newest batch is sealed then, or the record does not fit into it. False if the partition has no batch.

        Args:
            size: Size of the record by :func:`wire_size`, in bytes.
        """
        batches = queue.batches
        return bool(batches) and (batches[-1].sealed or batches[-1].size_bytes + size > self._batch_bytes)

    def append(self, queue: PartitionQueue, record: NewRecord, size: int, now: Callable[[], float]) -> Batch:
        """Append a record, whose memory is reserved, to its partition; return its batch.

        Args:
            size: Size of the record by :func:`wire_size`, in bytes.
            now: Monotonic clock, in seconds; it is read only for the first record of a batch.
        """
        batches = queue.batches
        batch = batches[-1] if batches else None
        if batch is None or batch.sealed or batch.size_bytes + size > self._batch_bytes:
            if batch is None:
                self._active[queue.partition] = queue
            else:
                batch.sealed = True
            batch = Batch(queue, now())
            batches.append(batch)
        batch.records.append(record)
        batch.size_bytes += size
        batch.charged_bytes += size + RECORD_OVERHEAD_BYTES
        if batch.size_bytes >= self._batch_bytes:
            batch.sealed = True
        return batch

    # -- what may be sent

    def waiting(self) -> Iterator[Batch]:
        """Yield the oldest batch of each partition that has no batch in flight."""
        for queue in self._active.values():
            if not queue.in_flight:
                yield queue.batches[0]

    def due_at(self, batch: Batch) -> float:
        """Return the time from which a waiting batch may be sent.

        The time is that of a monotonic clock, in seconds: the end of the linger time, or of the backoff before a retry.
        """
        if batch.sealed or batch.attempts:
            return batch.not_before
        return max(batch.not_before, batch.created + self._linger_s)

    def seal_all(self) -> None:
        """Make all batches ready to be sent at once, without waiting for more records.

        Later records begin new batches.
        """
        for queue in self._active.values():
            queue.batches[-1].sealed = True

    def unfinished(self) -> list[Batch]:
        """Return all batches without an outcome; those of a partition are oldest first."""
        return [batch for queue in self._active.values() for batch in queue.batches]

    # -- what becomes of it

    def take(self, batch: Batch) -> None:
        """Mark a partition's oldest batch as in flight; it accepts no more records."""
        queue = batch.queue
        assert not queue.in_flight, "one in flight a partition"
        assert queue.batches[0] is batch, "the oldest goes first"
        queue.in_flight = True
        batch.sealed = True
        batch.attempts += 1
        # to the end of the iteration order: the next round begins with partitions that were not served yet
        del self._active[queue.partition]
        self._active[queue.partition] = queue

    def put_back(self, batch: Batch, failure: ConsumerdError, not_before: float) -> None:
        """Return a batch in flight to its partition's queue, as the first, for a retry.

        Args:
            failure: Reason for the retry.
            not_before: Time of the retry, of a monotonic clock in seconds.
        """
        assert batch.queue.in_flight
        batch.queue.in_flight = False
        batch.in_doubt = batch.in_doubt or not isinstance(failure, RequestNotSent)
        batch.last_failure = failure
        batch.not_before = not_before

    def split(self, batch: Batch, now: float) -> None:
        """Replace a batch in flight by two halves, to be sent one after the other.

        The batch must have several records to send.

        Args:
            now: Present time of a monotonic clock, in seconds, from which the halves may be sent.
        """
        queue = batch.queue
        assert queue.in_flight
        assert len(batch.to_send) > 1
        left, right = Batch(queue, batch.created), Batch(queue, batch.created)
        middle = len(batch.to_send) // 2
        for part, to_send in ((left, batch.to_send[:middle]), (right, batch.to_send[middle:])):
            part.records = part.to_send = list(to_send)
            part.size_bytes = sum(wire_size(one.key, one.value, one.headers) for one in to_send)
            part.sealed = True
            part.attempts = batch.attempts
            part.in_doubt = batch.in_doubt
            part.not_before = now
        # the memory is released with the second half, which is finished last
        right.charged_bytes = batch.charged_bytes
        batch.charged_bytes = 0
        queue.batches.popleft()
        queue.batches.extendleft((right, left))
        queue.in_flight = False
        batch.replace(left, right, middle)

    def finish(self, batch: Batch, outcome: Written | ConsumerdError) -> None:
        """Set the outcome of a partition's oldest batch, and release its memory.

        The batch need not be in flight.
        """
        queue = batch.queue
        assert queue.batches[0] is batch, "the oldest is finished first"
        queue.batches.popleft()
        queue.in_flight = False
        if not queue.batches:
            del self._active[queue.partition]
        self.used_bytes -= batch.charged_bytes
        batch.settle(outcome)
