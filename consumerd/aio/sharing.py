# SPDX-License-Identifier: Apache-2.0
"""Coalescing of concurrent reads: one read serves all callers with the same key."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

from consumerd.errors import ConsumerdError

K = TypeVar("K", bound=Hashable)
Q = TypeVar("Q", bound=Hashable)
V = TypeVar("V")


@dataclass(eq=False)
class _Round(Generic[Q, V]):
    """The questions of one shared read, and its result; ``outcome`` is empty until it ends."""

    asked: dict[Q, None] = field(default_factory=dict)
    outcome: list[Mapping[Q, V] | ConsumerdError] = field(default_factory=list)


@dataclass(eq=False)
class _Turn(Generic[Q, V]):
    """Successive reads of one key; ``next`` collects the questions for the next read."""

    reading: asyncio.Event | None = None
    """Set when the current read has ended; None while there is none."""
    next: _Round[Q, V] = field(default_factory=_Round)


class SharedBatches(Generic[K, Q, V]):
    """Coalesces concurrent questions: each call gets answers from a read that began after it.

    For each key, there is one read at a time. Calls that wait for the next read of a key have their questions read
    together, and all of them raise its error if it fails. Cancelling one of these calls does not fail the other ones.

    Example: A asks key k for question 1, and its read begins. B asks for 2 and C for 3 meanwhile. When A's read ends,
    one more read serves B and C, with the questions 2 and 3.
    """

    def __init__(self, read: Callable[[K, Sequence[Q]], Awaitable[Mapping[Q, V]]]) -> None:
        self._read = read
        self._turns: WeakValueDictionary[K, _Turn[Q, V]] = WeakValueDictionary()

    async def __call__(self, key: K, asked: Iterable[Q]) -> Mapping[Q, V]:
        """Return the answers to ``asked``; those of other callers' questions may be among them.

        Waits for at most two reads, and raises their errors.
        """
        turn = self._turns.get(key)
        if turn is None:
            turn = self._turns[key] = _Turn()
        ours = turn.next
        ours.asked.update(dict.fromkeys(asked))
        while not ours.outcome:
            if turn.reading is None:
                await self._read_round(key, turn, ours)
            else:
                await turn.reading.wait()
        (outcome,) = ours.outcome
        if isinstance(outcome, ConsumerdError):
            raise outcome.with_traceback(None)  # otherwise each of thousands of callers would add its stack
        return outcome

    async def _read_round(self, key: K, turn: _Turn[Q, V], ours: _Round[Q, V]) -> None:
        turn.reading = ended = asyncio.Event()
        try:
            await asyncio.sleep(0)  # let callers join that were woken by the same event
            if turn.next is ours:
                turn.next = _Round()  # calls from now on need a read that begins later
            try:
                ours.outcome.append(await self._read(key, tuple(ours.asked)))
            except ConsumerdError as error:
                ours.outcome.append(error)
        finally:
            turn.reading = None
            ended.set()  # wakes all waiters at once, so that their next questions share a read too


class SharedReads(Generic[K, V]):
    """Coalesces concurrent reads: calls with the same key share a read begun after them.

    Example: A's read of key k is running when B and C ask for k. When A's read ends, one more read serves B and C.
    """

    def __init__(self, read: Callable[[K], Awaitable[V]]) -> None:
        async def read_one(key: K, _asked: Sequence[None]) -> Mapping[None, V]:
            return {None: await read(key)}

        self._batches = SharedBatches(read_one)

    async def __call__(self, key: K) -> V:
        """Return the result of a read of ``key`` that began after this call.

        Waits for at most two reads, and raises their errors.
        """
        return (await self._batches(key, (None,)))[None]
