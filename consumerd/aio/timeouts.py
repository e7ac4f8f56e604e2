# SPDX-License-Identifier: Apache-2.0
"""asyncio's ``timeout`` and ``timeout_at``, correct on every Python from 3.11.0 on.

Before 3.11.3, ``asyncio.timeout`` assumes that the task has no pending cancellation. A task has one during clean-up
after a cancellation. It also has one after an inner TaskGroup has failed, because those versions never take back the
group's request. An expired timeout was then raised as CancelledError instead of TimeoutError, and ended the task.
Debian 12 ships 3.11.2.
"""

from __future__ import annotations

import asyncio
import math
import sys
from types import TracebackType
from typing import Self


class CountingTimeout(asyncio.Timeout):  # type: ignore[misc]  # final by its decorator, yet there is no other way in
    """``asyncio.Timeout`` for Python before 3.11.3, correct after an earlier cancellation, too.

    On expiry it raises TimeoutError, even if the task had a pending cancellation when the block began;
    ``asyncio.Timeout`` of these versions raises CancelledError then. If the task is cancelled during the block,
    CancelledError is raised as usual.
    """

    async def __aenter__(self) -> Self:
        self._pending = _count_cancellations()
        await super().__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await super().__aexit__(kind, error, traceback)
        if self.expired() and kind is asyncio.CancelledError and _count_cancellations() <= self._pending:
            raise TimeoutError from error


def _count_cancellations() -> int:
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


_Timeout = asyncio.Timeout if sys.version_info[:3] >= (3, 11, 3) else CountingTimeout


def timeout(seconds: float | None) -> asyncio.Timeout:
    """Limit an ``async with`` block to ``seconds`` from now; None is no limit.

    The block raises TimeoutError when the time is over.
    """
    return _Timeout(None if seconds is None else asyncio.get_running_loop().time() + seconds)


def timeout_at(when: float | None) -> asyncio.Timeout:
    """Limit an ``async with`` block to the time ``when``, as of the running loop's ``time()``.

    The block raises TimeoutError at that time. None is no limit.
    """
    return _Timeout(when)


async def wait_set(event: asyncio.Event, seconds: float | None) -> bool:
    """Wait until ``event`` is set, for at most ``seconds``; None and infinity are no limit.

    Returns True if it is set, and False after a timeout.
    """
    try:
        async with timeout(None if seconds == math.inf else seconds):
            return await event.wait()
    except TimeoutError:
        return False
