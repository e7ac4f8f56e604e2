# SPDX-License-Identifier: Apache-2.0
"""Moves one partition's records from its fetch feed to its sink's writer.

Each step takes a batch from the feed and writes it, or flushes. Acknowledgements go to the tracker, whose position the
committer commits. Nothing is fetched ahead here: a slow sink takes fewer batches from the feed, and the feed then
fetches less.

A *unit* (a message, a compressed wrapper, a batch, or one record that the sink refuses) that cannot be delivered is
passed over if a policy says so. With ``quarantine`` it is stored there first. Then its offsets are written as a gap, so
that they are recorded with the landed data before any position beyond them is committed.

Example: the feed returns 100-149, a corrupt batch 150-199, and 200-249; the policy is ``quarantine``.

1. 100-149 is written.
2. The corrupt batch is put into quarantine, and the gap 150-199 is written.
3. The feed seeks to 200, and 200-249 is written.
4. The writer acknowledges 250, which is then committed.
"""

from __future__ import annotations

import contextlib
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
    Stop,
    StopCause,
    TryAgain,
    UnitPolicy,
    plan_out_of_range,
)
from consumerd.delivery.ports import RecordFeed
from consumerd.delivery.search import PROBE_S, SearchProbe, confirm_end, find_readable, head_of
from consumerd.delivery.stops import MoveBack, StopDelivery, explain_unpassable, plan_stop
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
from consumerd.sinks.base import AdvancingWriter, PartitionWriter
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


class _Unanswered(Exception):
    """A broker did not respond to a probe of an offset."""


