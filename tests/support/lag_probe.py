# SPDX-License-Identifier: Apache-2.0
"""For how long an event loop is kept from its turns."""

from __future__ import annotations

import asyncio
import time


class LagProbe:
    """Measures for how long the event loop is kept from its turns by its own work, by a timer every 5 ms.

    What counts is the processor time that the thread took for it: on a busy machine the clock tells of others.
    """

    def __init__(self) -> None:
        self.longest = 0.0

    async def run(self) -> None:
        """Measure until cancelled."""
        while True:
            began, spent = time.perf_counter(), time.thread_time()
            await asyncio.sleep(0.005)
            late = time.perf_counter() - began - 0.005
            self.longest = max(self.longest, min(late, time.thread_time() - spent))

    def take(self) -> float:
        """Return the longest time so far, in seconds, and begin anew."""
        longest, self.longest = self.longest, 0.0
        return longest
