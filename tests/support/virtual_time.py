# SPDX-License-Identifier: Apache-2.0
"""An event loop whose clock jumps: timers fire in order, at once, and every run gives the same interleaving.

``run(scenario())`` runs a coroutine on a loop whose ``time()`` starts at 0 and moves to the next timer whenever nothing
is ready. For code that does no real IO; a loop with nothing ready and no timer is a deadlock and raises.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Deadlock(AssertionError):
    """Nothing is ready and no timer is set: the scenario would wait for ever."""


class _JumpingSelector(selectors.SelectSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            raise Deadlock("every task waits and no timer is set")
        self.now += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """A selector loop on virtual time."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._jumping.now


def run(scenario: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a new virtual loop and close the loop."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(scenario)
