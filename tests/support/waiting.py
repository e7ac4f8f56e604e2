# SPDX-License-Identifier: Apache-2.0
"""Waiting for what nobody announces: a condition is polled, under a bound of time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

from consumerd.aio.timeouts import timeout
from tests.support.virtual_time import VirtualLoop

_POLL_S: Final = 0.005
_REAL_S: Final = 20.0
_VIRTUAL_S: Final = 600.0


async def until(condition: Callable[[], object | Awaitable[object]], *, within_s: float | None = None) -> None:
    """Wait until a condition, or what it awaits, is true: 20 s at most, or 600 s on virtual time, unless given.

    Raises TimeoutError.
    """
    if within_s is None:
        within_s = _VIRTUAL_S if isinstance(asyncio.get_running_loop(), VirtualLoop) else _REAL_S
    async with timeout(within_s):
        while True:
            result = condition()
            if await result if isinstance(result, Awaitable) else result:
                return
            await asyncio.sleep(_POLL_S)


def wait_until(condition: Callable[[], object], what: str, timeout_s: float = 30.0, interval_s: float = 0.05) -> None:
    """Wait, without an event loop, until a condition is true. Raises TimeoutError that says ``what`` did not come about."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout_s} s: {what}")
        time.sleep(interval_s)
