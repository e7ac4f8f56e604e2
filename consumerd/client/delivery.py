# SPDX-License-Identifier: Apache-2.0
"""What becomes of a record that was given to a producer: :class:`Delivery`, and where it stands then."""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from consumerd.client.accumulator import Batch, Written
from consumerd.errors import ConsumerdError, RecordLeftOut
from consumerd.wire.records import NO_TIMESTAMP


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordMetadata:
    """Where a record was written.

    ``offset`` is None where the broker was asked for no answer (acks 0). ``timestamp_ms`` is the broker's where the topic says
    so, else the record's own, which formats before 0.10 do not keep; None where it has none.
    """

    topic: str
    partition: int
    offset: int | None
    timestamp_ms: int | None


class Delivery:
    """One record on its way. ``await`` it for its :class:`RecordMetadata`; or never, its fate does not depend on it.

    Awaiting is bounded by the producer's delivery timeout and one request's, and raises ProduceError: what is
    known of the record that was not written, or may not have been. Cancel freely: the record goes its way. Any number of
    tasks may wait, any number of times.
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
        """Whether :meth:`result` would return or raise."""
        self._follow()
        return self._batch.outcome is not None

    def result(self) -> RecordMetadata:
        """Return where the record is. Raises ProduceError if it was not written, InvalidStateError while that is open."""
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
        """Go to the part that holds the record, if its batch was split."""
        while (parts := self._batch.parts) is not None:
            left, right = parts
            places = self._batch.places
            place = self._index if places is None else places[self._index]
            if place is None:
                return
            middle = self._batch.middle
            self._batch, self._index = (left, place) if place < middle else (right, place - middle)


async def wait_settled(batch: Batch) -> None:
    """Wait for a batch's outcome, or for those of all its parts. Bounded as :class:`Delivery` is. Cancel freely."""
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
        with contextlib.suppress(ValueError):  # it was called, and so forgotten
            batch.watchers.remove(wake)


def _metadata(batch: Batch, place: int, written: Written) -> RecordMetadata:
    timestamp = written.log_append_time_ms
    if timestamp is None:
        own = batch.timestamps[place]
        timestamp = None if own == NO_TIMESTAMP else own
    return RecordMetadata(
        topic=batch.partition.topic,
        partition=batch.partition.partition.number,
        offset=None if written.base_offset is None else written.base_offset + place,
        timestamp_ms=timestamp,
    )


def _again(failure: ConsumerdError) -> ConsumerdError:
    """Return a new exception like this one: raised in several tasks, one would mix up their tracebacks."""
    again = copy.copy(failure)
    again.__cause__ = failure.__cause__
    return again
