"""How one partition fares: what it is stopped by, what fails, and since when; told to the log and to the hooks.

A failure is told twice, when it begins and when it is over, however often it is met in between; a stop likewise. The
pipeline decides what happens; this remembers it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from consumerd.delivery.policy import Move, StartAt, StartReason, Stop
from consumerd.errors import ConsumerdError, OffsetOutOfRange
from consumerd.model import TopicPartition
from consumerd.telemetry.hooks import Hooks


class Log(Protocol):
    """What is used of a bound structlog logger."""

    def info(self, event: str, /, **keys: object) -> object:
        """Log a change of state."""

    def warning(self, event: str, /, **keys: object) -> object:
        """Log what is degraded and tried again."""

    def error(self, event: str, /, **keys: object) -> object:
        """Log what a person must act upon."""


class Condition:
    """One partition's condition under one claim. ``now`` is monotonic."""

    def __init__(self, partition: TopicPartition, *, hooks: Hooks, log: Log, now: Callable[[], float]) -> None:
        self._partition = partition
        self._hooks = hooks
        self._log = log
        self._now = now
        self._stop: Stop | None = None
        self._stopped_open = False  # else nothing but opening the sink had failed
        self._failure: str | None = None
        self._failed_at: float | None = None
        self._since: float | None = None

    @property
    def stop(self) -> Stop | None:
        """What it is stopped by."""
        return self._stop

    @property
    def failing(self) -> bool:
        """Whether something fails that is tried again."""
        return self._failure is not None

    @property
    def failed_at(self) -> float | None:
        """When the failure was met last."""
        return self._failed_at

    @property
    def reason(self) -> str | None:
        """Why it is stopped or failing, for people."""
        return self._stop.advice if self._stop is not None else self._failure

    @property
    def since(self) -> float | None:
        """Since when it is stopped or failing."""
        return self._since

    def start(self, plan: StartAt) -> None:
        """Note that a writer was opened and started."""
        if not self._stopped_open:
            self.resume()
        self.recover()
        if plan.out_of_range is not None:
            self._note_reset(plan.out_of_range, plan.position, plan.reason)
        self._log.info("delivery_started", offset=plan.position, committed=plan.committed, reason=plan.reason.value)
        if (gap := plan.gap) is not None:
            self._log.warning("offsets_skipped", start=gap.start, end=gap.end, reason=gap.reason.value)
            self._hooks.gap_recorded(self._partition, gap)
        if plan.behind and plan.committed is not None:
            self._log.warning("committed_behind_landed", committed=plan.committed, landed=plan.position)
            self._hooks.committed_behind(self._partition, committed=plan.committed, landed=plan.position)

    def move(self, error: OffsetOutOfRange, move: Move) -> None:
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
        """Note that something failed that will be tried again."""
        self._failed_at = self._now()
        if self._failure is None:
            if self._since is None:
                self._since = self._failed_at
            self._log.warning("delivery_failing", error=str(error))
        self._failure = str(error)

    def recover(self) -> None:
        """Note that what failed works again."""
        if self._failure is None:
            return
        failed_s = 0.0 if self._since is None else self._now() - self._since
        self._failure = self._failed_at = None
        self._log.info("delivery_recovered", after_s=round(failed_s, 3))
        if self._stop is None:
            self._since = None
            self._hooks.partition_resumed(self._partition)

    def halt(self, stop: Stop, *, opened: bool) -> None:
        """Note that a policy stopped it, with its sink open or while it was being opened."""
        again = self._stop is not None and self._stop.cause is stop.cause
        self._stop, self._stopped_open = stop, opened
        self._failure = self._failed_at = None
        if again:
            return
        self._since = self._now()
        self._log.error("partition_stopped", cause=stop.cause.value, advice=stop.advice)
        self._hooks.partition_stopped(self._partition, stop.cause.value)

    def resume(self) -> None:
        """Note that it goes on, if it was stopped."""
        if self._stop is None:
            return
        self._stop = self._failure = self._failed_at = self._since = None
        self._log.info("partition_resumed")
        self._hooks.partition_resumed(self._partition)
