# SPDX-License-Identifier: Apache-2.0
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

An operator's request (``consumerd offsets set``) is looked for at the start and whenever the requests of the topic have
changed, running or stopped. What was written is flushed and the writer closed; the next one starts where the request
says, and the position is committed, which takes the request away, before anything is delivered from there. A crash
anywhere in between leaves the request, and whoever claims the partition next carries it out: what is done already (a
chain that bears its id, a gap that has landed) is not done again.

Where a new beginning is decided is ``policy`` and ``start``; how records go from feed to writer is ``flow``; how a call
into the sink is guarded is ``calls``. Here is what holds them together, and what follows when one of them ends.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from consumerd.delivery.context import ClaimContext, DeliveryTools
from consumerd.delivery.flow import CLAIM_GONE, MAY_PASS, REFUSED, Flow, MoveBack, StopDelivery, plan_stop
from consumerd.delivery.log_ends import ObservedLogEnd
from consumerd.delivery.policy import Earlier, Former, Reposition, StartAt, Stop, StopCause, wait_above
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
    """Delivery goes on at a position that needs a new writer."""


class PartitionPipeline:
    """Delivers one partition under one claim; made for it and thrown away with it.

    ``former`` is what this process may have committed for an older topic of the same name.
    """

    def __init__(self, claim: Claim, route: SinkRoute, tools: DeliveryTools, *, former: Former | None = None) -> None:
        context = self._context = ClaimContext(claim, route, tools)
        self._claim = claim
        self._partition = claim.partition
        self._tools = tools
        self._settings = tools.settings
        self._log = context.log
        self._attention = context.attention
        self._condition = context.condition
        self._calls = context.calls
        self._end = ObservedLogEnd(tools.settings, tools.now)
        self._tracker: OffsetTracker | None = None
        self._fulfils: OffsetRequest | None = None
        self._former = former
        self._writer: PartitionWriter | None = None
        self._feed: RecordFeed | None = None
        self._move: Reposition | None = None  # a reset to before the log's end, until its new writer has begun
        self._untold: StartAt | None = None  # a start that was decided upon, and not told since it is not committed yet
        self._lost_end: LostEnd | None = None  # a truncation that stops it, until the group knows
        self._ahead: int | None = None  # a position above the log's end that an operator has asked for
        self._closing = False

    # -- what others see

    @property
    def claim(self) -> Claim:
        """The claim that it delivers under."""
        return self._claim

    @property
    def partition(self) -> TopicPartition:
        """Whose records these are."""
        return self._partition

    @property
    def needs_log_end(self) -> bool:
        """Whether a position is known, and for half of ``recheck_ms`` no feed has told of the log's end.

        Thousands of partitions that start together take seconds, in which their brokers are not asked twice.
        """
        return self._tracker is not None and self._end.is_due(self._feed)

    def note_log_end(self, log_end: int | None) -> None:
        """Take the end of the log, which was asked for since no feed tells it; None where no broker does."""
        self._end.note(log_end)

    @property
    def tracker(self) -> OffsetTracker | None:
        """The positions; None before the start is known and after the claim is gone."""
        return None if self._calls.revoked else self._tracker

    @property
    def fulfils(self) -> OffsetRequest | None:
        """The request that the next commit carries out."""
        return self._fulfils

    @property
    def former(self) -> Former | None:
        """What may have been committed, for who delivers a later topic of the same name."""
        tracker = self._tracker
        if tracker is None:
            return self._former
        committed = tracker.start if tracker.committed is None else tracker.committed
        return Former(
            incarnation=self._claim.incarnation,
            committed=min(committed, tracker.acknowledged),
            acknowledged=tracker.acknowledged,
        )

    @property
    def status(self) -> PartitionStatus:
        """How it stands now."""
        tracker, feed = self._tracker, self._feed
        if tracker is None:
            lag = None
        elif feed is None:
            # what was delivered and not acknowledged is gone with the writer: the next one begins behind what is safe
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
        """What has failed for longer than it may, besides what the sink refused."""
        return self._condition.find_fault(None if self._feed is None else self._feed.fault)

    @property
    def _state(self) -> DeliveryState:
        condition = self._condition
        if condition.stop is not None:
            return DeliveryState.STOPPED
        if self._attention.draining:
            return DeliveryState.DRAINING
        if condition.failing or self._fault is not None:
            return DeliveryState.FAILING
        if self._calls.paused:
            return DeliveryState.PAUSED
        return DeliveryState.STARTING if self._feed is None else DeliveryState.RUNNING

    # -- what the owner does

    def drain(self) -> bool:
        """Stop fetching, flush and end; return False where there is nothing to flush, and cancelling loses nothing."""
        if not self._attention.draining:
            self._condition.turn()
        self._attention.drain()
        return self._feed is not None or self._closing

    def revoke(self) -> None:
        """Take the claim away: from now on nothing is acknowledged, and nothing more is offered for a commit."""
        self._calls.revoke()

    def tell_fault(self) -> None:
        """Tell of a fault that has lasted, and of its end; called from time to time."""
        if self._condition.stop is None and not self._attention.draining and not self._calls.revoked:
            self._condition.watch(self._fault)

    def note_commit(self, failure: str | None) -> None:
        """Take why the position could not be written; None once it was."""
        self._condition.note_commit(failure)

    def look_up(self) -> None:
        """Look whether an operator has asked for something."""
        self._attention.look_up()

    async def run(self) -> None:
        """Deliver until drained, cancelled or without a claim; unbounded. Raises nothing that a partition can suffer."""
        try:
            while not self._attention.draining:
                await self._attempt()
        except CLAIM_GONE as error:
            if self._calls.revoked:
                return  # the owner took it away: it knows
            self.revoke()
            self._log.warning("delivery_ended", error=str(error))
            self._tools.reports.lost(self._claim, error)
        except SinkClosed as error:
            self._log.info("sink_closed", error=str(error))
            self._tools.reports.sink_closed(error)

    # -- one attempt: open, deliver, close

    async def _attempt(self) -> None:
        """Open, deliver until something needs a new beginning, close; then wait out what it was."""
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
        """Begin with a writer; when this returns, its start is committed where it has to be."""
        await self._calls.usable()
        self._fulfils = None
        async with self._tools.gate.admitted():
            await self._note_lost_end()  # what is decided here depends on it
            request = await self._find_request()
            writer = self._writer = await self._calls.once(self._context.route.sink.open(self._claim), "open")
            plan = await self._find_start(writer, request)
        # the topic may have been made again since the claim: then the offset read above is another topic's
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
        if self._tracker is None:  # else it is tried again, and nobody has told of the log's end meanwhile
            self._end.begin()
        self._tracker, self._fulfils = tracker, plan.request
        if plan.request is not None:
            self._ahead = plan.first_offset if plan.ahead else None
            self._move = None  # it takes that one's place, whichever pass of the committer carries it out from now on
        if self._untold is None or not plan.repeats(self._untold):
            self._untold = plan
        # an end of the log moves: what it was found to be must hold over a crash before anything is delivered from there
        if plan.committed is None and not await self._tools.committer.commit_at_once(self):
            reason = self._tools.committer.explain_refusal(self._partition)
            told = f": {reason}" if reason is not None else ""
            raise CoordinationError(f"{self._partition}: start at {plan.first_offset} could not be committed{told}")
        begun, self._untold = self._untold, None
        self._fulfils = self._former = self._move = None
        self._calls.reset()
        self._condition.start(begun)
        feed = self._feed = self._tools.feeds.feed(self._partition, tracker.delivered)
        self._end.begin(feed)
        self._condition.turn()
        incarnation = Incarnation(self._claim.incarnation.czxid, plan.truncation)
        return Flow(self._context, writer, feed, tracker, incarnation=incarnation)

    async def _find_start(self, writer: PartitionWriter, request: OffsetRequest | None) -> StartAt:
        found = await self._tools.starts.find(
            self._claim, writer, request=request, move=self._move, earlier=self._earlier, former=self._former
        )
        if isinstance(found, Stop):
            raise StopDelivery(found)
        return found

    async def _land(self, writer: PartitionWriter, tracker: OffsetTracker, gap: Gap) -> None:
        """Have a gap made safe before its end is committed: after that the request that asked for it is gone."""
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
    def _earlier(self) -> Earlier | None:
        tracker = self._tracker
        if tracker is None:
            return None
        return Earlier(acknowledged=tracker.acknowledged, committed=tracker.committed)

    async def _deliver(self, flow: Flow) -> None:
        """Deliver until drained, then flush."""
        while True:
            await flow.run()
            if self._attention.draining:
                break
            try:
                request = await self._find_request()
            except CLAIM_GONE:
                raise
            except CoordinationError as error:
                # no reason to deliver nothing meanwhile; should the pipeline have ended by then, nobody minds
                if not isinstance(error, NotConnected):  # of which the session's hooks tell, once for all partitions
                    self._log.warning("request_lookup_failed", error=str(error))
                    self._tools.hooks.trouble(Trouble.REQUEST_LOOKUP_FAILED, str(error), self._partition)
                delay_s = self._settings.retry_maximum_ms / 1000
                asyncio.get_running_loop().call_later(delay_s, self._attention.look_up)
                continue
            if request is not None:
                # what was delivered before it was asked for is not left out: the request begins behind it
                try:
                    if not await flow.secure_all():
                        break
                finally:
                    self._attention.doubt()  # it is not carried out yet, whatever this comes to
                raise _Reopen
        await flow.finish()

    async def _find_request(self) -> OffsetRequest | None:
        """Look for an operator's request; one that comes meanwhile is news again. Raises CoordinationError."""
        self._attention.looked()
        return await self._tools.requests.find(self._partition)

    async def _move_back(self, move: Reposition) -> None:
        """Go on below what was landed. No commit of the old positions may follow that of the new one, or come between
        reading the offset node and noting that it is void: what is under way is waited for.
        """
        await self._tools.committer.commit_at_once(self)
        self._tracker = None
        self._move = move
        self._condition.resume()  # whatever stopped it is not in the log any more

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
        """Remember the truncation behind a stop, where what is safe reaches beyond the log's end."""
        lost, tracker = stop.lost_end, self._tracker
        if lost is None:
            return stop
        if stop.refused is None and tracker is not None:
            dropped = tracker.acknowledged <= lost.latest  # the sink has refused the rest, and the log has lost it
            ahead = tracker.acknowledged == self._ahead  # the log was never that long
            if dropped or ahead:
                return wait_above(lost, tracker.acknowledged)
            lost = replace(lost, position=tracker.acknowledged)
        self._lost_end = lost
        return replace(stop, lost_end=lost)

    async def _note_lost_end(self) -> None:
        """Note for the group the truncation behind a stop. Raises CoordinationError.

        The log will not show it any more once it has grown. The note names the offset node that it makes void, so no
        commit of ours may follow it.
        """
        lost, tracker = self._lost_end, self._tracker
        if lost is None:
            return
        if tracker is not None and tracker.pending is not None and not await self._tools.committer.commit_at_once(self):
            raise CoordinationError(f"{self._partition}: position {tracker.acknowledged} could not be committed")
        await self._tools.starts.note_lost_end(self._claim, lost)
        self._lost_end = None

    async def _wait_stopped(self, stop: Stop, *, opened: bool) -> None:
        """Stay stopped until it may go on, an operator says where to, or a drain is asked for."""
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
            await self._attention.idle(self._settings.recheck_ms / 1000)
            if self._attention.draining:
                return
            try:
                self._claim.check()
                if self._attention.curious and await self._find_request() is not None:
                    self._attention.doubt()  # it is carried out by the next attempt, which finds it again
                    return
                if stop.cause in _TRIED_AGAIN:
                    return
                if await self._valid_again(stop):
                    self._condition.resume()
                    return
            except CLAIM_GONE:
                raise
            except MAY_PASS as error:
                self._attention.doubt()
                self._log.debug("recheck_failed", error=str(error))

    async def _valid_again(self, stop: Stop) -> bool:
        """Tell whether a stop is over without a request.

        It is where another position is committed, or the log holds ours. A truncation (``lost_end``) was confirmed:
        a log that reaches beyond the position again holds other records there.
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
