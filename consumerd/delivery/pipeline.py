"""One partition's way from its feed to its sink, for one claim.

The pipeline is one task. It reads the committed position (after the claim, never before), opens a writer, fixes the
start, and then hands batch after batch to the writer; what the writer acknowledges goes to the tracker, and from there
the committer takes it. Nothing is fetched ahead here: not asking the feed for more is the back-pressure.

How it ends, and what is then done with what the writer still holds:

================  ==========================================  =========================
end               how it comes about                          unacknowledged records
================  ==========================================  =========================
drained           :meth:`PartitionPipeline.drain`             flushed
revoked           :meth:`PartitionPipeline.revoke`, then      abandoned
                  cancelled by the owner
claim lost        OwnershipLost or IncarnationChanged out     abandoned, reported
                  of any call
================  ==========================================  =========================

What does not end it: a lease that pauses (it waits, the position is kept), a sink or a broker that fails for a while
(backoff; one log line at the first failure and one at the recovery), and what a policy stops (it stays claimed, flushes
what it has, and looks from time to time whether it can go on).

Await rule: between the last await and a visible effect stands a check of the claim (:meth:`_usable`), and after every
call into the sink it is checked that the pipeline was not revoked meanwhile: a write that returns late changes nothing.

One class, though a long one: every step works on the same writer, feed and tracker, and what may follow what is seen best
in one place. What needs none of the three is elsewhere (``policy``, ``start``, ``condition``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from consumerd.aio.backoff import Backoff
from consumerd.aio.timeouts import timeout, timeout_at
from consumerd.delivery.committer import Committer
from consumerd.delivery.condition import Condition
from consumerd.delivery.policy import (
    Earlier,
    Move,
    StartAt,
    Stop,
    StopCause,
    TryAgain,
    plan_out_of_range,
)
from consumerd.delivery.ports import DeliveryReports, DeliverySettings, FeedSource, RecordFeed, SinkRoute
from consumerd.delivery.start import StartFinder
from consumerd.delivery.status import DeliveryState, PartitionStatus
from consumerd.errors import (
    BrokerError,
    ConfigError,
    ConnectionLost,
    ConsumerdError,
    CoordinationError,
    CorruptMessageError,
    IncarnationChanged,
    LeasePaused,
    LocalProtocolError,
    OffsetOutOfRange,
    OwnershipLost,
    PermanentSinkError,
    ProtocolError,
    RecordTooLarge,
    RetriableSinkError,
    SessionLost,
    SinkClosed,
    SinkError,
)
from consumerd.model import Claim
from consumerd.offsets.tracker import OffsetTracker
from consumerd.sinks.base import PartitionWriter, Start
from consumerd.telemetry.hooks import Hooks
from consumerd.wire.records import RecordBatch, empty_batch

_T = TypeVar("_T")

_CLAIM_GONE = (OwnershipLost, IncarnationChanged, SessionLost)
_MAY_PASS = (RetriableSinkError, CoordinationError, BrokerError, ConnectionLost, ProtocolError)
_REFUSED = (PermanentSinkError, ConfigError, CorruptMessageError, RecordTooLarge)
_TRIED_AGAIN = frozenset({StopCause.CORRUPT, StopCause.OVERSIZED, StopCause.REJECTED})

_SLACK_S = 0.001  # timers fire within the clock's resolution of their time, on either side

_log = structlog.get_logger(__name__)


class _Stopped(Exception):
    """A policy says stop; what was written before is flushed."""

    def __init__(self, stop: Stop) -> None:
        super().__init__(stop.advice)
        self.stop = stop


class _Reopen(Exception):
    """Delivery goes on at a position that needs a new writer."""


class PartitionPipeline:
    """Delivers one partition under one claim; made for it and thrown away with it."""

    def __init__(
        self,
        claim: Claim,
        route: SinkRoute,
        *,
        feeds: FeedSource,
        starts: StartFinder,
        committer: Committer,
        settings: DeliverySettings,
        reports: DeliveryReports,
        hooks: Hooks,
        now: Callable[[], float],
        random: Callable[[], float],
    ) -> None:
        self._claim = claim
        self._partition = claim.partition
        self._route = route
        self._feeds = feeds
        self._starts = starts
        self._committer = committer
        self._settings = settings
        self._reports = reports
        self._hooks = hooks
        self._now = now
        self._backoff = Backoff(
            initial_s=settings.retry_initial_ms / 1000, maximum_s=settings.retry_maximum_ms / 1000, random=random
        )
        self._log = _log.bind(topic=self._partition.topic, partition=str(self._partition.partition), sink=route.name)
        self._condition = Condition(claim.partition, hooks=hooks, log=self._log, now=now)

        self._tracker: OffsetTracker | None = None
        self._writer: PartitionWriter | None = None
        self._feed: RecordFeed | None = None
        self._move: Move | None = None  # a reset to before the log's end, until its new writer has begun
        self._unproven: int | None = None  # a failed file dropped what was beyond: only when that is safe it is over
        self._revoked = False
        self._closing = False
        self._paused = False
        self._drain = asyncio.Event()
        self._idle: asyncio.Timeout | None = None  # while waiting for the feed

    # -- what others see

    @property
    def claim(self) -> Claim:
        """The claim that it delivers under."""
        return self._claim

    @property
    def tracker(self) -> OffsetTracker | None:
        """The positions; None before the start is known and after the claim is gone."""
        return None if self._revoked else self._tracker

    @property
    def status(self) -> PartitionStatus:
        """How it stands now."""
        tracker, feed = self._tracker, self._feed
        high_watermark = feed.high_watermark if feed else None
        log_end = feed.last_stable_offset if feed and self._settings.read_committed else high_watermark
        return PartitionStatus(
            partition=self._partition,
            sink=self._route.name,
            epoch=self._claim.epoch,
            state=self._state,
            reason=self._condition.reason,
            since=self._condition.since,
            position=tracker.delivered if tracker else None,
            acknowledged=tracker.acknowledged if tracker else None,
            committed=tracker.committed if tracker else None,
            high_watermark=high_watermark,
            lag=tracker.lag(log_end) if tracker else None,
        )

    @property
    def _state(self) -> DeliveryState:
        condition = self._condition
        if condition.stop is not None:
            return DeliveryState.STOPPED
        if self._drain.is_set():
            return DeliveryState.DRAINING
        if condition.failing:
            return DeliveryState.FAILING
        if self._paused:
            return DeliveryState.PAUSED
        return DeliveryState.STARTING if self._feed is None else DeliveryState.RUNNING

    # -- what the owner does

    def drain(self) -> bool:
        """Stop fetching, flush and end; return False where there is nothing to flush, and cancelling loses nothing."""
        self._drain.set()
        if self._idle is not None and not self._idle.expired():
            self._idle.reschedule(asyncio.get_running_loop().time())
        return self._feed is not None or self._closing

    def revoke(self) -> None:
        """Take the claim away: from now on nothing is acknowledged, and nothing more is offered for a commit."""
        self._revoked = True

    async def run(self) -> None:
        """Deliver until drained, cancelled or without a claim; unbounded. Raises nothing that a partition can suffer."""
        try:
            while not self._drain.is_set():
                await self._attempt()
        except _CLAIM_GONE as error:
            if self._revoked:
                return  # the owner took it away: it knows
            self.revoke()
            self._log.warning("delivery_ended", error=str(error))
            self._reports.lost(self._claim, error)
        except SinkClosed as error:
            self._log.info("sink_closed", error=str(error))
            self._reports.sink_closed(error)

    # -- one attempt: open, deliver, close

    async def _attempt(self) -> None:
        """Open, deliver until something needs a new beginning, close; then wait out what it was."""
        stop: Stop | None = None
        failure: ConsumerdError | None = None
        opened = False
        try:
            await self._open()
            opened = True
            await self._deliver()
        except _Stopped as stopped:
            stop = stopped.stop
        except _Reopen:
            pass
        except _CLAIM_GONE:
            raise
        except _REFUSED as error:
            stop = Stop(cause=StopCause.REJECTED, advice=str(error))
        except _MAY_PASS as error:
            failure = error
        finally:
            await self._close()
        if stop is not None:
            await self._wait_stopped(stop, opened=opened)
        elif failure is not None:
            await self._back_off(failure)

    async def _open(self) -> None:
        await self._usable()
        writer = self._writer = await self._at_sink(self._route.sink.open(self._claim))
        plan = await self._find_start(writer)
        # the topic may have been made again since the claim: then the offset read above is another topic's
        await self._claim.confirm()
        await self._usable()
        await self._at_sink(writer.start(Start(position=plan.position, reason=plan.reason.value)))
        self._tracker = OffsetTracker(plan.position, plan.committed)
        # an end of the log moves: what it was found to be must hold over a crash before anything is delivered from there
        if plan.committed is None and not await self._committer.commit_at_once(self):
            raise CoordinationError(f"{self._partition}: start at {plan.position} could not be committed")
        self._backoff.reset()
        self._condition.start(plan)
        self._unproven = None
        self._move = None
        self._feed = self._feeds.feed(self._partition, plan.position)

    async def _find_start(self, writer: PartitionWriter) -> StartAt:
        if self._move is not None:
            return StartAt(position=self._move.position, committed=None, reason=self._move.reason)
        found = await self._starts.find(self._claim, writer.resume_position, self._earlier)
        if isinstance(found, Stop):
            raise _Stopped(found)
        return found

    @property
    def _earlier(self) -> Earlier | None:
        tracker = self._tracker
        if tracker is None:
            return None
        return Earlier(acknowledged=tracker.acknowledged, committed=tracker.committed)

    async def _deliver(self) -> None:
        """Hand batches to the writer until drained, then flush."""
        try:
            while not self._drain.is_set():
                await self._step()
        except _REFUSED as error:
            stop = Stop(cause=_find_cause(error), advice=str(error))
            await self._halt(stop)
        await self._finish()

    async def _step(self) -> None:
        writer, feed = self._get_open()
        due, now = writer.deadline(), self._now() + _SLACK_S
        if due is not None and due <= now:
            await self._flush()
            return
        settled = self._settled_at
        times = [at for at in (due, settled) if at is not None]
        try:
            batch = await self._next(feed, max(_SLACK_S, min(times) - now) if times else None)
        except OffsetOutOfRange as error:
            await self._handle_out_of_range(error)
            return
        except (CorruptMessageError, *_CLAIM_GONE):
            raise
        except _MAY_PASS as error:
            await self._back_off(error)
            return
        if batch is None:
            if settled is not None and settled <= self._now() + _SLACK_S:
                self._recover()  # a quiet partition has no record to prove it by
            return
        try:
            await self._write(batch)
        finally:
            feed.done(batch)

    async def _next(self, feed: RecordFeed, wait_s: float | None) -> RecordBatch | None:
        """Return the next batch, or None when a flush has become due or a drain was asked for."""
        try:
            async with timeout(wait_s) as self._idle:
                return await feed.next()
        except TimeoutError:
            return None
        finally:
            self._idle = None

    async def _write(self, batch: RecordBatch) -> None:
        writer, feed = self._get_open()
        tracker = self._get_tracker()
        if batch.start != tracker.delivered:
            error = LocalProtocolError(
                f"{self._partition}: fetched a batch from {batch.start}, expected one from {tracker.delivered}"
            )
            feed.seek(tracker.delivered)
            await self._back_off(error)
            return
        acknowledged = await self._insist(lambda: writer.write(batch))
        if acknowledged is None:
            return
        tracker.deliver(batch.start, batch.next_offset)
        self._condition.resume()
        self._hooks.batch_delivered(
            self._partition, records=len(batch), size=batch.size_bytes, position=batch.next_offset
        )
        for gap in batch.gaps:
            self._hooks.gap_recorded(self._partition, gap)
        self._acknowledge(acknowledged)
        if tracker.delivered != batch.next_offset:
            feed.seek(tracker.delivered)  # an earlier writer had landed more than we have read

    async def _flush(self) -> None:
        writer, feed = self._get_open()
        tracker = self._get_tracker()
        delivered = tracker.delivered
        acknowledged = await self._insist(writer.flush)
        if acknowledged is None:
            return
        self._acknowledge(acknowledged)
        if tracker.delivered != delivered:
            feed.seek(tracker.delivered)

    async def _finish(self) -> None:
        """Flush once, for a drain: what fails now is fetched again by whoever delivers the partition next."""
        writer, _ = self._get_open()
        if not self._get_tracker().unacknowledged:
            return
        try:
            await self._usable()
            self._acknowledge(await self._at_sink(writer.flush()))
        except (SinkError, ConfigError, CorruptMessageError) as error:
            self._log.warning("drain_flush_failed", error=str(error))
            self._hooks.sink_failed(self._partition, self._route.name, retriable=isinstance(error, RetriableSinkError))

    async def _close(self) -> None:
        feed, self._feed = self._feed, None
        writer, self._writer = self._writer, None
        if feed is not None:
            feed.close()
        if writer is not None:
            self._closing = True
            try:
                await self._abandon(writer)
            finally:
                self._closing = False

    async def _abandon(self, writer: PartitionWriter) -> None:
        """Have the writer clean up, within a bound of time.

        A cancellation in the middle of it (a claim is lost, and then the daemon ends) waits until it is done: the
        writer is asked once more, from the beginning.
        """
        until = asyncio.get_running_loop().time() + self._settings.abandon_timeout_ms / 1000
        interrupted: asyncio.CancelledError | None = None
        while True:
            try:
                async with timeout_at(until):
                    await writer.abandon()
            except asyncio.CancelledError as error:
                interrupted = error
                continue
            except TimeoutError:
                self._log.error("abandon_timed_out", timeout_ms=self._settings.abandon_timeout_ms)
            except Exception:  # noqa: BLE001 - the sink's border: one that cannot clean up must not take others with it
                self._log.exception("abandon_failed")
            break
        if interrupted is not None:
            raise interrupted

    # -- calls into the sink

    async def _insist(self, call: Callable[[], Awaitable[int]]) -> int | None:
        """Make a call until the sink answers it.

        Returns None where there is nothing more to wait for: the sink has dropped what it held (the feed is moved to
        where it wants to go on), or a drain was asked for between two tries.
        """
        while True:
            await self._usable()
            try:
                answer = await self._at_sink(call())
            except LeasePaused as error:
                await self._back_off(error)
            except RetriableSinkError as error:
                self._hooks.sink_failed(self._partition, self._route.name, retriable=True)
                await self._back_off(error)
                if error.resume_position is not None:
                    self._rewind(error.resume_position)
                    return None
            else:
                if self._unproven is None or answer > self._unproven:
                    self._recover()
                return answer
            if self._drain.is_set():
                return None

    async def _at_sink(self, call: Awaitable[_T]) -> _T:
        """Await a call into the sink, and let nothing but our own errors out."""
        try:
            answer = await call
        except PermanentSinkError:
            self._hooks.sink_failed(self._partition, self._route.name, retriable=False)
            raise
        except ConsumerdError:
            raise
        except Exception as error:
            # the sink's border: a fault in one sink's code stops its partitions, not the process
            self._log.exception("sink_faulted")
            self._hooks.sink_failed(self._partition, self._route.name, retriable=False)
            message = f"sink {self._route.name}: unexpected {type(error).__name__}, see the log"
            raise PermanentSinkError(message) from error
        if self._revoked:
            raise OwnershipLost(f"{self._partition}: the claim ended while the sink was at work")
        return answer

    def _acknowledge(self, position: int) -> None:
        if self._get_tracker().acknowledge(position):
            self._hooks.position_acknowledged(self._partition, position)

    def _rewind(self, position: int) -> None:
        _, feed = self._get_open()
        tracker = self._get_tracker()
        if position <= tracker.acknowledged:
            # what was taken is gone: to take it again proves nothing, a full disk refuses the file at its end
            self._unproven = tracker.acknowledged
        # what is acknowledged is safe, whatever the sink says
        tracker.rewind(max(position, tracker.acknowledged))
        feed.seek(tracker.delivered)

    async def _usable(self) -> None:
        """Return once the claim may be used at this very moment. Unbounded; ends by OwnershipLost at the latest."""
        while True:
            if self._revoked:
                raise OwnershipLost(f"{self._partition}: the claim was taken away")
            try:
                self._claim.check()
            except LeasePaused:
                self._paused = True
                try:
                    await self._claim.wait_usable()
                finally:
                    self._paused = False
            else:
                return

    # -- positions that the broker does not hold

    async def _handle_out_of_range(self, error: OffsetOutOfRange) -> None:
        writer, feed = self._get_open()
        tracker = self._get_tracker()
        plan = plan_out_of_range(error, self._settings.offsets)
        if error.offset != tracker.delivered or isinstance(plan, TryAgain):
            await self._back_off(error)
            feed.seek(tracker.delivered)
        elif isinstance(plan, Stop):
            await self._halt(plan)
        elif plan.gaps:
            self._condition.move(error, plan)
            await self._write(empty_batch(self._partition, error.offset, plan.position, plan.gaps))
            feed.seek(tracker.delivered)
        else:
            await self._move_back(error, plan, writer)

    async def _move_back(self, error: OffsetOutOfRange, move: Move, writer: PartitionWriter) -> None:
        if writer.resume_position is not None:
            advice = (
                f"the landed files end at {error.offset}, the log at {error.latest}: it lost its end (an unclean leader "
                "election), or the path belongs to another cluster; give the sink a new path, or wait until the log "
                "has passed that offset"
            )
            await self._halt(Stop(cause=StopCause.ABOVE_LOG, advice=advice))
        await self._secure()
        self._condition.move(error, move)
        self._move = move
        raise _Reopen

    # -- waiting

    async def _halt(self, stop: Stop) -> None:
        """Flush what was written before, then stop."""
        await self._secure()
        raise _Stopped(stop)

    async def _secure(self) -> None:
        try:
            if self._get_tracker().unacknowledged:
                await self._flush()
        except _REFUSED as error:
            self._log.warning("stop_flush_failed", error=str(error))

    async def _wait_stopped(self, stop: Stop, *, opened: bool) -> None:
        """Stay stopped until it may go on, or a drain is asked for."""
        self._condition.halt(stop, opened=opened)
        if self._tracker is not None:
            await self._committer.commit_at_once(self)
        while not await self._rest(self._settings.recheck_ms / 1000):
            try:
                self._claim.check()
                if stop.cause in _TRIED_AGAIN:
                    return
                if await self._valid_again(stop):
                    self._condition.resume()
                    return
            except _CLAIM_GONE:
                raise
            except _MAY_PASS as error:
                self._log.debug("recheck_failed", error=str(error))

    async def _valid_again(self, stop: Stop) -> bool:
        if stop.refused is not None:
            if await self._starts.moved_from(self._claim, stop.refused):
                return True
            return await self._starts.holds(self._partition, stop.refused)
        if await self._starts.moved(self._claim, self._earlier):
            return True
        if stop.cause in (StopCause.BELOW_LOG, StopCause.ABOVE_LOG):
            return await self._starts.holds(self._partition, self._get_tracker().delivered)
        return False

    async def _back_off(self, error: ConsumerdError) -> None:
        self._condition.fail(error)
        await self._rest(self._backoff.next())

    def _recover(self) -> None:
        self._unproven = None
        if self._condition.failing:
            self._backoff.reset()
            self._condition.recover()

    @property
    def _settled_at(self) -> float | None:
        """When a failure that has not come again counts as over; None while there is none."""
        failed_at = self._condition.failed_at
        if failed_at is None or self._unproven is not None:
            return None
        return failed_at + self._settings.retry_maximum_ms / 1000

    async def _rest(self, seconds: float) -> bool:
        """Wait; return True as soon as a drain is asked for."""
        try:
            async with timeout(seconds):
                await self._drain.wait()
        except TimeoutError:
            return False
        return True

    # -- invariants for mypy and for readers

    def _get_open(self) -> tuple[PartitionWriter, RecordFeed]:
        assert self._writer is not None
        assert self._feed is not None
        return self._writer, self._feed

    def _get_tracker(self) -> OffsetTracker:
        assert self._tracker is not None
        return self._tracker


def _find_cause(error: ConsumerdError) -> StopCause:
    if isinstance(error, CorruptMessageError):
        return StopCause.CORRUPT
    return StopCause.OVERSIZED if isinstance(error, RecordTooLarge) else StopCause.REJECTED
