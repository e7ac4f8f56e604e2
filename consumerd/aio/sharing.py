"""One read for all who ask for the same thing at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

from consumerd.errors import ConsumerdError

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(eq=False)
class _Round(Generic[V]):
    """Those who share one read; ``outcome`` is empty until it has ended."""

    outcome: list[V | ConsumerdError] = field(default_factory=list)


@dataclass(eq=False)
class _Turn(Generic[V]):
    """The reads of one key, one after the other; ``next`` is the round that has not begun."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    next: _Round[V] = field(default_factory=_Round)


class SharedReads(Generic[K, V]):
    """Answers each call by a read that began after it, as a read of its own would have; but calls of one key that wait for
    the same moment share it, and its failure. One that is cancelled leaves the read to the others.
    """

    def __init__(self, read: Callable[[K], Awaitable[V]]) -> None:
        self._read = read
        self._turns: WeakValueDictionary[K, _Turn[V]] = WeakValueDictionary()

    async def __call__(self, key: K) -> V:
        """Return what is read. Bounded by two reads. Raises what reading raises."""
        turn = self._turns.get(key)
        if turn is None:
            turn = self._turns[key] = _Turn()
        ours = turn.next
        async with turn.lock:
            if not ours.outcome:
                await asyncio.sleep(0)  # for those that have been woken by what has woken us
                turn.next = _Round()  # who asks from now on is to be told what is read from then on
                try:
                    ours.outcome.append(await self._read(key))
                except ConsumerdError as error:
                    ours.outcome.append(error)
        (outcome,) = ours.outcome
        if isinstance(outcome, ConsumerdError):
            raise outcome.with_traceback(None)  # or it would grow by the stack of each of thousands
        return outcome
