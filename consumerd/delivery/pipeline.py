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
time to time whether it can continue).

An operator's request (``consumerd offsets set``) is read at the start, and whenever the requests of the topic change.
Example: the pipeline has delivered 0-499 when a request asks for 100.

1. The writer flushes up to 500 and is closed.
2. A new writer begins a new chain at 100, which bears the request's id.
3. Position 100 is committed, and the same transaction deletes the request.
4. Delivery continues with offset 100.

After a crash before step 3, the request is still there, and the next claim carries it out. It recognises what is done
already by the chain's id or by a landed gap.

``policy`` and ``start`` decide where a partition starts; ``flow`` moves records from the feed to the writer; ``calls``
guards calls into the sink. This module connects them.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final

from consumerd.delivery.context import ClaimContext, DeliveryTools
from consumerd.delivery.flow import CLAIM_GONE, MAY_PASS, REFUSED, Flow
from consumerd.delivery.log_ends import ObservedLogEnd
from consumerd.delivery.policy import EarlierAttempt, PreviousClaim, Reposition, StartAt, Stop, StopCause, wait_above
from consumerd.delivery.ports import RecordFeed, SinkRoute
from consumerd.delivery.status import DeliveryState, PartitionStatus
from consumerd.delivery.stops import MoveBack, StopDelivery, plan_stop
from consumerd.errors import ConsumerdError, CoordinationError, OffsetError, RetriableSinkError, SinkClosed
from consumerd.model import Claim, Fault, Gap
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
    """Delivers one partition under one claim; there is a new pipeline for each claim.

    Args:
        claim: The claim of the partition.
        route: The partition's sink, and the policy for records that the sink refuses.
        tools: The objects that all pipelines share.
        previous: Positions that this process may have committed for an older topic of the same name; None without any.
    """

    def __init__(
        self, claim: Claim, route: SinkRoute, tools: DeliveryTools, *, previous: PreviousClaim | None = None
    ) -> None:
        context = self._context = ClaimContext(claim, route, tools)
        self.claim: Final = claim
        """The claim under which the partition is delivered."""
        self.partition: Final = claim.partition
        """The partition delivered."""
        self._tools = tools
        self._settings = tools.settings
        self._log = context.log
        self._signals = context.signals
        self._condition = context.condition
        self._calls = context.calls
        self._end = ObservedLogEnd(tools.settings, tools.now)
        self._tracker: OffsetTracker | None = None
        self.fulfils: OffsetRequest | None = None
        """Operator's request that the next commit carries out and deletes; None without one.

        A request asks for another position (``consumerd offsets set``).
        """
        self._previous = previous
        self._writer: PartitionWriter | None = None
        self._feed: RecordFeed | None = None
        self._flow: Flow | None = None
        self._move: Reposition | None = None  # a reset to a lower position, until its new writer has started
        self._unreported: StartAt | None = None  # a start that is not reported yet, since its commit is not confirmed
        self._lost_end: LostEnd | None = None  # a truncation that stops it, until it is recorded in ZooKeeper
        self._ahead: int | None = None  # a position beyond the log end that an operator asked for
        self._closing = False

    # -- what others see

    @property
    def needs_log_end(self) -> bool:
        """True if brokers should be asked for the partition's log end.

        That is the case if its position is known, and its feed has a fault or has not reported the log end for half of
        ``recheck_ms``. The delay keeps thousands of partitions that start together from asking while their first
        responses are still under way.
        """
        return self._tracker is not None and self._end.is_due(self._feed)

    def note_log_end(self, log_end: int | None) -> None:
        """Note the log end that a broker has returned; None if no broker responded."""
        self._end.note(log_end)
        tracker, flow = self._tracker, self._flow
        if log_end is None or tracker is None or flow is None or self._tools.ranges.logs_are_replicated:
            return
        if log_end < tracker.delivered:
            flow.doubt_end()

    @property
    def tracker(self) -> OffsetTracker | None:
        """Tracker of delivered, acknowledged and committed positions.

        None before the start is decided and after the claim is gone: nothing may be committed then.
        """
        if self._calls.revoked:
            return None
        if self._flow is not None:
            self._flow.note_finished()
        return self._tracker

    @property
    def commit_failure(self) -> str | None:
        """Reason why the last commit of the position failed; None if it succeeded."""
        return self._condition.commit_failure

    @property
    def previous(self) -> PreviousClaim | None:
        """Positions that this claim may have committed; None before any is known.

        The next claim needs these positions if the topic is deleted and created again: a commit for the old topic may
        arrive late, and must not count for the new one.
        """
        tracker = self._tracker
        if tracker is None:
            return self._previous
        committed = tracker.start if tracker.committed is None else tracker.committed
        return PreviousClaim(
            incarnation=self.claim.incarnation,
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
            partition=self.partition,
            sink=self._context.route.name,
            epoch=self.claim.epoch,
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
        """Fault, other than a refusal of the sink, that has lasted too long, or None."""
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
        """Stop fetching, flush and end; return at once.

        The result is False if there is nothing to flush, so that the caller can cancel the pipeline without loss.
        """
        if not self._signals.draining:
            self._condition.turn()
        self._signals.drain()
        return self._feed is not None or self._closing

    def revoke(self) -> None:
        """Mark the claim as lost: nothing is acknowledged or committed from now on.

        The caller cancels the pipeline afterwards.
        """
        self._calls.revoked = True

    def tell_fault(self) -> None:
        """Report a fault that has lasted some seconds, or its end, once each. Called periodically."""
        if self._condition.stop is None and not self._signals.draining and not self._calls.revoked:
            self._condition.watch(self._fault)

    def note_commit(self, failure: str | None) -> None:
        """Receive a commit's result: None after a success, else the reason of the failure."""
        self._condition.note_commit(failure)

    def check_requests(self) -> None:
        """Make the pipeline read, at its next step, an operator's request for a position.

        Called when the request in ZooKeeper may have changed.
        """
        self._signals.check_requests()

    async def run(self) -> None:
        """Deliver the partition until it is drained, cancelled, or its claim is lost.

        Has no time limit. Errors that concern only this partition are reported, not raised.
        """
        try:
            while not self._signals.draining:
                await self._attempt()
        except CLAIM_GONE as error:
            if self._calls.revoked:
                return  # revoked by the owner, who needs no report
            self.revoke()
            self._log.warning("delivery_ended", error=str(error))
            self._tools.reports.lost(self.claim, error)
        except SinkClosed as error:
            self._log.info("sink_closed", error=str(error))
            self._tools.reports.sink_closed(error)

    # -- one attempt: open, deliver, close

    async def _attempt(self) -> None:
        """Open a writer, deliver until a new start is needed, close, and wait if necessary."""
        stop: Stop | None = None
        refused: ConsumerdError | None = None
        failure: ConsumerdError | None = None
        move: Reposition | None = None
        opened = False
        try:
            self._flow = flow = await self._open()
            opened = True
            await self._deliver(flow)
        except StopDelivery as stopped:
            stop, refused = self._judge_stop(stopped), stopped.error
        except MoveBack as back:
            move = back.move
            if self._writer is not None and self._writer.resume_position is not None:
                self._condition.truncated(self._writer.resume_position, back.error)
        except _Reopen:
            pass
        except CLAIM_GONE:
            raise
        except REFUSED as error:
            stop, refused = plan_stop(error, replicated=self._tools.ranges.logs_are_replicated), error
        except MAY_PASS as error:
            failure = error
        finally:
            await self._close()
        if stop is not None:
            self._tools.reports.stopped(self.claim, refused or OffsetError(stop.advice))
            refused = None  # it may hold the bytes of a unit
            await self._wait_stopped(stop, opened=opened)
        elif move is not None:
            await self._move_back(move)
        elif failure is not None:
            await self._calls.back_off(failure)

    async def _open(self) -> Flow:
        """Open and start a writer, and commit the start position if necessary."""
        await self._calls.usable()
        self.fulfils = None
        async with self._tools.gate.admitted():
            await self._note_lost_end()  # the start depends on the record in ZooKeeper
            request = await self._find_request()
            writer = self._writer = await self._calls.once(self._context.route.sink.open(self.claim), "open")
            plan = await self._find_start(writer, request)
        # if the topic was re-created since the claim, the offset read above belongs to another topic
        await self.claim.confirm()
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
        tracker = OffsetTracker(plan.position, plan.committed, truncation=plan.truncation)
        if plan.lead is not None:
            await self._land(writer, tracker, plan.lead)
        if self._tracker is None:  # in a retry, the age of the log end counts from the first attempt
            self._end.begin()
        self._tracker, self.fulfils = tracker, plan.request
        if plan.request is not None:
            self._ahead = plan.first_offset if plan.ahead else None
            self._move = None  # the request replaces the reset, and any commit from now on carries it out
        if self._unreported is None or not plan.repeats(self._unreported):
            self._unreported = plan
        # a log's ends move, so a start at one of them must survive a crash before anything is delivered from it
        if plan.committed is None and not await self._tools.committer.commit_at_once(self):
            reason = self._tools.committer.explain_refusal(self.partition)
            told = f": {reason}" if reason is not None else ""
            raise CoordinationError(f"{self.partition}: start at {plan.first_offset} could not be committed{told}")
        begun, self._unreported = self._unreported, None
        self.fulfils = self._previous = self._move = None
        self._calls.reset()
        self._condition.start(begun)
        feed = self._feed = self._tools.feeds.feed(self.partition, tracker.delivered)
        self._end.begin(feed)
        self._condition.turn()
        incarnation = self.claim.incarnation.truncated(plan.truncation)
        return Flow(self._context, writer, feed, tracker, incarnation=incarnation)

    async def _find_start(self, writer: PartitionWriter, request: OffsetRequest | None) -> StartAt:
        found = await self._tools.starts.find(
            self.claim, writer, request=request, move=self._move, earlier=self._earlier, previous=self._previous
        )
        if isinstance(found, Stop):
            raise StopDelivery(found)
        return found

    async def _land(self, writer: PartitionWriter, tracker: OffsetTracker, gap: Gap) -> None:
        """Land a gap before its end is committed.

        The commit deletes the request that asked for the gap, so nothing could repeat it after a crash.
        """
        lead = empty_batch(self.partition, gap.start, gap.end, (gap,))
        await self._calls.once(writer.write(lead), "write")
        acknowledged = await self._calls.once(writer.flush(), "flush")
        if acknowledged < gap.end:
            raise RetriableSinkError(f"{self.partition}: a flush up to {gap.end} was acknowledged up to {acknowledged}")
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
                    self._tools.hooks.trouble(Trouble.REQUEST_LOOKUP_FAILED, str(error), self.partition)
                delay_s = self._settings.retry_maximum_ms / 1000
                asyncio.get_running_loop().call_later(delay_s, self._signals.check_requests)
                continue
            if request is not None:
                # records delivered before the request came are flushed first, so none of them is left out
                try:
                    if not await flow.secure_all():
                        break
                finally:
                    self._signals.may_have_request = True  # not carried out yet, also if the flush fails
                raise _Reopen
        await flow.finish()

    async def _find_request(self) -> OffsetRequest | None:
        """Read the operator's request, if there is one for the claimed topic. Raises CoordinationError."""
        self._signals.may_have_request = False
        found = await self._tools.requests.find(self.partition)
        if found is None or found.topic is None or found.topic.is_same_topic(self.claim.incarnation):
            return found
        return None  # it is about a deleted topic of the same name

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
        flow, self._flow = self._flow, None
        if flow is not None and not self._calls.revoked:
            flow.note_finished()
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

    def _judge_stop(self, stopped: StopDelivery) -> Stop:
        """Note a truncation that stops delivery, if records have landed that the log has lost."""
        stop, tracker = stopped.stop, self._tracker
        lost = stop.lost_end
        if lost is None:
            return stop
        if stop.refused is None and tracker is not None:
            # nothing beyond the log's end has landed, and the log below is still the same
            dropped = tracker.acknowledged <= lost.latest and not stopped.is_replaced
            ahead = tracker.acknowledged == self._ahead  # an operator asked for it, and the log has not reached it yet
            if dropped or ahead:
                return wait_above(lost, tracker.acknowledged)
            lost = replace(lost, position=tracker.acknowledged)
        self._lost_end = lost
        return replace(stop, lost_end=lost)

    async def _note_lost_end(self) -> None:
        """Record in ZooKeeper the truncation behind a stop. Raises CoordinationError.

        Once the log has grown again, the truncation cannot be seen any more. The record voids the stored position,
        which it identifies by its mark (the number of that write). A later commit would have a new mark and not be
        void, so pending positions are committed first.
        """
        lost, tracker = self._lost_end, self._tracker
        if lost is None:
            return
        if tracker is not None and tracker.pending is not None and not await self._tools.committer.commit_at_once(self):
            raise CoordinationError(f"{self.partition}: position {tracker.acknowledged} could not be committed")
        await self._tools.starts.note_lost_end(self.claim, lost)
        self._lost_end = None

    async def _wait_stopped(self, stop: Stop, *, opened: bool) -> None:
        """Wait until delivery can continue, or an operator's request or a drain comes."""
        self._condition.halt(stop, opened=opened)
        if self._tracker is not None and self._settings.auto_commit:
            await self._tools.committer.commit_at_once(self)
        is_told = False
        while True:
            try:
                await self._note_lost_end()
            except CLAIM_GONE:
                raise
            except MAY_PASS as error:
                if not is_told:
                    self._condition.leave_unnoted(error)
                is_told = True
            await self._signals.idle(self._settings.recheck_ms / 1000)
            if self._signals.draining:
                return
            try:
                self.claim.check()
                if self._signals.may_have_request and await self._find_request() is not None:
                    self._signals.may_have_request = True  # the next attempt reads the request again and carries it out
                    return
                if stop.cause in _TRIED_AGAIN:
                    return
                if await self._valid_again(stop):
                    self._condition.resume()
                    return
            except CLAIM_GONE:
                raise
            except MAY_PASS as error:
                self._signals.may_have_request = True
                self._log.debug("recheck_failed", error=str(error))

    async def _valid_again(self, stop: Stop) -> bool:
        """Return True if a stop is over without a request.

        A stop is over if another position was committed meanwhile, or if the log holds our position. A confirmed
        truncation (``lost_end``) is not over when the log has grown beyond the position: it holds other records there.
        """
        if stop.refused is not None:
            return await self._tools.starts.moved_from(self.claim, stop.refused)
        if await self._tools.starts.moved(self.claim, self._earlier):
            return True
        tracker = self._tracker
        if tracker is None or stop.lost_end is not None:
            return False
        if stop.cause is StopCause.ABOVE_LOG:
            return await self._tools.starts.holds(self.partition, tracker.acknowledged)
        if stop.cause is StopCause.BELOW_LOG:
            return await self._tools.starts.holds(self.partition, tracker.delivered)
        return False
