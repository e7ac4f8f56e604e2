# SPDX-License-Identifier: Apache-2.0
"""Guarded calls into a sink or the quarantine, under a claim.

Calls are retried if that may help, and raise only our own errors.

Await rule: the claim is checked (:meth:`GuardedCalls.usable`) between the last await and a visible effect. After every
call, a revoked claim ends the pipeline: a write that returns late changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from consumerd.aio.backoff import Backoff
from consumerd.aio.timeouts import timeout_at
from consumerd.delivery.condition import Condition
from consumerd.delivery.ports import DeliverySettings
from consumerd.delivery.signals import PipelineSignals
from consumerd.errors import (
    ConsumerdError,
    LeasePaused,
    OwnershipLost,
    PermanentSinkError,
    RetriableSinkError,
)
from consumerd.model import Claim
from consumerd.sinks.base import PartitionWriter

_T = TypeVar("_T")


class GuardedCalls:
    """Makes the calls of one pipeline."""

    def __init__(
        self,
        claim: Claim,
        sink: str,
        *,
        signals: PipelineSignals,
        condition: Condition,
        settings: DeliverySettings,
        random: Callable[[], float],
    ) -> None:
        self._claim = claim
        self._sink = f"sink {sink}"
        self._signals = signals
        self._condition = condition
        self._abandon_timeout_ms = settings.abandon_timeout_ms
        self._settle_s = settings.retry_maximum_ms / 1000
        self._backoff = Backoff(
            initial_s=settings.retry_initial_ms / 1000, maximum_s=settings.retry_maximum_ms / 1000, random=random
        )
        self._revoked = False
        self._paused = False
        self.unproven: int | None = None
        """Position that has to be acknowledged before a failure counts as over; records beyond it were dropped."""

    @property
    def revoked(self) -> bool:
        """True if the claim was revoked."""
        return self._revoked

    @property
    def paused(self) -> bool:
        """True while it waits for the lease."""
        return self._paused

    def revoke(self) -> None:
        """Revoke the claim: every call raises OwnershipLost from now on."""
        self._revoked = True

    async def usable(self) -> None:
        """Return as soon as the claim may be used.

        Unbounded; raises OwnershipLost at the latest when the session ends.
        """
        while True:
            if self._revoked:
                raise OwnershipLost(f"{self._claim.partition}: the claim was taken away")
            try:
                self._claim.check()
            except LeasePaused:
                self._paused = True
                self._condition.turn()
                try:
                    await self._claim.wait_usable()
                finally:
                    self._paused = False
                    self._condition.turn()
            else:
                return

    async def once(self, call: Awaitable[_T], name: str, *, of: str | None = None) -> _T:
        """Await a call, and raise only our own errors.

        ``of`` names the callee in reports; by default, the sink.
        """
        self._condition.begin_call(of or self._sink, name)
        try:
            answer = await call
        except ConsumerdError:
            raise
        except Exception as error:
            # boundary of the sink: an error in one sink's code stops its partitions, not the process
            self._condition.fault()
            message = f"{self._sink}: unexpected {type(error).__name__}, see the log"
            raise PermanentSinkError(message) from error
        finally:
            self._condition.end_call()
        if self._revoked:
            raise OwnershipLost(f"{self._claim.partition}: the claim ended while the sink was at work")
        return answer

    async def insist(
        self, call: Callable[[], Awaitable[_T]], name: str, *, of: str | None = None, heed_news: bool = False
    ) -> tuple[_T] | None:
        """Retry a call until it is answered.

        Returns None if a drain is requested between two tries, or with ``heed_news`` if an operator's request may be
        pending. Raises RetriableSinkError, after a pause, if the sink has dropped its records and names the position to
        go on at.
        """
        while True:
            await self.usable()
            try:
                return (await self.once(call(), name, of=of),)
            except LeasePaused as error:
                await self.back_off(error)
            except RetriableSinkError as error:
                self._condition.sink_failed(retriable=True)
                await self.back_off(error)
                if error.resume_position is not None:
                    raise
            if self._signals.draining or (heed_news and self._signals.may_have_request):
                return None

    async def abandon(self, writer: PartitionWriter) -> None:
        """Let a writer clean up, within ``abandon_timeout_ms``. Raises no error of the sink.

        If it is cancelled meanwhile (a claim is lost, and then the daemon ends), the writer is asked once more from the
        beginning before the cancellation goes on.
        """
        until = asyncio.get_running_loop().time() + self._abandon_timeout_ms / 1000
        interrupted: asyncio.CancelledError | None = None
        while True:
            try:
                async with timeout_at(until):
                    await writer.abandon()
            except asyncio.CancelledError as error:
                interrupted = error
                continue
            except TimeoutError:
                self._condition.abandon_timed_out(self._abandon_timeout_ms)
            except Exception as error:  # noqa: BLE001 - boundary of the sink: one failed clean-up must not end others
                self._condition.abandon_failed(error)
            break
        if interrupted is not None:
            raise interrupted

    async def back_off(self, error: ConsumerdError) -> None:
        """Note a failure and wait; a drain request ends the wait."""
        self._condition.fail(error)
        await self._signals.rest(self._backoff.next())

    def reset(self) -> None:
        """Reset the backoff to short pauses."""
        self._backoff.reset()
        self.unproven = None

    def recover(self) -> None:
        """Note that the failure is over."""
        self.unproven = None
        if self._condition.failing:
            self._backoff.reset()
            self._condition.recover()

    def prove(self, acknowledged: int) -> None:
        """Note an acknowledged position, which may end a failure."""
        if self.unproven is None or acknowledged > self.unproven:
            self.recover()

    @property
    def settled_at(self) -> float | None:
        """The time when a failure counts as over unless it recurs, or None."""
        failed_at = self._condition.failed_at
        if failed_at is None or self.unproven is not None:
            return None
        return failed_at + self._settle_s
