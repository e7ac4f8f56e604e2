# SPDX-License-Identifier: Apache-2.0
"""Concurrent calls with a limit on their number."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

from consumerd.errors import ConsumerdError

IN_FLIGHT: Final = 64
"""Concurrent requests to ZooKeeper: enough to hide the round trip, and few enough to leave capacity to other clients.
"""

K = TypeVar("K")
V = TypeVar("V")


async def map_bounded(
    keys: Iterable[K], work: Callable[[K], Awaitable[V]], *, in_flight: int = IN_FLIGHT
) -> dict[K, V]:
    """Call ``work`` for all keys concurrently; return the results in the order of the keys.

    At most ``in_flight`` calls run at a time. Raises the first ConsumerdError of a call; calls that have not begun by
    then are not made. There is no time limit of its own: the calls of ``work`` must have one.
    """
    ordered = list(keys)
    results: dict[K, V] = {}
    failures: list[ConsumerdError] = []
    waiting = iter(ordered)

    async def take_turns() -> None:
        for key in waiting:
            if failures:
                return
            try:
                results[key] = await work(key)
            except ConsumerdError as error:
                failures.append(error)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(in_flight, len(ordered))):
            group.create_task(take_turns())
    if failures:
        raise failures[0]
    return {key: results[key] for key in ordered}
