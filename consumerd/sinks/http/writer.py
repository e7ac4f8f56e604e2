# SPDX-License-Identifier: Apache-2.0
"""Sends one partition's records to an HTTP endpoint, for one claim.

Records are encoded as they come, cut into runs (``outbox``), and each full run is sent at once. By default the next
run is sent when the one before was accepted, so records arrive in order.

Errors
    A request that should be sent again raises RetriableSinkError without a position: everything is kept, and the
    pipeline makes the same call again after its backoff.

    A refused record is found by halving. Example: offset 130 of the run 100-149 is bad. 100-149 is refused, 100-124
    accepted, 125-149 refused, 125-136 refused, ..., until 130-130 is refused. Then everything from 130 on is dropped.
    If the batch at hand begins there, PermanentSinkError names its row. Otherwise RetriableSinkError makes the
    pipeline fetch from 130, and the next batch, which begins with it, is refused without a request. In both cases the
    policy ``on_rejected`` decides, and the records before 130 are acknowledged and not sent again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from consumerd.errors import ConsumerdError, LeasePaused, PermanentSinkError, RetriableSinkError
from consumerd.model import Claim
from consumerd.sinks.base import Start
from consumerd.sinks.http.memory import RunMemory
from consumerd.sinks.http.outbox import Outbox, RecordRun, make_key_prefix
from consumerd.sinks.lines import PIECE_BYTES, encode_lines
from consumerd.sinks.refused import RefusedRecord
from consumerd.wire.records import RecordBatch

_FRAME_BYTES: Final = 250
"""Estimated memory of a line beside its key and value, in bytes."""
_ESCAPED: Final = 2
"""Estimated size of keys and values in lines, in sizes of their batch."""


class RunSender(Protocol):
    """The sink, as its writers see it: threads to encode in, requests, memory."""

    @property
    def memory(self) -> RunMemory:
        """Memory of the records that all writers hold."""

    @property
    def patience_s(self) -> float:
        """Longest time, in seconds, that a writer waits for room in that memory."""

    async def encode(self, batch: RecordBatch, work: Callable[[], EncodedRows | None]) -> EncodedRows | None:
        """Run ``work``, which encodes a part of ``batch``, and return its result."""

    async def send(self, run: RecordRun, *, key: str, what: str, claim: Claim) -> str | None:
        """Send a run; return None, or the reason why a record in it is refused.

        Raises RetriableSinkError, PermanentSinkError, OwnershipLost, LeasePaused.
        """

    def report_relief(self) -> None:
        """Report that a request is sent before it is full, to free memory."""

    def now(self) -> float:
        """Return the time, in seconds of a monotonic clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedRows:
    """Consecutive records of a batch as JSON lines, with their offsets (see :meth:`Outbox.add`)."""

    lines: Sequence[bytes]
    offsets: Sequence[int]
    indexes: Sequence[int]
    ends: Sequence[int]


class BatchEncoder:
    """Encodes one batch piece by piece, so that its lines are never all in memory.

    Args:
        batch: The batch as the pipeline gave it.
        position: Records below it are left out, since the writer has them already.
    """

    def __init__(self, batch: RecordBatch, position: int) -> None:
        self.batch: Final = batch
        """The batch as the pipeline gave it."""
        self._rest = batch.slice_from(position)
        self._pieces = encode_lines(self._rest)
        self._row = 0

    def encode_next(self) -> EncodedRows | None:
        """Return the next records, about 1 MiB; None after the last one.

        Blocks for some milliseconds. Raises CorruptMessageError at the first call if headers of any record cannot be
        read.
        """
        piece = next(self._pieces, None)
        if piece is None:
            return None
        lines = piece.split(b"\n")  # JSON escapes line ends within texts
        lines.pop()
        rest, begin, end = self._rest, self._row, self._row + len(lines)
        self._row = end
        rows = slice(begin, end)
        if rest.indexes:
            ends: Sequence[int] = [rest.position_after(row + 1) for row in range(begin, end)]
        else:
            ends = rest.list_following(rows)
        return EncodedRows(
            lines=lines, offsets=rest.offsets[rows], indexes=rest.indexes[rows] or bytes(len(lines)), ends=ends
        )


