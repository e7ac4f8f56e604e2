# SPDX-License-Identifier: Apache-2.0
"""Calls into a sink or the quarantine, guarded by the partition's claim.

Calls are retried if that may help. They raise only errors of :mod:`consumerd.errors`.

The claim is checked (:meth:`GuardedCalls.usable`) right before each call that writes or publishes, with no ``await``
between the check and the call: the claim can be lost during any await. After every call, a revoked claim ends the
pipeline, so the result of a write that returns late is not used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from consumerd.aio.backoff import Backoff
from consumerd.aio.timeouts import timeout_at
from consumerd.client.remedies import DENIED_RETRY_S, is_denied
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
    """Calls a partition's sink and its quarantine, under one claim.

    Waits while the lease is paused before a call, retries failed calls with backoff, and reports failures to the
    partition's :class:`~consumerd.delivery.condition.Condition`.
    """

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
        self.revoked = False
        """True as soon as the pipeline has lost the claim: every call raises OwnershipLost from then on."""
        self.paused = False
        """True while a call waits because the lease is paused.

        A lease is paused while ZooKeeper does not respond, so that the session may have expired.
        """
        self.unproven: int | None = None
        """Position that has to be acknowledged before a failure of the sink counts as over.

        The sink has dropped records, and this is the next offset that was to be written when it failed. None without
        such a failure.
        """

    async def usable(self) -> None:
        """Wait while the claim's lease is paused; return when the claim is usable.

        A lease is paused while ZooKeeper does not respond. Has no time limit of its own. Raises OwnershipLost if the
        claim was revoked or its session ends.
        """
        while True:
            if self.revoked:
                raise OwnershipLost(f"{self._claim.partition}: the claim was taken away")
            try:
                self._claim.check()
            except LeasePaused:
                self.paused = True
                self._condition.turn()
                try:
                    await self._claim.wait_usable()
                finally:
                    self.paused = False
                    self._condition.turn()
            else:
                return

    async def once(self, call: Awaitable[_T], name: str, *, of: str | None = None) -> _T:
        """Await one call into a sink, without retries; return its result.

        Errors of :mod:`consumerd.errors` are raised unchanged; any other exception becomes a PermanentSinkError. Raises
        OwnershipLost if the claim was revoked during the call.

        Args:
            name: Name of the called method, for reports.
            of: Name of the called object, for reports; by default, that of the sink.
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
        if self.revoked:
            raise OwnershipLost(f"{self._claim.partition}: the claim ended while the sink was at work")
        return answer

    async def insist(
        self, call: Callable[[], Awaitable[_T]], name: str, *, of: str | None = None, heed_news: bool = False
    ) -> tuple[_T] | None:
        """Call a sink until it returns, with retries; return the result in a one-tuple.

        Returns None if a drain is requested between two tries, or, with ``heed_news``, if an operator may have
        requested another position.

        Raises RetriableSinkError, after a pause, if the sink has dropped records that it had accepted: the error's
        ``resume_position`` is the offset from which they must be written again. Other errors that a retry cannot end
        are raised at once.

        Args:
            call: Makes the call anew for each try.
            name: Name of the called method, for reports.
            of: Name of the called object, for reports; by default, that of the sink.
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
        """Let a writer clean up without flushing, within ``abandon_timeout_ms``.

        Errors of the writer are reported, not raised. If this call is cancelled while the writer cleans up, the
        clean-up is called once more within the same time limit, and then CancelledError is raised.
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
        """Report a failure, and wait before the next try; a drain request ends the wait.

        The waits grow with each failure up to ``retry_maximum_ms``, and are longer only if the sink's destination asks
        for more time. See :meth:`reset`.
        """
        self._condition.fail(error)
        asked_s = error.retry_after_s if isinstance(error, RetriableSinkError) else 0.0
        pause_s = self._backoff.next()
        if is_denied(error):
            pause_s = min(pause_s, DENIED_RETRY_S)  # so that it goes on soon after the right was given
        await self._signals.rest(max(pause_s, asked_s))

    def reset(self) -> None:
        """Let the pauses after failures start again with the shortest one.

        Also sets :attr:`unproven` to None.
        """
        self._backoff.reset()
        self.unproven = None

    def recover(self) -> None:
        """Note that the failing step has succeeded: log the recovery, if there was a failure.

        Pauses after later failures start again with the shortest one.
        """
        self.unproven = None
        if self._condition.failing:
            self._backoff.reset()
            self._condition.recover()

    def prove(self, acknowledged: int) -> None:
        """Note an acknowledged position, which may end a failure of the sink.

        If the sink had dropped records (:attr:`unproven` is not None), the failure ends only when ``acknowledged`` is
        greater than :attr:`unproven`; otherwise it ends now.
        """
        if self.unproven is None or acknowledged > self.unproven:
            self.recover()

    @property
    def settled_at(self) -> float | None:
        """Time at which the present failure counts as over unless it recurs before.

        In seconds of the event loop's clock. None if there is no failure, or if only a new acknowledgement of the sink
        can end it (:attr:`unproven`).
        """
        failed_at = self._condition.failed_at
        if failed_at is None or self.unproven is not None:
            return None
        return failed_at + self._settle_s
