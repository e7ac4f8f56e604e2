# SPDX-License-Identifier: Apache-2.0
"""Waiting for memory: the bridge from the memory account's callbacks to a task."""

from __future__ import annotations

import asyncio

from consumerd.fetch.buffer import Hold, Lane, MemoryBudget


async def reserve(budget: MemoryBudget, lane: Lane, *, least: int, most: int) -> Hold:
    """Return a hold of between ``least`` and ``most`` bytes, at once where there is room, else in turn.

    Unbounded: ends when others give memory back. Cancel freely, nothing stays held.
    """
    hold = budget.take(lane, least=least, most=most)
    if hold is not None:
        return hold
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
