# SPDX-License-Identifier: Apache-2.0
"""Turnstile: a limit of the decoding work done in one turn of the event loop.

Each pipeline's decoding takes a few milliseconds at a time. If hundreds of them decoded in one turn, everything else on
the loop would wait for their sum, above all the probes that keep the ZooKeeper session alive.

Example: the quota is 128 KiB. Three pipelines want to decode 100, 60 and 200 KiB. The first two have this turn: the
second begins while 28 KiB are left. The third has the next turn.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final


class Turnstile:
    """Limits decoding on the event loop to ``quota`` bytes per turn, first come first served.

    Work is admitted while any of the quota is left, so work larger than the quota is admitted too.
    """

    def __init__(self, quota: int) -> None:
        self._quota: Final = quota
        self._left = quota
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()
        self._scheduled = False

    async def enter(self, cost: int) -> None:
        """Wait until ``cost`` bytes may be decoded in the present turn of the event loop.

        Returns at once if some of the turn's quota is left. Otherwise the caller waits for a later turn, behind the
        callers that came before. Safe to cancel.
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
