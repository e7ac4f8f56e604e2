# SPDX-License-Identifier: Apache-2.0
"""Signals from the owner of a pipeline: drain, and check for an operator's request.

They can be set at any time. The pipeline checks them between its steps, and they interrupt its waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from consumerd.aio.timeouts import timeout

_T = TypeVar("_T")


class PipelineSignals:
    """Two signals: drain, which stays set, and a possible request, reset by :meth:`begin_check`."""

    def __init__(self) -> None:
        self._draining = asyncio.Event()
        self._signalled = asyncio.Event()
        self._wait: asyncio.Timeout | None = None
        self._may_have_request = True

    @property
    def draining(self) -> bool:
        """True if the pipeline is to flush and end."""
        return self._draining.is_set()

    @property
    def may_have_request(self) -> bool:
        """True if there may be a request that was not read yet."""
        return self._may_have_request

    def drain(self) -> None:
        """Make the pipeline flush and end."""
        self._draining.set()
        self._signal()

    def check_requests(self) -> None:
        """Make the pipeline check for a request."""
        self._may_have_request = True
        self._signal()

    def begin_check(self) -> None:
        """Note that the pipeline checks for a request now; :meth:`check_requests` sets the signal again."""
        self._may_have_request = False

    def repeat_check(self) -> None:
        """Set the request signal again without waking the pipeline.

        For a check that failed, or that has to be repeated.
        """
        self._may_have_request = True

    def _signal(self) -> None:
        self._signalled.set()
        if self._wait is not None and not self._wait.expired():
            self._wait.reschedule(asyncio.get_running_loop().time())

    async def bound(self, call: Awaitable[_T], seconds: float | None) -> _T | None:
        """Await ``call``; return None after ``seconds``, or as soon as a signal is set."""
        try:
            async with timeout(seconds) as self._wait:
                return await call
        except TimeoutError:
            return None
        finally:
            self._wait = None

    async def rest(self, seconds: float) -> bool:
        """Wait ``seconds``; return True as soon as a drain is requested."""
        return await _wait_for(self._draining, seconds)

    async def idle(self, seconds: float) -> None:
        """Wait ``seconds``, or until a signal is set.

        The request signal ends one wait only.
        """
        await _wait_for(self._signalled, seconds)
        if not self.draining:
            self._signalled.clear()


async def _wait_for(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
