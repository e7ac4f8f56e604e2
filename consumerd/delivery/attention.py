# SPDX-License-Identifier: Apache-2.0
"""What the owner of a pipeline wants of it while it works or waits: that it ends, or that it looks up.

Set from outside at any time; the pipeline looks at it between its steps, and whatever it waits for is cut short.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from consumerd.aio.timeouts import timeout

_T = TypeVar("_T")


class Attention:
    """Two wishes: to drain, which stays, and to look whether there is a request, which :meth:`looked` takes away."""

    def __init__(self) -> None:
        self._draining = asyncio.Event()
        self._stirred = asyncio.Event()
        self._wait: asyncio.Timeout | None = None
        self._curious = True

    @property
    def draining(self) -> bool:
        """Whether the pipeline is to flush and end."""
        return self._draining.is_set()

    @property
    def curious(self) -> bool:
        """Whether there may be a request that was not seen yet."""
        return self._curious

    def drain(self) -> None:
        """Have the pipeline flush and end."""
        self._draining.set()
        self._stir()

    def look_up(self) -> None:
        """Have the pipeline look for a request."""
        self._curious = True
        self._stir()

    def looked(self) -> None:
        """Note that the pipeline looks for a request now; :meth:`look_up` makes it look again."""
        self._curious = False

    def doubt(self) -> None:
        """Note that looking has failed, or is to be done again: at the next occasion, without waking anybody."""
        self._curious = True

    def _stir(self) -> None:
        self._stirred.set()
        if self._wait is not None and not self._wait.expired():
            self._wait.reschedule(asyncio.get_running_loop().time())

    async def bound(self, call: Awaitable[_T], seconds: float | None) -> _T | None:
        """Await ``call`` for at most ``seconds`` and until either is wished; None where that came first."""
        try:
            async with timeout(seconds) as self._wait:
                return await call
        except TimeoutError:
            return None
        finally:
            self._wait = None

    async def rest(self, seconds: float) -> bool:
        """Wait; return True as soon as a drain is asked for."""
        return await _comes(self._draining, seconds)

    async def idle(self, seconds: float) -> None:
        """Wait until either is wished, ``seconds`` at most; a wish to look up wakes once, whatever comes of it."""
        await _comes(self._stirred, seconds)
        if not self.draining:
            self._stirred.clear()


async def _comes(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
