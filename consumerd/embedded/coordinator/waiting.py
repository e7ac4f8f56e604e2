# SPDX-License-Identifier: Apache-2.0
"""Requests that wait for an answer, by ticket."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Generic, TypeVar

from consumerd.embedded.coordinator.member import Ticket
from consumerd.embedded.handlers.context import Hangup

T = TypeVar("T")


class Expected(Generic[T]):
    """An answer that is to come."""

    def __init__(self) -> None:
        self._future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def give(self, answer: T) -> None:
        """Give the answer; the first one counts."""
        if not self._future.done():
            self._future.set_result(answer)

    async def unless(self, hangup: Hangup, lost: T) -> T:
        """Wait for it; when the client hangs up, ``lost`` takes its place. Bounded by whoever gives the answer."""
        forget = hangup.add(lambda: self.give(lost))
        try:
            return await self._future
        finally:
            forget()


class ExpectedAnswers(Generic[T]):
    """The answers that are expected now."""

    def __init__(self) -> None:
        self._expected: dict[Ticket, Expected[T]] = {}

    @contextlib.contextmanager
    def expect(self, ticket: Ticket) -> Iterator[Expected[T]]:
        """Expect the answer to a ticket while the block runs."""
        expected = self._expected[ticket] = Expected[T]()
        try:
            yield expected
        finally:
            del self._expected[ticket]

    def answer(self, ticket: Ticket, answer: T) -> None:
        """Answer a ticket, if somebody still waits for it."""
        if (expected := self._expected.get(ticket)) is not None:
            expected.give(answer)
