# SPDX-License-Identifier: Apache-2.0
"""``timeout`` and ``timeout_at`` as asyncio has them, right on every Python from 3.11.0 on.

Before 3.11.3 an ``asyncio.timeout`` counts cancellations from zero: in a task that has one pending already (it cleans up
after being cancelled, or a TaskGroup in it has failed before, which leaves its request on the count for good) the end of
the time came out as CancelledError, and ended a task that meant to catch TimeoutError. Debian 12 ships 3.11.2.
"""

from __future__ import annotations

import asyncio
import sys
from types import TracebackType
from typing import Self


class CountingTimeout(asyncio.Timeout):  # type: ignore[misc]  # final by its decorator, yet there is no other way in
    """A timeout that asks whether more cancellations are pending than when it was entered."""

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
    """Bound a block by ``seconds`` from now; None: not at all. The block then raises TimeoutError."""
    return _Timeout(None if seconds is None else asyncio.get_running_loop().time() + seconds)


def timeout_at(when: float | None) -> asyncio.Timeout:
    """Bound a block by a time of the running loop's clock; None: not at all. The block then raises TimeoutError."""
    return _Timeout(when)
