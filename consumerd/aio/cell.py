# SPDX-License-Identifier: Apache-2.0
"""An observable value: tasks wait until the value satisfies a condition.

Values in between are not queued: a waiter that wakes late sees the latest one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Cell(Generic[T]):
    """An observable value, for use on one event loop.

    The value is replaced, never mutated. A waiter sees the latest value. Example: the value is set to 1, 2 and 3 before
    a waiter's task runs; the waiter sees only 3.
    """

    def __init__(self, value: T) -> None:
        self._value = value
        self._changed = asyncio.Event()

    @property
    def value(self) -> T:
        """The current value."""
        return self._value

    def set(self, value: T) -> None:
        """Replace the value and wake all waiters.

        Does nothing if the new value equals the present one.
        """
        if value == self._value:
            return
        self._value = value
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait(self, satisfies: Callable[[T], bool]) -> T:
        """Wait for a value for which ``satisfies`` is true; return it.

        Returns at once if the current value is one. There is no time limit. The call can be cancelled at any time.
        """
        while not satisfies(self._value):
            await self._changed.wait()
        return self._value
