# SPDX-License-Identifier: Apache-2.0
"""One read for all who ask for the same thing at the same time."""

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
    """What is asked in one read, and by it answered; ``outcome`` is empty until it has ended."""

    asked: dict[Q, None] = field(default_factory=dict)
    outcome: list[Mapping[Q, V] | ConsumerdError] = field(default_factory=list)


@dataclass(eq=False)
class _Turn(Generic[Q, V]):
    """The reads of one key, one after the other; ``next`` is the round that has not begun."""

    reading: asyncio.Event | None = None
    """Set when the read that is under way has ended."""
    next: _Round[Q, V] = field(default_factory=_Round)


class SharedBatches(Generic[K, Q, V]):
    """Answers what is asked of a key by a read that began after the call, as a read of its own would have; but calls of one
    key that wait for the same moment have all that they ask read together, and share a failure. There is one read of
    a key at a time. A call that is cancelled leaves the read to the others.
    """

    def __init__(self, read: Callable[[K, Sequence[Q]], Awaitable[Mapping[Q, V]]]) -> None:
        self._read = read
        self._turns: WeakValueDictionary[K, _Turn[Q, V]] = WeakValueDictionary()

    async def __call__(self, key: K, asked: Iterable[Q]) -> Mapping[Q, V]:
        """Return what is read: the answers to what was asked, and maybe more. Bounded by two reads. Raises what reading raises."""
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
            raise outcome.with_traceback(None)  # or it would grow by the stack of each of thousands
        return outcome

    async def _read_round(self, key: K, turn: _Turn[Q, V], ours: _Round[Q, V]) -> None:
        turn.reading = ended = asyncio.Event()
        try:
            await asyncio.sleep(0)  # for those that have been woken by what has woken us
            if turn.next is ours:
                turn.next = _Round()  # who asks from now on is to be told what is read from then on
            try:
                ours.outcome.append(await self._read(key, tuple(ours.asked)))
            except ConsumerdError as error:
                ours.outcome.append(error)
        finally:
            turn.reading = None
            ended.set()  # all at once: what they ask next, they ask together


class SharedReads(Generic[K, V]):
    """:class:`SharedBatches` where a key is all that is asked."""

    def __init__(self, read: Callable[[K], Awaitable[V]]) -> None:
        async def read_one(key: K, _asked: Sequence[None]) -> Mapping[None, V]:
            return {None: await read(key)}

        self._batches = SharedBatches(read_one)

    async def __call__(self, key: K) -> V:
        """Return what is read. Bounded by two reads. Raises what reading raises."""
        return (await self._batches(key, (None,)))[None]
