# SPDX-License-Identifier: Apache-2.0
"""Waiting for memory: the bridge from the memory account's callbacks to a task."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from consumerd.fetch.buffer import Hold, Lane, MemoryBudget


async def reserve(budget: MemoryBudget, lane: Lane, *, least: int, most: int, short: Callable[[], None]) -> Hold:
    """Reserve ``least`` to ``most`` bytes of the memory budget; wait until they are free.

    If there is not enough memory at once, ``short`` is called, and the wait has no timeout. Safe to cancel: nothing
    stays reserved.

    Args:
        budget: The process's memory.
        lane: The queue to wait in: that of requests, or that of decoded batches.
    """
    hold = budget.take(lane, least=least, most=most)
    if hold is not None:
        return hold
    short()
    granted: asyncio.Future[Hold] = asyncio.get_running_loop().create_future()

    def grant(hold: Hold) -> None:
        if granted.cancelled():  # in the same turn of the loop, before the task could leave the queue
            hold.release()
        else:
            granted.set_result(hold)

    ticket = budget.queue(lane, least=least, most=most, granted=grant)
    try:
        return await granted
    except asyncio.CancelledError:
        ticket.cancel()
        if granted.done() and not granted.cancelled():  # granted first
            granted.result().release()
        raise