class Flow:
    """Delivers one partition's records from its fetch feed to its sink's writer.

    A flow exists from the start of a writer at a position until that writer ends.
    """

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
        self._advancing = writer if isinstance(writer, AdvancingWriter) else None
        self._feed = feed
        self._tracker = tracker
        self._incarnation = incarnation
        self._quarantine = context.tools.quarantine
        self._ranges = context.tools.ranges
        self._calls = context.calls
        self._signals = context.signals
        self._condition = context.condition
        self._settings = context.tools.settings
        self._hooks = context.tools.hooks
        self._log = context.log
        self._now = context.tools.now
        self._overtaken = False
        self._doubted = False  # a broker has reported a log end below the delivered position
        self._passed_to: int | None = None  # end of the unit passed over last, until the next batch is seen
        self._searched: int | None = None  # start of a hole in which nothing was found

    # -- what the pipeline asks for

    async def run(self) -> None:
        """Hand batches to the writer until a drain or another position is requested.

        Returns if a drain is requested, or if an operator may have requested a position. Raises StopDelivery, MoveBack,
        and the errors that end a claim: OwnershipLost, IncarnationChanged, SessionLost.
        """
        try:
            while not self._signals.draining and not self._signals.may_have_request:
                await self._step()
        except REFUSED as error:
            await self._refuse(error)

    async def _refuse(self, error: ConsumerdError) -> None:
        """Raise StopDelivery for an error that will not go away by itself."""
        await self.halt(plan_stop(error, replicated=self._ranges.logs_are_replicated), error)

    def doubt_end(self) -> None:
        """Ask for the log end again: the last answer was below the delivered position.

        It may have come before records that were delivered since.
        """
        self._doubted = True
        self._signals.interrupt()

    async def halt(self, stop: Stop, error: ConsumerdError) -> None:
        """Flush the records written before, and then raise StopDelivery with ``stop`` and ``error``."""
        await self.secure()
        raise StopDelivery(stop, error)

    async def secure(self) -> bool:
        """Flush the records written so far, with retries; return False if the sink refuses.

        The refusal is logged. Also returns when a drain is requested between two tries.
        """
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
        them. Raises StopDelivery, MoveBack, OwnershipLost, IncarnationChanged, SessionLost.
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
                if not await self._is_at_end():
                    short_since = None
                elif short_since is None:
                    short_since = self._now()
                elif self._now() - short_since >= _LOOK_S:
                    # seen twice, since a new leader's log end may lag: the log has lost the dropped records
                    delivered = self._tracker.delivered
        except REFUSED as error:
            await self._refuse(error)
        return not self._signals.draining

    async def finish(self) -> None:
        """Flush once, because the partition is drained; a failure is reported, not raised.

        Records that could not be flushed are fetched again by the partition's next owner.
        """
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
        if self._doubted:
            self._doubted = False
            await self._is_at_end()
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
            await self.halt(Stop(cause=StopCause.MISSING_LIBRARY, advice=advice), error)
        except CLAIM_GONE:
            raise
        except MAY_PASS as error:
            await self._calls.back_off(error)
            return
        if batch is None:
            if settled is not None and settled <= self._now() + _SLACK_S:
                self._calls.recover()  # an idle partition has no record that could prove the recovery
            if self._condition.stop is not None and await self._is_at_end():
                self._condition.resume()  # the broker answered that nothing is there: the unit that stopped it is gone
            return
        behind_damage = batch.start == self._passed_to
        if behind_damage and await self._search_hole(batch):
            return
        try:
            await self._deliver(blame_hole(batch) if behind_damage else batch)
        finally:
            self._feed.done(batch)

    async def _is_at_end(self) -> bool:
        """Return True if the log ends at the delivered position.

        A broker is asked if fetch responses do not tell the end. May raise as :meth:`run` does: if the log turns out to
        be another one, the policy decides.
        """
        delivered, high_watermark = self._tracker.delivered, self._feed.high_watermark
        if high_watermark is not None:
            return high_watermark == delivered
        answer = None
        with contextlib.suppress(BrokerError, ConnectionLost, ProtocolError):  # then fetches fail, too, and are retried
            answer = await self._signals.bound(self._ranges.read([self._partition]), PROBE_S)
        log = None if answer is None else answer.get(self._partition)
        if log is None:
            return False
        if log.latest < delivered and not self._ranges.logs_are_replicated:
            # Fetches do not tell: Kafka 0.7 answers without an error at any offset of a log to which nothing was
            # written yet.
            await self._handle_out_of_range(
                OffsetOutOfRange(self._partition, delivered, log.earliest, log.latest, replaced=True)
            )
        return log.latest == delivered

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
        # not from batch.start on: a writer that advances during the call may have acknowledged a part of the batch
        tracker.deliver(tracker.delivered, batch.next_offset)
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

    def note_finished(self) -> None:
        """Note the position that the writer has acknowledged since its last call.

        Has an effect only for writers that acknowledge records between two calls, such as one that publishes files in
        the background.
        """
        if self._advancing is not None:
            before = self._tracker.acknowledged
            self._acknowledge(self._advancing.finished_position)
            if self._tracker.acknowledged > before:
                self._condition.note_progress()

    def _acknowledge(self, position: int) -> None:
        tracker = self._tracker
        landed = tracker.timestamps_below(position) if position > tracker.acknowledged else []
        if tracker.acknowledge(position) and landed:
            self._hooks.batches_landed(self._route.name, landed)

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
        """Write the records before a refused one, and return those after it.

        The refused record is put into quarantine if the policy says so.
        """
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
        elif isinstance(error, RecordTooLarge) and self._feed.high_watermark is None:
            unit = replace(unit, next_offset=await self._confirm_end(start, unit.next_offset))
        end = unit.next_offset
        if self._signals.draining or (end is None and self._signals.may_have_request):
            return
        if end is None:
            stop = plan_stop(error, replicated=self._ranges.logs_are_replicated)
            await self.halt(explain_unpassable(stop, self._feed.high_watermark), error)
            return
        if policy == "quarantine" and not await self._keep(unit):
            return
        if await self._write(empty_batch(self._partition, start, end, (Gap(start, end, unit.cause.gap),))):
            self._condition.pass_unit(unit, kept=policy == "quarantine")
            self._passed_to = end
        self._feed.seek(self._tracker.delivered)

    async def _search_hole(self, batch: RecordBatch) -> bool:
        """Search for records in a hole between a damaged unit and the next batch.

        The broker may have failed to find the next batch in the segment, and continued with the next segment. Returns
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

    async def _confirm_end(self, start: int, claimed: int) -> int | None:
        """Return the claimed end of the oversized message at ``start``, if confirmed."""

        async def look(offset: int) -> SearchProbe:
            self._feed.seek(offset)
            try:
                batch = await self._signals.bound(self._feed.next(), PROBE_S)
            except RecordTooLarge as error:
                return SearchProbe(at=offset, claimed_end=error.next_offset)
            except (CorruptMessageError, OffsetOutOfRange):
                return SearchProbe(at=offset)
            if batch is not None:
                self._feed.done(batch)
            return SearchProbe(at=offset, readable=None if batch is None else offset)

        try:
            return await confirm_end(look, claimed)
        finally:
            self._feed.seek(start)

    def _is_another(
        self, error: RecordTooLarge | CorruptMessageError, unit: bytes | None, first: SearchProbe, cause: UnitCause
    ) -> bool:
        """Return True if a second undeliverable unit must be handled separately.

        It must if its end is known, or if another policy applies to it.
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
            if tracker.delivered != error.offset and not error.replaced:
                return  # the sink has dropped records, which the log may still hold below its new end
            raise StopDelivery(plan, error)
        elif plan.gaps:
            self._condition.note_reset(error, plan.position, plan.reason)
            await self._write(empty_batch(self._partition, error.offset, plan.position, plan.gaps))
            self._feed.seek(tracker.delivered)
        elif error.replaced:
            await self.secure()  # what the sink drops now is lost with its log, and must not be read from the new one
            self._condition.note_reset(error, plan.position, plan.reason)
            raise MoveBack(plan, error)
        else:
            if tracker.unacknowledged:
                await self._flush()
            if tracker.unacknowledged or tracker.delivered != error.offset:
                return  # records that could not be landed may still be in the log, below its new end
            self._condition.note_reset(error, plan.position, plan.reason)
            raise MoveBack(plan, error)
