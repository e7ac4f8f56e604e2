"""Room for the requests of all connections together: what is being received, what waits, and what is worked on.

Kafka's ``queued.max.request.bytes`` (SimpleMemoryPool): a request has its room before it is received, so that one that has
begun can always be finished, and connections whose requests find none are not read until there is some. Unlike there the
bound holds: a request larger than it is let in alone. Who waits has turns in order of arrival.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class Claim:
    """Room for one request, held or waited for; :meth:`release` must be called."""

    __slots__ = ("_granted", "_memory", "held", "size")

    def __init__(self, memory: RequestMemory, size: int, granted: Callable[[], None]) -> None:
        self.size = size
        self.held = False
        self._memory: RequestMemory | None = memory
        self._granted = granted

    def grant(self) -> None:
        """Say that it is held now; for the memory to call."""
        self.held = True
        self._granted()

    def release(self) -> None:
        """Give the room back, or wait for it no more. Idempotent."""
        memory, self._memory = self._memory, None
        if memory is not None:
            memory.give_back(self)


class RequestMemory:
    """``limit_bytes`` for all; used on one event loop."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._waiting: deque[Claim] = deque()
        self.taken_bytes = 0

    def take(self, size: int, granted: Callable[[], None]) -> Claim:
        """Return a claim that is held already, or that will be when ``granted`` is called."""
        claim = Claim(self, size, granted)
        if not self._waiting and self._has_room(size):
            claim.held = True
            self.taken_bytes += size
        else:
            self._waiting.append(claim)
        return claim

    def give_back(self, claim: Claim) -> None:
        """Take a claim's room back; for the claim to call."""
        if claim.held:
            self.taken_bytes -= claim.size
        else:
            self._waiting.remove(claim)
        while self._waiting and self._has_room(self._waiting[0].size):
            following = self._waiting.popleft()
            self.taken_bytes += following.size
            following.grant()

    def _has_room(self, size: int) -> bool:
        return not self.taken_bytes or self.taken_bytes + size <= self._limit_bytes
