# SPDX-License-Identifier: Apache-2.0
"""Memory of the encoded records that all writers of a sink hold, and its limit.

A writer holds lines from their encoding until their request is accepted. While the endpoint is away, nothing is
accepted, so a writer asks for room before it encodes more (:meth:`RunMemory.make_room`).

Two rules keep writers from waiting for one another:

1. A writer keeps an open run, which waits for more records, only while all writers together hold at most half of the
   limit (:meth:`RunMemory.hold`). Otherwise it sends the run as it is. So open runs never take more than half.
2. Room for up to half of the limit is given as soon as it fits. The other half is held by requests under way, which
   end.

Example: the limit is 64 MiB, and the endpoint is away. 64 partitions hold a piece of 1 MiB each, whose requests fail
and are tried again. The next partition waits for room, and fails with a reason that says so.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from consumerd.aio.cell import Cell
from consumerd.aio.timeouts import timeout
from consumerd.errors import RetriableSinkError


class RunMemory:
    """Counts the bytes that writers hold, and lets them wait for room.

    Args:
        name: The sink, with which error messages begin.
        limit: Most bytes of all writers; one more piece of lines may exceed it.
        charge: Adds bytes to the process's memory account; negative numbers release them.
    """

    def __init__(self, name: str, *, limit: int, charge: Callable[[int], None]) -> None:
        self._name = name
        self._limit = limit
        self._charge = charge
        self._held: dict[Hashable, int] = {}
        self._total = Cell(0)

    def hold(self, writer: Hashable, size: int) -> bool:
        """Set the bytes that a writer holds; return True if open runs should be sent."""
        difference = size - self._held.pop(writer, 0)
        if size:
            self._held[writer] = size
        if difference:
            self._charge(difference)
            self._total.set(self._total.value + difference)
        return self._total.value > self._limit // 2

    async def make_room(self, writer: Hashable, size: int, *, within_s: float) -> None:
        """Wait until ``size`` more bytes fit, and count them for the writer.

        They count until the writer calls :meth:`hold`. Waits at most ``within_s`` seconds; then it raises
        RetriableSinkError.
        """
        needed = min(size, self._limit // 2)
        try:
            async with timeout(within_s):
                await self._total.wait(lambda total: total == 0 or total + needed <= self._limit)
        except TimeoutError:
            raise RetriableSinkError(
                f"{self._name}: records that wait to be accepted fill the sink's part of the memory "
                f"({self._limit} bytes); it is tried again"
            ) from None
        # no await since the wait ended, so no other writer has taken the room
        self.hold(writer, self._held.get(writer, 0) + size)
