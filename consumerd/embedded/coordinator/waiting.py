# SPDX-License-Identifier: Apache-2.0
"""Responses to group requests that wait for other members, by ticket number."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from consumerd.embedded.coordinator.member import Ticket
from consumerd.embedded.handlers.context import Hangup

T = TypeVar("T")


class PendingResponses(Generic[T]):
    """Responses of one kind (JoinGroup or SyncGroup) that clients wait for.

    A waiting request is identified by its ticket, a number that the caller chooses.
    """

    def __init__(self) -> None:
        self._pending: dict[Ticket, asyncio.Future[T]] = {}

    async def wait(self, ticket: Ticket, start: Callable[[], None], hangup: Hangup, lost: T) -> T:
        """Give a request to the group, and wait for its response.

        Returns ``lost`` if the client disconnects first. There is no timeout: the group responds to each ticket.

        Args:
            ticket: Number of the request, chosen by the caller.
            start: Gives the request to the group, which may respond at once.
            hangup: Tells if the client disconnects.
            lost: The result if it does.
        """
        response: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._pending[ticket] = response
        forget = hangup.add(lambda: self.respond(ticket, lost))
        try:
            start()
            return await response
        finally:
            forget()
            del self._pending[ticket]

    def respond(self, ticket: Ticket, response: T) -> None:
        """Pass a response to the caller that waits for this ticket; ignored if none waits."""
        pending = self._pending.get(ticket)
        if pending is not None and not pending.done():
            pending.set_result(response)
