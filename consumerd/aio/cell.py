# SPDX-License-Identifier: Apache-2.0
"""A value that others wait on: the last state wins, no change is missed, none is queued."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Cell(Generic[T]):
    """Holds one value; :meth:`wait` returns the first value that satisfies a predicate, at once if it does now.

    For use on one event loop. Values are replaced, never mutated.
    """

    def __init__(self, value: T) -> None:
        self._value = value
        self._changed = asyncio.Event()

    @property
    def value(self) -> T:
        """The value now."""
        return self._value

    def set(self, value: T) -> None:
        """Replace the value and wake who waits, unless it is equal."""
        if value == self._value:
            return
        self._value = value
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait(self, satisfies: Callable[[T], bool]) -> T:
        """Wait until the value satisfies the predicate. Unbounded; cancel freely."""
        while not satisfies(self._value):
            await self._changed.wait()
        return self._value
