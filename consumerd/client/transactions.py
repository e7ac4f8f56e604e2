# SPDX-License-Identifier: Apache-2.0
"""Transactions of a producer: requests that its state needs, and waits of callers.

``client.producer_state`` decides, ``client.transaction_requests`` sends. :meth:`Transactions.run` makes one request
after the other. A call of the program only changes the state and waits, so a cancelled call leaves nothing half done:
:meth:`run` goes on, and the same call again waits for the rest.

Example: ``commit`` flushes the records, then EndTxn is sent and its response is lost. The call ends after
``max_block_s``, with the outcome unknown. EndTxn is repeated meanwhile, which is harmless. ``commit`` again returns
when it is answered.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from consumerd.aio.backoff import Backoff
from consumerd.aio.cell import Cell
from consumerd.aio.timeouts import timeout
from consumerd.client.producer_actions import Action, TransactionOffsets
from consumerd.client.producer_settings import ProducerSettings
from consumerd.client.producer_state import Phase, ProducerState
from consumerd.client.topics import MetadataDirectory
from consumerd.client.transaction_requests import TransactionRequests
from consumerd.errors import (
    BrokerError,
    ConnectionLost,
    ConsumerdError,
    CoordinationError,
    DeliveryTimedOut,
    ProtocolError,
    RequestTimedOut,
)
from consumerd.wire.errorcodes import ErrorCode

_ENDING_BACKOFF_S: Final = 0.02
"""Initial backoff, in seconds, while the previous transaction ends, which takes a broker a few milliseconds."""

Flush = Callable[[], Awaitable[None]]


class Transactions:
    """Keeps a producer's id and transaction in step with brokers, while :meth:`run` runs.

    Args:
        state: State of the producer, shared with its sender.
        requests: Sends the requests.
        directory: Asked to refresh when a broker is not reached.
        wake_sender: Called when batches may have become sendable, or unsendable.
        random: Returns floats in [0, 1), for backoffs.
    """

    def __init__(
        self,
        state: ProducerState,
        requests: TransactionRequests,
        directory: MetadataDirectory,
        settings: ProducerSettings,
        *,
        wake_sender: Callable[[], None],
        random: Callable[[], float],
    ) -> None:
        self.state: Final = state
        self._requests = requests
        self._directory = directory
        self._settings = settings
        self._wake_sender = wake_sender
        self._backoff = Backoff(
            initial_s=settings.retry_backoff_s, maximum_s=settings.retry_backoff_max_s, random=random
        )
        self._ending_backoff = Backoff(
            initial_s=_ENDING_BACKOFF_S, maximum_s=settings.retry_backoff_max_s, random=random
        )
        self._wanted = asyncio.Event()
        self._changes = Cell(0)
        self._in_trouble = False
        """True if a failure was logged, and no request has succeeded since."""
        self._log = structlog.get_logger(__name__)

    def wake(self) -> None:
        """Make :meth:`run` look for the next request."""
        self._wanted.set()

    def announce(self) -> None:
        """Wake callers after the state has changed otherwise than by a request, and :meth:`run`."""
        self._changes.set(self._changes.value + 1)
        self._wanted.set()

    async def run(self) -> None:
        """Send the requests that the state needs, until cancelled."""
        while True:
            self._wanted.clear()
            action = self.state.next_action()
            if action is None:
                await self._wanted.wait()
                continue
            wait_s = await self._perform(action)
            self._changes.set(self._changes.value + 1)
            self._wake_sender()
            if wait_s is not None:
                await asyncio.sleep(wait_s)

    async def _perform(self, action: Action) -> float | None:
        """Send one request; return the backoff before it is repeated, None if it is not."""
        self.state.start(action)
        try:
            identity = await self._requests.perform(action, self.state.identity)
        except (BrokerError, ConnectionLost, CoordinationError, ProtocolError) as error:
            repeated = self.state.failed(action, error)
            if isinstance(error, ConnectionLost):
                self._directory.request_refresh(f"transaction coordinator: {error}")
            is_ending = isinstance(error, BrokerError) and error.code == ErrorCode.CONCURRENT_TRANSACTIONS
            if not is_ending or not repeated:
                self._note_failure(action, error)
            if not repeated:
                return None
            return (self._ending_backoff if is_ending else self._backoff).next()
        self._backoff.reset()
        self._ending_backoff.reset()
        if self._in_trouble:
            self._in_trouble = False
            self._log.info("transaction_request_recovered", transactional_id=self.state.transactional_id)
        if identity is None:
            self.state.succeeded(action)
        else:
            self.state.identified(identity)
            self._log.debug("producer_identified", producer_id=identity.producer_id, epoch=identity.epoch)
        return None

    def _note_failure(self, action: Action, error: ConsumerdError) -> None:
        if not self._in_trouble:
            self._in_trouble = True
            self._log.warning(
                "transaction_request_failed",
                transactional_id=self.state.transactional_id,
                request=type(action).__name__,
                reason=str(error),
            )

    # -- calls of the program

    @property
    def is_open(self) -> bool:
        """True if a transaction was begun, and no commit of it may have happened."""
        return self.state.may_abort

    async def init(self, timeout_s: float | None) -> None:
        """Wait for the producer id and epoch. Raises TransactionFailed, RequestTimedOut."""
        self.state.init()
        if not await self._reach(lambda: self.state.phase is Phase.READY, timeout_s):
            raise RequestTimedOut(f"init_transactions: {self._explain_wait(timeout_s)}; call it again, or close")

    async def commit(self, flush: Flush, timeout_s: float | None) -> None:
        """Flush the records, and commit the transaction.

        Raises TransactionFailed if it cannot be committed, DeliveryTimedOut if the outcome is unknown.
        """
        self.state.commit()
        await flush()
        self._check()
        await self._end("commit_transaction", timeout_s)

    async def abort(self, flush: Flush, timeout_s: float | None) -> None:
        """Give up unsent records, wait for the others, and abort the transaction.

        Raises TransactionFailed if the producer cannot go on, DeliveryTimedOut if no answer has come.
        """
        self.state.abort()
        self._wake_sender()
        await flush()
        await self._end("abort_transaction", timeout_s)

    async def _end(self, act: str, timeout_s: float | None) -> None:
        self.state.end()
        if not await self._reach(lambda: self.state.phase is Phase.READY, timeout_s):
            raise DeliveryTimedOut(
                f"{act}: {self._explain_wait(timeout_s)}; the outcome is unknown: call {act} again", in_doubt=True
            )

    async def send_offsets(self, group: TransactionOffsets, timeout_s: float | None) -> None:
        """Write a group's offsets, which count from the commit on. Raises TransactionFailed."""
        self.state.add_offsets(group)
        if not await self._reach(lambda: not self.state.holds_offsets(group), timeout_s):
            self.state.doom(RequestTimedOut(f"send_offsets_to_transaction: {self._explain_wait(timeout_s)}"))
            self._check()

    async def _reach(self, reached: Callable[[], bool], timeout_s: float | None) -> bool:
        """Wait until ``reached``; return False after a timeout. Raises the error that ends the wait."""
        self.wake()
        limit_s = self._settings.max_block_s if timeout_s is None else timeout_s
        try:
            async with timeout(limit_s):
                await self._changes.wait(lambda _: reached() or self.state.failure is not None)
        except TimeoutError:
            return reached()
        self._check()
        return True

    def _check(self) -> None:
        if (failure := self.state.failure) is not None:
            raised = copy.copy(failure)
            raise raised from failure.__cause__

    def _explain_wait(self, timeout_s: float | None) -> str:
        limit_s = self._settings.max_block_s if timeout_s is None else timeout_s
        last = self.state.last_failure
        return f"no outcome within {limit_s:g} s; last: {'no answer' if last is None else last}"
