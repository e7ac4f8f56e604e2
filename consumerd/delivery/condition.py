# SPDX-License-Identifier: Apache-2.0
"""The condition of one partition: stopped or failing, since when and why; logged once.

A failure is reported twice, when it begins and when it ends, however often it recurs in between; a stop likewise. The
pipeline makes the decisions, and this module keeps and reports their state.

A refusal of the sink is reported at once. Other faults are searched periodically (:meth:`Condition.find_fault`), and
count once they have lasted: a partition that cannot be fetched, a position that cannot be written, a call that hangs. A
fault that follows another is the same failure, with a new reason.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from consumerd.delivery.passing import PassedUnit
from consumerd.delivery.policy import Reposition, StartAt, StartReason, Stop
from consumerd.errors import ConsumerdError, OffsetOutOfRange
from consumerd.model import Fault, Gap, GapReason, TopicPartition
from consumerd.offsets.store import OffsetRequest
from consumerd.telemetry.hooks import Hooks, Trouble


class BoundLogger(Protocol):
    """The methods used of a bound structlog logger."""

    def debug(self, event: str, /, **keys: object) -> object:
        """Log a detail of interest when debugging."""

    def info(self, event: str, /, **keys: object) -> object:
        """Log a change of state."""

    def warning(self, event: str, /, **keys: object) -> object:
        """Log a degradation that is retried."""

    def error(self, event: str, /, **keys: object) -> object:
        """Log a fault that an operator must act upon."""

    def exception(self, event: str, /, **keys: object) -> object:
        """Log an unexpected error of a sink's code, with its traceback."""


