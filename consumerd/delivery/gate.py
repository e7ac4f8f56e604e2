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
"""Time, in seconds, after which the next partition is admitted. One whose broker hangs must not block the others."""


class StartGate:
    """Queue of partitions that look up their start position, at most ``at_once`` at a time."""

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._places = asyncio.Semaphore(at_once)

    @asynccontextmanager
    async def admitted(self) -> AsyncIterator[None]:
        """Wait until the partition may look up its start; then run the block.

        The partition counts as one of the ``at_once`` until the block ends, but for one second at most. After that
        second, the next in the queue is admitted while the block continues. So the wait lasts at most one second for
        each ``at_once`` partitions ahead in the queue. It can be cancelled at any time.
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
    """Admission of one partition; ending it twice has no effect."""

    def __init__(self, places: asyncio.Semaphore) -> None:
        self._places: asyncio.Semaphore | None = places

    def leave(self) -> None:
        """End the admission; the next in the queue gets one."""
        places, self._places = self._places, None
        if places is not None:
            places.release()
