# SPDX-License-Identifier: Apache-2.0
"""Producers of one log: epochs, sequence numbers, open and aborted transactions. Pure.

A batch of a producer with an id is appended only if its epoch is not older than the last one, and its first sequence
number follows the last one of its epoch. A batch that the log has already is not appended again. As Kafka 1.1, the last
five batches of each producer are known (``ProducerStateManager``, ``ProducerAppendInfo``, ``ProducerIdEntry``).

The *last stable offset* is the first offset of the oldest open transaction; without one it is the log's end. Readers of
committed records read up to it, and need the list of aborted transactions to leave out their batches.

Example: producer 7 writes 100-104 in a transaction, producer 8 writes 105, and the abort marker of 7 gets 106. Before
the marker the last stable offset is 100, after it 107. Readers of committed records see 105 alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from consumerd.embedded.log.errors import ForgottenProducer, SequenceGap, StaleEpoch
from consumerd.embedded.log.headers import UnitHeader
from consumerd.model import TopicPartition
from consumerd.wire.modern.extent import BATCH_MAGIC
from consumerd.wire.modern.record_batch import CONTROL_FLAG, HEADER, HEADER_BYTES, TRANSACTIONAL_FLAG, is_abort_marker
from consumerd.wire.record_fields import advance_sequence

_KNOWN_BATCHES: Final = 5
"""Batches of a producer by which duplicates are found, as many as a producer may have in flight."""
NO_SEQUENCE: Final = -1


class OwnedBatch(NamedTuple):
    """The header of a batch from a producer with an id."""

    producer_id: int
    epoch: int
    first: int
    last: int
    base_offset: int
    last_offset: int
    max_timestamp: int
    is_transactional: bool
    is_control: bool
    is_abort: bool


def find_owner(unit: bytes | bytearray | memoryview) -> OwnedBatch | None:
    """Return what a batch says of its producer; None without one. Raises CorruptMessageError."""
    base_offset, _, _, _, _, attributes, delta, _, newest, producer_id, epoch, first, count = HEADER.unpack_from(unit)
    if producer_id < 0:
        return None
    is_control = bool(attributes & CONTROL_FLAG)
    return OwnedBatch(
        producer_id=producer_id,
        epoch=epoch,
        first=first,
        last=NO_SEQUENCE if first == NO_SEQUENCE else advance_sequence(first, delta),
        base_offset=base_offset,
        last_offset=base_offset + delta,
        max_timestamp=newest,
        is_transactional=bool(attributes & TRANSACTIONAL_FLAG),
        is_control=is_control,
        is_abort=is_control and count > 0 and is_abort_marker(unit, HEADER_BYTES, len(unit)),
    )


def find_owners(data: bytes | bytearray, units: Iterable[UnitHeader]) -> list[OwnedBatch]:
    """Return the batches of producers with an id. Raises CorruptMessageError.

    Args:
        units: Headers of the messages and batches in ``data``.
    """
    view = memoryview(data)
    batches = (unit for unit in units if unit.magic == BATCH_MAGIC)
    found = (find_owner(view[unit.position : unit.end]) for unit in batches)
    return [owner for owner in found if owner is not None]


@dataclass(frozen=True, slots=True)
class AbortedSpan:
    """An aborted transaction of a log: its first record, and its marker."""

    producer_id: int
    first_offset: int
    marker_offset: int

    def covers(self, batch: OwnedBatch) -> bool:
        """Return True if a batch belongs to the transaction."""
        return (
            batch.producer_id == self.producer_id
            and batch.is_transactional
            and self.first_offset <= batch.base_offset < self.marker_offset
        )


@dataclass(slots=True)
class _Producer:
    epoch: int
    batches: deque[OwnedBatch] = field(default_factory=lambda: deque(maxlen=_KNOWN_BATCHES))
    open_from: int | None = None


class LogProducers:
    """Producers with an id that have written to one log."""

    def __init__(self, partition: TopicPartition) -> None:
        self._partition = partition
        self._producers: dict[int, _Producer] = {}
        self.aborted: Sequence[AbortedSpan] = ()
        """Aborted transactions, in the order of their markers; replaced, never changed."""
        self.first_unstable: int | None = None
        """First offset of the oldest open transaction; None without one."""

    def check(self, batch: OwnedBatch) -> OwnedBatch | None:
        """Check a batch of a client; return the batch that it repeats, if any.

        Raises StaleEpoch, SequenceGap, ForgottenProducer.
        """
        known = self._producers.get(batch.producer_id)
        where = f"{self._partition}: producer {batch.producer_id}"
        if known is None:
            if batch.first:
                raise ForgottenProducer(f"{where}: sequence {batch.first}, and nothing of it is here")
            return None
        if batch.epoch < known.epoch:
            raise StaleEpoch(f"{where}: epoch {batch.epoch}, the newest is {known.epoch}")
        last = known.batches[-1].last if known.batches else NO_SEQUENCE
        if batch.epoch > known.epoch:
            last = NO_SEQUENCE
        else:
            for one in known.batches:
                if (one.first, one.last) == (batch.first, batch.last):
                    return one
        expected = 0 if last == NO_SEQUENCE else advance_sequence(last, 1)
        if batch.first != expected:
            raise SequenceGap(f"{where}: sequence {batch.first}, expected {expected}")
        return None

    def check_epoch(self, producer_id: int, epoch: int) -> None:
        """Check the epoch of a marker, or of offsets of a group. Raises StaleEpoch."""
        known = self._producers.get(producer_id)
        if known is not None and epoch < known.epoch:
            raise StaleEpoch(f"{self._partition}: producer {producer_id}: epoch {epoch}, the newest is {known.epoch}")

    def note(self, batch: OwnedBatch) -> None:
        """Note a batch that is, or is about to be, in the log."""
        known = self._producers.setdefault(batch.producer_id, _Producer(batch.epoch))
        if batch.epoch > known.epoch:
            known.epoch = batch.epoch
            known.batches.clear()
        if batch.is_control:
            self._end(known, batch)
            return
        if batch.first != NO_SEQUENCE:
            known.batches.append(batch)
        if batch.is_transactional and known.open_from is None:
            known.open_from = batch.base_offset
            if self.first_unstable is None:
                self.first_unstable = batch.base_offset

    def _end(self, known: _Producer, marker: OwnedBatch) -> None:
        opened, known.open_from = known.open_from, None
        if marker.is_abort and opened is not None:
            self.aborted = (*self.aborted, AbortedSpan(marker.producer_id, opened, marker.last_offset))
        self.first_unstable = min(
            (one.open_from for one in self._producers.values() if one.open_from is not None), default=None
        )

    def forget_before(self, start_offset: int) -> None:
        """Forget the producers and transactions whose batches retention has removed."""
        for producer_id, known in list(self._producers.items()):
            is_gone = not known.batches or known.batches[-1].last_offset < start_offset
            if is_gone and known.open_from is None:
                del self._producers[producer_id]
        if self.aborted and self.aborted[0].marker_offset < start_offset:
            self.aborted = tuple(one for one in self.aborted if one.marker_offset >= start_offset)

    def list_aborted(self, start: int, end: int) -> list[AbortedSpan]:
        """Return the aborted transactions of which records may be in ``[start, end)``."""
        return [one for one in self.aborted if one.marker_offset >= start and one.first_offset < end]
