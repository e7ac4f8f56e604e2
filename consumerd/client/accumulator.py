# SPDX-License-Identifier: Apache-2.0
"""Records on their way: batches by partition, in order, within a bound of bytes.

Pure: times are given to each call. Owns which record is in which batch, which batch may be sent now, and how much memory
all of it takes. Who waits for room or for an outcome is the producer's business.

A batch goes through::

    open ----- full, linger over, flushed, no room left -----> sealed ------ take -----> in flight
      |                                                          ^                         |   |
      +----------------------------- take -----------------------|-------------------------+   |
                                                                 +---- put_back (retry) -------+--> finished

Invariants:

- A partition has one batch in flight at most, and that is its oldest: nothing passes a batch that is tried again.
- What is charged for a record stays charged until its batch is finished, whatever happens in between.
- ``used_bytes`` never exceeds ``buffer_bytes``: room is reserved before a record is appended.
- A batch has one outcome, once; one that was split has those of its parts.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from consumerd.errors import ConsumerdError
from consumerd.model import TopicPartition
from consumerd.wire.modern.building import NewRecord

RECORD_OVERHEAD_BYTES: Final = 256
"""What a record takes in memory besides its key, value and headers: the objects around them, and its delivery."""

_WIRE_OVERHEAD_BYTES: Final = 34
"""Offset, size and header of a message of magic 1, the longest there is (a record of magic 2 has fewer)."""
_HEADER_OVERHEAD_BYTES: Final = 10


def wire_size(key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]] = ()) -> int:
    """Return the most bytes that a record takes in a request, uncompressed."""
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
    """Where a batch is: its first record's offset, None where nobody said (acks 0), and the time that the broker gave
    all its records, None where each has its own.
    """

    base_offset: int | None
    log_append_time_ms: int | None = None


class Batch:
    """Consecutive records of one partition that are sent together.

    ``outcome`` is None until it is known; then the records are let go, so that whoever keeps a delivery keeps no payload,
    but for their ``timestamps`` where they count. ``parts`` are the two batches that it was split into, the second of which
    begins at ``middle``. ``places`` says where each record stands among those that are sent, None if it is left out; None as
    a whole: in order.
    """

    __slots__ = (
        "attempts", "charged_bytes", "created", "last_failure", "middle", "not_before", "outcome", "partition", "parts",
        "places", "queue", "records", "sealed", "size_bytes", "timestamps", "to_send", "watchers",
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
        self.not_before = created
        self.last_failure: ConsumerdError | None = None
        self.outcome: Written | ConsumerdError | None = None
        self.timestamps: Sequence[int] = ()
        self.parts: tuple[Batch, Batch] | None = None
        self.middle = 0
        self.watchers: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return f"<Batch {self.partition}, {len(self.records)} records, {self.attempts} attempts, {self.outcome}>"

    def settle(self, outcome: Written | ConsumerdError) -> None:
        """Fix the outcome and tell whoever watches."""
        assert self.outcome is None, "a batch has one outcome"
        self.outcome = outcome
        if isinstance(outcome, Written) and outcome.log_append_time_ms is None:
            self.timestamps = array("q", [one.timestamp for one in self.to_send])
        self._let_go()
        self._notify()

    def replace(self, left: Batch, right: Batch, middle: int) -> None:
        """Leave the records to two others, and tell whoever watches."""
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
    """One partition's batches, oldest first; the newest may be open."""

    partition: TopicPartition
    batches: deque[Batch] = field(default_factory=deque)
    in_flight: bool = False


