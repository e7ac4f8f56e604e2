# SPDX-License-Identifier: Apache-2.0
"""Signals to one partition's pipeline: drain, and look for an operator's request.

They can be set at any time. The pipeline checks them between its steps, and they interrupt its waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from consumerd.aio.timeouts import timeout, wait_set

_T = TypeVar("_T")


class PipelineSignals:
    """Two signals to a partition's pipeline: "drain", and "read the operator's request".

    The first one stays set. The second one, :attr:`may_have_request`, is reset by the pipeline when it reads the
    request (``consumerd offsets set``).
    """

    def __init__(self) -> None:
        self._draining = asyncio.Event()
        self._signalled = asyncio.Event()
        self._wait: asyncio.Timeout | None = None
        self.may_have_request = True
        """True if there may be an operator's request that was not read yet.

        The pipeline clears it before it looks for a request, and sets it again if that failed or has to be repeated.
        """

    @property
    def draining(self) -> bool:
        """True if a drain is requested: the pipeline must flush and end."""
        return self._draining.is_set()

    def drain(self) -> None:
        """Make the pipeline flush its records and end."""
        self._draining.set()
        self._signal()

    def check_requests(self) -> None:
        """Make the pipeline read the operator's request for a position, if there is one."""
        self.may_have_request = True
        self._signal()

    def _signal(self) -> None:
        self._signalled.set()
        self.interrupt()

    def interrupt(self) -> None:
        """End the present wait of :meth:`bound`, if there is one."""
        if self._wait is not None and not self._wait.expired():
            self._wait.reschedule(asyncio.get_running_loop().time())

    async def bound(self, call: Awaitable[_T], seconds: float | None) -> _T | None:
        """Await ``call`` and return its result, unless time or a signal ends the wait.

        In these cases ``call`` is cancelled, and None is returned. ``seconds`` is the time limit; None for no limit.
        """
        try:
            async with timeout(seconds) as self._wait:
                return await call
        except TimeoutError:
            return None
        finally:
            self._wait = None

    async def rest(self, seconds: float) -> bool:
        """Wait ``seconds``; return True at once when a drain is requested, else False."""
        return await wait_set(self._draining, seconds)

    async def idle(self, seconds: float) -> None:
        """Wait ``seconds``; return earlier if one of the two signals is set.

        The signal to read a request ends one wait only: later waits last their time, even if it is still set.
        """
        await wait_set(self._signalled, seconds)
        if not self.draining:
            self._signalled.clear()
