# SPDX-License-Identifier: Apache-2.0
"""The pipeline of one partition, from its feed to its sink, for one claim.

The pipeline is one task. It reads the committed position (after the claim, never before), opens a writer, decides on
the start position, and then hands batch after batch to the writer. Acknowledgements go to the tracker, whose position
the committer commits. Nothing is fetched ahead here: back-pressure is not asking the feed for more.

How it ends, and what happens to unacknowledged records in the writer:

================  ==========================================  =========================
end               cause                                       unacknowledged records
================  ==========================================  =========================
drained           :meth:`PartitionPipeline.drain`             flushed
revoked           :meth:`PartitionPipeline.revoke`, then      abandoned
                  cancelled by the owner
claim lost        OwnershipLost or IncarnationChanged out     abandoned, reported
                  of any call
================  ==========================================  =========================

These do not end it: a paused lease (it waits and keeps its position); a sink or broker that fails (backoff, with one
log line at the first failure and one at the recovery); a stop by a policy (it stays claimed, flushes, and checks from
time to time whether it can go on).

An operator's request (``consumerd offsets set``) is read at the start, and whenever the requests of the topic change.
Example: the pipeline has delivered 0-499 when a request asks for 100.

1. The writer flushes up to 500 and is closed.
2. A new writer begins a new chain at 100, which bears the request's id.
3. Position 100 is committed, and the same transaction deletes the request.
4. Delivery goes on with offset 100.

After a crash before step 3, the request is still there, and the next claim carries it out. It recognises what is done
already by the chain's id or by a landed gap.

``policy`` and ``start`` decide where a partition starts; ``flow`` moves records from the feed to the writer; ``calls``
guards calls into the sink. This module connects them.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from consumerd.delivery.context import ClaimContext, DeliveryTools
from consumerd.delivery.flow import CLAIM_GONE, MAY_PASS, REFUSED, Flow, MoveBack, StopDelivery, plan_stop
from consumerd.delivery.log_ends import ObservedLogEnd
from consumerd.delivery.policy import EarlierAttempt, PreviousClaim, Reposition, StartAt, Stop, StopCause, wait_above
from consumerd.delivery.ports import RecordFeed, SinkRoute
from consumerd.delivery.status import DeliveryState, PartitionStatus
from consumerd.errors import ConsumerdError, CoordinationError, RetriableSinkError, SinkClosed
from consumerd.model import Claim, Fault, Gap, Incarnation, TopicPartition
from consumerd.offsets.store import LostEnd, OffsetRequest
from consumerd.offsets.tracker import OffsetTracker, count_lag
from consumerd.sinks.base import PartitionWriter, Start
from consumerd.telemetry.hooks import Trouble
from consumerd.wire.records import empty_batch
from consumerd.zk.port import NotConnected

_TRIED_AGAIN = frozenset(
    {
        StopCause.MALFORMED_OFFSET,
        StopCause.CORRUPT,
        StopCause.OVERSIZED,
        StopCause.REJECTED,
        StopCause.MISSING_LIBRARY,
    }
)


class _Reopen(Exception):
    """Delivery continues at a position that needs a new writer."""


class PartitionPipeline:
    """Delivers one partition under one claim, and is discarded with it.

    Args:
        previous: Positions that this process may have committed for an older topic of the same name.
    """

    def __init__(
        self, claim: Claim, route: SinkRoute, tools: DeliveryTools, *, previous: PreviousClaim | None = None
    ) -> None:
        context = self._context = ClaimContext(claim, route, tools)
        self._claim = claim
        self._partition = claim.partition
        self._tools = tools
        self._settings = tools.settings
        self._log = context.log
        self._signals = context.signals
        self._condition = context.condition
        self._calls = context.calls
        self._end = ObservedLogEnd(tools.settings, tools.now)
        self._tracker: OffsetTracker | None = None
        self._fulfils: OffsetRequest | None = None
        self._previous = previous
        self._writer: PartitionWriter | None = None
        self._feed: RecordFeed | None = None
        self._move: Reposition | None = None  # a reset to a lower position, until its new writer has started
        self._unreported: StartAt | None = None  # a start that is not reported yet, since its commit is not confirmed
        self._lost_end: LostEnd | None = None  # a truncation that stops it, until it is recorded in ZooKeeper
        self._ahead: int | None = None  # a position beyond the log end that an operator asked for
        self._closing = False

    # -- what others see

    @property
    def claim(self) -> Claim:
        """The claim under which it delivers."""
        return self._claim

    @property
    def partition(self) -> TopicPartition:
        """The partition delivered."""
        return self._partition

    @property
    def needs_log_end(self) -> bool:
        """True if a position is known, but no feed has reported the log end lately.

        That is, for half of ``recheck_ms``: thousands of partitions that start together take seconds, and their brokers
        need not be asked twice in that time.
        """
        return self._tracker is not None and self._end.is_due(self._feed)

    def note_log_end(self, log_end: int | None) -> None:
        """Take over the log end from a broker that was asked; None if none answered."""
        self._end.note(log_end)

    @property
    def tracker(self) -> OffsetTracker | None:
        """The positions; None before the start is decided and after the claim is gone."""
        return None if self._calls.revoked else self._tracker

    @property
    def fulfils(self) -> OffsetRequest | None:
        """The operator's request that the next commit carries out, if any."""
        return self._fulfils

    @property
    def previous(self) -> PreviousClaim | None:
        """Positions that may have been committed, for later topics of the same name."""
        tracker = self._tracker
        if tracker is None:
            return self._previous
        committed = tracker.start if tracker.committed is None else tracker.committed
        return PreviousClaim(
            incarnation=self._claim.incarnation,
            committed=min(committed, tracker.acknowledged),
            acknowledged=tracker.acknowledged,
        )

    @property
    def status(self) -> PartitionStatus:
        """The partition's current status."""
        tracker, feed = self._tracker, self._feed
        if tracker is None:
            lag = None
        elif feed is None:
            # unacknowledged records are gone with the writer, and the next one starts at the acknowledged position
            lag = count_lag(tracker.acknowledged, self._end.find(None))
        else:
            lag = tracker.lag(self._end.find(feed))
        fault = self._fault
        return PartitionStatus(
            partition=self._partition,
            sink=self._context.route.name,
            epoch=self._claim.epoch,
            state=self._state,
            reason=self._condition.find_reason(fault),
            since=self._condition.find_since(fault),
            position=tracker.delivered if tracker else None,
            acknowledged=tracker.acknowledged if tracker else None,
            committed=tracker.committed if tracker else None,
            high_watermark=feed.high_watermark if feed and self._end.hears(feed) else None,
            lag=lag,
            oldest_ms=tracker.oldest_ms if tracker else None,
        )

    @property
    def _fault(self) -> Fault | None:
        """The fault that has lasted too long, other than a refusal of the sink."""
        return self._condition.find_fault(None if self._feed is None else self._feed.fault)

    @property
    def _state(self) -> DeliveryState:
        condition = self._condition
        if condition.stop is not None:
            return DeliveryState.STOPPED
        if self._signals.draining:
            return DeliveryState.DRAINING
        if condition.failing or self._fault is not None:
            return DeliveryState.FAILING
        if self._calls.paused:
            return DeliveryState.PAUSED
        return DeliveryState.STARTING if self._feed is None else DeliveryState.RUNNING

    # -- what the owner does

    def drain(self) -> bool:
        """Stop fetching, flush and end.

        Returns False if there is nothing to flush, so that the pipeline can be cancelled without loss.
        """
        if not self._signals.draining:
            self._condition.turn()
        self._signals.drain()
        return self._feed is not None or self._closing

    def revoke(self) -> None:
        """Revoke the claim: nothing is acknowledged or offered for a commit from now on."""
        self._calls.revoke()

    def tell_fault(self) -> None:
        """Report a fault that has lasted, or its end. Called periodically."""
        if self._condition.stop is None and not self._signals.draining and not self._calls.revoked:
            self._condition.watch(self._fault)

    def note_commit(self, failure: str | None) -> None:
        """Note why the position could not be written, or with None that it was."""
        self._condition.note_commit(failure)

    def check_requests(self) -> None:
        """Check for an operator's request soon."""
        self._signals.check_requests()

    async def run(self) -> None:
        """Deliver until drained, cancelled, or without a claim. Unbounded.

        Raises nothing that concerns the partition only.
        """
        try:
            while not self._signals.draining:
                await self._attempt()
        except CLAIM_GONE as error:
            if self._calls.revoked:
                return  # revoked by the owner, who needs no report
            self.revoke()
            self._log.warning("delivery_ended", error=str(error))
            self._tools.reports.lost(self._claim, error)
        except SinkClosed as error:
            self._log.info("sink_closed", error=str(error))
            self._tools.reports.sink_closed(error)

    # -- one attempt: open, deliver, close

    async def _attempt(self) -> None:
        """Open a writer, deliver until a new start is needed, close, and wait if necessary."""
        stop: Stop | None = None
        failure: ConsumerdError | None = None
        move: Reposition | None = None
        opened = False
        try:
            flow = await self._open()
            opened = True
            await self._deliver(flow)
        except StopDelivery as stopped:
            stop = self._judge_stop(stopped.stop)
        except MoveBack as back:
            move = back.move
            if self._writer is not None and self._writer.resume_position is not None:
                self._condition.truncated(self._writer.resume_position, back.error)
        except _Reopen:
            pass
        except CLAIM_GONE:
            raise
        except REFUSED as error:
            stop = plan_stop(error)
        except MAY_PASS as error:
            failure = error
        finally:
            await self._close()
        if stop is not None:
            await self._wait_stopped(stop, opened=opened)
        elif move is not None:
            await self._move_back(move)
        elif failure is not None:
            await self._calls.back_off(failure)

    async def _open(self) -> Flow:
        """Open and start a writer, and commit the start position if necessary."""
        await self._calls.usable()
        self._fulfils = None
        async with self._tools.gate.admitted():
            await self._note_lost_end()  # the start depends on the record in ZooKeeper
            request = await self._find_request()
            writer = self._writer = await self._calls.once(self._context.route.sink.open(self._claim), "open")
            plan = await self._find_start(writer, request)
        # if the topic was re-created since the claim, the offset read above belongs to another topic
        await self._claim.confirm()
        await self._calls.usable()
        await self._calls.once(
            writer.start(
                Start(
                    position=plan.position,
                    reason=plan.reason.value,
                    new_chain=plan.new_chain,
                    truncation=plan.truncation,
                    request_id=plan.begun_by,
                    missing_until=0 if plan.missing is None else plan.missing.end,
                )
            ),
            "start",
        )
        tracker = OffsetTracker(plan.position, plan.committed)
        if plan.lead is not None:
            await self._land(writer, tracker, plan.lead)
        if self._tracker is None:  # in a retry, the age of the log end counts from the first attempt
            self._end.begin()
        self._tracker, self._fulfils = tracker, plan.request
        if plan.request is not None:
            self._ahead = plan.first_offset if plan.ahead else None
            self._move = None  # the request replaces the reset, and any commit from now on carries it out
        if self._unreported is None or not plan.repeats(self._unreported):
            self._unreported = plan
        # a log's ends move, so a start at one of them must survive a crash before anything is delivered from it
        if plan.committed is None and not await self._tools.committer.commit_at_once(self):
            reason = self._tools.committer.explain_refusal(self._partition)
            told = f": {reason}" if reason is not None else ""
            raise CoordinationError(f"{self._partition}: start at {plan.first_offset} could not be committed{told}")
        begun, self._unreported = self._unreported, None
        self._fulfils = self._previous = self._move = None
        self._calls.reset()
        self._condition.start(begun)
        feed = self._feed = self._tools.feeds.feed(self._partition, tracker.delivered)
        self._end.begin(feed)
        self._condition.turn()
        incarnation = Incarnation(self._claim.incarnation.czxid, plan.truncation)
        return Flow(self._context, writer, feed, tracker, incarnation=incarnation)

    async def _find_start(self, writer: PartitionWriter, request: OffsetRequest | None) -> StartAt:
        found = await self._tools.starts.find(
            self._claim, writer, request=request, move=self._move, earlier=self._earlier, previous=self._previous
        )
        if isinstance(found, Stop):
            raise StopDelivery(found)
        return found

    async def _land(self, writer: PartitionWriter, tracker: OffsetTracker, gap: Gap) -> None:
        """Land a gap before its end is committed.

        The commit deletes the request that asked for the gap, so nothing could repeat it after a crash.
        """
        lead = empty_batch(self._partition, gap.start, gap.end, (gap,))
        await self._calls.once(writer.write(lead), "write")
        acknowledged = await self._calls.once(writer.flush(), "flush")
        if acknowledged < gap.end:
            raise RetriableSinkError(
                f"{self._partition}: a flush up to {gap.end} was acknowledged up to {acknowledged}"
            )
        tracker.deliver(gap.start, gap.end)
        tracker.acknowledge(acknowledged)

    @property
    def _earlier(self) -> EarlierAttempt | None:
        tracker = self._tracker
        if tracker is None:
            return None
        return EarlierAttempt(acknowledged=tracker.acknowledged, committed=tracker.committed)

    async def _deliver(self, flow: Flow) -> None:
        """Deliver until drained, then flush."""
        while True:
            await flow.run()
            if self._signals.draining:
                break
            try:
                request = await self._find_request()
            except CLAIM_GONE:
                raise
            except CoordinationError as error:
                # delivery goes on meanwhile; the check is harmless if the pipeline has ended by then
                if not isinstance(error, NotConnected):  # reported once, for the session
                    self._log.warning("request_lookup_failed", error=str(error))
                    self._tools.hooks.trouble(Trouble.REQUEST_LOOKUP_FAILED, str(error), self._partition)
                delay_s = self._settings.retry_maximum_ms / 1000
                asyncio.get_running_loop().call_later(delay_s, self._signals.check_requests)
                continue
            if request is not None:
                # records delivered before the request came are flushed first, so none of them is left out
                try:
                    if not await flow.secure_all():
                        break
                finally:
                    self._signals.repeat_check()  # not carried out yet, also if the flush fails
                raise _Reopen
        await flow.finish()

    async def _find_request(self) -> OffsetRequest | None:
        """Read the operator's request, if there is one. Raises CoordinationError."""
        self._signals.begin_check()
        return await self._tools.requests.find(self._partition)

    async def _move_back(self, move: Reposition) -> None:
        """Prepare a start below the landed position.

        A commit in progress is waited for. No commit of an old position may follow that of the new one, or come between
        reading the offset node and noting that it is void.
        """
        await self._tools.committer.commit_at_once(self)
        self._tracker = None
        self._move = move
        self._condition.resume()  # the unit that stopped it, if any, is not in the log any more

    async def _close(self) -> None:
        feed, self._feed = self._feed, None
        writer, self._writer = self._writer, None
        if feed is not None:
            self._end.end(feed)
            self._condition.turn()
            feed.close()
        if writer is not None:
            self._closing = True
            try:
                await self._calls.abandon(writer)
            finally:
                self._closing = False

    # -- stopped

    def _judge_stop(self, stop: Stop) -> Stop:
        """Note a truncation that stops delivery, if records beyond the log's end have landed."""
        lost, tracker = stop.lost_end, self._tracker
        if lost is None:
            return stop
        if stop.refused is None and tracker is not None:
            dropped = tracker.acknowledged <= lost.latest  # nothing beyond the log's end has landed
            ahead = tracker.acknowledged == self._ahead  # an operator asked for it, and the log has not reached it yet
            if dropped or ahead:
                return wait_above(lost, tracker.acknowledged)
            lost = replace(lost, position=tracker.acknowledged)
        self._lost_end = lost
        return replace(stop, lost_end=lost)

    async def _note_lost_end(self) -> None:
        """Record in ZooKeeper the truncation behind a stop. Raises CoordinationError.

        The log will not show the truncation any more once it has grown. The record names the transaction that wrote the
        offset node (``mzxid``), which it voids, so no commit of ours may follow it.
        """
        lost, tracker = self._lost_end, self._tracker
        if lost is None:
            return
        if tracker is not None and tracker.pending is not None and not await self._tools.committer.commit_at_once(self):
            raise CoordinationError(f"{self._partition}: position {tracker.acknowledged} could not be committed")
        await self._tools.starts.note_lost_end(self._claim, lost)
        self._lost_end = None

    async def _wait_stopped(self, stop: Stop, *, opened: bool) -> None:
        """Stay stopped until it can go on, an operator's request comes, or a drain."""
        self._condition.halt(stop, opened=opened)
        if self._tracker is not None:
            await self._tools.committer.commit_at_once(self)
        while True:
            try:
                await self._note_lost_end()
            except CLAIM_GONE:
                raise
            except MAY_PASS as error:
                self._log.debug("lost_end_not_noted", error=str(error))
            await self._signals.idle(self._settings.recheck_ms / 1000)
            if self._signals.draining:
                return
            try:
                self._claim.check()
                if self._signals.may_have_request and await self._find_request() is not None:
                    self._signals.repeat_check()  # the next attempt reads the request again and carries it out
                    return
                if stop.cause in _TRIED_AGAIN:
                    return
                if await self._valid_again(stop):
                    self._condition.resume()
                    return
            except CLAIM_GONE:
                raise
            except MAY_PASS as error:
                self._signals.repeat_check()
                self._log.debug("recheck_failed", error=str(error))

    async def _valid_again(self, stop: Stop) -> bool:
        """Return True if a stop is over without a request.

        That is so if another position was committed meanwhile, or if the log holds our position. A confirmed truncation
        (``lost_end``) is not over when the log has grown beyond the position: it holds other records there.
        """
        if stop.refused is not None:
            return await self._tools.starts.moved_from(self._claim, stop.refused)
        if await self._tools.starts.moved(self._claim, self._earlier):
            return True
        tracker = self._tracker
        if tracker is None or stop.lost_end is not None:
            return False
        if stop.cause is StopCause.ABOVE_LOG:
            return await self._tools.starts.holds(self._partition, tracker.acknowledged)
        if stop.cause is StopCause.BELOW_LOG:
            return await self._tools.starts.holds(self._partition, tracker.delivered)
        return False
