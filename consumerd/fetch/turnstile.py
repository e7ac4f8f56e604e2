# SPDX-License-Identifier: Apache-2.0
"""Lets only so much work happen in one turn of the event loop, whoever asks for it.

Each pipeline's decoding takes a few milliseconds at a time. Were hundreds of them served in one turn, whatever else the
loop has to do (the probes that keep the ZooKeeper session alive, before all) would wait for their sum.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final


class Turnstile:
    """Admits work up to ``quota`` a turn of the loop, first come first served; one larger piece has a turn of its own."""

    def __init__(self, quota: int) -> None:
        self._quota: Final = quota
        self._left = quota
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()
        self._scheduled = False

    async def enter(self, cost: int) -> None:
        """Return when work of ``cost`` may be done, in this turn if there is room. Bounded by what is ahead in the
        queue. Cancel freely.
        """
        loop = asyncio.get_running_loop()
        if not self._waiting and self._left > 0:
            self._left -= cost
            self._schedule(loop)
            return
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.append((turn, cost))
        self._schedule(loop)
        await turn

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._scheduled:
            self._scheduled = True
            loop.call_soon(self._turn, loop)

    def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        self._scheduled = False
        self._left = self._quota
        while self._waiting and self._left > 0:
            turn, cost = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                self._left -= cost
        if self._left < self._quota:
            self._schedule(loop)
