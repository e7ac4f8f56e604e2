# SPDX-License-Identifier: Apache-2.0
"""Delivery of a produced record: its outcome, and its partition and offset."""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from consumerd.client.accumulator import Batch, Written
from consumerd.errors import ConsumerdError, RecordLeftOut
from consumerd.model import BrokerId
from consumerd.wire.record_fields import NO_TIMESTAMP


# Never changed, but not frozen: one is made for each record that is awaited, and a frozen one takes three times as
# long.
# It is made by position, which takes a third of the time that keywords take.
@dataclass(slots=True, unsafe_hash=True)
class RecordMetadata:
    """Topic, partition, offset and timestamp of a record that was written, or only sent.

    Args:
        partition: Number of the partition; in Kafka 0.6 and 0.7 its number on ``broker``.
        offset: None if the record was sent, and the broker does not tell if it was stored: with acks 0, and always in
            Kafka 0.6 and 0.7.
        timestamp_ms: In ms since the epoch: the broker's timestamp if the topic uses LogAppendTime, else the record's
            own (formats before 0.10 do not store it). None if it has none.
        broker: Broker to which the partition belongs in Kafka 0.6 and 0.7; None in later releases.
    """

    topic: str
    partition: int
    offset: int | None
    timestamp_ms: int | None
    broker: BrokerId | None = None


class Delivery:
    """The pending outcome of one record; ``await`` it for its :class:`RecordMetadata`.

    Awaiting is optional and has no influence on the record. It takes at most the producer's ``delivery_timeout_s`` plus
    ``request_timeout_s``. It raises ProduceError if the record was not written, or may not have been. Several tasks may
    await it, and cancelling one of them has no effect on the record.
    """

    __slots__ = ("_batch", "_index")

    def __init__(self, batch: Batch, index: int) -> None:
        self._batch = batch
        self._index = index

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        return self._wait().__await__()

    def __repr__(self) -> str:
        return f"<Delivery {self._batch.partition}, {'done' if self.done else 'on its way'}>"

    @property
    def done(self) -> bool:
        """True once :meth:`result` returns or raises the outcome."""
        self._follow()
        return self._batch.outcome is not None

    def result(self) -> RecordMetadata:
        """Return the partition and offset where the record was written.

        Raises ProduceError if it was not written, InvalidStateError while there is no outcome.
        """
        self._follow()
        batch, index = self._batch, self._index
        outcome = batch.outcome
        if outcome is None:
            raise asyncio.InvalidStateError(f"{batch.partition}: the record is still on its way")
        place = index if batch.places is None else batch.places[index]
        if place is None:
            raise RecordLeftOut(f"{batch.partition}: a hook of the producer has left the record out")
        if isinstance(outcome, ConsumerdError):
            raise _again(outcome)
        return _metadata(batch, place, outcome)

    async def _wait(self) -> RecordMetadata:
        while not self.done:
            await _wait_change(self._batch)
        return self.result()

    def _follow(self) -> None:
        """Switch to the part that contains the record, if its batch was split."""
        while (parts := self._batch.parts) is not None:
            left, right = parts
            places = self._batch.places
            place = self._index if places is None else places[self._index]
            if place is None:
                return
            middle = self._batch.middle
            self._batch, self._index = (left, place) if place < middle else (right, place - middle)


async def wait_settled(batch: Batch) -> None:
    """Wait for the outcome of a producer's batch, or of both halves after a split.

    Takes at most the producer's delivery timeout plus one request timeout. Cancelling has no effect on the batch.
    """
    while batch.outcome is None:
        if batch.parts is not None:
            for part in batch.parts:
                await wait_settled(part)
            return
        await _wait_change(batch)


async def _wait_change(batch: Batch) -> None:
    changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake() -> None:
        if not changed.done():
            changed.set_result(None)

    batch.watchers.append(wake)
    try:
        await changed
    finally:
        with contextlib.suppress(ValueError):  # already called and removed
            batch.watchers.remove(wake)


def _metadata(batch: Batch, place: int, written: Written) -> RecordMetadata:
    timestamp = written.log_append_time_ms
    if timestamp is None:
        own = batch.timestamps[place]
        timestamp = None if own == NO_TIMESTAMP else own
    topic, key = batch.partition.topic, batch.partition.partition
    offset = None if written.base_offset is None else written.base_offset + place
    return RecordMetadata(topic, key.number, offset, timestamp, key.broker)


def _again(failure: ConsumerdError) -> ConsumerdError:
    """Return a copy of an exception.

    Raising one exception in several tasks would mix their tracebacks.
    """
    again = copy.copy(failure)
    again.__cause__ = failure.__cause__
    return again
