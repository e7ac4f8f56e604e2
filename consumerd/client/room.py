# SPDX-License-Identifier: Apache-2.0
"""Queue of callers that wait for memory in a producer's buffer: first come, first served."""

from __future__ import annotations

import asyncio
from collections import deque

from consumerd.client.accumulator import Accumulator


class Room:
    """Queue of a producer's callers that wait for memory; first come, first served.

    Memory is reserved for a caller before it is woken, so that a later caller cannot take it. Example: 100 bytes are
    free, A waits for 300 and after it B for 50. B is not served before A. When 200 bytes are released, A is served, and
    B continues to wait.

    Args:
        accumulator: Buffer whose memory is reserved.
    """

    def __init__(self, accumulator: Accumulator) -> None:
        self._accumulator = accumulator
        self._line: deque[tuple[asyncio.Future[bool], int]] = deque()
        self._closed = False

    @property
    def waiting(self) -> int:
        """Number of callers that wait for memory."""
        return len(self._line)

    def take(self, size: int) -> bool:
        """Reserve memory for a record, unless others wait; return True if it is reserved.

        Args:
            size: Size of the record in a request, in bytes.
        """
        return not self._line and self._accumulator.reserve(size)

    def give_back(self, size: int) -> None:
        """Release the memory reserved for a record that will not be appended.

        Args:
            size: Size of the record in a request, in bytes.
        """
        self._accumulator.give_back(size)
        self.serve()

    async def wait(self, size: int) -> bool:
        """Wait until memory for a record is reserved; return True then.

        Returns False, without a reservation, if the producer is closed. There is no time limit. Can be cancelled; then
        nothing is reserved.

        Args:
            size: Size of the record in a request, in bytes.
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
                # the reservation and the cancellation happened in the same iteration of the event loop
                self._accumulator.give_back(size)
            elif place in self._line:
                self._line.remove(place)
            self.serve()
            raise

    def serve(self) -> None:
        """Wake waiting callers in order, as far as there is memory; called after each release."""
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
        """Wake all waiting callers without a reservation."""
        self._closed = True
        while self._line:
            turn, _ = self._line.popleft()
            if not turn.done():
                turn.set_result(False)
