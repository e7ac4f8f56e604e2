# SPDX-License-Identifier: Apache-2.0
"""Many small reads or writes at once, but not too many."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

from consumerd.errors import ConsumerdError

IN_FLIGHT: Final = 64
"""Requests to ZooKeeper at a time: enough to hide the round trip, few enough to leave it to others."""

K = TypeVar("K")
V = TypeVar("V")


async def map_bounded(
    keys: Iterable[K], work: Callable[[K], Awaitable[V]], *, in_flight: int = IN_FLIGHT
) -> dict[K, V]:
    """Return ``work``'s result for each key, in the order of the keys.

    Raises the first ConsumerdError; what has not begun by then does not begin. Bounded by what ``work`` is.
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
