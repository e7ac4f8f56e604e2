# SPDX-License-Identifier: Apache-2.0
"""Health of one partition: working, failing or stopped; each change is logged once.

A failure is reported when it begins and when it ends, however often it recurs in between; a stop by a policy likewise.
The pipeline makes the decisions, and this module keeps and reports them.

A refusal of the sink is reported at once. Other faults are looked for periodically (:meth:`Condition.find_fault`), and
are reported once they have lasted some time: a partition that cannot be fetched, a position that cannot be written, a
call of the sink that hangs. A fault that follows another is the same failure, with a new reason.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from consumerd.delivery.passing import PassedUnit
from consumerd.delivery.policy import StartAt, StartReason, Stop
from consumerd.errors import ConsumerdError, OffsetOutOfRange
from consumerd.model import Fault, Gap, GapReason, TopicPartition
from consumerd.offsets.store import OffsetRequest
from consumerd.telemetry.hooks import Hooks, Trouble

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

GRACE_S: Final = 5.0
"""Time, in seconds, that fetching or committing may fail before the partition counts as failing. A leader that moves,
or a broker that restarts in order, takes a second or two.
"""
_PATIENCE_S: Final = 10.0
_LONGEST_PATIENCE_S: Final = 300.0
"""Limits, in seconds, of the time after which a call into a sink counts as hanging. Between these limits, the time is
twice the duration of the slowest recent call, so that a slow but working sink does not alternate between failing and
running. See :meth:`Condition.end_call`.
"""
_PATIENCE_DECAY: Final = 0.9

_EXPECTED: Final = frozenset({GapReason.CONTROL, GapReason.COMPACTION, GapReason.ABORTED})
"""Reasons of gaps in which no record is lost."""

_TO_DO: Final = {
    GapReason.RETENTION: "the brokers have deleted them; give the topic a longer retention, or the group more members",
    GapReason.CORRUPT: "see whether another replica's copy is whole, and the quarantine if there is one",
    GapReason.SKIPPED: "see the quarantine if there is one, else read them by other means while they are retained",
    GapReason.CONSUMED_ELSEWHERE: "another member of the group has consumed them; they are not in this sink",
    GapReason.MISSING_FILE: "this group has landed and committed them, and the file was removed: restore it from a "
    "copy, or move the position back with `consumerd offsets set` while the brokers retain them",
    GapReason.RESET: "a reset policy or an operator asked for it; `consumerd offsets set` goes back",
}


def _count_lost(gap: Gap) -> str:
    if gap.reason in (GapReason.CORRUPT, GapReason.SKIPPED) and gap.end - gap.start == 1:
        return "1"
    return f"unknown, at most {gap.end - gap.start}"


class Condition:
    """Health of one partition under one claim: working, failing or stopped, and the reason.

    Each change is logged once. ``now`` returns the time of a monotonic clock in seconds; all times here are of that
    clock.
    """

    def __init__(
        self, partition: TopicPartition, sink: str, *, hooks: Hooks, log: FilteringBoundLogger, now: Callable[[], float]
    ) -> None:
        self._partition = partition
        self._sink = sink
        self._hooks = hooks
        self._log = log
        self._now = now
        self.stop: Stop | None = None
        """Reason for which a policy has stopped the partition; None if it is not stopped."""
        self._stopped_open = False  # true if it stopped after the sink was opened
        self._failure: str | None = None
        self.failed_at: float | None = None
        """Time of the latest failed try, on the clock ``now``; None if nothing fails."""
        self._since: float | None = None
        self._turned_at = now()
        self._told = False
        self._watched = False
        self._call: tuple[str, str, float] | None = None
        self._patience_s = _PATIENCE_S
        self._commit_fault: Fault | None = None

    @property
    def failing(self) -> bool:
        """True if a step of delivery has failed and is retried."""
        return self._failure is not None

    def find_reason(self, fault: Fault | None) -> str | None:
        """Return why the partition is stopped or failing, in words; None if it is neither.

        Args:
            fault: Result of :meth:`find_fault`.
        """
        if self.stop is not None:
            return self.stop.advice
        return self._failure or (None if fault is None else fault.reason)

    def find_since(self, fault: Fault | None) -> float:
        """Return the time at which the partition's present state began, on the clock ``now``.

        Args:
            fault: Result of :meth:`find_fault` for the same moment.
        """
        if self._since is not None:
            return self._since
        return self._turned_at if fault is None else fault.since

    def turn(self) -> None:
        """Note that a new state begins now which is neither a failure nor a stop.

        Examples: records are delivered again, or the lease is paused. :meth:`find_since` returns this time then.
        """
        self._turned_at = self._now()

    def start(self, plan: StartAt) -> None:
        """Report that delivery starts at a planned position.

        It also ends an earlier failure or stop.
        """
        if not self._stopped_open or plan.request is not None:
            self.resume()
        self.recover()
        if plan.reason is StartReason.NEW_INCARNATION:
            self._log.warning(
                "topic_made_again",
                before=plan.before,
                offset=plan.position,
                advice="positions of the deleted one are void",
            )
            self._hooks.position_reset(
                self._partition,
                before=plan.position if plan.before is None else plan.before,
                after=plan.position,
                reason=plan.reason.value,
            )
        if plan.out_of_range is not None:
            self.note_reset(plan.out_of_range, plan.first_offset, plan.reason)
        # a stopped partition is reopened from time to time, to check whether the cause of the stop persists
        tell = self._log.info if self.stop is None else self._log.debug
        tell("delivery_started", offset=plan.position, committed=plan.committed, reason=plan.reason.value)
        if plan.stable_end is not None:
            self._log.warning(
                "open_transaction_awaited",
                offset=plan.position,
                last_stable_offset=plan.stable_end,
                reason="another member, which reads uncommitted, has committed beyond a transaction that is open",
            )
            self._hooks.trouble(
                Trouble.OPEN_TRANSACTION_AWAITED,
                f"position {plan.position} is beyond an open transaction, which begins at {plan.stable_end}",
                self._partition,
            )
        if plan.request is not None:
            self._note_request(plan.request, plan)
        for gap in (plan.missing, plan.gap, plan.lead):
            if gap is not None:
                self.pass_over(gap, requested=plan.request is not None and gap.reason is GapReason.RESET)
        if plan.behind and plan.committed is not None:
            self._log.warning("committed_behind_landed", committed=plan.committed, landed=plan.position)
            self._hooks.committed_behind(self._partition, committed=plan.committed, landed=plan.position)

    def leave_unnoted(self, error: ConsumerdError) -> None:
        """Report a stop above the log's end that could not be recorded for the group.

        Until it is recorded, it ends with this process.
        """
        self._log.warning("stop_unrecorded", error=str(error))
        self._hooks.trouble(Trouble.STOP_UNRECORDED, str(error), self._partition)

    def _note_request(self, request: OffsetRequest, plan: StartAt) -> None:
        self._log.warning(
            "request_carried_out",
            request=request.id,
            author=request.author,
            position=request.position,
            new_chain=plan.new_chain,
        )
        before, after = plan.before, plan.first_offset
        if before is not None and before != after:
            self._hooks.position_reset(self._partition, before=before, after=after, reason=StartReason.REQUEST.value)

    def pass_over(self, gap: Gap, *, requested: bool = False) -> None:
        """Report a gap: offsets whose records are not delivered, for any reason.

        The caller makes the sink record the gap. The number of lost records is exact only if the gap is a single offset
        whose record was seen; otherwise the number of offsets is an upper bound.

        Args:
            requested: True if an operator has asked to leave out these offsets.
        """
        if gap.reason not in _EXPECTED:
            # records that had landed and are gone need an operator, under any policy
            tell = self._log.error if gap.reason is GapReason.MISSING_FILE else self._log.warning
            tell(
                "range_skipped",
                start=gap.start,
                end=gap.end,
                reason=gap.reason.value,
                records=_count_lost(gap),
                advice=_TO_DO.get(gap.reason, ""),
            )
        self._hooks.gap_recorded(self._partition, gap, requested=requested)

    def pass_unit(self, unit: PassedUnit, *, kept: bool) -> None:
        """Report a corrupt, oversized or refused record or batch that a policy passes over.

        Args:
            kept: True if its bytes were stored in quarantine.
        """
        self._log.warning(
            "unit_quarantined" if kept else "unit_skipped",
            offset=unit.offset,
            next_offset=unit.next_offset,
            cause=unit.cause.value,
            reason=unit.reason,
            advice="see it with `consumerd quarantine show`" if kept else "set the policy to quarantine to keep such",
        )
        self._hooks.unit_passed(self._partition, cause=unit.cause.value, kept=kept)

    def truncated(self, end: int, error: OffsetOutOfRange) -> None:
        """Report a truncation: records landed up to ``end`` are not in the log any more."""
        cause = "the broker was wiped" if error.replaced else "an unclean leader election lost records"
        self._log.warning(
            "log_truncated",
            landed=end,
            latest=error.latest,
            advice=f"{cause}; what comes now lands in a new chain",
        )
        detail = f"{end} was landed, and the log ends at {error.latest}"
        self._hooks.trouble(Trouble.LOG_TRUNCATED, detail, self._partition)

    def sink_failed(self, *, retriable: bool) -> None:
        """Report that a call into the sink has failed.

        Args:
            retriable: True if the call will be repeated; False if the sink has refused for good.
        """
        self._hooks.sink_failed(self._partition, self._sink, retriable=retriable)

    def fault(self) -> None:
        """Report an exception that a sink must not raise, with its traceback.

        Must be called in the ``except`` block of that exception.
        """
        if self.stop is None:
            self._log.exception("sink_faulted")
            self._hooks.trouble(Trouble.SINK_FAULTED, f"sink {self._sink}: an unexpected error", self._partition)

    def abandon_timed_out(self, timeout_ms: int) -> None:
        """Report that a sink's writer did not clean up within ``timeout_ms`` milliseconds."""
        self._log.error("abandon_timed_out", timeout_ms=timeout_ms)
        self._hooks.trouble(Trouble.ABANDON_TIMED_OUT, f"its sink took more than {timeout_ms} ms", self._partition)

    def abandon_failed(self, error: Exception) -> None:
        """Report an error of a sink's writer during clean-up; called in its ``except`` block."""
        self._log.exception("abandon_failed")
        self._hooks.trouble(Trouble.ABANDON_FAILED, f"unexpected {type(error).__name__}", self._partition)

    def note_reset(self, error: OffsetOutOfRange, position: int, reason: StartReason) -> None:
        """Report that a policy moves an out-of-range position to ``position``."""
        self._log.warning(
            "position_reset",
            offset=error.offset,
            earliest=error.earliest,
            latest=error.latest,
            position=position,
            policy=reason.value,
        )
        self._hooks.position_reset(self._partition, before=error.offset, after=position, reason=reason.value)

    def fail(self, error: ConsumerdError) -> None:
        """Report a failed step of delivery that will be retried.

        Only the first failure is logged; further ones are not, until :meth:`recover` is called.
        """
        self.failed_at = self._now()
        self._failure = str(error)
        self._tell(Fault(self.failed_at, self._failure))

    def _tell(self, fault: Fault) -> None:
        """Report that a failure has begun, unless that was reported already."""
        if self._told:
            return
        self._told = True
        if self._since is None:
            self._since = fault.since
        self._log.warning("delivery_failing", error=fault.reason)
        self._hooks.trouble(Trouble.DELIVERY_FAILING, fault.reason, self._partition)

    def recover(self) -> None:
        """Report that the failed step has succeeded; without a failure, this has no effect."""
        if self._failure is None:
            return
        self._failure = self.failed_at = None
        if not self._watched:
            self._tell_end()

    def _tell_end(self) -> None:
        failed_s = 0.0 if self._since is None else self._now() - self._since
        self._told = False
        self._log.info("delivery_recovered", after_s=round(failed_s, 3))
        if self.stop is None:
            self._since = None
            self.turn()
            self._hooks.partition_resumed(self._partition)

    def begin_call(self, who: str, call: str) -> None:
        """Note that a call into a sink or quarantine begins, to detect hanging calls.

        Args:
            who: Name of the called object, such as ``sink lake``.
            call: Name of the called method.
        """
        self._call = who, call, self._now()

    def note_progress(self) -> None:
        """Note that the present call has made a part of its records safe.

        It does not hang, so the time after which it counts as hanging begins anew. Nothing happens without a call.
        """
        if self._call is not None:
            self._call = *self._call[:2], self._now()

    def end_call(self) -> None:
        """Note that the call reported by :meth:`begin_call` has returned or was given up.

        The call's duration sets the time after which the next call counts as hanging: the greatest of 10 s, twice this
        duration, and 0.9 times the previous limit, at most 300 s. Example: after a call of 20 s, the next one counts as
        hanging after 40 s; if that takes 1 s, the one after it counts as hanging after 36 s.
        """
        if self._call is None:
            return
        took_s = self._now() - self._call[2]
        self._call = None
        self._patience_s = min(_LONGEST_PATIENCE_S, max(_PATIENCE_S, 2 * took_s, _PATIENCE_DECAY * self._patience_s))

    @property
    def commit_failure(self) -> str | None:
        """Reason why the last commit of the position failed; None if it succeeded."""
        return None if self._commit_fault is None else self._commit_fault.reason

    def note_commit(self, failure: str | None) -> None:
        """Note a commit's result: None after a success, else the reason of the failure."""
        if failure is None:
            self._commit_fault = None
            return
        since = self._now() if self._commit_fault is None else self._commit_fault.since
        self._commit_fault = Fault(since, f"its position cannot be written: {failure}")

    def find_fault(self, fetching: Fault | None) -> Fault | None:
        """Return a fault of sink, fetching or commits that has lasted too long.

        None if there is no such fault. A call into the sink has lasted too long when it exceeds the time limit that
        :meth:`end_call` has computed from earlier calls (10 to 300 s). Failed fetches or commits have lasted too long
        after :data:`GRACE_S` seconds.

        Args:
            fetching: The reason why the partition cannot be fetched, and since when; None if it can.
        """
        now = self._now()
        if self._call is not None:
            who, call, begun = self._call
            if now - begun >= self._patience_s:
                return Fault(begun, f"{who} has not answered {call} yet; does its disk or server hang?")
        for fault in (fetching, self._commit_fault):
            if fault is not None and now - fault.since >= GRACE_S:
                return fault
        return None

    def watch(self, fault: Fault | None) -> None:
        """Report the beginning of a lasting fault, and its end, once each.

        Must be called periodically.

        Args:
            fault: Result of :meth:`find_fault`; None if there is no lasting fault.
        """
        self._watched = fault is not None
        if fault is not None:
            self._tell(fault)
        elif self._told and self._failure is None:
            self._tell_end()

    def halt(self, stop: Stop, *, opened: bool) -> None:
        """Report that a policy stops the partition.

        If the partition is stopped for the same cause already, nothing is logged again.

        Args:
            stop: The cause, and the advice for operators.
            opened: True if the sink's writer had started for the partition before the stop.
        """
        again = self.stop is not None and self.stop.cause is stop.cause
        self.stop, self._stopped_open = stop, opened
        self._failure = self.failed_at = None
        self._told = self._watched = False
        if again:
            return
        self._since = self._now()
        if stop.by_sink:
            self.sink_failed(retriable=False)
        self._log.error("partition_stopped", cause=stop.cause.value, advice=stop.advice)
        self._hooks.partition_stopped(self._partition, stop.cause.value)

    def resume(self) -> None:
        """Report that delivery of a stopped partition continues; without a stop, this has no effect."""
        if self.stop is None:
            return
        self.stop = self._failure = self.failed_at = self._since = None
        self.turn()
        self._told = self._watched = False
        self._log.info("partition_resumed")
        self._hooks.partition_resumed(self._partition)
