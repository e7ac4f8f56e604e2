# SPDX-License-Identifier: Apache-2.0
"""Who waits for room in a producer's buffer: first come, first served."""

from __future__ import annotations

import asyncio
from collections import deque

from consumerd.client.accumulator import Accumulator


class Room:
    """The line in front of an accumulator.

    Room is reserved for the one that is woken before it runs, so that nobody who comes later takes it.
    """

    def __init__(self, accumulator: Accumulator) -> None:
        self._accumulator = accumulator
        self._line: deque[tuple[asyncio.Future[bool], int]] = deque()
        self._closed = False

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._line)

    def take(self, size: int) -> bool:
        """Reserve room for a record of this size if there is some and nobody waits for it."""
        return not self._line and self._accumulator.reserve(size)

    def give_back(self, size: int) -> None:
        """Return what was reserved for a record that is not appended after all."""
        self._accumulator.give_back(size)
        self.serve()

    async def wait(self, size: int) -> bool:
        """Reserve room for a record of this size, once there is some; False, without any, when this was closed.

        Unbounded; cancel freely: nothing is reserved then.
        """
        if self._closed:
            return False
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        place = (turn, size)
        self._line.append(place)
        try:
            return await turn
        except asyncio.CancelledError:
            if not turn.cancelled() and turn.result():
                # it was served, and cancelled in the same turn of the loop
                self._accumulator.give_back(size)
            elif place in self._line:
                self._line.remove(place)
            self.serve()
            raise

    def serve(self) -> None:
        """Let in whom there is room for; called whenever some was given back."""
        while self._line:
            turn, size = self._line[0]
            if turn.done():
                self._line.popleft()
                continue
            if not self._accumulator.reserve(size):
                return
            self._line.popleft()
            turn.set_result(True)

    def close(self) -> None:
        """Send everybody away who waits, without room."""
        self._closed = True
        while self._line:
            turn, _ = self._line.popleft()
            if not turn.done():
                turn.set_result(False)
