# SPDX-License-Identifier: Apache-2.0
"""Clocks that are handed to what is under test: calling one returns seconds."""

from __future__ import annotations

import asyncio


class ManualClock:
    """Seconds that a test sets."""

    def __init__(self, seconds: float = 100.0) -> None:
        self.seconds = seconds

    def __call__(self) -> float:
        """Tell the time."""
        return self.seconds


class LoopClock(ManualClock):
    """The running loop's own clock, virtual or real."""

    def __call__(self) -> float:
        """Tell the time."""
        return asyncio.get_running_loop().time()
