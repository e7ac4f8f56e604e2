# SPDX-License-Identifier: Apache-2.0
"""Calls into a sink, or into the quarantine, under a claim: guarded, repeated where that may help, and no error let
through but our own.

Await rule: between the last await and a visible effect stands a check of the claim (:meth:`GuardedCalls.usable`), and
after every call it is checked that the claim was not taken away meanwhile: a write that returns late changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from consumerd.aio.backoff import Backoff
from consumerd.aio.timeouts import timeout_at
from consumerd.delivery.attention import Attention
from consumerd.delivery.condition import Condition
from consumerd.delivery.ports import DeliverySettings
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
        attention: Attention,
        condition: Condition,
        settings: DeliverySettings,
        random: Callable[[], float],
    ) -> None:
        self._claim = claim
        self._sink = f"sink {sink}"
        self._attention = attention
        self._condition = condition
        self._abandon_timeout_ms = settings.abandon_timeout_ms
        self._settle_s = settings.retry_maximum_ms / 1000
        self._backoff = Backoff(
            initial_s=settings.retry_initial_ms / 1000, maximum_s=settings.retry_maximum_ms / 1000, random=random
        )
        self._revoked = False
        self._paused = False
        self.unproven: int | None = None
        """A failed file dropped what was beyond: only when that is safe the failure is over."""

    @property
    def revoked(self) -> bool:
        """Whether the claim was taken away."""
        return self._revoked

    @property
    def paused(self) -> bool:
        """Whether the lease is waited for."""
        return self._paused

    def revoke(self) -> None:
        """Take the claim away: every call ends by OwnershipLost from now on."""
        self._revoked = True

    async def usable(self) -> None:
        """Return once the claim may be used at this very moment. Unbounded; ends by OwnershipLost at the latest."""
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
        """Await a call, and let nothing but our own errors out; ``of`` is who is called, the sink unless given."""
        self._condition.begin_call(of or self._sink, name)
        try:
            answer = await call
        except ConsumerdError:
            raise
        except Exception as error:
            # the sink's border: a fault in one sink's code stops its partitions, not the process
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
        """Make a call until it is answered; None where a drain was asked for between two tries, or, if those are heeded,
        where an operator's request may have come.

        Raises RetriableSinkError where the sink has dropped what it held and says where to go on, after a pause.
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
            if self._attention.draining or (heed_news and self._attention.curious):
                return None

    async def abandon(self, writer: PartitionWriter) -> None:
        """Have a writer clean up, within ``abandon_timeout_ms``. Raises nothing of the sink's.

        Where it is cancelled meanwhile (a claim is lost, and then the daemon ends), the writer is asked once more, from
        the beginning, before the cancellation goes on.
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
            except Exception as error:  # noqa: BLE001 - the sink's border: one that cannot clean up must not take others with it
                self._condition.abandon_failed(error)
            break
        if interrupted is not None:
            raise interrupted

    async def back_off(self, error: ConsumerdError) -> None:
        """Note a failure and wait; shorter where a drain is asked for."""
        self._condition.fail(error)
        await self._attention.rest(self._backoff.next())

    def reset(self) -> None:
        """Begin with short pauses again."""
        self._backoff.reset()
        self.unproven = None

    def recover(self) -> None:
        """Note that what failed works again."""
        self.unproven = None
        if self._condition.failing:
            self._backoff.reset()
            self._condition.recover()

    def prove(self, acknowledged: int) -> None:
        """Note that the sink has answered, up to where everything is safe."""
        if self.unproven is None or acknowledged > self.unproven:
            self.recover()

    @property
    def settled_at(self) -> float | None:
        """When a failure that has not come again counts as over; None while there is none."""
        failed_at = self._condition.failed_at
        if failed_at is None or self.unproven is not None:
            return None
        return failed_at + self._settle_s
