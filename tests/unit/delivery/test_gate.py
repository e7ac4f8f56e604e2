# SPDX-License-Identifier: Apache-2.0
"""How many partitions look up where they start at the same time."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

from consumerd.delivery.gate import StartGate
from tests.support.virtual_time import run


def in_virtual_time(scenario: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    @wraps(scenario)
    def test() -> None:
        run(scenario())

    return test


async def pass_through(gate: StartGate, seconds: float, ended: list[float]) -> None:
    async with gate.admitted():
        await asyncio.sleep(seconds)
    ended.append(asyncio.get_running_loop().time())


@in_virtual_time
async def test_so_many_are_admitted_and_the_next_follow() -> None:
    """Thousands that ask at once would all be answered after their deadlines."""
    gate, ended = StartGate(at_once=2), list[float]()
    async with asyncio.TaskGroup() as group:
        for _ in range(5):
            group.create_task(pass_through(gate, 0.5, ended))

    assert ended == [0.5, 0.5, 1.0, 1.0, 1.5]


@in_virtual_time
async def test_those_that_hang_do_not_stop_the_others() -> None:
    """A broker that does not answer concerns its own partitions."""
    gate, ended = StartGate(at_once=1), list[float]()
    async with asyncio.TaskGroup() as group:
        hanging = group.create_task(pass_through(gate, 1000, []))
        for _ in range(3):
            group.create_task(pass_through(gate, 0.25, ended))
        await asyncio.sleep(3)
        hanging.cancel()

    assert ended == [1.25, 1.5, 1.75]


@in_virtual_time
async def test_a_place_is_given_on_once_only() -> None:
    """Or there would be more places with each one that was late, or cancelled while it had one."""
    gate, ended = StartGate(at_once=1), list[float]()
    async with asyncio.TaskGroup() as group:
        group.create_task(pass_through(gate, 1.5, []))
        cancelled = group.create_task(pass_through(gate, 10, []))
        await asyncio.sleep(1.25)
        cancelled.cancel()
        await asyncio.sleep(1)
        for _ in range(3):
            group.create_task(pass_through(gate, 0.5, ended))

    assert ended == [2.75, 3.25, 3.75]