GRACE_S: Final = 5.0
"""Time, in seconds, that fetching or committing may fail before the partition counts as failing. A leader that moves,
or a broker that restarts in order, takes a second or two.
"""
_PATIENCE_S: Final = 10.0
_LONGEST_PATIENCE_S: Final = 300.0
"""Limits, in seconds, of the time after which a call into a sink counts as hanging. Between them, it is twice the time
of the calls before, so that a slow but working sink does not alternate between failing and running.
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
    """One partition's condition under one claim. ``now`` is monotonic, in seconds."""

    def __init__(
        self, partition: TopicPartition, sink: str, *, hooks: Hooks, log: BoundLogger, now: Callable[[], float]
    ) -> None:
        self._partition = partition
        self._sink = sink
        self._hooks = hooks
        self._log = log
        self._now = now
        self._stop: Stop | None = None
        self._stopped_open = False  # true if it stopped after the sink was opened
        self._failure: str | None = None
        self._failed_at: float | None = None
        self._since: float | None = None
        self._turned_at = now()
        self._told = False
        self._watched = False
        self._call: tuple[str, str, float] | None = None
        self._patience_s = _PATIENCE_S
        self._commit_fault: Fault | None = None

    @property
    def stop(self) -> Stop | None:
        """The stop, if it is stopped."""
        return self._stop

    @property
    def failing(self) -> bool:
        """True if something fails and is retried."""
        return self._failure is not None

    @property
    def failed_at(self) -> float | None:
        """The time of the latest occurrence of the failure, or None."""
        return self._failed_at

    def find_reason(self, fault: Fault | None) -> str | None:
        """Return why it is stopped or failing, or None.

        ``fault`` is the result of :meth:`find_fault`.
        """
        if self._stop is not None:
            return self._stop.advice
        return self._failure or (None if fault is None else fault.reason)

    def find_since(self, fault: Fault | None) -> float:
        """Return when the present stop, failure or state began."""
        if self._since is not None:
            return self._since
        return self._turned_at if fault is None else fault.since

    def turn(self) -> None:
        """Note a change of state that is neither a failure nor a stop."""
        self._turned_at = self._now()

    def start(self, plan: StartAt) -> None:
        """Note that a writer was opened and started."""
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
            self._note_reset(plan.out_of_range, plan.first_offset, plan.reason)
        # a stopped partition is reopened from time to time, to check whether the cause of the stop persists
        tell = self._log.info if self._stop is None else self._log.debug
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
                self.pass_over(gap)
        if plan.behind and plan.committed is not None:
            self._log.warning("committed_behind_landed", committed=plan.committed, landed=plan.position)
            self._hooks.committed_behind(self._partition, committed=plan.committed, landed=plan.position)

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

    def pass_over(self, gap: Gap) -> None:
        """Report offsets without a delivered record, for any reason.

        The caller has the gap recorded by the sink. The number of lost records is known for a single offset that was
        seen; otherwise the number of offsets is an upper bound.
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
        self._hooks.gap_recorded(self._partition, gap)

    def pass_unit(self, unit: PassedUnit, *, kept: bool) -> None:
        """Report a unit that a policy passes over; ``kept`` if it is in quarantine."""
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
        self._log.warning(
            "log_truncated",
            landed=end,
            latest=error.latest,
            advice="an unclean leader election lost records; what comes now lands in a new chain",
        )
        detail = f"{end} was landed, and the log ends at {error.latest}"
        self._hooks.trouble(Trouble.LOG_TRUNCATED, detail, self._partition)

    def sink_failed(self, *, retriable: bool) -> None:
        """Report a call that the sink refused."""
        self._hooks.sink_failed(self._partition, self._sink, retriable=retriable)

    def fault(self) -> None:
        """Report an error that sinks must not raise; called in its handler."""
        if self._stop is None:
            self._log.exception("sink_faulted")
            self._hooks.trouble(Trouble.SINK_FAULTED, f"sink {self._sink}: an unexpected error", self._partition)

    def abandon_timed_out(self, timeout_ms: int) -> None:
        """Report a writer that did not clean up in time."""
        self._log.error("abandon_timed_out", timeout_ms=timeout_ms)
        self._hooks.trouble(Trouble.ABANDON_TIMED_OUT, f"its sink took more than {timeout_ms} ms", self._partition)

    def abandon_failed(self, error: Exception) -> None:
        """Report a writer whose clean-up failed; called in the error's handler."""
        self._log.exception("abandon_failed")
        self._hooks.trouble(Trouble.ABANDON_FAILED, f"unexpected {type(error).__name__}", self._partition)

    def move(self, error: OffsetOutOfRange, move: Reposition) -> None:
        """Note that a policy moves the position."""
        self._note_reset(error, move.position, move.reason)

    def _note_reset(self, error: OffsetOutOfRange, position: int, reason: StartReason) -> None:
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
        """Note a failure that will be retried."""
        self._failed_at = self._now()
        self._failure = str(error)
        self._tell(Fault(self._failed_at, self._failure))

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
        """Note that the failure is over."""
        if self._failure is None:
            return
        self._failure = self._failed_at = None
        if not self._watched:
            self._tell_end()

    def _tell_end(self) -> None:
        failed_s = 0.0 if self._since is None else self._now() - self._since
        self._told = False
        self._log.info("delivery_recovered", after_s=round(failed_s, 3))
        if self._stop is None:
            self._since = None
            self.turn()
            self._hooks.partition_resumed(self._partition)

    def begin_call(self, who: str, call: str) -> None:
        """Note that ``who`` was called, until :meth:`end_call`."""
        self._call = who, call, self._now()

    def end_call(self) -> None:
        """Note that the call has returned or was given up."""
        if self._call is None:
            return
        took_s = self._now() - self._call[2]
        self._call = None
        self._patience_s = min(_LONGEST_PATIENCE_S, max(_PATIENCE_S, 2 * took_s, _PATIENCE_DECAY * self._patience_s))

    def note_commit(self, failure: str | None) -> None:
        """Note why the position could not be written, or with None that it was."""
        if failure is None:
            self._commit_fault = None
            return
        since = self._now() if self._commit_fault is None else self._commit_fault.since
        self._commit_fault = Fault(since, f"its position cannot be written: {failure}")

    def find_fault(self, fetching: Fault | None) -> Fault | None:
        """Return the fault that has lasted too long, or None.

        ``fetching`` is the reason why the partition cannot be fetched, if it cannot.
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
        """Report a lasting fault once, or with None its end."""
        self._watched = fault is not None
        if fault is not None:
            self._tell(fault)
        elif self._told and self._failure is None:
            self._tell_end()

    def halt(self, stop: Stop, *, opened: bool) -> None:
        """Note a stop by a policy; ``opened`` if the sink had been opened.

        The partition is checked again from time to time, but only a new cause is reported.
        """
        again = self._stop is not None and self._stop.cause is stop.cause
        self._stop, self._stopped_open = stop, opened
        self._failure = self._failed_at = None
        self._told = self._watched = False
        if again:
            return
        self._since = self._now()
        if stop.by_sink:
            self.sink_failed(retriable=False)
        self._log.error("partition_stopped", cause=stop.cause.value, advice=stop.advice)
        self._hooks.partition_stopped(self._partition, stop.cause.value)

    def resume(self) -> None:
        """Note that it goes on, if it was stopped."""
        if self._stop is None:
            return
        self._stop = self._failure = self._failed_at = self._since = None
        self.turn()
        self._told = self._watched = False
        self._log.info("partition_resumed")
        self._hooks.partition_resumed(self._partition)