class Accumulator:
    """All partitions' queues.

    A batch is ready at ``batch_bytes`` (one record may be larger, and is then alone) or ``linger_s`` after its first record.
    """

    def __init__(self, *, batch_bytes: int, linger_s: float, buffer_bytes: int) -> None:
        self._batch_bytes = batch_bytes
        self._linger_s = linger_s
        self._buffer_bytes = buffer_bytes
        self._active: dict[TopicPartition, PartitionQueue] = {}
        self.used_bytes = 0

    @property
    def empty(self) -> bool:
        """Whether nothing is on its way."""
        return not self._active

    def reserve(self, size: int) -> bool:
        """Take room for a record of this :func:`wire_size`, and the objects around it; False if there is not enough."""
        used_bytes = self.used_bytes + size + RECORD_OVERHEAD_BYTES
        if used_bytes > self._buffer_bytes:
            return False
        self.used_bytes = used_bytes
        return True

    def give_back(self, size: int) -> None:
        """Return what was reserved for a record that is not appended after all."""
        self.used_bytes -= size + RECORD_OVERHEAD_BYTES

    def opens_batch(self, queue: PartitionQueue, size: int) -> bool:
        """Whether a record of this size would be the first one of a batch, behind others of its partition."""
        batches = queue.batches
        return bool(batches) and (batches[-1].sealed or batches[-1].size_bytes + size > self._batch_bytes)

    def append(self, queue: PartitionQueue, record: NewRecord, size: int, now: float) -> Batch:
        """Put a record, for which room was reserved, at the end of its partition; it is the last one of the batch returned."""
        batches = queue.batches
        batch = batches[-1] if batches else None
        if batch is None or batch.sealed or batch.size_bytes + size > self._batch_bytes:
            if batch is None:
                self._active[queue.partition] = queue
            else:
                batch.sealed = True
            batch = Batch(queue, now)
            batches.append(batch)
        batch.records.append(record)
        batch.size_bytes += size
        batch.charged_bytes += size + RECORD_OVERHEAD_BYTES
        if batch.size_bytes >= self._batch_bytes:
            batch.sealed = True
        return batch

    # -- what may be sent

    def waiting(self) -> Iterator[Batch]:
        """Iterate over the batch of each partition that is next to be sent, those of partitions in flight left out."""
        for queue in self._active.values():
            if not queue.in_flight:
                yield queue.batches[0]

    def due_at(self, batch: Batch) -> float:
        """Return when a waiting batch may be sent."""
        if batch.sealed or batch.attempts:
            return batch.not_before
        return max(batch.not_before, batch.created + self._linger_s)

    def seal_all(self) -> None:
        """Let every record that is here now be sent without lingering."""
        for queue in self._active.values():
            queue.batches[-1].sealed = True

    def unfinished(self) -> list[Batch]:
        """Return all batches whose outcome is open, those of each partition in order."""
        return [batch for queue in self._active.values() for batch in queue.batches]

    # -- what becomes of it

    def take(self, batch: Batch) -> None:
        """Begin to send a partition's oldest batch; it takes no more records."""
        queue = batch.queue
        assert not queue.in_flight, "one in flight a partition"
        assert queue.batches[0] is batch, "the oldest goes first"
        queue.in_flight = True
        batch.sealed = True
        batch.attempts += 1
        # those that went around all others come first next time
        del self._active[queue.partition]
        self._active[queue.partition] = queue

    def put_back(self, batch: Batch, failure: ConsumerdError, not_before: float) -> None:
        """Take a batch back that was in flight; it is still its partition's first."""
        assert batch.queue.in_flight
        batch.queue.in_flight = False
        batch.last_failure = failure
        batch.not_before = not_before

    def split(self, batch: Batch, now: float) -> None:
        """Put two halves in the place of a batch in flight that has more than one record to send."""
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
            part.not_before = now
        # what was charged is given back with the second half: it is finished last
        right.charged_bytes = batch.charged_bytes
        batch.charged_bytes = 0
        queue.batches.popleft()
        queue.batches.extendleft((right, left))
        queue.in_flight = False
        batch.replace(left, right, middle)

    def finish(self, batch: Batch, outcome: Written | ConsumerdError) -> None:
        """Settle a partition's oldest batch, in flight or not, and give its room back."""
        queue = batch.queue
        assert queue.batches[0] is batch, "the oldest is finished first"
        queue.batches.popleft()
        queue.in_flight = False
        if not queue.batches:
            del self._active[queue.partition]
        self.used_bytes -= batch.charged_bytes
        batch.settle(outcome)
