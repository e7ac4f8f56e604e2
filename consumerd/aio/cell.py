# SPDX-License-Identifier: Apache-2.0
"""An observable value: waiters see the latest state; no change is missed, none is queued."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Cell(Generic[T]):
    """An observable value, for use on one event loop.

    Values are replaced, never mutated.
    """

    def __init__(self, value: T) -> None:
        self._value = value
        self._changed = asyncio.Event()

    @property
    def value(self) -> T:
        """The current value."""
        return self._value

    def set(self, value: T) -> None:
        """Replace the value and wake all waiters, unless it is equal."""
        if value == self._value:
            return
        self._value = value
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait(self, satisfies: Callable[[T], bool]) -> T:
        """Return the first value that satisfies the predicate, at once if the current one does.

        Unbounded; it can be cancelled at any time.
        """
        while not satisfies(self._value):
            await self._changed.wait()
        return self._value
