# SPDX-License-Identifier: Apache-2.0
"""Claims without a group behind them, to be lost, paused and confused at will."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from consumerd.errors import ConsumerdError, LeasePaused
from consumerd.model import Claim, Incarnation, SessionEpoch, ThreadId, TopicPartition


class StubClaim:
    """A claim that stands until a test says otherwise.

    ``failure``, when set, is what :meth:`check` and :meth:`confirm` raise; a LeasePaused ends when :meth:`resume` is
    called; ``paused`` is set once somebody waits for that. ``on_confirm`` runs at each confirmation, before its outcome is decided.
    """

    def __init__(self, partition: TopicPartition, *, incarnation: Incarnation | None = None) -> None:
        self.partition = partition
        self.thread = ThreadId("member-0")
        self.epoch = SessionEpoch(1)
        self.incarnation = incarnation or Incarnation(7)
        self.failure: ConsumerdError | None = None
        self.on_confirm: Callable[[], Awaitable[None]] | None = None
        self.confirmations = 0
        self.paused = asyncio.Event()
        self._settled = asyncio.Event()

    @property
    def usable(self) -> bool:
        """Whether :meth:`check` would pass."""
        return self.failure is None

    def check(self) -> None:
        """Raise the failure, if any."""
        if self.failure is not None:
            raise self.failure

    def resume(self, failure: ConsumerdError | None = None) -> None:
        """End a pause, well or by ``failure``."""
        self.failure = failure
        self._settled.set()

    async def wait_usable(self) -> None:
        """Wait until :meth:`resume`."""
        self.paused.set()
        while isinstance(self.failure, LeasePaused):
            await self._settled.wait()
        self.check()

    async def confirm(self) -> None:
        """Count, let the test interfere, and check."""
        self.confirmations += 1
        if self.on_confirm is not None:
            await self.on_confirm()
        self.check()


_: type[Claim] = StubClaim