class HttpWriter:
    """Sends the records of one partition, for one claim.

    Args:
        sender: What all writers of the sink share.
        records: Most records of a request.
        size: Most bytes of a request, before compression.
        batch_s: Time, in seconds, after which a request is sent although it is not full.
        at_once: Most requests of this partition at a time.
    """

    resume_position = None  # the endpoint keeps no position that could be read back
    request_id = None

    def __init__(
        self,
        claim: Claim,
        sender: RunSender,
        *,
        cluster_id: str,
        records: int,
        size: int,
        batch_s: float,
        at_once: int,
    ) -> None:
        self._claim = claim
        self._sender = sender
        self._cluster_id = cluster_id
        self._records = records
        self._size = size
        self._batch_s = batch_s
        self._at_once = at_once
        self._key_prefix = ""
        self._taken = 0
        self._encoder: BatchEncoder | None = None
        self._refused: RefusedRecord | None = None
        self._outbox = Outbox(records=records, size=size, position=0)

    @property
    def finished_position(self) -> int:
        """The acknowledged position, which moves with each response: also within a batch of many requests."""
        return self._outbox.acknowledged

    async def start(self, start: Start) -> None:
        """Set the position of the first record to send."""
        incarnation = self._claim.incarnation.truncated(start.truncation)
        self._key_prefix = make_key_prefix(self._cluster_id, self._claim.partition, incarnation)
        self._empty(start.position)

    async def write(self, batch: RecordBatch) -> int:
        """Take a batch and send each full request; return the acknowledged position.

        Each request has a time limit. The wait for other partitions' requests has none.
        """
        if (refused := self._refused) is not None and (row := refused.find_row(batch)) is not None:
            raise PermanentSinkError(refused.reason, refused=row)
        try:
            if batch.next_offset > self._taken:
                await self._take(batch)
            await self._send_ready(batch)
            await self._relieve(batch)
        finally:
            self._account()
        return self._outbox.acknowledged

    async def flush(self) -> int:
        """Send all records that were taken; return the offset after them."""
        try:
            self._outbox.cut()
            await self._send_ready(None)
        finally:
            self._account()
        return self._outbox.acknowledged

    def deadline(self) -> float | None:
        """Return the time at which the open request is due; None without records."""
        if self._outbox.has_ready:
            return self._sender.now()
        opened_at = self._outbox.opened_at
        return None if opened_at is None else opened_at + self._batch_s

    async def abandon(self) -> None:
        """Drop the records that were not accepted. What was sent last may have arrived."""
        self._empty(self._outbox.acknowledged)
        self._account()

    # -- taking

    async def _take(self, batch: RecordBatch) -> None:
        """Encode a batch, and send what gets full; continues where an earlier call has failed."""
        encoder = self._encoder
        if encoder is None or encoder.batch is not batch:
            encoder = self._encoder = BatchEncoder(batch, self._taken)
        while True:
            await self._send_ready(batch)
            await self._relieve(batch)
            size = min(_ESCAPED * batch.size_bytes + _FRAME_BYTES * len(batch), PIECE_BYTES)
            await self._sender.memory.make_room(self, size, within_s=self._sender.patience_s)
            rows = await self._sender.encode(batch, encoder.encode_next)
            if rows is None:
                break
            self._outbox.add(rows.lines, rows.offsets, rows.indexes, rows.ends, self._sender.now())
            self._account()
        self._outbox.reach(batch.next_offset)
        self._taken, self._encoder = batch.next_offset, None

    def _account(self) -> bool:
        return self._sender.memory.hold(self, self._outbox.held_bytes)

    async def _relieve(self, batch: RecordBatch) -> None:
        """Send the open run, too, if all writers together hold too much memory."""
        if self._account() and not self._outbox.is_empty:
            self._sender.report_relief()
            self._outbox.cut()
            await self._send_ready(batch)
            self._account()

    def _empty(self, position: int) -> None:
        self._outbox = Outbox(records=self._records, size=self._size, position=position)
        self._taken, self._encoder = position, None

    # -- sending

    async def _send_ready(self, batch: RecordBatch | None) -> None:
        """Send complete runs until all are accepted.

        ``batch`` is the one at hand; None at a flush.
        """
        while runs := self._outbox.next_runs(self._at_once):
            outcomes = await self._send_all(runs)
            for run, outcome in zip(runs, outcomes, strict=True):
                run.accepted = outcome is None
            self._outbox.settle()
            # the first that failed decides: those before it are safe, those behind it are sent again
            for run, outcome in zip(runs, outcomes, strict=True):
                if isinstance(outcome, ConsumerdError):
                    raise outcome
                if outcome is not None:
                    if len(run) == 1:
                        raise self._refuse(run, outcome, batch)
                    self._outbox.halve(run)
                    break

    async def _send_all(self, runs: Sequence[RecordRun]) -> list[ConsumerdError | str | None]:
        """Send runs at the same time; return what became of each."""
        if len(runs) == 1:
            return [await self._try(runs[0])]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._try(run)) for run in runs]
        return [task.result() for task in tasks]

    async def _try(self, run: RecordRun) -> ConsumerdError | str | None:
        span = run.describe()
        what = f"{self._claim.partition} {span}"
        try:
            while True:
                try:
                    return await self._sender.send(run, key=f"{self._key_prefix}{span}", what=what, claim=self._claim)
                except LeasePaused:
                    await self._claim.wait_usable()
        except ConsumerdError as error:
            return error

    # -- refused records

    def _refuse(self, run: RecordRun, reason: str, batch: RecordBatch | None) -> ConsumerdError:
        """Drop everything from a refused record on; return the error that says so."""
        self._refused = refused = RefusedRecord(run.offsets[0], run.indexes[0], reason)
        acknowledged = self._outbox.acknowledged
        self._empty(acknowledged)
        if batch is not None and batch.start == acknowledged and (row := refused.find_row(batch)) is not None:
            return PermanentSinkError(reason, refused=row)
        return RetriableSinkError(reason, resume_position=acknowledged)
