# SPDX-License-Identifier: Apache-2.0
"""Pending requests, by ticket."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Generic, TypeVar

from consumerd.embedded.coordinator.member import Ticket
from consumerd.embedded.handlers.context import Hangup

T = TypeVar("T")


class Expected(Generic[T]):
    """A pending response."""

    def __init__(self) -> None:
        self._future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def give(self, answer: T) -> None:
        """Set the response; the first one counts."""
        if not self._future.done():
            self._future.set_result(answer)

    async def unless(self, hangup: Hangup, lost: T) -> T:
        """Wait for the response, or return ``lost`` when the client disconnects.

        Bounded by the caller of :meth:`give`.
        """
        forget = hangup.add(lambda: self.give(lost))
        try:
            return await self._future
        finally:
            forget()


class ExpectedAnswers(Generic[T]):
    """All pending responses."""

    def __init__(self) -> None:
        self._expected: dict[Ticket, Expected[T]] = {}

    @contextlib.contextmanager
    def expect(self, ticket: Ticket) -> Iterator[Expected[T]]:
        """Expect the response to a ticket while the block runs."""
        expected = self._expected[ticket] = Expected[T]()
        try:
            yield expected
        finally:
            del self._expected[ticket]

    def answer(self, ticket: Ticket, answer: T) -> None:
        """Set the response to a ticket, if it is still pending."""
        if (expected := self._expected.get(ticket)) is not None:
            expected.give(answer)
