# SPDX-License-Identifier: Apache-2.0
"""The flow of records from one feed to one writer, step by step.

Each step takes a batch from the feed and writes it, or flushes. Acknowledgements go to the tracker, whose position the
committer commits. Nothing is fetched ahead here: back-pressure is not asking the feed for more.

A unit that cannot be delivered is passed over if a policy says so. With ``quarantine`` it is stored there first. Then
its offsets are written as a gap, so that they are recorded with the landed data before any position beyond them is
committed.

Example: the feed returns 100-149, a corrupt batch 150-199, and 200-249; the policy is ``quarantine``.

1. 100-149 is written.
2. The corrupt batch is put into quarantine, and the gap 150-199 is written.
3. The feed seeks to 200, and 200-249 is written.
4. The writer acknowledges 250, which is then committed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

from consumerd.delivery.context import ClaimContext
from consumerd.delivery.passing import (
    PassedUnit,
    UnitCause,
    blame_hole,
    describe_record,
    describe_unit,
    find_hole,
    quarantined,
)
from consumerd.delivery.policy import (
    OFFSETS_SET,
    Reposition,
    Stop,
    StopCause,
    TryAgain,
    UnitPolicy,
    plan_out_of_range,
)
from consumerd.delivery.ports import RecordFeed
from consumerd.delivery.search import PROBE_S, SearchProbe, find_readable, head_of
from consumerd.errors import (
    BrokerError,
    ConfigError,
    ConnectionLost,
    ConsumerdError,
    CoordinationError,
    CorruptMessageError,
    IncarnationChanged,
    LocalProtocolError,
    OffsetOutOfRange,
    OwnershipLost,
    PermanentSinkError,
    ProtocolError,
    RecordTooLarge,
    RetriableSinkError,
    SessionLost,
    SinkError,
)
from consumerd.model import Gap, GapReason, Incarnation
from consumerd.offsets.tracker import OffsetTracker
from consumerd.sinks.base import PartitionWriter
from consumerd.telemetry.hooks import Trouble
from consumerd.wire.records import RecordBatch, empty_batch

CLAIM_GONE = (OwnershipLost, IncarnationChanged, SessionLost)
MAY_PASS = (RetriableSinkError, CoordinationError, BrokerError, ConnectionLost, ProtocolError)
REFUSED = (PermanentSinkError, ConfigError, CorruptMessageError, RecordTooLarge)

_LOOK_S: Final = 1.0
"""Interval, in seconds, at which the log end is compared with the position that a stop or a request waits for."""
_QUARANTINE_COPIES: Final = 2
"""Copies of a unit in memory while it is put into quarantine: itself, and its encoded form."""
_SLACK_S: Final = 0.001  # timers fire within the clock's resolution of their time, on either side


class StopDelivery(Exception):
    """A policy stops delivery; records written before are flushed."""

    def __init__(self, stop: Stop) -> None:
        super().__init__(stop.advice)
        self.stop = stop


class _Unanswered(Exception):
    """A broker did not answer whether it can read from an offset."""


class MoveBack(Exception):
    """The log was truncated; delivery goes on at a lower position, with a new writer."""

    def __init__(self, move: Reposition, error: OffsetOutOfRange) -> None:
        super().__init__(str(error))
        self.move = move
        self.error = error


class Flow:
    """One feed, one writer and one tracker, from the writer's start to its end."""

    def __init__(
        self,
        context: ClaimContext,
        writer: PartitionWriter,
        feed: RecordFeed,
        tracker: OffsetTracker,
        *,
        incarnation: Incarnation,
    ) -> None:
        self._claim = context.claim
        self._partition = context.partition
        self._route = context.route
        self._writer = writer
        self._feed = feed
        self._tracker = tracker
        self._incarnation = incarnation
        self._quarantine = context.tools.quarantine
        self._calls = context.calls
        self._signals = context.signals
        self._condition = context.condition
        self._settings = context.settings
        self._hooks = context.hooks
        self._log = context.log
        self._now = context.now
        self._overtaken = False
        self._passed_to: int | None = None  # end of the unit passed over last, until the next batch is seen
        self._searched: int | None = None  # start of a hole in which nothing was found

    # -- what the pipeline asks for

    async def run(self) -> None:
        """Hand batches to the writer until a drain or an operator's request may be pending.

        Raises StopDelivery, MoveBack, and the errors that end a claim.
        """
        try:
            while not self._signals.draining and not self._signals.may_have_request:
                await self._step()
        except REFUSED as error:
            await self.halt(plan_stop(error))

    async def halt(self, stop: Stop) -> None:
        """Flush the records written before, then stop. Raises StopDelivery."""
        await self.secure()
        raise StopDelivery(stop)

    async def secure(self) -> bool:
        """Flush the records written; return False if the sink refuses them."""
        try:
            if self._tracker.unacknowledged:
                await self._flush()
        except REFUSED as error:
            self._log.warning("stop_flush_failed", error=str(error))
            self._hooks.trouble(Trouble.STOP_FLUSH_FAILED, str(error), self._partition)
            return False
        return True

    async def secure_all(self) -> bool:
        """Flush all delivered records; return False if a drain is requested first.

        Records that the sink drops are fetched and written again until it accepts them, as far as the log still holds
        them. Raises as :meth:`run`.
        """
        delivered = self._tracker.delivered
        short_since: float | None = None
        try:
            while self._tracker.acknowledged < delivered and not self._signals.draining:
                if self._tracker.delivered >= delivered:
                    if not await self.secure():
                        break
                    continue
                await self._step(look=True)
                if not self._at_end:
                    short_since = None
                elif short_since is None:
                    short_since = self._now()
                elif self._now() - short_since >= _LOOK_S:
                    # seen twice, since a new leader's log end may lag: the log has lost the dropped records
                    delivered = self._tracker.delivered
        except REFUSED as error:
            await self.halt(plan_stop(error))
        return not self._signals.draining

    async def finish(self) -> None:
        """Flush once, for a drain; on failure, the next owner fetches these records again."""
        if not self._tracker.unacknowledged:
            return
        try:
            await self._calls.usable()
            self._acknowledge(await self._calls.once(self._writer.flush(), "flush"))
        except (SinkError, ConfigError, CorruptMessageError) as error:
            self._log.warning("drain_flush_failed", error=str(error))
            self._condition.sink_failed(retriable=isinstance(error, RetriableSinkError))

    # -- steps

    async def _step(self, *, look: bool = False) -> None:
        """Take and write the next batch, or flush.

        With ``look`` it returns within about a second even if there is nothing to do.
        """
        due, now = self._writer.deadline(), self._now() + _SLACK_S
        if self._overtaken or (due is not None and due <= now):
            self._overtaken = False
            await self._flush()
            return
        settled = self._calls.settled_at
        look_at = now + _LOOK_S if look or self._condition.stop is not None else None
        times = [at for at in (due, settled, look_at) if at is not None]
        wait_s = max(_SLACK_S, min(times) - now) if times else None
        try:
            batch = await self._signals.bound(self._feed.next(), wait_s)
        except OffsetOutOfRange as error:
            await self._handle_out_of_range(error)
            return
        except (CorruptMessageError, RecordTooLarge) as error:
            await self._pass_unit(error)
            return
        except ConfigError as error:
            advice = f"{error}; install it where this process runs, and restart"
            await self.halt(Stop(cause=StopCause.MISSING_LIBRARY, advice=advice))
        except CLAIM_GONE:
            raise
        except MAY_PASS as error:
            await self._calls.back_off(error)
            return
        if batch is None:
            if settled is not None and settled <= self._now() + _SLACK_S:
                self._calls.recover()  # an idle partition has no record that could prove the recovery
            if self._at_end:
                self._condition.resume()  # the broker answered that nothing is there: the unit that stopped it is gone
            return
        behind_damage = batch.start == self._passed_to
        if behind_damage and await self._search_hole(batch):
            return
        try:
            await self._deliver(blame_hole(batch) if behind_damage else batch)
        finally:
            self._feed.done(batch)

    @property
    def _at_end(self) -> bool:
        """True if the high watermark equals the delivered position."""
        return self._feed.high_watermark == self._tracker.delivered

    async def _write(self, batch: RecordBatch) -> bool:
        """Write a batch; return False if it was not written and the feed was moved."""
        tracker = self._tracker
        if batch.start != tracker.delivered:
            error = LocalProtocolError(
                f"{self._partition}: fetched a batch from {batch.start}, expected one from {tracker.delivered}"
            )
            self._feed.seek(tracker.delivered)
            await self._calls.back_off(error)
            return False
        tracker.offer((batch.offsets[0], batch.timestamps[0]) if len(batch) else None)
        acknowledged = await self._insist(lambda: self._writer.write(batch), "write")
        if acknowledged is None:
            return False
        tracker.deliver(batch.start, batch.next_offset)
        self._condition.resume()
        self._hooks.batch_delivered(
            self._partition, records=len(batch), size=batch.size_bytes, position=batch.next_offset
        )
        for gap in batch.gaps:
            self._condition.pass_over(gap)
        self._acknowledge(acknowledged)
        if tracker.delivered != batch.next_offset:
            self._feed.seek(tracker.delivered)  # an earlier writer had landed more than was read so far
            return False
        return True

    async def _flush(self) -> None:
        delivered = self._tracker.delivered
        acknowledged = await self._insist(self._writer.flush, "flush")
        if acknowledged is None:
            return
        self._acknowledge(acknowledged)
        if self._tracker.delivered != delivered:
            self._feed.seek(self._tracker.delivered)

    async def _insist(self, call: Callable[[], Awaitable[int]], name: str) -> int | None:
        """Retry a call until the sink answers.

        Returns None if the sink has dropped its records, or a drain is requested.
        """
        try:
            answer = await self._calls.insist(call, name)
        except RetriableSinkError as error:
            if error.resume_position is not None:
                self._rewind(error.resume_position)
            return None
        if answer is None:
            return None
        self._calls.prove(answer[0])
        return answer[0]

    def _acknowledge(self, position: int) -> None:
        tracker = self._tracker
        landed = tracker.timestamps_below(position) if position > tracker.acknowledged else []
        if tracker.acknowledge(position):
            if landed:
                self._hooks.batches_landed(self._route.name, landed)
            self._hooks.position_acknowledged(self._partition, position)

    def _rewind(self, position: int) -> None:
        tracker = self._tracker
        if position <= tracker.acknowledged:
            # accepting the records again proves no recovery: a full disk refuses a file only when it is closed
            self._calls.unproven = tracker.acknowledged
        else:
            # more was landed by another writer: flush to learn how far it is safe, even if no record follows
            self._overtaken = True
        # acknowledged records are safe, so the position never moves below them
        tracker.rewind(max(position, tracker.acknowledged))
        self._feed.seek(tracker.delivered)

    # -- records that the sink refuses

    async def _deliver(self, batch: RecordBatch) -> None:
        """Write a batch, passing over records that the sink refuses if the policy allows it."""
        rest: RecordBatch | None = batch
        while rest is not None:
            try:
                await self._write(rest)
            except (PermanentSinkError, CorruptMessageError) as error:
                corrupt = isinstance(error, CorruptMessageError)
                row = rest.find_unreadable() if isinstance(error, CorruptMessageError) else error.refused
                policy = self._settings.on_corrupt if corrupt else self._route.on_rejected
                if row is None or policy == "stop":
                    raise
                rest = await self._pass_record(rest, row, error, policy)
            else:
                return

    async def _pass_record(
        self, batch: RecordBatch, row: int, error: ConsumerdError, policy: UnitPolicy
    ) -> RecordBatch | None:
        """Write the records before a refused one, keep it if needed, and return the rest."""
        unit = describe_record(batch, row, error)
        head = batch.slice_to(unit.offset)
        if head.next_offset > head.start:
            await self._deliver(head)
            if self._tracker.delivered != head.next_offset:
                return None
        if policy == "quarantine" and not await self._keep(unit):
            self._feed.seek(self._tracker.delivered)
            return None
        self._condition.pass_unit(unit, kept=policy == "quarantine")
        return batch.slice_from(unit.offset).without(row - len(head), unit.cause.gap)

    # -- units that cannot be read

    async def _pass_unit(self, error: CorruptMessageError | RecordTooLarge) -> None:
        corrupt = isinstance(error, CorruptMessageError)
        policy = self._settings.on_corrupt if corrupt else self._settings.on_oversized
        if policy == "stop":
            raise error
        start = self._tracker.delivered
        unit = describe_unit(error, start)
        if unit.next_offset is None:
            end = self._readable_end
            first = SearchProbe(at=start, unit=head_of(unit.raw))
            unit = replace(unit, next_offset=None if end is None else await self._search(first, end, unit.cause))
        end = unit.next_offset
        if self._signals.draining or (end is None and self._signals.may_have_request):
            return
        if end is None:
            await self.halt(_stop_unpassable(error, self._feed.high_watermark))
            return
        if policy == "quarantine" and not await self._keep(unit):
            return
        if await self._write(empty_batch(self._partition, start, end, (Gap(start, end, unit.cause.gap),))):
            self._condition.pass_unit(unit, kept=policy == "quarantine")
            self._passed_to = end
        self._feed.seek(self._tracker.delivered)

    async def _search_hole(self, batch: RecordBatch) -> bool:
        """Search for records in a hole between a damaged unit and the next batch.

        The broker may have failed to find the next batch in the segment, and gone on with the next segment. Returns
        True if the batch must not be delivered as it is.
        """
        hole = find_hole(batch)
        start = batch.start
        if hole is None or hole.end - start < 2 or self._searched == start:
            return False
        self._feed.done(batch)
        found = await self._search(SearchProbe(at=start, readable=hole.end), hole.end, UnitCause.CORRUPT)
        if found == hole.end:
            self._searched = start  # the hole is real: fetch the batch again, and deliver it
        elif found is not None:
            self._passed_to = None
            await self._write(empty_batch(self._partition, start, found, (Gap(start, found, GapReason.CORRUPT),)))
            self._feed.seek(self._tracker.delivered)
        return True

    @property
    def _readable_end(self) -> int | None:
        """End offset visible to this consumer.

        That is the last stable offset under ``read_committed``, else the high watermark.
        """
        if self._settings.read_committed and self._feed.last_stable_offset is not None:
            return self._feed.last_stable_offset
        return self._feed.high_watermark

    async def _search(self, first: SearchProbe, end: int, cause: UnitCause) -> int | None:
        """Find the first offset after ``first`` from which records can be read.

        Returns None if there is none, and also if the broker did not answer, which says nothing about the log. Bounded
        by the number of probes and the time limit of each.
        """

        async def look(offset: int) -> SearchProbe:
            for _ in range(2):  # the broker may be unavailable for a moment
                self._feed.seek(offset)
                try:
                    batch = await self._signals.bound(self._feed.next(), PROBE_S)
                except (RecordTooLarge, CorruptMessageError) as error:
                    unit = head_of(error.raw)
                    found = offset if self._is_another(error, unit, first, cause) else None
                    return SearchProbe(at=offset, readable=found, unit=unit)
                except OffsetOutOfRange:
                    return SearchProbe(at=offset)
                if batch is not None:
                    hole = find_hole(batch)
                    self._feed.done(batch)
                    return SearchProbe(at=offset, readable=offset if hole is None else hole.end)
                if self._signals.draining or self._signals.may_have_request:
                    break
            raise _Unanswered

        try:
            return await find_readable(look, first, end)
        except _Unanswered:
            return None
        finally:
            self._feed.seek(first.at)

    def _is_another(
        self, error: RecordTooLarge | CorruptMessageError, unit: bytes | None, first: SearchProbe, cause: UnitCause
    ) -> bool:
        """Return True if a second undeliverable unit is to be handled on its own.

        That is so if its end is known, or if another policy applies to it.
        """
        if error.next_offset is not None:
            return unit is None or unit != first.unit
        too_large = isinstance(error, RecordTooLarge)
        if too_large == (cause is UnitCause.OVERSIZED):
            return False
        return too_large or self._settings.on_corrupt != self._settings.on_oversized

    async def _keep(self, unit: PassedUnit) -> bool:
        """Put a unit into quarantine, with retries.

        Returns False if a drain is requested, or a request may be pending, before it succeeds.
        """
        quarantine = self._quarantine
        if quarantine is None:
            raise ConfigError("a policy says quarantine: set quarantine.path")
        kept = quarantined(unit, self._partition, self._incarnation)
        size = _QUARANTINE_COPIES * len(unit.raw)
        self._route.charge(size)  # for all retries together
        try:
            answer = await self._calls.insist(
                lambda: quarantine.put(kept, self._claim), "put", of="the quarantine", heed_news=True
            )
        finally:
            self._route.charge(-size)
        if answer is None:
            return False
        self._calls.recover()
        return True

    # -- positions that the broker does not hold

    async def _handle_out_of_range(self, error: OffsetOutOfRange) -> None:
        tracker = self._tracker
        plan = plan_out_of_range(error, self._settings.offsets, truncation=self._incarnation.truncation)
        if error.offset != tracker.delivered or isinstance(plan, TryAgain):
            await self._calls.back_off(error)
            self._feed.seek(tracker.delivered)
        elif isinstance(plan, Stop):
            await self.secure()
            if tracker.delivered != error.offset:
                return  # the sink has dropped records, which the log may still hold below its new end
            raise StopDelivery(plan)
        elif plan.gaps:
            self._condition.move(error, plan)
            await self._write(empty_batch(self._partition, error.offset, plan.position, plan.gaps))
            self._feed.seek(tracker.delivered)
        else:
            if tracker.unacknowledged:
                await self._flush()
            if tracker.unacknowledged or tracker.delivered != error.offset:
                return  # records that could not be landed may still be in the log, below its new end
            self._condition.move(error, plan)
            raise MoveBack(plan, error)


def plan_stop(error: ConsumerdError) -> Stop:
    """Return the stop for an error that will not go away by itself."""
    if isinstance(error, CorruptMessageError):
        advice = (
            f"{error}; a replica whose copy is whole would do as leader, else say where to go on with {OFFSETS_SET}, "
            "or set fetch.on_corrupt"
        )
        return Stop(cause=StopCause.CORRUPT, advice=advice)
    if isinstance(error, RecordTooLarge):
        return Stop(cause=StopCause.OVERSIZED, advice=f"{error}; or say where to go on with {OFFSETS_SET}")
    if isinstance(error, PermanentSinkError) and error.refused is not None:
        advice = f"{error}; set the sink's on_rejected, or say where to go on with {OFFSETS_SET}"
        return Stop(cause=StopCause.REJECTED, advice=advice, by_sink=True)
    return Stop(cause=StopCause.REJECTED, advice=str(error), by_sink=True)


def _stop_unpassable(error: CorruptMessageError | RecordTooLarge, end: int | None) -> Stop:
    stop = plan_stop(error)
    advice = (
        f"{stop.advice}; it cannot be passed over, since no readable record was found after it up to offset {end}; "
        "this is retried"
    )
    return replace(stop, advice=advice)
