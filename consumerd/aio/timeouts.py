# SPDX-License-Identifier: Apache-2.0
"""asyncio's ``timeout`` and ``timeout_at``, correct on every Python from 3.11.0 on.

Before 3.11.3, ``asyncio.timeout`` assumes that the task has no pending cancellation. If it has one (during clean-up
after a cancellation, or after an inner TaskGroup has failed, which leaves its request on the count for good), an
expired timeout was raised as CancelledError instead of TimeoutError, and ended the task. Debian 12 ships 3.11.2.
"""

from __future__ import annotations

import asyncio
import sys
from types import TracebackType
from typing import Self


class CountingTimeout(asyncio.Timeout):  # type: ignore[misc]  # final by its decorator, yet there is no other way in
    """A timeout that compares the number of pending cancellations with that at its entry."""

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
    """Limit a block to ``seconds``, None for no limit. The block then raises TimeoutError."""
    return _Timeout(None if seconds is None else asyncio.get_running_loop().time() + seconds)


def timeout_at(when: float | None) -> asyncio.Timeout:
    """Limit a block to a time of the running loop's clock, None for no limit.

    The block then raises TimeoutError.
    """
    return _Timeout(when)
