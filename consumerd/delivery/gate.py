# SPDX-License-Identifier: Apache-2.0
"""Limits the number of partitions that look up their start at the same time.

A member may be given ten thousand partitions at once, and each sends several requests to ZooKeeper and brokers before
it can be fetched. Sent all at once, the last responses would miss their deadlines, and the heartbeats that keep the
session alive would wait behind them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

AT_ONCE: Final = 256
_PATIENCE_S: Final = 1.0
"""Time, in seconds, after which a place is passed on. Partitions of a broker that hangs must not block the others."""


class StartGate:
    """A queue for ``at_once`` places, first come first served."""

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._places = asyncio.Semaphore(at_once)

    @asynccontextmanager
    async def admitted(self) -> AsyncIterator[None]:
        """Wait for a place, and hold it for one second at most.

        It is left when the block ends. After one second the next in the queue gets it, and the block continues without.
        So the wait is bounded by one second per ``at_once`` partitions ahead in the queue. It can be cancelled at any
        time.
        """
        await self._places.acquire()
        place = _Place(self._places)
        giving_on = asyncio.get_running_loop().call_later(_PATIENCE_S, place.leave)
        try:
            yield
        finally:
            giving_on.cancel()
            place.leave()


class _Place:
    """One place; leaving it twice has no effect."""

    def __init__(self, places: asyncio.Semaphore) -> None:
        self._places: asyncio.Semaphore | None = places

    def leave(self) -> None:
        """Pass the place on to the next in the queue."""
        places, self._places = self._places, None
        if places is not None:
            places.release()
