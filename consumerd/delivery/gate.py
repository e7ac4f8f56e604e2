# SPDX-License-Identifier: Apache-2.0
"""Lets only so many partitions look up where they start at the same time.

A member may be given ten thousand partitions at once, and each asks ZooKeeper and brokers several things before it can be
fetched. Asked all at the same time, the last answers would come after their deadlines, and the probes that keep the session
alive would wait behind them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

AT_ONCE: Final = 256
_PATIENCE_S: Final = 1.0
"""For how long a place is kept for whoever does not come to an end: those of a broker that hangs must not stop the others."""


class StartGate:
    """``at_once`` places, first come first served."""

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._places = asyncio.Semaphore(at_once)

    @asynccontextmanager
    async def admitted(self) -> AsyncIterator[None]:
        """Wait for a place, and hold it while the block runs, for a second at most.

        After that second the next in line gets the place, and the block goes on without. So the wait is bounded: one
        second for each ``at_once`` who stand ahead in the queue. Cancel freely.
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
    """One place; left once, however often that is asked for."""

    def __init__(self, places: asyncio.Semaphore) -> None:
        self._places: asyncio.Semaphore | None = places

    def leave(self) -> None:
        """Give it to the next."""
        places, self._places = self._places, None
        if places is not None:
            places.release()
