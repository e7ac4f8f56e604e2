# SPDX-License-Identifier: Apache-2.0
"""Reads that are shared by those who ask at the same time."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Mapping, Sequence

import pytest

from consumerd.aio.sharing import SharedBatches, SharedReads
from consumerd.errors import CoordinationError
from tests.support.virtual_time import run


class Source:
    """Counts its reads; each takes a second, and tells the number of the second in which it began."""

    def __init__(self) -> None:
        self.begun: list[tuple[str, float]] = []
        self.failing = False

    async def read(self, key: str) -> float:
        began = asyncio.get_running_loop().time()
        self.begun.append((key, began))
        await asyncio.sleep(1)
        if self.failing:
            raise CoordinationError("no answer")
        return began


def test_who_asks_at_the_same_time_shares_and_who_asks_later_does_not() -> None:
    """An answer that was under way already may be older than the question."""

    async def scenario() -> None:
        source = Source()
        shared = SharedReads(source.read)
        loop = asyncio.get_running_loop()
        began = loop.time()

        async def ask(after_s: float, key: str = "a") -> tuple[float, float]:
            await asyncio.sleep(after_s)
            asked = loop.time()
            answer = await shared(key)
            return asked, answer

        asking = [ask(0.0), ask(0.0), ask(0.5), ask(0.6), ask(0.9), ask(0.0, "b"), ask(5.0)]
        answers = await asyncio.gather(*asking)
        assert all(answer >= asked for asked, answer in answers)
        assert [(key, round(at - began, 3)) for key, at in source.begun] == [("a", 0), ("b", 0), ("a", 1), ("a", 5)]

    run(scenario())


def test_a_failure_is_shared_too_and_the_next_read_is_another() -> None:
    """A thousand who wait for a server that is away must not wait one after the other."""

    async def scenario() -> None:
        source = Source()
        source.failing = True
        shared = SharedReads(source.read)
        outcomes = await asyncio.gather(*(shared("a") for _ in range(50)), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [CoordinationError] * 50
        assert len(source.begun) == 1
        assert len(traceback.extract_tb(outcomes[0].__traceback__)) < 20, "not the stacks of all who waited"
        source.failing = False
        await shared("a")

    run(scenario())


def test_one_that_is_cancelled_leaves_the_read_to_the_others() -> None:
    """It may be the very one whose task reads."""

    async def scenario() -> None:
        source = Source()
        shared = SharedReads(source.read)
        async with asyncio.TaskGroup() as tasks:
            first = tasks.create_task(shared("a"))
            others = [tasks.create_task(shared("a")) for _ in range(3)]
            await asyncio.sleep(0.5)
            first.cancel()
        with pytest.raises(asyncio.CancelledError):
            first.result()
        assert len({other.result() for other in others}) == 1
        assert len(source.begun) == 2

    run(scenario())


def test_all_that_is_asked_meanwhile_is_one_read() -> None:
    """Each is answered what it asked for, by a read that began after it."""

    async def scenario() -> None:
        reads: list[tuple[str, Sequence[int]]] = []
        loop = asyncio.get_running_loop()

        async def read(key: str, asked: Sequence[int]) -> Mapping[int, float]:
            reads.append((key, asked))
            began = loop.time()
            await asyncio.sleep(1)
            return dict.fromkeys(asked, began)

        shared = SharedBatches(read)

        async def ask(after_s: float, key: str, *asked: int) -> None:
            await asyncio.sleep(after_s)
            at = loop.time()
            answers = await shared(key, asked)
            assert all(answers[one] >= at for one in asked)

        await asyncio.gather(
            ask(0, "a", 1), ask(0, "a", 2, 3), ask(0, "b", 4), ask(0.5, "a", 3, 5), ask(0.9, "a", 6), ask(9, "a", 7)
        )
        assert reads == [("a", (1, 2, 3)), ("b", (4,)), ("a", (3, 5, 6)), ("a", (7,))]

    run(scenario())
